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
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol

import msgspec

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
        if not endpoint.tls and _is_loopback(endpoint.host):
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

    def keep(self, address: _Address, connection: Connection) -> None:
        """Keeps a connection for the next request, within the pool's bounds."""
        connections = self._idle.setdefault(address, [])
        if len(connections) >= UPSTREAM_IDLE_CONNECTIONS_MAX:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        connections.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)

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
        idle_ms = (asyncio.get_running_loop().time() - connection.idle_since) * 1000
        if connection.streamed and idle_ms < UPSTREAM_CLOSE_NOTICE_MS:
            self.note_closer(address)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = None
        oldest = loop.time() - UPSTREAM_IDLE_MS / 1000
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
            self._sweeper = loop.call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)


class NearCall(msgspec.Struct, eq=False):
    """A request over loopback on a connection of ours."""

    pool: Upstream
    address: _Address
    deadlines: Deadlines
    streamed: bool
    request: bytes
    _connection: Connection | None = None
    _aborted: bool = False
    _released: bool = False
    _is_kept: bool = False
    _followed_stream: bool = False

    @property
    def content_type(self) -> str:
        assert self._connection is not None
        return _media_type(self._connection.headers.get(b"content-type", b""))

    async def head(self) -> int:
        connection = self._connection
        if connection is None:
            connection = self.pool.take_idle(self.address)
            self._is_kept = connection is not None
            connection = self._send(connection or await self._connect())
        while not connection.headers_done:
            if connection.failure is None:
                await connection.changed()
            elif self._may_send_again(connection.failure):
                connection = self._send(await self._connect())
            else:
                raise connection.failure
        if connection.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            connection.abort()
            raise UpstreamFailed(
                "garbled", "the engine compressed its answer although asked not to", received=True
            )
        return connection.status

    def _may_send_again(self, failure: UpstreamFailed) -> bool:
        """The kept connection was closed before a byte of an answer: the engine has seen nothing of the request."""
        if not self._is_kept or failure.kind != "closed" or failure.received or self._aborted:
            return False
        if self._followed_stream:
            self.pool.note_closer(self.address)
        self._is_kept = False
        return True

    async def _connect(self) -> Connection:
        self._connection = None  # so that a caller who was interrupted here can ask for the head again
        connection = await self.pool.connect(self.address, self.deadlines.connect_ms)
        if self._aborted:
            connection.abort()
            raise UpstreamFailed("aborted", "the request to the engine was cut")
        return connection

    def _send(self, connection: Connection) -> Connection:
        self._connection = connection
        self._followed_stream = connection.streamed
        connection.begin(self.request, self.deadlines, streamed=self.streamed)
        return connection

    def take(self) -> bytes | None:
        if self._released:  # the connection may serve another request by now
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
            self._release()
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
        self._aborted = True
        if self._connection is not None and not self._released:
            if self._connection.is_done:
                self._connection.take()
                self._release()
            else:
                self._connection.abort()

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        connection = self._connection
        assert connection is not None
        connection.busy = False
        if connection.keeps_alive and connection.is_usable:
            self.pool.keep(self.address, connection)
            return
        if connection.keeps_alive and self.streamed:
            self.pool.note_closer(self.address)
        connection.close()


def _request(outgoing: Outgoing, *, close: bool) -> bytes:
    """The bytes to send. What does not change between two requests to an engine is made once."""
    endpoint, body, more = outgoing.endpoint, outgoing.body, b""
    head = _head(endpoint.host, endpoint.port, outgoing.method, endpoint.path_prefix + outgoing.path, close)
    if body and "Content-Type" not in outgoing.headers:
        more = b"Content-Type: application/json\r\n"
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
    if host in {"127.0.0.1", "localhost"}:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
