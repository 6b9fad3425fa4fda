"""HTTP messages: requests as clients send them, and answers as they get them. Does no I/O of its own.

`RequestParser` owns httptools' parser and every bound on a head. A request is available once its head is complete;
its body follows. The result does not depend on how the bytes were split. Bytes that are not HTTP, or are ambiguous, end
it: nothing after them is parsed. Never decompresses, never changes protocols.

Answers are complete (`Response`) or sent in pieces (`Stream`). `Answer` owns how a head is written.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import parse_qsl, unquote

import httptools

from watchbill.errors import RequestError, TheirsError
from watchbill.gateway.limits import (
    PIPELINED_MAX,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADERS_MAX,
    REQUEST_LINE_BYTES_MAX,
)

__all__ = ["MAIN_DOOR", "Answer", "Door", "Line", "Request", "RequestParser", "Response", "Stream", "header"]

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Line(Protocol):
    """The connection that a request came on."""

    transport: asyncio.Transport | None  # None when the client has left

    @property
    def remote(self) -> str:
        """The client's address."""
        ...

    def has_left(self) -> bool:
        """Whether the client has closed the connection, also where the event loop has not come to that yet."""
        ...

    async def wait_for_body(self, request: "Request", /) -> None:
        """Waits for more of a request's body, or until no more can come."""
        ...

    async def send(self, content: bytes, /) -> None:
        """Sends bytes and waits for a slow reader. Raises ConnectionResetError when the client has left."""
        ...

    def hand_over(self, hear: Callable[[bytes], bool], /) -> None:
        """Hands everything that the client sends from now on to `hear`, which says whether more may come."""
        ...

    def go_on(self) -> None:
        """Takes more from the client, after `hear` said that it was enough."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """A listening address, with the defaults for requests that do not name a lane or a model."""

    lane: str | None = None
    model: str | None = None
    is_model_fixed: bool = False  # the model is asked, whichever one the request names


#: The main address of the config, without defaults.
MAIN_DOOR = Door()


class Request:
    """One request. `headers` have lower-case names; the values of a repeated header are joined by a comma."""

    __slots__ = (
        "connection", "door", "failure", "headers", "is_answered", "is_whole", "keeps_alive", "match", "method",
        "pieces", "target", "version", "wants_websocket",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  one for each part of a head
        self,
        connection: Line,
        method: str,
        target: str,
        version: str,
        headers: dict[str, str],
        keeps_alive: bool,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target  # the path and the query, as they were sent
        self.version = version
        self.headers = headers
        self.keeps_alive = keeps_alive
        self.pieces: list[bytes] = []  # of the body: received and not read yet
        self.is_whole = False  # the body is complete
        self.failure: TheirsError | None = None  # why it will never be complete
        self.is_answered = False  # at least the head of an answer was written
        self.door = MAIN_DOOR  # the address it came to
        self.wants_websocket = False
        self.match = _NO_VARIABLES  # the values of the variables in its address

    @property
    def path(self) -> str:
        """The address without its query, decoded."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The query's values; of a repeated name, the last."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def content_type(self) -> str:
        """The body's media type, without parameters; application/octet-stream if it is not given."""
        named = self.headers.get("content-type", "application/octet-stream")
        return named.partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int:
        """The announced size, 0 without one. The parser has checked that it is a number."""
        return int(self.headers.get("content-length", "0"))

    @property
    def remote(self) -> str:
        """The client's address."""
        return self.connection.remote

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport to the client; None when the client has left."""
        return self.connection.transport

    async def more(self) -> bytes:
        """The next piece of the body, empty at its end. Raises the failure of a body that will not be complete."""
        while not self.pieces:
            if self.is_whole:
                return b""
            if self.failure is not None:
                raise self.failure
            await self.connection.wait_for_body(self)
        taken = b"".join(self.pieces)
        self.pieces.clear()
        return taken


#: Bytes of a header's name and value together, up to which it is remembered.
_KNOWN_BYTES_MAX = 128
_KNOWN_MAX = 1024
#: Parts of the names of headers that hold secrets, which are never remembered.
_SECRET = re.compile("auth|cookie|key|token|secret|protocol")


class _Known(dict[tuple[bytes, bytes], tuple[str, str]]):
    """Headers as they are sent -> their lower-case names and their texts: clients send the same few dozen."""

    def __missing__(self, sent: tuple[bytes, bytes]) -> tuple[str, str]:
        """Raises RequestError for a header that is too long; what is known already is short."""
        name, value = sent
        if len(value) > REQUEST_HEADER_BYTES_MAX:
            raise _no_request("a header is too long")
        # Blanks around a value are no part of it (RFC 9112, 5.1). httptools leaves out those before it alone.
        header = name.decode("latin-1").lower(), value.strip(b" \t").decode("utf-8", "surrogateescape")
        if len(name) + len(value) <= _KNOWN_BYTES_MAX and _SECRET.search(header[0]) is None:
            if len(self) >= _KNOWN_MAX:
                self.clear()
            self[sent] = header
        return header


_known = _Known()
_VERSIONS = frozenset({"1.1", "1.0"})


class RequestParser:
    """Makes requests of one connection's bytes, and holds them in the order in which they came."""

    __slots__ = (
        "_head_bytes", "_line", "_parser", "_proposal", "_sent", "_target", "_wants_websocket",
        "failure", "heads", "held", "receiving", "requests",
    )  # fmt: skip

    def __init__(self, line: Line) -> None:
        self._line = line
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._sent: list[tuple[bytes, bytes]] = []  # headers of the head that is being received, or trailers
        self._wants_websocket = False  # the request that is parsed again
        self._proposal: dict[str, str] = {}  # the headers of a request that asks for another protocol
        self._head_bytes = 0  # received since the last complete head or piece of a body
        self.requests: deque[Request] = deque()  # not answered yet
        self.receiving: Request | None = None  # its body is incomplete
        self.heads = 0  # complete heads so far
        self.held = 0  # bytes received while no request and no body is awaited
        self.failure: TheirsError | None = None

    @property
    def has_begun(self) -> bool:
        """Whether part of a head has been received."""
        return (self._head_bytes > 0 or self._target != b"") and self.receiving is None

    def feed(self, data: bytes) -> None:
        """Parses received bytes."""
        if self.failure is not None:
            return
        self._head_bytes += len(data)
        self.held += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[cast("int", upgrade.args[0]) :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._check_unfinished()
            self.fail(cause if isinstance(cause, TheirsError) else _no_request(str(error)))
        if self._sent:
            self._check_unfinished()
        if self._head_bytes > REQUEST_HEAD_BYTES_MAX:
            self.fail(_no_request("its head, or its trailers, are too long"))

    def fail(self, error: TheirsError) -> None:
        """Notes an error after which nothing is parsed."""
        if self.failure is None:
            self.failure = error
            if self.receiving is not None:
                self.receiving.failure = error

    def _check_unfinished(self) -> None:
        """Fails if the headers that came so far, of a head that is not complete, exceed a bound."""
        try:
            _texts(self._sent)
        except RequestError as error:
            self.fail(error)

    def close(self) -> None:
        """Drops everything after the connection has ended, also the parser, which refers back to this one."""
        self.fail(_no_request("the connection has ended"))
        self.requests.clear()
        self.receiving = None
        del self._parser

    def _stay(self, rest: bytes) -> None:
        """Serves a request that asks for another protocol as plain HTTP; the parser alone would stop here."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        target, headers = self._target, self._proposal
        self._parser, self._target, self._proposal = httptools.HttpRequestParser(self), b"", {}
        if method == b"CONNECT":
            # A tunnel is refused, and bytes sent through it are no requests.
            self.requests[-1].keeps_alive = False
            return
        self._wants_websocket = method == b"GET" and headers["upgrade"].strip().lower() == "websocket"
        lines = [f"{name}: {value}\r\n" for name, value in headers.items() if name != "upgrade"]
        kept = "".join(lines).encode("utf-8", "surrogateescape")
        self.feed(b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, target, version, kept, rest))

    # ------------------------------------------------------------------ httptools' callbacks

    def on_url(self, url: bytes) -> None:
        """The address, or a part of it."""
        self._target += url
        if len(self._target) > REQUEST_LINE_BYTES_MAX:
            raise _no_request("its address is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer, which is ignored."""
        self._sent.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: the request can be answered while its body still arrives."""
        parser, headers, requests = self._parser, _texts(self._sent), self.requests
        self._sent = []
        if "upgrade" in headers and parser.should_upgrade() and parser.get_method() != b"CONNECT":
            self._proposal = headers
            return  # `_stay` parses it again, without its upgrade
        version = parser.get_http_version()
        if len(requests) >= PIPELINED_MAX:
            raise _no_request("too many requests were sent at once")
        if version not in _VERSIONS:
            raise _no_request("its HTTP version is not 1.0 or 1.1")
        if "transfer-encoding" in headers and headers["transfer-encoding"].strip().lower() != "chunked":
            raise _no_request("its body is coded in another way than chunked")
        self._head_bytes = 0
        self.heads += 1
        self.receiving = request = Request(
            self._line,
            parser.get_method().decode(),
            self._target.decode("utf-8", "surrogateescape"),
            version,
            headers,
            version == "1.1" and parser.should_keep_alive(),
        )
        request.wants_websocket, self._wants_websocket = self._wants_websocket, False
        self._target = b""
        requests.append(request)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        assert self.receiving is not None
        self.receiving.pieces.append(body)
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        """The end of a request."""
        request, self.receiving = self.receiving, None
        if request is not None:  # else `_stay` will parse it again
            request.is_whole = True
            if self._sent:
                _texts(self._sent)  # trailers: they have the same bounds
                self._sent = []
            self._head_bytes = 0
            if len(self.requests) < 2:
                self.held = 0  # keep reading while it is answered, to notice that the client leaves


def _no_request(why: str) -> RequestError:
    return RequestError(f"this is not an HTTP request: {why}")


def _texts(sent: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as they were sent -> texts. The values of a repeated one are joined by a comma. Raises RequestError."""
    if len(sent) > REQUEST_HEADERS_MAX:
        raise _no_request("it has too many headers")
    texts = dict(map(_known.__getitem__, sent))
    if len(texts) == len(sent):
        return texts
    texts.clear()
    for name, value in map(_known.__getitem__, sent):
        texts[name] = text = f"{texts[name]}, {value}" if name in texts else value
        if len(text) > REQUEST_HEADER_BYTES_MAX:
            raise _no_request("a header is too long")
    return texts


# ------------------------------------------------------------------ answers

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
#: Answers that have no body, and must not announce one.
_BODILESS = frozenset({204, 304})
#: A body up to this size is sent in one piece with its head, a longer one in pieces of it.
_PIECE_BYTES = 2**16


class Answer:
    """An answer to a client. With `closes` the connection ends after it.

    `lines` are headers that are encoded already, each with its line end."""

    def __init__(self, headers: dict[str, str], status: int = 200, lines: str = "") -> None:
        self.status = status
        self.headers = headers
        self.lines = lines
        self.closes = False
        self.is_begun = False  # too late to change anything

    def head(self, request: Request, framing: str) -> bytes:
        """The status line and the headers. Raises ValueError for a header with a line break."""
        self.is_begun = True
        if not request.is_whole and (request.failure is not None or "expect" in request.headers):
            self.closes = True  # the body is not whole, and may never come: nothing can follow it
        lines = self.lines
        for name, value in self.headers.items():
            lines += header(name, value)
        close = "" if request.keeps_alive and not self.closes else "Connection: close\r\n"
        first = _first_lines(request.version, self.status, int(time.time()))
        head = f"{first}{lines}{framing}{close}\r\n".encode()
        request.is_answered = True
        return head


class Response(Answer):
    """A complete answer."""

    def __init__(self, body: bytes, headers: dict[str, str], status: int = 200, lines: str = "") -> None:
        super().__init__(headers, status, lines)
        self.body = body

    def pieces(self, request: Request) -> tuple[bytes, Iterable[bytes]]:
        """What is sent first, and what follows of a long answer."""
        if self.status in _BODILESS:
            return self.head(request, ""), ()
        body = self.body
        head = self.head(request, f"Content-Length: {len(body)}\r\n")
        if request.method == "HEAD":
            return head, ()
        if len(body) <= _PIECE_BYTES:
            return head + body, ()
        return head, (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))


class Stream(Answer):
    """An answer in pieces. For HTTP/1.0, which has no chunks, the end of the connection ends the answer."""

    def __init__(self, request: Request, headers: dict[str, str], status: int = 200, lines: str = "") -> None:
        super().__init__(headers, status, lines)
        self._request = request
        self._connection = request.connection
        self._is_chunked = request.version == "1.1" and status not in _BODILESS
        self._is_silent = request.method == "HEAD" or status in _BODILESS
        self._has_ended = False

    async def open(self) -> None:
        """Sends the head. Raises ConnectionResetError when the client has left."""
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        await self._connection.send(self.head(self._request, framing))

    async def write(self, piece: bytes) -> None:
        """Sends a piece, and waits for a slow reader. Raises ConnectionResetError when the client has left."""
        if piece and not self._is_silent:
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece
            await self._connection.send(framed)

    async def end(self) -> None:
        """Ends the answer properly. A second call does nothing."""
        if not self._has_ended:
            self._has_ended = True
            if self._is_chunked and not self._is_silent:
                await self._connection.send(b"0\r\n\r\n")


class Tunnel(Answer):
    """An answer that turns the connection into a way for bytes, both ways. The connection ends with it."""

    def __init__(self, request: Request) -> None:
        super().__init__({}, 101)
        self._request = request
        self._connection = request.connection
        self.closes = True

    async def open(self, head: bytes, hear: Callable[[bytes], bool]) -> None:
        """Sends the head; from now on the client's bytes go to `hear`. Raises ConnectionResetError."""
        self.is_begun = self._request.is_answered = True
        self._connection.hand_over(hear)
        await self._connection.send(head)

    async def write(self, piece: bytes) -> None:
        """Sends bytes, and waits for a slow reader. Raises ConnectionResetError when the client has left."""
        if piece:
            await self._connection.send(piece)

    def go_on(self) -> None:
        """More may come from the client."""
        self._connection.go_on()


@lru_cache(maxsize=256)
def header(name: str, value: str) -> str:
    """One header, as it is sent. Raises ValueError for a line break, which would make it two."""
    if "\r" in value or "\n" in value:
        raise ValueError(f"the header {name} of an answer has a line break")
    return f"{name}: {value}\r\n"


@lru_cache(maxsize=8)
def _first_lines(version: str, status: int, second: int) -> str:
    """The first lines of an answer, which are the same for all answers within a second."""
    line = _STATUS_LINES.get(status) or f"{status} Unknown"
    return f"HTTP/{version} {line}\r\nServer: watchbill\r\nDate: {formatdate(second, usegmt=True)}\r\n"
