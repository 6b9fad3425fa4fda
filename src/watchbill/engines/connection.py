"""One connection to an engine: an asyncio protocol around httptools' parser, over plain TCP or TLS.

Owns the socket, what of a large request is still to be sent, and the received bytes that were not taken yet. Promises
that an answer is either whole or an error: a short Content-Length, a chunked body without its end, a reset and a
silence past the deadline all raise UpstreamFailed. Reading pauses while the taker is slow, so that the engine feels
the back-pressure. An engine that sends fast gets a share of each turn of the event loop and no more: of what came, so
much is parsed, and so much is given out, as UPSTREAM_TURN_BYTES says; the rest waits for the next turn, behind every
other connection. Never follows a redirect, never decompresses, never sends anything by itself.

A cut request is not simply dropped: a socket that we close says nothing about the engine, which may work on for
minutes. We half-close the connection, which engines that watch their clients take for a client that left, and read on
until the engine closes the connection or ends its answer. That is the moment in which the engine has let go. An engine
that goes on writing gets a reset. TLS has no half-close: there the connection is closed at once, and the engine counts
as having let go.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import cast

import httptools
import msgspec

from watchbill.engines.base import Endpoint
from watchbill.engines.limits import (
    UPSTREAM_BUFFER_BYTES_MAX,
    UPSTREAM_CONNECT_MS,
    UPSTREAM_FIRST_BYTE_MS,
    UPSTREAM_GOODBYE_MS,
    UPSTREAM_HEAD_BYTES_MAX,
    UPSTREAM_HEADERS_MAX,
    UPSTREAM_LET_GO_MS,
    UPSTREAM_PIECE_BYTES_MAX,
    UPSTREAM_RESET_MS_MIN,
    UPSTREAM_SILENCE_MS,
    UPSTREAM_SMALL_BYTES_MAX,
    UPSTREAM_TURN_BYTES,
)
from watchbill.errors import EngineFailed

__all__ = ["Connection", "Deadlines", "FailureKind", "Outgoing", "UpstreamFailed", "is_timeout"]

_NEVER = float("inf")
#: The headers that tell where a body ends.
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class FailureKind(StrEnum):
    """What went wrong with a request to an engine."""

    CONNECT = "connect"  # no connection
    CLOSED = "closed"  # the connection was closed without an answer
    TRUNCATED = "truncated"  # the answer broke off
    GARBLED = "garbled"  # the answer is not HTTP, or not what its address promises
    TOO_LARGE = "too_large"  # the answer exceeds a bound
    TIMEOUT = "timeout"  # a deadline passed
    ABORTED = "aborted"  # the request was cut on this side


class UpstreamFailed(EngineFailed):
    """The engine did not give a whole answer.

    `received` says whether any byte of an answer came: without one the request may be sent again. `refused` says that
    no program listens at the address; a program that is stopped, or behind a broken network, still may. `distrusted`
    says that TLS failed for a reason that waiting does not mend: a certificate, or a port without TLS.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        received: bool = False,
        refused: bool = False,
        distrusted: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.received = received
        self.refused = refused
        self.distrusted = distrusted

    @property
    def is_broken_off(self) -> bool:
        """Whether no program listens, or it left before the end of its answer."""
        return self.kind in (FailureKind.CONNECT, FailureKind.CLOSED, FailureKind.TRUNCATED)

    @property
    def is_unheard(self) -> bool:
        """Whether nobody took the request: a tunnel accepts for a machine that is away, and closes."""
        return self.refused or (self.kind is FailureKind.CLOSED and not self.received)


def is_timeout(error: BaseException) -> bool:
    """Whether an engine took longer than it may."""
    return isinstance(error, UpstreamFailed) and error.kind is FailureKind.TIMEOUT


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long an engine may take before it counts as hung."""

    connect_ms: int = UPSTREAM_CONNECT_MS
    first_byte_ms: int = UPSTREAM_FIRST_BYTE_MS
    silence_ms: int = UPSTREAM_SILENCE_MS  # between two pieces of an answer


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A request and its address. Path and headers are ours: they never contain text of a caller.

    `path` is the one of the protocol, such as /v1/chat/completions. The client puts the endpoint's own path before
    it."""

    endpoint: Endpoint
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    rest: tuple[bytes, ...] = ()  # further pieces of a large body, which is not copied


class Connection(asyncio.Protocol):
    """Carries one request and its answer at a time; `begin` makes it ready for the next."""

    __slots__ = (
        "_backlog", "_begun", "_deadline", "_deadlines", "_heard_at", "_interim", "_is_full", "_is_known",
        "_is_reading", "_loop", "_on_let_go", "_on_lost", "_parser", "_parted_at", "_paused", "_received", "_reset_ms",
        "_silent_s", "_timer", "_transport", "_unread", "_unsent", "_waiter", "_wordless", "failure", "followed_stream",
        "has_had_share", "headers", "idle_since", "is_done", "is_kept", "keeps_alive", "pieces", "status", "streamed",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: "Callable[[Connection], None]") -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines = Deadlines()  # those that the timer was armed for
        self._deadline = _NEVER
        self._waiter: asyncio.Future[None] | None = None
        self.failure: UpstreamFailed | None = None  # final; pieces that came before it can be taken
        self.pieces: list[bytes] = []  # received and not taken yet
        self.has_had_share = False  # what is left of them can be taken in the next turn of the loop
        self._backlog: memoryview | None = None  # received and not parsed yet
        self._is_reading = True
        self._unsent: Iterator[bytes | memoryview] | None = None  # the rest of a large request
        self._is_full = False  # the transport holds enough of it
        self._unread = 0
        self._paused = False  # the taker is slow
        self._interim = False
        self.is_done = True  # whether no answer, or no more of it, is to come
        self.keeps_alive = False  # once it is done: whether the connection can serve another request
        self.is_kept = False  # whether it has served a request before
        self.idle_since = 0.0
        self.streamed = False  # whether the current request asked for a stream
        self.followed_stream = False  # whether the request before it did
        self._parted_at = 0.0  # when we half-closed in the middle of an answer
        self._silent_s = 0.0  # how long the engine had been silent then
        self._reset_ms = 0.0  # the time that the engine gets to notice a reset
        self._is_known = True  # whether it is known that the engine has let go, once it counts so
        self._on_let_go: Callable[[bool], None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._heard_at = 0.0
        self.status = 0  # until the head is there
        self.headers: dict[bytes, bytes] = {}  # by lower-case name, the first of each
        self._received = False
        self._wordless = 0
        self._begun = False

    # ------------------------------------------------------------------ the caller's side

    def can_serve(self) -> bool:
        """Whether another request may be sent."""
        if self.failure is not None or self._backlog is not None:
            return False
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes | tuple[bytes, ...], deadlines: Deadlines, *, streamed: bool) -> None:
        """Sends a request. The previous answer must have been taken whole."""
        assert self.is_done and not self.pieces and self._transport is not None
        self._forget()
        self.is_done = False
        self.followed_stream = self.streamed
        self.streamed = streamed
        self._heard_at = self._loop.time()
        self._deadline = self._heard_at + deadlines.first_byte_ms / 1000
        if self._timer is None or self._deadlines is not deadlines:
            self._deadlines = deadlines
            self._arm()
        if isinstance(request, bytes):
            self._transport.write(request)
        else:
            self._unsent = _slices(request)
            self._send_more()

    def changed(self) -> "asyncio.Future[None]":
        """A future of the next news: a head, a piece, the end or a failure. One caller waits at a time.

        A future and no coroutine: it is awaited for every piece of every answer."""
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def take(self) -> bytes:
        """What was received and not taken yet, without waiting; of much, the share of this turn."""
        pieces = self.pieces
        if self._unread <= UPSTREAM_TURN_BYTES:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._unread = 0
        else:
            data = self._take_share()
        if self._paused and self._unread <= UPSTREAM_TURN_BYTES:
            self._paused = False
            self._deadline = self._loop.time() + self._deadlines.silence_ms / 1000
            self._go_on_reading()
        return data

    def _take_share(self) -> bytes:
        """As many of the pieces as belong to one turn: none is larger than that."""
        count = size = 0
        for piece in self.pieces:
            if size and size + len(piece) > UPSTREAM_TURN_BYTES:
                break
            count, size = count + 1, size + len(piece)
        data = b"".join(self.pieces[:count])
        del self.pieces[:count]
        self._unread -= size
        self.has_had_share = bool(self.pieces)
        if self.has_had_share:
            self._loop.call_soon(self._next_turn)
        return data

    def _next_turn(self) -> None:
        self.has_had_share = False
        self._wake()

    def drop(self) -> None:
        """Forgets what was received and not taken."""
        self.pieces.clear()
        self._unread = 0

    def abort(self) -> None:
        """Drops the socket at once, whatever its engine does."""
        self._fail(FailureKind.ABORTED, "the request to the engine was cut")

    def close(self) -> None:
        """Ends a connection that serves no request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport = self._transport
        if transport is None:
            return
        if self._unsent is None and transport.can_write_eof() and not transport.get_write_buffer_size():
            transport.close()
        else:
            # A closing TLS connection waits for its peer's farewell, and one with unsent bytes for its peer's reading.
            transport.abort()

    # ------------------------------------------------------------------ letting go

    @property
    def has_spoken(self) -> bool:
        """Whether a byte of the answer came, where more is to come."""
        return self._begun

    @property
    def silent_ms(self) -> int:
        """How long the engine has said nothing, or had when the request was cut. It is not silent while we do not
        read."""
        if self._parted_at:
            return round(self._silent_s * 1000)
        return 0 if self._paused else round((self._loop.time() - self._heard_at) * 1000)

    def part(
        self, kind: FailureKind = FailureKind.ABORTED, message: str = "the request to the engine was cut"
    ) -> None:
        """Cuts the request: half-closes the connection, and reads on until the engine has let go."""
        transport, silent_ms = self._transport, self.silent_ms
        self._forbid(kind, message)
        if transport is None or transport.is_closing() or self._parted_at:
            return
        self._parted_at, self._silent_s = self._loop.time(), silent_ms / 1000
        self.drop()
        is_unsent = self._unsent is not None or transport.get_write_buffer_size()
        if is_unsent or not transport.can_write_eof():
            transport.abort()  # the engine has not received the whole request, or there is no half-close
            return
        if self._paused:
            self._paused = False
            self._go_on_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(UPSTREAM_LET_GO_MS / 1000, self._give_up)
        transport.write_eof()

    @property
    def can_part(self) -> bool:
        """Whether its socket is still there."""
        return self._transport is not None

    def on_let_go(self, tell: "Callable[[bool], None]") -> bool:
        """Calls `tell` when the engine has let go, with whether that is known. False: it already has."""
        if self._transport is None and self._on_let_go is None:
            return False
        self._on_let_go = tell
        return True

    def _give_up(self) -> None:
        self._timer, self._is_known = None, False
        if self._transport is not None:
            self._transport.abort()

    def _hear_rest(self, data: bytes) -> None:
        """Reads over what the engine sends after our half-close; only the end matters."""
        transport, now = self._transport, self._loop.time()
        if transport is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            transport.abort()
            return
        self.drop()
        if self.is_done:
            transport.abort()  # the answer has ended: the engine has let go
        elif now - self._parted_at >= UPSTREAM_GOODBYE_MS / 1000:
            self._reset(transport, (now - self._heard_at) * 1000)
        self._heard_at = now

    def _reset(self, transport: asyncio.Transport, pause_ms: float) -> None:
        """Makes the next write of an engine fail that does not watch its clients."""
        self._reset_ms = min(max(2 * pause_ms, UPSTREAM_RESET_MS_MIN), UPSTREAM_LET_GO_MS)
        peer = cast("socket.socket | None", transport.get_extra_info("socket"))
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _let_go(self) -> None:
        tell, self._on_let_go = self._on_let_go, None
        if tell is not None:
            tell(self._is_known)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ large requests

    def _send_more(self) -> None:
        """Sends one piece of a large request, then lets other work go first: a body that is encrypted or copied as a
        whole would hold up every other request."""
        transport = self._transport
        if self._unsent is None or transport is None or transport.is_closing():
            return
        piece = next(self._unsent, None)
        if piece is None:
            self._unsent = None
            return
        transport.write(piece)
        if not self._is_full:
            self._loop.call_soon(self._send_more)

    def pause_writing(self) -> None:
        """The transport holds enough that the engine has not read."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The engine has read most of it."""
        self._is_full = False
        self._send_more()

    # ------------------------------------------------------------------ deadlines

    def _arm(self) -> None:
        # One timer for all deadlines of a connection: it looks again when it fires too early. Arming one per
        # piece would cost more than parsing the piece. No deadline of a later request with the same Deadlines
        # can be before this look, so that one needs no timer of its own either.
        if self._timer is not None:
            self._timer.cancel()
        soonest_ms = min(self._deadlines.first_byte_ms, self._deadlines.silence_ms)
        looks_at = min(self._deadline, self._loop.time() + soonest_ms / 1000)
        self._timer = self._loop.call_at(looks_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.is_done or self.failure is not None:
            return
        if self._loop.time() < self._deadline:
            self._arm()
        elif self._begun:
            self.part(FailureKind.TIMEOUT, "the engine stopped in the middle of its answer")
        else:
            self.part(FailureKind.TIMEOUT, "the engine accepted the request and never answered")

    # ------------------------------------------------------------------ the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._backlog is not None:  # it came although reading pauses
            self._backlog = memoryview(b"".join((self._backlog, data)))
        elif len(data) <= UPSTREAM_TURN_BYTES:
            self._hear(data)
        else:
            self._backlog = memoryview(data)
            self._pause_reading()
            self._hear_share()

    def _hear_share(self) -> None:
        """Parses this turn's share of what came at once. The rest waits for the next turn, or for a slow taker."""
        backlog, transport = self._backlog, self._transport
        if backlog is None or self._paused or transport is None or transport.is_closing():
            return
        self._backlog = backlog[UPSTREAM_TURN_BYTES:] if len(backlog) > UPSTREAM_TURN_BYTES else None
        self._hear(bytes(backlog[:UPSTREAM_TURN_BYTES]))
        if not self._paused:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """In the next turn: first what came already, then the socket."""
        if self._backlog is not None:
            self._loop.call_soon(self._hear_share)
        elif not self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def _hear(self, data: bytes) -> None:
        if self._parted_at:
            self._hear_rest(data)
            return
        if self.is_done:
            # Bytes without a request: what follows could be taken for the next answer.
            self._fail(FailureKind.GARBLED, "the engine sent more than its answer")
            return
        self._received = True
        unread = self._unread
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(FailureKind.GARBLED, "the engine wants to change protocols")
        except httptools.HttpParserError as error:
            self._fail(FailureKind.GARBLED, f"the engine's answer is not HTTP: {error}")
        else:
            if not self.is_done:
                self._expect_more(len(data), has_grown=self._unread > unread)
        self._wake()

    def _expect_more(self, size: int, *, has_grown: bool) -> None:
        """Bounds what may follow: its time, its bytes without content, and what waits for a slow taker."""
        if not has_grown:
            self._wordless += size
            if self._wordless > UPSTREAM_HEAD_BYTES_MAX:
                self._fail(FailureKind.TOO_LARGE, "the engine's headers do not end")
            return
        self._begun = True
        self._wordless = 0
        if self._paused:
            return
        if self._unread > UPSTREAM_BUFFER_BYTES_MAX and self._transport is not None:
            self._paused = True
            self._deadline = _NEVER  # it is our reader that is slow now, not the engine
            self._pause_reading()
        else:
            self._heard_at = self._loop.time()
            self._deadline = self._heard_at + self._deadlines.silence_ms / 1000

    def eof_received(self) -> None:
        return None  # closes the transport; an engine that half-closes has nothing more to say

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._unsent = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        backlog, self._backlog = self._backlog, None
        if backlog is not None and self.failure is None:
            self._hear(bytes(backlog))  # at most what one reading of a socket gives
        if self.failure is None:
            if self.is_done:
                self.failure = UpstreamFailed(FailureKind.CLOSED, "the engine closed the connection")
            else:
                self._end_by_close(exc)
        self._wake()
        self._on_lost(self)
        if self._reset_ms:
            self._loop.call_later(self._reset_ms / 1000, self._let_go)
        else:
            self._let_go()
        del self._parser  # they refer to each other: only the garbage collector would free them

    @property
    def _ends_by_close(self) -> bool:
        return self.status not in (0, 204, 304) and self.headers.keys().isdisjoint(_LENGTHS)

    def _end_by_close(self, exc: Exception | None) -> None:
        if self._ends_by_close and exc is None:
            self.is_done = True  # HTTP/1.0 style: the close is the end
            self.keeps_alive = False
        elif not self._received:
            self.failure = UpstreamFailed(
                FailureKind.CLOSED, "the engine closed the connection without an answer"
            )
        else:
            self.failure = UpstreamFailed(
                FailureKind.TRUNCATED, "the engine broke off its answer", received=True
            )

    def _fail(self, kind: FailureKind, message: str) -> None:
        self._forbid(kind, message)
        if self._transport is not None:
            self._transport.abort()

    def _forbid(self, kind: FailureKind, message: str) -> None:
        """Nothing more can be taken; the waiting caller is told."""
        if self.failure is None and not (self.is_done and kind is FailureKind.ABORTED):
            self.failure = UpstreamFailed(kind, message, received=self._received)
        self._wake()

    # ------------------------------------------------------------------ httptools' callbacks

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for."""
        if self.is_done:
            self._fail(FailureKind.GARBLED, "the engine sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer: those are read over."""
        if self.status:
            return
        self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """The head is there, unless it was only an interim answer (1xx)."""
        if self.is_done:
            return
        status = self._parser.get_status_code()
        if len(self.headers) > UPSTREAM_HEADERS_MAX:
            self._fail(FailureKind.TOO_LARGE, "the engine sent too many headers")
        elif status >= 200:
            self.status = status
        else:
            self._interim = True
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        if not self.is_done:
            self.pieces.append(body)
            self._unread += len(body)

    def on_message_complete(self) -> None:
        """The end of the answer, or of an interim one."""
        if self._interim:
            self._interim = False
        elif not self.is_done:
            self.is_done = True
            # An answer before the request's end: the rest of the request would be taken for the next one.
            self.keeps_alive = self._unsent is None and self._parser.should_keep_alive()


def _slices(request: tuple[bytes, ...]) -> Iterator[bytes | memoryview]:
    """A request in slices of a turn each: large pieces are cut without a copy, small ones are joined as they go out."""
    small: list[bytes] = []
    size = 0
    for piece in request:
        if len(piece) < UPSTREAM_SMALL_BYTES_MAX:
            small.append(piece)
            size += len(piece)
        if small and (size >= UPSTREAM_PIECE_BYTES_MAX or len(piece) >= UPSTREAM_SMALL_BYTES_MAX):
            yield b"".join(small)
            small, size = [], 0
        if len(piece) >= UPSTREAM_SMALL_BYTES_MAX:
            view = memoryview(piece)
            for at in range(0, len(view), UPSTREAM_PIECE_BYTES_MAX):
                yield view[at : at + UPSTREAM_PIECE_BYTES_MAX]
    if small:
        yield b"".join(small)
