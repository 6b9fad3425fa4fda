"""The client for engines: requests over HTTP/1.1, plain or TLS, whole or streamed, that can be cut at any moment.

    call = upstream.call(Outgoing(endpoint, "POST", "/v1/chat/completions", body), streamed=True)
    try:
        status = await call.head()
        while piece := await call.chunk():
            ...
    finally:
        call.abort()        # does nothing after the end of the answer

Owns one `ConnectionPool` for each address. Addresses come from an Endpoint only, that is from the config or from our
own port choice. Redirects are never followed, proxies of the environment never used, answers never decompressed. Every
failure is UpstreamFailed. A request is sent a second time in one case only: a kept connection turned out to be closed
before a byte of an answer came.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache

from watchbill import __version__
from watchbill.engines.base import Endpoint
from watchbill.engines.connection import (
    Connection,
    Deadlines,
    FailureKind,
    Outgoing,
    UpstreamFailed,
    is_timeout,
)
from watchbill.engines.dial import Address, dial
from watchbill.engines.limits import (
    UPSTREAM_ANSWER_BYTES_MAX,
    UPSTREAM_CLOSE_NOTICE_MS,
    UPSTREAM_IDLE_CONNECTIONS_MAX,
    UPSTREAM_IDLE_MS,
    UPSTREAM_MEMORY_MAX,
    UPSTREAM_PIECE_BYTES_MAX,
)

__all__ = [
    "Call",
    "Deadlines",
    "FailureKind",
    "Outgoing",
    "Reply",
    "Upstream",
    "UpstreamFailed",
    "is_timeout",
]

#: What an answer may say that is not compressed.
_UNCOMPRESSED = frozenset({b"", b"identity"})
#: The longest wait that an engine may ask for, and the digits of one that is read.
_RETRY_S_MAX = 86_400
_RETRY_DIGITS_MAX = 18
_IS_JSON = b"Content-Type: application/json\r\n"
_DEFAULT_PORTS = {False: 80, True: 443}  # by whether it is TLS


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class Upstream:
    """Sends requests to engines."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.deadlines = deadlines or Deadlines()
        self._pools: dict[tuple[str, int, bool], ConnectionPool] = {}

    def call(
        self, outgoing: Outgoing, *, streamed: bool = False, deadlines: Deadlines | None = None
    ) -> "Call":
        """Prepares a request; `poll` or `head` sends it."""
        endpoint = outgoing.endpoint
        pool = self._pools.get((endpoint.host, endpoint.port, endpoint.tls)) or self._add_pool(endpoint)
        request = _request(outgoing, close=streamed and pool.closes)
        return Call(pool, deadlines or self.deadlines, streamed, request)

    def _add_pool(self, endpoint: Endpoint) -> "ConnectionPool":
        if len(self._pools) >= UPSTREAM_MEMORY_MAX:
            self._pools.pop(next(iter(self._pools))).close()
        address = Address(endpoint.host, endpoint.port, endpoint.tls)
        pool = self._pools[address] = ConnectionPool(address)
        return pool

    async def fetch(
        self, outgoing: Outgoing, *, timeout_ms: int, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX
    ) -> Reply:
        """Sends a small request and returns its whole answer. Raises UpstreamFailed."""
        deadlines = Deadlines(min(timeout_ms, self.deadlines.connect_ms), timeout_ms, timeout_ms)
        call = self.call(outgoing, deadlines=deadlines)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                status = await call.head()
                return Reply(status, call.content_type, await call.read(limit_bytes))
        except TimeoutError:
            raise UpstreamFailed(FailureKind.TIMEOUT, f"no whole answer within {timeout_ms} ms") from None
        finally:
            call.abort()

    async def close(self) -> None:
        """Ends every idle connection."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


class Call:
    """One request to an engine, and its answer.

        call.poll()          0 until the answer's head is there; the first poll sends the request
        call.take()          None until a piece is there, nothing at the answer's end
        await call.changed() waits for either; the next poll or take tells what went wrong

    `head`, `chunk` and `read` do the waiting for callers with nothing else to do. A caller that stops waiting (a
    timeout of its own) may go on later: nothing is sent twice. Every failure is UpstreamFailed.
    """

    __slots__ = (
        "_connection", "_deadlines", "_failure", "_is_again", "_pool", "_request", "_streamed", "content_type",
        "has_ended",
    )  # fmt: skip

    def __init__(
        self, pool: "ConnectionPool", deadlines: Deadlines, streamed: bool, request: bytes | tuple[bytes, ...]
    ) -> None:
        self._pool = pool
        self._deadlines = deadlines
        self._streamed = streamed
        self._request = request
        self._connection: Connection | None = None
        self._failure: UpstreamFailed | None = None  # where no connection has one
        #: Whether the next connection is a new one: a kept one was closed before a byte of an answer.
        self._is_again = False
        #: Whether the whole answer came; its connection may serve another request by now.
        self.has_ended = False
        #: The answer's media type, lower case, without parameters; known with its status.
        self.content_type = ""

    def poll(self) -> int:
        """The answer's status, 0 while there is none. Raises UpstreamFailed."""
        if self._failure is not None:
            raise self._failure
        connection = self._connection
        if connection is None:
            self._send_at_once()
            return 0
        if not connection.status:
            if connection.failure is not None:
                self._send_again(connection, connection.failure)
            return 0
        headers = connection.headers
        if b"content-encoding" in headers and headers[b"content-encoding"] not in _UNCOMPRESSED:
            connection.abort()
            raise UpstreamFailed(
                FailureKind.GARBLED, "the engine compressed its answer although asked not to", received=True
            )
        self.content_type = _media_type(headers.get(b"content-type", b""))
        return connection.status

    @property
    def retry_after_ms(self) -> int | None:
        """When the engine wants to be asked again, if it says so."""
        headers = {} if self._connection is None else self._connection.headers
        return _wait_ms(headers.get(b"retry-after", b""), headers.get(b"date", b""))

    @property
    def waited_ms(self) -> int | None:
        """How long the Watchbill that answers says the request waited there; None while it does not say so."""
        told = b"" if self._connection is None else self._connection.headers.get(b"x-watchbill-wait-ms", b"")
        return int(told) if told.isdigit() and len(told) <= _RETRY_DIGITS_MAX else None

    @property
    def is_private(self) -> bool:
        """Whether the Watchbill that answers has counted the request as private."""
        return self._connection is not None and b"x-watchbill-private" in self._connection.headers

    @property
    def is_closing(self) -> bool:
        """Whether the Watchbill that answers shuts down."""
        return self._connection is not None and b"x-watchbill-closing" in self._connection.headers

    def _send_at_once(self) -> None:
        """Sends the request if there is a kept connection; else `news` opens one."""
        if not self._is_again and (kept := self._pool.take()) is not None:
            self._connection = kept
            kept.begin(self._request, self._deadlines, streamed=self._streamed)

    def _send_again(self, connection: Connection, failure: UpstreamFailed) -> None:
        """A kept connection was closed before a byte of an answer: the engine has seen nothing of the request."""
        if not connection.is_kept or failure.kind is not FailureKind.CLOSED or failure.received:
            raise failure
        if connection.followed_stream:
            self._pool.closes = True
        self._connection, self._is_again = None, True

    def changed(self) -> Awaitable[None]:
        """Waits for a head, a piece, the end or a failure. One caller waits at a time."""
        connection = self._connection
        return self._connect() if connection is None else connection.changed()

    async def _connect(self) -> None:
        if self._failure is not None:
            return
        try:
            connection = await self._pool.connect(self._deadlines.connect_ms)
        except UpstreamFailed as error:
            self._failure = error
            return
        if self._failure is not None:
            connection.abort()
            return
        self._connection = connection
        connection.begin(self._request, self._deadlines, streamed=self._streamed)

    def take(self) -> bytes | None:
        """What has come: a piece, nothing at the answer's end, None while there is neither. Raises UpstreamFailed when
        the answer breaks off."""
        if self._failure is not None:  # also when all of it was there: its connection may serve another call
            raise self._failure
        if self.has_ended:
            return b""
        connection = self._connection
        assert connection is not None
        if connection.pieces:
            if connection.has_had_share:
                return None
            piece = connection.take()
        elif connection.is_done:
            piece = b""
        elif connection.failure is not None:
            raise connection.failure
        else:
            return None
        if connection.is_done and not connection.pieces:
            self._release(connection)
        return piece

    def _release(self, connection: Connection) -> None:
        self.has_ended = True
        self._pool.keep(connection)

    def abort(self) -> None:
        """Cuts the request wherever it is; a waiting caller gets UpstreamFailed. Does nothing after the end."""
        if self.has_ended:
            return
        self._failure = UpstreamFailed(FailureKind.ABORTED, "the request to the engine was cut")
        connection = self._connection
        if connection is None:
            return
        if connection.is_done:
            connection.drop()
            self._release(connection)
        else:
            self._pool.part(connection)

    @property
    def was_sent(self) -> bool:
        """Whether there was a connection that took the request."""
        return self.has_ended or self._connection is not None

    @property
    def has_spoken(self) -> bool:
        """Whether a byte of the answer came."""
        return self.has_ended or (self._connection is not None and self._connection.has_spoken)

    @property
    def silent_ms(self) -> int:
        """How long the engine has said nothing, or had when the request was cut."""
        return 0 if self.has_ended or self._connection is None else self._connection.silent_ms

    def on_let_go(self, tell: Callable[[bool], None]) -> bool:
        """After `abort`: calls `tell` when the engine no longer works on the request, with whether that is known or
        only the bound is over. False when there is nothing to wait for."""
        return not self.has_ended and self._connection is not None and self._connection.on_let_go(tell)

    # ------------------------------------------------------------------ for callers that only wait

    async def head(self) -> int:
        """Waits for the answer's status."""
        while not (status := self.poll()):
            await self.changed()
        return status

    async def chunk(self) -> bytes:
        """Waits for the next piece of the answer, empty at its end."""
        while (piece := self.take()) is None:
            await self.changed()
        return piece

    async def read(self, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX) -> bytes:
        """The whole rest of the answer. Raises UpstreamFailed, also when it is larger than the limit."""
        body = bytearray()
        while piece := await self.chunk():
            body += piece
            if len(body) > limit_bytes:
                self.abort()
                raise UpstreamFailed(
                    FailureKind.TOO_LARGE, f"the engine's answer exceeds {limit_bytes} bytes", received=True
                )
        return bytes(body)


# ------------------------------------------------------------------ connections that are kept


class ConnectionPool:
    """The connections to one address that are kept, and those whose engine has not let go of a cut request yet.

    A connection is kept after a whole answer, within the pool's bound, for a few seconds. One that the engine has
    closed is never given out.
    """

    __slots__ = ("_address", "_idle", "_parting", "_sweeper", "closes")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._parting: set[Connection] = set()  # each leaves within `UPSTREAM_LET_GO_MS`
        self._sweeper: asyncio.TimerHandle | None = None
        #: The engine closes the connection after a streamed answer although it announced otherwise (llama.cpp does):
        #: it is asked with `Connection: close`, which spares every second request a retry.
        self.closes = False

    def take(self) -> Connection | None:
        """A kept connection that is still open, the youngest first."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_serve():
                return connection
        return None

    def keep(self, connection: Connection) -> None:
        """Takes a connection back after an answer, for the next request."""
        if not connection.keeps_alive or connection.failure is not None:
            if connection.keeps_alive and connection.streamed:
                self.closes = True
            connection.close()
        elif len(self._idle) >= UPSTREAM_IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            connection.is_kept = True
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._sweeper is None:
                self._sweep_later()

    def part(self, connection: Connection) -> None:
        """Cuts the request on a connection; the connection goes when its engine has let go."""
        self._parting.add(connection)
        connection.part()
        if not connection.can_part:
            self._parting.discard(connection)

    def close(self) -> None:
        """Ends every connection that serves no request."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for connection in list(self._parting):
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._parting.discard(connection)
        if connection not in self._idle:
            return
        self._idle.remove(connection)
        idle_ms = (time.monotonic() - connection.idle_since) * 1000
        if connection.streamed and idle_ms < UPSTREAM_CLOSE_NOTICE_MS:
            self.closes = True

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = time.monotonic() - UPSTREAM_IDLE_MS / 1000
        stale = [connection for connection in self._idle if connection.idle_since <= oldest]
        self._idle = [connection for connection in self._idle if connection.idle_since > oldest]
        for connection in stale:
            connection.close()
        if self._idle:
            self._sweep_later()

    async def connect(self, connect_ms: int) -> Connection:
        """Opens a connection. Raises UpstreamFailed."""
        return await dial(self._address, connect_ms, self._lost)


# ------------------------------------------------------------------ what is sent


def _request(outgoing: Outgoing, *, close: bool) -> bytes | tuple[bytes, ...]:
    """The bytes to send; a large request stays in pieces. What two requests to an engine share is made once."""
    endpoint, body, rest = outgoing.endpoint, outgoing.body, outgoing.rest
    path = endpoint.path_prefix + outgoing.path
    address = (endpoint.host, endpoint.port, endpoint.tls)
    # Nearly always none: an engine of this machine.
    is_plain = not (endpoint.key or endpoint.lease or endpoint.private or endpoint.passed)
    about = () if is_plain else endpoint.about
    head = _head(address, outgoing.method, path, about, close=close)
    more = _IS_JSON if body else b""
    if outgoing.headers:
        more = b"" if "Content-Type" in outgoing.headers else more
        for name, value in outgoing.headers.items():
            more += _checked(f"{name}: {value}\r\n", 1)
    size = len(body) + sum(map(len, rest)) if rest else len(body)
    length = f"Content-Length: {size}\r\n".encode()
    if size > UPSTREAM_PIECE_BYTES_MAX:
        return (b"".join((head, length, more, b"\r\n")), body, *rest)
    return b"".join((head, length, more, b"\r\n", body, *rest))


@lru_cache(maxsize=UPSTREAM_MEMORY_MAX)
def _head(
    address: tuple[str, int, bool], method: str, path: str, about: tuple[str, ...], *, close: bool
) -> bytes:
    host, port, tls = address
    name = f"[{host}]" if ":" in host else host
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {name}" if port == _DEFAULT_PORTS[tls] else f"Host: {name}:{port}",
        f"User-Agent: watchbill/{__version__}",  # servers on the internet may refuse requests without one
        "Accept-Encoding: identity",
        f"Connection: {'close' if close else 'keep-alive'}",
    ]
    lines.extend(about)
    return _checked("".join(f"{line}\r\n" for line in lines), len(lines))


def _checked(lines: str, count: int) -> bytes:
    """Paths and headers are ours, never a client's; a line break in one would be a second request."""
    assert lines.count("\r") == lines.count("\n") == count
    return lines.encode("latin-1")


def _wait_ms(told: bytes, date: bytes) -> int | None:
    """A Retry-After: seconds, or the time of a day, which counts from the date of the same answer: clocks differ."""
    if told.isdigit():
        seconds = int(told) if len(told) <= _RETRY_DIGITS_MAX else _RETRY_S_MAX
        return min(seconds, _RETRY_S_MAX) * 1000
    if not told:
        return None
    try:
        until = parsedate_to_datetime(told.decode("ascii")).timestamp()
        since = parsedate_to_datetime(date.decode("ascii")).timestamp() if date else time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return round(min(max(until - since, 0.0), _RETRY_S_MAX) * 1000)


@lru_cache(maxsize=UPSTREAM_MEMORY_MAX)
def _media_type(value: bytes) -> str:
    return value.split(b";")[0].strip().lower().decode("latin-1")
