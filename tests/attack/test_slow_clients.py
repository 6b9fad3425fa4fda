"""Clients that are slow on purpose: headers, bodies, readers (R39, R40)."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from support.eventually import eventually
from support.open_gateway import OpenGateway, open_gateway, raw
from support.peer import Asked, stream_of
from watchbill.engines.limits import UPSTREAM_BUFFER_BYTES_MAX
from watchbill.gateway import body
from watchbill.gateway.http.listener import Listener

CHAT = json.dumps({"model": "a", "messages": []}).encode()
EMBEDDINGS = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    len(CHAT),
    CHAT,
)
#: A whole answer that no buffer holds.
BIG = json.dumps({"object": "list", "data": ["x" * 1000] * 30_000}).encode()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same deadlines as in production, in tenths of seconds."""
    monkeypatch.setattr(Listener, "header_s", 0.3)
    monkeypatch.setattr(Listener, "stall_s", 0.5)
    monkeypatch.setattr(body, "BODY_SILENCE_MS", 200)
    monkeypatch.setattr(body, "BODY_RECEIPT_MS", 800)


def kernel_buffers() -> int:
    """The most that the kernel keeps of one connection, at its sender and its receiver; it grows them by itself."""
    return sum(
        int(Path("/proc/sys/net/ipv4", name).read_text().split()[2]) for name in ("tcp_wmem", "tcp_rmem")
    )


async def drip(opened: OpenGateway, text: bytes, pause_s: float) -> bytes:
    """Sends a byte at a time and returns what comes back before the end of the connection."""
    reader, writer = await opened.connect()
    answer = asyncio.ensure_future(reader.read())
    for at in range(len(text)):
        if answer.done() or writer.is_closing():
            break
        writer.write(text[at : at + 1])
        await asyncio.sleep(pause_s)
    async with asyncio.timeout(5):
        return await answer


async def test_headers_that_never_end_are_not_waited_for() -> None:
    """R39: a byte now and then keeps no connection open."""
    async with open_gateway() as opened:
        answer = await drip(opened, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 500, 0.02)
        assert answer.startswith(b"HTTP/1.1 408") and answer.endswith(b"}}")


async def test_a_late_client_that_still_sends_sees_why_it_is_sent_away() -> None:
    """R39: a connection that is closed under what still arrives would be reset, and the answer lost with it."""
    loop = asyncio.get_running_loop()
    async with open_gateway() as opened:
        with socket.create_connection(("127.0.0.1", opened.serving.port)) as client:
            client.setblocking(False)
            client.send(b"GET /health HTTP/1.1\r\nX: ")
            async with asyncio.timeout(5):
                assert (await loop.sock_recv(client, 9)) == b"HTTP/1.1 "
                for _ in range(3):
                    client.send(b"a")
                    await asyncio.sleep(0.02)
                assert (await loop.sock_recv(client, 4096)).startswith(b"408")
                assert (await loop.sock_recv(client, 4096)) == b""


async def test_a_connection_without_a_word_is_closed() -> None:
    """R39"""
    async with open_gateway() as opened:
        reader, _ = await opened.connect()
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")


async def test_the_header_deadline_is_armed_anew_for_every_request() -> None:
    """R39: a good first request does not excuse a slow second one; idling between them is allowed."""
    async with open_gateway() as opened:
        reader, writer = await opened.connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await raw(reader)).status == 200
        await asyncio.sleep(1.2)  # idle, longer than the deadline: a kept connection may be
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await raw(reader)).status == 200
        writer.write(b"GET /hea")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_stops_is_not_waited_for(framing: bytes) -> None:
    """R39"""
    async with open_gateway() as opened:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n"
        reader, writer = await opened.connect()
        writer.write(head + b'5\r\n{"mod')
        answer = await raw(reader)
        assert (answer.status, answer.code) == (408, "receipt_timeout")
        assert answer.headers["connection"] == "close"
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        assert not opened.peer.asked


async def test_a_body_a_byte_at_a_time_ends_at_the_whole_deadline() -> None:
    """R39: being alive is not enough."""
    async with open_gateway() as opened:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
        reader, writer = await opened.connect()
        writer.write(head)
        answer = asyncio.ensure_future(raw(reader))
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        assert (await answer).status == 408


async def test_slow_clients_do_not_harm_others() -> None:
    """R39: two hundred of them, and a request is served at once."""
    async with open_gateway() as opened:
        for _ in range(200):
            _, writer = await opened.connect()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        async with asyncio.timeout(2):
            assert (await opened.ask("/v1/chat/completions", CHAT)).status == 200


async def test_a_reader_that_stops_is_cut_and_the_engine_freed() -> None:
    """R40: bounded buffer, upstream paused, cut after the bound."""
    sent = 0
    block = b"data: " + b"x" * 65536 + b"\n\n"

    async def flood(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()
            sent += len(block)

    async with open_gateway(flood) as opened:
        reader, writer = await opened.connect()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % (len(CHAT) + 15)
            + CHAT[:-1]
            + b', "stream":true}'[:16].ljust(16)
        )
        await reader.readexactly(1000)
        transport = writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        await opened.until_idle()
        assert opened.peer.left == 1
        # Our buffers, and the kernel's on both connections: nothing that grows with the answer.
        assert sent < 64 * UPSTREAM_BUFFER_BYTES_MAX + 2 * kernel_buffers()


async def test_a_reader_that_stops_before_a_whole_answer_is_cut() -> None:
    """R40: an answer that is ready waits for nobody for ever."""
    async with open_gateway(stream_of(BIG, content_type="application/json")) as opened:
        reader, writer = await opened.connect()
        writer.write(EMBEDDINGS)
        await reader.readexactly(1000)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await opened.until_idle()
        await eventually(lambda: not opened.connections)


async def test_a_reader_that_is_slow_but_reads_gets_its_whole_answer() -> None:
    """R40: only who reads nothing is cut; a large answer over a slow line takes its time."""
    async with open_gateway(stream_of(BIG, content_type="application/json")) as opened:
        reader, writer = await opened.connect()
        writer.write(EMBEDDINGS)
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        for _ in range(15):  # three times as long as who reads nothing may be
            got += len(await reader.readexactly(1_000_000))
            await asyncio.sleep(0.1)
        got += len(await reader.readexactly(len(BIG) - got))
        assert got == len(BIG)
