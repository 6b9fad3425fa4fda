"""The judge: checks every step of the core against the invariants, by the world's own state.

It looks at the simulated processes, their memory and the callers, never at the core's ledger: a ledger that is wrong in
the same way as the check would pass it. Plans and closed models are known from the journal.

Memory is checked whenever an engine takes some; waiting and running requests after every step. Now and then everything
is checked, including the core's cached sums. That is the only check that reads the core's own state.
"""

from collections.abc import Iterator
from typing import Protocol

from watchbill.catalog import Catalog, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.companions import set_name
from watchbill.core.machine import Machine
from watchbill.core.model_state import STALL_MS
from watchbill.core.reasons import Cause, Occasion, Occurred, Planned, Swapped, TurnCame
from watchbill.core.running import LINGER_LIMIT_MS
from watchbill.core.stages import AWAY, STAYING, Stage
from watchbill.core.watchdog import CHECK_MS, STALL_RESET_PAUSE_MS, STALLED_MAX
from watchbill.simulate.borrowers import Borrower, Borrowers
from watchbill.simulate.callers import Caller, CallerState, Faults
from watchbill.simulate.engine import Power, SimEngine, TrueModel
from watchbill.simulate.hosts import Hosts
from watchbill.simulate.late_loads import LateLoads
from watchbill.simulate.limited_lanes import LimitedLanes
from watchbill.simulate.places import Places
from watchbill.simulate.sites import Sites
from watchbill.simulate.tenants import Tenants
from watchbill.simulate.waits import Waits

__all__ = ["Judge"]

#: Plans that must respect a quantum.
_TURNS = frozenset({m.PlanKind.TURN, m.PlanKind.DUE, m.PlanKind.RATE})
#: The whole world is checked every time this many steps have passed.
WHOLE_EVERY_STEPS = 50
#: Learned load times vary: a quantum counts as broken only below this share of the true one.
QUANTUM_TOLERANCE = 0.5
#: The time that a cut may take.
TIME_LIMIT_SLACK_MS = 1_000


class Judged(Protocol):
    """The part of the world that the judge reads."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    declared: dict[str, Model]  # removed ones included
    capacity: dict[str, int]
    engines: dict[str, SimEngine]
    truth: dict[str, TrueModel]
    callers: dict[str, Caller]
    open: dict[str, Caller]
    borrowers: Borrowers
    tenants: Tenants
    sites: Sites
    hosts: Hosts
    told_load_ms: dict[str, float]
    timer: float | None
    disk_full_since: float | None
    faults: Faults
    core: Machine


class Judge:
    """Collects breaches: invariant -> when and what."""

    def __init__(self, world: Judged) -> None:
        self._world = world
        self.broken: dict[str, list[tuple[float, str]]] = {}
        self.closed: set[str] = set()  # models that take no new requests
        self.warm_at: dict[str, float] = {}
        self.load_took: dict[str, float] = {}  # the shortest load time known to the core: told or seen
        self._planned: set[str] = set()
        self._planned_at: dict[str, float] = {}
        self._dropped: set[str] = set()  # models whose plan gave way to a definition of the last reload
        self._served: set[str] = set()  # models that got a grant in this step
        self._steps = 0
        self._sets: list[tuple[str, ...]] = []  # the sets that were planned in this step
        self.places = Places(world.catalog, world.capacity)
        self._last_load_ms: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}  # model -> the watchdog's last question
        # Model and attempt -> silent timeouts since it froze.
        self._hung: dict[tuple[str, int], list[float]] = {}
        self._stalled: dict[tuple[str, int], list[float]] = {}  # the same for answers that stop in the middle
        self._met: set[frozenset[str]] = set()  # models of one group that a reload found in memory together
        self._late_loads = LateLoads(world, self.say)
        self._limited_lanes = LimitedLanes(world, self.say)
        self.waits = Waits(world, self.say, self._limited_lanes.is_full)

    def say(self, law: str, detail: str) -> None:
        """Records a breach."""
        self.broken.setdefault(law, []).append((round(self._world.now / 1000, 3), detail))

    def became_warm(self, name: str, took_ms: float) -> None:
        """Notes a load that succeeded."""
        self.warm_at[name] = self._world.now
        self._last_load_ms[name] = took_ms
        self.places.loaded(name, took_ms)
        self._late_loads.loaded(name, took_ms)
        told = self._world.told_load_ms.get(name, took_ms)
        self.load_took[name] = min(took_ms, told, self.load_took.get(name, took_ms))

    def ran(self, caller: Caller) -> None:
        """Judges a running request at its end: its lane's time limit holds for all its turns together."""
        ran_ms = caller.ran_ms + self._world.now - caller.granted_at
        if ran_ms > caller.request.timeout_ms + TIME_LIMIT_SLACK_MS:
            self.say("a request ran longer than its time limit", f"{caller.request.id} {ran_ms:.0f} ms")

    def timed_out(self, caller: Caller) -> None:
        """Notes a request that used all its time.

        Three on a frozen engine are enough reason to ask it. So many on an engine whose answers stop in the middle
        are enough to reset it, whatever it answers to a question.
        """
        engine, now = self._world.engines[caller.served_by], self._world.now
        if self._world.declared[caller.served_by].shared:
            return
        if engine.frozen_at is not None:
            self._hung.setdefault((caller.served_by, engine.attempt), []).append(now)
        elif engine.stalls and caller.begun_at is not None and now - caller.begun_at >= STALL_MS:
            self._stalled.setdefault((caller.served_by, engine.attempt), []).append(now)

    def _judge_hung(self) -> None:
        """A frozen engine whose requests time out must be asked and reset, however short their time limit was."""
        longest = max((lane.timeout_ms for lane in self._world.catalog.lanes.values()), default=0)
        for (name, attempt), times in list(self._hung.items()):
            engine = self._world.engines[name]
            is_silent = self._world.hosts.is_silent(name)
            if engine.attempt != attempt or engine.frozen_at is None or is_silent:
                del self._hung[name, attempt]
            elif len(times) >= 3 and self._world.now > times[2] + longest + LINGER_LIMIT_MS + 2 * CHECK_MS:
                self.say("a hung engine is not found", name)
        for (name, attempt), times in list(self._stalled.items()):
            if self._world.engines[name].attempt != attempt:
                del self._stalled[name, attempt]
            elif len(times) >= STALLED_MAX:
                allowed_ms = longest + LINGER_LIMIT_MS + STALL_RESET_PAUSE_MS
                if self._world.now > times[STALLED_MAX - 1] + allowed_ms:
                    self.say("a stalling engine is not found", name)

    def reloaded(self) -> None:
        """Notes a config change: resident models that were legal before may have to leave first."""
        self._met |= {pair for pair, _ in self._pairs()}
        self._dropped.clear()

    # ------------------------------------------------------------------ before the actions are carried out

    def before(self, actions: list[m.Action]) -> None:
        """Checks each action against the world at the moment of the action."""
        self._served = set()
        self._sets = []
        self._asked_at |= {action.model: self._world.now for action in actions if isinstance(action, m.Check)}

    def read(self, note: m.Note) -> None:
        """Follows plans and closings in the journal, and judges each closing as it happens."""
        name = note.model or ""
        self._world.tenants.read(note)
        match note.event:
            case m.JournalEvent.EVICT:
                self._judge_closing(name, note.reason if isinstance(note.reason, Swapped) else None)
                if note.cause is Cause.LOAN:
                    self._judge_loan_victim(name)
                self.closed.add(name)
            case m.JournalEvent.REOPEN:
                if self._world.engines[name].power not in (Power.WARM, Power.ASLEEP):
                    self.say("reopened after the stop", name)
                self.closed.discard(name)
            case m.JournalEvent.PLAN:
                assert isinstance(note.reason, Planned)
                self._planned |= {name, *note.reason.members}
                self._planned_at |= dict.fromkeys((name, *note.reason.members), self._world.now)
                self.waits.planned(name, note.reason.kind)
                if note.reason.is_set:
                    self._sets.append(note.reason.members)
            case m.JournalEvent.UNPLAN:
                self._planned.discard(name)
                self._sets = [each for each in self._sets if name not in each]
                if note.reason == Occurred(Occasion.CONFIG_CHANGED):
                    if name in self._dropped:
                        self.say("planned again with an old definition", name)
                    self._dropped.add(name)
            case m.JournalEvent.ASLEEP:
                self.closed.add(name)
            case m.JournalEvent.AWAKE:
                self.closed.discard(name)
            case m.JournalEvent.WELL:
                self._asked_at.pop(name, None)
            case m.JournalEvent.LOAD | m.JournalEvent.WAKE:
                self._asked_at.pop(name, None)
                self._judge_load(name)
                self.closed.discard(name)
                self._planned.discard(name)
            case _:
                pass

    def _judge_load(self, name: str) -> None:
        world, engine = self._world, self._world.engines[name]
        world.hosts.loading(name)
        # The action comes just before its note: the engine already holds its memory.
        self._judge_groups()
        if world.declared[name].shared:
            self.say("a shared engine was managed", name)
        models, now = world.core.state.models, int(world.now)
        loading = sum(
            1
            for name, e in world.engines.items()
            if e.power is Power.LOADING
            and world.declared[name].site is None  # the bus of another machine
            and not (name in models and models[name].is_stuck(now))
        )
        if world.declared[name].site is None and loading > world.catalog.policy.parallel_loads:
            self.say("more loads at once than allowed", name)
        for device, size in engine.held.items():
            if (over := self._over(device)) and size:
                self.say("memory over the budget when a load was emitted", f"{name} {device} {over}")

    def _over(self, device: str) -> str | None:
        """What a device holds beyond its budget: the memory of engines in any state, and what is lent."""
        world, rules = self._world, self._world.catalog.devices[device]
        held = sum(e.held.get(device, 0) for e in world.engines.values())
        lent = world.borrowers.lent(device)
        capacity = min(world.capacity[device], rules.capacity or world.capacity[device]) * rules.share
        return f"{held:,} and {lent:,} lent" if held + lent > capacity - rules.reserve else None

    def lent(self, borrower: Borrower) -> None:
        """Judges a loan at the moment of its grant: the memory must be there, whatever its holder does."""
        if over := self._over(borrower.device):
            self.say("memory was lent that was not there", f"{borrower.id} {borrower.device} {over}")

    def _judge_loan_victim(self, name: str) -> None:
        """A loan takes the memory of idle models only: requests stay ahead of it."""
        world = self._world
        if world.declared[name].permanent:
            self.say("a permanent model was closed for a loan", name)
        for caller in world.open.values():
            is_open = caller.state in (CallerState.WAITING, CallerState.RUNNING)
            if is_open and name in (caller.served_by, *caller.beside):
                self.say("a model in use was closed for a loan", f"{name} of {caller.request.id}")

    def _judge_closing(self, name: str, swapped: Swapped | None) -> None:
        world, model = self._world, self._world.declared[name]
        engine, plan = world.engines[name], None if swapped is None else swapped.kind
        if model.shared:
            self.say("a shared engine was managed", name)
        if engine.power is Power.ASLEEP:
            return  # it ended its turn itself
        voluntary = plan not in (None, m.PlanKind.FIFO)  # strict order closes any model in its way
        if model.permanent and voluntary:
            self.say("a permanent model was closed for another", name)
        waits = [
            c
            for c in world.open.values()
            if c.served_by == name and self._could_start(c) and self._limited_lanes.is_open_to(c)
        ]
        is_free = not engine.jobs and len(engine.lingering) < max(1, model.concurrency - 1)
        # The end of a run that was cut is not known to the core before the engine has reported it.
        is_free = is_free and not any(
            c.state is CallerState.RUNNING and c.served_by == name for c in world.open.values()
        )
        # A model that the watchdog suspects gets no requests, also before it can be asked.
        is_free = is_free and not world.core.state.models[name].is_suspect
        is_free = is_free and not world.hosts.is_known_silent(name)
        if voluntary and waits and is_free and name not in self._served and not self._is_asked(name):
            self.say("closed before its waiting work was granted", name)
        if swapped is not None and plan is m.PlanKind.RATE:
            self._judge_rate(name, swapped.target)
        idle_for_gain = plan in (m.PlanKind.RATE, m.PlanKind.DUE) and not engine.jobs and not waits
        if swapped is not None and isinstance(swapped.why, TurnCame) and swapped.why.is_early:
            self._judge_early(name, swapped, swapped.why)
        elif plan in _TURNS and not idle_for_gain:
            self._judge_quantum(name)
        if plan in (*_TURNS, m.PlanKind.TURNS) and (engine.jobs or waits):
            self._judge_share(name)

    def _judge_rate(self, name: str, target: str) -> None:
        """A busy model may be closed for a gain only for a strictly higher class."""
        world = self._world
        mine = [c.request.work_class for c in world.open.values() if self._is_busy_with(c, name)]
        theirs = [c.request.work_class for c in world.open.values() if _target_of(c) == target]
        if mine and (not theirs or min(theirs) >= min(mine)):
            self.say("a busy model was closed for an equal", f"{name} for {target}")

    def _is_busy_with(self, caller: Caller, name: str) -> bool:
        """Whether a caller keeps a model busy: it runs there or beside it, or waits for nothing else."""
        if caller.state is CallerState.RUNNING:
            return name == caller.served_by or name in caller.beside
        return name == caller.served_by and (not caller.beside or self._could_start(caller))

    def _could_start(self, caller: Caller) -> bool:
        """Whether it waits, neither for a companion nor for the end of a person's work."""
        if self._world.tenants.is_paused and caller.request.work_class is WorkClass.LEASED:
            return False
        return caller.state is CallerState.WAITING and all(self._is_there(name) for name in caller.beside)

    def _is_there(self, name: str) -> bool:
        """Whether a model could serve now: warm, or asleep by itself while its memory is still its own."""
        if name in self.closed or self._world.hosts.is_known_silent(name):
            return False
        return self._world.engines[name].power in (Power.WARM, Power.ASLEEP)

    def _judge_early(self, name: str, swapped: Swapped, why: TurnCame) -> None:
        """A quantum is cut short only for a request that can still be served in time."""
        state = self._world.core.state
        target = state.companion_sets.get(swapped.target) or state.models.get(swapped.target)
        if swapped.kind is not m.PlanKind.DUE or target is None or (why.left_ms or 0) < target.load.ms:
            self.say("a turn was cut short in vain", f"{name} for {swapped.target}: {why}")

    def _judge_quantum(self, name: str) -> None:
        world = self._world
        callers = [
            c
            for c in world.callers.values()
            if (c.served_by == name or name in c.beside) and c.started_at is not None
        ]
        beside = [c for c in world.open.values() if name in c.beside]
        using = [c for c in (*callers, *beside) if c.state is not CallerState.ENDED]
        # What rests has no quantum against others either, nor has what finds its lane full.
        if world.tenants.is_paused or not using:
            using += [c for c in world.open.values() if c.served_by == name]
        if any(c.request.work_class >= WorkClass.LEASED for c in using):
            return
        last = max([c.ended_at or world.now for c in callers] + [self.warm_at.get(name, 0.0)])
        took = self.load_took.get(name, 0.0)
        lingered = not world.engines[name].jobs and world.now - last >= QUANTUM_TOLERANCE * took - 1
        served = world.now - self.warm_at.get(name, 0.0)
        if served < QUANTUM_TOLERANCE * world.catalog.policy.alpha * took - 1 and not lingered:
            self.say("closed inside its quantum", f"{name} after {served:.0f} of {took:.0f} ms")

    def _judge_share(self, name: str) -> None:
        """At a place of one model at a time, loading may take at most its share of any long window."""
        world, took = self._world, self._last_load_ms.get(name, 0.0)
        work = [c.request.work_class for c in world.open.values() if c.served_by == name]
        if min(work, default=WorkClass.ROTATION) >= WorkClass.LEASED or name not in self.warm_at:
            return  # it has no quantum against others
        much = self.places.turn_ended(name, self.warm_at[name] - took, took, world.now)
        if much is not None:
            self.say("loading takes more than its share", much)

    # ------------------------------------------------------------------ after them

    def after(self, actions: list[m.Action]) -> None:
        """Checks the world after the step."""
        grants = [action for action in actions if isinstance(action, m.Grant)]
        for grant in grants:
            self._judge_grant(grant)
        self._limited_lanes.look(self._finds_its_model_idle)
        self._judge_open()
        self._judge_plans()
        self.waits.look(self.closed, self._planned)
        self._world.tenants.look(self._world.open.values())
        self._world.sites.look()
        self._steps += 1
        if self._steps % WHOLE_EVERY_STEPS == 0:
            self._judge_groups()
            self._judge_room()
            self._judge_hung()
            self._late_loads.look()
            for what in self._world.core.state.stale():
                self.say("a sum of the core is out of date", what)

    def _judge_grant(self, action: m.Grant) -> None:
        world, engine = self._world, self._world.engines[action.model]
        self._served.add(action.model)
        if engine.power is not Power.WARM:
            self.say("a grant on a model that is not ready", f"{action.model} is {engine.power.value}")
        if len(engine.jobs) + len(engine.lingering) > world.declared[action.model].concurrency:
            self.say("more in flight than slots", action.model)
        if (caller := world.open.get(action.id)) is not None:
            self._limited_lanes.judge_limit(caller)

    def granting(self, action: m.Grant) -> None:
        """Judges a grant against the closed models at this moment."""
        self._served.add(action.model)
        self._world.tenants.granting(self._world.open[action.id])
        self._world.sites.granting(self._world.open[action.id], action.model)
        self._world.hosts.asking(action.model, action.id)
        self._limited_lanes.granting(self._world.open[action.id], self._finds_its_model_idle)
        if action.model in self.closed:
            self.say("a grant on a draining model", action.model)
        if len(action.companions) != len(self._world.open[action.id].request.companions):
            self.say("a grant without all its companions", action.id)
        for name in action.companions:
            if not self._is_there(name):
                self.say("a grant without all its companions", f"{action.model} without {name}")

    def woke(self, model: str) -> None:
        """Judges a waking that the core did not know about: the memory must still be the engine's own."""
        world = self._world
        for device in world.engines[model].held:
            held = sum(e.held.get(device, 0) for e in world.engines.values()) + world.borrowers.lent(device)
            if held > world.capacity[device] - world.catalog.devices[device].reserve:
                self.say("an engine woke without its memory", f"{model} {device} {held:,}")

    def stopping(self, action: m.Stop) -> None:
        """Judges a stop: a companion in use is stopped hard only, and none for a load that the disk prevents."""
        target = self._world.core.state.models[action.model].leaving_for
        planned = self._world.core.state.models.get(target)
        full_since, now = self._world.disk_full_since, self._world.now
        if (
            full_since is not None
            and full_since < self._planned_at.get(target, now)
            and planned is not None
            and planned.stage is Stage.PLANNED
            and planned.spec.writes_here
            and not planned.sleeps
        ):
            self.say("stopped for a load that the disk prevents", f"{action.model} for {target}")
        for caller in self._world.open.values():
            if caller.state is CallerState.RUNNING and action.model in caller.beside and not action.hard:
                self.say("a companion was stopped while in use", f"{action.model} of {caller.request.id}")

    def _judge_groups(self) -> None:
        pairs = dict(self._pairs())
        self._met &= pairs.keys()
        for pair, device in pairs.items():
            if pair not in self._met:
                self.say(
                    "two of an exclusive group on one device", f"{' and '.join(sorted(pair))} on {device}"
                )

    def _pairs(self) -> Iterator[tuple[frozenset[str], str]]:
        """Models of one group that hold memory of one device."""
        held: dict[tuple[str, str], str] = {}
        for name, engine in self._world.engines.items():
            group = self._world.declared[name].group
            for device, size in engine.held.items():
                if group is not None and size:
                    other = held.setdefault((group, device), name)
                    if other != name:
                        yield frozenset((other, name)), device

    def _judge_plans(self) -> None:
        """A set must be planned whole: no member may wait for the others."""
        state = self._world.core.state
        for names in self._sets:
            absent = [name for name in names if state.models[name].stage in AWAY]
            if absent:
                self.say("a set was planned in part", f"{' + '.join(names)} without {', '.join(absent)}")

    def _judge_room(self) -> None:
        """All planned models must fit."""
        world, state = self._world, self._world.core.state
        for device, rules in world.catalog.devices.items():
            held = sum(
                world.truth[s.name].asleep.get(device, 0)
                if s.stage is Stage.ASLEEP
                else world.truth[s.name].memory.get(device, 0)
                for s in state.in_stage(*STAYING)
            )
            held += world.borrowers.lent(device)
            if held > min(world.capacity[device], rules.capacity or world.capacity[device]) - rules.reserve:
                self.say("more is planned than fits", f"{device} {held:,}")

    def _judge_open(self) -> None:
        world, running = self._world, dict[str, int]()
        waiting: list[Caller] = []
        for caller in world.open.values():
            if caller.state is CallerState.RUNNING:
                running[caller.served_by] = running.get(caller.served_by, 0) + 1
            elif caller.state is CallerState.WAITING:
                waiting.append(caller)
                if world.now > caller.due + 2:
                    self.say("a request waits past its due without an answer", caller.request.id)
        for name, model in world.core.state.models.items():
            if len(model.running) != running.get(name, 0):
                text = f"{name}: core {len(model.running)}, callers {running.get(name, 0)}"
                self.say("in-flight counts differ", text)
        # In strict arrival order a ready model does wait for an older request of another one: that is its purpose.
        if not world.core.policy.in_order:
            idle = [c for c in waiting if c.served_by not in running and self._finds_its_model_idle(c)]
            self._limited_lanes.judge_places(idle)
            for caller in idle:
                if self._limited_lanes.is_open_to(caller):
                    self.say("work waits before a ready, idle model", caller.served_by)
        if world.timer is None and (world.open or self._is_moving()):
            self.say("something waits and no timer is armed", f"{len(world.open)} open")

    def _finds_its_model_idle(self, caller: Caller) -> bool:
        """Whether it waits, and its model is warm, open and without work."""
        name, engine = caller.served_by, self._world.engines[caller.served_by]
        if name in self.closed or engine.jobs or engine.lingering or engine.power is not Power.WARM:
            return False
        if self._world.hosts.is_known_silent(name):
            return False
        is_asked = self._world.core.state.models[name].is_suspect and self._is_asked(name)
        return self._could_start(caller) and not is_asked

    def _is_asked(self, name: str) -> bool:
        """Whether the watchdog's question, for which a model is closed, is open or was open when the step began."""
        return name in self._asked_at and self._world.now <= self._asked_at[name] + CHECK_MS + 2

    def _is_moving(self) -> bool:
        return any(e.power in (Power.LOADING, Power.STOPPING) for e in self._world.engines.values())


def _target_of(caller: Caller) -> str:
    """The target that must be loaded for a caller, as the journal names it: a model, or a set."""
    return set_name((caller.served_by, *caller.beside)) if caller.served_by else ""
