"""The way to an engine: requests over HTTP/1.1, whole or streamed, that can be cut at any moment.

    call = upstream.call(Outgoing(endpoint, "POST", "/v1/chat/completions", body), streamed=True)
    try:
        head = await call.head()
        while piece := await call.chunk():
            ...
    finally:
        call.abort()        # does nothing after the end of the answer

Owns one `Way` for each engine on loopback. Addresses come from an Endpoint only, that is from the config or from our
own port choice. Loopback is spoken to by our own lean client; anything else, and TLS, by aiohttp's
(`engines.far`). Every failure is UpstreamFailed. A request is sent a second time in one case only: a kept
connection turned out to be closed, and not a byte of an answer had come.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

from watchbill.engines.base import Endpoint
from watchbill.engines.call import Call
from watchbill.engines.connection import Connection, Deadlines, Outgoing, UpstreamFailed
from watchbill.engines.connection_pool import Address, Way
from watchbill.engines.far import FarCall, FarSession
from watchbill.limits import UPSTREAM_ANSWER_BYTES_MAX, UPSTREAM_MEMORY_MAX

__all__ = ["Call", "Deadlines", "Outgoing", "Reply", "Upstream", "UpstreamFailed"]

#: What an answer may say that is not compressed.
_UNCOMPRESSED = frozenset({b"", b"identity"})
_IS_JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class Upstream:
    """Every request of this process to engines goes through one of these."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.deadlines = deadlines or Deadlines()
        self._ways: dict[Address, Way] = {}  # those on loopback
        self._far: FarSession | None = None

    def call(self, outgoing: Outgoing, *, streamed: bool = False, deadlines: Deadlines | None = None) -> Call:
        """Prepares a request; nothing is sent before `head`."""
        endpoint = outgoing.endpoint
        way = self._ways.get((endpoint.host, endpoint.port)) or self._find_way(endpoint)
        if way is not None and not endpoint.tls:  # a port may have changed to it
            request = _request(outgoing, close=streamed and way.closes)
            return NearCall(way, deadlines or self.deadlines, streamed, request)
        if self._far is None:
            self._far = FarSession()
        return FarCall(self._far, outgoing, deadlines or self.deadlines)

    def _find_way(self, endpoint: Endpoint) -> Way | None:
        """The way to an engine that was not asked before; None when it is not on loopback, or speaks TLS."""
        if endpoint.tls or not (endpoint.host == "localhost" or _is_loopback(endpoint.host)):
            return None
        if len(self._ways) >= UPSTREAM_MEMORY_MAX:
            self._ways.pop(next(iter(self._ways))).close()
        address = (endpoint.host, endpoint.port)
        way = self._ways[address] = Way(address)
        return way

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
        for way in self._ways.values():
            way.close()
        self._ways.clear()
        if self._far is not None:
            await self._far.close()
            self._far = None


class NearCall(Call):
    """A request over loopback on a connection of ours."""

    __slots__ = (
        "_connection", "_deadlines", "_failure", "_is_again", "_request", "_streamed", "_way", "content_type",
        "has_ended",
    )  # fmt: skip

    def __init__(
        self, way: Way, deadlines: Deadlines, streamed: bool, request: bytes | tuple[bytes, ...]
    ) -> None:
        self._way = way
        self._deadlines = deadlines
        self._streamed = streamed
        self._request = request
        self._connection: Connection | None = None
        self._failure: UpstreamFailed | None = None  # where no connection has one
        self._is_again = (
            False  # a kept connection was closed before a byte of an answer: the next is a new one
        )
        self.has_ended = False  # the connection may serve another request by now
        self.content_type = ""

    def poll(self) -> int:
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
                "garbled", "the engine compressed its answer although asked not to", received=True
            )
        self.content_type = _media_type(headers.get(b"content-type", b""))
        return connection.status

    def _send_at_once(self) -> None:
        """Sends the request if there is a kept connection; else `news` opens one."""
        if not self._is_again and (kept := self._way.take()) is not None:
            self._connection = kept
            kept.begin(self._request, self._deadlines, streamed=self._streamed)

    def _send_again(self, connection: Connection, failure: UpstreamFailed) -> None:
        """A kept connection was closed before a byte of an answer: the engine has seen nothing of the request."""
        if not connection.is_kept or failure.kind != "closed" or failure.received:
            raise failure
        if connection.followed_stream:
            self._way.closes = True
        self._connection, self._is_again = None, True

    def news(self) -> Awaitable[None]:
        connection = self._connection
        return self._connect() if connection is None else connection.changed()

    async def _connect(self) -> None:
        if self._failure is not None:
            return
        try:
            connection = await self._way.connect(self._deadlines.connect_ms)
        except UpstreamFailed as error:
            self._failure = error
            return
        if self._failure is not None:
            connection.abort()
            return
        self._connection = connection
        connection.begin(self._request, self._deadlines, streamed=self._streamed)

    def take(self) -> bytes | None:
        if self._failure is not None:  # also when all of it was there: its connection may serve somebody else
            raise self._failure
        if self.has_ended:
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
            self._release(connection)
        return piece

    def _release(self, connection: Connection) -> None:
        self.has_ended = True
        self._way.keep(connection)

    def abort(self) -> None:
        if self.has_ended:
            return
        self._failure = UpstreamFailed("aborted", "the request to the engine was cut")
        connection = self._connection
        if connection is None:
            return
        if connection.is_done:
            connection.take()
            self._release(connection)
        else:
            self._way.part(connection)

    @property
    def has_spoken(self) -> bool:
        return self.has_ended or (self._connection is not None and self._connection.has_spoken)

    @property
    def silent_ms(self) -> int:
        return 0 if self.has_ended or self._connection is None else self._connection.silent_ms

    def on_let_go(self, tell: Callable[[bool], None]) -> bool:
        return not self.has_ended and self._connection is not None and self._connection.on_let_go(tell)


def _request(outgoing: Outgoing, *, close: bool) -> bytes | tuple[bytes, ...]:
    """The bytes to send. What does not change between two requests to an engine is made once."""
    endpoint, body = outgoing.endpoint, outgoing.body
    path = endpoint.path_prefix + outgoing.path
    head = _head((endpoint.host, endpoint.port), outgoing.method, path, endpoint.key, close=close)
    more = _IS_JSON if body else b""
    if outgoing.headers:
        more = b"" if "Content-Type" in outgoing.headers else more
        for name, value in outgoing.headers.items():
            more += _checked(f"{name}: {value}\r\n", 1)
    rest = outgoing.rest
    size = len(body) + sum(map(len, rest)) if rest else len(body)
    first = b"".join((head, f"Content-Length: {size}\r\n".encode(), more, b"\r\n", body))
    return (first, *rest) if rest else first


@lru_cache(maxsize=UPSTREAM_MEMORY_MAX)
def _head(address: Address, method: str, path: str, key: str, *, close: bool) -> bytes:
    host, port = address
    name = f"[{host}]" if ":" in host else host
    lines = [
        f"{method} {path} HTTP/1.1", f"Host: {name}:{port}", "Accept-Encoding: identity",
        f"Connection: {'close' if close else 'keep-alive'}", *([f"Authorization: Bearer {key}"] if key else ()),
    ]  # fmt: skip
    return _checked("".join(f"{line}\r\n" for line in lines), len(lines))


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
