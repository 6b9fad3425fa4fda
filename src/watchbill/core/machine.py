"""The composer: one step of the whole core.

    1. the event goes to its machine (ROUTES is the table)
    2. requests that waited or ran too long are answered; plans without waiting requests are dropped
    3. grants: requests that can start do so, before anything is planned
    4. forced changes: shrunken budgets, emergencies, idle time
    5. plans, one at a time, until the policy wants no more; grants between them
    6. models that have drained are stopped, models that have their memory are loaded, loans likewise granted
    7. the timer is armed for everything that waits

An event about one request usually changes nothing but its own line. Then the step ends after the grants, and while
nothing waits and nothing moves (`State.is_still`) there are no other grants to make. Before the armed time nothing
can be overdue, so the parts that depend only on the clock (2 and 4) are skipped.

`step` never raises on a legal event, never waits and never logs. Same events, same actions.
"""

from collections.abc import Mapping

from watchbill.catalog import Catalog, WorkClass
from watchbill.core import messages as m
from watchbill.core.absence import Missing, Unwell
from watchbill.core.admission import Admission
from watchbill.core.background import Epochs, Rotation
from watchbill.core.contenders import wanted_elsewhere
from watchbill.core.crowd import pause_ms
from watchbill.core.dispatch import Dispatch
from watchbill.core.emergency import Emergency
from watchbill.core.guarded import make_policy
from watchbill.core.leases import Leases
from watchbill.core.loans import Loans
from watchbill.core.model_state import PAUSE_MS, ModelState
from watchbill.core.operator import Operator
from watchbill.core.policy import Plan, Policy
from watchbill.core.reasons import Elsewhere, Occasion, Occurred, PlanKind
from watchbill.core.reconfigure import Reconfigure
from watchbill.core.residency import Residency
from watchbill.core.stages import STAYING, Stage
from watchbill.core.state import WAKE_MAX_MS, State
from watchbill.core.watchdog import Watchdog

__all__ = ["Machine"]

#: Events that only concern one request.
REQUEST_EVENTS = frozenset({m.Arrived, m.Left, m.FirstByte, m.Indivisible, m.Rested, m.Ended})


_INTERACTIVE = WorkClass.INTERACTIVE  # looking a member up in its enum takes ten times longer


class Machine:
    """The core: events in, actions out."""

    def __init__(
        self, catalog: Catalog, known: Mapping[str, m.Knowledge], policy: Policy | None = None
    ) -> None:
        self.state = State(catalog, known)
        self.policy = policy or make_policy(catalog.policy)
        self._admission = Admission(self.state, self.policy)
        self._dispatch = Dispatch(self.state, self.policy)
        self._residency = Residency(self.state)
        self._emergency = Emergency(self.state, self._residency)
        self._operator = Operator(self.state, self._residency)
        self._loans = Loans(self.state, self._residency)
        self._leases = Leases(self.state, self._residency)
        self._reconfigure = Reconfigure(self.state)
        self.rotation, self.epochs = Rotation(self.state), Epochs(self.state)
        self._watchdog = Watchdog(self.state)
        self._missing, self._unwell = Missing(self.state), Unwell(self.state)
        self._seen = -1  # the state's change count when the last turn began
        self._turned_at = 0
        self.routes = {
            m.Arrived: self._arrived,
            m.Left: self._left,
            m.FirstByte: self._dispatch.first_byte,
            m.Indivisible: self._dispatch.indivisible,
            m.Rested: self._dispatch.rested,
            m.Ended: self._dispatch.ended,
            m.Returned: self._returned,
            m.LetGo: self._dispatch.let_go,
            m.Loaded: self._residency.loaded,
            m.LoadFailed: self._residency.load_failed,
            m.Stopped: self._residency.stopped,
            m.Slept: self._residency.slept,
            m.Died: self._residency.died,
            m.HostSeen: self._residency.host_seen,
            m.Checked: self._watchdog.checked,
            m.Observed: self._observed,
            m.DiskSeen: self._residency.disk_seen,
            m.EvictAsked: self._operator.evict_asked,
            m.RetryAsked: self._operator.retry_asked,
            m.MaintenanceAsked: self._operator.maintenance_asked,
            m.LoanAsked: self._loans.asked,
            m.LoanEnded: self._loans.ended,
            m.LeaseAsked: self._leases.asked,
            m.LeaseRenewed: self._leases.renewed,
            m.LeaseEnded: self._leases.ended,
            m.SiteClosed: self._admission.site_closed,
            m.TaskEnded: self.rotation.task_ended,
            m.Reconfigured: self._reconfigured,
            m.Closing: self._closing,
            m.Tick: self._woke,
        }

    def step(self, event: m.Event, now: int) -> list[m.Action]:
        """Takes one event and returns the actions that follow from it."""
        state, kind = self.state, type(event)
        state.out, state.wakes, state.must_look_at_engines = [], [], False
        self.routes[kind](event, now)  # pyright: ignore[reportArgumentType]  the table pairs them
        is_alone = (
            state.is_still and state.armed and kind in REQUEST_EVENTS and not state.must_look_at_engines
        )
        if not is_alone or state.wakes:
            self._follow(event, now)
        return state.out

    def _follow(self, event: m.Event, now: int) -> None:
        """Runs the rest of the step where more than one request is concerned, or something with a bound has begun."""
        state, kind, armed = self.state, type(event), self.state.armed
        if kind is m.FirstByte:
            return  # only a flag was set
        is_failure = isinstance(event, m.Ended) and event.ok is False
        if not armed or is_failure or state.must_look_at_engines or kind not in REQUEST_EVENTS:
            self._turn(now, overdue=True)
            return
        if state.waiting or state.companion_sets:
            self._dispatch.grant(now)
        if self._is_over(armed, now) or (kind is not m.Ended and self._waits_for_next_turn(armed, now)):
            return
        self._turn(now, overdue=min(armed - 1, *state.wakes, now + 1) <= now)

    def _waits_for_next_turn(self, armed: int, now: int) -> bool:
        """Whether one that comes or leaves is weighed a moment later, together with those that do so meanwhile."""
        at = self._turned_at + pause_ms(self.state)
        if now >= at:
            return False
        if at < armed:
            self.state.armed = at
            self.state.out.append(m.Wake(at))
        return True

    def _is_over(self, armed: int, now: int) -> bool:
        """Whether nothing more can follow from an event about one request.

        That is so when no model outside memory is needed, the timer fires in time for everything that has begun, and
        models on their way in or out still wait for their engines.
        """
        state = self.state
        if state.is_wanting():
            return False
        for wake in state.wakes:
            if wake < armed:
                return False
        if not state.moving:
            return True
        if now >= armed - 1 or state.changes != self._seen or state.is_moved_on():
            return False
        # In strict order one start may release another model's first request.
        return self._reconfigure.is_settled and not state.catalog.epochs and not self.policy.in_order

    def _turn(self, now: int, *, overdue: bool) -> None:
        """Runs everything that can follow. Unless something may be overdue, only changes of the event count."""
        self._turned_at = now
        self._admission.rehome(now)
        self._reconfigure.settle()  # or an old definition with a line would be loaded and closed without end
        self.state.refresh(now)
        is_new, self._seen = self.state.changes != self._seen, self.state.changes
        self._leases.turn(now)
        self._admission.drop_held_turns(now)
        if overdue:
            self._admission.expire(now)
            self._dispatch.expire(now)
            self._residency.enforce_deadlines(now)
        self._residency.await_disk_for_all(now)
        self._residency.drop_unwanted_plans(now)
        self._operator.answer(now)
        self.epochs.turn(now)
        if overdue or is_new:
            self._reset_faulty(now)  # before grants: no request is sent to a model that is about to be reset
        self._watchdog.watch_loads(now)
        self._dispatch.grant(now)
        if overdue or is_new or self.state.has_barred:
            self._force(now)
            self._admission.rehome(now)  # a forced change may have closed a model that can never come back
            self._dispatch.grant(now)  # to requests that were moved to a model in memory
        self._plan(now)
        self._residency.advance(now)
        self._loans.turn(now)
        self._reconfigure.settle()
        self.rotation.turn(now)
        self._missing.turn(now)
        self._watchdog.listen(self.rotation.interval_ms, now)
        self._arm(now)

    def _arrived(self, event: m.Arrived, now: int) -> None:
        """Starts a new request at once where nothing is in its way, or else admits or refuses it."""
        request, state = event.request, self.state
        if request.lease is not None and self._leases.refuses(request):
            return
        if not self._dispatch.start_at_once(request, now):
            self._admission.arrived(event, now)
        if request.work_class is not _INTERACTIVE:
            return
        if state.home.get(request.id, state.models[request.model]).is_here or request.companions:
            state.person_at = now
            if state.leases:
                self._leases.make_way(now)

    def _left(self, event: m.Left, now: int) -> None:
        """A caller is gone: its request leaves its line, or its slot."""
        self._admission.left(event, now)
        self._dispatch.left(event, now)

    def _returned(self, event: m.Returned, now: int) -> None:
        """A turn was given back: its request waits where it was, or elsewhere when its site failed it."""
        has_begun = self._dispatch.has_begun(event.id)
        self._dispatch.returned(event, now)
        if event.failed_at:
            self._admission.leave_site(event.id, now)
        if not has_begun:
            self._leases.send_away(event.id)

    def can_leave_site(self, request_id: str, now: int) -> bool:
        """Whether something else than its model's site may serve a running request."""
        return self._admission.can_leave_site(request_id, now)

    def is_out_of_reach(self, request_id: str) -> bool:
        """Whether the site of a running request may not serve it any more, as the config says now."""
        return self._admission.is_out_of_reach(request_id)

    def _observed(self, event: m.Observed, now: int) -> None:
        self._loans.observed(event)
        self._residency.observed(event, now)
        self._emergency.observed(event, now)
        self._unwell.observed(now)

    def _reconfigured(self, event: m.Reconfigured, now: int) -> None:
        before, rules = self.state.catalog.policy, event.catalog.policy
        self._reconfigure.reconfigured(event, now)
        if (rules.name, rules.strategy) != (before.name, before.strategy):
            self.policy = self._admission.policy = self._dispatch.policy = make_policy(rules)

    def _reset_faulty(self, now: int) -> None:
        for model, why in self._watchdog.faults(now):
            self._residency.reset(model, why, now)
            model.shrink()
            self.state.weigh(model)
            self.state.out.append(m.Alert(m.AlertKind.WATCHDOG, f"{model.name} was reset: {why}", model.name))

    def _force(self, now: int) -> None:
        self._emergency.restore_budgets(now)
        self._emergency.end_graces(now)
        self._residency.close_idle(now)
        for model in self._reconfigure.outdated():
            self._residency.close(model, Occurred(Occasion.CONFIG_CHANGED), now, cause=m.Cause.CONFIG)
        self._reconfigure.settle()  # or one whose plan was dropped would be planned again with its old definition

    def _plan(self, now: int) -> None:
        if not self.state.is_wanting():
            return
        for model in wanted_elsewhere(self.state, now):
            self._residency.start(Plan(model, (), PlanKind.FITS, Elsewhere(model.spec.site or "")), now)
        for _ in range(2 * len(self.state.lines()) + 2):
            self.state.refresh(now)
            plan = self.policy.choose(self.state, now)
            if plan is None:
                self._dispatch.grant_unplanned(now)
                return
            if self._residency.looks_first(plan, now):
                return
            self._residency.start(plan, now)
            self._dispatch.grant(now)

    def _arm(self, now: int) -> None:
        """Arms the timer while anything waits. An action is emitted only when its time changes."""
        wakes = self.state.wakes
        wakes += self._dispatch.deadlines()
        wakes += self._watchdog.deadlines()
        for model in self.state.models.values():
            if model.stage is not Stage.ABSENT or model.is_planned_for:
                self._add_wakes(model)
        if (first := self.state.patience.first()) is not None:
            wakes.append(first[0])
        for companion_set in self.state.companion_sets.values():
            wakes += [companion_set.retry_at, companion_set.held_turn_ends]
        later = [wake for wake in wakes if wake > now]
        if not later:
            return
        at = int(min(*later, now + WAKE_MAX_MS)) + 1
        if at != self.state.armed:
            self.state.armed = at
            self.state.out.append(m.Wake(at))

    def _add_wakes(self, model: ModelState) -> None:
        wakes, stage = self.state.wakes, model.stage
        if model.held_turn is not None:
            wakes.append(model.held_turn_ends)
        if stage is Stage.READY:
            wakes += [
                model.ready_at + model.quantum_ms,
                model.last_used + model.linger_ms,
                model.last_used + PAUSE_MS,
                model.kept_until,
            ]
            self.state.rest(model)
            return
        if model.line or model.spec.permanent:
            wakes.append(model.retry_at)
        if stage is Stage.ASLEEP:
            self.state.rest(model)
        if stage is Stage.DRAINING and model.emergency:
            wakes.append(model.since + model.grace_ms)
        if stage is Stage.LOADING:
            wakes += [model.yields_at, model.stuck_at]
        if stage is not Stage.ABSENT and (deadline := self._residency.deadline(model)) is not None:
            wakes.append(deadline)

    def _closing(self, event: m.Closing, now: int) -> None:
        """Admits no more requests, answers the waiting ones, and drains every model."""
        self.state.is_closing = True
        for model in self.state.models.values():
            self.state.refuse_line(model, m.Refusal.SHUTTING_DOWN, "Watchbill is shutting down", 5_000)
            if model.stage in STAYING and not model.spec.shared:
                self._residency.close(model, Occurred(Occasion.SHUTDOWN), now, cause=m.Cause.SHUTDOWN)

    def _woke(self, event: m.Tick, now: int) -> None:
        """Does nothing itself: the rest of the step is what the timer was for."""
        self.state.armed = 0
