"""Engines that die, hang and lie; clients that leave; a gateway that closes (R30, R31, R33, R40, R41, LANE-07)."""

import asyncio
import dataclasses
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, HELLO, OpenGateway, open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of
from watchbill.catalog import Lane, Model, WorkClass
from watchbill.engines.base import Endpoint
from watchbill.engines.upstream import Deadlines
from watchbill.gateway import relay
from watchbill.gateway.http.messages import Line, RequestParser
from watchbill.gateway.limits import EVENT_STREAMS_MAX
from watchbill.runtime import driver
from watchbill.runtime.ticket import Submission
from watchbill.units import Bytes

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


def in_turn(*talks: Talk) -> Talk:
    """An engine that answers each request in another way; the last is for all that follow."""
    left = list(talks)

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return talk


def dies(after: bytes = b"") -> Talk:
    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(after)
        await writer.drain()
        writer.close()

    return talk


def first_dies(*, after: bytes) -> Talk:
    """An engine that breaks off its first answer and gives the second whole."""
    return in_turn(dies(after), stream_of(EVENTS))


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def hangs(after: bytes = b"") -> Talk:
    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(after)
        await asyncio.Event().wait()

    return talk


async def rambles(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that goes on and on."""
    writer.write(HEAD)
    while True:
        writer.write(chunk(sse(*chat_events("and so"))[:300]))
        await writer.drain()
        await asyncio.sleep(0.001)


# ------------------------------------------------------------------ engines


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_engine_that_dies_before_its_first_byte_is_asked_once_more(body: object) -> None:
    """R30: one transparent retry."""
    async with open_gateway(first_dies(after=b"")) as opened:
        answer = await opened.ask("/v1/chat/completions", body)
        assert answer.status == 200 and b"three" in answer.body
        assert len(opened.peer.asked) == 2 and opened.outcomes() == {"ok": 1}


async def test_a_whole_answer_that_breaks_off_is_asked_for_once_more() -> None:
    """R30: the client has seen nothing, so nothing is lost, and nothing appears twice."""
    async with open_gateway(first_dies(after=HEAD + chunk(EVENTS[:400]))) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert answer.json["choices"][0]["message"]["content"] == "one two three"
        assert len(opened.peer.asked) == 2 and opened.outcomes() == {"ok": 1}


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_half_an_event_of_an_answer_that_broke_off_is_forgotten(body: object) -> None:
    """R30, RES-12: an answer that could be continued is begun anew when not one event of it came."""
    lanes = {"default": Lane("default", WorkClass.BACKGROUND)}
    async with open_gateway(
        first_dies(after=HEAD + chunk(EVENTS[:40])), catalog=dataclasses.replace(CATALOG, lanes=lanes)
    ) as opened:
        opened.engine.endpoint = dataclasses.replace(opened.peer.endpoint, continues=True)
        answer = await opened.ask("/v1/chat/completions", body)
        assert answer.body == EVENTS or answer.json["choices"][0]["message"]["content"] == "one two three"
        assert len(opened.peer.asked) == 2 and opened.outcomes() == {"ok": 1}


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_engine_that_dies_twice_is_an_error(body: object) -> None:
    """R30: one retry, not more."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with open_gateway(talk) as opened:
        answer = await opened.ask("/v1/chat/completions", body)
        assert (answer.status, answer.code) == (502, "engine_failed")
        assert answer.json["error"]["source"] == "engine"
        assert len(opened.peer.asked) == 2
        assert opened.outcomes() == {"engine_failed": 1} and not opened.driver.requests()


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("is_told_first", list(itertools.product((False, True), repeat=2)), ids=str)
async def test_two_deaths_are_two_whoever_hears_of_each_first(
    body: object, is_told_first: tuple[bool, bool]
) -> None:
    """R30: the scheduler hears of a death before the connection ends, or after it."""
    deaths = iter(is_told_first)

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        if next(deaths):
            opened.engine.die("a")
            await asyncio.Event().wait()
        writer.close()
        asyncio.get_running_loop().call_later(0.02, opened.engine.die, "a")

    async with open_gateway(in_turn(talk, talk, stream_of(EVENTS))) as opened:
        answer = await opened.ask("/v1/chat/completions", body)
        assert (answer.status, answer.code) == (502, "engine_failed")
        assert len(opened.peer.asked) == 2
        assert opened.outcomes() == {"engine_failed": 1} and not opened.driver.requests()


@pytest.mark.parametrize("at", range(0, len(EVENTS), 61))
async def test_a_stream_that_breaks_off_ends_with_an_error_event(at: int) -> None:
    """R30: after the first byte an error frame, never a silent end, never half an event."""
    async with open_gateway(stream_of(EVENTS[:100], EVENTS[100 : 100 + at], end=False)) as opened:
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
    async with open_gateway(stream_of(half)) as opened:
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert answer.body.startswith(half) and b'"code":"engine_failed"' in answer.body
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


@pytest.mark.parametrize("garbage", [b"data: {nonsense\n\n", b"data: 7\n\n", b"data: \xff\n\n"])
async def test_a_garbled_stream_is_a_clean_error(garbage: bytes) -> None:
    """R33"""
    async with open_gateway(stream_of(garbage, sse("[DONE]"))) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


@pytest.mark.parametrize("after", [b"", HEAD, HEAD + chunk(EVENTS[:300])], ids=["silent", "head", "half"])
async def test_an_engine_that_hangs_is_given_up(after: bytes) -> None:
    """R31: first-byte and inter-token deadlines."""
    deadlines = Deadlines(first_byte_ms=200, silence_ms=200)
    async with open_gateway(hangs(after), deadlines=deadlines) as opened:
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert b'"code":"engine_failed"' in answer.body
        assert (
            answer.status == (200 if after.endswith(b"\r\n\r\n") is False and after else 502) or after == HEAD
        )
        await opened.until_idle()
        assert opened.outcomes() == {"engine_timeout": 1}


async def test_an_engine_that_is_gone_is_an_error() -> None:
    """R30: nobody listens any more."""
    async with open_gateway() as opened:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            opened.engine.endpoint = Endpoint("127.0.0.1", unused.getsockname()[1])
            answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")


# ------------------------------------------------------------------ the scheduler's cuts


async def test_a_stream_that_the_operator_cancels_says_so() -> None:
    """LANE-04: a cut is an error event, and the engine's work ends."""
    async with amid_a_stream() as (opened, reader):
        request = opened.driver.requests()[0]["id"]
        assert (await opened.ask(f"/wb/v1/requests/{request}", method="DELETE")).status == 200
        ended = await reader.readuntil(b"0\r\n\r\n")
        assert b'"code":"preempted"' in ended and b"operator" in ended
        await opened.until_idle()
        assert opened.peer.left == 1
        assert (await opened.ask(f"/wb/v1/requests/{request}", method="DELETE")).status == 404


async def test_a_forced_eviction_cuts_a_stream_with_an_error_event() -> None:
    """RES-12: docs/cli: `evict --force` cuts running requests."""
    async with amid_a_stream() as (opened, reader):
        async with asyncio.timeout(10):
            assert (await opened.ask("/wb/v1/models/a/evict", {"force": True})).status == 200
        assert b'"code":"preempted"' in await reader.readuntil(b"0\r\n\r\n")
        await opened.until_idle()


async def test_a_whole_answer_that_a_forced_eviction_cuts_is_asked_for_anew() -> None:
    """RES-06, RES-12: its engine had begun, and its client has had no byte: it goes back to its lane."""
    talk = in_turn(rambles, stream_of(EVENTS))
    async with open_gateway(talk) as opened:
        asking = asyncio.create_task(opened.ask("/v1/chat/completions", CHAT))
        await eventually(lambda: has_begun(opened))
        async with asyncio.timeout(10):
            assert (await opened.ask("/wb/v1/models/a/evict", {"force": True})).status == 200
            answer = await asking
        assert answer.status == 200
        assert answer.json["choices"][0]["message"]["content"] == "one two three"
        await opened.until_idle()


def has_begun(opened: OpenGateway) -> bool:
    """Whether the scheduler knows of a first byte of the engine's answer."""
    models = opened.driver._core.state.models.values()
    return any(running.begun for model in models for running in model.running.values())


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_an_answer_beyond_its_lanes_time_is_cut(body: dict[str, object]) -> None:
    """LANE-04: `timeout` bounds the time from start to end."""
    async with open_gateway(hangs(HEAD + chunk(EVENTS[:300]))) as opened:
        answer = await opened.ask("/v1/chat/completions", body, headers={"X-Watchbill-Lane": "brief"})
        assert b'"code":"run_timeout"' in answer.body
        assert answer.status == (200 if body.get("stream") else 503)
        await opened.until_idle()


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_request_whose_engine_dies_before_the_first_byte_starts_again(body: object) -> None:
    """R30, race 7: the scheduler takes it back, loads anew, and the client notices nothing."""
    async with open_gateway(in_turn(hangs(), HELLO)) as opened:
        asking = asyncio.ensure_future(opened.ask("/v1/chat/completions", body))
        await opened.peer.until(lambda peer: peer.working == 1)
        opened.engine.die("a")
        answer = await asking
        assert answer.status == 200 and b"there" in answer.body
        assert opened.outcomes() == {"ok": 1}
        assert opened.engine.attempts["a"] > 1


#: One slot, and a lane of background work that makes way in it.
NARROW = dataclasses.replace(
    CATALOG,
    models={"a": Model("a", "peer", memory=CATALOG.models["a"].memory)},
    lanes={"default": Lane("default"), "batch": Lane("batch", WorkClass.BACKGROUND)},
)


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_who_made_way_for_nobody_may_still_be_asked_once_more(body: object) -> None:
    """R30: a turn that comes back at once is no failure; the one that the engine may have is still to come."""
    talk = in_turn(hangs(), dies(), HELLO)
    async with open_gateway(talk, catalog=NARROW) as opened:
        asking = asyncio.ensure_future(
            opened.ask("/v1/chat/completions", body, headers={"X-Watchbill-Lane": "batch"})
        )
        await opened.peer.until(lambda peer: peer.working == 1)
        person = opened.driver.submit(Submission("a"))  # the engine is cut off for it
        person.close()  # and it leaves before that is noticed
        answer = await asking
        assert answer.status == 200 and b"there" in answer.body
        assert len(opened.peer.asked) == 3 and opened.outcomes() == {"ok": 1, "cancelled": 1}


async def test_a_refusal_that_has_begun_makes_way_for_nobody() -> None:
    """RES-12: who asked for a stream and gets an error instead gets it whole, in one piece or in two."""
    goes_on = asyncio.Event()
    refusal = b'{"error": {"code": 400, "message": "no such grammar"}}'

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal[:9])
        await goes_on.wait()
        writer.write(refusal[9:])

    async with open_gateway(talk, catalog=NARROW) as opened:
        asking = asyncio.ensure_future(
            opened.ask("/v1/chat/completions", STREAM, headers={"X-Watchbill-Lane": "batch"})
        )
        await eventually(lambda: any(relay.status for relay in opened.gateway.relays))
        person = opened.driver.submit(Submission("a"))
        goes_on.set()
        answer = await asking
        assert answer.status == 400 and b"no such grammar" in answer.body
        person.close()


@asynccontextmanager
async def amid_a_stream() -> AsyncIterator[tuple[OpenGateway, asyncio.StreamReader]]:
    """A gateway, and a client that has had the first words of an answer whose engine says no more."""
    async with open_gateway(hangs(HEAD + chunk(EVENTS[:300]))) as opened:
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b"data: ")
        yield opened, reader


async def test_a_stream_whose_engine_dies_amid_ends_with_an_error_event() -> None:
    """R30: after the first byte an error frame."""
    async with amid_a_stream() as (opened, reader):
        opened.engine.die("a")
        assert b'"code":"engine_failed"' in await reader.readuntil(b"0\r\n\r\n")
        await opened.until_idle()


# ------------------------------------------------------------------ clients who leave


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("after", [b"", HEAD + chunk(EVENTS[:300])], ids=["before", "amid"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_a_client_that_leaves_stops_the_engine(body: object, after: bytes, how: str) -> None:
    """LANE-07: within 2 s the engine works on nothing and the grant is back. Half-closing is leaving, too."""
    async with open_gateway(hangs(after)) as opened:
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
        assert opened.outcomes() == {"cancelled": 1}
        writer.close()


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue() -> None:
    """LANE-07: nobody waits in its name, it is never granted, and the load goes on for others (race 11)."""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        _, writer = await opened.connect()
        writer.write(post(STREAM))
        await opened.until_waiting()
        other = asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT))
        await opened.until_waiting(2)
        writer.close()
        await opened.until_waiting(1)
        opened.engine.gate.set()
        assert (await other).status == 200
        assert len(opened.peer.asked) == 1
        assert opened.outcomes() == {"cancelled": 1, "ok": 1}


async def test_clients_that_leave_at_random_points_leave_nothing_behind() -> None:
    """R41: each grant is released once, the engine stops working."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for at in range(0, len(EVENTS), 64):
            writer.write(chunk(EVENTS[at : at + 64]))
            await writer.drain()
            await asyncio.sleep(0.002)
        writer.write(b"0\r\n\r\n")

    async def context(opened: OpenGateway, number: int) -> None:
        reader, writer = await opened.connect()
        writer.write(post(STREAM if number % 3 else CHAT)[: None if number % 7 else 90])
        with suppress(TimeoutError):
            async with asyncio.timeout((number % 40) / 1000):
                await reader.read()
        writer.transport.abort()

    async with open_gateway(talk) as opened:
        for batch in range(10):
            await asyncio.gather(*(context(opened, batch * 40 + at) for at in range(40)))
        await opened.until_idle()
        outcomes = opened.outcomes()
        assert set(outcomes) <= {"ok", "cancelled", "lane_full"} and outcomes["cancelled"] > 50
        assert opened.driver.status()["models"]["a"]["in_flight"] == 0


class Nobody(Line):
    """A connection that nobody is at."""

    transport = None


@pytest.mark.parametrize("turns", range(8))
async def test_a_crowd_that_leaves_between_two_stages_leaves_nothing_behind(turns: int) -> None:
    """R41: requests that came together wait for each other between stages; whoever leaves there is forgotten, too."""
    async with open_gateway() as opened:
        assert (await opened.ask("/v1/chat/completions", CHAT)).status == 200
        parsers = [RequestParser(Nobody()) for _ in range(8)]
        for parser in parsers:
            parser.feed(post(CHAT))
        visits = [
            asyncio.ensure_future(opened.gateway.handle(parser.requests.popleft())) for parser in parsers
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for context in visits:
            context.cancel()
        await asyncio.wait(visits)
        assert not opened.gateway.is_busy and not opened.driver.requests()
        assert opened.driver.status()["models"]["a"]["in_flight"] == 0
        await opened.until_idle()


# ------------------------------------------------------------------ waiting


async def test_headers_are_held_back_then_signs_of_life_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-09: comment lines with a single newline while the request waits, then the answer."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 60)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 40)
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head and b"X-Watchbill-Lane: default" in head and b"X-Watchbill-Model" not in head
        for _ in range(2):
            size = int(await reader.readline(), 16)
            comment = await reader.readexactly(size)
            assert comment.startswith(b": queued") and comment.endswith(b"\n") and comment.count(b"\n") == 1
            await reader.readline()
        opened.engine.gate.set()
        assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")


async def test_signs_of_life_say_a_time_only_while_there_is_ground_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LANE-09, LANE-08: the forecast of its arrival is over, or its device is lent meanwhile: then none is repeated."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 40)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 40)
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(60):
            while (
                line := await reader.readline()
            ) != b": queued\n":  # the guess for its load is over after seconds
                assert b"about" in line or not line.startswith(b": ")
        opened.engine.gate.set()
        assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_stream_says_no_time_while_its_device_is_in_maintenance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RES-14, LANE-08: nobody knows when the device is back: the comments promise nothing, not even the forecast that
    the request had when it came. The answer follows when the device is back."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 20)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 20)
    # A guess of five seconds for its load.
    large = dataclasses.replace(CATALOG.models["a"], memory={"ram": Bytes(800 * 2**20)})
    catalog = dataclasses.replace(CATALOG, models={"a": large})
    async with open_gateway(catalog=catalog) as opened:
        opened.engine.gate.clear()
        reader, writer = await opened.connect()
        writer.write(post(STREAM))
        async with asyncio.timeout(20):
            await reader.readuntil(b": queued, about ")  # the load that it waits for is forecast
            lent = asyncio.create_task(opened.ask("/wb/v1/maintenance", {"device": "ram", "for": "a test"}))
            comments = await reader.readuntil(b": queued\n")
            assert b"about 1 s" not in comments  # the time was withdrawn before it was over
            opened.engine.gate.set()
            assert (await lent).status == 200
            back = await opened.ask("/wb/v1/maintenance?device=ram", method="DELETE")
            assert back.status == 200
            assert b"hello" in await reader.readuntil(b"[DONE]")


async def test_a_refusal_after_the_headers_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: after the first byte an error can only be in-stream."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 20)
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        patience = {"X-Watchbill-Deadline-Ms": "1500"}
        answer = await opened.ask("/v1/chat/completions", STREAM, headers=patience)
        assert answer.status == 200 and answer.body.startswith(b": queued")
        assert b'"code":"wait_exceeded"' in answer.body


async def test_a_refusal_of_a_whole_answer_has_retry_after_and_loading() -> None:
    """api.md: 503 with Retry-After and, beside error, loading{}."""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        patience = {"X-Watchbill-Deadline-Ms": "1500"}
        answer = await opened.ask("/v1/chat/completions", CHAT, headers=patience)
        assert (answer.status, answer.code) == (503, "wait_exceeded")
        assert "the deadline of its caller" in answer.json["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json["loading"]["state"] == "loading"
        assert set(answer.json["loading"]) == {"state", "progress", "eta_seconds"}


async def test_a_full_lane_answers_429_at_once() -> None:
    """LANE-08"""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        waiting = [asyncio.ensure_future(opened.ask("/v1/chat/completions", CHAT)) for _ in range(16)]
        await opened.until_waiting(16)
        answer = await opened.ask("/v1/chat/completions", STREAM)
        assert (answer.status, answer.code) == (429, "lane_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        opened.engine.gate.set()
        assert {(await one).status for one in waiting} == {200}


# ------------------------------------------------------------------ closing the gateway


async def test_closing_sends_away_who_waits_and_lets_finish_who_is_served() -> None:
    """pitfalls.md: at shutdown queued requests get 503 with Retry-After, running streams may end."""
    gate = asyncio.Event()

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(EVENTS[:300]))
        await gate.wait()
        writer.write(chunk(EVENTS[300:]) + b"0\r\n\r\n")

    async with open_gateway(talk) as opened:
        single = {"model": "b/with:slash"}
        reader, writer = await opened.connect()
        writer.write(post({**STREAM, **single}))
        await reader.readuntil(b"data: ")
        waiting = asyncio.ensure_future(opened.ask("/v1/chat/completions", {**CHAT, **single}))
        await opened.until_waiting()
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
    async with amid_a_stream() as (opened, reader):
        await opened.serving.close(grace_ms=50)
        assert b'"code":"shutting_down"' in await reader.read()
        assert not opened.driver.requests()


async def test_events_are_streamed_until_the_gateway_closes() -> None:
    """/wb/v1/events"""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(b"GET /wb/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await opened.ask("/v1/chat/completions", CHAT)
        assert b'"model":"a"' in await reader.readuntil(b"\n\n\r\n")
        await opened.serving.close(grace_ms=5_000)
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()


async def test_a_closed_stream_of_events_frees_its_place() -> None:
    """EVENT_STREAMS_MAX bounds listeners, and only those who are there."""
    async with open_gateway() as opened:
        for _ in range(2):
            pairs = [await opened.connect() for _ in range(EVENT_STREAMS_MAX)]
            for reader, writer in pairs:
                writer.write(b"GET /wb/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            assert (await opened.ask("/wb/v1/events")).status == 429
            for _, writer in pairs:
                writer.transport.abort()
            await eventually(lambda: not opened.gateway.listeners)


async def test_ready_is_about_the_scheduler_not_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: /ready tests the scheduler."""
    async with open_gateway() as opened:
        assert (await opened.ask("/ready")).status == 200
        monkeypatch.setattr(driver, "READY_TURN_MS", -1)  # it has not turned since before now
        assert (await opened.ask("/ready")).status == 503
        assert (await opened.ask("/health")).status == 200


async def test_the_access_log_tells_who_left() -> None:
    """Request ids in the access log; a client that left is 499; no prompt is ever in it."""
    async with open_gateway(hangs()) as opened:
        _, writer = await opened.connect()
        writer.write(post({**CHAT, "messages": [{"role": "user", "content": "SECRET"}]}))
        await opened.peer.until(lambda peer: peer.working == 1)
        writer.close()
        await opened.until_idle()
        await opened.ask("/v1/models")
        opened.gateway.access.flush()
        lines = "\n".join(opened.log)
        assert " wb-" in lines and " 499 " in lines and "SECRET" not in lines


async def test_the_operators_door() -> None:
    """/wb/v1: status, requests, explain, load, evict, metrics, reload."""
    async with open_gateway() as opened:
        assert (await opened.ask("/wb/v1/models/b%2Fwith:slash/load", {})).json["model"] == "b/with:slash"
        assert (await opened.ask("/wb/v1/status")).json["models"]["b/with:slash"]["state"] == "ready"
        assert (await opened.ask("/wb/v1/models/b%2Fwith:slash/evict", {"force": True})).status == 200
        assert (await opened.ask("/wb/v1/status")).json["models"]["b/with:slash"]["state"] == "absent"
        assert (await opened.ask("/wb/v1/models/none/load", {})).code == "model_not_found"
        assert (await opened.ask("/wb/v1/explain?model=a")).status == 200
        unknown = await opened.ask("/wb/v1/explain?model=none")
        assert unknown.status == 404 and b"there are: a, b/with:slash" in unknown.body
        assert b"did you mean" not in unknown.body
        near = await opened.ask("/wb/v1/explain?model=b%2Fwith:slsh")
        assert near.status == 404 and b"did you mean b/with:slash? there are: a" in near.body
        assert (await opened.ask("/wb/v1/requests")).json == {"requests": []}
        assert b"watchbill_" in (await opened.ask("/metrics")).body
        assert (await opened.ask("/wb/v1/config/reload", {})).status == 404

        async def reload() -> list[str]:
            return ["model x is new"]

        opened.gateway.reload = reload
        assert (await opened.ask("/wb/v1/config/reload", {})).json["changes"] == ["model x is new"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            "input (2002 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
            "context_length_exceeded",
        ),
        (
            "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error",
            "invalid_request_error",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_who_is_at_fault_does_not_have_the_model_reset(
    said: str, code: str, stream: bool
) -> None:
    """RES-20: llama.cpp answers 500 to some requests that are wrong; it stays well, and others need it."""
    body = json.dumps({"error": {"code": 500, "message": said, "type": "server_error"}}).encode()
    async with open_gateway(stream_of(body, content_type="application/json", status=500)) as opened:
        for _ in range(4):
            answer = await opened.ask(
                "/v1/chat/completions", {"model": "a", "messages": [], "stream": stream}
            )
            assert (answer.status, answer.code) == (400, code)
        assert opened.driver.status()["models"]["a"]["loads"] == 1


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_refuses_or_lacks_an_address_is_neither_suspect_nor_quick(
    status: int, stream: bool
) -> None:
    """RES-20: such answers say nothing about its health, and nothing about the time that its answers take."""
    lacking = stream_of(b"Unsupported method ('POST')", content_type="text/html", status=status)
    async with open_gateway(lacking) as opened:
        for _ in range(4):
            answer = await opened.ask(
                "/v1/chat/completions", {"model": "a", "messages": [], "stream": stream}
            )
            assert answer.status == status
        await opened.until_idle()
        model = opened.driver._core.state.models["a"]
        assert (model.bad_answers, model.is_suspect, model.loads) == (0, False, 1)
        assert model.service.is_guess


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
@pytest.mark.parametrize("stream", [True, False])
async def test_who_is_told_of_the_fault_within_the_stream_is_at_fault_all_the_same(
    path: str, stream: bool
) -> None:
    """RES-20: some engines say 200 and stream before they look at the request."""
    told = (
        b'data: {"error": {"code": 400, "message": "no such grammar", "type": "invalid_request_error"}}\n\n'
    )
    async with open_gateway(stream_of(told)) as opened:
        for _ in range(4):
            body: dict[str, object] = {
                "model": "a",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": stream,
            }
            answer = await opened.ask(path, body)
            assert b"no such grammar" in answer.body
        assert opened.driver.status()["models"]["a"]["loads"] == 1
