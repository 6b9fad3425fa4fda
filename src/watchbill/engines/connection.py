"""One connection to an engine: an asyncio protocol around httptools' parser.

Owns the socket and the bytes received and not yet taken. Promises that an answer is either whole or an
error: a short Content-Length, a chunked body without its end, a reset and a silence past the deadline all
raise UpstreamFailed. Reading stops while the taker is slow, so that the engine feels the back-pressure. Never
follows a redirect, never decompresses, never sends anything by itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import httptools
import msgspec

from watchbill.engines.base import Endpoint
from watchbill.errors import EngineFailed
from watchbill.limits import (
    UPSTREAM_BUFFER_BYTES_MAX,
    UPSTREAM_CONNECT_MS,
    UPSTREAM_FIRST_BYTE_MS,
    UPSTREAM_HEAD_BYTES_MAX,
    UPSTREAM_HEADERS_MAX,
    UPSTREAM_SILENCE_MS,
)

__all__ = ["Connection", "Deadlines", "Outgoing", "UpstreamFailed"]

_NEVER = float("inf")
#: The headers that tell where a body ends.
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class UpstreamFailed(EngineFailed):
    """The engine did not give a whole answer.

    `kind` is one of connect, closed, truncated, garbled, too_large, timeout, aborted. `received` says whether
    any byte of an answer had come: without one the request may be sent again.
    """

    def __init__(self, kind: str, message: str, *, received: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.received = received


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long an engine may take before it counts as hung."""

    connect_ms: int = UPSTREAM_CONNECT_MS
    first_byte_ms: int = UPSTREAM_FIRST_BYTE_MS
    silence_ms: int = UPSTREAM_SILENCE_MS  # between two pieces of an answer


class Outgoing(msgspec.Struct, frozen=True):
    """What is sent, and where. Path and headers are ours: no client's text ever gets into them."""

    endpoint: Endpoint
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Connection(asyncio.Protocol):
    """Carries one request and its answer at a time; `begin` makes it ready for the next."""

    __slots__ = (
        "_begun", "_deadline", "_header_count", "_interim", "_looks_at", "_loop", "_on_lost",
        "_parser", "_paused", "_silence_s", "_timer", "_transport", "_unread", "_waiter",
        "_wordless", "answer_bytes", "busy", "failure", "headers", "headers_done", "idle_since", "is_done",
        "keeps_alive", "pieces", "status", "streamed",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: "Callable[[Connection], None]") -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = _NEVER  # when the timer fires
        self._waiter: asyncio.Future[None] | None = None
        self.pieces: list[bytes] = []  # what has come and was not taken yet
        self._paused = False
        self.busy = False
        self.idle_since = 0.0
        self.streamed = False
        self._reset(_NEVER, _NEVER)

    def _reset(self, deadline: float, silence_s: float) -> None:
        self.status = 0
        self._header_count = 0
        self.headers: dict[bytes, bytes] = {}  # by lower-case name, the first of each
        self.headers_done = False
        self.is_done = False
        self.keeps_alive = False
        self.answer_bytes = 0
        self.failure: UpstreamFailed | None = None  # pieces that came before it can still be taken
        self.pieces.clear()
        self._unread = 0
        self._wordless = 0
        self._interim = False
        self._begun = False
        self._deadline = deadline
        self._silence_s = silence_s

    # ------------------------------------------------------------------ the caller's side

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing() and self.failure is None

    def begin(self, request: bytes, deadlines: Deadlines, *, streamed: bool) -> None:
        """Sends a request. The previous answer must have been taken whole."""
        assert not self.busy and self._transport is not None
        now, silence_s = self._loop.time(), deadlines.silence_ms / 1000
        self._reset(now + deadlines.first_byte_ms / 1000, silence_s)
        self.busy = True
        self.streamed = streamed
        if self._timer is None or self._looks_at > now + silence_s or self._looks_at > self._deadline:
            self._arm()
        self._transport.write(request)

    def changed(self) -> "asyncio.Future[None]":
        """News, to be awaited: a head, a piece, the end or a failure. One waits at a time.

        A future and no coroutine: it is awaited for every piece of every answer."""
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def take(self) -> bytes:
        """All that has come and was not taken yet, without waiting."""
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._deadline = self._loop.time() + self._silence_s
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Drops the socket at once: this is how an engine learns that nobody wants the answer any more."""
        self._fail("aborted", "the request to the engine was cut")

    def close(self) -> None:
        """Ends an idle connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.close()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ------------------------------------------------------------------ deadlines

    def _arm(self) -> None:
        # One timer for all deadlines of a connection: it looks again when it fires too early. Arming one per
        # piece would cost more than parsing the piece.
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = min(self._deadline, self._loop.time() + self._silence_s)
        self._timer = self._loop.call_at(self._looks_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.busy or self.is_done or self.failure is not None:
            return
        if self._loop.time() < self._deadline:
            self._arm()
        elif self._begun:
            self._fail("timeout", "the engine stopped in the middle of its answer")
        else:
            self._fail("timeout", "the engine accepted the request and never answered")

    # ------------------------------------------------------------------ the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self.busy or self.is_done:
            # Bytes that nobody asked for: what follows could be taken for the next answer.
            self._fail("garbled", "the engine sent more than its answer")
            return
        self.answer_bytes += len(data)
        self._wordless += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("garbled", "the engine wants to change protocols")
        except httptools.HttpParserError as error:
            self._fail("garbled", f"the engine's answer is not HTTP: {error}")
        else:
            if self._wordless > UPSTREAM_HEAD_BYTES_MAX:
                self._fail("too_large", "the engine's headers do not end")
        self._wake()

    def eof_received(self) -> None:
        return None  # closes the transport; an engine that half-closes has nothing more to say

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.busy and not self.is_done and self.failure is None:
            self._end_by_close(exc)
        elif self.failure is None:
            self.failure = UpstreamFailed("closed", "the engine closed the connection")
        self._wake()
        self._on_lost(self)

    @property
    def _ends_by_close(self) -> bool:
        return self.status not in (204, 304) and self.headers.keys().isdisjoint(_LENGTHS)

    def _end_by_close(self, exc: Exception | None) -> None:
        if self.headers_done and self._ends_by_close and exc is None:
            self.is_done = True  # HTTP/1.0 style: the close is the end
        elif not self.answer_bytes:
            self.failure = UpstreamFailed("closed", "the engine closed the connection without an answer")
        else:
            self.failure = UpstreamFailed("truncated", "the engine broke off its answer", received=True)

    def _fail(self, kind: str, message: str) -> None:
        if self.failure is None and not (self.is_done and kind == "aborted"):
            self.failure = UpstreamFailed(kind, message, received=self.answer_bytes > 0)
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # ------------------------------------------------------------------ httptools' callbacks

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for."""
        if self.is_done:
            self._fail("garbled", "the engine sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer: those are read over."""
        if self.headers_done:
            return
        self.headers.setdefault(name.lower(), value)
        self._header_count += 1
        if self._header_count > UPSTREAM_HEADERS_MAX:
            self._fail("too_large", "the engine sent too many headers")

    def on_headers_complete(self) -> None:
        """The head is there, unless it was only an interim answer (1xx)."""
        if self.is_done:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self.headers.clear()
            self._header_count = 0
            return
        self.status = status
        self.headers_done = True

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        if self.is_done:
            return
        self._wordless = 0
        self._begun = True
        self.pieces.append(body)
        self._unread += len(body)
        if self._unread > UPSTREAM_BUFFER_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._deadline = _NEVER  # it is our reader who is slow now, not the engine
            self._transport.pause_reading()
        elif not self._paused:
            self._deadline = self._loop.time() + self._silence_s

    def on_message_complete(self) -> None:
        """The end of the answer, or of an interim one."""
        if self._interim:
            self._interim = False
            return
        if self.is_done:
            return
        self.is_done = True
        self.keeps_alive = self._parser.should_keep_alive()
