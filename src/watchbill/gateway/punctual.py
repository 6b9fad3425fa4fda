"""Connections with deadlines: aiohttp's request handler, made to distrust slow clients.

aiohttp bounds neither the time in which headers must arrive nor the time for which a client may refuse to read.
One look at every connection, twice a second, does both; it costs a request nothing. aiohttp's loop also starts a task
for each request, which ours need not: what is usual is served without, and what is not goes aiohttp's own way.
Relies on inner names of aiohttp 3.14's RequestHandler: the version is pinned, and the attack tests fail when one of
them changes its meaning.
"""

import asyncio
import logging
from contextlib import suppress

from aiohttp import StreamReader, web
from aiohttp.http import StreamWriter
from aiohttp.http_exceptions import InvalidURLError
from aiohttp.web_protocol import RequestHandler, _ErrInfo  # pyright: ignore[reportPrivateUsage]

from watchbill.errors import RequestError
from watchbill.gateway.answers import as_response
from watchbill.gateway.direct import DirectResponse, Handle
from watchbill.limits import CONNECTION_LOOK_MS, HEADER_RECEIPT_MS, READER_STALL_MS

__all__ = ["PunctualHandler", "PunctualServer", "stop_lingering"]

_log = logging.getLogger("watchbill.gateway")
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

    __slots__ = ("_blocked_since", "_head_since", "_unread")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._head_since: float | None = self._loop.time()
        self._blocked_since: float | None = None
        self._unread = 0  # what a blocked client had not taken at the last look
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._loop.time()

    async def start(self) -> None:
        """Serves one request after the other until the connection ends."""
        make_request, handle, task = self._request_factory, self._request_handler, self._task_handler
        assert make_request is not None and handle is not None and task is not None
        loop, messages = self._loop, self._messages
        while not self._force_close:
            if not messages:
                try:
                    self._waiter = loop.create_future()
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = messages[0]
            if isinstance(message, _ErrInfo) or message.upgrade or self._buffer_paused:
                break  # unusual: from here on this connection goes aiohttp's way
            messages.popleft()
            self._parser.message_consumed()  # pyright: ignore  its C parser has no types
            request = make_request(message, payload, self, StreamWriter(self, loop), task)
            if not await self._answer(request, handle):
                self.force_close()
                return
            self._keepalive = True
            self._next_keepalive_close_time = closes = loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = loop.call_at(closes, self._process_keepalive)
        await super().start()

    async def _answer(self, request: web.BaseRequest, handle: Handle) -> bool:
        """Answers one request. Whether the connection goes on after it."""
        self._current_request, self._request_in_progress = request, True
        try:
            try:
                answer = await handle(request)
            except web.HTTPException as refused:  # so aiohttp's own router speaks
                answer = refused
            if isinstance(answer, DirectResponse):
                answer.send(request)
            if self._blocked_since is not None or not answer.prepared:
                await answer.prepare(request)  # which waits for a slow reader, too
            await answer.write_eof()
            if not request.content.is_eof():
                await self._linger(request.content)
        except ConnectionError:  # it broke while the answer was being sent
            return False
        except asyncio.CancelledError:  # of this task or of what it waited for: nobody would answer any more
            self.force_close()
            raise
        except Exception:  # noqa: BLE001  the last line of a connection: it ends alone
            self.log_exception("Unhandled exception")
            return False
        finally:
            self._current_request, self._request_in_progress = None, False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)
        return bool(answer.keep_alive) and not self._close and request.content.is_eof()

    async def _linger(self, rest: StreamReader) -> None:
        """Reads over what is left of a body for a while: a client that still sends would not see its answer."""
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(self._lingering_time):
                while not rest.is_eof():
                    await rest.readany()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # Called twice for every body; without a pause before it would only run the parser over nothing.
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked_since, self._unread = self._loop.time(), 0

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked_since = None

    def look(self, now: float, header_s: float, stall_s: float) -> None:
        """Ends the connection when its client is late."""
        transport = self.transport
        if transport is None:
            return
        if self._blocked_since is not None:
            unread = transport.get_write_buffer_size()
            if unread < self._unread:  # slow, but it reads
                self._blocked_since = now
            self._unread = unread
        if self._blocked_since is not None and now - self._blocked_since > stall_s:
            transport.abort()
        elif self._current_request is not None or self._waiter is None:
            self._head_since = None
        elif self._head_since is not None and now - self._head_since > header_s:
            transport.write(_LATE)
            # Closed both ways while the client still sends, the connection would be reset, and the answer lost.
            transport.write_eof()
            self.close()
            self._loop.call_later(self._lingering_time, transport.close)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP: an error like any other, and one line in the log."""
        if status != 400 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        # What follows the colon is a piece of the request, and may be a key or a prompt.
        said = (
            "its address cannot be read"
            if isinstance(exc, InvalidURLError)
            else (message or "").split(":")[0]
        )
        _log.info("from %s came no request: %s", request.remote, said)
        answer = as_response(RequestError(f"this is no HTTP request: {said}"), {"Server": "watchbill"})
        answer.force_close()
        return answer

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
