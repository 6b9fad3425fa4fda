"""Answers to clients: whole ones, and streams. Owns how a head is written."""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from watchbill.gateway.http.request import Request

__all__ = ["Answer", "Response", "Stream", "header"]

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
#: Answers that have no body, and must not announce one.
_BODILESS = frozenset({204, 304})
#: A body up to here goes out with its head in one piece.
_JOINED_BYTES_MAX = 2**16


class Answer:
    """What goes back to a client. `closes`: the connection ends with it.

    `lines` are headers that were written down already, each with its line's end."""

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
            self.closes = True  # the body cannot be read, or waits for a go-ahead: it will never be whole
        lines = self.lines
        for name, value in self.headers.items():
            lines += header(name, value)
        close = "" if request.keeps_alive and not self.closes else "Connection: close\r\n"
        first = _first_lines(request.version, self.status, int(time.time()))
        head = f"{first}{lines}{framing}{close}\r\n".encode()
        request.is_answered = True
        return head


class Response(Answer):
    """A whole answer."""

    def __init__(self, body: bytes, headers: dict[str, str], status: int = 200, lines: str = "") -> None:
        super().__init__(headers, status, lines)
        self.body = body

    def pieces(self, request: Request) -> tuple[bytes, ...]:
        """What is to be sent."""
        if self.status in _BODILESS:
            return (self.head(request, ""),)
        body = self.body
        head = self.head(request, f"Content-Length: {len(body)}\r\n")
        if request.method == "HEAD":
            return (head,)
        return (head + body,) if len(body) <= _JOINED_BYTES_MAX else (head, body)


class Stream(Answer):
    """An answer in pieces. An old client, who knows no chunks, learns of its end by the connection's."""

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
        """Ends the answer in good order; once."""
        if not self._has_ended:
            self._has_ended = True
            if self._is_chunked and not self._is_silent:
                await self._connection.send(b"0\r\n\r\n")


@lru_cache(maxsize=256)
def header(name: str, value: str) -> str:
    """One header, as it is sent. Raises ValueError for one with a line break: it would be two."""
    if "\r" in value or "\n" in value:
        raise ValueError(f"the header {name} of an answer has a line break")
    return f"{name}: {value}\r\n"


@lru_cache(maxsize=8)
def _first_lines(version: str, status: int, second: int) -> str:
    """How an answer begins; the same for all within a second."""
    line = _STATUS_LINES.get(status) or f"{status} Unknown"
    return f"HTTP/{version} {line}\r\nServer: watchbill\r\nDate: {formatdate(second, usegmt=True)}\r\n"
