"""The driver: connects the core with engines, callers and the machine.

Events go into the core, actions come out and are carried out, and results come back as events. Everything runs on one
event loop and `feed` never waits, so the core sees one event at a time, in order. Work that takes time (a load, a stop,
a reading of the machine) is a task elsewhere that ends in an event.
"""

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from watchbill import __version__, errors
from watchbill.catalog import Catalog, Lane, Model, Reach, Tier
from watchbill.core import messages as m
from watchbill.core.forecast import can_forecast
from watchbill.core.machine import Machine
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import BecameWarm
from watchbill.core.routing import is_private
from watchbill.core.stages import ModelStatus, Stage
from watchbill.engines.base import Endpoint
from watchbill.errors import TheirsError
from watchbill.journal import Journal
from watchbill.listeners import Listener
from watchbill.metrics import Metrics
from watchbill.probes import Cards
from watchbill.quoting import quoted
from watchbill.runtime.alerts import Alerts
from watchbill.runtime.changes import changes
from watchbill.runtime.claims import Claim, Claims
from watchbill.runtime.commands import Commands
from watchbill.runtime.duplicate import duplicate_steps
from watchbill.runtime.engines import Engines, MakeEngine
from watchbill.runtime.explain import explain_steps
from watchbill.runtime.knowledge import LearnedSizes, read_files
from watchbill.runtime.lag import Lag
from watchbill.runtime.limits import LEARNED_SAVE_MS, READY_TURN_MS
from watchbill.runtime.pins import check_pin, with_pins
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.runtime.protected import Protected
from watchbill.runtime.recorder import LoadLine, Recorder
from watchbill.runtime.spending import Spending
from watchbill.runtime.tasks import Tasks
from watchbill.runtime.ticket import Outcome, Start, Submission, Tally, Ticket
from watchbill.runtime.tiers import Tiers
from watchbill.runtime.views import (
    Known,
    Resident,
    epochs_view,
    failure_of,
    first_requests_view,
    leases_view,
    policy_view,
    request_view,
    requests_view,
    resident_of,
    rotation_view,
    running_sites,
    status_view,
    tiers_view,
)
from watchbill.steps import Steps, at_once
from watchbill.units import format_bytes

__all__ = ["Driver", "Parts", "Picture"]

_LOG = logging.getLogger("watchbill.driver")
#: Read for every request; looking a member up in its enum takes ten times longer.
_ANYWHERE = Reach.ANYWHERE
_MARK_BYTES = 6
#: code -> the error class for it; the closed list that scripts match. Of several classes it is the first, which the
#: others are special cases of: a full disk that keeps a model from loading is no pull without room.
_ERRORS = {
    kind.code: kind
    for kind in reversed(list(vars(errors).values()))
    if isinstance(kind, type) and issubclass(kind, TheirsError)
}


def _monotonic_ms() -> int:
    """The core's only clock."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the driver works with, composed by hand in `daemon`."""

    make_engine: MakeEngine
    learned: LearnedSizes
    root: Path
    journal: Journal
    alerts: Alerts
    make_probe_loop: Callable[..., ProbeLoop]
    recorder: Recorder = field(default_factory=Recorder)
    spools: Callable[[], Mapping[str, object]] = dict  # their part of `status`
    programs: Callable[[], Mapping[str, object]] = dict  # the same for what runs beside the daemon
    batches: Callable[[], Mapping[str, object] | None] = lambda: None  # the same for files and batches
    unused_cards: Callable[[], Mapping[str, str] | None] = lambda: None  # cards that no engine computes on


@dataclass(frozen=True, slots=True)
class Picture:
    """The daemon at one moment of its own clock."""

    now: int
    status: dict[str, object]
    requests: list[dict[str, object]]  # the first of them
    requests_open: int  # all of them


class Driver:
    """One per daemon."""

    def __init__(self, catalog: Catalog, parts: Parts) -> None:
        self.catalog = catalog  # the operator's declarations, as they are now, with what is pinned
        self._declared = catalog
        self._pinned: frozenset[str] = frozenset()
        self.root = parts.root
        self._parts = parts
        self.metrics = Metrics(
            self.status_steps, lambda: self._core.state.late_answers, lambda: parts.alerts.counts
        )
        self._tally = Tally(self.metrics, parts.learned)
        self._lag = Lag(self.metrics.observe_lag)
        self._core = Machine(catalog, parts.learned.recall())
        self._tickets: dict[str, Ticket] = {}
        #: What the catalog says to the names of a model and a lane, for names that were asked for.
        self._named: dict[tuple[str, str | None], tuple[Model, Lane]] = {}
        self._events: deque[m.Event] = deque()
        self._is_feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._turned_at = self.now()
        self._commands = Commands(self.feed)
        self._loads_by_hand: dict[str, str] = {}  # request -> model, for requests that only load
        self._numbers, self._prefix = itertools.count(1), f"wb-{os.urandom(3).hex()}-"
        self._mark = os.urandom(_MARK_BYTES).hex()  # of this daemon, on requests that go to a tier
        self._engines = Engines(catalog, parts.make_engine, self.feed, self._look)
        self.claims = Claims(self, self.now)
        looks = {
            "memory": self._engines.memory,
            "asleep": self._engines.asleep,
            "borrowed": self.claims.measure,
            "ours": self._held_on_cards,
        }
        self._probe_loop = parts.make_probe_loop(
            catalog=catalog, **looks, feed=self._observed, alert=self._alert
        )
        self._protected = Protected(catalog, self._alert, parts.journal.write)
        self._tasks = Tasks(parts.root, self.submit, self.feed)
        self.tiers = Tiers(
            catalog,
            Spending(parts.root / "spending"),
            feed=self.feed,
            note=parts.journal.write,
            alert=self._alert,
            count=self.metrics.count_cost,
            running=lambda: running_sites(self._core.state),
        )
        self._saver: asyncio.Task[None] | None = None
        self._last_loads: dict[str, tuple[int, int]] = {}  # model -> when its last load ended, and its length
        self.actions: Mapping[type[m.Action], Callable[..., None]] = {
            m.Admit: self._admit, m.Refuse: self._refuse, m.Grant: self._grant, m.Cut: self._cut,
            m.Load: self._load, m.Stop: self._engines.stop, m.Note: self._note, m.Alert: self._alert,
            m.Reply: self._commands.reply, m.Decline: self._decline, m.Wake: self._wake, m.RunTask: self._run_task,
            m.Sleep: self._engines.sleep, m.WakeModel: self._engines.wake, m.Check: self._engines.check,
            m.LookAtDisk: self._look_at_disk,
        }  # fmt: skip

    def _held_on_cards(self, cards: Cards) -> dict[str, int]:
        return self._engines.held_on_cards(cards, self.claims.own_pids())

    # ------------------------------------------------------------------ the loop

    now = staticmethod(_monotonic_ms)

    def feed(self, event: m.Event) -> None:
        """Feeds the core one event. Events that come while another is being acted on wait for their turn."""
        self._feed(event, self.now())

    def _feed(self, event: m.Event, now: int) -> None:
        if self._is_feeding:
            self._events.append(event)
            return
        self._is_feeding = True
        try:
            while True:
                self._turned_at = now
                try:
                    actions = self._core.step(event, now)
                except Exception:
                    _LOG.exception("the core failed on %r", event)
                    raise
                for action in actions:
                    self.actions[type(action)](action)
                if not self._events:
                    return
                event, now = self._events.popleft(), self.now()
        finally:
            self._is_feeding = False

    async def start(self) -> None:
        """Reads the machine, then lets the core work."""
        self._parts.journal.write(m.Note(m.JournalEvent.START, f"Watchbill {__version__} starts"))
        await self._look()
        self._engines.take_back(self.root)
        self._parts.recorder.machine(self._core.state.ledger.readings(), self.now())
        await self.tiers.start()
        self._lag.start()
        self._probe_loop.start()
        self._protected.start()
        self._saver = asyncio.create_task(self._save_often(), name="learned")

    async def close(self) -> None:
        """Ends everything: waiting requests are answered, engines stop, learned figures are saved."""
        self.feed(m.Closing())
        self._lag.close()
        await self.claims.close()
        await self._tasks.close()
        await self._protected.close()
        await self._probe_loop.close()
        await self._engines.close()
        await self.tiers.close()
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.wait([self._saver])
        if self._timer is not None:
            self._timer.cancel()
        self._parts.recorder.close()
        await self._parts.alerts.close()
        await self._save_learned()

    def stop_admitting(self) -> None:
        """Begins the shutdown: waiting requests are refused, running ones may finish."""
        self.feed(m.Closing())

    @property
    def is_closing(self) -> bool:
        """Whether the daemon shuts down."""
        return self._core.state.is_closing

    def _observed(self, event: m.Observed) -> None:
        learned = self._parts.learned
        for name, reading in event.models.items():
            if reading.asleep:
                learned.slept(name, reading.memory)
            elif name in self._engines.warm:
                learned.measured(name, reading.memory)
        self.feed(event)

    async def _look(self) -> None:
        await self._probe_loop.look()

    def _look_at_disk(self, _: m.LookAtDisk) -> None:
        self._probe_loop.look_at_disk(lambda fault: self.feed(m.DiskSeen(fault)))

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(LEARNED_SAVE_MS / 1000)
            await self._save_learned()

    async def _save_learned(self) -> None:
        self._tally.hand_on()
        await self._parts.learned.save()

    # ------------------------------------------------------------------ for the gateway

    def submit(self, submission: Submission) -> Ticket:
        """Submits a request to the scheduler. Raises a refusal that is known at once."""
        now = _monotonic_ms()
        request = self._request(submission, now)
        id = request.id
        ticket = self._tickets[id] = Ticket(request, self, id, request.model, passed=submission.passed)
        self._feed(m.Arrived(request), now)
        if ticket.refusal is not None:
            raise ticket.refusal
        return ticket

    def _request(self, submission: Submission, now: int) -> m.Request:
        names = (submission.model, submission.lane)
        model, lane = self._named.get(names) or self._find(*names)
        patience, asked, best = lane.max_wait_ms, submission.deadline_ms, submission.best_priority
        is_hurried = asked is not None and asked < patience
        # Other policies serve in order of arrival, so priority does not count there.
        priority = (lane.policy == "priority" and submission.priority) or lane.priority or model.priority
        return m.Request(
            f"{self._prefix}{next(self._numbers)}",
            model.name,
            lane.name,
            lane.work_class,
            now,
            asked if is_hurried and asked is not None else patience,
            lane.timeout_ms,
            priority if priority > best else best,
            submission.operator,
            submission.exact,
            submission.supersede_key,
            submission.keep_alive_ms,
            submission.companions,
            submission.caller,
            Reach.HERE if self._mark in submission.passed else _reach(submission, model, lane),
            submission.lease,
            is_hurried,
            is_elsewhere=submission.is_elsewhere,
        )

    def _find(self, model_name: str, lane_name: str | None) -> tuple[Model, Lane]:
        """The model and the lane that a caller names. Raises ModelNotFound."""
        model, lane = self.catalog.model_called(model_name), self.catalog.lane_for(lane_name)
        if lane_name is None or lane_name == lane.name:  # any other name of a lane means the first one
            self._named[model_name, lane_name] = model, lane
        return model, lane

    def ended(self, ticket: Ticket, event: m.Event, outcome: Outcome, /, *, served: bool) -> None:
        """Tells the core that a ticket has ended, and counts it. `served`: its service time is learned from."""
        now = _monotonic_ms()
        is_known = self._tickets.pop(ticket.id, None) is not None
        self._feed(event, now)
        if not is_known:
            return
        started, first_at = ticket.started_at, ticket.first_at
        taken_ms = now - started if served and started is not None else None
        first_ms = None if first_at is None else first_at - ticket.request.arrived_at
        self._tally.ended(ticket.request.lane, outcome, ticket.model, taken_ms, first_ms)
        if self._parts.recorder.is_on:
            self._parts.recorder.ended(ticket, outcome, now)

    async def verify(self, model: str, /) -> None:
        """Returns when the core knows whether a model is still there, at whose engine a request has just failed."""
        await self._engines.verify(model)

    def status(self) -> dict[str, object]:
        """The JSON of /wb/v1/status, at once."""
        return at_once(self.status_steps())

    def status_steps(self, now: int | None = None) -> Steps[dict[str, object]]:
        """The JSON of /wb/v1/status, in steps."""
        core, now = self._core, self.now() if now is None else now
        known = yield from status_view(
            core.state, self._engines.warm, now, self._probe_loop.cards, self._pinned
        )
        lent = {"maintenance": self.claims.view(), "loans": self.claims.loans_view()}
        beside = {**lent, "spools": self._parts.spools(), "programs": self._parts.programs()}
        beside["leases"] = leases_view(core.state, now)
        beside["tiers"] = tiers_view(core.state, self.tiers.view(), now)
        turns = {"rotation": rotation_view(core, now), "epochs": epochs_view(core, now)}
        engines = self._engines.view(core.state.silent, core.state.ledger.places)
        told = {
            "engines": engines, "alerts": self._parts.alerts.recent(), "unused_cards": self._parts.unused_cards(),
        }  # fmt: skip
        return known | policy_view(core) | turns | told | beside | {"batches": self._parts.batches()}

    def model_status(self, name: str, /) -> ModelStatus:
        """The status of a model of the config."""
        model = self._core.state.models.get(name)
        return ModelStatus.ABSENT if model is None else model.status(self.now())

    def is_doubted(self, name: str, /) -> bool:
        """Whether a model is in memory and gets no request before it has answered the watchdog."""
        model = self._core.state.models.get(name)
        return model is not None and model.is_doubted

    def can_forecast(self, id: str, /) -> bool:
        """Whether the start of a waiting request can be forecast now."""
        model = self._core.state.home.get(id)
        return model is None or model.stage is Stage.READY or can_forecast(self._core.state, model)

    def can_leave_site(self, id: str, /) -> bool:
        """Whether something else than its model's site may serve a running request."""
        return self._core.can_leave_site(id, self.now())

    def is_out_of_reach(self, id: str, /) -> bool:
        """Whether the site of a running request may not serve it any more, as the config says now."""
        return self._core.is_out_of_reach(id)

    def is_in_use(self, name: str, /) -> bool:
        """Whether requests run on a model, or wait for it."""
        model = self._core.state.models.get(name)
        return model is not None and bool(model.running or model.line)

    def resident(self, name: str, /) -> Resident | None:
        """A model that is in memory; None for one that is not."""
        model = self._core.state.models.get(name)
        return None if model is None else resident_of(self._core.state, model, self.now())

    def failures(self) -> dict[str, str]:
        """The models that can never be loaded -> why."""
        state, now = self._core.state, self.now()
        told = {name: failure_of(state, model, now) for name, model in state.models.items()}
        return {name: why for name, why in told.items() if why is not None}

    def known_loads(self) -> tuple[LoadLine, ...]:
        """The size and load time of each model, as the scheduler reckons with them now."""
        models = self._core.state.models.items()
        return tuple(LoadLine(0, name, round(model.load.ms), dict(model.sizes())) for name, model in models)

    def requests(self) -> list[dict[str, object]]:
        """Every open request, at once."""
        return at_once(self.requests_steps())

    def requests_steps(self) -> Steps[list[dict[str, object]]]:
        """Every open request, in steps."""
        return requests_view(self._core, self._known(), self.now())

    def picture_steps(self, rows_max: int) -> Steps["Picture"]:
        """What a screen shows, all of the same moment, in steps: the status, and the first of the open requests."""
        now, home = self.now(), self._core.state.home
        status = yield from self.status_steps(now)
        rows = yield from first_requests_view(self._core, self._known(), now, rows_max)
        return Picture(now, status, rows, len(home))

    def request(self, id: str, /) -> dict[str, object] | None:
        """One open request, or None."""
        ticket = self._tickets.get(id)
        known = {} if ticket is None else {id: Known(ticket.forecast_ms, ticket.waits_there)}
        return request_view(self._core, id, known, self.now())

    def _known(self) -> dict[str, Known]:
        return {id: Known(ticket.forecast_ms, ticket.waits_there) for id, ticket in self._tickets.items()}

    def cancel(self, id: str, /) -> bool:
        """Ends a request by hand, waiting or running. False when there is no such request."""
        ticket = self._tickets.get(id)
        if ticket is None:
            return False
        if ticket.is_waiting:
            self._tickets.pop(id, None)
            self.feed(m.Left(id))
            ticket.refuse(errors.Cancelled())
        else:
            ticket.cut_off(m.CutKind.CANCELLED)
        return True

    def explain(self, model: str, companions: tuple[str, ...] = (), /) -> Steps[dict[str, object]]:
        """What would happen if the model were requested now, in steps."""
        core, now = (yield from duplicate_steps(self._core)), self.now()
        submission = Submission(model, companions=companions)
        return (yield from explain_steps(core, self._request(submission, now), now))

    def is_ready(self) -> bool:
        """Whether the scheduler runs, not merely whether a socket is open."""
        return self.now() - self._turned_at < READY_TURN_MS

    def subscribe(self) -> Listener:
        """The journal's lines as they are written."""
        return self._parts.journal.listen()

    # ------------------------------------------------------------------ for the operator

    async def load(self, name: str, /) -> str:
        """Loads a model; returns when it is warm."""
        name = self.catalog.model_called(name).name
        model = self._core.state.models[name]
        if model.stage is Stage.READY:
            return f"{name} is already in memory"
        self.feed(m.RetryAsked(name))  # a load by hand ignores earlier failures
        # A model that is here comes into memory here, wherever its requests would go.
        reach = Reach.HERE if model.spec.site is None else Reach.ANYWHERE
        ticket = self.submit(Submission(name, operator=True, exact=True, reach=reach))
        self._loads_by_hand[ticket.id] = name
        try:
            start = await ticket.granted()
            ticket.finish(ok=None)  # a load without an answer teaches nothing about answers
        finally:
            del self._loads_by_hand[ticket.id]
            ticket.close()
        return f"{name} is in memory after {start.wait_ms / 1000:.1f} s"

    async def evict(self, model: str, /, *, force: bool = False, cause: m.Cause = m.Cause.OPERATOR) -> str:
        """Evicts a model; returns when its memory is back."""
        name = self.catalog.model_called(model).name
        loads = tuple(id for id, of in self._loads_by_hand.items() if of == name)
        return await self._commands.ask(lambda command: m.EvictAsked(command, name, force, loads, cause))

    def pin(self, model: str, /, *, pinned: bool) -> str:
        """Makes a model permanent until it is unpinned or the daemon ends; it is loaded if it is not in memory."""
        name = self.catalog.model_called(model).name
        if pinned:
            check_pin(self._core.state, name, self._pinned)
        before, self._pinned = self._pinned, self._pinned | {name} if pinned else self._pinned - {name}
        if before == self._pinned:
            return f"{name} is {'already' if pinned else 'not'} pinned"
        self._declare(self._declared)
        said = "pinned: it stays in memory" if pinned else "no longer pinned"
        self._parts.journal.write(m.Note(m.JournalEvent.PIN, said, name))
        return f"{name} is {said}"

    def _declare(self, catalog: Catalog) -> None:
        """Takes over what the operator declared, with what was pinned by hand."""
        self._declared, self._pinned = catalog, self._pinned & catalog.models.keys()
        self.catalog, self._named = with_pins(catalog, self._pinned), {}
        self.feed(m.Reconfigured(self.catalog, self._parts.learned.recall()))

    async def claim(self, claim: Claim, /) -> str:
        """Empties a device for a claim, or has a loan granted."""
        if (size := claim.size) is None:
            return await self._ask_maintenance(claim, True, claim.why)
        why, idle = claim.why, claim.evict_idle
        return await self._commands.ask(
            lambda command: m.LoanAsked(command, claim.id, claim.device, size, idle, why)
        )

    async def release(self, claim: Claim, why: str, /) -> str:
        """Ends a claim."""
        if claim.size is None:
            return await self._ask_maintenance(claim, False, why)
        self.feed(m.LoanEnded(claim.id, why))
        return f"{format_bytes(claim.size)} of {claim.device} is back"

    async def lease(self, peer: str, model: str, /) -> str:
        """Has a lease granted to a peer; returns its id. Raises what the core declines."""
        id = f"lease-{os.urandom(8).hex()}"
        return await self._commands.ask(lambda command: m.LeaseAsked(command, id, peer, model))

    def renew_lease(self, peer: str, id: str, /) -> None:
        """The peer that holds a lease lives. Raises NoLease."""
        self._check_lease(peer, id)
        self.feed(m.LeaseRenewed(id))

    def end_lease(self, peer: str, id: str, /) -> None:
        """A peer gives a lease back. Raises NoLease."""
        self._check_lease(peer, id)
        self.feed(m.LeaseEnded(id))

    def _check_lease(self, peer: str, id: str) -> None:
        lease = self._core.state.leases.get(id)
        if lease is None or lease.peer != peer:
            raise errors.NoLease(f"there is no lease {quoted(id)}; ask for a new one")

    def continues(self, name: str, /) -> bool:
        """Whether the engine of a model continues an assistant's message that a request begins."""
        return self._engines.continues(name)

    async def _ask_maintenance(self, claim: Claim, claimed: bool, why: str) -> str:
        return await self._commands.ask(
            lambda command: m.MaintenanceAsked(command, claim.device, claimed, why)
        )

    async def reload(self, catalog: Catalog) -> list[str]:
        """Takes over a new catalog while everything runs. Returns the changes as sentences."""
        files = await asyncio.to_thread(read_files, catalog)
        told = await asyncio.to_thread(changes, self._declared, catalog)
        self._engines.reconfigure(catalog)
        self._tally.hand_on()  # under the names of the models that answered
        self._parts.learned.reconfigure(files)
        self._parts.alerts.reconfigure(catalog.alerts)
        self._probe_loop.reconfigure(catalog)
        self._protected.reconfigure(catalog)
        self._declare(catalog)
        await self.tiers.reconfigure(catalog)
        self._parts.journal.write(m.Note(m.JournalEvent.RELOAD, "; ".join(told) or "nothing changed"))
        await self._look()
        return told

    # ------------------------------------------------------------------ actions

    def _admit(self, action: m.Admit) -> None:
        ticket = self._tickets.get(action.id)
        if ticket is not None:
            ticket.model, ticket.forecast_ms = action.model, action.forecast_ms

    def _refuse(self, action: m.Refuse) -> None:
        ticket = self._tickets.pop(action.id, None)
        if ticket is None:
            return
        kind = _ERRORS.get(action.code, TheirsError)
        self._tally.ended(ticket.request.lane, action.code)
        if self._parts.recorder.is_on:
            self._parts.recorder.ended(ticket, action.code, self.now())
        self._parts.journal.write(
            m.Note(m.JournalEvent.REFUSE, action.message, ticket.request.model, request=action.id)
        )
        ticket.refuse(kind(action.message, retry_after_ms=action.retry_after_ms))

    def _decline(self, action: m.Decline) -> None:
        kind = _ERRORS.get(action.code, TheirsError)
        self._commands.fail(action.command, kind(action.message, retry_after_ms=action.retry_after_ms))

    def _grant(self, action: m.Grant) -> None:
        ticket, warm = self._tickets.get(action.id), self._engines.warm.get(action.model)
        if ticket is None:
            return
        if warm is None:  # it died just now: its death is the next event
            self.feed(m.Returned(action.id))
            return
        request, now = ticket.request, self._turned_at
        waited = now - request.arrived_at
        loaded = self._load_share(action.model, request.arrived_at) if waited else 0
        model = self._core.state.models[action.model]
        spec = model.spec
        self._tally.started(
            request.lane, waited, ticket.forecast_ms, spec.where if spec.site is None else None
        )
        endpoint, tier, site = warm.endpoint, spec.where, spec.site
        if tier is not Tier.LOCAL:
            endpoint = self._told(endpoint, model, ticket)
        ticket.begin(
            Start(
                action.model, endpoint, action.attempt, waited, loaded, action.companions, tier, site, spec.requests
            ),
            now,
        )  # fmt: skip

    def _told(self, endpoint: Endpoint, model: ModelState, ticket: Ticket) -> Endpoint:
        """Where to send a request, with what the machine there has to know of it: it may be a Watchbill with tiers of
        its own, and one of them this machine. A leased request is never passed on. A peer also has to know whether the
        request can be served elsewhere: else it waits there while a person works. It waits nowhere for longer than it
        may wait here."""
        tier, request, now = model.spec.where, ticket.request, self._turned_at
        if tier is Tier.EXTERNAL:
            return replace(endpoint, passed=(*ticket.passed, self._mark))
        is_at_peer = tier is Tier.PEER
        return replace(
            endpoint,
            private=is_private(self._core.state, model, request),
            passed=() if is_at_peer else (*ticket.passed, self._mark),
            is_elsewhere=is_at_peer and self._core.can_leave_site(ticket.id, now),
            start_within_ms=max(1, request.arrived_at + request.max_wait_ms - now),
        )

    def sent(self, tier: Tier, /) -> None:
        """Counts a request that was sent to another machine."""
        self.metrics.sent(tier)

    def _load_share(self, model: str, arrived_at: int) -> int:
        """The part of a wait since `arrived_at` that was this model's own load."""
        ended, taken = self._last_loads.get(model, (0, 0))
        return max(0, min(taken, ended - arrived_at))

    def _cut(self, action: m.Cut) -> None:
        ticket = self._tickets.get(action.id)
        if ticket is not None:
            ticket.cut_off(action.how, is_orphaned=action.is_orphaned)

    def _load(self, action: m.Load) -> None:
        self._engines.load(action, self._parts.learned.before_load)

    def _note(self, action: m.Note) -> None:
        self._parts.journal.write(action)
        _LOG.info("action=%s model=%s why=%s", action.event, action.model or "-", action.reason)
        if action.model is None:
            return
        if isinstance(action.reason, BecameWarm):
            self._learn_load(action.model, action.reason)
        elif isinstance(action.event, m.Mishap):
            self.metrics.count_mishap(action.model, action.event)
            if action.event is m.Mishap.LOAD_FAILED:
                self.metrics.observe_load(action.model, action.ms or 0, cached=False, ok=False)
        elif action.cause is not None:
            self.metrics.count_eviction(action.model, action.cause)

    def _learn_load(self, model: str, warm: BecameWarm) -> None:
        self._last_loads[model] = (self.now(), warm.ms)
        learned, memory = self._parts.learned, dict(warm.memory)
        if warm.woke:
            learned.woke(model, warm.ms)
            return
        self.metrics.observe_load(model, warm.ms, cached=learned.was_cached(model))
        learned.loaded(model, warm.ms, memory)
        if self._parts.recorder.is_on:
            self._parts.recorder.loaded(model, warm.ms, memory, self.now())

    def tell(self, alert: m.Alert) -> None:
        """Raises an alert of a part that is not the core's."""
        self._parts.alerts.raise_(alert)

    def _alert(self, action: m.Alert) -> None:
        self._parts.alerts.raise_(action)

    def _run_task(self, action: m.RunTask) -> None:
        task = self.catalog.models[action.model].background
        if task is not None:
            self._tasks.run(action.model, task, self.now)

    def _wake(self, action: m.Wake) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, action.at - self.now()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.feed, m.Tick())


def _reach(submission: Submission, model: Model, lane: Lane) -> Reach:
    """How far from this machine a request may be served: as its caller, its lane or its model say, the strictest."""
    reach = submission.reach
    return Reach.PRIVATE if reach is _ANYWHERE and (lane.private or model.private) else reach
