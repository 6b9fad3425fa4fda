"""The way to an engine, against a server of raw sockets that does everything wrong an engine can do wrong."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from support.certificates import write_certificate
from watchbill.engines.base import Endpoint, LoadError, Warm
from watchbill.engines.connection import Connection
from watchbill.engines.dial import _trust  # pyright: ignore[reportPrivateUsage]
from watchbill.engines.limits import (
    UPSTREAM_BUFFER_BYTES_MAX,
    UPSTREAM_HEAD_BYTES_MAX,
    UPSTREAM_IDLE_CONNECTIONS_MAX,
    UPSTREAM_PIECE_BYTES_MAX,
)
from watchbill.engines.readiness import ask_again
from watchbill.engines.upstream import Call, Deadlines, Outgoing, Upstream, UpstreamFailed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT = Deadlines(connect_ms=1_000, first_byte_ms=150, silence_ms=150)
TLS = "tls"
#: All reach the same peer: by its address, by a name that stands for several, and over TLS.
by_every_way = pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", TLS], ids=["address", "name", "TLS"]
)

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """An engine made of raw sockets. Each connection is served by the next talk; the last one repeats."""

    def __init__(self, *talks: Talk) -> None:
        self.talks = list(talks)
        self.requests: list[bytes] = []
        self.heard = asyncio.Event()
        self.connections = 0
        self.host, self.port, self.tls_port = "127.0.0.1", 0, 0
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def endpoint(self) -> Endpoint:
        if self.host == TLS:
            return Endpoint("localhost", self.tls_port, tls=True)
        return Endpoint(self.host, self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = self.talks[min(self.connections, len(self.talks) - 1)]
        self.connections += 1
        self.writers.append(writer)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def hear(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        self.heard.set()
        return request


def says(
    *pieces: bytes, pause_s: float = 0.0, stays: bool = False, reset: bool = False, times: int = 1
) -> Talk:
    """A talk: hears a request, says the pieces, then closes, stays silent, or resets."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer = talk.peer  # pyright: ignore[reportFunctionMemberAccess]
        for _ in range(times):
            await peer.hear(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if pause_s:
                    await asyncio.sleep(pause_s)
        if stays:
            await reader.read()
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    return talk


@asynccontextmanager
async def listening(*talks: Talk) -> AsyncIterator[Peer]:
    peer = Peer(*talks)
    for talk in talks:
        talk.peer = peer  # pyright: ignore[reportFunctionMemberAccess]
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    secure = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=certified())
    peer.port, peer.tls_port = (each.sockets[0].getsockname()[1] for each in (server, secure))
    try:
        yield peer
    finally:
        server.close()
        secure.close()
        for writer in peer.writers:
            if not writer.is_closing():
                writer.transport.abort()  # over TLS a close waits for the other side's
        await server.wait_closed()
        await secure.wait_closed()


@pytest.fixture(autouse=True, scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The peer's certificate, which every client here trusts."""
    path = write_certificate(tmp_path_factory.mktemp("certificate") / "localhost.pem")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        _trust.cache_clear()
        yield path
    _trust.cache_clear()


def certified() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(os.environ["SSL_CERT_FILE"])
    return context


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    client = Upstream(SHORT)
    yield client
    await client.close()


async def ask(
    upstream: Upstream, peer: Peer, body: bytes = b"{}", *, streamed: bool = False
) -> tuple[int, bytes]:
    call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x", body), streamed=streamed)
    try:
        return await call.head(), await call.read()
    finally:
        call.abort()


WHOLE = {
    "a length": OK,
    "chunks": CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
    "chunks with extensions": CHUNKED + b"2;name=value\r\nok\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"2\r\nok\r\n0\r\nX-Trailer: y\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "early hints": b"HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\nLink: </x>\r\n\r\n" + OK,
    "no length, then the end": b"HTTP/1.1 200 OK\r\n\r\nok",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nok",
    "an empty reason": b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok",
    "a close announced": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    "identity said aloud": b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
async def test_an_answer_is_the_same_however_it_is_framed_and_split(
    upstream: Upstream, answer: bytes
) -> None:
    """R33, R34: every framing, split at every byte."""
    splits = [(answer[:at], answer[at:]) for at in range(1, len(answer))]
    async with listening(*(says(*pieces) for pieces in [(answer,), *splits])) as peer:
        for _ in range(len(splits) + 1):
            assert await ask(upstream, peer) == (200, b"ok")
            upstream._pools.clear()  # pyright: ignore[reportPrivateUsage]  a fresh connection for every split


@by_every_way
@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
async def test_an_answer_is_the_same_wherever_it_comes_from(
    upstream: Upstream, answer: bytes, host: str
) -> None:
    """R33, R34: one client for engines on this machine, on others, and over TLS."""
    async with listening(says(answer)) as peer:
        peer.host = host
        assert await ask(upstream, peer) == (200, b"ok")


async def test_an_answer_that_comes_byte_by_byte_is_whole() -> None:
    """R34"""
    answer, patient = WHOLE["trailers"], Upstream()
    async with listening(says(*(answer[at : at + 1] for at in range(len(answer))), pause_s=0.001)) as peer:
        assert await ask(patient, peer) == (200, b"ok")
        await patient.close()


async def test_an_answer_without_a_body_has_none(upstream: Upstream) -> None:
    """R34"""
    async with listening(says(b"HTTP/1.1 204 No Content\r\n\r\n", stays=True)) as peer:
        assert await ask(upstream, peer) == (204, b"")


async def test_a_redirect_is_an_answer_and_is_not_followed(upstream: Upstream) -> None:
    """R34: an engine cannot send us elsewhere."""
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with listening(says(moved, stays=True)) as peer:
        assert await ask(upstream, peer) == (302, b"")
        assert peer.connections == 1


LONG_LINE = b"X: " + b"a" * (16 * UPSTREAM_HEAD_BYTES_MAX)
BROKEN = {
    "closed without a word": ("closed", says()),
    "reset without a word": ("closed", says(reset=True)),
    "half a status line": ("truncated", says(b"HTTP/1.1 20")),
    "half a head": ("truncated", says(b"HTTP/1.1 200 OK\r\nContent-Le")),
    "a short body": ("truncated", says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok")),
    "chunks without their end": ("truncated", says(CHUNKED + b"2\r\nok\r\n")),
    "half a chunk": ("truncated", says(CHUNKED + b"5\r\nok")),
    "no end of trailers": ("truncated", says(CHUNKED + b"2\r\nok\r\n0\r\nX: y\r\n")),
    "reset in the middle": ("truncated", says(CHUNKED + b"2\r\nok\r\n", pause_s=0.05, reset=True)),
    "reset where the close would be the end": (
        "truncated",
        says(b"HTTP/1.1 200 OK\r\n\r\nok", pause_s=0.05, reset=True),
    ),
    "no HTTP": ("garbled", says(b"SSH-2.0-OpenSSH_9.2\r\n", stays=True)),
    "two lengths": (
        "garbled",
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", stays=True),
    ),
    "a length and chunks": (
        "garbled",
        says(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", stays=True
        ),
    ),
    "a negative length": ("garbled", says(b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", stays=True)),
    "a chunk size in letters": ("garbled", says(CHUNKED + b"ZZ\r\n", stays=True)),
    "another protocol": (
        "garbled",
        says(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", stays=True),
    ),
    "a compressed answer": (
        "garbled",
        says(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % 3000
            + zlib.compress(bytes(3_000_000), 9)[:3000]
        ),
    ),
    "one endless header": ("too_large", says(b"HTTP/1.1 200 OK\r\n" + LONG_LINE, stays=True)),
    "too many headers": (
        "too_large",
        says(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: b\r\n" % n for n in range(200)) + b"\r\n", stays=True),
    ),
    "endless headers": (
        "too_large",
        says(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * (UPSTREAM_HEAD_BYTES_MAX // 4), stays=True),
    ),
    "endless interim answers": ("too_large", says(b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, stays=True)),
    "endless trailers": ("too_large", says(CHUNKED + b"2\r\nok\r\n0\r\n" + LONG_LINE, stays=True)),
    "an endless chunk extension": ("too_large", says(CHUNKED + b"2;" + LONG_LINE[3:], stays=True)),
    "silence": ("timeout", says(stays=True)),
    "headers, then silence": ("timeout", says(CHUNKED, stays=True)),
    "silence in the middle": ("timeout", says(CHUNKED + b"2\r\nok\r\n", stays=True)),
}


@pytest.mark.parametrize(("kind", "talk"), BROKEN.values(), ids=BROKEN)
async def test_an_answer_that_is_not_whole_is_an_error(upstream: Upstream, kind: str, talk: Talk) -> None:
    """R31, R34: never a silent truncation, never unbounded memory, never a wait without an end."""
    async with listening(talk) as peer:
        with pytest.raises(UpstreamFailed) as caught:
            await ask(upstream, peer)
        assert caught.value.kind == kind
        assert kind == "timeout" or caught.value.received == (kind != "closed")
        assert peer.connections == 1


@pytest.mark.parametrize(
    "how",
    [
        "closed without a word", "reset without a word", "a short body", "chunks without their end", "half a chunk",
        "reset in the middle", "a compressed answer", "silence", "headers, then silence", "silence in the middle",
    ],
)  # fmt: skip
@by_every_way
async def test_a_far_answer_that_is_not_whole_is_an_error_of_the_same_kind(
    upstream: Upstream, how: str, host: str
) -> None:
    """R30, R31: what may be asked for once more is the same wherever the engine is."""
    kind, talk = BROKEN[how]
    async with listening(talk) as peer:
        peer.host = host
        with pytest.raises(UpstreamFailed) as caught:
            await ask(upstream, peer)
        assert caught.value.kind == kind
        assert kind == "timeout" or caught.value.received == (kind != "closed")
        assert peer.connections == 1


async def test_an_engine_that_never_agrees_on_tls_does_not_accept_connections(upstream: Upstream) -> None:
    """R31"""
    async with listening(says(stays=True)) as peer:
        outgoing = Outgoing(Endpoint(peer.host, peer.port, tls=True), "GET", "/")
        call = upstream.call(outgoing, deadlines=Deadlines(connect_ms=100))
        with pytest.raises(UpstreamFailed, match="does not accept connections") as caught:
            await call.head()
        assert caught.value.kind == "timeout"


@pytest.mark.parametrize(
    "deadlines",
    [(Deadlines(), SHORT), (Deadlines(first_byte_ms=150, silence_ms=60_000),) * 2],
    ids=["shorter than before", "the first byte's before the silence's"],
)
async def test_a_kept_connection_keeps_no_deadline_of_an_earlier_request(
    upstream: Upstream, deadlines: tuple[Deadlines, Deadlines]
) -> None:
    """R34: one timer serves all requests of a connection; it looks in time for each of them."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer = answer_once.peer  # pyright: ignore[reportFunctionMemberAccess]
        await peer.hear(reader)
        writer.write(CHUNKED + b"1\r\no\r\n")
        await asyncio.sleep(0.3)  # past the first byte's deadline, so that the timer is armed anew
        writer.write(b"1\r\nk\r\n0\r\n\r\n")
        await peer.hear(reader)
        await reader.read()

    async with listening(answer_once) as peer:
        first, second = (upstream.call(Outgoing(peer.endpoint, "GET", "/"), deadlines=d) for d in deadlines)
        assert (await first.head(), await first.read()) == (200, b"ok")
        with pytest.raises(UpstreamFailed) as caught:
            async with asyncio.timeout(5):
                await second.head()
        assert caught.value.kind == "timeout" and peer.connections == 1


async def test_what_came_before_the_break_is_given_out(upstream: Upstream) -> None:
    """R30: the pieces of an answer that breaks off arrive, then the error."""
    async with listening(says(CHUNKED + b"2\r\nok\r\n", pause_s=0.02)) as peer:
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"), streamed=True)
        assert await call.head() == 200
        assert await call.chunk() == b"ok"
        with pytest.raises(UpstreamFailed):
            await call.chunk()


async def test_an_engine_with_a_certificate_that_is_not_trusted_gets_no_request(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P8: neither one of an unknown authority, nor one for another name."""
    async with listening(says(OK)) as peer:
        peer.host = TLS
        outgoing = Outgoing(Endpoint("127.0.0.1", peer.tls_port, tls=True), "GET", "/")
        with pytest.raises(UpstreamFailed, match="certificate is refused: IP address mismatch"):
            await upstream.fetch(outgoing, timeout_ms=5_000)
        monkeypatch.setenv("SSL_CERT_FILE", str(write_certificate(tmp_path / "other.pem")))
        _trust.cache_clear()
        with pytest.raises(UpstreamFailed, match="certificate is refused") as caught:
            await ask(upstream, peer)
        assert (caught.value.kind, caught.value.refused) == ("connect", False)
        assert not peer.requests
    monkeypatch.undo()
    _trust.cache_clear()


class Name:
    """A name that stands for the addresses that a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
        async def resolve(_host: str, port: int, **_: object) -> list[object]:
            return [
                (socket.AF_UNIX, socket.SOCK_STREAM, 0, "", host)
                if host.startswith("/")
                else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
                for host in hosts
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)


async def test_an_address_that_leads_nowhere_does_not_hide_the_next_one(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: a name may stand for an address that drops everything, as IPv6 behind many routers."""
    async with listening(says(OK)) as peer:
        Name(monkeypatch, "127.0.0.2", "127.0.0.1")
        with socket.socket() as deaf, contextlib.ExitStack() as fillers:
            deaf.bind(("127.0.0.2", peer.port))
            deaf.listen(0)
            for _ in range(4):  # a full backlog: the kernel drops what comes next
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", peer.port))
            peer.host = "engine.example"
            upstream.deadlines = Deadlines()
            assert await ask(upstream, peer) == (200, b"ok")


async def test_a_name_refuses_only_if_each_of_its_addresses_does(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30: that no program listens there is only said where it is certain."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outgoing = Outgoing(Endpoint("engine.example", unused.getsockname()[1]), "GET", "/")
        for hosts, refused in ((("127.0.0.1", "127.0.0.2"), True), (("127.0.0.1", "/no/such/socket"), False)):
            Name(monkeypatch, *hosts)
            with pytest.raises(UpstreamFailed, match="cannot be reached") as caught:
                await upstream.fetch(outgoing, timeout_ms=5_000)
            assert caught.value.refused is refused


async def test_a_name_that_does_not_exist_is_a_failure_to_connect(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30"""

    async def resolve(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(UpstreamFailed, match="Name or service not known") as caught:
        await upstream.fetch(Outgoing(Endpoint("no.example", 1), "GET", "/"), timeout_ms=5_000)
    assert (caught.value.kind, caught.value.refused) == ("connect", False)


async def test_nobody_listening_is_a_failure_to_connect(upstream: Upstream) -> None:
    """R30"""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outgoing = Outgoing(Endpoint("127.0.0.1", unused.getsockname()[1]), "GET", "/health")
        with pytest.raises(UpstreamFailed, match="cannot be reached"):
            await upstream.fetch(outgoing, timeout_ms=1_000)


async def test_an_answer_beyond_the_limit_is_refused(upstream: Upstream) -> None:
    """R34: a body is bounded as a whole, too."""
    body = b"x" * 5000
    async with listening(says(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + body, stays=True)) as peer:
        with pytest.raises(UpstreamFailed) as caught:
            await upstream.fetch(Outgoing(peer.endpoint, "GET", "/"), timeout_ms=1_000, limit_bytes=4999)
        assert caught.value.kind == "too_large"


# ------------------------------------------------------------------ kept connections


@by_every_way
async def test_a_connection_is_used_again(upstream: Upstream, host: str) -> None:
    """Keep-alive for whole answers."""
    async with listening(says(OK, times=3, stays=True)) as peer:
        peer.host = host
        for _ in range(3):
            assert await ask(upstream, peer) == (200, b"ok")
        assert peer.connections == 1


async def test_a_kept_connection_that_was_closed_is_replaced_once(upstream: Upstream) -> None:
    """A request that met a closed connection and got no byte is sent again, on a fresh one."""

    async def close_on_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer = close_on_second.peer  # pyright: ignore[reportFunctionMemberAccess]
        await peer.hear(reader)
        writer.write(OK)
        await peer.hear(reader)  # and not a word

    async with listening(close_on_second, says(OK, stays=True)) as peer:
        assert await ask(upstream, peer, b"1") == (200, b"ok")
        assert await ask(upstream, peer, b"2") == (200, b"ok")
        assert [request[-1:] for request in peer.requests] == [b"1", b"2", b"2"]
        assert peer.connections == 2


async def test_a_request_that_got_a_byte_is_not_sent_again(upstream: Upstream) -> None:
    """R30: the engine may have begun to work."""

    async def break_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer = break_second.peer  # pyright: ignore[reportFunctionMemberAccess]
        await peer.hear(reader)
        writer.write(OK)
        await peer.hear(reader)
        writer.write(b"HTTP/1.1 2")

    async with listening(break_second, says(OK)) as peer:
        assert await ask(upstream, peer) == (200, b"ok")
        with pytest.raises(UpstreamFailed, match="broke off"):
            await ask(upstream, peer)
        assert peer.connections == 1


async def test_a_fresh_connection_that_is_closed_is_not_tried_again(upstream: Upstream) -> None:
    """One retry belongs to kept connections only; the scheduler decides about the rest."""
    async with listening(says(), says(OK)) as peer:
        with pytest.raises(UpstreamFailed):
            await ask(upstream, peer)
        assert peer.connections == 1


async def test_an_engine_that_closes_after_streams_is_asked_to_do_so(upstream: Upstream) -> None:
    """llama.cpp announces keep-alive, streams, and closes: learned from the first time."""
    stream = CHUNKED + b"2\r\nok\r\n0\r\n\r\n"
    async with listening(says(stream)) as peer:
        for _ in range(4):
            assert await ask(upstream, peer, streamed=True) == (200, b"ok")
        headers = [request.split(b"Connection: ")[1].split(b"\r\n")[0] for request in peer.requests]
        assert headers[0] == b"keep-alive"
        assert headers[-2:] == [b"close", b"close"]


async def test_bytes_after_an_answer_end_the_connection(upstream: Upstream) -> None:
    """R34: what follows an answer could be taken for the next one's."""
    async with listening(says(OK + OK, stays=True), says(OK, stays=True)) as peer:
        assert await ask(upstream, peer) == (200, b"ok")
        assert await ask(upstream, peer) == (200, b"ok")
        assert peer.connections == 2


async def test_the_pool_is_bounded(upstream: Upstream) -> None:
    """A burst does not leave hundreds of idle sockets behind."""
    count = UPSTREAM_IDLE_CONNECTIONS_MAX + 10
    gate = asyncio.Event()

    async def wait_for_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer = wait_for_all.peer  # pyright: ignore[reportFunctionMemberAccess]
        await peer.hear(reader)
        if len(peer.requests) == count:
            gate.set()
        await gate.wait()
        writer.write(OK)
        await reader.read()

    async with listening(wait_for_all) as peer:
        upstream.deadlines = Deadlines()
        await asyncio.gather(*(ask(upstream, peer) for _ in range(count)))
        idle = upstream._pools["127.0.0.1", peer.port, False]._idle  # pyright: ignore[reportPrivateUsage]
        assert len(idle) == UPSTREAM_IDLE_CONNECTIONS_MAX


# ------------------------------------------------------------------ cutting and back-pressure


@by_every_way
async def test_abort_ends_a_wait_and_closes_the_socket(upstream: Upstream, host: str) -> None:
    """LANE-07: the engine learns at once that nobody listens."""
    gone = asyncio.Event()

    async def notice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await notice.peer.hear(reader)  # pyright: ignore[reportFunctionMemberAccess]
        with suppress(ConnectionError):
            await reader.read()
        gone.set()

    async with listening(notice) as peer:
        peer.host = host
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"), streamed=True, deadlines=Deadlines())
        waiting = asyncio.ensure_future(call.head())
        await peer.heard.wait()
        call.abort()
        with pytest.raises(UpstreamFailed) as caught:
            await waiting
        assert caught.value.kind == "aborted"
        async with asyncio.timeout(2):
            await gone.wait()


async def test_abort_before_the_connection_stands_sends_nothing(upstream: Upstream) -> None:
    """LANE-07"""
    async with listening(says(OK)) as peer:
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"))
        waiting = asyncio.ensure_future(call.head())
        await asyncio.sleep(0)
        call.abort()
        with pytest.raises(UpstreamFailed):
            await waiting
        assert not peer.requests


@by_every_way
async def test_a_wait_can_be_interrupted_and_taken_up_again(host: str) -> None:
    """A keep-alive comment to the client must not send the request twice."""
    patient = Upstream()
    async with listening(
        says(b"HTTP/1.1 200 OK\r\n", b"Content-Length: 2\r\n\r\no", b"k", pause_s=0.3)
    ) as peer:
        peer.host = host
        call = patient.call(Outgoing(peer.endpoint, "POST", "/v1/x"))
        status, interruptions = 0, 0
        while not status:
            try:
                async with asyncio.timeout(0.01):
                    status = await call.head()
            except TimeoutError:
                interruptions += 1
        assert (status, await call.read()) == (200, b"ok")
        assert interruptions >= 1 and len(peer.requests) == 1
        call.abort()
        await patient.close()


@by_every_way
@pytest.mark.parametrize("seen", ["nothing", "a head"])
async def test_an_answer_that_was_there_and_not_seen_when_it_was_cut_is_cut(
    upstream: Upstream, host: str, seen: str
) -> None:
    """LANE-07: it is no empty answer, and whoever is served on its connection next is left alone."""
    async with listening(says(OK, times=3)) as peer, asyncio.timeout(5):
        peer.host = host
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"))
        looking = asyncio.ensure_future(call.head() if seen == "a head" else call.changed())
        await peer.heard.wait()
        await asyncio.wait({looking}, timeout=0.1)
        await asyncio.sleep(0.05)  # nobody can tell, without a look, that it has come
        call.abort()
        following = asyncio.ensure_future(ask(upstream, peer))
        await asyncio.sleep(0)
        with pytest.raises(UpstreamFailed) as caught:
            await (call.chunk() if seen == "a head" else call.head())
        assert caught.value.kind == "aborted"
        assert await following == (200, b"ok")


@by_every_way
async def test_a_piece_that_comes_in_the_moment_of_a_cut_is_cut(upstream: Upstream, host: str) -> None:
    """LANE-07: a caller who has seen nothing yet must not begin an answer that has no rest."""
    async with listening(says(CHUNKED, b"2\r\nok\r\n", pause_s=0.05, stays=True)) as peer, asyncio.timeout(5):
        peer.host = host
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"))
        await call.head()
        news = asyncio.ensure_future(call.changed())
        news.add_done_callback(lambda _news: call.abort())
        await news
        with pytest.raises(UpstreamFailed) as caught:
            await call.chunk()
        assert caught.value.kind == "aborted"


@by_every_way
@pytest.mark.parametrize("said", [b"", CHUNKED], ids=["nothing", "a head"])
async def test_interruptions_do_not_put_off_a_deadline(upstream: Upstream, host: str, said: bytes) -> None:
    """R31: an engine that hangs is given up although its caller sends signs of life meanwhile."""

    async def look(call: Call) -> None:
        for _ in range(40):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await call.head()
                    await call.chunk()

    async with listening(says(said, stays=True)) as peer:
        peer.host = host
        deadlines = Deadlines(connect_ms=100, first_byte_ms=150)
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"), deadlines=deadlines)
        with pytest.raises(UpstreamFailed) as caught:
            await look(call)
        assert caught.value.kind == "timeout"
        call.abort()


@by_every_way
@pytest.mark.parametrize("said", [CHUNKED, b""], ids=["a head", "a close"])
async def test_what_comes_while_nobody_looks_is_dropped_by_abort(
    upstream: Upstream, host: str, said: bytes
) -> None:
    """LANE-07, R41: a caller who leaves between two looks leaves no connection, and no complaint, behind."""
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer.peer.hear(reader)  # pyright: ignore[reportFunctionMemberAccess]
        if said:
            writer.write(said)
        else:
            writer.close()
        with suppress(ConnectionError):
            await reader.read()
        gone.set()

    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    async with listening(answer) as peer, asyncio.timeout(5):
        peer.host = host
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"), deadlines=Deadlines())
        looking = asyncio.ensure_future(call.changed())
        await peer.heard.wait()
        looking.cancel()
        await asyncio.sleep(0.1)  # nobody can tell, without a look, that it has come
        call.abort()
        await gone.wait()
    del call, looking
    gc.collect()
    assert not complaints


async def test_a_slow_taker_holds_the_engine_back(upstream: Upstream) -> None:
    """R40: what waits for a slow reader is bounded; the engine's socket fills instead."""
    sent = 0
    total = 64 * UPSTREAM_BUFFER_BYTES_MAX

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await flood.peer.hear(reader)  # pyright: ignore[reportFunctionMemberAccess]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        block = b"x" * 65536
        while sent < total:
            writer.write(block)
            await writer.drain()
            sent += len(block)

    async with listening(flood) as peer:
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x"), streamed=True)
        assert await call.head() == 200
        before = -1
        while sent != before:  # until the engine is stuck
            before = sent
            # Longer than the silence deadline: it must not fire while we are the slow ones.
            await asyncio.sleep(0.3)
        assert sent < total / 2
        connection: Connection = call._connection  # type: ignore[attr-defined]
        assert connection._unread < 2 * UPSTREAM_BUFFER_BYTES_MAX
        received = 0
        while piece := await call.chunk():
            received += len(piece)
        assert received == total


@by_every_way
async def test_a_large_request_arrives_whole_and_is_sent_a_little_at_a_time(
    upstream: Upstream, host: str
) -> None:
    """R40: no more than a few pieces of it are in the memory of the transport, however slowly the engine reads."""
    body, rest = b"a" * (3 * UPSTREAM_PIECE_BYTES_MAX), (b"b" * (40 * UPSTREAM_PIECE_BYTES_MAX), b"c")
    upstream.deadlines = Deadlines()
    async with listening(says(OK, stays=True)) as peer, asyncio.timeout(60):
        peer.host = host
        call = upstream.call(Outgoing(peer.endpoint, "POST", "/v1/x", body, rest=rest))
        answering = asyncio.ensure_future(call.head())
        held = 0
        while not answering.done():
            await asyncio.sleep(0)
            connection = call._connection
            if connection is not None and connection._transport is not None:
                held = max(held, connection._transport.get_write_buffer_size())
        assert (await answering, await call.read()) == (200, b"ok")
        assert held < 4 * UPSTREAM_PIECE_BYTES_MAX
        assert peer.requests[0].endswith(body + b"".join(rest))


async def test_an_answer_before_the_end_of_its_request_ends_the_connection(upstream: Upstream) -> None:
    """R34: the rest of a refused body is not taken for the next request."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await gate.wait()

    gate = asyncio.Event()
    async with listening(refuse, says(OK, stays=True)) as peer:
        assert await ask(upstream, peer, b"x" * (100 * UPSTREAM_PIECE_BYTES_MAX)) == (413, b"")
        assert await ask(upstream, peer) == (200, b"ok")
        assert peer.connections == 2
        gate.set()


async def test_a_line_break_in_a_path_is_never_sent(upstream: Upstream) -> None:
    """R43: a second request cannot be smuggled through ours."""
    with pytest.raises(AssertionError):
        upstream.call(Outgoing(Endpoint("127.0.0.1", 1), "GET", "/x HTTP/1.1\r\nX: y\r\n\r\n"))


async def test_requests_ask_for_uncompressed_answers(upstream: Upstream) -> None:
    """R34"""
    async with listening(says(OK)) as peer:
        await ask(upstream, peer, b'{"a":1}')
        head, _, body = peer.requests[0].partition(b"\r\n\r\n")
        assert b"Accept-Encoding: identity" in head and b"Host: 127.0.0.1:" in head
        assert body == b'{"a":1}'


@pytest.mark.parametrize(
    "answer",
    [b'{"choices": "\xff"}', b'{"choices":' + b"[" * 5_000, b"<html>"],
    ids=["bytes", "depth", "no JSON"],
)
async def test_garbage_is_no_answer_to_a_model_that_is_asked_whether_it_is_well(answer: bytes) -> None:
    """RES-20: the watchdog hears of it at once, whatever the engine sends."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    async with listening(says(head + answer)) as peer:
        with pytest.raises(LoadError, match="chat probe"):
            await ask_again(Warm(peer.endpoint, None, {}, "chat"))
