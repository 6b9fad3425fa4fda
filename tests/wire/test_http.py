"""The HTTP server: connections, requests and answers on a real socket (LANE-07, P3)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.eventually import eventually
from support.open_gateway import open_gateway, raw
from support.peer import chat_events, sse, stream_of
from watchbill.catalog import Server
from watchbill.gateway.access import Access
from watchbill.gateway.answers import as_response
from watchbill.gateway.http import messages as request_module
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.listener import Listener
from watchbill.gateway.http.messages import Answer, Line, Request, RequestParser, Response, Stream
from watchbill.gateway.limits import (
    PIPELINED_MAX,
    REQUEST_BUFFER_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADER_BYTES_MAX,
)
from watchbill.gateway.request_context import RequestContext
from watchbill.units import Bytes

CHAT = json.dumps({"model": "a", "messages": [{"role": "user", "content": "hi"}]}).encode()
MANY_HEADERS = b"".join(b"X%d: y\r\n" % at for at in range(100))


def request(version: str = "1.1", *more: str) -> bytes:
    lines = [
        f"POST /v1/chat/completions HTTP/{version}",
        "Host: localhost",
        f"Content-Length: {len(CHAT)}",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + CHAT


async def test_a_connection_serves_many_answers_and_each_has_its_headers() -> None:
    """LANE-07: the headers of api.md are on every answer, whichever way it took."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        for _ in range(3):
            writer.write(request())
            answer = await raw(reader)
            assert answer.status == 200 and answer.json["choices"][0]["message"]["content"] == "hello there"
            assert answer.headers["server"] == "watchbill" and answer.headers["date"].endswith("GMT")
            assert answer.headers["x-watchbill-model"] == "a" and "connection" not in answer.headers
        writer.close()


async def test_a_client_that_wants_no_further_answer_is_let_go() -> None:
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request("1.1", "Connection: close"))
        answer = await raw(reader)
        assert answer.headers["connection"] == "close"
        assert await reader.read() == b""
        writer.close()


async def test_old_clients_are_answered_in_their_own_version() -> None:
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request("1.0"))
        assert (await reader.readline()).startswith(b"HTTP/1.0 200")
        assert b"hello there" in await reader.read()
        writer.close()


async def test_whoever_asks_for_a_head_alone_gets_it() -> None:
    """RFC 9110: HEAD is there where GET is: `wget --spider` and load balancers look at /health so."""
    async with open_gateway() as opened:
        for path in (
            "/health",
            "/ready",
            "/metrics",
            "/v1/models",
            "/v1/models/a",
            "/wb/v1/status",
            "/api/ps",
        ):
            asked = f"{{}} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
            whole = await opened.send(asked.format("GET").encode())
            reader, writer = await opened.connect()
            writer.write(asked.format("HEAD").encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.0 200 ") and body == b"", path
            assert path == "/metrics" or b"Content-Length: %d" % len(whole.body) in head


async def test_a_body_that_comes_after_its_head_is_waited_for() -> None:
    """Many clients send the two apart; the connection goes on as with any other."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head, _, body = request().partition(b"\r\n\r\n")
        for _ in range(3):
            writer.write(head + b"\r\n\r\n")
            await eventually(lambda: opened.gateway.is_busy)
            writer.write(body)
            assert (await raw(reader)).status == 200
        writer.close()


async def test_an_answer_that_comes_before_the_end_of_a_body_is_seen() -> None:
    """A client that still sends is read over for a while, and may ask again afterwards."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n" + b"x" * 20)
        assert (await raw(reader)).status == 404
        writer.write(b"y" * 20 + request())
        assert (await raw(reader)).status == 200
        writer.close()


async def test_a_connection_whose_answer_was_given_up_is_closed() -> None:
    """P3: what an answer waited for was cancelled, and not by its client: it is not left waiting for ever."""

    async def give_up(_request: Request) -> Answer:
        raise asyncio.CancelledError

    async with listening(give_up) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_waits_for_a_go_ahead_gets_it() -> None:
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head, _, body = request("1.1", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        await reader.readline()
        writer.write(body)
        assert (await raw(reader)).status == 200
        writer.close()


async def test_who_is_refused_at_the_door_sends_no_body_for_nothing() -> None:
    """The go-ahead comes when the body is wanted, not before the guard has looked."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head, _, _ = request("1.1", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head.replace(b"localhost", b"evil.example") + b"\r\n\r\n")
        assert (await raw(reader)).status == 403
        writer.close()


async def test_requests_that_come_at_once_are_answered_in_order() -> None:
    """HTTP/1.1 allows them to be sent without waiting for answers."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request() + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + request())
        assert [(await raw(reader)).json.get("object") for _ in range(3)] == [
            "chat.completion",
            None,
            "chat.completion",
        ]
        writer.close()


async def test_requests_without_end_are_not_collected() -> None:
    """R23: who sends more than anybody would wait for is answered so far, and sent away."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * (PIPELINED_MAX + 50))
        statuses = [(await raw(reader)).status for _ in range(PIPELINED_MAX + 1)]
        assert statuses == [200] * PIPELINED_MAX + [400]
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("cut", range(1, 160, 7))
async def test_a_request_may_come_in_any_pieces(cut: int) -> None:
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        for _ in range(2):
            writer.write(request()[:cut])
            await asyncio.sleep(0.005)
            writer.write(request()[cut:])
            assert (await raw(reader)).status == 200
        writer.close()


async def test_a_body_in_chunks_is_a_body() -> None:
    """And what follows its chunks (trailers) is read over."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (CHAT[:9], CHAT[9:]))
        for _ in range(2):
            writer.write(head + chunks + b"0\r\nX-Watchbill-Lane: nowhere\r\n\r\n")
            assert (await raw(reader)).status == 200
        assert opened.gateway.caller_options.degraded == 0
        writer.close()


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
async def test_another_protocol_is_not_taken_up(upgrade: str) -> None:
    """curl and Java's client propose HTTP/2 with their first request, whatever it is."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request("1.1", "Connection: Upgrade", f"Upgrade: {upgrade}"))
        assert (await raw(reader)).status == 200
        writer.write(request())
        assert (await raw(reader)).status == 200
        writer.close()


async def test_what_comes_through_a_tunnel_is_no_request() -> None:
    """R43: the tunnel is refused, and nothing that was meant for its other end is answered."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + request())
        assert (await raw(reader)).status == 400
        assert await reader.read() == b"" and not opened.peer.asked
        writer.close()


async def test_a_large_body_waits_at_the_door_until_it_is_wanted() -> None:
    """R40: what nobody reads yet is not collected; once it is read, all of it comes, and the next request, too."""
    lines: list[asyncio.Transport | None] = []
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def read_later(request: Request) -> Answer:
        lines.append(request.connection.transport)
        asked.set()
        await goes_on.wait()
        size = 0
        while piece := await request.more():
            size += len(piece)
        return Response(str(size).encode(), {"Server": "watchbill"})

    size = 64 * REQUEST_BUFFER_BYTES_MAX
    async with listening(read_later) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sending = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        writer.write(sending)
        await asked.wait()
        await eventually(lambda: lines[0] is not None and not lines[0].is_reading())
        assert writer.transport.get_write_buffer_size() > size // 2  # it did not go to our memory
        goes_on.set()
        assert (await raw(reader)).body == str(size).encode()
        writer.write(sending)
        assert (await raw(reader)).body == str(size).encode()
        writer.close()


async def test_an_old_client_gets_a_stream_until_its_end() -> None:
    """HTTP/1.0 has no chunks: the end of the connection is the end of the answer."""
    events = sse(*chat_events("hi"))
    async with open_gateway(stream_of(events)) as opened:
        reader, writer = await opened.connect()
        streamed = CHAT[:-1] + b', "stream": true}'
        head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(streamed)}\r\n\r\n"
        writer.write(head.encode() + streamed)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n") and b"chunked" not in answer.lower()
        assert answer.endswith(b"\r\n\r\n" + events)
        writer.close()


async def test_an_idle_connection_is_kept_and_then_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: nothing is held for ever, not even nothing."""
    monkeypatch.setattr(Listener, "idle_s", 0.3)
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request())
        assert (await raw(reader)).status == 200
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        await eventually(lambda: not opened.connections)
        writer.close()


@pytest.mark.parametrize("value", ["a\r\nX-Forged: 1", "a\nX-Forged: 1", "a\rX-Forged: 1"])
def test_a_header_with_a_line_break_is_never_sent(value: str) -> None:
    """R43: a second header could be forged with it."""
    with pytest.raises(ValueError, match="line break"):
        Response(b"", {"X-Watchbill-Model": value}).pieces(Request(Nobody(), "GET", "/", "1.1", {}, True))


class Nobody(Line):
    """A connection that nobody is at."""

    transport = None


@asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[int]:
    """A server with one handler; its port."""
    listener = Listener(handle, as_response, lambda: 100)
    _, port = await listener.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await listener.close()


@settings(max_examples=300, deadline=None)
@given(cuts=st.lists(st.integers(1, 400), max_size=12), count=st.integers(1, 3), proposal=st.booleans())
def test_however_the_bytes_are_split_the_requests_are_the_same(
    cuts: list[int], count: int, *, proposal: bool
) -> None:
    """R43: a proxy before us and we ourselves must see the same requests."""
    more = ["Connection: Upgrade", "Upgrade: h2c"] if proposal else ["X-Twice: a", "x-twice: b"]
    chunked = (
        b"PUT /c?d=%20 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n"
    )
    sent = (request("1.1", *more) + chunked) * count
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    parser = RequestParser(Nobody())
    for start, end in pairwise(edges):
        parser.feed(sent[start:end])
    seen = [(each.method, each.target, each.is_whole, b"".join(each.pieces)) for each in parser.requests]
    assert seen == [("POST", "/v1/chat/completions", True, CHAT), ("PUT", "/c?d=%20", True, b"abcde")] * count
    assert parser.failure is None and not parser.has_begun
    assert proposal or parser.requests[0].headers["x-twice"] == "a, b"
    assert parser.requests[1].path == "/c" and parser.requests[1].query == {"d": " "}
    assert "t" not in parser.requests[1].headers


def test_half_a_head_behind_a_request_has_begun() -> None:
    """R39: it has the deadline of a head, not the longer one of an idle client."""
    parser = RequestParser(Nobody())
    parser.feed(request() + b"GET / HT")
    assert len(parser.requests) == 1 and parser.has_begun
    parser.feed(b"TP/1.1\r\n\r\n")
    assert len(parser.requests) == 2 and not parser.has_begun


def feed_until_refused(parser: RequestParser, endless: bytes) -> int:
    """Feeds a parser with the same again and again. Gives the bytes that it took."""
    fed = 0
    while parser.failure is None:
        assert fed <= 2 * REQUEST_HEAD_BYTES_MAX
        parser.feed(endless)
        fed += len(endless)
    return fed


@pytest.mark.parametrize("endless", [b"x" * 1024, MANY_HEADERS], ids=["a header", "headers"])
def test_a_head_without_an_end_is_not_collected(endless: bytes) -> None:
    """R39, R42: it would fill the memory within its deadline."""
    parser = RequestParser(Nobody())
    parser.feed(b"GET / HTTP/1.1\r\nX: ")
    fed = feed_until_refused(parser, endless)
    assert fed > REQUEST_HEAD_BYTES_MAX - len(endless) or "too many" in str(parser.failure)
    assert not parser.requests


@settings(max_examples=500, deadline=None)
@given(content=st.binary(max_size=300), cut=st.integers(0, 300))
def test_any_bytes_are_requests_or_a_failure(content: bytes, cut: int) -> None:
    """R43: and never an exception; after a failure nothing more is taken for a request."""
    for sent in (content, b"POST / HTTP/1.1\r\n" + content, request() + content):
        parser = RequestParser(Nobody())
        parser.feed(sent[:cut])
        parser.feed(sent[cut:])
        count = len(parser.requests)
        if parser.failure is not None:
            parser.feed(request())
            assert len(parser.requests) == count


async def test_half_a_request_holds_up_no_shutdown() -> None:
    """P3: its client is told that the gateway closes, long before the deadline of a body."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(request()[:-5])
        await eventually(lambda: opened.connections and opened.gateway.is_busy)
        async with asyncio.timeout(3):
            await opened.serving.close(grace_ms=20_000)
        answer = await raw(reader)
        assert (answer.status, answer.code) == (503, "shutting_down")
        writer.close()


def test_a_tunnel_that_proposes_a_protocol_is_a_tunnel() -> None:
    """R43: it is refused like any other, and what came before it is not concerned."""
    parser = RequestParser(Nobody())
    tunnel = b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    parser.feed(b"GET / HTTP/1.1\r\n\r\n" + tunnel + request())
    assert [(each.method, each.keeps_alive) for each in parser.requests] == [
        ("GET", True),
        ("CONNECT", False),
    ]


def test_a_proposal_changes_nothing_else_of_its_request() -> None:
    """R43: an old client stays one, and who wants no further answer gets none."""
    proposal = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n"
    for version, keeps_alive in (("1.0", False), ("1.1", False)):
        parser = RequestParser(Nobody())
        parser.feed(f"GET / HTTP/{version}\r\n".encode() + proposal)
        assert [(each.version, each.keeps_alive) for each in parser.requests] == [(version, keeps_alive)]
    parser = RequestParser(Nobody())
    parser.feed(b"GET / HTTP/2.0\r\n" + proposal)
    assert parser.failure is not None


@pytest.mark.parametrize("word", ["Connection", "connection", "Proxy-Connection", "PROXY-CONNECTION"])
def test_who_asks_to_stay_keeps_its_version(word: str) -> None:
    """R43: an old client that asks for it is no newer for that, whichever header it asks with."""
    asked = f"{word}: keep-alive\r\n\r\n".encode()
    for version, keeps_alive in (("1.0", False), ("1.1", True)):
        parser = RequestParser(Nobody())
        parser.feed(f"GET / HTTP/{version}\r\n".encode() + asked)
        assert [(each.version, each.keeps_alive) for each in parser.requests] == [(version, keeps_alive)]
    for version in ("0.9", "2.0"):
        parser = RequestParser(Nobody())
        parser.feed(f"GET / HTTP/{version}\r\n".encode() + asked)
        assert parser.failure is not None and not parser.requests


@pytest.mark.parametrize(
    "endless",
    [b"x" * 1024, b"".join(b"X%d: y\r\n" % number for number in range(200))],
    ids=["a trailer", "trailers"],
)
def test_trailers_without_an_end_are_not_collected(endless: bytes) -> None:
    """R39, R42: nobody reads them, and they would fill the memory behind a body that waits for its turn."""
    parser = RequestParser(Nobody())
    parser.feed(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: ")
    fed = feed_until_refused(parser, endless)
    assert fed > REQUEST_HEAD_BYTES_MAX - len(endless) or "too many" in str(parser.failure)
    assert parser.requests[0].failure is parser.failure


def test_a_header_that_comes_again_and_again_is_not_longer_than_one_that_comes_once() -> None:
    """R42: putting thousands of values into one text would hold up everybody else."""
    parser = RequestParser(Nobody())
    parser.feed(b"GET / HTTP/1.1\r\n" + b"X: yy\r\n" * (REQUEST_HEADER_BYTES_MAX // 2) + b"\r\n")
    assert "too many" in str(parser.failure)
    parser = RequestParser(Nobody())
    parser.feed(b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * (REQUEST_HEADER_BYTES_MAX // 2) + b"\r\n") * 3)
    assert "too long" in str(parser.failure)


@pytest.mark.parametrize("piece", [b"x", "é".encode()], ids=["letters", "bytes"])
def test_a_header_that_is_too_long_is_refused_behind_another_request_too(piece: bytes) -> None:
    """R42, R43: whether it came in one piece with what was before it changes nothing."""
    before = request() + b"GET / HTTP/1.1\r\n\r\n"
    value = piece * (REQUEST_HEADER_BYTES_MAX // len(piece) + 1)
    sent = before + b"GET / HTTP/1.1\r\nX: " + value + b"\r\n\r\n"
    for cut in (0, 10, len(before), len(before) + 10, len(sent) - 2):
        parser = RequestParser(Nobody())
        parser.feed(sent[:cut])
        parser.feed(sent[cut:])
        assert "too long" in str(parser.failure) and len(parser.requests) == 2, cut


@pytest.mark.parametrize("around", [b" ", b"\t", b" \t  "])
def test_blanks_around_a_value_are_no_part_of_it(around: bytes) -> None:
    """LANE-02: RFC 9112, 5.1. With a blank behind it the wish `X-Watchbill-Tier: local` had no effect, and a right key
    was wrong."""
    parser = RequestParser(Nobody())
    head = b"".join(
        name + b":" + around + value + around + b"\r\n"
        for name, value in (
            (b"Host", b"localhost"),
            (b"X-Watchbill-Tier", b"exact, local"),
            (b"X-Empty", b""),
        )
    )
    parser.feed(b"GET / HTTP/1.1\r\n" + head + b"\r\n")
    expected = {"host": "localhost", "x-watchbill-tier": "exact, local", "x-empty": ""}
    assert parser.requests[0].headers == expected


def test_headers_are_remembered_only_if_they_are_few_and_short_and_no_secrets() -> None:
    """R42: what a stranger sends does not stay in memory, and a key does not at all."""
    lines = [
        b"x" * 30_000 + b": y",
        b"X: " + b"y" * 10_000,
        b"Authorization: Bearer sesame",
        b"Cookie: sesame",
    ]
    for line in lines + [b"X-Number: %d" % number for number in range(5000)]:
        parser = RequestParser(Nobody())
        parser.feed(b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n")
        assert len(parser.requests) == 1
    known = request_module._known
    assert 0 < len(known) < 2000 and max(len(name) + len(text) for name, text in known.values()) < 200
    assert not any("sesame" in text for _, text in known.values())


async def test_a_go_ahead_never_follows_an_answer() -> None:
    """R43: whoever was refused sends no body; a word more would be taken for the answer to something else."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head, _, _ = request("1.1", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head.replace(b"localhost", b"evil.example") + b"\r\n\r\n")
        answer = await raw(reader)
        assert (answer.status, answer.headers["connection"]) == (403, "close")
        assert await reader.read() == b""
        writer.close()


async def test_an_old_client_gets_no_go_ahead() -> None:
    """HTTP/1.0 does not know it, and would take it for the answer."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        head, _, body = request("1.0", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await eventually(lambda: opened.gateway.is_busy)
        writer.write(body)
        assert (await raw(reader)).status == 200
        writer.close()


@pytest.mark.parametrize("status", [204, 304])
async def test_a_stream_without_a_body_announces_none(status: int) -> None:
    """R43: a client would take its last chunk for the next answer."""

    async def say_nothing(request: Request) -> Answer:
        stream = Stream(request, {}, status)
        await stream.open()
        await stream.write(b"nothing")
        await stream.end()
        return stream

    async with listening(say_nothing) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(request())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status) and b"chunked" not in head
        writer.close()


async def test_an_answer_that_was_begun_is_not_followed_by_another() -> None:
    """R43: what breaks in the middle breaks the connection, and the client sees that the end is missing."""

    async def break_off(context: RequestContext) -> Answer:
        stream = Stream(context.request, {})
        await stream.open()
        await stream.write(b"half")
        raise ValueError("a bug")

    async with (
        open_gateway() as opened,
        listening(opened.gateway.frame.wrap(Access.OPEN, break_off)) as port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\n4\r\nhalf\r\n")
        writer.close()


async def test_a_client_that_leaves_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    """P3: a piece that is ready when its reader has just gone is dropped, and the log is not filled with it."""
    ended = asyncio.Event()

    async def stream(context: RequestContext) -> Answer:
        out = Stream(context.request, {})
        await out.open()
        assert context.request.transport is not None
        context.request.transport.close()  # as the loop does at the end of what the client sends
        try:
            await out.write(b"more")
        finally:
            ended.set()
        return out

    async with open_gateway() as opened, listening(opened.gateway.frame.wrap(Access.OPEN, stream)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await ended.wait()
        await reader.read()
        opened.gateway.access.flush()
        assert " 499 " in opened.log[-1]
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        writer.close()


async def test_an_idle_client_that_leaves_its_answer_unread_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """R40, P3: too little is left to count as a stalled reader, and closing in good order would wait for ever."""
    monkeypatch.setattr(Listener, "idle_s", 0.3)
    monkeypatch.setattr(Listener, "stall_s", 0.3)
    lines: list[Line] = []

    async def answer(request: Request) -> Answer:
        lines.append(request.connection)
        return Response(b"x" * 30_000, {})

    async with listening(answer) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            await eventually(lambda: lines)
            transport = lines[0].transport
            assert transport is not None
            while not transport.get_write_buffer_size():
                count = len(lines)
                client.send(b"GET / HTTP/1.1\r\n\r\n")
                await eventually(lambda count=count: len(lines) > count)
            await eventually(lambda: lines[0].transport is None)


async def test_an_answer_that_is_ready_is_sent_to_its_end_at_a_shutdown() -> None:
    """P3: it was made; only its reader is slow."""
    whole = 20_000_000

    async def answer(_request: Request) -> Answer:
        return Response(b"x" * whole, {})

    listener = Listener(answer, as_response, lambda: 100)
    _, port = await listener.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request())
    head = await reader.readuntil(b"\r\n\r\n")
    closing = asyncio.ensure_future(listener.close())
    assert len(await reader.read()) == whole and b"Content-Length: 20000000" in head
    await closing
    assert not listener.connections
    writer.close()


async def test_a_client_that_left_before_its_last_answer_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    """P3: its connection cannot be closed one way any more; it ends without a word."""
    client = socket.socket()
    ended = asyncio.Event()

    async def refuse(_request: Request) -> Answer:
        client.close()
        ended.set()
        answer = Response(b"no", {}, 413)
        answer.closes = True
        return answer

    async with listening(refuse) as port:
        client.connect(("127.0.0.1", port))
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        await ended.wait()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
async def test_who_sends_half_a_body_is_told_that_the_connection_ends(path: str) -> None:
    """R43: what follows has no meaning, and a client that does not know would ask again on a closed connection."""
    async with open_gateway(server=Server(body_max=Bytes(100))) as opened:
        for framing in (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Content-Length: 1000\r\n\r\n"):
            reader, writer = await opened.connect()
            writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b" % (path.encode(), framing))
            answer = await raw(reader)
            assert (answer.status, answer.headers.get("connection")) in ((400, "close"), (413, "close"))
            writer.close()


@pytest.mark.parametrize(
    "coding",
    [b"gzip, chunked", b"gzip", b"chunked, chunked", b"identity", b"chunked\r\nTransfer-Encoding: chunked"],
)
async def test_a_body_that_is_coded_in_any_other_way_than_chunked_is_refused(coding: bytes) -> None:
    """R43: its bytes would be taken for something else than what they are."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: %b\r\n\r\n"
    async with open_gateway() as opened:
        answer = await opened.send(head % coding + b"2\r\n{}\r\n0\r\n\r\n")
        assert answer.status == 400
        assert b"model" not in answer.body  # what is in the body was not looked at
