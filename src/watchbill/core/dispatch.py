"""Dispatch: which request runs on a ready model, and until when.

Grants come before every plan: a model that was loaded for a request serves it before a plan may close the model.
A running request always ends: by itself, because its caller left, or because it was cut, and every cut has a bound.
"""

import math
from operator import itemgetter

import msgspec

from watchbill.catalog import WorkClass
from watchbill.core.candidate import CandidateState
from watchbill.core.limited_lanes import LimitedLanes
from watchbill.core.messages import (
    CutKind,
    Ended,
    FirstByte,
    Grant,
    Indivisible,
    JournalEvent,
    Left,
    LetGo,
    Parting,
    Refusal,
    Request,
    Rested,
    Returned,
    Silence,
)
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Policy
from watchbill.core.routing import is_out_of_reach
from watchbill.core.running import LINGER_LIMIT_MS, Lingering, Running
from watchbill.core.stages import Stage
from watchbill.core.state import WAKE_MAX_MS, State

__all__ = ["Dispatch"]

#: An answer that fails without a byte after this long counts as silence: an engine that can report an error does so
#: sooner.
MUTE_MS = 60_000
#: The longest idle time that a caller may ask for; a longer one needs the config.
KEEP_ALIVE_MAX_MS = 24 * 3_600_000
#: Read at every start and end; looking a member up in its enum takes ten times longer.
_READY = Stage.READY
_INTERACTIVE, _LEASED, _ROTATION = WorkClass.INTERACTIVE, WorkClass.LEASED, WorkClass.ROTATION
#: The cuts of a request that comes back although nothing of it failed, and whose caller has seen nothing of its answer.
_MADE_WAY = frozenset({CutKind.REQUEUE, CutKind.PREEMPTED})


class Dispatch:
    """All running requests."""

    def __init__(self, state: State, policy: Policy) -> None:
        self._state = state
        self.policy = policy
        self._lanes = LimitedLanes(state)
        self._gave_way = False  # in this round of grants a request waited for an earlier one of its lane

    # ------------------------------------------------------------------ starts

    def start_at_once(self, request: Request, now: int) -> bool:
        """The common case: starts a new request on a ready model with a free slot, while no request waits anywhere.

        False: a lane, a line, a failure or a companion affects it, and it is not started.
        """
        state = self._state
        if state.waiting or request.companions or request.lane not in state.open_lanes or state.is_closing:
            return False
        model = state.models[request.model]
        if model.stage is not _READY or now < model.retry_at or model.is_routed:
            return False
        if state.leases_held_back and request.work_class is _LEASED:
            return False
        if not model.has_slot_for(request.work_class, now):
            return False
        model.count_use(request.work_class, now)
        self._start(model, request, now)
        return True

    def grant_unplanned(self, now: int) -> None:
        """Starts what gave way to requests whose models have no plan at the end of a step."""
        if self._lanes.awaits_plan:
            self.grant(now, is_planned=True)

    def grant(self, now: int, *, is_planned: bool = False) -> None:
        """Starts every request that may start on a ready model."""
        self._state.refresh(now)
        if not self._state.waiting:
            return
        waiting = -1
        self._gave_way = True
        self._lanes.begin(is_planned=is_planned)
        # Once, and again where a request let an earlier one of its lane go first, which another model serves, or which
        # turned out to have no slot.
        while self._gave_way and (waiting != self._state.waiting or self._lanes.keeps_more):
            waiting, self._gave_way = self._state.waiting, False
            self._lanes.keeps_more = False
            for model in self._state.serving():
                while (model.line or model.companion_sets) and self._grant_next(model, now):
                    pass

    def _grant_next(self, model: ModelState, now: int) -> bool:
        if model.is_cut_off:
            return False  # here it can still be served by a smaller model; at the engine it could not
        if model.is_suspect:
            return False  # the watchdog's question has the model to itself, so no request makes way
        if model.in_use >= model.spec.concurrency and not self._could_make_way(model):
            return False
        request = self._next(model, now)
        if request is None:
            return False
        if model.spec.site is not None and is_out_of_reach(self._state, model, request):
            self._state.has_barred = True  # it has to be moved or refused before others have their turn
            self._state.wakes.append(now)
            return False
        if not model.has_slot_for(request.work_class, now):
            self._make_way(model, request, now)
            return False
        waited_for = self._state.home[request.id]
        self._state.withdraw(waited_for, request.id)
        waited_for.learn_wait(request, now)
        self._start(model, request, now)
        self._lanes.started(request)
        return True

    def _start(self, model: ModelState, request: Request, now: int) -> None:
        """Starts a request on a ready model."""
        state, companions = self._state, request.companions
        state.home[request.id] = model
        ends = now + request.timeout_ms
        if request.ends_at or request.bound_at:
            ends = min(ends, request.ends_at or ends, request.bound_at or ends)
        running = Running(request, now, len(model.running) + 1, request.was_cut, ends)
        running.serves_person = request.work_class is _INTERACTIVE and (model.is_here or bool(companions))
        model.running[request.id] = running
        for name in companions:
            state.models[name].users[request.id] = running
            state.models[name].last_used = now
        if request.work_class is not _ROTATION:
            model.last_used = now
        model.aborts = model.reversals = 0
        state.active_at = now
        if running.deadline < state.armed:
            state.wakes.append(running.deadline)
        state.out.append(Grant(request.id, model.name, model.attempt, companions))

    @staticmethod
    def _could_make_way(model: ModelState) -> bool:
        if not any(s.line.counts[WorkClass.INTERACTIVE] for s in (model, *model.companion_sets)):
            return False
        return any(r.makes_way for r in model.running.values())

    def _make_way(self, model: ModelState, request: Request, now: int) -> None:
        """Has the work of plans and of the background make way for a person: at once before its answer begins, then at
        a boundary. It keeps its place."""
        if request.work_class is not WorkClass.INTERACTIVE or self.policy.in_order:
            return  # in strict order the older one would be granted and cut again without end
        lower = [r for r in model.running.values() if r.makes_way]
        if model.lingering or any(r.is_ending for r in model.running.values()):
            return  # a slot is about to become free
        for running in lower:
            if not running.begun and running.is_patient:
                self._state.cut(running, CutKind.REQUEUE, now)
                return
        for running in lower:
            if running.begun:
                self._state.cut(running, CutKind.BOUNDARY, now)
                return

    def _next(self, model: ModelState, now: int) -> Request | None:
        """The first request of its lines; a request within one service time of its due goes before all others."""
        if self.policy.in_order:
            return self._next_in_order(model)
        if not model.companion_sets:
            return self._next_of(model, model, now)
        firsts: list[tuple[tuple[float, object], Request]] = []
        for line in (model, *model.companion_sets):
            if (request := self._next_of(line, model, now)) is not None:
                has_slot = model.has_slot_for(request.work_class, now)
                urgent_at = now + model.service.ms if has_slot else -math.inf
                firsts.append((line.line.rank(request.id, urgent_at), request))
        return min(firsts, key=itemgetter(0))[1] if firsts else None

    def _next_of(self, waiting: CandidateState, model: ModelState, now: int) -> Request | None:
        """The first request of one of its lines."""
        line = waiting.line
        first = line.first()
        if first is not None and first.operator and self._may_start(first, now):
            return first  # LANE-06: before every other of its class, and no higher class waits
        urgent = line.earliest_due()
        # One that finds no slot, because the last one is kept for people, keeps no person from it.
        if (
            urgent is not None
            and self._is_urgent(waiting, *urgent, now)
            and model.has_slot_for(urgent[1].work_class, now)
            and self._may_start(urgent[1], now)
        ):
            return urgent[1]
        if first is None or self._may_start(first, now):
            return first
        if self._lanes.keeps_slot(waiting, model, now):
            return None
        return next((r for r in map(line.get, line.ids()) if self._may_start(r, now)), None)

    @staticmethod
    def _is_urgent(model: CandidateState, due: int, request: Request, now: int) -> bool:
        """Whether a request is within one service time of its due, and at least half of its patience is over.

        Without the second condition, where an answer takes longer than the patience of any request, a request that
        made way would be urgent at once, start, make way again, and so on without end.
        """
        return now >= due - min(model.service.ms, request.max_wait_ms / 2)

    def _may_start(self, request: Request, now: int) -> bool:
        """Whether its lane lets it start. Leased work that rests may not, however urgent it is: a person's request
        behind it would wait for the end of the rest."""
        if self._state.leases_held_back and request.work_class is _LEASED:
            return False
        lane = self._state.catalog.lanes.get(request.lane)
        if lane is None or lane.concurrency is None:
            return True  # most lanes have no limit of their own
        if not self._lanes.has_room(lane.name):
            return False
        gives_way = self._lanes.gives_way(request, now)
        self._gave_way = self._gave_way or gives_way
        return not gives_way

    def _next_in_order(self, model: ModelState) -> Request | None:
        lines = [s.line for s in self._state.lines() if s.line]
        if self._state.leases_held_back:  # leased work rests, and the order is that of the others
            waiting = (line.get(id) for line in lines for id in line.ids())
            oldest = [request for request in waiting if request.work_class is not _LEASED]
        else:
            oldest = [line.oldest() for line in lines]
        first = min(oldest, key=lambda r: (r.arrived_at, r.id), default=None)
        mine = (model, *model.companion_sets)
        if first is None or not any(first.id in line.line for line in mine):
            return None
        return first if self._lanes.has_room(first.lane) else None

    def rested(self, event: Rested, now: int) -> None:
        """Begins or ends a pause of a run at another machine. It is a wait: the timeout does not run."""
        model = self._state.home.get(event.id)
        running = model.running.get(event.id) if model else None
        if running is None or event.waits == (running.rests_since is not None):
            return
        if running.rests_since is not None:
            running.rested_ms += now - running.rests_since
        running.rests_since = now if event.waits else None
        if running.cut in (None, CutKind.BOUNDARY):
            running.deadline = running.time_limit(self._lanes_wait_ms(running.request))
            self._state.wakes.append(running.deadline)

    def _lanes_wait_ms(self, request: Request) -> int:
        """How long a request whose answer has begun may wait again: a caller's deadline is for the start."""
        is_hurried = request.is_hurried
        return self._state.catalog.lane_for(request.lane).max_wait_ms if is_hurried else request.max_wait_ms

    # ------------------------------------------------------------------ ends

    def first_byte(self, event: FirstByte, now: int) -> None:
        """Marks a request as begun: after its first token it cannot be repeated elsewhere."""
        model = self._state.home.get(event.id)
        if model is None or (running := model.running.get(event.id)) is None:
            return
        if not running.has_spoken:
            model.serving.lost_turns = max(0, model.serving.lost_turns - 1)
        running.begun = running.has_spoken = True
        if model.stage is Stage.DRAINING and running.waited_until:
            self._state.cut(running, CutKind.BOUNDARY, now)

    def indivisible(self, event: Indivisible, now: int) -> None:
        """Marks a run whose answer cannot be continued: a person who waits for its slot may need another one."""
        model = self._state.home.get(event.id)
        if model and event.id in model.running:
            model.running[event.id].is_indivisible = True

    def ended(self, event: Ended, now: int) -> None:
        """Frees the slot and learns from the time it took."""
        running = self._take(event.id, now)
        if running is None:
            return
        state, request = self._state, running.request
        model = state.home.pop(request.id).serving
        if request.work_class is not _ROTATION:
            self._release(model, request, now)
        else:
            model.last_used = now  # its idle time counts from the end of the task (RES-16)
            state.rest(model)
        if event.ok and running.cut is None:
            model.lost_turns = max(0, model.lost_turns - (not running.has_spoken))
            model.answered(running, event, now)
        else:
            state.is_still = False  # a failed answer may be the last one that a suspicion needs
            self._blame(model, running, event, now)

    def _release(self, model: ModelState, request: Request, now: int) -> None:
        """Ends the service of a request. The idle time that its caller asked for holds until the next request.

        It is only a hint: it prevents no swap and no eviction in an emergency, and a closed model stays closed.
        """
        model.last_used = now
        asked_ms = request.keep_alive_ms
        if asked_ms != model.keep_alive_ms:
            model.keep_alive(None if asked_ms is None else max(0, min(asked_ms, KEEP_ALIVE_MAX_MS)))
        if model.idle_ms < WAKE_MAX_MS:
            self._state.rest(model)

    def _blame(self, model: ModelState, running: Running, event: Ended, now: int) -> None:
        """Counts a run without a good answer against its engine, whichever side ended it."""
        failed = running.cut is None and event.ok is False
        timed_out = running.cut == CutKind.RUN_TIMEOUT and running.rests_since is None
        silence = _silence_of(running, event.parting, now) if failed or timed_out else Silence.NONE
        if failed or silence is not Silence.NONE:
            if silence is Silence.STALLED and event.parting is not None:
                model.stall(event.parting.silent_ms)
            model.failed(running.since)
            self._suspect(model, running, now)
            if timed_out and event.parting is not None:
                self._suspect_silent(model, running, event.parting.silent_ms)
            self._linger(model, event.parting, now, silent=not failed)
        else:
            self._leave_unanswered(model, event.parting, now)

    @staticmethod
    def _suspect(model: ModelState, running: Running, now: int) -> None:
        """Counts a failed answer. After a long silence a single one is enough for the watchdog to ask the model."""
        is_mute = not running.begun and now - running.since >= MUTE_MS
        model.is_suspect = model.is_suspect or (is_mute and not model.spec.shared)

    @staticmethod
    def _suspect_silent(model: ModelState, running: Running, silent_ms: int) -> None:
        """A single time limit is enough where the silence is unusual for the model, it has nothing else to do, and no
        answer was good meanwhile: then a question costs no other request, and its missing answer is a proof."""
        is_alone = not model.running and model.good_at < running.since
        if is_alone and silent_ms >= model.silence_ms and not model.spec.shared:
            model.is_suspect = True

    def _leave_unanswered(self, model: ModelState, parting: Parting | None, now: int) -> None:
        """Handles a run that ended before its answer and not by its engine: its slot, and the engine's record."""
        counts = parting is not None and model.unanswered(parting, now)
        # A suspect model may have waited for the end of this run to be asked, or reset.
        must_look = counts or model.is_suspect
        self._state.must_look_at_engines = self._state.must_look_at_engines or must_look
        self._linger(model, parting, now, silent=counts)

    def _linger(self, model: ModelState, parting: Parting | None, now: int, *, silent: bool) -> None:
        """Handles a run that ended before its answer. Its slot stays taken until the engine has let go of it."""
        if parting is None or not parting.lingers_as or model.stage not in (Stage.READY, Stage.DRAINING):
            return
        lingering = model.lingering[parting.lingers_as] = Lingering(now + LINGER_LIMIT_MS, silent)
        self._state.wakes.append(lingering.until)

    def left(self, event: Left, now: int) -> None:
        """Forgets a running request whose caller is gone. The driver stops it at the engine."""
        model = self._state.home.pop(event.id, None)
        running = model.running.pop(event.id, None) if model else None
        if model is not None and running is not None:
            if running.serves_person:
                self._state.person_at = now
            self._release(model.serving, running.request, now)
            self._dismiss(running.request, now)
            self._leave_unanswered(model.serving, event.parting, now)

    def returned(self, event: Returned, now: int) -> None:
        """Puts a request back at its place.

        A request that was cut before its first byte keeps the time that it has waited so far. One that stopped at a
        boundary, or whose words another machine brought, has begun to answer, and begins a new wait.
        """
        running = self._take(event.id, now)
        if running is None:
            return
        model = self._state.home[event.id]
        goes_on = event.goes_on or running.cut is CutKind.BOUNDARY
        if running.request.is_hurried and goes_on:
            running.request = msgspec.structs.replace(
                running.request, max_wait_ms=self._lanes_wait_ms(running.request), is_hurried=False
            )
        request = running.request
        if event.is_fault:
            model.serving.failed(running.since)
            self._suspect(model.serving, running, now)
            self._state.must_look_at_engines = True
        self._leave_unanswered(model.serving, event.parting, now)
        if self._state.is_closing:
            self._state.refuse(request.id, Refusal.SHUTTING_DOWN, "Watchbill is shutting down")
            return
        if missing := self._state.missing_of(request):
            self._state.refuse(request.id, Refusal.MODEL_NOT_FOUND, f"{missing} is no longer in the config")
            return
        if request.lease is not None and request.lease not in self._state.leases:
            self._state.refuse(request.id, Refusal.NO_LEASE, "its lease has ended")
            return
        pauses = goes_on or model.serving.spec.site is not None
        request = _remainder(running, now, pauses=pauses)
        if event.failed_at and event.failed_at not in request.failed_at:
            request = msgspec.structs.replace(request, failed_at=(*request.failed_at, event.failed_at))
        due = max(now + 1, min(_due_again(running, now, goes_on=goes_on), request.bound_at))
        self._state.join(model, request, min(due, request.ends_at) if request.ends_at else due)

    def has_begun(self, request_id: str) -> bool:
        """Whether a running request has bytes of its answer."""
        model = self._state.home.get(request_id)
        running = None if model is None else model.running.get(request_id)
        return running is not None and running.begun

    def let_go(self, event: LetGo, now: int) -> None:
        """Frees a slot whose engine no longer works on the cut request."""
        model = self._state.models.get(event.model)
        lingering = model.lingering.pop(event.run, None) if model else None
        if model is None or lingering is None:
            return  # its process is gone, or the bound came first
        self._state.is_still = False
        if lingering.was_silent and not event.is_known:
            model.failed(now)  # the engine sent nothing, and did not notice the cut either

    def _take(self, request_id: str, now: int) -> Running | None:
        state = self._state
        model = state.home.get(request_id)
        running = model.running.pop(request_id, None) if model else None
        if model is None or running is None:
            state.late_answers += 1
            return None
        if running.serves_person:
            state.person_at = now
        if running.request.companions:
            self._dismiss(running.request, now)
        return running

    def _dismiss(self, request: Request, now: int) -> None:
        """Releases the companions of a request that no longer runs."""
        for name in request.companions:
            if (beside := self._state.models.get(name)) is not None:
                beside.users.pop(request.id, None)
                beside.last_used = now
                self._state.rest(beside)

    # ------------------------------------------------------------------ bounds

    def expire(self, now: int) -> None:
        """Cuts requests that run past their time limit, and drops those that were cut and never reported."""
        for model in self._state.models.values():
            for running in list(model.running.values()):
                if now < running.deadline:
                    continue
                if running.cut in (None, CutKind.BOUNDARY):
                    self._state.cut(running, CutKind.RUN_TIMEOUT, now)
                else:
                    self._strand(model, running, now)
            for run, lingering in list(model.lingering.items()):
                if now >= lingering.until:
                    self.let_go(LetGo(model.name, run, is_known=False), now)

    def _strand(self, model: ModelState, running: Running, now: int) -> None:
        del model.running[running.request.id]
        self._dismiss(running.request, now)
        del self._state.home[running.request.id]
        self._state.note(
            JournalEvent.STRANDED, "cut and never reported ended", model, request=running.request.id
        )

    def deadlines(self) -> list[int]:
        """The times at which running requests must be checked again."""
        models = self._state.models.values()
        ends = [r.deadline for s in models if s.running for r in s.running.values()]
        return ends + [each.until for s in models if s.lingering for each in s.lingering.values()]


def _silence_of(running: Running, parting: Parting | None, now: int) -> Silence:
    """What the engine's silence at the end of a run means."""
    if parting is None:
        return Silence.NONE if running.begun else Silence.MUTE
    return parting.silence(now - running.since)


def _due_again(running: Running, now: int, *, goes_on: bool) -> int:
    """Until when a request that ran and comes back may wait."""
    request = running.request
    if goes_on:
        return now + request.max_wait_ms
    if running.cut in _MADE_WAY:
        return now + running.patience_left_ms
    return request.arrived_at + request.max_wait_ms


def _remainder(running: Running, now: int, *, pauses: bool) -> Request:
    """A request that goes back, with what is left of its time: the lane's timeout holds for all its tries together.

    The time runs on where an engine of this machine died. A request that had to make way does not pay for the wait, nor
    does one whose machine is gone, with or without words of its answer: it waits for that machine. But however often
    that happens, it ends when its wait and its time limit together are over.
    """
    request, used = running.request, running.ran_ms(now)
    was_cut = request.was_cut or running.cut in _MADE_WAY
    bound_at = request.bound_at or request.arrived_at + request.max_wait_ms + request.timeout_ms
    request = msgspec.structs.replace(request, bound_at=bound_at)
    if not pauses and (running.is_orphaned or running.cut in (None, CutKind.ENGINE_FAILED)):
        ends_at = running.since + running.rested_ms + request.timeout_ms
        ends_at = min(ends_at, request.ends_at or ends_at)
        return msgspec.structs.replace(request, ends_at=ends_at, was_cut=was_cut)
    return msgspec.structs.replace(request, timeout_ms=max(1, request.timeout_ms - used), was_cut=was_cut)
