"""A ticket: one caller's request, from arrival to end; and the tally of those that started and ended.

The gateway (or any other source of work) holds it; the driver moves it. Every way out ends in `close`, which is
synchronous on purpose: a handler that is being cancelled cannot be cancelled again inside it, so a grant to a
caller that left can never leave an in-flight count behind.

    ticket = driver.submit(Submission(model="smollm2"))  # raises at once: unknown model, full lane, never fits
    try:
        start = await ticket.granted()              # raises when refused: wait exceeded, model failed, ...
        ...                                         # talk to start.endpoint; `first_byte` when the caller has
        ticket.finish(ok=True)                      # seen one; `give_back` and wait again when the engine
    finally:                                        # failed before it
        ticket.close()                              # does nothing after finish
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from watchbill.catalog import Reach, RequestRules, Tier
from watchbill.core.messages import (
    CutKind,
    Ended,
    Event,
    FirstByte,
    Indivisible,
    Left,
    LetGo,
    Parting,
    Request,
    Rested,
    Returned,
    Silence,
)
from watchbill.engines.base import Endpoint
from watchbill.errors import TheirsError
from watchbill.metrics import Metrics
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.limits import TALLY_MAX

__all__ = ["Asked", "Driver", "Outcome", "Start", "Submission", "Tally", "Ticket"]


class Outcome(StrEnum):
    """How a request ended, as metrics and traces name it. A request that never started has its refusal's code."""

    OK = "ok"
    ENGINE_FAILED = "engine_failed"  # it died, broke off, or reported an error
    ENGINE_TIMEOUT = "engine_timeout"  # it was silent for longer than any engine needs
    RUN_TIMEOUT = "run_timeout"  # the lane's time limit was over
    STALLED = "stalled"  # the same, and the answer had begun and stopped in the middle
    PREEMPTED = "preempted"  # an emergency, or the operator
    SHUTTING_DOWN = "shutting_down"
    CANCELLED = "cancelled"  # its caller left


#: The cuts that end a request for good.
_CUTS = {
    CutKind.RUN_TIMEOUT: Outcome.RUN_TIMEOUT,
    CutKind.ENGINE_FAILED: Outcome.ENGINE_FAILED,
    CutKind.PREEMPTED: Outcome.PREEMPTED,
    CutKind.CANCELLED: Outcome.PREEMPTED,
    CutKind.SHUTTING_DOWN: Outcome.SHUTTING_DOWN,
}


class Asked(Protocol):
    """A question to an engine, as far as a ticket uses it; a `Call` of the engine layer."""

    has_ended: bool

    @property
    def has_spoken(self) -> bool: ...

    @property
    def silent_ms(self) -> int: ...

    def abort(self) -> None: ...

    def on_let_go(self, tell: Callable[[bool], None]) -> bool: ...


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A caller's request before the catalog's defaults are filled in."""

    model: str
    lane: str | None = None
    priority: int | None = None
    deadline_ms: int | None = None  # shortens the lane's max_wait, never lengthens it
    operator: bool = False
    best_priority: int = 1  # the caller's ceiling, whatever its lane or model allows
    keep_alive_ms: int | None = None  # how long the model should stay after the answer; a hint, 0: leave now
    exact: bool = False  # no smaller one of the model's family may serve it
    supersede_key: str | None = None  # latest-wins: only the newest waiting request with this key runs
    companions: tuple[str, ...] = ()  # models that must be warm beside it, as the catalog names them
    caller: str | None = None  # the key that has a share of the lane's queue; None: it may have all of it
    reach: Reach = Reach.ANYWHERE  # as its caller marked it
    lease: str | None = None  # of another machine's work
    is_elsewhere: bool = False  # of such work: that machine has another site that may serve it
    passed: tuple[str, ...] = ()  # the marks of daemons that have sent it to a tier of theirs


class Start(msgspec.Struct, frozen=True, gc=False):
    """The start of a request: where to send it, and how long it waited."""

    model: str
    endpoint: Endpoint
    attempt: int
    wait_ms: int
    load_ms: int  # the part of the wait that was the model's own load
    companions: tuple[str, ...] = ()  # the models that are warm beside it
    tier: Tier = Tier.LOCAL
    site: str | None = None  # the tier of the config that serves it; None: this machine
    rules: RequestRules | None = None  # what is changed in its body


class Driver(Protocol):
    """The driver, as far as a ticket uses it."""

    def feed(self, event: Event, /) -> None:
        """Feeds the core one event."""
        ...

    def ended(self, ticket: "Ticket", event: Event, outcome: Outcome, /, *, served: bool) -> None:
        """Tells the core that a ticket has ended, and counts it. `served`: its service time is learned from."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether the daemon shuts down."""
        ...

    def can_forecast(self, id: str, /) -> bool:
        """Whether the start of a waiting request can be forecast now."""
        ...

    def sent(self, tier: Tier, /) -> None:
        """Counts a request that was sent to another machine."""
        ...

    def can_leave_site(self, id: str, /) -> bool:
        """Whether something else than its model's site may serve a running request."""
        ...

    def is_out_of_reach(self, id: str, /) -> bool:
        """Whether the site of a running request may not serve it any more, as the config says now."""
        ...

    async def verify(self, model: str, /) -> None:
        """Returns when the core knows whether a model is still there, at whose engine a request has just failed."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """One request of one caller. Not thread-safe: lives on the driver's event loop."""

    request: Request
    driver: Driver
    id: str  # the request's id, used in every log line and header
    model: str  # the serving model, once it is known
    forecast_ms: int | None = 0  # None: no forecast is possible
    passed: tuple[str, ...] = ()  # the daemons that have sent it to a tier of theirs
    started_at: int | None = None  # when the driver granted it
    first_at: int | None = None  # when the engine's first token came
    prompt_bytes: int = 0  # of the question to the engine, where that generates text
    refusal: TheirsError | None = None
    start: Start | None = None  # once it is granted; `granted` waits for it
    #: Why the running request must end, once the driver has cut it.
    cut: CutKind | None = None
    is_orphaned: bool = False  # it was cut because its engine died or was reset
    waits_there: bool = False  # the machine of this turn's site has it, and says that it waits
    #: Called once when `cut` is set; it aborts the upstream connection.
    on_cut: Callable[[], None] | None = None
    _waiter: "asyncio.Future[Start] | None" = None  # created only for a ticket that has to wait; most do not
    _turns: int = 0  # number of turns so far
    _sent_turn: int = 0  # the last one in which another machine was asked
    _parting: Parting | None = None  # of a turn that ends before its answer
    _ended: bool = False
    _sent: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether the grant is still to come."""
        return self.start is None and self.refusal is None

    def starts_in_ms(self) -> int | None:
        """What is left of its forecast; None where that is over, or no forecast is possible now."""
        if self.forecast_ms is None or not self.driver.can_forecast(self.id):
            return None
        left_ms = self.request.arrived_at + self.forecast_ms - time.monotonic_ns() // 1_000_000
        return left_ms if left_ms > 0 else None

    @property
    def has_ended(self) -> bool:
        """Whether the core already counts this request as gone."""
        return self._ended

    def granted(self) -> "asyncio.Future[Start]":
        """The grant, to be awaited. Raises the refusal, at once or later; the request's max_wait bounds the wait.

        A caller that stopped waiting may wait again, one at a time. It is a future instead of a coroutine, because
        thousands may wait, and each coroutine would hold its frame.
        """
        if self.refusal is not None:
            raise self.refusal
        self._waiter = asyncio.get_running_loop().create_future()
        if self.start is not None:
            self._waiter.set_result(self.start)
        return self._waiter

    def hear(self) -> None:
        """Notes the engine's first token."""
        if self.first_at is None:
            self.first_at = time.monotonic_ns() // 1_000_000

    def first_byte(self) -> None:
        """Notes that the answer has begun: from now on it is not repeated in favour of another request."""
        if not self._sent and not self._ended:
            self._sent = True
            self.driver.feed(FirstByte(self.id))

    def sent(self) -> None:
        """Notes that the machine of this turn's site is asked: what is granted may still be given back before."""
        if self.start is not None and self._sent_turn != self._turns:
            self._sent_turn = self._turns
            self.driver.sent(self.start.tier)

    def indivisible(self) -> None:
        """Notes that the answer of this turn cannot be continued."""
        if not self._ended and self.request.work_class.makes_way:
            self.driver.feed(Indivisible(self.id))

    def rests(self, waits: bool) -> None:
        """Notes whether the machine of this turn's site says that the request waits there."""
        if waits is not self.waits_there and not self._ended:
            self.waits_there = waits
            self.driver.feed(Rested(self.id, waits))

    @property
    def can_leave_site(self) -> bool:
        """Whether another site may serve the running request."""
        return not self._ended and self.driver.can_leave_site(self.id)

    @property
    def is_out_of_reach(self) -> bool:
        """Whether its site may not serve the running request any more, as the config says now."""
        return not self._ended and self.driver.is_out_of_reach(self.id)

    def give_back(self, failed_at: str = "", *, is_fault: bool = False, goes_on: bool = False) -> None:
        """Returns a turn of which the caller has received nothing, or whose answer is continued: it waits again. Not
        at the site that refused or failed it, if one is named. `goes_on`: from the words of another machine."""
        if not self._ended:
            self.cut, self.is_orphaned = None, False
            self._sent = self.waits_there = False
            self.on_cut = None
            self.start = self._waiter = None
            parting, self._parting = self._parting, None
            self.driver.feed(Returned(self.id, parting, failed_at, is_fault, goes_on))

    async def verified(self) -> None:
        """Waits until the scheduler knows what became of the engine that has just failed this request."""
        await self.driver.verify(self.model)

    def leave(self, asked: Asked) -> None:
        """Cuts the question to this turn's engine, if it is not answered yet. Call it before the turn ends.

        The slot is free when the engine has let go, which may be later than the end of the turn.
        """
        asked.abort()
        if self._ended or asked.has_ended or self._parting is not None:
            return
        model, run = self.model, f"{self.id}/{self._turns}"
        lingers = asked.on_let_go(lambda is_known: self.driver.feed(LetGo(model, run, is_known)))
        self._parting = Parting(asked.silent_ms, asked.has_spoken, run if lingers else "")

    def finish(self, *, ok: bool | None, timed_out: bool = False) -> None:
        """Ends a turn: with success, without, or (None) without having asked for an answer. Later calls do nothing."""
        if not self._ended:
            self._ended = True
            failed = Outcome.ENGINE_TIMEOUT if timed_out else Outcome.ENGINE_FAILED
            outcome = failed if ok is False else Outcome.OK
            event = Ended(self.id, ok, self._parting, self._first_ms(), self.prompt_bytes)
            self.driver.ended(self, event, outcome, served=ok is True)

    def _first_ms(self) -> int | None:
        """The time of the last turn's engine to its first token; None where that came in an earlier turn."""
        first, started = self.first_at, self.started_at
        return None if first is None or started is None or first < started else first - started

    def close(self) -> None:
        """Ends the request in any state: its caller left, or the driver has cut it. Does nothing after its end."""
        if self._ended:
            return
        self._ended = True
        outcome = _CUTS.get(self.cut) if self.cut is not None and self.start is not None else None
        if outcome is None:
            self.driver.ended(self, Left(self.id, self._parting), Outcome.CANCELLED, served=False)
        else:
            if outcome is Outcome.RUN_TIMEOUT and self._has_stalled():
                outcome = Outcome.STALLED
            self.driver.ended(self, Ended(self.id, False, self._parting), outcome, served=False)

    def _has_stalled(self) -> bool:
        """Whether the answer of a turn that used all its time had begun and stopped in the middle."""
        if self._parting is None or self.started_at is None:
            return False
        ran_ms = time.monotonic_ns() // 1_000_000 - self.started_at
        return self._parting.silence(ran_ms) is Silence.STALLED

    # ------------------------------------------------------------------ the driver's side

    def begin(self, start: Start, now: int) -> None:
        """Grants the turn; called by the driver."""
        self.model, self.start, self.started_at = start.model, start, now
        self._turns += 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(start)

    def refuse(self, error: TheirsError) -> None:
        """Refuses the request; called by the driver. The core no longer knows it."""
        self._ended = True
        self.refusal = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            self._waiter.exception()  # a caller that left earlier must not leave a warning behind

    def cut_off(self, how: CutKind, *, is_orphaned: bool = False) -> None:
        """Ends a running request; called by the driver. One that goes on to a boundary can still be ended at once."""
        if self.cut in (None, CutKind.BOUNDARY) and self.cut is not how and not self._ended:
            self.cut, self.is_orphaned = how, is_orphaned
            if self.on_cut is not None:
                self.on_cut()


class Tally:
    """Starts and ends of tickets, as their driver counts them.

    They are handed on many at a time, or when they are read: every request leaves some, and most of them are equal.
    """

    def __init__(self, metrics: Metrics, learned: LearnedSizes) -> None:
        self._metrics = metrics
        metrics.gather = self.hand_on
        self._learned = learned
        #: Lane, wait, the error of the forecast, and the tier, unless that is counted when the request is sent.
        self._starts: list[tuple[str, int, int | None, str | None]] = []
        #: Lane, outcome, model, service time and time to the first token.
        self._ends: list[tuple[str, str, str, int | None, int | None]] = []

    def started(
        self, lane: str, waited_ms: int, forecast_ms: int | None, tier: str | None = Tier.LOCAL
    ) -> None:
        """A request started after `waited_ms`, for which its forecast was `forecast_ms`, in a tier."""
        error_ms = None if forecast_ms is None else waited_ms - forecast_ms
        self._starts.append((lane, waited_ms, error_ms, tier))
        if len(self._starts) >= TALLY_MAX:
            self.hand_on()

    def ended(
        self, lane: str, outcome: str, model: str = "", ms: int | None = None, first_ms: int | None = None
    ) -> None:
        """A request ended, `ms` after its start if answered; its first token came `first_ms` after its arrival."""
        self._ends.append((lane, outcome, model, ms, first_ms))
        if len(self._ends) >= TALLY_MAX:
            self.hand_on()

    def hand_on(self) -> None:
        """Has everything counted, and the service times remembered in their order."""
        starts, ends, self._starts, self._ends = self._starts, self._ends, [], []
        for start, times in Counter(starts).items():
            self._metrics.started(*start, times=times)
        for end, times in Counter(ends).items():
            self._metrics.ended(*end, times=times)
        answers: dict[str, list[int]] = {}
        for _, _, model, ms, _ in ends:
            if ms is not None:
                answers.setdefault(model, []).append(ms)
        for model, taken_ms in answers.items():
            self._learned.served(model, taken_ms)
