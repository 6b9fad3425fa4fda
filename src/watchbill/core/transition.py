"""Transitions: the steps by which a model comes into memory and leaves it.

close admission -> drain to a safe boundary -> stop -> memory is back -> load -> warm. Each step changes one model's
stage and asks for one act. What decides to take a step lives elsewhere: a policy's plan, an emergency, the operator, a
deadline. Never touches a process: it only says what is to be done.
"""

from watchbill.catalog import WorkClass
from watchbill.core.ledger import shortage
from watchbill.core.messages import Alert, Cause, Load, Mishap, PlanKind, Rouse, Sleep, Stop
from watchbill.core.model_state import ModelState, Running, Stage
from watchbill.core.policy import Plan
from watchbill.core.state import State

__all__ = ["Transitions"]

#: Limits of a load: what was never measured gets more.
LOAD_LIMIT_FACTOR = 3
LOAD_LIMIT_EXTRA_MS = 10_000
LOAD_LIMIT_UNMEASURED_MS = 300_000
#: A load that failed for the disk is tried again after this, if somebody wants it.
DISK_RETRY_MS = 3_000
#: A model that was ready for so long is not suspected for what happened before.
PROVEN_MS = 600_000


class Transitions:
    """What the machines of residency share."""

    def __init__(self, state: State) -> None:
        self._state = state

    def start(self, plan: Plan, now: int) -> None:
        """Begins a change: the target is promised its memory, the victims are closed."""
        self._state.plans_made += 1
        target = plan.target
        sleeping = self._may_sleep(plan)
        for model in target.arriving:  # one model, or all that a set lacks: together or not at all
            model.plan_order, model.plan_class = self._state.plans_made, target.top_class()
            model.plan_for = target.name
            self._state.enter(model, Stage.PLANNED, now)
        target.is_under_way = bool(target.members)
        for victim in plan.victims:
            why = f"{plan.kind} of {target.name}: {plan.reason}"
            self.close(
                victim, target.name, why, now, cause=Cause.SWAP, plan=plan.kind, sleep=victim in sleeping
            )
        names = ", ".join(v.name for v in plan.victims)
        beside = f" ({target.name})" if target.members else ""
        self._state.note(
            "plan",
            f"{plan.kind}{beside}: {plan.reason}" + (f"; leaving: {names}" if names else ""),
            target.serving,
            plan=plan.kind,
            target=target.name,
        )

    def _may_sleep(self, plan: Plan) -> list[ModelState]:
        """The victims that need only sleep: what they give back then is enough, and they are back sooner."""
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

    def close(
        self,
        model: ModelState,
        target: str,
        why: str,
        now: int,
        *,
        cause: Cause,
        plan: PlanKind | None = None,
        sleep: bool = False,
    ) -> None:
        """Closes a model's door. Closed is final; what runs reaches its safe boundary first (RES-12)."""
        model.left = cause
        if model.stage is Stage.PLANNED:
            self.unplan(model, now)
        if model.stage is Stage.ASLEEP:
            model.leaving_for = target
            self._note_evict(model, why, sum(model.sizes_asleep().values()), cause, plan)
            self.halt(model, why, now, hard=False)
        elif model.stage is Stage.LOADING:
            model.aborts += 1 if target else 0
            model.leaving_for = target
            self.halt(model, why, now, hard=True)
        elif model.stage is Stage.READY:
            model.sleeps = sleep
            self._state.enter(model, Stage.DRAINING, now)
            model.leaving_for, model.leaving_why = target, why
            self._note_evict(model, why, sum(model.sizes().values()), cause, plan)
            for running in (*model.running.values(), *model.users.values()):
                if not running.begun and not self._may_finish(model, running, plan):
                    self._state.cut(running, "requeue", now)
                elif self._can_continue(running.request):
                    self._state.cut(running, "boundary", now)

    def _may_finish(self, model: ModelState, running: Running, plan: PlanKind | None) -> bool:
        """Whether an answer that has not begun runs on though its model leaves for another.

        Its patience may be too short for another wait. And for a soft turn of an equal it is shorter than a swap: sent
        back, it would wait for its model's next turn, and four of them would bring the model back for one answer.
        """
        if plan is not None and not running.is_patient:
            return True
        is_person = running.request.work_class is WorkClass.INTERACTIVE
        return plan is PlanKind.TURN and is_person and model.service.ms <= model.quantum_ms

    def _can_continue(self, request: Request) -> bool:
        """Whether an answer may stop at a boundary: background work, unless its model was removed from the config."""
        return request.work_class >= WorkClass.BACKGROUND and self._state.missing_of(request) is None

    def _note_evict(
        self, model: ModelState, why: str, size: int, cause: Cause, plan: PlanKind | None
    ) -> None:
        target = model.leaving_for or None
        self._state.note("evict", why, model, size=size, cause=cause, plan=plan, target=target)

    def unplan(self, model: ModelState, now: int) -> None:
        """Drops a plan that nobody wants any more. Its victims reopen if none of them was stopped yet, once."""
        mine = [s for s in self._state.managed if s.leaving_for == model.plan_for]
        reopens = model.reversals < 1 and all(s.stage is Stage.DRAINING for s in mine)
        for planned in [s for s in self._state.in_stage(Stage.PLANNED) if s.plan_for == model.plan_for]:
            self._state.enter(planned, Stage.ASLEEP if planned.sleeps else Stage.ABSENT, now)
            self._state.note("unplan", "nobody waits for it any more, or the room is gone", planned)
            planned.reversals += 1
        for victim in mine:
            victim.leaving_for = ""
            if reopens and victim.stage is Stage.DRAINING and not self._lacks_room(victim):
                self._state.enter(victim, Stage.READY, now)
                self._state.note("reopen", f"the plan for {model.plan_for} was dropped", victim)

    def _lacks_room(self, model: ModelState) -> bool:
        return bool(self._state.shortage_of(model))

    def has_leaving(self, model: ModelState) -> bool:
        """Whether somebody is still on the way out for it."""
        return any(
            s.leaving_for == model.plan_for for s in self._state.in_stage(Stage.DRAINING, Stage.STOPPING)
        )

    def drop_unwanted_plans(self, now: int) -> None:
        """A target whose callers all left releases its plan."""
        for model in self._state.in_stage(Stage.PLANNED):
            if model.stage is Stage.PLANNED and not model.is_planned_for:
                self.unplan(model, now)

    def advance(self, now: int) -> None:
        """Stops what has drained, and loads what has its memory, in the order of the plans."""
        for model in self._state.in_stage(Stage.DRAINING):
            # A process that is stopped takes what it still works on with it; one that sleeps must have let go of it.
            sleeps = model.sleeps and not model.emergency
            if not model.running and not model.users and not (sleeps and model.lingering):
                self._put_away(model, now)
        for model in sorted(self._state.in_stage(Stage.PLANNED), key=lambda s: s.plan_order):
            if self._is_in_the_way(model, now):
                model.clear_since = None
                continue
            if not shortage(model.needs, self._state.actual_free(model)):
                self._load(model, now)
            elif model.clear_since is None:
                model.clear_since = now

    def _is_in_the_way(self, model: ModelState, now: int) -> bool:
        """Whether a planned load waits for something that ends by itself: a victim that leaves, or the bus."""
        return self.has_leaving(model) or not self._bus_is_free(model, now)

    def _bus_is_free(self, model: ModelState, now: int) -> bool:
        """RES-24: models load one at a time per device and per host, unless the config allows more.

        A load that takes far longer than it should is stuck: it keeps its memory, and no longer the others' turn.
        """
        loading = [s for s in self._state.in_stage(Stage.LOADING) if not s.is_stuck(now)]
        self._state.wakes += [s.stuck_at for s in loading]
        if len(loading) >= self._state.catalog.policy.parallel_loads:
            return False
        books = self._state.ledger.books
        return all(
            sum(1 for s in loading if s.needs.get(name)) < books[name].device.parallel_loads
            for name in model.needs
            if name in books
        )

    def _put_away(self, model: ModelState, now: int) -> None:
        """It has drained: it is stopped, or put to sleep where that is enough and memory did not run out."""
        if not model.sleeps or model.emergency:
            self.halt(model, model.leaving_why, now, hard=model.emergency)
            return
        model.attempt += 1
        self._state.enter(model, Stage.STOPPING, now)
        self._state.out.append(Sleep(model.name, model.attempt))

    def _load(self, model: ModelState, now: int) -> None:
        model.attempt += 1
        wakes = model.sleeps
        self._state.enter(model, Stage.LOADING, now)
        if wakes:
            self._state.out.append(Rouse(model.name, model.attempt, self.load_limit(model)))
            self._state.note("wake", "its memory is there", model, size=sum(model.sizes().values()))
            return
        expected = None if model.load.is_guess else round(model.load.ms)
        self._state.out.append(Load(model.name, model.attempt, self.load_limit(model), expected))
        self._state.note("load", "its memory is there", model, size=sum(model.sizes().values()))

    def halt(self, model: ModelState, why: str, now: int, *, hard: bool) -> None:
        """Stops a model; its memory counts until it is back."""
        if model.stage in (Stage.READY, Stage.DRAINING):
            model.evictions += 1
        model.attempt += 1
        model.sleeps, model.leaving_why = False, why
        self._state.enter(model, Stage.STOPPING, now)
        self._state.out.append(Stop(model.name, model.attempt, hard, why))

    def reset(self, model: ModelState, why: str, now: int, *, mishap: Mishap = Mishap.RESET) -> None:
        """Takes a model down at once because it cannot be trusted any more.

        Its failures are those of its turns, whatever its loads did: one that loads well and answers nothing would
        otherwise be loaded for ever.
        """
        if model.stage is Stage.READY and now - model.ready_at >= PROVEN_MS:
            model.resets = 0
        model.resets += 1
        model.failures = max(model.failures, model.resets - 1)
        self._cut_off(model, now)
        self.fail(model, why, hopeless=False, now=now, mishap=mishap)
        self.halt(model, why, now, hard=True)

    def lose(self, model: ModelState, why: str, now: int) -> None:
        """A model is gone through no fault of its own: its work returns or fails, and nothing is held against it."""
        self._cut_off(model, now)
        self._state.note("lost", why, model)
        self.halt(model, why, now, hard=True)

    def _cut_off(self, model: ModelState, now: int) -> None:
        """Ends what runs on a model that is gone."""
        for running in model.running.values():
            running.is_orphaned = True
            self._state.cut(running, "engine_failed" if running.begun else "requeue", now)
        for running in model.users.values():
            if not running.begun:  # one that has begun has an engine of its own, which is well
                self._state.cut(running, "requeue", now)

    def put_off(self, model: ModelState, reason: str, now: int) -> None:
        """A load failed through no fault of the model: who waits goes on waiting, and it is tried again soon."""
        model.put_off(reason, now)
        model.trouble = Mishap.LOAD_FAILED
        self._state.note(Mishap.LOAD_FAILED, reason, model)

    def await_disk(self, model: ModelState, reason: str, now: int) -> None:
        """A full or failing disk kept a model from loading. That is not held against the model: who waits is told, and
        the next load may go well."""
        is_news = model.trouble is not Mishap.DISK_FAILED
        model.trouble, model.failure, model.retry_at = Mishap.DISK_FAILED, reason, now + DISK_RETRY_MS
        text = f"{model.name}: {reason}"
        if is_news:
            self._state.note(Mishap.DISK_FAILED, reason, model)
            self._state.out.append(Alert("disk", text, model.name))
        self._state.refuse_line(model, "disk_failed", text, DISK_RETRY_MS)

    def fail(
        self,
        model: ModelState,
        reason: str,
        *,
        hopeless: bool,
        now: int,
        mishap: Mishap = Mishap.LOAD_FAILED,
    ) -> None:
        """Counts a failure. Requests that wait for a model that is quarantined by it are moved or told by `lanes`."""
        model.fail(reason, hopeless=hopeless, now=now)
        model.trouble = mishap
        self._state.remeasured()  # a hopeless permanent keeps no memory from others
        self._state.note(mishap, reason, model)
        if not model.is_quarantined(now):
            return
        pause = model.retry_at - now
        text = f"{model.name} is quarantined for {pause // 1000} s: {reason}"
        self._state.out.append(Alert("quarantine", text, model.name))
        self._state.note("quarantine", reason, model, ms=pause)

    @staticmethod
    def load_limit(model: ModelState) -> int:
        """How long a load may take."""
        if model.spec.load_timeout_ms is not None:
            return model.spec.load_timeout_ms
        # A model seen only from the page cache may come from a cold disk next time: its size sets the floor.
        usual = max(model.load.high_ms, model.load_from_disk_ms)
        limit = round(LOAD_LIMIT_FACTOR * usual) + LOAD_LIMIT_EXTRA_MS
        return max(limit, LOAD_LIMIT_UNMEASURED_MS) if model.load.is_guess else limit
