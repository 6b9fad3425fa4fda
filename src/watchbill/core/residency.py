"""Residency: brings models into memory and takes them out, one stage at a time.

Carries out the plans of a policy and the changes nobody chooses: idle time, emergencies, failures, the operator.
Never touches a process: it returns actions, and believes only answers that carry the attempt it asked for. Every
stage that waits for an answer has a deadline, and what happens at the deadline is defined here.
"""

from collections.abc import Mapping

from watchbill.catalog import WorkClass
from watchbill.core.budget import DeviceBook, shortage
from watchbill.core.messages import (
    Alert,
    Died,
    EvictAsked,
    Load,
    Loaded,
    LoadFailed,
    Observed,
    Reply,
    Stop,
    Stopped,
)
from watchbill.core.state import State
from watchbill.core.station import HOLDING, STAYING, Stage, Station
from watchbill.core.tipping import Plan
from watchbill.units import format_bytes

__all__ = ["Residency"]

#: Limits of a load: what was never measured gets more.
LOAD_LIMIT_FACTOR = 3
LOAD_LIMIT_EXTRA_MS = 10_000
LOAD_LIMIT_MIN_MS = 60_000
LOAD_LIMIT_UNMEASURED_MS = 300_000
#: The engine layer's own stop ladder ends well before this.
STOP_LIMIT_MS = 20_000
STOP_TRIES = 3
#: A planned load that still does not fit when all its victims are gone is given up after this.
PLAN_LIMIT_MS = 15_000
#: In an emergency running work gets this long to end.
EMERGENCY_GRACE_MS = 2_000
#: After an emergency nothing is loaded for this long, so that memory does not flap.
SETTLE_MS = 10_000


class Residency:
    """The table of what occupies memory."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._commands: dict[str, list[int]] = {}  # model -> operators who wait for it to be gone

    # ------------------------------------------------------------------ answers of the engines

    def loaded(self, event: Loaded, now: int) -> None:
        """A model is warm."""
        station = self._current(event.model, event.attempt, Stage.LOADING)
        if station is None:
            return
        station.load.learn(now - station.since)
        taken = now - station.since
        station.failures, station.failure, station.hopeless = 0, None, False
        self._state.enter(station, Stage.READY, now)
        station.ready_at = station.last_used = now
        station.loads += 1
        self._measure(station, event.measured)
        size = sum(station.sizes().values())
        self._state.note(
            "loaded", "warm: healthy, and a real probe was answered", station, ms=taken, size=size
        )

    def load_failed(self, event: LoadFailed, now: int) -> None:
        """A model could not be brought up; nothing of the attempt is left."""
        station = self._current(event.model, event.attempt, Stage.LOADING)
        if station is None:
            return
        self._state.enter(station, Stage.ABSENT, now)
        self._failed(station, event.reason, hopeless=event.hopeless, now=now)

    def stopped(self, event: Stopped, now: int) -> None:
        """A model is gone and its memory is back."""
        station = self._current(event.model, event.attempt, Stage.STOPPING)
        if station is None:
            return
        station.halt.learn(now - station.since)
        self._state.note("stopped", station.leaving_why, station, ms=now - station.since)
        self._state.enter(station, Stage.ABSENT, now)
        for command in self._commands.pop(station.name, []):
            self._state.out.append(Reply(command, True, f"{station.name} is out of memory"))

    def died(self, event: Died, now: int) -> None:
        """An engine went without being asked: its work returns or fails, its remains are cleared away."""
        station = self._current(event.model, event.attempt, Stage.LOADING, Stage.READY, Stage.DRAINING)
        if station is None:
            return
        for running in station.running.values():
            self._state.cut(running, "engine_failed" if running.begun else "requeue", now)
        self._failed(station, event.reason, hopeless=False, now=now)
        self._halt(station, f"its engine died: {event.reason}", now, hard=True)

    def _current(self, name: str, attempt: int, *stages: Stage) -> Station | None:
        station = self._state.stations.get(name)
        if station is None or station.attempt != attempt or station.stage not in stages:
            self._state.late_answers += 1
            return None
        return station

    def _failed(self, station: Station, reason: str, *, hopeless: bool, now: int) -> None:
        station.fail(reason, hopeless=hopeless, now=now)
        self._state.note("load_failed", reason, station)
        if not station.is_quarantined(now):
            return
        pause = station.retry_at - now
        text = f"{station.name} is quarantined for {pause // 1000} s: {reason}"
        self._state.out.append(Alert("quarantine", text, station.name))
        self._state.note("quarantine", reason, station, ms=pause)
        self._state.refuse_line(station, "model_failed", f"{station.name}: {reason}", pause)

    # ------------------------------------------------------------------ looks at the machine

    def observed(self, event: Observed, now: int) -> None:
        """Takes over what the machine says, and notices what nobody told."""
        for name, reading in event.devices.items():
            if name in self._state.ledger.books:
                self._state.ledger.books[name].reading = reading
        for name, reading in event.models.items():
            station = self._state.stations.get(name)
            if station is None or station.attempt != reading.attempt or station.stage not in HOLDING:
                continue
            if (
                not reading.alive
                and station.stage in (Stage.READY, Stage.DRAINING)
                and event.taken_at > station.since
            ):
                self.died(Died(name, reading.attempt, "its process is gone"), now)
                continue
            station.held = dict(reading.memory)
            if station.stage is Stage.READY:
                self._measure(station, reading.memory)
        for book in self._state.ledger.books.values():
            self._judge_emergency(book, event.pressure, now)

    def _measure(self, station: Station, memory: Mapping[str, int]) -> None:
        if not memory:
            return
        station.held = dict(memory)
        station.measured = {d: max(size, station.measured.get(d, 0)) for d, size in memory.items()}
        self._state.weigh(station)

    # ------------------------------------------------------------------ emergencies and shrunken budgets

    def _judge_emergency(self, book: DeviceBook, pressure: bool, now: int) -> None:
        """RES-06. One victim at a time: after it is gone the machine is looked at before the next is chosen."""
        low = book.reading is not None and book.reading.available < book.device.reserve
        name = book.device.name
        holders = [s for s in self._state.in_stage(*HOLDING) if s.needs.get(name)]
        if not (low or pressure) or not holders:
            book.emergency_since = None
            return
        if book.emergency_since is None:
            book.emergency_since = now
        book.settled_at = now + SETTLE_MS
        if any(s.stage in (Stage.DRAINING, Stage.STOPPING) for s in holders):
            return
        victim = min(holders, key=lambda s: self._loss(s, now))
        free = format_bytes(book.reading.available) if book.reading else "unknown"
        why = (
            f"emergency: {free} available on {name}, below its reserve of {format_bytes(book.device.reserve)}"
        )
        self._state.out.append(Alert("emergency", f"{victim.name} leaves; {why}", victim.name, name))
        self.close(victim, "", why, now)
        victim.emergency = True

    def _loss(self, station: Station, now: int) -> tuple[bool, bool, bool, float, str]:
        """Cheapest loss first; permanents late, the reserved core model last of all."""
        core = self._state.is_reserved_core(station)
        loading = station.stage is Stage.LOADING
        return (core, station.model.permanent, not loading, station.price(now), station.name)

    def restore_budgets(self, now: int) -> None:
        """Makes room where the budget shrank, or a model grew: plans are dropped first, then models leave."""
        for name in self._state.ledger.books:
            over = self._state.used(name, *STAYING) - self._state.ledger.limit(name)
            if over <= 0:
                continue
            planned = self._state.in_stage(Stage.PLANNED)
            for station in sorted(planned, key=lambda s: -s.plan_order):
                if over > 0 and station.needs.get(name):
                    over -= station.needs[name]
                    self.unplan(station, now)
            staying = [s for s in self._state.in_stage(Stage.READY, Stage.LOADING) if s.needs.get(name)]
            for station in sorted(staying, key=lambda s: self._loss(s, now)):
                if over > 0:
                    over -= station.needs[name]
                    self.close(station, "", f"{name} holds more than its budget", now)

    def end_graces(self, now: int) -> None:
        """Cuts what still runs on an emergency's victim when its grace is over."""
        for station in self._state.in_stage(Stage.DRAINING):
            if not station.emergency:
                continue
            if now < station.since + EMERGENCY_GRACE_MS:
                self._state.wakes.append(station.since + EMERGENCY_GRACE_MS)
                continue
            for running in station.running.values():
                self._state.cut(running, "preempted" if running.begun else "requeue", now)

    # ------------------------------------------------------------------ the operator and the clock

    def evict_asked(self, event: EvictAsked, now: int) -> None:
        """Takes a model out by hand; the reply comes when its memory is back."""
        station, reply = self._state.stations[event.model], self._state.out.append
        if station.model.shared:
            reply(
                Reply(event.command, False, f"{station.name} runs on a shared engine, which is never managed")
            )
        elif station.model.permanent and not event.force:
            reply(
                Reply(
                    event.command,
                    False,
                    f"{station.name} is permanent; add --force to take it out all the same",
                )
            )
        elif station.stage is Stage.ABSENT:
            reply(Reply(event.command, True, f"{station.name} is not in memory"))
        elif station.stage is Stage.PLANNED:
            self.unplan(station, now)
            reply(Reply(event.command, True, f"the planned load of {station.name} was dropped"))
        else:
            self._commands.setdefault(station.name, []).append(event.command)
            self.close(station, "", "the operator asked for it", now)

    def close_idle(self, now: int) -> None:
        """RES-07: an idle model leaves after its time to live."""
        for station in self._state.in_stage(Stage.READY):
            kept = station.model.permanent or self._state.is_reserved_core(station)
            if kept or not station.is_idle:
                continue
            if now >= station.last_used + station.model.idle_ms:
                self.close(station, "", f"idle for {station.model.idle_ms // 1000} s", now)
            else:
                self._state.wakes.append(station.last_used + station.model.idle_ms)

    def enforce_deadlines(self, now: int) -> None:
        """What waits for an answer that does not come is ended here."""
        for station in self._state.managed:
            deadline = self.deadline(station)
            if deadline is None or now < deadline:
                continue
            if station.stage is Stage.LOADING:
                self._failed(
                    station, f"not warm after {(now - station.since) // 1000} s", hopeless=False, now=now
                )
                self._halt(station, "its load took too long", now, hard=True)
            elif station.stage is Stage.STOPPING:
                self._stop_again(station, now)
            elif station.stage is Stage.PLANNED and not self._has_leaving(station):
                self.unplan(station, now)
                station.retry_at = now + PLAN_LIMIT_MS

    def deadline(self, station: Station) -> int | None:
        """When a station that waits for an answer stops waiting."""
        if station.stage is Stage.LOADING:
            return station.since + self._load_limit(station)
        if station.stage is Stage.STOPPING:
            return station.since + STOP_LIMIT_MS
        if station.stage is Stage.PLANNED:
            return station.since + PLAN_LIMIT_MS
        return None

    @staticmethod
    def _load_limit(station: Station) -> int:
        if station.model.load_timeout_ms is not None:
            return station.model.load_timeout_ms
        floor = LOAD_LIMIT_UNMEASURED_MS if station.load.is_guess else LOAD_LIMIT_MIN_MS
        return max(floor, round(LOAD_LIMIT_FACTOR * station.load.high_ms) + LOAD_LIMIT_EXTRA_MS)

    def _stop_again(self, station: Station, now: int) -> None:
        station.stop_tries += 1
        if station.stop_tries < STOP_TRIES:
            self._halt(station, station.leaving_why, now, hard=True)
            return
        text = f"{station.name} does not go away; what it holds is counted as foreign use from now on"
        self._state.out.append(Alert("stuck", text, station.name))
        self._state.enter(station, Stage.ABSENT, now)
        self._failed(station, "its engine could not be stopped", hopeless=True, now=now)

    # ------------------------------------------------------------------ transitions

    def start(self, plan: Plan, now: int) -> None:
        """Begins a change: the target is promised its memory, the victims are closed."""
        self._state.plans_made += 1
        target = plan.target
        target.plan_order, target.plan_class = self._state.plans_made, target.top_class()
        self._state.enter(target, Stage.PLANNED, now)
        for victim in plan.victims:
            self.close(victim, target.name, f"{plan.why} of {target.name}: {plan.reason}", now)
        names = ", ".join(v.name for v in plan.victims)
        self._state.note(
            "plan", f"{plan.why}: {plan.reason}" + (f"; leaving: {names}" if names else ""), target
        )

    def close(self, station: Station, target: str, why: str, now: int) -> None:
        """Closes a model's door. Closed is final; what runs reaches its safe boundary first (RES-12)."""
        if station.stage is Stage.PLANNED:
            self.unplan(station, now)
        elif station.stage is Stage.LOADING:
            station.aborts += 1 if target else 0
            station.leaving_for = target
            self._halt(station, why, now, hard=True)
        elif station.stage is Stage.READY:
            self._state.enter(station, Stage.DRAINING, now)
            station.leaving_for, station.leaving_why = target, why
            self._state.note("evict", why, station, size=sum(station.sizes().values()))
            for running in station.running.values():
                if not running.begun:
                    self._state.cut(running, "requeue", now)
                elif running.request.work_class >= WorkClass.BACKGROUND:
                    self._state.cut(running, "boundary", now)

    def unplan(self, station: Station, now: int) -> None:
        """Drops a plan that nobody wants any more. Its victims reopen if none of them was stopped yet, once."""
        self._state.enter(station, Stage.ABSENT, now)
        self._state.note("unplan", "nobody waits for it any more, or the room is gone", station)
        mine = [s for s in self._state.managed if s.leaving_for == station.name]
        reopens = station.reversals < 1 and all(s.stage is Stage.DRAINING for s in mine)
        station.reversals += 1
        for victim in mine:
            victim.leaving_for = ""
            if reopens and victim.stage is Stage.DRAINING and not self._lacks_room(victim):
                self._state.enter(victim, Stage.READY, now)
                self._state.note("reopen", f"the plan for {station.name} was dropped", victim)

    def _lacks_room(self, station: Station) -> bool:
        return bool(shortage(station.needs, self._state.planned_free(station)))

    def _has_leaving(self, station: Station) -> bool:
        return any(
            s.leaving_for == station.name for s in self._state.in_stage(Stage.DRAINING, Stage.STOPPING)
        )

    def drop_unwanted_plans(self, now: int) -> None:
        """A target whose callers all left releases its plan."""
        for station in self._state.in_stage(Stage.PLANNED):
            if not station.line and not station.ghost and not station.model.permanent:
                self.unplan(station, now)

    def advance(self, now: int) -> None:
        """Stops what has drained, and loads what has its memory, in the order of the plans."""
        for station in self._state.in_stage(Stage.DRAINING):
            if not station.running:
                self._halt(station, station.leaving_why, now, hard=station.emergency)
        for station in sorted(self._state.in_stage(Stage.PLANNED), key=lambda s: s.plan_order):
            if self._bus_is_free(station) and not shortage(station.needs, self._state.actual_free(station)):
                self._load(station, now)

    def _bus_is_free(self, station: Station) -> bool:
        """RES-24: models load one at a time per device and per host, unless the config allows more."""
        loading = self._state.in_stage(Stage.LOADING)
        if len(loading) >= self._state.catalog.policy.parallel_loads:
            return False
        books = self._state.ledger.books
        return all(
            sum(1 for s in loading if s.needs.get(name)) < books[name].device.parallel_loads
            for name in station.needs
            if name in books
        )

    def _load(self, station: Station, now: int) -> None:
        station.attempt += 1
        self._state.enter(station, Stage.LOADING, now)
        self._state.out.append(Load(station.name, station.attempt, self._load_limit(station)))
        self._state.note("load", "its memory is there", station, size=sum(station.sizes().values()))

    def _halt(self, station: Station, why: str, now: int, *, hard: bool) -> None:
        if station.stage in (Stage.READY, Stage.DRAINING):
            station.evictions += 1
        station.attempt += 1
        station.leaving_why = why
        self._state.enter(station, Stage.STOPPING, now)
        self._state.out.append(Stop(station.name, station.attempt, hard, why))
