"""Transitions: the steps by which a model comes into memory and leaves it.

close admission -> drain to a safe boundary -> stop -> memory is back -> load -> warm. Each step changes one station's
stage and asks for one act. What decides to take a step lives elsewhere: a policy's plan, an emergency, the operator, a
deadline. Never touches a process: it only says what is to be done.
"""

from watchbill.catalog import WorkClass
from watchbill.core.budget import shortage
from watchbill.core.messages import Alert, Cause, Load, Mishap, PlanKind, Rouse, Sleep, Stop
from watchbill.core.policy import Plan
from watchbill.core.state import State
from watchbill.core.station import Running, Stage, Station

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
        dozing = self._may_doze(plan)
        for station in target.arriving:  # one model, or all that a company lacks: together or not at all
            station.plan_order, station.plan_class = self._state.plans_made, target.top_class()
            station.plan_for = target.name
            self._state.enter(station, Stage.PLANNED, now)
        target.is_under_way = bool(target.members)
        for victim in plan.victims:
            why = f"{plan.kind} of {target.name}: {plan.reason}"
            self.close(victim, target.name, why, now, cause=Cause.SWAP, plan=plan.kind, doze=victim in dozing)
        names = ", ".join(v.name for v in plan.victims)
        beside = f" ({target.name})" if target.members else ""
        self._state.note(
            "plan",
            f"{plan.kind}{beside}: {plan.reason}" + (f"; leaving: {names}" if names else ""),
            target.serving,
            plan=plan.kind,
            target=target.name,
        )

    def _may_doze(self, plan: Plan) -> list[Station]:
        """The victims that need only sleep: what they give back then is enough, and they are back sooner."""
        short, dozing = self._state.shortage_of(plan.target), list[Station]()
        for victim in plan.victims:
            known = victim.asleep_size or victim.model.asleep
            if not (known and victim.model.sleeps_when_told and victim.stage is Stage.READY):
                continue
            left = {r: sum(v.asleep_needs.get(r, 0) for v in (*dozing, victim)) for r in short}
            given = {r: sum(v.frees().get(r, 0) for v in plan.victims) - left[r] for r in short}
            if all(given[r] >= amount for r, amount in short.items()):
                dozing.append(victim)
        return dozing

    def close(
        self,
        station: Station,
        target: str,
        why: str,
        now: int,
        *,
        cause: Cause,
        plan: PlanKind | None = None,
        doze: bool = False,
    ) -> None:
        """Closes a model's door. Closed is final; what runs reaches its safe boundary first (RES-12)."""
        station.left = cause
        if station.stage is Stage.PLANNED:
            self.unplan(station, now)
        if station.stage is Stage.ASLEEP:
            station.leaving_for = target
            self._note_evict(station, why, sum(station.sizes_asleep().values()), cause, plan)
            self.halt(station, why, now, hard=False)
        elif station.stage is Stage.LOADING:
            station.aborts += 1 if target else 0
            station.leaving_for = target
            self.halt(station, why, now, hard=True)
        elif station.stage is Stage.READY:
            station.naps = doze
            self._state.enter(station, Stage.DRAINING, now)
            station.leaving_for, station.leaving_why = target, why
            self._note_evict(station, why, sum(station.sizes().values()), cause, plan)
            for running in (*station.running.values(), *station.users.values()):
                if not running.begun and not self._may_finish(station, running, plan):
                    self._state.cut(running, "requeue", now)
                elif running.request.work_class >= WorkClass.BACKGROUND:
                    self._state.cut(running, "boundary", now)

    def _may_finish(self, station: Station, running: Running, plan: PlanKind | None) -> bool:
        """Whether an answer that has not begun runs on though its model leaves for another.

        Its patience may be too short for another wait. And for a soft turn of an equal it is shorter than a swap: sent
        back, it would wait for its model's next turn, and four of them would bring the model back for one answer.
        """
        if plan is not None and not running.is_patient:
            return True
        is_person = running.request.work_class is WorkClass.INTERACTIVE
        return plan is PlanKind.TURN and is_person and station.service.ms <= station.quantum_ms

    def _note_evict(self, station: Station, why: str, size: int, cause: Cause, plan: PlanKind | None) -> None:
        target = station.leaving_for or None
        self._state.note("evict", why, station, size=size, cause=cause, plan=plan, target=target)

    def unplan(self, station: Station, now: int) -> None:
        """Drops a plan that nobody wants any more. Its victims reopen if none of them was stopped yet, once."""
        mine = [s for s in self._state.managed if s.leaving_for == station.plan_for]
        reopens = station.reversals < 1 and all(s.stage is Stage.DRAINING for s in mine)
        for planned in [s for s in self._state.in_stage(Stage.PLANNED) if s.plan_for == station.plan_for]:
            self._state.enter(planned, Stage.ASLEEP if planned.naps else Stage.ABSENT, now)
            self._state.note("unplan", "nobody waits for it any more, or the room is gone", planned)
            planned.reversals += 1
        for victim in mine:
            victim.leaving_for = ""
            if reopens and victim.stage is Stage.DRAINING and not self._lacks_room(victim):
                self._state.enter(victim, Stage.READY, now)
                self._state.note("reopen", f"the plan for {station.plan_for} was dropped", victim)

    def _lacks_room(self, station: Station) -> bool:
        return bool(self._state.shortage_of(station))

    def has_leaving(self, station: Station) -> bool:
        """Whether somebody is still on the way out for it."""
        return any(
            s.leaving_for == station.plan_for for s in self._state.in_stage(Stage.DRAINING, Stage.STOPPING)
        )

    def drop_unwanted_plans(self, now: int) -> None:
        """A target whose callers all left releases its plan."""
        for station in self._state.in_stage(Stage.PLANNED):
            if station.stage is Stage.PLANNED and not station.is_planned_for:
                self.unplan(station, now)

    def advance(self, now: int) -> None:
        """Stops what has drained, and loads what has its memory, in the order of the plans."""
        for station in self._state.in_stage(Stage.DRAINING):
            # A process that is stopped takes what it still works on with it; one that sleeps must have let go of it.
            naps = station.naps and not station.emergency
            if not station.running and not station.users and not (naps and station.lingering):
                self._put_away(station, now)
        for station in sorted(self._state.in_stage(Stage.PLANNED), key=lambda s: s.plan_order):
            if self._is_in_the_way(station, now):
                station.clear_since = None
                continue
            if not shortage(station.needs, self._state.actual_free(station)):
                self._load(station, now)
            elif station.clear_since is None:
                station.clear_since = now

    def _is_in_the_way(self, station: Station, now: int) -> bool:
        """Whether a planned load waits for something that ends by itself: a victim that leaves, or the bus."""
        return self.has_leaving(station) or not self._bus_is_free(station, now)

    def _bus_is_free(self, station: Station, now: int) -> bool:
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
            for name in station.needs
            if name in books
        )

    def _put_away(self, station: Station, now: int) -> None:
        """It has drained: it is stopped, or put to sleep where that is enough and memory did not run out."""
        if not station.naps or station.emergency:
            self.halt(station, station.leaving_why, now, hard=station.emergency)
            return
        station.attempt += 1
        self._state.enter(station, Stage.STOPPING, now)
        self._state.out.append(Sleep(station.name, station.attempt))

    def _load(self, station: Station, now: int) -> None:
        station.attempt += 1
        wakes = station.naps
        self._state.enter(station, Stage.LOADING, now)
        if wakes:
            self._state.out.append(Rouse(station.name, station.attempt, self.load_limit(station)))
            self._state.note("wake", "its memory is there", station, size=sum(station.sizes().values()))
            return
        expected = None if station.load.is_guess else round(station.load.ms)
        self._state.out.append(Load(station.name, station.attempt, self.load_limit(station), expected))
        self._state.note("load", "its memory is there", station, size=sum(station.sizes().values()))

    def halt(self, station: Station, why: str, now: int, *, hard: bool) -> None:
        """Stops a model; its memory counts until it is back."""
        if station.stage in (Stage.READY, Stage.DRAINING):
            station.evictions += 1
        station.attempt += 1
        station.naps, station.leaving_why = False, why
        self._state.enter(station, Stage.STOPPING, now)
        self._state.out.append(Stop(station.name, station.attempt, hard, why))

    def reset(self, station: Station, why: str, now: int, *, mishap: Mishap = Mishap.RESET) -> None:
        """Takes a model down at once because it cannot be trusted any more.

        Its failures are those of its turns, whatever its loads did: one that loads well and answers nothing would
        otherwise be loaded for ever.
        """
        if station.stage is Stage.READY and now - station.ready_at >= PROVEN_MS:
            station.resets = 0
        station.resets += 1
        station.failures = max(station.failures, station.resets - 1)
        self._cut_off(station, now)
        self.fail(station, why, hopeless=False, now=now, mishap=mishap)
        self.halt(station, why, now, hard=True)

    def lose(self, station: Station, why: str, now: int) -> None:
        """A model is gone through no fault of its own: its work returns or fails, and nothing is held against it."""
        self._cut_off(station, now)
        self._state.note("lost", why, station)
        self.halt(station, why, now, hard=True)

    def _cut_off(self, station: Station, now: int) -> None:
        """Ends what runs on a model that is gone."""
        for running in station.running.values():
            running.is_orphaned = True
            self._state.cut(running, "engine_failed" if running.begun else "requeue", now)
        for running in station.users.values():
            if not running.begun:  # one that has begun has an engine of its own, which is well
                self._state.cut(running, "requeue", now)

    def put_off(self, station: Station, reason: str, now: int) -> None:
        """A load failed through no fault of the model: who waits goes on waiting, and it is tried again soon."""
        station.put_off(reason, now)
        station.trouble = Mishap.LOAD_FAILED
        self._state.note(Mishap.LOAD_FAILED, reason, station)

    def await_disk(self, station: Station, reason: str, now: int) -> None:
        """A full or failing disk kept a model from loading. That is not held against the model: who waits is told, and
        the next load may go well."""
        is_news = station.trouble is not Mishap.DISK_FAILED
        station.trouble, station.failure, station.retry_at = Mishap.DISK_FAILED, reason, now + DISK_RETRY_MS
        text = f"{station.name}: {reason}"
        if is_news:
            self._state.note(Mishap.DISK_FAILED, reason, station)
            self._state.out.append(Alert("disk", text, station.name))
        self._state.refuse_line(station, "disk_failed", text, DISK_RETRY_MS)

    def fail(
        self,
        station: Station,
        reason: str,
        *,
        hopeless: bool,
        now: int,
        mishap: Mishap = Mishap.LOAD_FAILED,
    ) -> None:
        """Counts a failure. Requests that wait for a model that is quarantined by it are moved or told by `lanes`."""
        station.fail(reason, hopeless=hopeless, now=now)
        station.trouble = mishap
        self._state.remeasured()  # a hopeless permanent keeps no memory from others
        self._state.note(mishap, reason, station)
        if not station.is_quarantined(now):
            return
        pause = station.retry_at - now
        text = f"{station.name} is quarantined for {pause // 1000} s: {reason}"
        self._state.out.append(Alert("quarantine", text, station.name))
        self._state.note("quarantine", reason, station, ms=pause)

    @staticmethod
    def load_limit(station: Station) -> int:
        """How long a load may take."""
        if station.model.load_timeout_ms is not None:
            return station.model.load_timeout_ms
        # A model seen only from the page cache may come from a cold disk next time: its size sets the floor.
        usual = max(station.load.high_ms, station.load_from_disk_ms)
        limit = round(LOAD_LIMIT_FACTOR * usual) + LOAD_LIMIT_EXTRA_MS
        return max(limit, LOAD_LIMIT_UNMEASURED_MS) if station.load.is_guess else limit
