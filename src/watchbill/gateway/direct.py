"""Whole answers by the shortest way: one head, one body, one write.

aiohttp's own Response settles every header anew in a dozen steps, and its router looks for every address in three:
together more than the scheduler takes for its decision. These two do the same for what is asked most, an answer
of 200 to a client of HTTP/1.1 at an address without variables; everything else goes aiohttp's way.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import cast

from aiohttp import HttpVersion11, web

__all__ = ["DirectResponse", "Handle", "respond", "shortcut"]

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def respond(request: web.BaseRequest, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
    """An answer of 200 with this body."""
    if request.version != HttpVersion11 or request.method != "POST":
        return web.Response(body=body, headers=headers)
    return DirectResponse(body, headers)


def shortcut(app: web.Application, handle: Handle) -> Handle:
    """Finds the handlers of fixed addresses at once, and leaves the rest to `handle`."""
    fixed = {
        (route.method, route.resource.canonical): (cast("Handle", route.handler), _match(app, route))
        for route in app.router.routes()
        if isinstance(route.resource, web.PlainResource)
    }

    def enter(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        found = fixed.get((request.method, request.raw_path))
        if found is None or "Expect" in request.headers:  # the client may wait for "100 Continue"
            return handle(request)
        handler, match = found
        request._match_info = match  # pyright: ignore  as aiohttp's own handler does; nothing public can
        return handler(request)

    return enter


def _match(app: web.Application, route: web.AbstractRoute) -> web.UrlMappingMatchInfo:
    """What a request at a fixed address is told about it: no variables. One for all, since nothing changes it."""
    match = web.UrlMappingMatchInfo({}, route)
    match.add_app(app)
    match.freeze()
    return match


class DirectResponse(web.StreamResponse):
    """A whole answer of 200 to a POST of HTTP/1.1. What aiohttp settles for each is settled for all."""

    _status, _reason = 200, "OK"

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._content = body
        self._given = headers
        self._is_sent = False
        self._keeps: bool | None = None

    @property
    def prepared(self) -> bool:
        """Whether it is too late to change anything."""
        return self._is_sent

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays; None before that is settled."""
        return self._keeps

    def force_close(self) -> None:
        """Ends the connection after this answer."""
        self._keeps = False

    def send(self, request: web.BaseRequest) -> None:
        """Sends everything; `prepare` waits for a slow reader. Raises ConnectionResetError when the client is gone."""
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        if self._keeps is None:
            self._keeps = request.keep_alive
        self._is_sent = True
        transport.write(self.head() + self._content)

    async def prepare(self, request: web.BaseRequest) -> None:
        """Sends everything, unless that was done, and waits for a slow client."""
        if not self._is_sent:
            self.send(request)
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Does nothing: it was sent whole."""

    def head(self) -> bytes:
        """The status line and the headers. Raises ValueError for a header with a line break."""
        text = "\r\n".join(map(": ".join, self._given.items()))
        breaks = len(self._given) - 1
        if text.count("\r") != breaks or text.count("\n") != breaks:
            raise ValueError("a header of the answer has a line break")  # it would be a second header
        close = "" if self._keeps else "Connection: close\r\n"
        return (
            f"HTTP/1.1 200 OK\r\n{text}\r\n{close}Content-Length: {len(self._content)}\r\n"
            f"Date: {_date(int(time.time()))}\r\n\r\n"
        ).encode()


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
