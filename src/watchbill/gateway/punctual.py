"""Connections with deadlines: aiohttp's request handler, made to distrust slow clients.

aiohttp bounds neither the time in which headers must arrive nor the time for which a client may refuse to read.
One look at every connection, twice a second, does both; it costs a request nothing. Relies on five inner names of
aiohttp 3.14's RequestHandler (`_messages`, `_waiter`, `_current_request`, `_lingering_time`, `_reading_paused`): the
version is pinned, and the attack tests fail when one of them changes its meaning.
"""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from watchbill.limits import CONNECTION_LOOK_MS, HEADER_RECEIPT_MS, READER_STALL_MS

__all__ = ["PunctualHandler", "PunctualServer", "stop_lingering"]

_LATE_BODY = (
    b'{"error":{"message":"the headers did not arrive in time","type":"invalid_request_error",'
    b'"param":null,"code":"receipt_timeout","source":"watchbill"}}'
)
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_LATE_BODY), _LATE_BODY)
)


class PunctualHandler(RequestHandler):
    """One connection of a client."""

    __slots__ = ("_blocked_since", "_head_since")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._head_since: float | None = self._loop.time()
        self._blocked_since: float | None = None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._loop.time()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # Called twice for every body; without a pause before it would only run the parser over nothing.
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked_since = None

    def look(self, now: float, header_s: float, stall_s: float) -> None:
        """Ends the connection when its client is late."""
        transport = self.transport
        if transport is None:
            return
        if self._blocked_since is not None and now - self._blocked_since > stall_s:
            transport.abort()
        elif self._current_request is not None or self._waiter is None:
            self._head_since = None
        elif self._head_since is not None and now - self._head_since > header_s:
            transport.write(_LATE)
            self.force_close()

    def stop_lingering(self) -> None:
        """Does not wait for the rest of a body that was refused."""
        self._lingering_time = 0.0


class PunctualServer(web.Server):
    """aiohttp's server with PunctualHandler for connections."""

    header_s = HEADER_RECEIPT_MS / 1000
    stall_s = READER_STALL_MS / 1000

    def __call__(self) -> RequestHandler:
        return PunctualHandler(self, loop=self._loop, **self._kwargs)

    def watch(self) -> None:
        """Looks at every connection, now and then again until `unwatch`."""
        now = self._loop.time()
        for connection in self.connections:
            if isinstance(connection, PunctualHandler):
                connection.look(now, self.header_s, self.stall_s)
        self._watcher = self._loop.call_later(CONNECTION_LOOK_MS / 1000, self.watch)

    def unwatch(self) -> None:
        """Stops looking."""
        self._watcher.cancel()


def stop_lingering(request: web.BaseRequest) -> None:
    """The rest of this request's body is not awaited."""
    if isinstance(request.protocol, PunctualHandler):
        request.protocol.stop_lingering()
