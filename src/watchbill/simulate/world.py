"""A world for the core: callers, engines and a machine in virtual time.

Everything happens in order of time, with one random generator: the same seed gives the same run. The world carries out
the core's actions as the real driver does, and feeds it the same events. `Faults` lists what may go wrong.
"""

import random
from collections.abc import Callable, Mapping

from watchbill.catalog import ROTATION_LANE, Catalog, Model, Reach, Tier, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.core.messages import Footprint, Knowledge
from watchbill.core.policy import Policy
from watchbill.simulate.agenda import Agenda
from watchbill.simulate.borrowers import Borrowers
from watchbill.simulate.callers import Caller, CallerOutcome, CallerState, Ending, Faults, Tally
from watchbill.simulate.engine import Power, SimEngine, TrueModel
from watchbill.simulate.hosts import Hosts
from watchbill.simulate.invariants import Judge
from watchbill.simulate.sites import Sites
from watchbill.simulate.tenants import Tenants

__all__ = ["World"]

#: How often the simulated driver reads its machine.
LOOK_EVERY_MS = 2_000
#: More steps than this without any time passing mean that the core does and undoes the same change without end.
STEPS_AT_ONCE_MAX = 20_000
#: How long the disk takes to answer.
DISK_LOOK_MS = 1.0
#: How long an engine may work on a cut request; a frozen one is given up after the longest.
LINGER_MS = (10.0, 9_000.0)
LET_GO_MS = 10_000.0
#: How late the second copy of an answer may come.
LATE_ANSWER_MS = 8_000.0
#: The engine layer's time limit for an answer to a simple question; the core waits a little longer.
PATIENCE_MS = 60_000
#: The first token comes after this share of an answer's work, at the latest after this time.
FIRST_BYTE_SHARE = 0.1
FIRST_BYTE_MAX_MS = 200.0
#: An answer without a word that is told to stop at a boundary ends after this, and all of it is lost.
NO_BOUNDARY_MS = 4_000.0


class World:
    """Engines, callers and a machine, driven by the core's actions."""

    def __init__(
        self,
        catalog: Catalog,
        truth: Mapping[str, TrueModel],
        capacity: Mapping[str, int],
        *,
        seed: int = 0,
        faults: Faults | None = None,
        policy: Policy | None = None,
        known: Mapping[str, Knowledge] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self._agenda = Agenda()
        self.faults = faults or Faults()
        self.catalog, self.truth, self.capacity = catalog, dict(truth), dict(capacity)
        # Every model that was ever in the config, as it was declared last.
        self.declared = dict(catalog.models)
        told = {name: Knowledge(Footprint(dict(t.memory), dict(t.memory))) for name, t in truth.items()}
        self.known = known = {**told, **(known or {})}
        self.told_load_ms = {name: k.load_ms for name, k in known.items() if k.load_ms is not None}
        self.core = Machine(catalog, known, policy)
        self.engines = {name: SimEngine(model) for name, model in truth.items()}
        for name, model in catalog.models.items():
            if model.shared:
                self.engines[name].power = Power.WARM
        self.foreign: dict[str, int] = dict.fromkeys(capacity, 0)
        self.callers: dict[str, Caller] = {}
        self.open: dict[str, Caller] = {}
        self.tally = Tally()
        self.steps = 0
        self.observer: Callable[[World], None] | None = None  # sees the world after each step
        self.look_every_ms: float = LOOK_EVERY_MS
        # The share of answers that cannot be continued: one that has begun runs to its end. Leased ones can.
        self.indivisible = 0.0
        self.kept = 0.0  # the share of requests that are private, or must be served here
        self._shapes = random.Random(f"shapes {seed}")
        self._reaches = random.Random(f"reaches {seed}")
        self._disk_fault: str | None = None
        self.disk_full_since: float | None = None
        self.mute = False  # engines send nothing before the end of an answer: a long prompt, a short answer
        self.power_w: float | None = None  # the power draw of every card, and its limit
        self.power_limit_w: float | None = None
        self.timer: float | None = None
        self.replies: list[m.Reply] = []
        self.journal: list[tuple[float, m.Note]] = []
        self.alerts: list[m.Alert] = []
        self.judge = Judge(self)
        self.sites = Sites(self, self.judge.say)
        self.hosts = Hosts(self, self.judge.say)
        self.borrowers = Borrowers(self, self.judge.lent)
        self.tenants = Tenants(self, self.judge.say)
        self._timer_no = 0
        self._acts: dict[type[m.Action], Callable[..., None]] = {
            m.Admit: self._admit, m.Refuse: self._refuse, m.Grant: self._grant, m.Cut: self._cut,
            m.Load: self._load, m.Stop: self._stop, m.Note: self._note, m.Alert: self.alerts.append,
            m.Reply: self._reply, m.Decline: self.borrowers.declined, m.Wake: self._wake, m.RunTask: self._run_task,
            m.Sleep: self._sleep, m.WakeModel: self._wake_up, m.Check: self._check,
            m.LookAtDisk: self._look_at_disk,
        }  # fmt: skip
        self.at(0.0, self._look_again)

    @property
    def handles(self) -> frozenset[type[m.Action]]:
        """The actions this world can carry out; a test compares them with the driver's."""
        return frozenset(self._acts)

    # ------------------------------------------------------------------ time

    @property
    def now(self) -> float:
        """Virtual time in ms."""
        return self._agenda.now

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Puts something on the agenda."""
        self._agenda.at(when, act)

    def _report(self, engine: SimEngine, when: float, report: Callable[[], None]) -> None:
        """An engine reports something at this time; that of a silent host is heard later."""
        self.hosts.heard(engine.model.name, when, report)

    def run(self, until_ms: float) -> "World":
        """Runs the agenda until this time."""
        agenda, began = self._agenda, self.steps
        while agenda.has_before(until_ms):
            before, steps = agenda.now, self.steps
            agenda.step()
            began = steps if agenda.now > before else began
            if self.steps - began > STEPS_AT_ONCE_MAX:
                raise AssertionError(f"time stands still at {self.now / 1000:.3f} s: the core repeats itself")
        agenda.now = max(agenda.now, until_ms)
        return self

    def feed(self, event: m.Event) -> None:
        """Feeds the core one event, carries out its actions, and has the step judged."""
        self.steps += 1
        actions = self.core.step(event, int(self.now))
        if isinstance(event, m.Tick):
            self.timer = None
        self.judge.before(actions)
        for action in actions:
            self._acts[type(action)](action)
        self.judge.after(actions)
        if self.observer is not None:
            self.observer(self)

    def happens(self, chance: float) -> bool:
        """Whether a fault happens."""
        return chance > 0 and self.now < self.faults.until_ms and self.random.random() < chance

    def draw(self, low: float, high: float) -> float:
        """A random figure."""
        return self.random.uniform(low, high)

    # ------------------------------------------------------------------ callers

    def arrive(
        self,
        model: str,
        work_ms: float,
        *,
        lane: str,
        then: Callable[[Caller], None] | None = None,
        companions: tuple[str, ...] = (),
        exact: bool = False,
        operator: bool = False,
        lease: str | None = None,
        is_elsewhere: bool = False,
        deadline_ms: int | None = None,
        indivisible: bool = False,
    ) -> Caller:
        """A caller sends a request, with its companions; that of a peer is under a lease. An indivisible answer cannot
        be continued, because a grammar, tools or its engine are in the way."""
        rules = self.catalog.lane_for(lane)
        is_hurried = deadline_ms is not None and deadline_ms < rules.max_wait_ms
        named = self.catalog.models.get(model)
        request = m.Request(
            f"r{len(self.callers) + 1:06d}",
            model,
            rules.name,
            rules.work_class,
            int(self.now),
            deadline_ms if is_hurried and deadline_ms is not None else rules.max_wait_ms,
            rules.timeout_ms,
            rules.priority or (named.priority if named is not None else 3),
            operator=operator,
            exact=exact,
            companions=companions,
            reach=self._draw_reach(),
            lease=lease,
            is_hurried=is_hurried,
            is_elsewhere=is_elsewhere,
        )
        caller = Caller(request, work_ms, then, due=self.now + request.max_wait_ms)
        drawn = lease is None and self._shapes.random() < self.indivisible
        caller.is_indivisible = indivisible or drawn
        self.callers[request.id] = self.open[request.id] = caller
        if not self.catalog.models.keys() >= {model, *companions}:
            # The driver answers by itself: the core never sees it.
            self._end(caller, m.Refusal.MODEL_NOT_FOUND)
            return caller
        self.feed(m.Arrived(request))
        if self.happens(self.faults.caller_leaves):
            self.at(self.now + self.random.expovariate(1 / 10_000), lambda: self.leave(caller))
        return caller

    def _draw_reach(self) -> Reach:
        if self._reaches.random() >= self.kept:
            return Reach.ANYWHERE
        return self._reaches.choice((Reach.PRIVATE, Reach.PRIVATE, Reach.HERE))

    def leave(self, caller: Caller) -> None:
        """A caller hangs up."""
        if caller.state is CallerState.ENDED:
            return
        parting = self._part(caller)
        self._end(caller, CallerOutcome.LEFT)
        self.feed(m.Left(caller.request.id, parting))

    def _end(self, caller: Caller, outcome: Ending) -> None:
        if caller.state is CallerState.ENDED:
            self.judge.say("a request ended twice", caller.request.id)
            return
        if caller.state is CallerState.RUNNING:
            self.judge.ran(caller)
        caller.state, caller.outcome, caller.ended_at = CallerState.ENDED, outcome, self.now
        del self.open[caller.request.id]
        if caller.then is not None:
            then = caller.then
            self.at(self.now, lambda: then(caller))

    def _drop_job(self, caller: Caller) -> float:
        engine = self.engines.get(caller.served_by)
        if engine is None or caller.request.id not in engine.jobs:
            return 0.0
        left = engine.drop(caller.request.id, self.now)
        self._schedule_end(engine)
        return left

    def _part(self, caller: Caller) -> m.Parting | None:
        """Takes a running request from its engine, which may go on working on it for a while."""
        engine, request = self.engines.get(caller.served_by), caller.request.id
        if engine is None or request not in engine.jobs:
            return None
        since = engine.silent_since(caller.granted_at, caller.begun_at)
        frozen = engine.frozen_at is not None
        self._drop_job(caller)
        run = f"{request}/{caller.turns}" if frozen or self.happens(self.faults.lingers) else ""
        if run:
            engine.lingering.add(run)
            taken = LET_GO_MS if frozen else self.random.uniform(*LINGER_MS)
            self._report(engine, self.now + taken, lambda: self._let_go(engine, run, is_known=not frozen))
        return m.Parting(0 if since is None else round(self.now - since), caller.begun, run)

    def _let_go(self, engine: SimEngine, run: str, *, is_known: bool) -> None:
        if run in engine.lingering:
            engine.lingering.discard(run)
            self.feed(m.LetGo(engine.model.name, run, is_known))

    # ------------------------------------------------------------------ the config

    def reload(self, catalog: Catalog, truth: Mapping[str, TrueModel] | None = None) -> None:
        """The operator changes the config. `truth` holds the true figures of new models."""
        self.catalog = catalog
        self.declared |= catalog.models
        for name, model in (truth or {}).items():
            self.truth[name] = model
            engine = self.engines.setdefault(name, SimEngine(model))
            engine.power = Power.WARM if catalog.models[name].shared else engine.power
            self.known[name] = Knowledge(Footprint(dict(model.memory), dict(model.memory)))
        self.judge.reloaded()
        self.feed(m.Reconfigured(catalog, {name: self.known[name] for name in catalog.models}))

    # ------------------------------------------------------------------ actions about requests

    def _admit(self, action: m.Admit) -> None:
        caller = self.open[action.id]
        caller.state, caller.served_by, caller.forecast_ms = (
            CallerState.WAITING,
            action.model,
            action.forecast_ms,
        )
        caller.beside = action.companions

    def _refuse(self, action: m.Refuse) -> None:
        caller = self.open[action.id]
        caller.retry_after_ms = action.retry_after_ms or 0.0
        self._end(caller, action.code)

    def _grant(self, action: m.Grant) -> None:
        caller, engine = self.open[action.id], self.engines[action.model]
        self.judge.granting(action)
        if engine.power is Power.ASLEEP:  # by itself, and the core does not know: a request wakes it
            engine.power, engine.held = Power.WARM, dict(engine.model.memory)
            self.judge.woke(action.model)
        caller.state, caller.granted_at, caller.begun_at = CallerState.RUNNING, self.now, None
        caller.is_yielding = False
        caller.turns += 1
        caller.served_by, caller.beside = action.model, action.companions
        if caller.started_at is None:
            caller.started_at = self.now
        if engine.power is not Power.WARM:
            return  # the judge has seen it; a real engine would refuse the connection
        if self.sites.begins_anew(caller):
            return
        if self.declared[action.model].site is not None and self.happens(self.faults.site_fails):
            self.sites.fail(caller)
        engine.take(action.id, caller.work_ms, self.now)
        self._schedule_end(engine)
        if caller.is_indivisible and caller.request.work_class.makes_way:
            self.at(self.now, lambda: self.feed(m.Indivisible(action.id)))
        granted = self.now
        if not self.mute:
            first = min(FIRST_BYTE_SHARE * caller.work_ms, FIRST_BYTE_MAX_MS)
            self._report(engine, self.now + first, lambda: self._first_byte(caller, granted))

    def _first_byte(self, caller: Caller, granted: float) -> None:
        if self.engines[caller.served_by].frozen_at is not None:
            return
        if caller.state is CallerState.RUNNING and caller.granted_at == granted and not caller.begun:
            caller.begun_at = self.now
            self.feed(m.FirstByte(caller.request.id))

    def _schedule_end(self, engine: SimEngine) -> None:
        coming = engine.next_end(self.now)
        if coming is not None:
            when, request = coming
            generation = engine.generation
            self._report(engine, when, lambda: self._finish(engine, request, generation))

    def _finish(self, engine: SimEngine, request: str, generation: int) -> None:
        if generation != engine.generation:
            return
        engine.drop(request, self.now)
        self._schedule_end(engine)
        caller = self.open[request]
        well = not self.happens(self.faults.answer_fails)
        self._end(caller, CallerOutcome.ANSWERED if well else CallerOutcome.FAILED)
        self.feed(m.Ended(request, well))

    def _cut(self, action: m.Cut) -> None:
        caller = self.open[action.id]
        caller.is_yielding = action.how == "boundary"
        if action.how == "boundary" and caller.is_indivisible:
            return
        if action.how == "boundary":
            granted, latest = caller.granted_at, self.now + NO_BOUNDARY_MS
            self.at(self.now + self.random.uniform(100, 1_000), lambda: self._yield(caller, granted, latest))
            return
        if action.how == "run_timeout":
            self.judge.timed_out(caller)
        parting = self._part(caller)
        if action.how == "engine_failed" and self._goes_on(caller):
            caller.has_words = True
            caller.wait_again(self.now + self._lanes_wait_ms(caller), is_failed=False)
            self.at(self.now, lambda: self._return(caller, parting, goes_on=True))
        elif action.how == "requeue" or (action.how == "preempted" and caller.is_indivisible):
            if action.how == "requeue" and caller.was_cut:
                self.judge.say("cut twice before its first byte", action.id)
            caller.was_cut = True
            wait_ms = self._lanes_wait_ms(caller) if caller.has_words else caller.request.max_wait_ms
            left_ms = caller.request.arrived_at + wait_ms - caller.granted_at
            due = self.now + max(left_ms, wait_ms / 2)
            is_here = self.declared[caller.served_by].site is None
            caller.wait_again(due, is_failed=action.is_orphaned and is_here)
            self.at(self.now, lambda: self._return(caller, parting))
        else:
            self.at(self.now, lambda: self._fail(caller, action.how, parting))

    def _yield(self, caller: Caller, granted: float, latest: float) -> None:
        """Stops background work at a boundary, at the latest then; it keeps its text so far."""
        is_silent = not caller.begun and not self.mute
        if caller.state is CallerState.RUNNING and caller.granted_at == granted:
            if is_silent and self.now < latest:
                self.at(min(latest, self.now + 500), lambda: self._yield(caller, granted, latest))
                return
            left_ms = self._drop_job(caller)
            if not is_silent:
                caller.work_ms, caller.has_words = max(50.0, left_ms), True
            # It has begun, so it gets a new wait.
            caller.wait_again(self.now + self._lanes_wait_ms(caller), is_failed=False)
            self._return(caller)

    def _goes_on(self, caller: Caller) -> bool:
        """Whether an answer whose machine is gone goes on from its words, here another time or elsewhere."""
        is_far = self.declared[caller.served_by].where in (Tier.PEER, Tier.BURST)
        return is_far and caller.begun and not caller.is_indivisible

    def _lanes_wait_ms(self, caller: Caller) -> int:
        """How long an answer that has begun may wait for its next turn: a caller's deadline was for its start."""
        request = caller.request
        return self.catalog.lane_for(request.lane).max_wait_ms if request.is_hurried else request.max_wait_ms

    def _return(self, caller: Caller, parting: m.Parting | None = None, *, goes_on: bool = False) -> None:
        if caller.state is not CallerState.RUNNING:
            return
        caller.ran_ms += self.now - caller.granted_at
        caller.state = CallerState.WAITING
        self.feed(m.Returned(caller.request.id, parting, goes_on=goes_on))

    def give_back(self, caller: Caller, site: str, *, is_fault: bool) -> None:
        """The server of a site refused or failed a request: it goes to another one, or is refused."""
        parting = self._part(caller)
        if caller.is_yielding:
            caller.wait_again(self.now + self._lanes_wait_ms(caller), is_failed=False)
        else:
            caller.wait_again(caller.request.arrived_at + caller.request.max_wait_ms, is_failed=False)
        # Its wait may be over: another site starts it at once, or none.
        caller.due = max(caller.due, self.now + 2)
        caller.ran_ms += self.now - caller.granted_at
        caller.state = CallerState.WAITING
        self.feed(m.Returned(caller.request.id, parting, site, is_fault))

    def break_off(self, caller: Caller) -> None:
        """The server of a site failed a request that no other one may serve."""
        self._fail(caller, CallerOutcome.FAILED, self._part(caller))

    def _fail(self, caller: Caller, outcome: Ending, parting: m.Parting | None) -> None:
        if caller.state is CallerState.RUNNING:
            self._end(caller, outcome)
            self.feed(m.Ended(caller.request.id, False, parting))

    # ------------------------------------------------------------------ actions about engines

    def _load(self, action: m.Load) -> None:
        engine, faults = self.engines[action.model], self.faults
        engine.power, engine.attempt = Power.LOADING, action.attempt
        engine.held = dict(engine.model.memory)
        self._weigh()  # memory use is highest here
        self.tally.loads += 1
        self.tally.loads_by_model[action.model] = self.tally.loads_by_model.get(action.model, 0) + 1
        began = self.now
        if self.happens(faults.load_hangs):
            return
        if self.disk_fault is not None and self.declared[action.model].writes_here:
            self._report(engine, self.now + 1, lambda: self._disk_fails(engine, action.attempt))
            return
        is_far = self.declared[action.model].where is Tier.PEER
        fails = self.happens(faults.site_fails if is_far else faults.load_fails)
        taken = engine.model.load_ms * self.random.uniform(*faults.jitter)
        taken *= self.random.random() if fails else 1.0
        self._report(engine, self.now + taken, lambda: self.loaded(engine, action.attempt, began, fails))

    def _disk_fails(self, engine: SimEngine, attempt: int) -> None:
        if engine.power is Power.LOADING and engine.attempt == attempt:
            engine.power_off()
            self.look()
            text = self.disk_fault or "the disk failed"
            self.feed(m.LoadFailed(engine.model.name, attempt, text, blame=m.Blame.DISK))

    def loaded(self, engine: SimEngine, attempt: int, began: float, fails: bool) -> None:
        """Ends a load, or a waking."""
        if engine.power is not Power.LOADING or engine.attempt != attempt:
            return
        name = engine.model.name
        self.tally.load_ms += self.now - began
        if fails:
            engine.power_off()
            self.look()
            is_far = self.declared[name].where is Tier.PEER
            if is_far:
                self.sites.host_failed(name)
            self.feed(
                m.LoadFailed(
                    name, attempt, "simulated failure", blame=m.Blame.HOST if is_far else m.Blame.MODEL
                )
            )
            return
        engine.power, engine.at, engine.done, engine.used_at = Power.WARM, self.now, 0.0, self.now
        engine.stalls = self.happens(self.faults.stalls)
        self.judge.became_warm(name, self.now - began)
        self.feed(m.Loaded(name, attempt, dict(engine.held)))
        self._maybe_again(m.Loaded(name, attempt, dict(engine.held)))
        if self.happens(self.faults.dies):
            dies_at = self.now + self.random.expovariate(1 / 20_000)
            self._report(engine, dies_at, lambda: self._die(engine, attempt))
        if self.happens(self.faults.freezes):
            self.at(self.now + self.random.expovariate(1 / 20_000), lambda: self._freeze(engine, attempt))

    def _freeze(self, engine: SimEngine, attempt: int) -> None:
        if engine.power is Power.WARM and engine.attempt == attempt:
            engine.freeze(self.now)

    def _die(self, engine: SimEngine, attempt: int) -> None:
        if engine.power in (Power.WARM, Power.ASLEEP) and engine.attempt == attempt:
            engine.power = Power.DEAD
            engine.jobs = {}
            engine.generation += 1
            self.feed(m.Died(engine.model.name, attempt, "simulated crash"))

    def _stop(self, action: m.Stop) -> None:
        engine, faults = self.engines[action.model], self.faults
        self.judge.stopping(action)
        engine.power, engine.attempt = Power.STOPPING, action.attempt
        self.tally.evictions += 1
        late = self.happens(faults.memory_late)
        taken = self.random.uniform(2_000, 15_000) if late else self.random.uniform(*engine.model.stop_ms)
        lost = self.happens(faults.answer_lost)
        name = engine.model.name
        self.hosts.stopped(name, self.now + taken, lambda: self.stopped(engine, action.attempt, lost))

    def stopped(self, engine: SimEngine, attempt: int, lost: bool) -> None:
        """Ends a process; the report of it may be lost."""
        if engine.power is not Power.STOPPING or engine.attempt != attempt:
            return
        engine.power_off()
        self.look()
        if lost:
            return
        self.feed(m.Stopped(engine.model.name, attempt))
        self._maybe_again(m.Stopped(engine.model.name, attempt))

    def _maybe_again(self, event: m.Event) -> None:
        """Repeats an answer now and then, when it is not expected any more."""
        if self.happens(self.faults.answer_twice):
            self.at(self.now + self.random.uniform(0, LATE_ANSWER_MS), lambda: self.feed(event))

    # ------------------------------------------------------------------ the machine

    @property
    def disk_fault(self) -> str | None:
        """While there is one, loads that write below the root fail. The core learns of it by a look."""
        return self._disk_fault

    @disk_fault.setter
    def disk_fault(self, fault: str | None) -> None:
        self._disk_fault, self.disk_full_since = fault, None if fault is None else self.now

    def _look_at_disk(self, _: m.LookAtDisk) -> None:
        self.at(self.now + DISK_LOOK_MS, lambda: self.feed(m.DiskSeen(self.disk_fault)))

    def available(self, device: str) -> int:
        """The free memory that the machine would report now."""
        held = sum(engine.held.get(device, 0) for engine in self.engines.values())
        return self.capacity[device] - self.foreign[device] - held - self.borrowers.held(device)

    def look(self) -> None:
        """Reads the machine, as the driver does."""
        self._fall_asleep()
        if self.happens(self.faults.probe_stuck):
            return
        power = (self.power_w, self.power_limit_w)
        devices = {
            d: m.DeviceReading(c, self.available(d), 0, None, *power) for d, c in self.capacity.items()
        }
        models = {
            name: self._reading(self.declared[name], engine)
            for name, engine in self.engines.items()
            if engine.power is not Power.OFF and not self.declared[name].shared
        }
        loans = self.borrowers.seen()
        self.feed(m.Observed(int(self.now), devices, models, disk_fault=self.disk_fault, loans=loans))

    def _look_again(self) -> None:
        if self.happens(self.faults.foreign_use):
            self._be_foreign()
        self.look()
        self.at(self.now + self.look_every_ms, self._look_again)

    def _be_foreign(self) -> None:
        device = self.random.choice(sorted(self.capacity))
        amount = int(self.capacity[device] * self.random.uniform(0.1, 0.6))
        self.foreign[device] += amount
        self.look()
        self.at(self.now + self.random.uniform(3_000, 30_000), lambda: self._go_foreign(device, amount))

    def _go_foreign(self, device: str, amount: int) -> None:
        self.foreign[device] -= amount

    def _weigh(self) -> None:
        for device in self.capacity:
            held = sum(engine.held.get(device, 0) for engine in self.engines.values())
            self.tally.peak[device] = max(self.tally.peak.get(device, 0), held)

    # ------------------------------------------------------------------ the rest

    def _reply(self, action: m.Reply) -> None:
        self.replies.append(action)
        self.borrowers.replied(action)
        self.tenants.replied(action)

    def _note(self, action: m.Note) -> None:
        self.journal.append((self.now, action))
        self.judge.read(action)

    def _wake(self, action: m.Wake) -> None:
        self.timer = action.at
        self._timer_no += 1
        number = self._timer_no
        self.at(action.at, lambda: self._tick(number))

    def _tick(self, number: int) -> None:
        if number == self._timer_no:
            self.feed(m.Tick())

    def explicit(self) -> list[Caller]:
        """All callers except the rotation's own tasks."""
        return [c for c in self.callers.values() if c.request.work_class is not WorkClass.ROTATION]

    # ------------------------------------------------------------------ sleep, checks and background tasks

    def _wake_up(self, action: m.WakeModel) -> None:
        """Wakes an engine: a load with a shorter time."""
        engine = self.engines[action.model]
        engine.power, engine.attempt = Power.LOADING, action.attempt
        engine.held = dict(engine.model.memory)
        began, fails = self.now, self.happens(self.faults.load_fails)
        self.tally.wakings += 1
        taken = engine.model.wake_ms * self.random.uniform(*self.faults.jitter)
        self._report(engine, self.now + taken, lambda: self.loaded(engine, action.attempt, began, fails))

    def _sleep(self, action: m.Sleep) -> None:
        """Tells an engine to sleep; one that fails is stopped instead."""
        engine = self.engines[action.model]
        engine.power, engine.attempt = Power.STOPPING, action.attempt
        fails = self.happens(self.faults.load_fails)

        def ended() -> None:
            if fails:
                self.stopped(engine, action.attempt, lost=False)
            elif engine.power is Power.STOPPING and engine.attempt == action.attempt:
                engine.sleep()
                self.look()
                self.feed(m.Slept(engine.model.name, action.attempt, dict(engine.held)))

        self._report(engine, self.now + self.random.uniform(*engine.model.stop_ms), ended)

    @staticmethod
    def _reading(model: Model, engine: SimEngine) -> m.ModelReading:
        """The reading of an engine."""
        asleep = engine.power is Power.ASLEEP if model.sleep_ms is not None else None
        return m.ModelReading(engine.attempt, engine.power is not Power.DEAD, dict(engine.held), asleep)

    def _fall_asleep(self) -> None:
        """Puts engines that sleep by themselves to sleep after their idle time."""
        for name, engine in self.engines.items():
            model = self.declared[name]
            is_at_work = engine.jobs or engine.lingering or engine.frozen_at is not None
            idle = engine.power is Power.WARM and not is_at_work and model.sleep_ms is not None
            if idle and not model.sleeps_when_told and self.now >= engine.used_at + (model.sleep_ms or 0):
                engine.sleep()

    def _check(self, action: m.Check) -> None:
        """Asks the engine; a dead engine, and some others, do not answer."""
        engine = self.engines[action.model]
        if engine.frozen_at is not None:
            self.at(
                self.now + PATIENCE_MS,
                lambda: self.feed(m.Checked(action.model, action.attempt, "no answer")),
            )
            return
        lost = self.happens(self.faults.answer_lost)
        failure = "simulated failure" if self.happens(self.faults.answer_fails) else None

        def answer() -> None:
            if engine.power is Power.WARM and engine.attempt == action.attempt and not lost:
                self.feed(m.Checked(action.model, action.attempt, failure))

        self._report(engine, self.now + self.random.uniform(20, 1_000), answer)

    def _run_task(self, action: m.RunTask) -> None:
        """Sends the request, and tells the core its result."""
        began = self.now

        def ended(caller: Caller) -> None:
            useful = round(self.now - caller.granted_at) if caller.started_at is not None else 0
            waited = round((caller.started_at or self.now) - began)
            done = caller.outcome is CallerOutcome.ANSWERED
            self.feed(m.TaskEnded(action.model, waited, useful, done, caller.outcome))

        work = self.random.uniform(1_000, 5_000)

        def ask() -> None:
            self.arrive(action.model, work, lane=ROTATION_LANE.name, then=ended)

        self.at(self.now, ask)
