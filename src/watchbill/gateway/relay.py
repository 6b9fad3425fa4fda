"""The relay: carries one request to the engine whose turn it is, and the answer back.

    turn ──▶ call ──▶ status ──▶ first piece ──▶ further pieces ──▶ end
      ▲        │                      │
      └────────┴── given back ────────┘      the engine died, or the scheduler wants its place: once without
                                             being noticed, and only while the client has seen nothing

Owns the ticket and the upstream call of one request. Promises that both are closed whatever happens: a client
that leaves cancels the handler, and that ends in `close`, which aborts the engine's socket and releases the
grant. An answer that breaks off after its first byte ends with an error event, never silently.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec.structs import replace as struct_replace

from watchbill.catalog import Tier
from watchbill.core.messages import CutKind
from watchbill.engines.limits import ERROR_BYTES_MAX, UPSTREAM_ANSWER_BYTES_MAX
from watchbill.engines.sse import ENDED_EARLY, WholeEvents, is_sign_of_life
from watchbill.engines.statuses import Said, said_by
from watchbill.engines.upstream import (
    Call,
    Deadlines,
    FailureKind,
    Outgoing,
    Upstream,
    UpstreamFailed,
    is_timeout,
)
from watchbill.errors import (
    Cancelled,
    EngineFailed,
    NoLease,
    Preempted,
    RunTimeout,
    ShuttingDown,
    TheirsError,
    TierClosed,
)
from watchbill.gateway.answers import EngineRefused, is_of_the_site, let_go, verdict
from watchbill.gateway.breaks import Breaks
from watchbill.gateway.capture import Tap
from watchbill.gateway.charging import Charge, Charging
from watchbill.gateway.far_errors import FAR_REFUSALS
from watchbill.gateway.forced_calls import ForcedCall
from watchbill.gateway.limits import (
    CLOSING_PAUSE_MS,
    HEADERS_HELD_LEASED_MS,
    HEADERS_HELD_MS,
    KEEP_ALIVE_COMMENT_MS,
    PEER_FIRST_SIGN_MS,
    RESUME_WAIT_MS,
)
from watchbill.gateway.meters import TokenCount
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Resumption
from watchbill.gateway.stream import Out
from watchbill.gateway.typed import object_of
from watchbill.gateway.wire import failure_in, first_fields
from watchbill.runtime.ticket import Start, Ticket
from watchbill.steps import join

__all__ = ["Collector", "Relay"]

#: What broke may be well again on another engine or a fresh one; the rest would break again.
_REPEATABLE = frozenset({FailureKind.CONNECT, FailureKind.CLOSED, FailureKind.TRUNCATED})
#: The tiers whose machines may vanish in the middle of an answer, which then goes on elsewhere or later.
_CONTINUED = frozenset({Tier.PEER, Tier.BURST})
#: The tiers of the config, which cost money: a peer costs nothing.
_CHARGED = frozenset({Tier.BURST, Tier.EXTERNAL})
#: Every server has this address: where it answers 404, it lacks the model.
_CHAT_PATH = "/v1/chat/completions"
_UNKNOWN_KEY, _TOO_MANY = 401, 429
_EVENT_END = b"\n\n"
#: How the sign of life of a request begins that waits.
_WAITS = b": queued"
_STREAM_END = b"data: [DONE]"
#: An attempt failed, and no turn has its number.
_ANY_ATTEMPT = -1
#: What the caller is told of a cut that ends its request.
_CUTS: dict[CutKind, type[TheirsError]] = {
    CutKind.PREEMPTED: Preempted,
    CutKind.CANCELLED: Cancelled,
    CutKind.RUN_TIMEOUT: RunTimeout,
    CutKind.SHUTTING_DOWN: ShuttingDown,
    CutKind.ENGINE_FAILED: EngineFailed,
}


class Collector(Protocol):
    """Makes one answer out of the pieces of a stream."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole already: the engine need not go on."""
        ...

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises what the engine says went wrong."""
        ...

    def result(self) -> dict[str, object]:
        """The whole answer. Raises EngineFailed when the stream ended before its end."""
        ...


@dataclass(slots=True, eq=False)
class Relay(AbstractContextManager["Relay", None]):
    """One request's way to its engine. Every step can be interrupted and taken up again."""

    upstream: Upstream
    ticket: Ticket
    context: RequestContext
    send: Callable[[Start], Outgoing]
    on_close: "Callable[[Relay], None]"
    streamed: bool
    not_continued: set[str]  # models that were seen not to continue answers
    #: Asked when the engine does not have the address: True when `send` now asks otherwise, in the same turn.
    unknown: Callable[[], bool] | None = None
    tap: Tap | None = None  # set for a request that is captured
    tokens: TokenCount | None = None  # set for one of a key whose tokens are counted
    resume: Resumption | None = None  # set for one that yields in the middle of its answer
    charging: Charging | None = None  # set where there are tiers
    forced: ForcedCall | None = None  # set for one whose answer becomes a call
    on_end: "Callable[[Relay], None] | None" = None  # set for one that is traced
    status: int = 0  # until the answer's is there
    events: int = 0  # of the answer's stream so far: an engine sends one for each token
    is_stream: bool = False  # once it is: whether the engine answers with a stream of events
    _call: Call | None = None
    _start: Start | None = None
    _failed_attempt: int | None = None
    _ends_there: bool = False  # the other machine shuts down: it has failed no request, and is gone soon
    _breaks: Breaks = field(default_factory=Breaks)  # of connections to other machines
    _was_unknown: bool = False  # a peer that had given a lease did not know the key
    _charge: Charge | None = None  # of this turn, where it costs money
    _held: WholeEvents | None = None  # of an external tier's stream, until its first event is whole
    _reserving: "asyncio.Task[None] | None" = None
    _retry_after_ms: int | None = None
    _asked_for: str = ""  # the path of the question
    _asked_at: float = 0.0  # when another machine was asked
    _has_waited_there: bool = False  # that machine said so, or gave signs of life before the answer began
    _outcome: str = "cancelled"
    _is_finished: bool = False
    _is_divisible: bool = True  # as far as the scheduler knows, this turn's answer may stop at a boundary
    _is_unseen: bool = False  # the client gets a whole answer: until then it may begin anew
    _begins_anew: bool = False  # what was collected of an answer is not continued

    # ------------------------------------------------------------------ for ModelCalls

    @property
    def content_type(self) -> str:
        """The answer's media type."""
        return self._call.content_type if self._call is not None else ""

    @property
    def retry_after_ms(self) -> int | None:
        """When the engine wants to be asked again."""
        return self._retry_after_ms

    @property
    def outcome(self) -> str:
        """How it ended: `ok`, `cancelled`, or a code of `errors`."""
        return self._outcome

    def first(self, out: Out | None = None) -> Awaitable[bytes]:
        """Waits for the turn, the answer's status and its first piece. Signs of life go to `out` meanwhile.

        Raises what the scheduler refuses, what the engine could not do twice, and ShuttingDown."""
        return self._advance() if out is None else self._advance_alive(out)

    async def _advance_alive(self, out: Out) -> bytes:
        held_ms = HEADERS_HELD_MS if self.ticket.request.lease is None else HEADERS_HELD_LEASED_MS
        while True:
            try:
                async with asyncio.timeout(held_ms / 1000):
                    return await self._advance()
            except TimeoutError:
                with self._unnamed_site():
                    await out.comment(self._place())
                held_ms = KEEP_ALIVE_COMMENT_MS

    @contextmanager
    def _unnamed_site(self) -> Generator[None]:
        """Headers that go before the answer do not say where it comes from, where another site may still serve it."""
        context, start = self.context, self._start
        kept = context.start, context.cost
        if start is not None and start.site is not None and self.ticket.can_leave_site:
            context.start = context.cost = None
        try:
            yield
        finally:
            context.start, context.cost = kept

    async def turn(self) -> None:
        """Waits for the turn alone; the engine is asked nothing. Raises what the scheduler refuses."""
        self._start = start = await self.ticket.granted()
        self.context.start, self.context.model = start, start.model

    def _listen(self, piece: bytes) -> None:
        self.events += piece.count(_EVENT_END)
        if self.tokens is not None:
            self.tokens.feed(piece)
        if self.tap is not None:
            self.tap.feed(piece)
        if self._charge is not None:
            self._charge.tokens.feed(piece)

    async def more(self) -> bytes:
        """The next piece; empty at the end. Raises what cut the answer off."""
        assert self._call is not None
        try:
            while (piece := self._take(self._call)) is None:
                await self._call.changed()
        except UpstreamFailed as error:
            raise self._reason(error) from None
        self._listen(piece)
        return piece

    async def whole(self, make: "Callable[[], Collector] | None" = None) -> Collector | bytes:
        """The whole answer: what `make` makes, fed with a stream, or the bytes of an answer that is none.

        An answer that breaks off is continued, or asked for once more: the client has seen nothing of it."""
        collector: Collector | None = None
        self._is_unseen = True
        is_overheard = self.tap is not None or self.tokens is not None or self.charging is not None
        while True:
            while (piece := self._poll()) is None:
                await self._changed()
            if self._begins_anew:
                collector, self._begins_anew = None, False
            if make is not None and self.is_stream:
                self.ticket.hear()
                collector = collector or make()
            elif collector is not None:
                collector = self._ask_anew()
                continue
            call, size, resume = self._call, 0, self.resume
            assert call is not None
            plain: list[bytes] = []
            take = plain.append if collector is None else collector.feed
            try:
                while piece:
                    size += len(piece)
                    if size > UPSTREAM_ANSWER_BYTES_MAX:
                        raise EngineFailed(f"the engine's answer exceeds {UPSTREAM_ANSWER_BYTES_MAX} bytes")
                    take(piece)
                    if is_overheard:
                        self._listen(piece)
                    else:
                        self.events += piece.count(_EVENT_END)
                    is_over = collector is not None and collector.is_over
                    if resume is not None and not is_over and resume.is_at_boundary:
                        resume.go_on()
                        self._return_turn()
                        break
                    if is_over or (resume is None and self.forced is None and call.has_ended):
                        piece = b""
                        continue
                    while (piece := self._take(call)) is None:
                        await call.changed()
                    if piece and resume is None:
                        self.ticket.first_byte()  # what is half made would be made twice: it runs to its end
                else:
                    return await join(plain, size) if collector is None else collector
            except UpstreamFailed as error:
                self._give_back(error)
                let_go(error)
                if resume is None or not resume.go_on():
                    collector = None
                    self._forget_heard()
            finally:
                self.context.gathered += size

    def _ask_anew(self) -> None:
        """The engine does not continue answers: it is asked for the whole one, in the same turn."""
        assert self._call is not None and self.resume is not None
        self._call.abort()
        self._call, self.status = None, 0
        self.resume.give_up()
        self._forget_heard()

    def _forget_heard(self) -> None:
        if self.tap is not None:
            self.tap.restart()

    async def stream(self, out: Out, first: bytes) -> None:
        """Passes the rest of the answer on, piece by piece. Raises what cut it off."""
        if first.startswith(_STREAM_END):
            raise EngineFailed(ENDED_EARLY)
        self.ticket.hear()
        self.ticket.first_byte()
        self._listen(first)
        piece, tail = first, b""
        while piece:
            await out.write(piece)
            tail = piece if len(piece) > 32 else (tail + piece)[-32:]
            if out.is_over:
                break
            if self.resume is not None and self.resume.is_at_boundary:
                piece = await self._yield_turn(out, self.resume)
            else:
                piece = await self._more_or_again(out)
        if not out.has_ended(tail):
            raise EngineFailed(ENDED_EARLY)
        await out.flush()

    async def _more_or_again(self, out: Out) -> bytes:
        """The next piece. After a break at another machine, or of an answer that is on its way to a boundary, the first
        one of the answer's continuation."""
        try:
            return await self.more()
        except EngineFailed as error:
            start, resume = self._start, self.resume
            if start is None or resume is None:
                raise
            if self.ticket.cut is not CutKind.BOUNDARY or not resume.can_go_on:
                self._count_break(error)
                is_again = resume.can_begin and isinstance(error, UpstreamFailed) and self._is_away(error)
                if not self._is_repeatable(error) or not (self._advances() or is_again):
                    raise
                self._failed_attempt = start.attempt
            let_go(error)
            return await self._yield_turn(out, resume)

    async def _yield_turn(self, out: Out, resume: Resumption) -> bytes:
        """Lets others go first in the middle of an answer. Returns the first piece of its continuation."""
        resume.go_on()
        self._return_turn()
        if (
            self.ticket.request.lease is not None
        ):  # its own machine counts the pause as a wait, from its beginning
            await out.comment(self._place())
        piece = await self.first(out)
        if not self.is_stream:
            resume.give_up()
            raise EngineFailed(
                "the engine does not continue the answer that had to make room for another model"
            )
        self.ticket.first_byte()
        self._listen(piece)
        return piece

    def finish(self, *, ok: bool | None, timed_out: bool = False) -> None:
        """The engine is done with this request, or was never asked."""
        if ok is not None:
            self._outcome = "ok" if ok else "engine_failed"
        if self._start is None:
            self.ticket.close()
            return
        if self._call is not None and not self._call.has_ended:
            self.ticket.leave(self._call)
        self.ticket.finish(ok=ok, timed_out=timed_out)
        self._is_finished = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            if isinstance(error, EngineFailed):
                self.finish(ok=verdict(error), timed_out=is_timeout(error))
            if isinstance(error, TheirsError):
                self._outcome = error.code
        self.close()

    def close(self) -> None:
        """Leaves, wherever the request is: the engine's socket is aborted, the grant released."""
        ticket, call = self.ticket, self._call
        self._end_charge()
        if call is not None:
            if not call.has_ended:
                ticket.leave(call)
            self._call = None
        ticket.on_cut = None
        if not self._is_finished:
            ticket.close()
        if self.tokens is not None and self._start is not None:
            self.tokens.end()
        if self.tap is not None:
            self.tap.end(self._outcome)
            self.tap = None
        if self.on_end is not None:
            self.on_end(self)
        self.on_close(self)

    def leave(self) -> None:
        """The gateway shuts down: a request that waits is refused, a running one goes on."""
        if self.ticket.is_waiting:
            self.ticket.close()
            self.ticket.refuse(ShuttingDown())

    def cut_off(self) -> None:
        """The gateway has shut down: a running request ends now."""
        self.ticket.cut_off(CutKind.SHUTTING_DOWN)

    # ------------------------------------------------------------------ the steps

    async def _advance(self) -> bytes:
        """Goes on from where it was interrupted, to the first piece of the answer."""
        while (piece := self._poll()) is None:
            await self._changed()
        return piece

    def _poll(self) -> bytes | None:
        """The first piece of the answer, None while it has to wait for `_changed`."""
        try:
            call = self._call
            if call is None:
                start = self.ticket.start
                if start is None or start.attempt == self._failed_attempt or self._must_reserve(start):
                    return None
                if self._would_begin_anew(start):
                    return self._poll()
                call = self._begin(start)
            status = self.status
            if not status:
                status = self.status = call.poll()
                if status >= 300 and self._asks_again(call, status):
                    return self._poll()
                self.is_stream = status == 200 and call.content_type == "text/event-stream"
            if not status:
                return None
            piece = call.take() if self.resume is None and self.forced is None else self._take(call)
            if piece is not None and self.is_stream:
                if self._is_external:
                    return self._opening(piece)
                if self._is_far:
                    return self._far_opening(piece)
            if piece is not None and self.context.waits_elsewhere:
                self._count_far_wait(call)
            return piece
        except UpstreamFailed as error:
            self._give_back(error)
            let_go(error)
        return self._poll()  # the next turn may have come at once

    @property
    def _is_external(self) -> bool:
        return self._start is not None and self._start.tier is Tier.EXTERNAL

    def _opening(self, piece: bytes) -> bytes | None:
        """The first events of an external tier's stream, which its client may see. None for half of one, and for a sign
        of life: the client gets those of this machine, and the answer may still come from another site. Raises
        UpstreamFailed for a stream that ends at once, and for one that begins with a failure of its server."""
        held = self._held = self._held or WholeEvents()
        events = held.feed(piece) if piece else held.rest()
        if not piece and not events:
            raise UpstreamFailed(FailureKind.TRUNCATED, ENDED_EARLY, received=True)
        if not events or is_sign_of_life(events):
            return self._poll()
        if (failure := failure_in(events)) is None:
            return events + held.rest()
        if self._charge is not None:
            self._charge.is_free = True
        raise UpstreamFailed(FailureKind.GARBLED, str(failure), received=True)

    def _far_opening(self, piece: bytes) -> bytes | None:
        """The first events of the stream of a peer or burst machine. None for a sign of life: the request may wait
        there, and nothing of its answer has come. Raises what keeps that machine from the answer."""
        if piece and is_sign_of_life(piece):
            self._has_waited_there = True
            return self._poll()
        self.ticket.rests(False)
        if self._call is not None and self.context.waits_elsewhere:
            self._count_far_wait(self._call)
        self.check_far(first_fields(piece) if b'"error"' in piece else None)
        return piece

    def _count_far_wait(self, call: Call) -> None:
        """Adds to the wait of the request what it waited at another machine: as that one says, or until its first word
        where its headers went out before that was known."""
        context, start = self.context, self.context.start
        context.waits_elsewhere = False
        if start is None:
            return
        since_ms = round((asyncio.get_running_loop().time() - self._asked_at) * 1000)
        told_ms = since_ms if self._has_waited_there else 0
        waited_ms = told_ms if call.waited_ms is None else min(call.waited_ms, since_ms)
        if waited_ms:
            context.start = struct_replace(start, wait_ms=start.wait_ms + waited_ms)

    def check_far(self, said: object) -> None:
        """Raises the refusal of another Watchbill as one of this machine: later the request may be served there."""
        start, told = self._start, object_of(object_of(said).get("error"))
        kind = FAR_REFUSALS.get(str(told.get("code")))
        if self._is_far and start is not None and kind is not None:
            self.finish(ok=None)
            text = f"{start.site}: {told.get('message')}"[:ERROR_BYTES_MAX]
            raise kind(text, retry_after_ms=self._retry_after_ms)

    def leaves_for(self, error: EngineFailed) -> bool:
        """Whether another site serves a request whose external tier answered with something that is no answer: an error
        that it calls a success, a text that is not JSON, a stream that ended too early. The client has seen nothing."""
        start = self._start
        if start is None or not self._is_external or self._is_finished or self.ticket.cut is not None:
            return False
        if self._charge is not None and isinstance(error, EngineRefused) and not self._charge.tokens.answer:
            self._charge.is_free = True
        if not is_of_the_site(error) or not self.ticket.can_leave_site:
            return False
        self._forget_heard()
        self._return_turn(start.site or "", is_fault=True)
        return True

    def _check_lease(self) -> None:
        """A peer that does not know the lease has ended, or is about to: as one that is away, it has failed no request.
        The request goes back, and a new lease is asked for."""
        if self._is_at_peer:
            raise UpstreamFailed(FailureKind.CONNECT, "the peer does not know the lease any more")

    def _asks_again(self, call: Call, status: int) -> bool:
        """Whether an answer that is none has the request asked again: otherwise, or at another site."""
        if status == NoLease.status:
            self._check_lease()
        if status == _UNKNOWN_KEY and self._is_at_peer and not self._was_unknown:
            # Keys were changed there, and perhaps here, since the lease was given: the next lease tells.
            self._was_unknown = True
            raise UpstreamFailed(FailureKind.CONNECT, "the peer does not know the key any more")
        if call.is_closing and self._is_far:
            self._ends_there = True
            raise UpstreamFailed(FailureKind.CONNECT, "that machine shuts down")
        # Read now: the connection may serve another request when the answer has ended.
        self._retry_after_ms = call.retry_after_ms
        if self.unknown is not None and said_by(status) is Said.LACKS and self.unknown():
            call.abort()
            self._call, self.status = None, 0
            return True
        return self._start is not None and self._start.site is not None and self._leaves_site(status)

    def _leaves_site(self, status: int) -> bool:
        """Whether a request goes to another site, or is told that there is none: the server of its site refuses this
        machine itself. Or fails the request, or lacks its address, and another site may serve it. What a server refuses
        costs nothing."""
        start, said, is_refused = self._start, said_by(status), False
        assert start is not None and start.site is not None
        if self._charge is not None and self.charging is not None:
            self._charge.is_free = True
            is_refused = self.charging.is_refused(
                start, status, self._retry_after_ms, lacks_model=self._asked_for == _CHAT_PATH
            )
        is_passed = said is not Said.REFUSED or status == _TOO_MANY
        if not is_refused and not (is_passed and self.ticket.can_leave_site):
            return False
        self._return_turn(start.site, is_fault=said is Said.FAILED)
        return True

    def _would_begin_anew(self, start: Start) -> bool:
        """Whether the server of a site would not continue the answer that another one had begun: the turn goes back,
        for a site that does. Raises EngineFailed without one: halves of two different answers are no answer. An answer
        of which the client has seen nothing begins anew here: the site that began it may be away for long."""
        resume = self.resume
        if resume is None or start.site is None or start.endpoint.continues or not resume.is_begun_chat:
            return False
        if self._is_unseen:
            resume.forget()
            self._forget_heard()
            self._begins_anew = True
            return False
        if not self.ticket.can_leave_site:
            raise EngineFailed(
                f"the answer had begun elsewhere, and the tier {start.site} does not continue answers"
            )
        self._return_turn(start.site)
        return True

    def _changed(self) -> Awaitable[object]:
        """Waits for the turn, or for more of the answer."""
        if self._call is not None:
            return self._call.changed()
        start = self.ticket.start
        if start is None:
            return self.ticket.granted()
        return self._pause() if start.attempt == self._failed_attempt else self._reserve(start)

    def _must_reserve(self, start: Start) -> bool:
        """Whether what this turn may cost is still to be reserved."""
        return start.tier in _CHARGED and self.charging is not None and self._charge is None

    async def _reserve(self, start: Start) -> None:
        """Reserves what the turn may cost, or gives it back to be served elsewhere. A wait may be taken up again."""
        if self._reserving is None:
            assert self.charging is not None
            self._reserving = asyncio.create_task(self._begin_charge(self.charging, start), name="reserve")
        reserving = self._reserving
        await asyncio.shield(reserving)
        self._reserving = None

    async def _begin_charge(self, charging: Charging, start: Start) -> None:
        try:
            charge = await charging.begin(start, self.send(start), self.context)
        except TierClosed:
            if self.ticket.has_ended:  # nobody is there to be told
                return
            if self.ticket.start is start and self.ticket.can_leave_site:
                self._return_turn(start.site or "")
                return
            raise
        if self.ticket.start is not start or self.ticket.has_ended:  # it left meanwhile
            if charge is not None:
                charge.end(self.ticket.id)
        elif charge is None:
            self._return_turn()
        elif self.ticket.is_out_of_reach:  # the config was changed while the disk wrote
            charge.end(self.ticket.id)
            self._return_turn(start.site or "")
        else:
            self._charge, self.context.cost = charge, (self.context.cost or 0.0) + charge.estimate

    def _end_charge(self) -> None:
        """Settles what the turn cost."""
        if self._charge is not None:
            charge, self._charge = self._charge, None
            if self._call is not None and not self._call.was_sent:
                charge.is_free = True
            rest = (self.context.cost or 0.0) - charge.estimate
            self.context.cost = max(0.0, rest) + charge.end(self.ticket.id)

    async def _pause(self) -> None:
        """The engine failed us a moment ago and the scheduler does not know yet: its news come first."""
        await self.ticket.verified()
        if self._breaks.pause_ms:
            await asyncio.sleep(self._breaks.pause_ms / 1000)
        if self._ends_there:
            await asyncio.sleep(CLOSING_PAUSE_MS / 1000)
        self._failed_attempt = _ANY_ATTEMPT

    def _begin(self, start: Start) -> Call:
        ticket = self.ticket
        self._start = start
        if ticket.cut is not None:
            raise UpstreamFailed(FailureKind.ABORTED, "the request was cut before it was sent")
        self.context.start, self.context.model = start, start.model
        self.context.waits_elsewhere = start.site is not None and self._is_far
        outgoing = self.send(start)
        self._asked_for = outgoing.path
        self._held = None
        if self._charge is not None:
            self._charge.is_free = False
        if start.site is not None:
            ticket.sent()
            self._asked_at, self._has_waited_there = asyncio.get_running_loop().time(), False
        if self.resume is None and start.tier in _CONTINUED and self.streamed:
            self.resume = Resumption(start.model, self.not_continued)
        if self.forced is not None:
            self.forced.begin()
        if self.resume is not None:
            self.resume.is_far = start.tier in _CONTINUED
            outgoing = self.resume.ask(outgoing)
            self._is_divisible = True
            self._tell_indivisible(self.resume)
        if self.context.lifted is not None:
            outgoing = self.context.lifted.fill(outgoing)
        if self.streamed:  # a stream is generated text, whose context the engine keeps
            ticket.prompt_bytes = len(outgoing.body)
            if outgoing.rest:
                ticket.prompt_bytes += sum(map(len, outgoing.rest))
        # A peer has a stream begin while its request waits there, and says so.
        deadlines = self._deadlines_at_peer() if self.streamed and start.tier is Tier.PEER else None
        call = self._call = self.upstream.call(outgoing, streamed=self.streamed, deadlines=deadlines)
        ticket.on_cut = self._on_cut
        if not self.streamed and start.tier in _CONTINUED:
            ticket.rests(True)  # it may wait there, and only its answer will tell
        return call

    def _deadlines_at_peer(self) -> Deadlines:
        """How long a peer may be silent."""
        usual = self.upstream.deadlines
        return replace(usual, first_byte_ms=min(usual.first_byte_ms, PEER_FIRST_SIGN_MS))

    def _take(self, call: Call) -> bytes | None:
        """What has come of the answer, as a call where it must be one."""
        if self.forced is None or not self.is_stream:
            return self._heard(call)
        while piece := self._heard(call):
            if told := self.forced.hear(piece):
                return told
        return piece

    def _tell_indivisible(self, resume: Resumption) -> None:
        """Tells the scheduler once in a turn that the answer runs to its end: a request that waits for its place is
        promised no earlier one."""
        if self._is_divisible and self.streamed and not resume.is_possible:
            self._is_divisible = False
            self.ticket.indivisible()

    def _heard(self, call: Call) -> bytes | None:
        """What has come of the answer, without what belongs to the seams of a continued one."""
        resume = self.resume
        if resume is None or not self.is_stream:
            return call.take()
        piece: bytes | None = b""
        while not resume.broken_by and (piece := self._received(call, resume)):
            heard = resume.hear(piece)
            if resume.is_far:
                waits = _WAITS in piece and _last_line(piece).startswith(_WAITS)
                self._has_waited_there |= waits
                self.ticket.rests(waits)
            self._tell_indivisible(resume)
            if heard:
                return heard
        if resume.broken_by:
            if resume.has_lost_lease:
                self._check_lease()
            raise UpstreamFailed(FailureKind.TRUNCATED, resume.broken_by, received=True)
        return None if piece is None else resume.rest()

    @staticmethod
    def _received(call: Call, resume: Resumption) -> bytes | None:
        """What has come of the answer. One that was said to be over ends where the connection breaks."""
        try:
            return call.take()
        except UpstreamFailed as error:
            if error.kind not in _REPEATABLE or not resume.is_over_there:
                raise
            return resume.end()

    def _on_cut(self) -> None:
        if self.ticket.cut is CutKind.BOUNDARY:
            if self.ticket.driver.is_closing and not self._goes_on_later:
                return
            if self.resume is not None:
                self.resume.wind_up()
                asyncio.get_running_loop().call_later(RESUME_WAIT_MS / 1000, self._stop_here, self._call)
            return  # it goes on to a boundary, at the latest the answer's end
        if self._call is not None:
            self._call.abort()

    @property
    def _goes_on_later(self) -> bool:
        """Whether what is left of the answer may be given after this daemon's end: no client of it waits for that."""
        return self.context.is_detached or self.ticket.request.lease is not None

    def _stop_here(self, call: Call | None) -> None:
        """No boundary came: its engine is slow, or hangs. An answer that can be continued stops where it is."""
        if call is None or call is not self._call or self.ticket.cut is not CutKind.BOUNDARY:
            return
        if self.resume is not None and (self.resume.can_go_on or not call.has_spoken):
            call.abort()

    def _give_back(self, error: UpstreamFailed) -> None:
        """Returns the turn to the scheduler if the request may be repeated, else raises what went wrong."""
        assert self._start is not None
        is_unsent = error.kind is FailureKind.CONNECT or (self._call is not None and not self._call.was_sent)
        if self._charge is not None:
            self._charge.is_free = is_unsent or self._charge.is_free
        cut = self.ticket.cut
        if (
            cut is None
            and self._start.tier is Tier.EXTERNAL
            and self._leaves_dead_site(self._start, error, is_away=is_unsent)
        ):
            return
        # An engine that was gone before it was asked has failed no request: the turn goes back.
        was_unused = cut is CutKind.ENGINE_FAILED and self._call is None
        makes_way = cut in (CutKind.REQUEUE, CutKind.BOUNDARY) or (
            cut is CutKind.PREEMPTED and self._is_unseen
        )
        if not makes_way and not was_unused:
            self._count_break(error)
            is_second = self._failed_attempt is not None and not self._advances() and not self._is_away(error)
            is_silent = self._is_at_peer and error.kind is FailureKind.TIMEOUT
            is_repeatable = self._is_repeatable(error)
            if is_repeatable and (is_silent or (is_second and self._is_at_peer)) and self._leaves_peer():
                return
            if is_second or not is_repeatable:
                raise self._reason(error) from None
            self._failed_attempt = self._start.attempt
        elif self.ticket.is_orphaned and self._call is not None:
            # The scheduler heard of the engine's death first: that counts as a failed attempt, too.
            self._failed_attempt = self._start.attempt
        self._return_turn()

    def _count_break(self, error: EngineFailed) -> None:
        attempt = None if self._start is None else self._start.attempt
        self._breaks.see(error, attempt, at_peer=self._is_at_peer, advances=self._advances())

    def _leaves_peer(self) -> bool:
        """Whether a request goes to another site: the connection to its peer is dead, or breaks each time."""
        assert self._start is not None
        if not self.ticket.can_leave_site:
            return False
        self._breaks.forget()
        self._return_turn(self._start.site or "", is_fault=True)
        return True

    def _leaves_dead_site(self, start: Start, error: UpstreamFailed, *, is_away: bool) -> bool:
        """Whether a request goes to another site: the server of its external tier cannot be reached, or broke off. The
        caller has seen nothing of its answer."""
        is_left = self.ticket.can_leave_site
        is_last = self._failed_attempt is not None or error.kind not in _REPEATABLE
        if is_away and self.charging is not None and (is_left or is_last):
            self.charging.is_away(start)
        if is_left:
            self._return_turn(start.site or "", is_fault=True)
        return is_left

    def _is_repeatable(self, error: EngineFailed) -> bool:
        """Whether the engine is gone, as the scheduler or the broken connection says."""
        cut = self.ticket.cut
        is_broken = isinstance(error, UpstreamFailed) and (
            error.kind in _REPEATABLE or (error.kind is FailureKind.TIMEOUT and self._is_at_peer)
        )
        return cut is CutKind.ENGINE_FAILED or (cut is None and is_broken)

    @property
    def _is_far(self) -> bool:
        """Whether another machine has the request that may be a Watchbill."""
        return self._start is not None and self._start.tier in _CONTINUED

    @property
    def _is_at_peer(self) -> bool:
        """Whether a peer has the request: one that works on it gives signs of life, so one that is silent is away."""
        return self._start is not None and self._start.tier is Tier.PEER

    def _is_away(self, error: UpstreamFailed) -> bool:
        """Whether another machine was not there to be asked: the request waits for it, or for another site."""
        return self._is_far and (
            error.kind is FailureKind.CONNECT or (self._breaks.under_lease > 0 and not self._breaks.is_dead)
        )

    def _advances(self) -> bool:
        """Whether the turn is at another machine and brought further words: then it may break off once more."""
        start, resume = self._start, self.resume
        is_far = start is not None and start.tier in _CONTINUED
        return is_far and resume is not None and resume.can_go_on and resume.has_advanced

    def _return_turn(self, failed_at: str = "", *, is_fault: bool = False) -> None:
        self._end_charge()
        if self._call is not None:
            self.ticket.leave(self._call)
            self._call = None
        goes_on = self._is_far and self.resume is not None and self.resume.can_go_on
        self._start = None
        self.status = 0
        self.ticket.give_back(failed_at, is_fault=is_fault, goes_on=goes_on)

    def _reason(self, error: UpstreamFailed) -> TheirsError:
        how = self.ticket.cut
        if how is not None and how in _CUTS:
            return _CUTS[how]()
        if not self._breaks.is_dead or self._start is None:
            return error
        place = "peer" if self._is_at_peer else "burst tier"
        text = f"the connection to the {place} {self._start.site} broke {self._breaks.under_lease} times in a row"
        told = f"{text}, without a word of the answer: {error}"
        return UpstreamFailed(error.kind, told, received=error.received)

    def _place(self) -> str:
        if self._start is not None:
            return "working"
        left_ms = self.ticket.starts_in_ms()
        return "queued" if left_ms is None else f"queued, about {max(1, left_ms // 1000)} s"


def _last_line(piece: bytes) -> bytes:
    return piece.rstrip(b"\n").rpartition(b"\n")[2]
