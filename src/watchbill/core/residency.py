"""Residency: which models occupy memory, and what may happen to each of them next.

Everything that changes a model's stage is in this file: the table `NEXT`, and the acts that use it. A policy's plan, an
emergency, an operator's command or a deadline calls an act. An act changes the stage of one model and emits one
action; it never touches a process.

    ABSENT ──plan──▶ PLANNED ──memory is free──▶ LOADING ──warm──▶ READY
       ▲                │ no longer wanted          │ failed, late     │ closed: by a swap, its idle
       │                ▼                           ▼                  ▼ time, the operator, an emergency
       └──memory back── STOPPING ◀──nothing runs── DRAINING ◀──────────┘

An engine that can sleep may also go from READY to ASLEEP, by itself or on the same way out. From there a plan leads to
PLANNED and LOADING, as for an absent model: that load is its waking. A sleeping model takes no work, so the memory that
it freed can be given to others: no request reaches it before that memory was promised to it again.

A draining model takes no new work and is never reopened, with one exception: a plan that is dropped may reopen its
victims once, before the first of them was stopped. Every stage that waits for an answer has a deadline, and the
consequence of the deadline is defined here. Without that rule a lost answer would hold memory until a restart.

Answers count only if they carry the attempt that was asked for. Late ones are dropped and counted. A move that the
table does not have raises IllegalTransition and changes nothing.
"""

from collections.abc import Mapping
from enum import Enum

from watchbill.catalog import WorkClass
from watchbill.core.messages import (
    Alert,
    AlertKind,
    Blame,
    Cause,
    CutKind,
    Died,
    DiskSeen,
    HostSeen,
    JournalEvent,
    Load,
    Loaded,
    LoadFailed,
    LookAtDisk,
    Mishap,
    ModelReading,
    Observed,
    PlanKind,
    Refusal,
    Request,
    Sleep,
    Slept,
    Stop,
    Stopped,
    WakeModel,
)
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Plan
from watchbill.core.reasons import (
    BecameWarm,
    HostHolds,
    HostUnloads,
    Idle,
    Occasion,
    Occurred,
    PlanDropped,
    Planned,
    Reason,
    Swapped,
)
from watchbill.core.resources import shortage
from watchbill.core.routing import is_spent_out
from watchbill.core.running import FIRST_WORD_MS, Running
from watchbill.core.stages import HOLDING, LEAVING, MOVING, Stage
from watchbill.core.state import State
from watchbill.errors import IllegalTransition

__all__ = ["NEXT", "Move", "Residency", "stage_after"]


class Move(Enum):
    """A step in a model's residency."""

    __hash__ = object.__hash__  # Enum's own hashes the name in Python, at every table lookup

    PLAN = "plan"  # memory is promised to it
    DROP = "drop"  # its plan is dropped
    SLEEP_ON = "sleep_on"  # the plan to wake it is dropped
    LOAD = "load"  # its memory is free: the engine is told to load, or to wake
    WARM = "warm"  # the engine answered that it serves
    CLOSE = "close"  # no new work; again: it has less time to drain
    REOPEN = "reopen"  # the plan for which it was leaving is dropped
    STOP = "stop"  # the engine is told to stop, or to sleep
    SLEPT = "slept"  # it sleeps, as it was told or by itself
    WOKE = "woke"  # it woke by itself
    GONE = "gone"  # nothing of it is left in memory


#: Every move there is: stage and move -> next stage.
NEXT: Mapping[tuple[Stage, Move], Stage] = {
    (Stage.ABSENT, Move.PLAN): Stage.PLANNED,
    (Stage.PLANNED, Move.DROP): Stage.ABSENT,
    (Stage.PLANNED, Move.SLEEP_ON): Stage.ASLEEP,
    (Stage.PLANNED, Move.LOAD): Stage.LOADING,
    (Stage.LOADING, Move.WARM): Stage.READY,
    (Stage.LOADING, Move.STOP): Stage.STOPPING,
    (Stage.LOADING, Move.GONE): Stage.ABSENT,
    (Stage.READY, Move.CLOSE): Stage.DRAINING,
    (Stage.READY, Move.STOP): Stage.STOPPING,
    (Stage.READY, Move.SLEPT): Stage.ASLEEP,
    (Stage.DRAINING, Move.CLOSE): Stage.DRAINING,
    (Stage.DRAINING, Move.REOPEN): Stage.READY,
    (Stage.DRAINING, Move.STOP): Stage.STOPPING,
    (Stage.STOPPING, Move.STOP): Stage.STOPPING,
    (Stage.STOPPING, Move.SLEPT): Stage.ASLEEP,
    (Stage.STOPPING, Move.GONE): Stage.ABSENT,
    (Stage.ASLEEP, Move.PLAN): Stage.PLANNED,
    (Stage.ASLEEP, Move.WOKE): Stage.READY,
    (Stage.ASLEEP, Move.STOP): Stage.STOPPING,
}


def stage_after(model: ModelState, move: Move) -> Stage:
    """The stage to which a move leads. Raises IllegalTransition where the table has none."""
    stage = NEXT.get((model.stage, move))
    if stage is None:
        raise IllegalTransition(f"{model.name} is {model.stage.value}: it cannot {move.value}")
    return stage


#: A load that failed because of the disk is retried after this, if a request waits for it.
DISK_RETRY_MS = 3_000
#: The answer of the disk is awaited this long before a model is stopped for a load. A disk that hangs answers nothing.
DISK_ANSWER_MS = 1_000
#: A model that was ready for this long is cleared of earlier resets.
PROVEN_MS = 600_000
#: The engine layer ends a load at its limit with a reason; the core waits a little longer for that answer.
LOAD_ANSWER_MS = 15_000
#: The engine layer's own stop sequence ends well before this.
STOP_LIMIT_MS = 20_000
STOP_TRIES = 3
#: A planned load that still does not fit is dropped this long after the last obstacle is gone.
PLAN_LIMIT_MS = 15_000
_NOT_NEEDED = Occurred(Occasion.NOT_NEEDED)


class Residency:
    """The stages of all models."""

    def __init__(self, state: State) -> None:
        self._state = state

    def enter(self, model: ModelState, move: Move, now: int) -> None:
        """Moves a model to its next stage."""
        stage = stage_after(model, move)
        self._state.moving += (stage in MOVING) - (model.stage in MOVING)
        model.enter(stage, now)
        if stage is Stage.ABSENT:
            model.held, model.leaving_for, model.stop_tries, model.emergency = {}, "", 0, False
            model.keep_alive(None)
        elif stage is Stage.PLANNED:
            model.clear_since = None
        elif stage is Stage.READY and model.held_turn is not None:
            model.keep_for(model.held_turn, now)  # its caller finds the model in memory when it comes back
            model.held_turn = None
        self._state.remeasured()

    # ------------------------------------------------------------------ plans

    def start(self, plan: Plan, now: int) -> None:
        """Begins a change: memory is promised to the target, the victims are closed."""
        self._state.plans_made += 1
        target = plan.target
        sleeping = self._may_sleep(plan)
        costs = any(victim.stage is not Stage.PLANNED for victim in plan.victims)
        for model in target.arriving:  # one model, or all absent members of a set: together or not at all
            model.plan_order, model.plan_class = self._state.plans_made, target.top_class()
            model.plan_for, model.plan_costs = target.name, costs
            self.enter(model, Move.PLAN, now)
        target.is_under_way = target.is_set
        if plan.victims and any(map(_writes, target.arriving)):
            self._ask_disk(now)
        swapped = Swapped(plan.kind, target.name, plan.reason)
        for victim in plan.victims:
            self.close(victim, swapped, now, cause=Cause.SWAP, sleep=victim in sleeping)
        members, leaving = (tuple(s.name for s in models) for models in (target.members, plan.victims))
        planned = Planned(plan.kind, target.name, members, plan.reason, leaving)
        if plan.victims or not target.serving.is_put_off:  # else it is tried again, once a second
            self._state.note(JournalEvent.PLAN, planned, target.serving)

    def looks_first(self, plan: Plan, now: int) -> bool:
        """Whether a plan waits for the answer of the disk: a victim would be stopped at once, without draining."""
        state = self._state
        at_once = any(v.stage in (Stage.ASLEEP, Stage.LOADING) for v in plan.victims)
        if not at_once or state.disk_seen_at == now or not any(map(_writes, plan.target.arriving)):
            return False
        self._ask_disk(now)
        asked_at = now if state.disk_asked_at is None else state.disk_asked_at
        state.wakes.append(asked_at + DISK_ANSWER_MS)
        return now < asked_at + DISK_ANSWER_MS

    def _ask_disk(self, now: int) -> None:
        if self._state.disk_asked_at is None and self._state.disk_seen_at != now:
            self._state.disk_asked_at = now
            self._state.out.append(LookAtDisk())

    def _may_sleep(self, plan: Plan) -> list[ModelState]:
        """The victims that only need to sleep: the memory that they free is enough, and they are back sooner."""
        short, sleeping = self._state.shortage_of(plan.target), list[ModelState]()
        for victim in plan.victims:
            known = victim.asleep_size or victim.spec.asleep
            if not (known and victim.spec.sleeps_when_told and victim.stage is Stage.READY):
                continue
            left = {r: sum(v.asleep_needs.get(r, 0) for v in (*sleeping, victim)) for r in short}
            given = {r: sum(v.frees().get(r, 0) for v in plan.victims) - left[r] for r in short}
            if all(given[r] >= amount for r, amount in short.items()):
                sleeping.append(victim)
        return sleeping

    # ------------------------------------------------------------------ the way out

    def close(
        self,
        model: ModelState,
        why: Reason | str,
        now: int,
        *,
        cause: Cause,
        sleep: bool = False,
    ) -> None:
        """Closes a model for new work. Closing is final; running requests reach their safe boundary first (RES-12)."""
        target, plan = (why.target, why.kind) if isinstance(why, Swapped) else ("", None)
        model.left = cause
        if model.stage is Stage.PLANNED:
            model.aborts += bool(target) and model.plan_costs
            self.unplan(model, now, why)
        if model.stage is Stage.ASLEEP:
            model.leaving_for = target
            self._note_evict(model, why, sum(model.sizes_asleep().values()), cause)
            self.halt(model, why, now, hard=False)
        elif model.stage is Stage.LOADING:
            if target and (now >= model.yields_at or (model.is_stuck(now) and not model.is_idle)):
                model.give_up(now)
                self.fail(model, _given_up(model, target, now), hopeless=False, now=now)
            elif target:
                model.aborts += 1
            model.leaving_for = target
            self.halt(model, why, now, hard=True)
        elif model.stage is Stage.READY:
            model.sleeps = sleep
            model.whole_turns = model.whole_turns + 1 if model.has_had_turn(now) else 0
            self.enter(model, Move.CLOSE, now)
            model.leaving_for, model.leaving_why = target, why
            self._note_evict(model, why, sum(model.sizes().values()), cause)
            runs = model.running.values()
            if plan is not None and runs and all(r.makes_way and not r.has_spoken for r in runs):
                model.lost_turns += 1
            for running in (*model.running.values(), *model.users.values()):
                if not running.begun and not self._may_finish(model, running, plan):
                    self._state.cut(running, CutKind.REQUEUE, now)
                elif self._can_continue(running.request):
                    if plan is not None and not running.has_spoken and not running.is_patient:
                        running.waited_until = now + FIRST_WORD_MS  # it would be cut without a word again
                        self._state.wakes.append(running.waited_until)
                    else:
                        self._state.cut(running, CutKind.BOUNDARY, now)

    def _may_finish(self, model: ModelState, running: Running, plan: PlanKind | None) -> bool:
        """Whether an answer that has not begun may finish although its model leaves.

        A model that was removed from the config, or renamed, does not come back for it. Its patience may be too short
        for another wait. For the turn of another model, finishing takes less time than a swap: sent back, it would wait
        for its model's next turn, perhaps in vain, and four of them would bring the model back for one answer. At a
        shutdown, what goes back is refused; only another machine asks again.
        """
        if self._state.is_closing:
            return running.request.lease is None
        if self._state.missing_of(running.request) is not None:
            return True
        if plan is not None and not running.is_patient:
            return True
        is_turn = plan in (PlanKind.TURN, PlanKind.DUE)
        return is_turn and running.request.work_class is WorkClass.INTERACTIVE and model.finishes_soon

    def _can_continue(self, request: Request) -> bool:
        """Whether an answer may stop at a boundary: not if its model was removed from the config."""
        return request.work_class.makes_way and self._state.missing_of(request) is None

    def _note_evict(self, model: ModelState, why: Reason | str, size: int, cause: Cause) -> None:
        self._state.note(JournalEvent.EVICT, why, model, size=size, cause=cause)

    def unplan(self, model: ModelState, now: int, why: Reason | str = _NOT_NEEDED) -> None:
        """Drops a plan that is not needed any more. Its victims reopen, once, if none of them was stopped yet."""
        mine = [s for s in self._state.managed if s.leaving_for == model.plan_for]
        reopens = model.reversals < 1 and all(s.stage is Stage.DRAINING for s in mine)
        for planned in [s for s in self._state.in_stage(Stage.PLANNED) if s.plan_for == model.plan_for]:
            self.enter(planned, Move.SLEEP_ON if planned.sleeps else Move.DROP, now)
            self._state.note(JournalEvent.UNPLAN, why, planned)
            planned.reversals += 1
        for victim in mine:
            victim.leaving_for = ""
            if reopens and victim.stage is Stage.DRAINING and not self._lacks_room(victim):
                self.enter(victim, Move.REOPEN, now)
                self._state.note(JournalEvent.REOPEN, PlanDropped(model.plan_for), victim)

    def _lacks_room(self, model: ModelState) -> bool:
        return bool(self._state.shortage_of(model))

    # ------------------------------------------------------------------ the next step

    def has_leaving(self, model: ModelState) -> bool:
        """Whether a model is still leaving for it."""
        return any(
            s.leaving_for == model.plan_for for s in self._state.in_stage(Stage.DRAINING, Stage.STOPPING)
        )

    def drop_unwanted_plans(self, now: int) -> None:
        """Drops the plan of a target whose callers all left."""
        for model in self._state.in_stage(Stage.PLANNED):
            if model.stage is Stage.PLANNED and not model.is_planned_for:
                self.unplan(model, now)

    def advance(self, now: int) -> None:
        """Stops models that have drained, and loads those that have their memory, in the order of the plans."""
        for model in self._state.in_stage(Stage.DRAINING):
            for running in model.running.values():
                if running.waited_until and now >= running.waited_until and running.cut is None:
                    self._state.cut(running, CutKind.BOUNDARY, now)
            # A process that is stopped takes its unfinished runs with it; one that sleeps must have let go of them.
            sleeps = model.sleeps and not model.emergency
            is_drained = not model.running and not model.users and not (sleeps and model.lingering)
            if is_drained and not self._awaits_disk(model, now):
                self._put_away(model, now)
        for model in sorted(self._state.in_stage(Stage.PLANNED), key=lambda s: s.plan_order):
            if self._is_in_the_way(model, now):
                model.clear_since = None
                continue
            short = shortage(model.needs, self._state.actual_free(model))
            if not short:
                self._load(model, now)
            elif any(not short.keys().isdisjoint(s.needs) for s in self._state.in_stage(*LEAVING)):
                model.clear_since = None  # they leave for a plan that was dropped, or by themselves
            elif model.clear_since is None:
                model.clear_since = now

    def _awaits_disk(self, model: ModelState, now: int) -> bool:
        """Whether it is not known yet that the disk takes the load for which a model leaves."""
        asked_at = self._state.disk_asked_at
        if asked_at is None or model.emergency or now >= asked_at + DISK_ANSWER_MS:
            return False
        planned = self._state.in_stage(Stage.PLANNED)
        awaits = any(s.plan_for == model.leaving_for and _writes(s) for s in planned)
        if awaits:
            self._state.wakes.append(asked_at + DISK_ANSWER_MS)
        return awaits

    def _is_in_the_way(self, model: ModelState, now: int) -> bool:
        """Whether a planned load waits for something that ends by itself: a victim that leaves, or the bus."""
        return self.has_leaving(model) or not self._bus_is_free(model, now)

    def _bus_is_free(self, model: ModelState, now: int) -> bool:
        """RES-24: models load one at a time per device and per host, unless the config allows more.

        A load that takes far longer than it should is stuck: it keeps its memory, and no longer delays the others.
        """
        if model.spec.site is not None:
            return True  # it is loaded elsewhere
        loading = [
            s for s in self._state.in_stage(Stage.LOADING) if s.spec.site is None and not s.is_stuck(now)
        ]
        self._state.wakes += [s.stuck_at for s in loading]
        if len(loading) >= self._state.catalog.policy.parallel_loads:
            return False
        return all(
            sum(1 for s in loading if s.needs.get(device.name)) < device.parallel_loads
            for device in (book.device for book in self._state.ledger.books_of(model.needs))
        )

    def _put_away(self, model: ModelState, now: int) -> None:
        """Stops a drained model, or puts it to sleep where that is enough and memory did not run out."""
        if not model.sleeps or model.emergency:
            self.halt(model, model.leaving_why, now, hard=model.emergency)
            return
        model.attempt += 1
        self.enter(model, Move.STOP, now)
        self._state.out.append(Sleep(model.name, model.attempt))

    def _load(self, model: ModelState, now: int) -> None:
        model.attempt += 1
        wakes = model.sleeps
        self.enter(model, Move.LOAD, now)
        if wakes:
            self._state.out.append(WakeModel(model.name, model.attempt, model.load_limit_ms))
            self._state.note(
                JournalEvent.WAKE, "memory reserved, waking", model, size=sum(model.sizes().values())
            )
            return
        expected = None if model.load.is_guess else round(model.load.ms)
        self._state.out.append(Load(model.name, model.attempt, model.load_limit_ms, expected))
        if not model.is_put_off:
            self._state.note(
                JournalEvent.LOAD, "memory reserved, loading", model, size=sum(model.sizes().values())
            )

    def halt(self, model: ModelState, why: Reason | str, now: int, *, hard: bool) -> None:
        """Stops a model; its memory counts until it is back."""
        if model.stage in (Stage.READY, Stage.DRAINING):
            model.evictions += 1
        model.attempt += 1
        model.sleeps, model.leaving_why = False, why
        self.enter(model, Move.STOP, now)
        self._state.out.append(Stop(model.name, model.attempt, hard))

    # ------------------------------------------------------------------ failures

    def reset(self, model: ModelState, why: Reason | str, now: int, *, mishap: Mishap = Mishap.RESET) -> None:
        """Stops a model at once because it cannot be trusted any more.

        Failures count per turn, not per load: a model that loads well and answers nothing would otherwise be loaded
        again without end.
        """
        if model.stage is Stage.READY and now - model.ready_at >= PROVEN_MS:
            model.resets = 0
        model.resets += 1
        model.failures = max(model.failures, model.resets - 1)
        self._cut_off(model, now)
        is_first = model.stage is not Stage.LOADING and not model.failures
        self.fail(model, why, hopeless=False, now=now, mishap=mishap)
        if is_first:
            # A single death is no pattern, and the time of the requests that it interrupted runs on: no pause.
            model.retry_at = now
        self.halt(model, why, now, hard=True)

    def lose(self, model: ModelState, why: str, now: int) -> None:
        """Handles a model that is gone without a fault of its own: its work returns or fails, and no failure counts."""
        self._cut_off(model, now)
        self._state.note(JournalEvent.LOST, why, model)
        self.halt(model, why, now, hard=True)

    def _cut_off(self, model: ModelState, now: int) -> None:
        """Ends the requests that run on a model that is gone."""
        for running in model.running.values():
            running.is_orphaned = True
            self._state.cut(running, CutKind.ENGINE_FAILED if running.begun else CutKind.REQUEUE, now)
        for running in model.users.values():
            if not running.begun:  # a request that has begun runs on its own engine, which is well
                self._state.cut(running, CutKind.REQUEUE, now)

    def put_off(self, model: ModelState, reason: str, now: int) -> None:
        """Handles a load that failed without a fault of the model: requests go on waiting, and it is retried soon."""
        if model.hopeless:
            self._state.remeasured()
        is_news = model.put_off(reason, now)
        model.trouble = Mishap.LOAD_FAILED
        if is_news:
            self._state.note(Mishap.LOAD_FAILED, reason, model)

    def await_disk(self, model: ModelState, reason: str, now: int) -> None:
        """Handles a load that failed because of a full or failing disk.

        The failure does not count against the model. Waiting requests are told, and the next load may succeed.
        """
        is_news = model.trouble is not Mishap.DISK_FAILED
        model.trouble, model.failure, model.retry_at = Mishap.DISK_FAILED, reason, now + DISK_RETRY_MS
        text = f"{model.name}: {reason}"
        if is_news:
            self._state.note(Mishap.DISK_FAILED, reason, model)
            if self._state.disk_fault is None:  # else the alert came when it was seen
                self._state.out.append(Alert(AlertKind.DISK, text, model.name))
        self._state.refuse_line(model, Refusal.DISK_FAILED, text, DISK_RETRY_MS)

    def await_disk_for_all(self, now: int) -> None:
        """Refuses what would be loaded while the disk is known to fail: no model leaves for a load that must fail.

        After a refusal the next request waits for a newer look at the disk: there may be room by now.
        """
        fault = self._state.disk_fault
        if fault is None:
            return
        for model in self._state.in_stage(Stage.ABSENT, Stage.PLANNED):
            if _writes(model) and now >= model.retry_at and self._state.is_wanted(model):
                self.await_disk(model, fault, now)
                if model.stage is Stage.PLANNED:  # a set that is under way would keep the plan
                    self.unplan(model, now)

    def fail(
        self,
        model: ModelState,
        reason: Reason | str,
        *,
        hopeless: bool,
        now: int,
        mishap: Mishap = Mishap.LOAD_FAILED,
    ) -> None:
        """Counts a failure. If it leads to a quarantine, `admission` moves or refuses the waiting requests."""
        model.fail(str(reason), hopeless=hopeless, now=now)
        model.trouble = mishap
        self._state.remeasured()  # memory is no longer kept free for a hopeless permanent model
        self._state.note(mishap, reason, model)
        if not model.is_quarantined(now):
            return
        pause = model.retry_at - now
        text = f"{model.name} is quarantined for {pause // 1000} s: {reason}"
        self._state.out.append(Alert(AlertKind.QUARANTINE, text, model.name))
        self._state.note(JournalEvent.QUARANTINE, reason, model, ms=pause)

    # ------------------------------------------------------------------ answers of the engines

    def loaded(self, event: Loaded, now: int) -> None:
        """Handles a model that is warm."""
        model = self._current(event.model, event.attempt, Stage.LOADING)
        if model is None:
            return
        taken, woke = now - model.since, model.load is model.wake
        model.load.learn(taken)
        model.given_up_ms = 0.0
        model.failures, model.failure, model.trouble, model.hopeless = 0, None, None, False
        model.is_put_off = False
        self.enter(model, Move.WARM, now)
        model.ready_at = model.last_used = self._state.active_at = now
        model.loads, model.wakings = model.loads + (not woke), model.wakings + woke
        model.bad_answers = model.stalled = model.stalled_long = 0
        model.is_suspect, model.is_evicted_by_hand = False, False
        self._measure(model, event.measured)
        model.seen = {}
        warm = BecameWarm(event.proof, taken, event.measured, woke)
        kind, size = JournalEvent.AWAKE if woke else JournalEvent.LOADED, sum(model.sizes().values())
        self._state.note(kind, warm, model, ms=taken, size=size)

    def load_failed(self, event: LoadFailed, now: int) -> None:
        """Handles a failed load. Memory that may still be taken counts until the engine was stopped."""
        model = self._current(event.model, event.attempt, Stage.LOADING)
        if model is None:
            return
        if event.blame is Blame.MODEL:
            model.give_up(now)
        if not event.remains:
            self.enter(model, Move.GONE, now)
        if event.blame is Blame.HOST:
            self.put_off(model, event.reason, now)
        elif event.blame is Blame.DISK:
            self.await_disk(model, event.reason, now)
        else:
            self.fail(model, event.reason, hopeless=event.hopeless, now=now)
        if event.remains:
            self.halt(model, event.reason, now, hard=True)

    def stopped(self, event: Stopped, now: int) -> None:
        """Handles a model that is gone and whose memory is back."""
        model = self._current(event.model, event.attempt, Stage.STOPPING)
        if model is None:
            return
        model.halt.learn(now - model.since)
        self._state.note(JournalEvent.STOPPED, model.leaving_why, model, ms=now - model.since)
        self.enter(model, Move.GONE, now)

    def slept(self, event: Slept, now: int) -> None:
        """Handles a model that sleeps as it was told."""
        model = self._current(event.model, event.attempt, Stage.STOPPING)
        if model is not None:
            self._fall_asleep(model, event.measured, model.leaving_why, now)

    def _fall_asleep(self, model: ModelState, memory: Mapping[str, int], why: Reason | str, now: int) -> None:
        taken = now - model.since if model.stage is Stage.STOPPING else None
        model.leaving_for, model.stop_tries = "", 0
        model.asleep_size = dict(memory) or model.asleep_size
        model.held = dict(memory) or model.held
        self.enter(model, Move.SLEPT, now)
        self._state.weigh(model)
        self._state.note(JournalEvent.ASLEEP, why, model, ms=taken, size=sum(model.sizes_asleep().values()))

    def died(self, event: Died, now: int) -> None:
        """Handles an engine that exited unexpectedly: its work returns or fails, its remains are removed."""
        stages = (Stage.LOADING, Stage.READY, Stage.DRAINING, Stage.ASLEEP, Stage.PLANNED)
        model = self._current(event.model, event.attempt, *stages)
        if model is not None and model.stage is Stage.PLANNED and model.sleeps:
            self.unplan(model, now)  # the model that was to be woken is gone
        if model is None or model.stage is Stage.PLANNED:
            return
        if event.blame is Blame.HOST:
            self.lose(model, event.reason, now)
        else:
            self.reset(model, f"its engine died: {event.reason}", now, mishap=Mishap.DIED)

    def host_seen(self, event: HostSeen, now: int) -> None:
        """Takes over the report of a program that hosts models, or its silence.

        While it is silent, its models count as they were last seen, memory included: a program that is only paused
        still has them. No request is sent there and nothing is loaded there until it has reported its models; what was
        about to be loaded is not, and no other model leaves for it. Where its models serve without it, they go on.
        """
        hosted = [s for s in self._state.managed if s.spec.engine == event.engine]
        was_silent = self._state.silent.pop(event.engine, None) is not None
        if event.silence is not None:
            self._state.silent[event.engine] = event.silence
        for model in hosted:
            model.silence = event.silence
            model.is_cut_off = event.silence is not None and not event.serves
            if event.silence is not None and model.stage is Stage.PLANNED:
                self.unplan(model, now, event.silence)
            if was_silent and event.silence is None and not model.is_quarantined(now):
                model.retry_at = now
        if self._state.ledger.set_places(event.engine, event.places):
            for model in hosted:
                self._state.weigh(model)
            if event.places is not None:
                self._state.note(JournalEvent.PLACES, HostHolds(event.engine, event.places))
        if was_silent is not (event.silence is not None):
            self._tell_silence(event, hosted)
        for model in hosted:
            if model.name in event.leaving and model.stage is Stage.READY:
                self.close(model, HostUnloads(event.engine), now, cause=Cause.HOST)
        self._state.remeasured()

    def _tell_silence(self, event: HostSeen, hosted: list[ModelState]) -> None:
        if event.silence is None:
            self._state.note(JournalEvent.HOST_BACK, f"{event.engine} answers again")
            return
        self._state.note(JournalEvent.HOST_SILENT, event.silence)
        names = ", ".join(s.name for s in hosted if s.line or s.stage is not Stage.ABSENT) or "no model"
        text = f"{event.engine}: {event.silence}; {names} waits until it answers again"
        self._state.out.append(Alert(AlertKind.HOST, text))

    def _current(self, name: str, attempt: int, *stages: Stage) -> ModelState | None:
        model = self._state.models.get(name)
        if model is None or model.attempt != attempt or model.stage not in stages:
            self._state.late_answers += 1
            return None
        return model

    # ------------------------------------------------------------------ readings of the machine

    def observed(self, event: Observed, now: int) -> None:
        """Takes over the readings of the machine, and detects changes that no event reported."""
        self._state.remeasured()
        self._see_disk(event.disk_fault)
        for name, reading in event.devices.items():
            if name in self._state.ledger.books:
                self._state.ledger.books[name].reading = reading
        self._begin_outgrown_anew()
        for name, reading in event.models.items():
            model = self._state.models.get(name)
            if model is None or model.attempt != reading.attempt or model.stage not in HOLDING:
                continue
            if (
                not reading.alive
                and model.stage in (Stage.READY, Stage.DRAINING, Stage.ASLEEP)
                and event.taken_at > model.since
            ):
                self.died(Died(name, reading.attempt, "its process is gone"), now)
                continue
            model.held = dict(reading.memory)
            if reading.asleep is not None:
                self._see_sleep(model, reading, event.taken_at, now)
            if model.stage is Stage.READY:
                self._measure(model, reading.memory)
                if event.taken_at > model.since:
                    model.seen = dict(reading.memory)

    def disk_seen(self, event: DiskSeen, now: int) -> None:
        """Takes over the answer of the disk: a model that has drained may be stopped, or stays."""
        self._state.disk_asked_at, self._state.disk_seen_at = None, now
        self._see_disk(event.fault)

    def _see_disk(self, fault: str | None) -> None:
        if fault is not None and self._state.disk_fault is None:
            self._state.out.append(Alert(AlertKind.DISK, fault))
        self._state.disk_fault = fault

    def _begin_outgrown_anew(self) -> None:
        """A model that outgrew its device under an earlier daemon is expected to need what it needs after a load.

        It would never fit with what it grew to, and growth is caused by use, not by the load. If it grows that far
        again, it leaves with an alert, and stays away until the next start.
        """
        ledger = self._state.ledger
        for model in [s for s in self._state.managed if s.may_begin_anew]:
            is_known = all(ledger.capacity_known(book.device.name) for book in ledger.books_of(model.needs))
            if is_known and not self._state.can_ever_fit(model):
                model.begin_anew()
                self._state.weigh(model)

    def _see_sleep(self, model: ModelState, reading: ModelReading, taken_at: int, now: int) -> None:
        """Handles an engine that fell asleep, or woke, by itself.

        Its memory is given to others only from here on, when no request can reach it any more before that memory was
        promised to it again. Until then it counts as warm.
        """
        fresh = taken_at > max(model.since, model.last_used)
        if model.stage is Stage.READY and reading.asleep and model.is_idle and fresh:
            self._fall_asleep(model, reading.memory, "its engine fell asleep by itself", now)
        elif model.stage is Stage.ASLEEP and fresh and not reading.asleep:
            self.enter(model, Move.WOKE, now)  # its memory counts again, even if it was given to others
            self._state.note(JournalEvent.AWAKE, "its engine woke by itself", model)
        elif model.stage is Stage.ASLEEP and reading.memory:
            model.asleep_size = dict(reading.memory)
            self._state.weigh(model)

    def _measure(self, model: ModelState, memory: Mapping[str, int]) -> None:
        if not memory:
            return
        model.held = dict(memory)
        model.measured = {d: max(size, model.measured.get(d, 0)) for d, size in memory.items()}
        self._state.weigh(model)

    # ------------------------------------------------------------------ the clock

    def close_idle(self, now: int) -> None:
        """RES-07: an idle model leaves after its time to live, but no member of a set for which a request waits."""
        awaited = self._state.companion_sets.awaited()
        for model in self._state.in_stage(Stage.READY, Stage.ASLEEP):
            if model.silence is not None or model.name in awaited:
                continue  # its host cannot be asked to unload it, or it would have to come back
            if self._is_sleepy(model, now):
                self.close(model, Occurred(Occasion.SLEEP_DUE), now, cause=Cause.SLEEP, sleep=True)
                continue
            if not model.is_idle or not self._state.is_leaving_when_idle(model):
                continue
            leaves_at = model.last_used + model.idle_ms
            if now >= leaves_at:
                idle = Idle(model.idle_ms, as_asked=model.keep_alive_ms is not None)
                self.close(model, idle, now, cause=Cause.IDLE)
            elif is_spent_out(self._state, model, leaves_at):
                self.close(model, Occurred(Occasion.SPENT_OUT), now, cause=Cause.IDLE)

    @staticmethod
    def _is_sleepy(model: ModelState, now: int) -> bool:
        """Whether it is time to put an idle model to sleep. One that sleeps by itself is only watched."""
        sleep_ms = model.spec.sleep_ms
        is_told = model.spec.sleeps_when_told and model.stage is Stage.READY and model.is_idle
        return is_told and sleep_ms is not None and now >= model.last_used + sleep_ms

    def enforce_deadlines(self, now: int) -> None:
        """Ends every stage whose answer did not come before its deadline."""
        for model in self._state.in_stage(Stage.LOADING, Stage.STOPPING, Stage.PLANNED):
            deadline = self.deadline(model)
            if deadline is None or now < deadline:
                continue
            if model.stage is Stage.LOADING:
                late = f"not warm after {(now - model.since) // 1000} s"
                if model.silence is not None:
                    self.put_off(model, model.silence, now)
                else:
                    model.give_up(now)
                    self.fail(model, late, hopeless=False, now=now)
                self.halt(model, Occurred(Occasion.LOAD_TOO_LONG), now, hard=True)
            elif model.stage is Stage.STOPPING:
                self._stop_again(model, now)
            elif model.stage is Stage.PLANNED:
                self.unplan(model, now)
                model.retry_at = now + PLAN_LIMIT_MS

    def deadline(self, model: ModelState) -> int | None:
        """When a model that waits for an answer stops waiting."""
        if model.stage is Stage.LOADING:
            return model.since + model.load_limit_ms + LOAD_ANSWER_MS
        if model.stage is Stage.STOPPING:
            return model.since + STOP_LIMIT_MS
        if model.stage is Stage.PLANNED and model.clear_since is not None:
            return model.clear_since + PLAN_LIMIT_MS
        return None

    def _stop_again(self, model: ModelState, now: int) -> None:
        """Tells it to stop again. A host that cannot be asked has not refused: its models count until it answers."""
        model.stop_tries += model.silence is None
        if model.stop_tries < STOP_TRIES:
            self.halt(model, model.leaving_why, now, hard=True)
            return
        text = f"{model.name} does not stop; its memory counts as foreign use from now on"
        self._state.out.append(Alert(AlertKind.STUCK, text, model.name))
        self.enter(model, Move.GONE, now)
        why = "its engine could not be stopped"
        self.fail(model, why, hopeless=True, now=now, mishap=Mishap.STUCK)


def _writes(model: ModelState) -> bool:
    """Whether its load writes to the disk of the root. A process that sleeps is there already."""
    return model.spec.writes_here and not model.sleeps


def _given_up(model: ModelState, target: str, now: int) -> str:
    """Why a load that took too long was given up in favour of another model."""
    taken, usual = (now - model.since) / 1000, model.load.ms / 1000
    return (
        f"not warm after {taken:.0f} s, where {usual:.0f} s were expected, and {target} waits for its memory; "
        f"set models.{model.name}.load_timeout if it needs longer"
    )
