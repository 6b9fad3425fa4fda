"""One client's connection: the socket, the task that answers its requests, and the client's deadlines.

Requests are answered one after the other, in order. A client that disconnects cancels its answer. Bytes that are not
HTTP get one error of the usual form, and the connection ends. A client that sends fast, or many requests at once, gets
a share of each turn of the event loop. A check of every connection, twice a second, enforces all
deadlines except that of a body, at no cost per request.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Protocol, cast

from watchbill.errors import ReceiptTimeout, ShuttingDown, TheirsError
from watchbill.gateway.http.messages import Answer, Request, RequestParser, Response
from watchbill.gateway.limits import CLIENT_TURN_BYTES, LINGER_MS, REQUEST_BUFFER_BYTES_MAX

__all__ = ["ClientConnection", "Handle", "Patience", "Refuse"]

Handle = Callable[[Request], Awaitable[Answer]]
#: Makes the answer to a request that cannot be read.
Refuse = Callable[[TheirsError], Response]
_log = logging.getLogger("watchbill.gateway")


class Patience(Protocol):
    """How long a client may be late, in seconds."""

    header_s: float  # for a head, from its first byte or from the connection
    stall_s: float  # for reading an answer that is ready
    idle_s: float  # for its next request


class ClientConnection(asyncio.Protocol):
    """Serves one client."""

    __slots__ = (
        "_answering", "_backlog", "_blocked_since", "_connections", "_drained", "_gone", "_handle", "_is_held",
        "_is_leaving", "_is_paused", "_is_ready", "_loop", "_parser", "_refusal", "_refuse", "_remote", "_seen",
        "_since", "_task", "_tunnel", "_unread", "_waiter", "transport",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Handle,
        refuse: Refuse,
        connections: "set[ClientConnection]",
        *,
        refusal: TheirsError | None = None,
    ) -> None:
        self._loop = loop
        self._handle = handle
        self._refuse = refuse
        self._connections = connections
        self._parser = RequestParser(self)
        self._refusal = refusal  # why the connection is refused
        self._answering: Request | None = None
        self._is_ready = False  # the answer is complete, and the client reads slowly
        self._is_leaving = False  # the last answer was sent
        self._gone: asyncio.Future[None] | None = None  # done when the connection has ended
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None  # done when more has arrived
        self._is_paused = False
        #: Takes what the client sends in place of requests.
        self._tunnel: Callable[[bytes], bool] | None = None
        self._is_held = False  # the tunnel has enough for now
        #: Bytes that came at once. A share of them is parsed in each turn of the loop, and nothing is read meanwhile.
        self._backlog: memoryview | None = None
        self.transport: asyncio.Transport | None = None
        self._remote: str | None = None
        # lateness
        self._seen: tuple[object, ...] = ()  # the client's progress at the last check,
        self._since = loop.time()  # and since when
        self._blocked_since: float | None = None
        self._unread = 0  # bytes that a blocked client had not read at the last check
        self._drained: asyncio.Future[None] | None = None

    @property
    def remote(self) -> str:
        """The client's address."""
        if self._remote is None:
            peer = cast("object", self.transport.get_extra_info("peername")) if self.transport else None
            self._remote = (
                str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) and peer else "-"
            )
        return self._remote

    def has_left(self) -> bool:
        """Whether the client has closed the connection, also where the event loop has not come to that yet."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        ends = select.poll()
        ends.register(cast("socket.socket", transport.get_extra_info("socket")).fileno(), select.POLLRDHUP)
        return bool(ends.poll(0))

    # ------------------------------------------------------------------ the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._refusal is not None:
            self._turn_away(self.transport, self._refusal)
            return
        self._connections.add(self)
        self._task = self._loop.create_task(self._serve())

    def _turn_away(self, transport: asyncio.Transport, refusal: TheirsError) -> None:
        """Answers without reading a request, and closes at once: a refused connection must not take resources."""
        self._is_leaving = True
        transport.write(self._refuse(refusal).pieces(Request(self, "", "", "1.1", {}, False))[0])
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._connections.discard(self)
        self._parser.close()
        self._backlog = None
        self.resume_writing()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return  # nothing that arrives now is answered
        if self._tunnel is not None:
            self._pass_through(self._tunnel, data)
            return
        if len(data) <= CLIENT_TURN_BYTES and self._backlog is None:
            self._hear(data)
            return
        self._backlog = memoryview(data if self._backlog is None else b"".join((self._backlog, data)))
        if self.transport is not None:
            self.transport.pause_reading()
        self._hear_share()

    def _pass_through(self, hear: Callable[[bytes], bool], data: bytes) -> None:
        if not hear(data) and not self._is_held and self.transport is not None:
            self._is_held = True
            self.transport.pause_reading()

    def hand_over(self, hear: Callable[[bytes], bool]) -> None:
        """Hands everything that the client sends from now on to `hear`, which says whether more may come."""
        self._tunnel = hear

    def go_on(self) -> None:
        """Takes more from the client, after `hear` said that it was enough."""
        if self._is_held and self.transport is not None and not self.transport.is_closing():
            self._is_held = False
            self.transport.resume_reading()

    def _hear(self, data: bytes) -> None:
        parser = self._parser
        parser.feed(data)
        if parser.held > REQUEST_BUFFER_BYTES_MAX and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def _hear_share(self) -> None:
        """Parses this turn's share of what came at once. The rest waits for the next turn, or for its request's."""
        backlog = self._backlog
        if backlog is None or self._is_paused or self.transport is None:
            return
        if self._is_leaving:
            self._backlog = backlog = None
        else:
            self._backlog = backlog[CLIENT_TURN_BYTES:] if len(backlog) > CLIENT_TURN_BYTES else None
            self._hear(bytes(backlog[:CLIENT_TURN_BYTES]))
        if not self._is_paused:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """In the next turn: first what came already, then the socket."""
        if self._backlog is not None:
            self._loop.call_soon(self._hear_share)
        elif self.transport is not None:
            self.transport.resume_reading()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def pause_writing(self) -> None:
        self._blocked_since, self._unread = self._loop.time(), 0

    def resume_writing(self) -> None:
        self._blocked_since = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # ------------------------------------------------------------------ answering

    async def _serve(self) -> None:
        """Answers one request after the other until the connection ends."""
        try:
            await self._answer_all()
        except ConnectionError:  # the client left while it was being answered
            self.abort()
        except asyncio.CancelledError:  # of this task, or of what it waited for
            # The connection is over. The cancellation ends here: a task that ends as cancelled keeps the error and its
            # frames, which hold the last answer and this connection, which holds the task.
            self.abort()
        except Exception:  # noqa: BLE001  an error must not end more than its own connection
            _log.exception("an answer could not be sent")
            self.abort()
        finally:
            self._answering = None

    async def _answer_all(self) -> None:
        parser, handle = self._parser, self._handle
        while not self._is_leaving:
            if not parser.requests:
                if parser.failure is not None:
                    self._send_away(parser.failure)
                    return
                parser.held = 0
                if self._is_paused:
                    self._resume()
                waiter = self._waiter = self._loop.create_future()
                await waiter
                continue
            request = self._answering = parser.requests.popleft()
            answer = await handle(request)
            rest = self._write(request, answer)
            self._is_ready = True
            for piece in rest:
                await self.send(piece)
                await asyncio.sleep(0)  # however fast the client reads, others have their turn
            if self._blocked_since is not None:
                await self._until_read()
            self._is_ready = False
            if answer.closes or not request.keeps_alive or self._is_leaving:
                self._leave(request)
            elif not request.is_whole:
                await self._read_over(request)
            if parser.requests:
                await asyncio.sleep(0)  # requests that were sent together are answered one in a turn
            self._answering = None
            del request, answer, rest  # a connection that only waits holds neither

    def _write(self, request: Request, answer: Answer) -> Iterable[bytes]:
        """Sends an answer, unless it was streamed, and returns what is left of a long one. Raises ConnectionError when
        the client has left, or when the beginning of another answer was sent: half an answer must not look complete."""
        if answer.is_begun:
            return ()
        if request.is_answered:
            raise ConnectionAbortedError("the answer broke off")
        assert isinstance(answer, Response)
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        first, rest = answer.pieces(request)
        transport.write(first)
        return rest

    def _send_away(self, error: TheirsError) -> None:
        """Answers bytes that are not HTTP, or a request that came too late, and closes the connection."""
        _log.info("no request from %s: %s", self.remote, error)
        nothing = Request(self, "", "", "1.1", {}, False)
        with suppress(ConnectionError):
            self._write(nothing, self._refuse(error))
        self._leave(nothing)

    async def _read_over(self, request: Request) -> None:
        """Drops the rest of a body, for a bounded time: a client that is still sending would not see its answer."""
        with suppress(TimeoutError, TheirsError):
            async with asyncio.timeout(LINGER_MS / 1000):
                while await request.more():
                    pass
        if not request.is_whole:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        """Ends the connection as soon as the client has read its last answer."""
        self._is_leaving, transport = True, self.transport
        if transport is None or transport.is_closing():
            return
        if request.is_whole:
            transport.close()
            return
        # Closing both directions while the client still sends would reset the connection, and the answer would be lost.
        try:
            transport.write_eof()
        except OSError:  # it has just left
            transport.abort()
            return
        self._resume()
        self._loop.call_later(LINGER_MS / 1000, transport.close)

    # ------------------------------------------------------------------ for requests and answers

    async def send(self, content: bytes) -> None:
        """Sends bytes and waits for a slow reader. Raises ConnectionResetError when the client has left."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.transport.write(content)
        if self._blocked_since is not None:
            await self._until_read()

    async def _until_read(self) -> None:
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    async def wait_for_body(self, request: Request) -> None:
        """Waits for more of a body. A client that asked with Expect whether to send it is told to continue."""
        if request.headers.pop("expect", "").lower() == "100-continue" and request.version == "1.1":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            return  # more may have arrived meanwhile
        self._parser.held = 0
        self._resume()
        waiter = self._waiter = self._loop.create_future()
        await waiter

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._go_on_reading()

    # ------------------------------------------------------------------ lateness

    def look(self, now: float, patience: Patience) -> None:
        """Ends the connection when its client is late."""
        transport, parser = self.transport, self._parser
        if transport is None:
            return
        if self._blocked_since is not None:
            unread = transport.get_write_buffer_size()
            if unread < self._unread:  # slow, but it reads
                self._blocked_since = now
            self._unread = unread
            if now - self._blocked_since > patience.stall_s:
                transport.abort()
        is_served = self._answering is not None or bool(parser.requests)
        seen = (parser.heads, parser.has_begun, is_served, self._is_leaving)
        if seen != self._seen:
            self._seen, self._since = seen, now
        lasts_s = now - self._since
        if self._is_leaving:
            if lasts_s > patience.stall_s:
                transport.abort()  # it does not read its last answer
        elif is_served:
            pass  # a body and an answer have deadlines of their own
        elif parser.has_begun or not parser.heads:
            if lasts_s > patience.header_s:
                parser.fail(ReceiptTimeout("the headers did not arrive in time"))
                self._wake()
        elif lasts_s > patience.idle_s:
            self._is_leaving = True
            transport.close()

    def stop_receiving(self) -> None:
        """Stops waiting for bytes from the client. A request that has arrived completely is still answered."""
        if self._parser.receiving is not None:
            self._parser.fail(ShuttingDown())
            self._wake()

    def close(self) -> "tuple[asyncio.Future[None], asyncio.Future[None]]":
        """Ends the connection: a complete answer is still sent, an unfinished one is cut. Both futures are done when
        that is over."""
        assert self._task is not None and self.transport is not None
        self._gone = self._loop.create_future()
        if self._answering is None or self._is_leaving:
            self._is_leaving = True
            self.transport.close()
        elif self._is_ready:
            self._is_leaving = True  # as soon as the client has read its answer
        else:
            self._task.cancel()
        return self._task, self._gone

    def abort(self) -> None:
        """Drops the connection at once."""
        if self.transport is not None:
            self.transport.abort()
