"""What batches do when the disk is full, a key is gone, their time is over, or a body is larger than it may be."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway, raw
from support.peer import Asked, chat_events, sse, stream_of
from support.small_disk import free_up, leave_blocks, small_disks
from watchbill.batches import pausing, service
from watchbill.catalog import ApiKey, BatchRules, Server
from watchbill.units import Bytes, Millis
from wire.test_door_batches import (
    CHAT,
    KEYS,
    claude,
    echo,
    ended,
    jsonl,
    line,
    request,
    results,
    served,
    submit,
)

DAY_S = 86_400.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    with small_disks(tmp_path) as mount:
        yield mount


# ------------------------------------------------------------------ a full disk


async def verbose(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine with long answers, which fill a small disk."""
    said = str(asked.json["messages"][-1]["content"])
    await stream_of(sse(*chat_events(said + " " + "word " * 400)))(asked, writer)


async def test_a_disk_that_is_really_full_pauses_batches_and_loses_nothing(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: lines wait, chat goes on; uploads and new batches get 507 and leave nothing; with room all is done."""
    monkeypatch.setattr(pausing, "BATCH_DISK_AGAIN_MS", 20)
    disk = small_disk("size=4m")
    async with served(verbose, root=disk) as (opened, client):
        waiting = await client.files.create(file=("in.jsonl", jsonl([line("x")])), purpose="batch")
        leave_blocks(disk, 60)
        made = await submit(client, jsonl([line(str(number), f"n{number}") for number in range(300)]))
        await eventually(lambda: opened.batches.view()["paused"] == "disk_full")
        await opened.until_idle()
        alerts: Any = opened.driver.status()["alerts"]
        assert "batches_paused" in [alert["kind"] for alert in alerts]
        assert (await opened.ask(CHAT, line("chat")["body"])).status == 200
        leave_blocks(disk, 0)
        before = {path for path in (disk / "batches").rglob("*") if path.is_file()}
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("in.jsonl", jsonl([line("x")] * 900)), purpose="batch")
        assert refused.value.status_code == 507
        with pytest.raises(openai.InternalServerError) as refused:
            await client.batches.create(input_file_id=waiting.id, endpoint=CHAT, completion_window="24h")
        assert (refused.value.status_code, refused.value.code) == (507, "disk_failed")
        await eventually(lambda: {path for path in (disk / "batches").rglob("*") if path.is_file()} <= before)
        assert [each.id async for each in client.batches.list()] == [made.id]
        free_up(disk)
        batch = await ended(client, made.id)
        found = await results(client, batch.output_file_id)
        assert list(found) == [str(number) for number in range(300)]  # each once, in their order
        assert opened.batches.view()["paused"] is None


# ------------------------------------------------------------------ a key that is gone


async def test_a_key_that_is_removed_gets_no_further_answer(tmp_path: Path) -> None:
    """LANE-06: what was asked before is answered, the rest is 401 in the error file; others are not touched; who comes
    back under the name, with another secret, finds the batch and its results."""
    answers = asyncio.Event()

    async def patient(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answers.wait()
        await echo(asked, writer)

    async with served(patient, key="alice-key", server=KEYS, root=tmp_path) as (opened, client):
        made = await submit(client, jsonl([line(str(number)) for number in range(20)]))
        await eventually(lambda: len(opened.peer.asked) == 8)
        opened.gateway.reconfigure(replace(KEYS, keys=KEYS.keys[1:]))
        with pytest.raises(openai.AuthenticationError):
            await client.batches.retrieve(made.id)
        answers.set()
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="bob-key", max_retries=0) as bob:
            others = await submit(bob, jsonl([line("mine")]))
            assert (await ended(bob, others.id)).request_counts.completed == 1
            with pytest.raises(openai.NotFoundError):
                await bob.batches.retrieve(made.id)
        await eventually(lambda: opened.batches.view()["open"] == 0)
        assert len(opened.peer.asked) == 9  # eight of alice's, one of bob's
        back = Server(keys=(ApiKey("alice", "another-key"), *KEYS.keys[1:]))
        opened.gateway.reconfigure(back)
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="another-key") as alice:
            batch = await alice.batches.retrieve(made.id)
            assert batch.request_counts.to_dict() == {"total": 20, "completed": 8, "failed": 12}
            bad = await results(alice, batch.error_file_id)
            assert {told["response"]["status_code"] for told in bad.values()} == {401}
            assert "not in the config any more" in json.dumps(bad)
            assert len(await results(alice, batch.output_file_id)) == 8


async def test_what_was_accepted_without_keys_is_done_once_there_are_some(tmp_path: Path) -> None:
    """P1, LANE-06: the rest of its lines is answered; keys with admin rights find it, no other key does."""
    answers = asyncio.Event()

    async def patient(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answers.wait()
        await echo(asked, writer)

    async with served(patient, root=tmp_path) as (opened, client):
        made = await submit(client, jsonl([line(str(number)) for number in range(20)]))
        async with claude(opened) as before:
            message = await before.messages.batches.create(requests=[request("m")])
        await eventually(lambda: len(opened.peer.asked) == 8)
        keys = (ApiKey("bob", "bob-key"), ApiKey("root", "root-key", admin=True))
        opened.gateway.reconfigure(Server(keys=keys))
        answers.set()
        await eventually(lambda: opened.batches.view()["open"] == 0)
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="bob-key", max_retries=0) as bob:
            with pytest.raises(openai.NotFoundError):
                await bob.batches.retrieve(made.id)
            assert [each async for each in bob.files.list()] == []
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="root-key", max_retries=0) as root:
            batch = (await root.batches.list()).data[0]
            assert batch.id == made.id and batch.request_counts.completed == 20
            assert len(await results(root, batch.output_file_id)) == 20
            assert {each.id async for each in root.files.list()} == {
                batch.input_file_id,
                batch.output_file_id,
            }
            assert (await root.files.delete(str(batch.output_file_id))).deleted
            again = await root.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            assert (await ended(root, again.id)).request_counts.completed == 20
        async with claude(opened, "root-key") as admin:
            told = [each.result.type async for each in await admin.messages.batches.results(message.id)]
            assert told == ["succeeded"]


# ------------------------------------------------------------------ what is kept, and how long


async def test_files_batches_and_results_leave_when_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-05: after `batches.keep` nothing of them is known or on the disk, also where their key is gone; a batch
    that has not ended keeps its input, however old."""
    monkeypatch.setattr(service, "BATCH_SWEEP_MS", 20)
    later = [0.0]
    rules = BatchRules(keep_ms=Millis(2 * 86_400_000), window_max_ms=Millis(30 * 86_400_000))
    async with open_gateway(
        echo, catalog=replace(CATALOG, batches=rules), server=KEYS, root=tmp_path, clock=lambda: time.time() + later[0]
    ) as opened:  # fmt: skip
        url = f"{opened.url}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="alice-key", max_retries=0) as alice,
            openai.AsyncOpenAI(base_url=url, api_key="bob-key", max_retries=0) as bob,
        ):
            done = [await submit(each, jsonl([line("one"), line("two", "bad")])) for each in (alice, bob)]
            kept = [await ended(each, batch.id) for each, batch in zip((alice, bob), done, strict=True)]
            await eventually(lambda: opened.batches.view()["open"] == 0)
            opened.engine.gate.clear()
            long = await submit(alice, jsonl([line("slow", model="b/with:slash")]), window="30d")
            later[0] = 1.9 * DAY_S
            assert (await alice.batches.retrieve(kept[0].id)).status == "completed"
            assert len(await results(alice, kept[0].output_file_id)) == 1
            opened.gateway.reconfigure(replace(KEYS, keys=KEYS.keys[:1]))  # bob is gone
            later[0] = 2.1 * DAY_S
            await eventually(
                lambda: (opened.batches.view()["ended"], opened.batches.view()["files"]) == (0, 1)
            )
            with pytest.raises(openai.NotFoundError):
                await alice.batches.retrieve(kept[0].id)
            with pytest.raises(openai.NotFoundError):
                await alice.files.content(str(kept[0].output_file_id))

            def left() -> list[str]:
                return [path.parent.name for path in (tmp_path / "batches").rglob("*") if path.is_file()]

            await eventually(lambda: len(left()) == 3)  # its record, its input, and what is known of that
            assert long.id in left()
            opened.engine.gate.set()
            assert (await ended(alice, long.id)).status == "completed"
            later[0] = 5 * DAY_S
            await eventually(
                lambda: not [path for path in (tmp_path / "batches").rglob("*") if path.is_file()]
            )


# ------------------------------------------------------------------ bodies that are too large

SMALL = Server(body_max=Bytes(2**20))


async def tell_error(opened: OpenGateway, **asked: Any) -> anthropic.APIStatusError:
    async with claude(opened) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.batches.create(**asked)
    assert refused.value.status_code == 413 and refused.value.body["error"]["type"] == "request_too_large"
    assert opened.batches.view()["files"] == opened.batches.view()["bytes"] == 0
    return refused.value


async def test_a_message_batch_that_is_too_large_is_told_which_bound_it_exceeds() -> None:
    """LANE-08: of the body, of one request, of their number, of the file that they become; nothing is kept of it."""
    async with served(server=SMALL) as (opened, _):
        error = await tell_error(opened, requests=[request(str(n), "x" * 100_000) for n in range(40)])
        assert "server.body_max" in str(error) and "send less at once" in str(error)
    rules = BatchRules(lines_max=10, file_max=Bytes(200_000))
    async with served(catalog=replace(CATALOG, batches=rules)) as (opened, _):
        error = await tell_error(opened, requests=[request(str(n)) for n in range(11)])
        assert "batches.lines_max" in str(error)
        error = await tell_error(opened, requests=[request(str(n), "x" * 50_000) for n in range(8)])
        assert "batches.file_max" in str(error)
    async with served() as (opened, _):
        error = await tell_error(opened, requests=[request("one"), request("two", "x" * 9 * 2**20)])
        assert "requests.1" in str(error)


async def test_a_body_of_256_mb_is_refused_before_it_is_received() -> None:
    """LANE-08: as large as Anthropic takes them: by what it announces, else as soon as it exceeds the bound."""
    async with served(server=SMALL) as (opened, _):
        head = "POST /v1/messages/batches HTTP/1.1\r\nHost: localhost\r\n"
        reader, writer = await opened.connect()
        writer.write(f"{head}Content-Length: {256 * 10**6}\r\n\r\n".encode() + b'{"requests": [')
        refused = await raw(reader)
        assert refused.status == 413 and f"{256 * 10**6} bytes" in str(refused.json["error"])
        reader, writer = await opened.connect()
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"%x\r\n%b\r\n" % (2**18, b" " * 2**18)
        for _ in range(5):
            writer.write(chunk)
        assert (await raw(reader)).status == 413
        await eventually(lambda: opened.gateway.bodies.held == 0)
        assert (await opened.ask(CHAT, line("on")["body"])).status == 200
