"""Websockets to engines that speak through them: in a turn, both ways, and to the end of either side."""

import asyncio
import base64
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.certificates import write_certificate
from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from watchbill.catalog import ApiKey, Server
from watchbill.engines.base import Endpoint
from watchbill.engines.dial import _trust  # pyright: ignore[reportPrivateUsage]

KEY = base64.b64encode(b"0123456789abcdef").decode()
ACCEPT = base64.b64encode(
    hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
).decode()


class Realtime:
    """An engine that consents to every handshake and says everything back in capitals."""

    def __init__(self, greeting: bytes = b"welcome ") -> None:
        self.greeting = greeting
        self.heads: list[str] = []
        self.open = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            if "upgrade: websocket" not in head.lower():
                writer.write(b"HTTP/1.1 404 -\r\nContent-Length: 0\r\n\r\n")
                return
            told = (
                f"HTTP/1.1 101 -\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\nX-Own: 1\r\n\r\n"
            )
            writer.write(told.encode() + self.greeting)
            while piece := await reader.read(2**16):
                if piece == b"bye":
                    return
                writer.write(piece.upper())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def realtime(
    server: Server | None = None, greeting: bytes = b"welcome ", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[OpenGateway, Realtime]]:
    engine = Realtime(greeting)
    listening = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=tls)
    engine.port = listening.sockets[0].getsockname()[1]
    async with open_gateway(catalog=CATALOG, server=server) as opened:
        opened.engine.endpoint = Endpoint(
            "localhost" if tls else "127.0.0.1", engine.port, tls=tls is not None
        )
        yield opened, engine
        await eventually(lambda: engine.open == 0)
    listening.close()


async def connect(
    opened: OpenGateway, path: str = "/v1/realtime?model=a", **headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    reader, writer = await opened.connect()
    asked = {
        "Host": "127.0.0.1", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13", **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    lines = "".join(f"{name}: {value}\r\n" for name, value in asked.items())
    writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    async with asyncio.timeout(10):
        return reader, writer, (await reader.readuntil(b"\r\n\r\n")).decode()


async def test_bytes_pass_both_ways_in_a_turn() -> None:
    """LANE-01: the handshake is the engine's own, the turn lasts as long as the connection."""
    async with realtime() as (opened, engine):
        reader, writer, head = await connect(opened, "/v1/realtime?model=alias/of-a&voice=x")
        assert head.startswith("HTTP/1.1 101 ") and f"Sec-WebSocket-Accept: {ACCEPT}" in head
        assert "X-Watchbill-Model: a" in head and "X-Own" not in head
        assert "voice=x" in engine.heads[0].splitlines()[0]
        assert await reader.readexactly(8) == b"welcome "
        sent = bytes(range(97, 123)) * 40_000  # more than any buffer holds
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent.upper()
        assert opened.count("running") == 1
        writer.write(b"bye")
        assert await reader.read() == b""
        await opened.until_idle()


async def test_an_engine_behind_tls_is_reached_as_by_every_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: with the same authorities; an engine whose certificate is not trusted gets no handshake."""
    certificate = write_certificate(tmp_path / "localhost.pem")
    certified = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certified.load_cert_chain(certificate)
    _trust.cache_clear()
    try:
        async with realtime(tls=certified) as (opened, engine):
            reader, writer, head = await connect(opened)
            assert head.startswith("HTTP/1.1 502 ") and not engine.heads
            assert b"certificate is refused" in await reader.readuntil(b"}")
            writer.close()
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            _trust.cache_clear()
            reader, writer, head = await connect(opened)
            assert head.startswith("HTTP/1.1 101 ") and await reader.readexactly(8) == b"welcome "
            writer.write(b"bye")
            assert await reader.read() == b""
    finally:
        _trust.cache_clear()


async def test_a_client_that_leaves_frees_the_engine() -> None:
    """R16"""
    async with realtime() as (opened, engine):
        _, writer, _ = await connect(opened)
        await eventually(lambda: opened.count("running") == 1)
        writer.transport.abort()
        await opened.until_idle()
        await eventually(lambda: engine.open == 0)


async def test_a_lanes_timeout_ends_it() -> None:
    """LANE-07: no turn lasts for ever."""
    async with realtime() as (opened, _):
        reader, _, head = await connect(opened, "/lane/brief/v1/realtime?model=a")
        assert " 101 " in head
        async with asyncio.timeout(10):
            assert await reader.read() == b"welcome "
        await opened.until_idle()


async def test_the_key_of_a_browser_stays_here() -> None:
    """R44: the key that opens our door is not shown to an engine."""
    async with realtime(Server(keys=(ApiKey("me", "k" * 16),))) as (opened, engine):
        secret = "k" * 16
        _, writer, head = await connect(
            opened,
            Sec_WebSocket_Protocol=f"realtime, openai-insecure-api-key.{secret}",
        )
        assert " 101 " in head and secret not in engine.heads[0]
        assert "Sec-WebSocket-Protocol: realtime\r\n" in engine.heads[0]
        writer.close()
        _, _, refused = await connect(opened)
        assert " 401 " in refused


# ------------------------------------------------------------------ tokens of a key

COUNTED = Server(keys=(ApiKey("me", "k" * 16, tokens_per_minute=1_000),))
MINE = {"Authorization": f"Bearer {'k' * 16}"}
CLOSED = b"\x88\x2b\x03\xf0tokens_per_minute of this key are used up"
FRAMES = {
    "short": b"\x81\x7d" + b"a" * 125,
    "longer": b"\x81\x7e\x03\xe8" + b"b" * 1_000,
    "long": b"\x82\x7f" + (100_000).to_bytes(8, "big") + b"c" * 100_000,
    "empty": b"\x81\x00",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
async def test_a_websocket_ends_between_two_frames_when_the_tokens_of_its_key_are_used_up(
    frame: bytes,
) -> None:
    """LANE-08: what an engine says counts; the next request of the key is refused, that of another is not."""
    said = frame * (200_000 // len(frame) + 1)
    async with realtime(COUNTED, said) as (opened, _):
        reader, _, head = await connect(opened, **MINE)
        assert " 101 " in head
        async with asyncio.timeout(10):
            heard = await reader.read(-1)
        whole, is_closed = heard.removesuffix(CLOSED), heard.endswith(CLOSED)
        assert is_closed and len(whole) % len(frame) == 0 and 4_000 <= len(whole) < len(said)
        assert said.startswith(whole)
        assert " 429 " in (await connect(opened, **MINE))[2]
        asked = await opened.ask("/v1/chat/completions", {"model": "a", "messages": []}, headers=MINE)
        assert (asked.status, asked.code) == (429, "lane_full")
        await opened.until_idle()


async def test_what_a_client_says_through_a_websocket_counts() -> None:
    """LANE-08: also while its engine is silent."""
    async with realtime(COUNTED, b"") as (opened, engine):
        reader, writer, _ = await connect(opened, **MINE)
        writer.write(b"\x82\xfe\x13\x88mask" + b"x" * 5_000)
        async with asyncio.timeout(10):
            assert (await reader.read(-1)).endswith(CLOSED)
        await eventually(lambda: engine.open == 0)


async def test_an_endless_frame_is_cut_off() -> None:
    """R34: its end is not waited for."""
    endless = b"\x82\x7f" + (2**40).to_bytes(8, "big") + b"x" * 1_000_000
    async with realtime(COUNTED, endless) as (opened, _):
        reader, _, _ = await connect(opened, **MINE)
        async with asyncio.timeout(10):
            heard = await reader.read(-1)
        assert len(heard) < 500_000 and not heard.endswith(CLOSED)


async def test_what_is_only_read_is_within_the_bounds_of_its_key() -> None:
    """LANE-08: every request that reaches the scheduler is."""
    one = Server(keys=(ApiKey("me", "k" * 16, requests_max=1),))
    async with realtime(one) as (opened, _):
        _, writer, head = await connect(opened, **MINE)
        assert " 101 " in head
        assert (await opened.ask("/props?model=a", headers=MINE)).status == 429
        writer.close()
        await opened.until_idle()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/realtime", 400), ("/v1/realtime?model=nope", 404), ("/v1/models", 200), ("/v1/other", 404)],
)
async def test_other_addresses_pass_over_the_proposal(path: str, status: int) -> None:
    """LANE-01: as before, plain HTTP."""
    async with realtime() as (opened, _):
        _, _, head = await connect(opened, path)
        assert head.startswith(f"HTTP/1.1 {status} ")


async def test_the_address_without_a_websocket_says_what_it_is() -> None:
    """LANE-01"""
    async with realtime() as (opened, _):
        answer = await opened.ask("/v1/realtime?model=a")
        assert answer.status == 400 and "websocket" in str(answer.json["error"])
