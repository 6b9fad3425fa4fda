"""Websockets, carried to engines that speak through them: realtime servers of speech.

The request waits for its turn like any other; then its handshake goes to the engine, and after the engine's consent
bytes pass both ways, unread, until one side ends, the lane's `timeout` is over, or the model must leave. The turn lasts
as long. A caller that leaves frees the engine; one that reads slowly slows it down. The key that a browser has to put
into the handshake stays here.

Both ways count for the `tokens_per_minute` of the caller's key, a token for each BYTES_PER_TOKEN bytes: sounds, masks
and compression leave nothing else to count by. When they are used up, the connection ends with the close code 1008,
between two frames. Nothing tells what a websocket costs: none goes to an external tier, which has a daily limit.
"""

import asyncio
import contextlib
import re
from urllib.parse import urlencode

import msgspec

from watchbill.catalog import Reach
from watchbill.engines.base import Endpoint
from watchbill.engines.connection import UpstreamFailed
from watchbill.engines.dial import Address, dial_streams
from watchbill.engines.limits import UPSTREAM_CONNECT_MS, UPSTREAM_HEAD_BYTES_MAX
from watchbill.errors import EngineFailed, NotOffered, RequestError, TierClosed
from watchbill.gateway.access import BROWSER_KEY
from watchbill.gateway.http.messages import Answer, Request, Tunnel
from watchbill.gateway.limits import (
    WEBSOCKET_BUFFER_BYTES_MAX,
    WEBSOCKET_CLOSE_MS,
    WEBSOCKET_HANDSHAKE_MS,
    WEBSOCKET_PIECE_BYTES,
)
from watchbill.gateway.meters import BYTES_PER_TOKEN, MeteredRequest
from watchbill.gateway.model_calls import ModelCalls
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.websocket_frames import POLICY_VIOLATION, FrameEnds, close_frame
from watchbill.runtime.ticket import Start

__all__ = ["WebsocketApi"]

_ASKED = ("sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions")
_TOLD = frozenset({"sec-websocket-accept", "sec-websocket-protocol", "sec-websocket-extensions"})
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class WebsocketApi:
    """Serves /v1/realtime."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = ModelCalls(services)

    async def realtime(self, context: RequestContext) -> Answer:
        """GET /v1/realtime?model=NAME, as a websocket."""
        request, services = context.request, self._services
        if not request.wants_websocket:
            raise RequestError("this address is a websocket; connect with wss:// or ws://")
        await services.bodies.read(context)  # there is none; the bounds of the key are checked
        query = request.query
        fields: dict[str, object] = {"model": query.get("model")}
        submission = services.caller_options.submission(context, fields, services.driver.catalog)
        kept = msgspec.structs.replace(submission, reach=max(submission.reach, Reach.PRIVATE))
        tunnel = Tunnel(request)

        async def carry(start: Start) -> None:
            await _Carrying(context, start, query).run(tunnel)

        try:
            await self._calls.hold(context, kept, carry)
        except TierClosed as error:
            if kept.reach is submission.reach:
                raise
            text = "a websocket is not carried to an external tier, because nothing tells what it costs"
            raise TierClosed(f"{error}; {text}", retry_after_ms=error.retry_after_ms) from None
        return tunnel


class _Carrying:
    """One websocket on its way."""

    def __init__(self, context: RequestContext, start: Start, query: dict[str, str]) -> None:
        self._context = context
        self._endpoint = start.endpoint
        self._query = {**query, "model": start.endpoint.upstream_model or query["model"]}
        self._from_client = bytearray()
        self._news = asyncio.Event()
        self._passed = _Passed(context.metered)
        self._to_client_ends = FrameEnds()

    async def run(self, tunnel: Tunnel) -> None:
        """Shakes hands and carries bytes until one side ends. Raises EngineFailed, NotOffered."""
        reader, writer = await self._connect()
        try:
            head, rest = await self._shake_hands(reader, writer)
            await tunnel.open(head, self._hear)
            await tunnel.write(rest)
            await self._carry(tunnel, reader, writer)
            if self._passed.is_spent:
                await self._close(tunnel, reader)
        except OSError as error:
            raise EngineFailed(f"the engine's websocket broke off: {error}") from None
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = Address(self._endpoint.host, self._endpoint.port, self._endpoint.tls)
        try:
            return await dial_streams(address, UPSTREAM_CONNECT_MS, UPSTREAM_HEAD_BYTES_MAX)
        except UpstreamFailed as error:
            raise EngineFailed(str(error)) from None

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[bytes, bytes]:
        """The head of the engine's consent, as the client gets it, and what came behind it."""
        writer.write(_handshake(self._context.request, self._endpoint, self._query))
        try:
            async with asyncio.timeout(WEBSOCKET_HANDSHAKE_MS / 1000):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise EngineFailed(f"the engine does not answer the handshake of a websocket: {error}") from None
        status = _STATUS.match(head)
        if status is None or status[1] != b"101":
            told = "" if status is None else f": it answers {status[1].decode()}"
            raise NotOffered(f"the engine of {self._context.model} has no websocket at this address{told}")
        return _consent(head, self._context.lines()), b""

    def _hear(self, data: bytes) -> bool:
        """Takes bytes of the client; whether more may come."""
        self._from_client += data
        self._news.set()
        return len(self._from_client) < WEBSOCKET_BUFFER_BYTES_MAX

    async def _carry(
        self, tunnel: Tunnel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        down = asyncio.ensure_future(self._to_client(tunnel, reader))
        up = asyncio.ensure_future(self._to_engine(tunnel, writer))
        try:
            await asyncio.wait((down, up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (down, up):
                task.cancel()
            await asyncio.gather(down, up, return_exceptions=True)

    async def _to_client(self, tunnel: Tunnel, reader: asyncio.StreamReader) -> None:
        while not self._passed.is_spent and (piece := await reader.read(WEBSOCKET_PIECE_BYTES)):
            await self._tell(tunnel, piece)

    async def _tell(self, tunnel: Tunnel, piece: bytes) -> None:
        if self._passed.is_counted:
            self._passed.count(len(piece))
            self._to_client_ends.feed(piece)
        await tunnel.write(piece)
        if self._passed.is_counted:
            await asyncio.sleep(0)  # thousands of tiny frames are a turn's work

    async def _close(self, tunnel: Tunnel, reader: asyncio.StreamReader) -> None:
        """Says why it ends, after the frame that was begun. One that is large or late is cut off without a word."""
        ends = self._to_client_ends
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WEBSOCKET_CLOSE_MS / 1000):
                while not ends.is_between and ends.left <= WEBSOCKET_BUFFER_BYTES_MAX:
                    if not (piece := await reader.read(ends.left or 1)):
                        return
                    await self._tell(tunnel, piece)
        if ends.is_between:
            await tunnel.write(close_frame(POLICY_VIOLATION, "tokens_per_minute of this key are used up"))

    async def _to_engine(self, tunnel: Tunnel, writer: asyncio.StreamWriter) -> None:
        while not self._passed.is_spent:
            await self._news.wait()
            self._news.clear()
            data, self._from_client = bytes(self._from_client), bytearray()
            self._passed.count(len(data))
            writer.write(data)
            await writer.drain()
            tunnel.go_on()


class _Passed:
    """What passed both ways, as tokens of the caller's key."""

    def __init__(self, metered: MeteredRequest | None) -> None:
        self._metered = metered if metered is not None and metered.is_counted else None
        self.is_counted = self._metered is not None
        self._rest = 0  # bytes that make no whole token yet

    @property
    def is_spent(self) -> bool:
        """Whether the key has used up its tokens."""
        return self._metered is not None and self._metered.is_spent

    def count(self, size: int) -> None:
        """Counts bytes."""
        if self._metered is not None:
            tokens, self._rest = divmod(self._rest + size, BYTES_PER_TOKEN)
            self._metered.spend(tokens)


def _handshake(request: Request, endpoint: Endpoint, query: dict[str, str]) -> bytes:
    path = request.target.partition("?")[0]
    if path.startswith("/lane/"):
        path = "/" + path.removeprefix("/lane/").partition("/")[2]
    lines = [
        f"GET {endpoint.path_prefix}{path}?{urlencode(query)} HTTP/1.1",
        f"Host: {endpoint.host}:{endpoint.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
    ]
    lines += [f"{name}: {request.headers[name]}" for name in _ASKED if name in request.headers]
    offered = request.headers.get("sec-websocket-protocol", "")
    protocols = [
        each for each in map(str.strip, offered.split(",")) if each and not each.startswith(BROWSER_KEY)
    ]
    lines += [f"Sec-WebSocket-Protocol: {', '.join(protocols)}"] if protocols else []
    lines += endpoint.about
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def _consent(head: bytes, own: str) -> bytes:
    told = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    for line in head.decode("latin-1").split("\r\n")[1:-2]:
        name, _, value = line.partition(":")
        if name.strip().lower() in _TOLD:
            told.append(f"{name.strip()}: {value.strip()}")
    return ("\r\n".join(told) + "\r\n" + own + "\r\n").encode("latin-1")
