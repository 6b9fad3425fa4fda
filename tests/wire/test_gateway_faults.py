"""Engines that die, hang and lie; clients that leave; a house that closes (R30, R31, R33, R40, R41, LANE-07)."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest

from support.house import HELLO, House, eventually, house
from support.peer import Asked, Talk, chat_events, sse, stream_of
from watchbill.core.messages import Ended, FirstByte, Left, Returned
from watchbill.engines.upstream import Deadlines
from watchbill.errors import WaitExceeded
from watchbill.gateway import relay
from watchbill.limits import EVENT_STREAMS_MAX

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
EVENTS = sse(*chat_events("one two three"))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(body: object, path: str = "/v1/chat/completions") -> bytes:
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        + content
    )


def first_dies(*, after: bytes) -> Talk:
    """An engine that breaks off its first answer and gives the second whole."""
    count = 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count > 1:
            await stream_of(EVENTS)(asked, writer)
            return
        writer.write(after)
        await writer.drain()
        writer.close()

    return talk


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def hangs(after: bytes = b"") -> Talk:
    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(after)
        await asyncio.Event().wait()

    return talk


def counts(opened: House, *kinds: type) -> list[int]:
    return [sum(isinstance(event, kind) for event in opened.driver.events) for kind in kinds]


# ------------------------------------------------------------------ engines


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_engine_that_dies_before_its_first_byte_is_asked_once_more(body: object) -> None:
    """R30: one transparent retry."""
    async with house(first_dies(after=b"")) as opened:
        answer = await opened.ask("/v1/chat/completions", body)
        assert answer.status == 200 and b"three" in answer.body
        assert counts(opened, Returned, Ended, Left) == [1, 1, 0]


async def test_a_whole_answer_that_breaks_off_is_asked_for_once_more() -> None:
    """R30: the client has seen nothing, so nothing is lost, and nothing appears twice."""
    async with house(first_dies(after=HEAD + chunk(EVENTS[:400]))) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert answer.json["choices"][0]["message"]["content"] == "one two three"
        assert counts(opened, Returned, Ended) == [1, 1]


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_engine_that_dies_twice_is_an_error(body: object) -> None:
    """R30: one retry, not more."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with house(talk) as opened:
        answer = await opened.ask("/v1/chat/completions", body)
        assert (answer.status, answer.code) == (502, "engine_failed")
        assert answer.json["error"]["source"] == "engine"
        assert len(opened.peer.asked) == 2
        assert counts(opened, Ended, Left) == [1, 0] and not opened.driver.open


@pytest.mark.parametrize("at", range(0, len(EVENTS), 61))
async def test_a_stream_that_breaks_off_ends_with_an_error_event(at: int) -> None:
    """R30: after the first byte an error frame, never a silent end, never half an event."""
    async with house(stream_of(EVENTS[:100], EVENTS[100 : 100 + at], end=False)) as opened:
        answer = await opened.ask("/v1/chat/completions", STREAM)
        whole = answer.body.split(b"\n\n")
        assert whole.pop() == b""
        events = [json.loads(event.removeprefix(b"data: ")) for event in whole if event != b"data: [DONE]"]
        assert events[-1]["error"]["code"] == "engine_failed"
        assert (
            b"".join(event + b"\n\n" for event in whole[:-1])
            == EVENTS[: len(answer.body) - len(whole[-1]) - 2]
        )


async def test_a_stream_without_its_end_is_an_error() -> None:
    """R33: no [DONE]."""
    half = sse(*chat_events("one two three")[:3])
    async with house(stream_of(half)) as opened:
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert answer.body.startswith(half) and b'"code":"engine_failed"' in answer.body
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


@pytest.mark.parametrize("garbage", [b"data: {nonsense\n\n", b"data: 7\n\n", b"data: \xff\n\n"])
async def test_a_garbled_stream_is_a_clean_error(garbage: bytes) -> None:
    """R33"""
    async with house(stream_of(garbage, sse("[DONE]"))) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


@pytest.mark.parametrize("after", [b"", HEAD, HEAD + chunk(EVENTS[:300])], ids=["silent", "head", "half"])
async def test_an_engine_that_hangs_is_given_up(after: bytes) -> None:
    """R31: first-byte and inter-token deadlines."""
    deadlines = Deadlines(first_byte_ms=200, silence_ms=200)
    async with house(hangs(after), deadlines=deadlines) as opened:
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert b'"code":"engine_failed"' in answer.body
        assert (
            answer.status == (200 if after.endswith(b"\r\n\r\n") is False and after else 502) or after == HEAD
        )
        await opened.until_idle()
        assert counts(opened, Ended) == [1]


async def test_an_engine_that_is_gone_is_an_error() -> None:
    """R30: nobody listens any more."""
    async with house() as opened:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            opened.peer.port = unused.getsockname()[1]
            answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


# ------------------------------------------------------------------ the scheduler's cuts


@pytest.mark.parametrize(("how", "code"), [("preempted", "preempted"), ("run_timeout", "run_timeout")])
async def test_a_cut_stream_says_why(how: str, code: str) -> None:
    """LANE-04: a cut is an error event, and the engine's work ends."""
    async with house(hangs(HEAD + chunk(EVENTS[:300]))) as opened:
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b"data: ")
        next(iter(opened.driver.open.values())).cut_off(how)
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert f'"code":"{code}"'.encode() in rest
        await opened.until_idle()
        assert counts(opened, FirstByte, Ended) == [1, 1]
        writer.close()


async def test_a_request_that_is_taken_back_before_its_first_byte_starts_again() -> None:
    """RES-12: `requeue` is invisible to the client."""
    served = 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        if served == 1:
            await asyncio.Event().wait()
        await HELLO(asked, writer)

    async with house(talk) as opened:
        asking = asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT))
        await opened.peer.until(lambda peer: peer.working == 1)
        next(iter(opened.driver.open.values())).cut_off("requeue")
        assert (await asking).status == 200
        assert counts(opened, Returned, Ended) == [1, 1]


# ------------------------------------------------------------------ clients who leave


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("after", [b"", HEAD + chunk(EVENTS[:300])], ids=["before", "amid"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_a_client_that_leaves_stops_the_engine(body: object, after: bytes, how: str) -> None:
    """LANE-07: within 2 s the engine works on nothing and the grant is back. Half-closing is leaving, too."""
    async with house(hangs(after)) as opened:
        _, writer = await opened.connect()
        writer.write(post(body))
        await opened.peer.until(lambda peer: peer.working == 1)
        if how == "close":
            writer.close()
        elif how == "reset":
            writer.transport.abort()
        else:
            writer.write_eof()
        async with asyncio.timeout(2):
            await opened.until_idle()
        assert opened.peer.left == 1
        assert counts(opened, Left, Ended) == [1, 0]
        writer.close()


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue() -> None:
    """LANE-07: nobody waits in its name, and it is never granted."""
    async with house() as opened:
        opened.driver.slots = 0
        _, writer = await opened.connect()
        writer.write(post(STREAM))
        await eventually(lambda: opened.driver.waiting)
        writer.close()
        await eventually(lambda: not opened.driver.open)
        assert not opened.peer.asked and counts(opened, Left) == [1]


async def test_clients_that_leave_at_random_points_leave_nothing_behind() -> None:
    """R41: each grant is released once, the engine stops working."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for at in range(0, len(EVENTS), 64):
            writer.write(chunk(EVENTS[at : at + 64]))
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.write(b"0\r\n\r\n")

    async def visit(opened: House, number: int) -> None:
        reader, writer = await opened.connect()
        writer.write(post(STREAM if number % 3 else CHAT)[: None if number % 7 else 90])
        with suppress(TimeoutError):
            async with asyncio.timeout((number % 40) / 1000):
                await reader.read()
        writer.transport.abort()

    async with house(talk) as opened:
        for batch in range(10):
            await asyncio.gather(*(visit(opened, batch * 40 + at) for at in range(40)))
        await opened.until_idle()
        asked = len([event for event in opened.driver.events if isinstance(event, Ended | Left)])
        assert asked == len({event.id for event in opened.driver.events if isinstance(event, Ended | Left)})
        assert not opened.driver.running and not opened.driver.waiting


# ------------------------------------------------------------------ waiting


async def test_headers_are_held_back_then_signs_of_life_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-09: comment lines with a single newline while the request waits, then the answer."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 60)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 40)
    async with house() as opened:
        opened.driver.slots = 0
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head and b"X-Watchbill-Lane: default" in head and b"X-Watchbill-Model" not in head
        for _ in range(2):
            size = int(await reader.readline(), 16)
            comment = await reader.readexactly(size)
            assert comment.startswith(b": queued") and comment.endswith(b"\n") and comment.count(b"\n") == 1
            await reader.readline()
        opened.driver.resume(8)
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"[DONE]" in rest
        assert counts(opened, FirstByte, Ended) == [1, 1]
        writer.close()


async def test_a_refusal_after_the_headers_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: after the first byte an error can only be in-stream."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 20)
    async with house() as opened:
        opened.driver.slots = 0
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b": queued")
        opened.driver.waiting.popleft().refuse(WaitExceeded())
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b'"code":"wait_exceeded"' in rest
        writer.close()


async def test_a_refusal_of_a_whole_answer_has_retry_after_and_loading() -> None:
    """api.md: 503 with Retry-After and, beside error, loading{}."""
    async with house() as opened:
        opened.driver.slots = 0
        asking = asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT))
        await eventually(lambda: opened.driver.waiting)
        opened.driver.waiting.popleft().refuse(WaitExceeded(retry_after_ms=400_000))
        answer = await asking
        assert (answer.status, answer.code) == (503, "wait_exceeded")
        assert answer.headers["retry-after"] == "60"
        assert set(answer.json["loading"]) == {"state", "progress", "eta_seconds"}


async def test_a_full_lane_answers_429_at_once() -> None:
    """LANE-08"""
    async with house() as opened:
        opened.driver.slots = 0
        waiting = [asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT)) for _ in range(16)]
        await eventually(lambda: len(opened.driver.waiting) == 16)
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert (answer.status, answer.code) == (429, "lane_full")
        assert answer.headers["retry-after"] == "60"
        opened.driver.resume(8)
        assert {(await one).status for one in waiting} == {200}


# ------------------------------------------------------------------ closing the house


async def test_closing_sends_away_who_waits_and_lets_finish_who_is_served() -> None:
    """pitfalls.md: at shutdown queued requests get 503 with Retry-After, running streams may end."""
    gate = asyncio.Event()

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(EVENTS[:300]))
        await gate.wait()
        writer.write(chunk(EVENTS[300:]) + b"0\r\n\r\n")

    async with house(talk) as opened:
        opened.driver.slots = 1
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b"data: ")
        waiting = asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT))
        await eventually(lambda: opened.driver.waiting)
        closing = asyncio.ensure_future(opened.serving.close(grace_ms=10_000))
        answer = await waiting
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert "retry-after" in answer.headers and answer.headers["connection"] == "close"
        gate.set()
        assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")
        await closing
        with pytest.raises(ConnectionRefusedError):
            await opened.connect()
        writer.close()


async def test_closing_cuts_who_is_still_there_with_an_error_event() -> None:
    """pitfalls.md: running streams end within a bound."""
    async with house(hangs(HEAD + chunk(EVENTS[:300]))) as opened:
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b"data: ")
        await opened.serving.close(grace_ms=50)
        assert b'"code":"shutting_down"' in await reader.read()
        assert not opened.driver.open
        writer.close()


async def test_events_are_streamed_until_the_house_closes() -> None:
    """/wb/v1/events"""
    async with house() as opened:
        reader, writer = await opened.connect()
        writer.write(b"GET /wb/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        opened.driver.journal.put_nowait({"event": "load", "model": "a"})
        assert b'data: {"event":"load","model":"a"}\n\n' in await reader.readuntil(b"\n\n\r\n")
        await opened.serving.close(grace_ms=5_000)
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()


async def test_a_closed_stream_of_events_frees_its_place() -> None:
    """EVENT_STREAMS_MAX bounds listeners, and only those who are there."""
    async with house() as opened:
        for _ in range(2):
            pairs = [await opened.connect() for _ in range(EVENT_STREAMS_MAX)]
            for reader, writer in pairs:
                writer.write(b"GET /wb/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            assert (await opened.ask("/wb/v1/events")).status == 429
            for _, writer in pairs:
                writer.transport.abort()
            await eventually(lambda: not opened.gateway.listeners)


async def test_ready_is_about_the_scheduler_not_the_socket() -> None:
    """api.md: /ready tests the scheduler."""
    async with house() as opened:
        assert (await opened.ask("/ready")).status == 200
        opened.driver.ready = False
        assert (await opened.ask("/ready")).status == 503
        assert (await opened.ask("/health")).status == 200


async def test_the_access_log_tells_who_left() -> None:
    """Request ids in the access log; a client that left is 499; no prompt is ever in it."""
    async with house(hangs()) as opened:
        _, writer = await opened.connect()
        writer.write(post({**CHAT, "messages": [{"role": "user", "content": "SECRET"}]}))
        await opened.peer.until(lambda peer: peer.working == 1)
        writer.close()
        await opened.until_idle()
        await opened.ask("/v1/models")
        opened.gateway.access.flush()
        lines = "\n".join(opened.log)
        assert " r1 " in lines and " 499 " in lines and "SECRET" not in lines
