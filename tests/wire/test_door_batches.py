"""Batches, asked by OpenAI's and Anthropic's own clients: every line answered once, in the right file."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai.types import Batch

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of
from watchbill.batches import pausing, record
from watchbill.catalog import ApiKey, BatchRules, Catalog, Server
from watchbill.config import parse
from watchbill.gateway.dialects.batches import openai as openai_batches
from watchbill.units import Bytes, Millis

KEYS = Server(keys=(ApiKey("alice", "alice-key"), ApiKey("bob", "bob-key")))
CHAT = "/v1/chat/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


def whole(status: str, answer: object) -> bytes:
    """An answer that is no stream, over several lines."""
    body = json.dumps(answer, indent=1).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that answers with the question, vectors for vectors, and 400 to what it does not like."""
    if asked.path == "/v1/embeddings":
        vectors = {"object": "list", "data": [{"embedding": [0.5], "index": 0}], "model": "a"}
        writer.write(whole("200 OK", vectors))
        return
    if asked.path == "/v1/messages":
        writer.write(whole("404 Not Found", {}))
        return
    said = (
        asked.json["messages"][-1]["content"] if "messages" in asked.json else asked.json.get("prompt", "bad")
    )
    if said == "bad":
        error = {"message": "I do not like it", "type": "invalid_request_error", "code": 400}
        writer.write(whole("400 Bad Request", {"error": error}))
        return
    await stream_of(sse(*chat_events(f"you said {said}")))(asked, writer)


@asynccontextmanager
async def served(
    talk: Talk = echo,
    *,
    key: str = "x",
    server: Server | None = None,
    catalog: Catalog = CATALOG,
    root: Path | None = None,
) -> AsyncIterator[tuple[OpenGateway, openai.AsyncOpenAI]]:
    async with (
        open_gateway(talk, catalog=catalog, server=server, root=root) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield opened, client


def line(
    id: str, content: str = "hi", *, url: str = CHAT, model: str = "a", **body: object
) -> dict[str, Any]:
    asked = {"model": model, "messages": [{"role": "user", "content": content}], **body}
    return {"custom_id": id, "method": "POST", "url": url, "body": asked}


def jsonl(lines: Sequence[object]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


async def submit(
    client: openai.AsyncOpenAI, content: bytes, endpoint: Any = CHAT, window: Any = "24h"
) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window)


async def ended(client: openai.AsyncOpenAI, id: str) -> Batch:
    """The batch after its end."""

    async def has_ended() -> Batch | None:
        batch = await client.batches.retrieve(id)
        return batch if batch.status in ENDED else None

    batch = await eventually(has_ended)
    assert batch is not None
    return batch


async def results(client: openai.AsyncOpenAI, id: str | None) -> dict[str, Any]:
    """The lines of a results file, by their custom_id; each is there once."""
    if id is None:
        return {}
    lines = [json.loads(each) for each in (await client.files.content(id)).content.splitlines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines)
    return found


# ------------------------------------------------------------------ OpenAI


async def test_the_openai_client_has_a_batch_answered() -> None:
    """LANE-01: upload, create, follow, read the results; wrong lines are in the error file with their status."""
    lines = [line(f"q{number}", f"n{number}") for number in range(20)]
    lines += [line("nobody", model="nobody"), line("refused", "bad"), line("streamed", stream=True)]
    lines += [line("deep") | {"body": {"model": "a"}}, line("number", max_tokens=10**30)]
    async with served() as (opened, client):
        file = await client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"who": "me"}
        )
        assert (made.object, made.status, made.endpoint) == ("batch", "validating", CHAT)
        assert made.metadata == {"who": "me"}
        assert made.expires_at == made.created_at + 86_400
        batch = await ended(client, made.id)
        assert (batch.status, batch.errors) == ("completed", None)
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 25, "completed": 20, "failed": 5}
        times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        assert list(times) == sorted(at for at in times if at)
        good, bad = await results(client, batch.output_file_id), await results(client, batch.error_file_id)
        assert list(good) == [f"q{number}" for number in range(20)]  # in the order of the lines
        for number, told in enumerate(good.values()):
            body = told["response"]["body"]
            assert told["error"] is None and told["response"]["status_code"] == 200
            assert body["choices"][0]["message"]["content"] == f"you said n{number}"
        assert len({told["id"] for told in [*good.values(), *bad.values()]}) == 25
        statuses = {id: told["response"]["status_code"] for id, told in bad.items()}
        assert statuses == {"nobody": 404, "refused": 400, "streamed": 400, "deep": 400, "number": 400}
        assert bad["nobody"]["response"]["body"]["error"]["code"] == "model_not_found"
        assert "I do not like it" in bad["refused"]["response"]["body"]["error"]["message"]
        output = await client.files.retrieve(str(batch.output_file_id))
        assert output.purpose == "batch_output"
        assert [each.id async for each in client.batches.list()] == [batch.id]
        await eventually(lambda: opened.batches.view()["open"] == 0)
        view = opened.batches.view()
        assert (view["waiting"], view["running"], view["answered"], view["failed"]) == (0, 0, 25, 5)
        await opened.until_idle()


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
async def test_every_endpoint_is_answered_as_its_address_answers(endpoint: str) -> None:
    """LANE-01: the body of a line is that of a request to the same address."""
    async with served() as (opened, client):
        body = {
            "/v1/completions": {"model": "a", "prompt": "hi"},
            "/v1/embeddings": {"model": "alias/of-a", "input": "hi"},
            "/v1/responses": {"model": "a", "input": "hi", "store": True},
        }[endpoint]
        made = await submit(client, jsonl([line("1", url=endpoint) | {"body": body}]), endpoint)
        batch = await ended(client, made.id)
        assert batch.status == "completed" and batch.error_file_id is None, batch
        told = (await results(client, batch.output_file_id))["1"]["response"]["body"]
        alone = (await opened.ask(endpoint, body)).json
        assert set(told) == set(alone)
        if endpoint == "/v1/responses":
            assert (await client.responses.retrieve(told["id"])).output_text == "you said hi"


DEEP = b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":' + b"[" * 100_000
FULL = b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"a","x":['
WRONG: dict[str, tuple[bytes, str, int | None]] = {
    "twice": (jsonl([line("1"), line("2"), line("1")]), "duplicate_custom_id", 3),
    "no json": (jsonl([line("1")]) + b"{oops\n", "invalid_json_line", 2),
    "no object": (b"7\n", "missing_required_parameter", 1),
    "no id": (jsonl([{**line("1"), "custom_id": ""}]), "invalid_custom_id", 1),
    "a number as id": (jsonl([{**line("1"), "custom_id": 7}]), "missing_required_parameter", 1),
    "another method": (jsonl([{**line("1"), "method": "GET"}]), "invalid_method", 1),
    "another address": (jsonl([line("1", url="/v1/embeddings")]), "invalid_url", 1),
    "a body that is none": (jsonl([{**line("1"), "body": []}]), "invalid_body", 1),
    "nothing": (b"", "empty_file", None),
    "blank lines": (b"\n \n\r\n", "empty_file", None),
    "depth": (DEEP, "invalid_json_line", 1),
    "a lone surrogate": (jsonl([line("1", "\ud800")]), "invalid_json_line", 1),
    "bytes": (b"\xff\xfe\x00\n", "invalid_json_line", 1),
    "many values": (FULL + b"[]," * 300_000 + b"1]}}", "too_many_values", 1),
    "many values between texts": (
        FULL + b'"' + b"a" * 40_000 + b'",' + b'"\\"",' * 300_000 + b"1]}}",
        "too_many_values",
        1,
    ),
    "a long line": (b"x" * (8 * 2**20 + 1), "line_too_long", 1),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_input_that_is_wrong_fails_with_its_line(wrong: str) -> None:
    """LANE-01, R42: nothing is asked; the batch says which line is wrong, and why."""
    content, code, number = WRONG[wrong]
    async with served() as (opened, client):
        batch = await ended(client, (await submit(client, content)).id)
        assert batch.status == "failed" and batch.failed_at and batch.errors and batch.errors.data
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, number), batch.errors
        assert batch.output_file_id is None and batch.error_file_id is None
        assert opened.peer.asked == []


async def test_a_line_that_was_cut_within_an_emoji_is_told_as_such() -> None:
    """R42: the message was that the input is truncated."""
    async with served() as (_, client):
        batch = await ended(client, (await submit(client, jsonl([line("1", "\ud83e")]))).id)
        assert batch.errors and batch.errors.data
        assert "cut in the middle of a character" in batch.errors.data[0].message


async def test_harmless_oddities_of_an_input_are_no_faults() -> None:
    """R42: a byte order mark, carriage returns, blank lines, spaces, no newline at the end, any text as id,
    a text that looks like many values."""
    ids = ["1", '\u00fc \u2028"\\', "x" * 512, "{}", "4"]
    content = b"\xef\xbb\xbf" + b"\r\n\n".join(b"  " + json.dumps(line(id)).encode() + b" " for id in ids)
    content += b"\n" + json.dumps(line("text", '",[' * 50_000)).encode()
    async with served() as (_, client):
        batch = await ended(client, (await submit(client, content)).id)
        assert batch.status == "completed", batch.errors
        assert list(await results(client, batch.output_file_id)) == [*ids, "text"]


async def test_hostile_bodies_harm_only_their_own_line() -> None:
    """R42: depth, endless digits, infinity and twins are errors of their line; the others are answered."""
    raw = '{"custom_id":"%s","method":"POST","url":"/v1/chat/completions","body":{"model":"a",%s}}\n'
    asked = '"messages":[{"role":"user","content":"x"}]'
    hostile = {
        "depth": '"messages":' + "[" * 500 + "]" * 500,
        "digits": asked + ',"seed":' + "9" * 50_000,
        "infinity": asked + ',"temperature":1e999',
        "twins": asked + ',"model":"b"',
        "huge stream": '"messages":[],"stream":[' + "1," * 50_000 + "1]",
    }
    content = "".join(raw % (id, body) for id, body in hostile.items()).encode()
    content += jsonl([line("good")])
    async with served() as (_, client):
        batch = await ended(client, (await submit(client, content)).id)
        assert batch.status == "completed", batch.errors
        assert list(await results(client, batch.output_file_id)) == ["good"]
        bad = await results(client, batch.error_file_id)
        assert {id: told["response"]["status_code"] for id, told in bad.items()} == dict.fromkeys(
            hostile, 400
        )


async def test_a_batch_belongs_to_its_key() -> None:
    """LANE-01, R44: another key neither sees nor cancels it, nor uses its files."""
    async with served(server=KEYS, key="alice-key") as (opened, alice):
        made = await submit(alice, jsonl([line("1")]))
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="bob-key", max_retries=0) as bob:
            assert [each async for each in bob.batches.list()] == []
            for forbidden in (bob.batches.retrieve, bob.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    await forbidden(made.id)
            with pytest.raises(openai.NotFoundError):
                await bob.batches.create(
                    input_file_id=made.input_file_id, endpoint=CHAT, completion_window="24h"
                )
        assert (await ended(alice, made.id)).status == "completed"


async def test_lines_are_background_work_and_chat_goes_first() -> None:
    """LANE-01, P5: their lane is `batches`; a chat that comes later is answered before the lines that wait."""
    gate = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await echo(asked, writer)

    one = {**CATALOG.models, "a": replace(CATALOG.models["a"], concurrency=1)}
    async with served(slow, catalog=replace(CATALOG, models=one)) as (opened, client):
        made = await submit(client, jsonl([line(str(number), f"b{number}") for number in range(4)]))
        await eventually(lambda: opened.count("running") == 1)
        assert opened.driver.requests()[0]["lane"] == "batches"
        assert opened.driver.requests()[0]["class"] == "background"
        chat = asyncio.create_task(
            client.chat.completions.create(model="a", messages=[{"role": "user", "content": "person"}])
        )
        await opened.until_waiting(1)
        gate.set()
        await chat
        await ended(client, made.id)
        order = [asked.json["messages"][-1]["content"] for asked in opened.peer.asked]
        assert order.index("person") <= 1, order


async def until_fast(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that answers nothing but what is fast."""
    if "fast" not in asked.json["messages"][-1]["content"]:
        await asyncio.sleep(3600)
    await echo(asked, writer)


async def test_a_cancelled_batch_keeps_what_was_answered() -> None:
    """LANE-01: lines under way stop at the engine, the rest is told as cancelled, and a second cancel is refused."""
    async with served(until_fast) as (opened, client):
        lines = [line("1", "fast"), line("2", "fast"), *(line(str(number)) for number in range(3, 30))]
        made = await submit(client, jsonl(lines))
        await eventually(lambda: opened.batches.view()["answered"] == 2)
        told = await client.batches.cancel(made.id)
        assert told.status in ("cancelling", "cancelled") and told.cancelling_at
        batch = await ended(client, made.id)
        assert batch.status == "cancelled" and batch.cancelled_at
        assert list(await results(client, batch.output_file_id)) == ["1", "2"]
        missing = await results(client, batch.error_file_id)
        assert {each["error"]["code"] for each in missing.values()} == {"batch_cancelled"}
        assert list(missing) == [str(number) for number in range(3, 30)]
        with pytest.raises(openai.BadRequestError):
            await client.batches.cancel(made.id)
        await opened.until_idle()  # the engine works on nothing


async def test_a_batch_expires_with_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-01: at the end of its window the rest is told as expired."""
    monkeypatch.setattr(openai_batches, "BATCH_WINDOW_MS_MIN", 1)
    async with served(until_fast) as (opened, client):
        made = await submit(client, jsonl([line("1", "fast"), line("2"), line("3")]), window="2s")
        await eventually(lambda: opened.batches.view()["answered"] == 1)
        batch = await ended(client, made.id)
        assert batch.status == "expired" and batch.expired_at and batch.finalizing_at
        assert list(await results(client, batch.output_file_id)) == ["1"]
        missing = await results(client, batch.error_file_id)
        codes = {id: each["error"]["code"] for id, each in missing.items()}
        assert codes == dict.fromkeys(["2", "3"], "batch_expired")
        assert all(each["response"] is None for each in missing.values())
        await opened.until_idle()


async def test_bounds_of_batches_hold() -> None:
    """R42: lines of a batch, batches of a key, the window, and an input that is in use."""
    gate = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await echo(asked, writer)

    small = replace(CATALOG, batches=BatchRules(lines_max=2, open_max=1, window_max_ms=Millis(86_400_000)))
    async with served(slow, catalog=small) as (opened, client):
        batch = await ended(client, (await submit(client, jsonl([line(str(each)) for each in range(3)]))).id)
        assert batch.errors and batch.errors.data and batch.errors.data[0].code == "too_many_lines"
        await eventually(lambda: opened.batches.view()["open"] == 0)
        made = await submit(client, jsonl([line("1")]))
        with pytest.raises(openai.RateLimitError, match="open_max"):
            await submit(client, jsonl([line("1")]))
        with pytest.raises(openai.BadRequestError, match="cancel that first"):
            await client.files.delete(made.input_file_id)
        for window in ("25h", "1s", "soon", ""):
            with pytest.raises(openai.BadRequestError, match="completion_window"):
                await submit(client, b"", window=window)
        with pytest.raises(openai.BadRequestError, match="endpoint"):
            await submit(client, b"", endpoint="/v1/images/generations")
        gate.set()
        done = await ended(client, made.id)
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.batches.create(
                input_file_id=str(done.output_file_id), endpoint=CHAT, completion_window="24h"
            )
        await eventually(lambda: opened.batches.view()["open"] == 0)
        await client.files.delete(made.input_file_id)


async def test_a_line_whose_engine_fails_is_asked_again_and_then_told() -> None:
    """R30: as often as batches.attempts says; the failure is the answer of that line alone."""
    asked_for: list[str] = []

    async def fails(asked: Asked, writer: asyncio.StreamWriter) -> None:
        said = asked.json["messages"][-1]["content"]
        asked_for.append(said)
        if said == "dies" or (said == "once" and asked_for.count("once") <= 1):
            writer.write(whole("500 Oops", {}))
            return
        await echo(asked, writer)

    two = replace(CATALOG, batches=BatchRules(attempts=2))
    async with served(fails, catalog=two) as (_, client):
        lines = [line(each, each) for each in ("dies", "once", "good")]
        batch = await ended(client, (await submit(client, jsonl(lines))).id)
        assert set(await results(client, batch.output_file_id)) == {"once", "good"}
        assert (await results(client, batch.error_file_id))["dies"]["response"]["status_code"] == 502
        assert asked_for.count("dies") == 2


async def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    """R57: what was answered is not asked again, what was not is; batches that ended are still there."""

    async def some(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if int(asked.json["messages"][-1]["content"]) >= 5:
            await asyncio.sleep(3600)
        await echo(asked, writer)

    lines = [line(str(number), str(number)) for number in range(40)]
    async with served(some, root=tmp_path) as (opened, client):
        first = await submit(client, jsonl([line("0", "0")]))
        assert (await ended(client, first.id)).status == "completed"
        made = await submit(client, jsonl(lines))
        await eventually(lambda: opened.batches.view()["answered"] == 6)
    async with served(echo, root=tmp_path) as (opened, client):
        batch = await ended(client, made.id)
        assert batch.status == "completed" and batch.request_counts
        assert batch.request_counts.completed == 40
        assert list(await results(client, batch.output_file_id)) == [str(number) for number in range(40)]
        assert len(opened.peer.asked) == 35
        assert [each.id async for each in client.batches.list()] == [made.id, first.id]
        again = await client.batches.retrieve(first.id)
        assert len(await results(client, again.output_file_id)) == 1


async def test_a_full_disk_pauses_batches_says_so_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: answers that came stay, no further line is asked, an alert tells it, and the work goes on by itself."""
    monkeypatch.setattr(pausing, "BATCH_DISK_AGAIN_MS", 20)
    real, is_full = record.CheckedLog.append, [True]

    def append(self: Any, payloads: Any) -> None:
        kept = list(payloads)
        if is_full[0] and any(b"answered" in payload for payload in kept):
            raise OSError(28, "No space left on device")
        real(self, kept)

    monkeypatch.setattr(record.CheckedLog, "append", append)
    async with served() as (opened, client):
        made = await submit(client, jsonl([line(str(number)) for number in range(60)]))
        await eventually(lambda: opened.batches.view()["paused"] == "disk_full")
        await opened.until_idle()
        assert len(opened.peer.asked) < 60
        alerts: Any = opened.driver.status()["alerts"]
        assert [alert["kind"] for alert in alerts] == ["batches_paused"]
        is_full[0] = False
        batch = await ended(client, made.id)
        assert len(await results(client, batch.output_file_id)) == 60
        assert len(opened.peer.asked) == 60  # none of the answers that waited was asked for again
        assert opened.batches.view()["paused"] is None


async def test_a_bound_on_the_disk_pauses_batches_until_there_is_room() -> None:
    """R4: batches.disk_max counts files and answers; deleting files is enough."""
    bounds = BatchRules(disk_max=Bytes(30_000), storage_max=Bytes(30_000), file_max=Bytes(29_000))
    async with served(catalog=replace(CATALOG, batches=bounds)) as (opened, client):
        ballast = await client.files.create(file=("x.jsonl", b"x" * 25_000), purpose="batch")
        made = await submit(client, jsonl([line(str(number)) for number in range(20)]))
        await eventually(lambda: opened.batches.view()["paused"] == "disk_max")
        await client.files.delete(ballast.id)
        assert (await ended(client, made.id)).status == "completed"


async def test_a_batch_moves_every_metric_of_batches() -> None:
    """LANE-09: what is open, waits, is asked, was answered, failed or repeated, and what is on the disk."""
    gate = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        if len(opened.peer.asked) <= 8:  # those of the first round
            writer.write(whole("500 Oops", {}))
            return
        await echo(asked, writer)

    def figure(name: str) -> float:
        lines = opened.driver.metrics.render().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"watchbill_{name} ")).split()[1])

    async with served(slow) as (opened, client):
        assert figure("batches_open") == figure("batch_lines_answered_total") == figure("batch_bytes") == 0
        lines = [*(line(str(number)) for number in range(20)), line("bad", "bad")]
        made = await submit(client, jsonl(lines))
        await eventually(lambda: figure("batch_lines_running") == 8)
        assert (
            figure("batches_open") == 1 and figure("batch_lines_waiting") == 13 and figure("batch_bytes") > 0
        )
        gate.set()
        await ended(client, made.id)
        assert figure("batch_lines_answered_total") == 21
        assert figure("batch_lines_failed_total") == 1
        assert figure("batch_lines_repeated_total") >= 8
        assert 'watchbill_batches_paused{reason="disk_full"} 0.0' in opened.driver.metrics.render().decode()


# ------------------------------------------------------------------ Anthropic


def request(id: str, content: str = "hi", model: str = "a", **params: object) -> Any:
    asked = {"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": content}]}
    return {"custom_id": id, "params": {**asked, **params}}


@asynccontextmanager
async def claude(opened: OpenGateway, key: str = "x") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=opened.url, api_key=key, max_retries=0) as client:
        yield client


async def message_batch(client: anthropic.AsyncAnthropic, id: str) -> Any:

    async def has_ended() -> Any:
        batch = await client.messages.batches.retrieve(id)
        return batch if batch.processing_status == "ended" else None

    return await eventually(has_ended)


async def test_the_anthropic_client_has_a_message_batch_answered() -> None:
    """LANE-01: create, follow, read the results, list, delete; on the machinery of OpenAI's."""
    async with served() as (opened, _), claude(opened) as client:
        made = await client.messages.batches.create(
            requests=[request("one", "1"), request("two", "2"), request("nobody", model="nobody")]
        )
        assert (made.type, made.processing_status) == ("message_batch", "in_progress")
        assert made.request_counts.processing == 3
        batch = await message_batch(client, made.id)
        counts = {"processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 0}
        assert batch.request_counts.to_dict() == counts
        assert batch.ended_at >= batch.created_at
        found: dict[str, Any] = {
            each.custom_id: each.result async for each in await client.messages.batches.results(made.id)
        }
        assert list(found) == ["one", "two", "nobody"]
        assert found["one"].type == "succeeded" and found["one"].message.content[0].text == "you said 1"
        assert found["nobody"].type == "errored" and found["nobody"].error.error.type == "not_found_error"
        other = await client.messages.batches.create(requests=[request("one")])
        await message_batch(client, other.id)
        assert [each.id async for each in client.messages.batches.list(limit=1)] == [other.id, made.id]
        assert [each.id async for each in client.messages.batches.list(before_id=made.id)] == [other.id]
        assert (await opened.ask("/v1/files")).json["data"] == []  # its files are not its caller's
        assert (await opened.ask("/v1/batches")).json["data"] == []
        await eventually(lambda: opened.batches.view()["open"] == 0)
        assert (await client.messages.batches.delete(made.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)


async def test_a_message_batch_is_cancelled() -> None:
    """LANE-01: what was not answered is told as canceled; results come with the end only."""

    async def never(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/v1/messages":
            await echo(asked, writer)
            return
        await asyncio.sleep(3600)

    async with served(never) as (opened, _), claude(opened) as client:
        made = await client.messages.batches.create(requests=[request("one"), request("two")])
        await eventually(lambda: opened.batches.view()["running"] == 2)
        assert (await opened.ask(f"/v1/messages/batches/{made.id}/results")).status == 404
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.delete(made.id)
        told = await client.messages.batches.cancel(made.id)
        assert told.processing_status in ("canceling", "ended") and told.cancel_initiated_at
        batch = await message_batch(client, made.id)
        assert batch.request_counts.canceled == 2
        kinds = {each.result.type async for each in await client.messages.batches.results(made.id)}
        assert kinds == {"canceled"}


ONE = b'{"custom_id":"1","params":{}}'
BAD_REQUESTS: dict[str, bytes] = {
    "nothing": b"",
    "no list": b'{"requests": 1}',
    "an empty list": b'{"requests": []}',
    "a list of lists": b'{"requests": [[]]}',
    "a list of numbers": b'{"requests": [1, 2]}',
    "a number among them": b'{"requests": [%b, 7]}' % ONE,
    "no comma": b'{"requests": [%b {"custom_id":"2","params":{}}]}' % ONE,
    "a comma too many": b'{"requests": [%b,]}' % ONE,
    "twice": b'{"requests": [%b,%b]}' % (ONE, ONE),
    "a bad id": b'{"requests": [{"custom_id":"a b","params":{}}]}',
    "no params": b'{"requests": [{"custom_id":"1"}]}',
    "params that are none": b'{"requests": [{"custom_id":"1","params":"x"}]}',
    "two lists": b'{"requests": [%b], "requests": []}' % ONE,
    "no end": b'{"requests": [%b]' % ONE,
    "depth": b'{"requests": [{"custom_id":"1","params":{"a":' + b"[" * 100_000,
    "more behind it": b'{"requests": [%b]} x' % ONE,
    "a text": b'"requests"',
}


@pytest.mark.parametrize("bad", BAD_REQUESTS)
async def test_a_body_that_is_no_message_batch_is_refused(bad: str) -> None:
    """R42: 400 in Anthropic's shape, and nothing is kept of it."""
    async with served() as (opened, _):
        answer = await opened.ask("/v1/messages/batches", BAD_REQUESTS[bad])
        assert answer.status == 400, answer.body
        assert answer.json["type"] == "error"
        assert opened.batches.files.size == 0
        assert (await opened.ask("/v1/messages/batches")).json["data"] == []


#: A config whose batches may go to an external tier, and have a model nowhere else.
_PAID = """
[models.a]
engine = "scripted"
[tiers.cloud]
kind = "external"
enabled = true
url = "http://127.0.0.1:9/v1"
models = ["far"]
price_in = 1.0
price_out = 1.0
daily = 5.0
[lanes.default]
[lanes.batches]
class = "background"
[lanes.quiet]
private = true
"""


def paid_catalog(keys: tuple[ApiKey, ...] = ()) -> Catalog:
    paid = parse(_PAID, base=Path("/srv"))
    # The stand-in of these tests starts what it serves.
    engines = {name: replace(each, shared=False) for name, each in paid.engines.items()}
    models = {name: replace(each, shared=False) for name, each in paid.models.items()}
    return replace(paid, engines=engines, models=models, server=replace(paid.server, keys=keys))


@pytest.mark.parametrize(("mark", "sent"), [("", 1), ("Private", 0), ("Lane", 0)])
async def test_lines_of_a_file_that_was_uploaded_privately_do_not_leave(mark: str, sent: int) -> None:
    """SPOOL-10: whoever makes a batch of it may have forgotten the mark."""
    headers = {f"X-Watchbill-{mark}": {"Private": "1", "Lane": "quiet"}[mark]} if mark else {}
    async with served(catalog=paid_catalog()) as (opened, client):
        content = ("in.jsonl", jsonl([line("1", model="far")]))
        file = await client.files.create(file=content, purpose="batch", extra_headers=headers)
        made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = await ended(client, made.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, len(opened.peer.asked)) == (sent, sent)


@pytest.mark.parametrize(
    ("mark", "sent"),
    [("", 1), ("Private: 1", 0), ("Lane: quiet", 0), ("Tier: local", 0), ("/lane/quiet", 0), ("key", 0)],
)
async def test_lines_of_a_private_batch_do_not_leave(mark: str, sent: int) -> None:
    """SPOOL-10: where a lane of the config lets batches go to an external tier, the mark of the batch was forgotten,
    and so was the private lane of its address or its key."""
    name, _, value = mark.partition(": ")
    headers = {f"X-Watchbill-{name}": value} if value else {}
    path = mark if mark.startswith("/") else ""
    keys = (ApiKey("diarist", "of-the-diarist-0123456789", lane="quiet"),) if mark == "key" else ()
    key, paid = "of-the-diarist-0123456789", paid_catalog(keys)
    async with served(catalog=paid, key=key, server=paid.server) as (opened, client):
        client.base_url = f"{opened.url}{path}/v1"
        file = await client.files.create(file=("in.jsonl", jsonl([line("1", model="far")])), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", extra_headers=headers
        )
        batch = await ended(client, made.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, len(opened.peer.asked)) == (sent, sent)
        async with anthropic.AsyncAnthropic(
            base_url=f"{opened.url}{path}", api_key=key, max_retries=0
        ) as other:
            params: Any = {"model": "far", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            messages = await other.messages.batches.create(
                requests=[{"custom_id": "1", "params": params}], extra_headers=headers
            )

            async def has_ended() -> bool:
                return (await other.messages.batches.retrieve(messages.id)).processing_status == "ended"

            await eventually(has_ended)
        assert bool(opened.peer.asked) == bool(sent)
