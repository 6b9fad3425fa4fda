"""A request as a client sent it: its head, and its body as far as it has come."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from watchbill.errors import TheirsError

__all__ = ["Line", "Request"]

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Line(Protocol):
    """The connection that a request came on."""

    transport: asyncio.Transport | None  # None when the client has left

    @property
    def remote(self) -> str:
        """The client's address."""
        ...

    async def body_news(self, request: "Request", /) -> None:
        """Waits for more of a request's body, or for the end of all hope."""
        ...

    async def send(self, content: bytes, /) -> None:
        """Sends bytes and waits for a slow reader. Raises ConnectionResetError when the client has left."""
        ...


class Request:
    """One request. `headers` are by lower-case name; of one that was sent twice, both values are in one text."""

    __slots__ = (
        "connection", "failure", "headers", "is_answered", "is_whole", "keeps_alive", "match", "method", "pieces",
        "target", "version",
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
        self.pieces: list[bytes] = []  # of the body: what has come and was not taken yet
        self.is_whole = False  # the body has come to its end
        self.failure: TheirsError | None = None  # why it never will
        self.is_answered = False  # at least the head of an answer was written
        self.match = _NO_VARIABLES  # what the variables of its address stand for

    @property
    def path(self) -> str:
        """The address without its query, decoded."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """What follows the question mark; of a name that is there twice, the last."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def content_type(self) -> str:
        """The body's media type, without parameters; what nobody named is a stream of bytes."""
        named = self.headers.get("content-type", "application/octet-stream")
        return named.partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int:
        """The size that was announced, 0 when none was. The parser has seen that it is a number."""
        return int(self.headers.get("content-length", "0"))

    @property
    def remote(self) -> str:
        """The client's address."""
        return self.connection.remote

    @property
    def transport(self) -> asyncio.Transport | None:
        """The way to the client; None when it has left."""
        return self.connection.transport

    def take(self) -> bytes:
        """As much of the body as has come."""
        pieces = self.pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return taken

    async def more(self) -> bytes:
        """The next piece of the body, nothing at its end. Raises why it will not come."""
        while not self.pieces:
            if self.is_whole:
                return b""
            if self.failure is not None:
                raise self.failure
            await self.connection.body_news(self)
        return self.take()
