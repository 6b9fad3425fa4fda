"""The way to an engine: requests over HTTP/1.1, whole or streamed, that can be cut at any moment.

    call = upstream.call(Outgoing(endpoint, "POST", "/v1/chat/completions", body), streamed=True)
    try:
        head = await call.head()
        while piece := await call.chunk():
            ...
    finally:
        call.abort()        # does nothing after the end of the answer

Owns the pool of idle connections. Addresses come from an Endpoint only, that is from the config or from our
own port choice. Loopback is spoken to by our own lean client; anything else, and TLS, by aiohttp's
(`engines.far`). Every failure is UpstreamFailed. A request is sent a second time in one case only: a kept
connection turned out to be closed, and not a byte of an answer had come.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol

from watchbill.engines.connection import Connection, Deadlines, Outgoing, UpstreamFailed
from watchbill.engines.far import FarCall, FarSession
from watchbill.limits import (
    UPSTREAM_ANSWER_BYTES_MAX,
    UPSTREAM_CLOSE_NOTICE_MS,
    UPSTREAM_IDLE_CONNECTIONS_MAX,
    UPSTREAM_IDLE_MS,
    UPSTREAM_MEMORY_MAX,
)

__all__ = ["Call", "Deadlines", "Outgoing", "Reply", "Upstream", "UpstreamFailed"]

_Address = tuple[str, int]

_LOOPBACK = frozenset({"127.0.0.1", "localhost"})
#: What an answer may say that is not compressed.
_UNCOMPRESSED = frozenset({b"", b"identity"})
_IS_JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class Call(Protocol):
    """One request on its way, and its answer."""

    @property
    def content_type(self) -> str:
        """The answer's media type, lower case, without parameters."""
        ...

    async def head(self) -> int:
        """Sends the request and returns the answer's status. Raises UpstreamFailed.

        A caller who stops waiting (a timeout of its own) may call again: nothing is sent twice."""
        ...

    def take(self) -> bytes | None:
        """What has come already: a piece, nothing at the answer's end, None for who has to wait in `chunk`."""
        ...

    async def chunk(self) -> bytes:
        """The next piece of the answer, empty at its end. Raises UpstreamFailed when it breaks off."""
        ...

    async def read(self, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX) -> bytes:
        """The whole rest of the answer. Raises UpstreamFailed, also when it is larger than the limit."""
        ...

    def abort(self) -> None:
        """Cuts the request wherever it is; whoever waits gets UpstreamFailed. Does nothing after the end."""
        ...


class Upstream:
    """Every request of this process to engines goes through one of these."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.deadlines = deadlines or Deadlines()
        self._idle: dict[_Address, list[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._far: FarSession | None = None
        #: Engines that close the connection after a streamed answer although they announced otherwise
        #: (llama.cpp does): they are asked with `Connection: close`, which spares every second request
        #: a retry.
        self._closers: dict[_Address, None] = {}

    def call(self, outgoing: Outgoing, *, streamed: bool = False, deadlines: Deadlines | None = None) -> Call:
        """Prepares a request; nothing is sent before `head`."""
        deadlines = deadlines or self.deadlines
        endpoint = outgoing.endpoint
        if not endpoint.tls and (endpoint.host in _LOOPBACK or _is_loopback(endpoint.host)):
            address = (endpoint.host, endpoint.port)
            request = _request(outgoing, close=streamed and address in self._closers)
            return NearCall(self, address, deadlines, streamed, request)
        if self._far is None:
            self._far = FarSession()
        return FarCall(self._far, outgoing, deadlines)

    async def fetch(
        self, outgoing: Outgoing, *, timeout_ms: int, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX
    ) -> Reply:
        """A small request and its whole answer, for health checks and probes. Raises UpstreamFailed."""
        deadlines = Deadlines(min(timeout_ms, self.deadlines.connect_ms), timeout_ms, timeout_ms)
        call = self.call(outgoing, deadlines=deadlines)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                status = await call.head()
                return Reply(status, call.content_type, await call.read(limit_bytes))
        except TimeoutError:
            raise UpstreamFailed("timeout", f"no whole answer within {timeout_ms} ms") from None
        finally:
            call.abort()

    async def close(self) -> None:
        """Ends every idle connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        if self._far is not None:
            await self._far.close()
            self._far = None

    # ------------------------------------------------------------------ the pool, for NearCall

    def note_closer(self, address: _Address) -> None:
        """Remembers that this engine closes a connection after a streamed answer."""
        if len(self._closers) >= UPSTREAM_MEMORY_MAX:
            del self._closers[next(iter(self._closers))]
        self._closers[address] = None

    def take_idle(self, address: _Address) -> Connection | None:
        """A kept connection that is still open, the youngest first."""
        connections = self._idle.get(address)
        while connections:
            connection = connections.pop()
            if connection.is_usable:
                return connection
        return None

    def release(self, address: _Address, connection: Connection) -> None:
        """Takes a connection back after an answer: keeps it for the next request, within the pool's bounds."""
        if not connection.keeps_alive or connection.failure is not None:
            if connection.keeps_alive and connection.streamed:
                self.note_closer(address)
            connection.close()
            return
        connections = self._idle.get(address)
        if connections is None:
            connections = self._idle[address] = []
        elif len(connections) >= UPSTREAM_IDLE_CONNECTIONS_MAX:
            connection.close()
            return
        connection.is_kept = True
        connection.idle_since = time.monotonic()
        connections.append(connection)
        if self._sweeper is None:
            self._sweep_later()

    async def connect(self, address: _Address, connect_ms: int) -> Connection:
        """Opens a connection. Raises UpstreamFailed."""
        loop = asyncio.get_running_loop()

        def lost(connection: Connection) -> None:
            self._lost(address, connection)

        try:
            async with asyncio.timeout(connect_ms / 1000):
                _, connection = await loop.create_connection(lambda: Connection(loop, lost), *address)
        except TimeoutError:
            raise UpstreamFailed("timeout", "the engine does not accept connections") from None
        except OSError as error:
            # Every errno means the same to the caller: the engine is not there. The text says which it was.
            raise UpstreamFailed(
                "connect", f"the engine cannot be reached: {error.strerror or error}"
            ) from None
        return connection

    def _lost(self, address: _Address, connection: Connection) -> None:
        connections = self._idle.get(address)
        if connections is None or connection not in connections:
            return
        connections.remove(connection)
        idle_ms = (time.monotonic() - connection.idle_since) * 1000
        if connection.streamed and idle_ms < UPSTREAM_CLOSE_NOTICE_MS:
            self.note_closer(address)

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = time.monotonic() - UPSTREAM_IDLE_MS / 1000
        for address, connections in list(self._idle.items()):
            young = [connection for connection in connections if connection.idle_since > oldest]
            stale = [connection for connection in connections if connection.idle_since <= oldest]
            if young:
                self._idle[address] = young
            else:
                del self._idle[address]
            for connection in stale:
                connection.close()
        if self._idle:
            self._sweep_later()


class NearCall:
    """A request over loopback on a connection of ours."""

    __slots__ = (
        "_aborted", "_address", "_connection", "_deadlines", "_pool", "_released", "_request", "_streamed",
        "content_type",
    )  # fmt: skip

    def __init__(
        self, pool: Upstream, address: _Address, deadlines: Deadlines, streamed: bool, request: bytes
    ) -> None:
        self._pool = pool
        self._address = address
        self._deadlines = deadlines
        self._streamed = streamed
        self._request = request
        self._connection: Connection | None = None
        self._aborted = False
        self._released = False  # the connection may serve another request by now
        self.content_type = ""

    async def head(self) -> int:
        connection = self._connection
        if connection is None:
            connection = self._send(self._pool.take_idle(self._address) or await self._connect())
        while not connection.status:
            if connection.failure is None:
                await connection.changed()
            elif self._may_send_again(connection, connection.failure):
                connection = self._send(await self._connect())
            else:
                raise connection.failure
        headers = connection.headers
        if b"content-encoding" in headers and headers[b"content-encoding"] not in _UNCOMPRESSED:
            connection.abort()
            raise UpstreamFailed(
                "garbled", "the engine compressed its answer although asked not to", received=True
            )
        self.content_type = _media_type(headers.get(b"content-type", b""))
        return connection.status

    def _may_send_again(self, connection: Connection, failure: UpstreamFailed) -> bool:
        """The kept connection was closed before a byte of an answer: the engine has seen nothing of the request."""
        if not connection.is_kept or failure.kind != "closed" or failure.received or self._aborted:
            return False
        if connection.followed_stream:
            self._pool.note_closer(self._address)
        return True

    async def _connect(self) -> Connection:
        self._connection = None  # so that a caller who was interrupted here can ask for the head again
        connection = await self._pool.connect(self._address, self._deadlines.connect_ms)
        if self._aborted:
            connection.abort()
            raise UpstreamFailed("aborted", "the request to the engine was cut")
        return connection

    def _send(self, connection: Connection) -> Connection:
        self._connection = connection
        connection.begin(self._request, self._deadlines, streamed=self._streamed)
        return connection

    def take(self) -> bytes | None:
        if self._released:
            return b""
        connection = self._connection
        assert connection is not None
        if connection.pieces:
            piece = connection.take()
        elif connection.is_done:
            piece = b""
        elif connection.failure is not None:
            raise connection.failure
        else:
            return None
        if connection.is_done:
            self._released = True
            self._pool.release(self._address, connection)
        return piece

    async def chunk(self) -> bytes:
        assert self._connection is not None
        while (piece := self.take()) is None:
            await self._connection.changed()
        return piece

    async def read(self, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await self.chunk():
            size += len(piece)
            if size > limit_bytes:
                self.abort()
                raise UpstreamFailed(
                    "too_large", f"the engine's answer exceeds {limit_bytes} bytes", received=True
                )
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def abort(self) -> None:
        if self._released:
            return
        self._aborted = True
        connection = self._connection
        if connection is None:
            return
        if connection.is_done:
            connection.take()
            self._released = True
            self._pool.release(self._address, connection)
        else:
            connection.abort()


def _request(outgoing: Outgoing, *, close: bool) -> bytes:
    """The bytes to send. What does not change between two requests to an engine is made once."""
    endpoint, body = outgoing.endpoint, outgoing.body
    head = _head(endpoint.host, endpoint.port, outgoing.method, endpoint.path_prefix + outgoing.path, close)
    more = _IS_JSON if body else b""
    if outgoing.headers:
        more = b"" if "Content-Type" in outgoing.headers else more
        for name, value in outgoing.headers.items():
            more += _checked(f"{name}: {value}\r\n", 1)
    return b"%bContent-Length: %d\r\n%b\r\n%b" % (head, len(body), more, body)


@lru_cache(maxsize=UPSTREAM_MEMORY_MAX)
def _head(host: str, port: int, method: str, path: str, close: bool) -> bytes:
    name = f"[{host}]" if ":" in host else host
    return _checked(
        f"{method} {path} HTTP/1.1\r\nHost: {name}:{port}\r\nAccept-Encoding: identity\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n",
        4,
    )


def _checked(lines: str, count: int) -> bytes:
    """Paths and headers are ours, never a client's; a line break in one would be a second request."""
    assert lines.count("\r") == lines.count("\n") == count
    return lines.encode("latin-1")


@lru_cache(maxsize=UPSTREAM_MEMORY_MAX)
def _media_type(value: bytes) -> str:
    return value.split(b";")[0].strip().lower().decode("latin-1")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
