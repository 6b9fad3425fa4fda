"""Engines that send without pause: each gets a share of the event loop, and what is kept of an answer is bounded."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.longest_pause import LAG_S_MAX, longest_pause
from support.open_gateway import open_gateway
from support.peer import Asked, Talk, peer_listening, sse, stream_of
from watchbill.engines.limits import SSE_EVENT_BYTES_MAX, UPSTREAM_TURN_BYTES
from watchbill.engines.sse import EventTooLarge, WholeEvents
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.errors import EngineFailed
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.dialects.anthropic.request import read
from watchbill.gateway.dialects.anthropic.response import Collecting, Making
from watchbill.gateway.growing import Kept
from watchbill.gateway.limits import (
    CHOICES_MAX,
    GROWN_CHARACTER_WEIGHT,
    GROWN_VALUE_WEIGHT,
    GROWN_WEIGHT_MAX,
    TOOL_CALLS_MAX,
)
from watchbill.gateway.toolcalls import ToolCalls

SAYS = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"word " * 8)
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
TIMES = 80_000
#: Each in tiny events, many at once.
STORMS: dict[str, tuple[bytes, int]] = {
    "words": (SAYS, TIMES),
    "comments": (b": a\n", 1_000_000),
    "blank lines": (b"\n", 4_000_000),
    "empty events": (b"data: {}\n\n", 200_000),
    "thoughts": (SAYS.replace(b"content", b"reasoning_content"), TIMES),
}
DOORS = ["/v1/chat/completions", "/api/chat", "/v1/messages"]
#: Nobody's machine is so slow that linear work takes this long; the square of it takes minutes.
LINEAR_S_MAX = 20.0


def asking(stream: bool) -> dict[str, object]:
    return {
        "model": "a", "max_tokens": 1, "stream": stream, "messages": [{"role": "user", "content": "x"}],
    }  # fmt: skip


def storm(events: bytes, times: int) -> Talk:
    """A talk that sends events as fast as they are taken, then the end of a good answer."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        at_once = max(1, 2**18 // len(events))
        for _ in range(0, times, at_once):
            writer.write(events * at_once)
            await writer.drain()
        writer.write(END)
        writer.close()

    return talk


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize("name", STORMS)
async def test_an_engine_that_sends_without_pause_holds_up_nobody(name: str, path: str, stream: bool) -> None:
    """R34: whatever is made of its events, and whether they are put together."""
    async with open_gateway(storm(*STORMS[name])) as opened:
        doing = asyncio.ensure_future(opened.ask(path, asking(stream)))
        assert await longest_pause(doing) < LAG_S_MAX
        assert (await doing).status in (200, 502)


async def test_of_an_answer_that_came_at_once_a_turn_gives_out_a_share() -> None:
    """R34: the rest can be taken after the loop has turned, and nothing of it is lost."""
    content = bytes(range(256)) * 4096
    async with peer_listening(stream_of(content[:700_000], content[700_000:])) as peer:
        upstream = Upstream()
        call = upstream.call(Outgoing(peer.endpoint, "GET", "/"))
        assert await call.head() == 200
        taken, turns, turn = bytearray(), 0, -1

        def count() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        while True:
            if (piece := call.take()) is None:
                await call.changed()
                continue
            if not piece:
                break
            assert len(piece) <= UPSTREAM_TURN_BYTES
            if len(piece) > UPSTREAM_TURN_BYTES // 2:
                assert turns > turn, "two shares in one turn"
                turn = turns
            taken += piece
        assert bytes(taken) == content
        await upstream.close()


async def test_an_answer_that_waited_for_a_slow_taker_comes_in_shares() -> None:
    """R34: what gathered meanwhile is not given out at once either."""
    content = b"x" * 200_000
    async with peer_listening(stream_of(content)) as peer:
        upstream = Upstream()
        call = upstream.call(Outgoing(peer.endpoint, "GET", "/"))
        assert await call.head() == 200
        first = await call.chunk()
        taken = len(first)
        while piece := await call.chunk():
            assert len(piece) <= UPSTREAM_TURN_BYTES
            taken += len(piece)
            for _ in range(5):
                await asyncio.sleep(0)  # slower than the engine
        assert taken == len(content)
        await upstream.close()


async def test_an_answer_in_chunks_of_one_byte_holds_up_nobody() -> None:
    """R34: its framing is six times as long as itself."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b'5\r\n{"a":\r\n1\r\n"\r\n')
        for _ in range(50):
            writer.write(b"1\r\nx\r\n" * 20_000)
            await writer.drain()
        writer.write(b'2\r\n"}\r\n0\r\n\r\n')

    async with open_gateway(talk) as opened:
        doing = asyncio.ensure_future(opened.ask("/v1/chat/completions", asking(False)))
        assert await longest_pause(doing) < LAG_S_MAX
        assert (await doing).json == {"a": "x" * 1_000_000}


# ------------------------------------------------------------------ bounds of what is kept


def choice(index: int) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": {"content": "a"}}]}


def tool_call(index: int) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": {"name": "f"}}]}}]}


#: Made when they are used: each is as large as an answer may be.
TOO_MUCH: dict[str, tuple[Callable[[], bytes], str]] = {
    "choices": (lambda: sse(*map(choice, range(CHOICES_MAX + 1))), "more than 32 choices"),
    "tool calls": (lambda: sse(*map(tool_call, range(TOOL_CALLS_MAX + 1))), "more than 128 tool calls"),
    "characters": (
        lambda: sse({"choices": [{"index": 0, "delta": {"content": "a" * 2**18}}]}) * 5,
        "more than 1048576",
    ),
    "fields": (lambda: sse(*({f"field {n}": n} for n in range(100_000))), "more than 1048576"),
    "values": (
        lambda: sse({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{"a": 1}] * 100}}]}) * 1_500,
        "more than 1048576",
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize("name", TOO_MUCH)
async def test_what_is_kept_of_an_answer_is_bounded(name: str, path: str) -> None:
    """R34: an answer that nobody could encode in time is an error of the engine, which says what is too much."""
    events, complaint = TOO_MUCH[name]
    async with open_gateway(stream_of(events(), END)) as opened:
        answer = await opened.ask(path, asking(False))
        assert answer.status == 502 and complaint.encode() in answer.body


def test_values_within_values_weigh_what_they_are() -> None:
    """R34: an object, its list, an object, a text of 4, a list and 3 numbers, and two names of 1."""
    kept, weight = Kept(), 8 * GROWN_VALUE_WEIGHT + 6 * GROWN_CHARACTER_WEIGHT
    for _ in range(GROWN_WEIGHT_MAX // weight):
        kept.value({"a": [{"b": "text"}, [1, 2, 3]]})
    with pytest.raises(EngineFailed, match="ask for a stream"):
        kept.value({"a": [{"b": "text"}, [1, 2, 3]]})


def grow_calls(pieces: int) -> int:
    calls = ToolCalls()
    for _ in range(pieces):
        calls.take([{"index": 0, "function": {"name": "f", "arguments": "x" * 5}}])
    return len(calls.calls[0].arguments.getvalue())


def grow_assembly(pieces: int) -> int:
    assembly = Assembly(chat=True)
    arguments = {"index": 0, "function": {"name": "f", "arguments": "x" * 5}}
    said = sse({"choices": [{"index": 0, "delta": {"tool_calls": [arguments]}}]})
    for _ in range(0, pieces, 100):
        assembly.feed(said * 100)
    assembly.feed(END)
    return len(str(assembly.result()["choices"])) - 200


def grow_message(pieces: int) -> int:
    asked = read({"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]})
    collecting = Collecting(lambda: Making(asked, "1"), lambda: "a").begin()

    def call(arguments: str) -> bytes:
        calls = [{"index": 0, "function": {"name": "f", "arguments": arguments}}]
        return sse({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]})

    collecting.feed(call('{"a":"'))
    for _ in range(0, pieces, 100):
        collecting.feed(call("x" * 5) * 100)
    collecting.feed(call('"}') + END)
    return len(str(collecting.result()["content"]))


@pytest.mark.parametrize("grow", [grow_calls, grow_assembly, grow_message])
def test_a_text_in_many_pieces_costs_its_length_and_not_the_square(grow: Callable[[int], int]) -> None:
    """R34: 100,000 pieces of 5 characters; copying the whole for each takes minutes."""
    began = time.perf_counter()
    assert grow(100_000) >= 499_000
    assert time.perf_counter() - began < LINEAR_S_MAX


# ------------------------------------------------------------------ events without an end


async def test_an_event_without_an_end_is_an_error_and_is_not_passed_on() -> None:
    """R34: a stream ends with an error event and no half one; the engine is not read any further."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + SAYS + b"data: ")
        while True:
            writer.write(b"a" * 2**16)
            await writer.drain()

    async with open_gateway(talk) as opened:
        answer = await opened.ask("/v1/chat/completions", asking(True))
        said, told, end = answer.body.split(b"\n\n")
        assert said + b"\n\n" == SAYS and not end
        assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        await opened.peer.until(lambda peer: peer.left == 1)


@given(
    lines=st.lists(st.sampled_from([b"data: a", b": c", b"", b"data: bb", b"id: 1"]), max_size=12),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_whole_events_are_whole_however_the_bytes_were_split(
    lines: list[bytes], newline: bytes, cuts: list[int]
) -> None:
    """R33: nothing is lost, nothing is given out that belongs to half an event, and nothing whole is held back."""
    stream = b"".join(line + newline for line in lines)
    whole, last = WholeEvents(), 0
    given_out = b""
    for cut in sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)}):
        given_out += whole.feed(stream[last:cut])
        last = cut
        assert not given_out or given_out.endswith((b"\n\n", b"\n\r\n", b"\r\r"))
    blank = max((stream.rfind(end) + len(end) for end in (2 * newline,) if end in stream), default=0)
    assert len(given_out) >= blank
    assert given_out + whole.rest() == stream and whole.is_between_events


def test_an_event_beyond_its_bound_is_refused_by_the_byte() -> None:
    """R34"""
    whole = WholeEvents()
    whole.feed(b"x" * SSE_EVENT_BYTES_MAX)
    with pytest.raises(EventTooLarge):
        whole.feed(b"x")
