"""The policy: which model is loaded next, and which ones leave for it (RES-11, RES-21).

A policy is one object, chosen in the config by `[policy] name`. Any class that implements the protocol `Policy` can
replace the three shipped ones. A policy only chooses among legal changes: the ledger, exclusive groups, permanent
models and reservations bind every policy. It is called inside a step of the core, so it must not wait, read a clock
or a file, be random, or change the state that it is given.

`rate`, the default, in three parts:

- **Turns.** Class first, then priority. A model has its turn when its requests have waited long enough behind the
  resident models (a soft turn: one load time behind a lower class, three behind equals), and always before their
  patience ends (a hard turn). A turn replaces models whose quantum is over.
- **The balance**, for models that ran dry: an idle model leaves when the waiting work (**pressure**) exceeds the work
  that it is likely to get until it could be back (**momentum**, scaled by its **inertia**). So a model stays while its
  agents pause, and one whose burst is served leaves at once.
- **Models that fit** load at once, beside the memory that is kept for the head of the turns.

While load times are uncertain (`uncertainty`) turns go by age, as in the policy `turns`.

Why class is not a weight: with rates alone, loops with answers of 0.2 s kept a person waiting for two minutes,
because twenty light requests a second outweigh one heavy request over a load time.

Why overdue requests do not simply win at once: with several overdue models that is earliest deadline first with
set-up times, and the machine does nothing but load. A turn therefore lasts at least a quantum, and waits for the
quanta of others.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec.structs import replace as struct_replace

from watchbill.catalog import WorkClass
from watchbill.core.companions import Candidate
from watchbill.core.contenders import (
    kept_out_by,
    movable,
    share_room,
    uncertainty,
    waiting,
    wanting,
    yielding,
)
from watchbill.core.cover import Cover, can_cover, cover
from watchbill.core.forecast import Forecast, Room, forecast_start, room_in_ms, until_place
from watchbill.core.hard_turns import Due, HardTurn, hard_turns
from watchbill.core.messages import Request
from watchbill.core.model_state import PAUSE_MS, ModelState
from watchbill.core.reasons import (
    Fits,
    Outweighs,
    PermanentMissing,
    PlanKind,
    Reason,
    TaskDue,
    TurnCame,
    WaitedLongest,
)
from watchbill.core.resources import Needs, shortage
from watchbill.core.stages import AWAY, LEAVING, Stage
from watchbill.core.state import State
from watchbill.core.turns import (
    SOFT_TURN_LOWER,
    Rank,
    Turn,
    by_class_and_age,
    coming_in,
    dues_of,
    finishing_ms,
    gives_way,
    goes_first,
    is_cut_short,
    passed_until,
    quiet_at,
    returns_before,
    soft_at,
    turns_before,
    turns_of,
    waiting_before,
)

__all__ = ["POLICIES", "Balance", "Fifo", "Plan", "Policy", "Rate", "Turn", "Turns", "uncertainty"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of residency: the target is loaded, the victims leave."""

    target: Candidate
    victims: Cover
    kind: PlanKind
    reason: Reason | str  # text only from a policy of your own


class Policy(Protocol):
    """Chooses the next change. It has no state of its own: the same state and time give the same answer."""

    refuses_late: bool  # a request whose forecast exceeds its max_wait is refused when it arrives
    in_order: bool  # no request starts before an earlier one, for any model

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """When a request would start on this model, by means and without margins."""
        ...

    def choose(self, state: State, now: int) -> Plan | None:
        """The next change, or None when nothing should change now."""
        ...


# ------------------------------------------------------------------ the shipped policies


#: In favour of a lower class, an idle model leaves right after an answer once this share of its turn is over.
LINGER_LOWER = 0.5
#: Until the next answer it takes this share of the usual time between two: all of it where callers come at random, half
#: of it where they come in a rhythm.
AGAIN_SHARE = 0.75
#: The length of "right after": a caller that sends its next request at once has done so, and the timer is not exact.
JUST_MS = 3 * PAUSE_MS
#: A load under way is aborted for a higher class at most this often per target.
ABORTS_MAX = 2


# ------------------------------------------------------------------ shared by all policies


def returning(state: State, now: int) -> Plan | None:
    """The plan for an absent permanent model: into free memory, or in place of idle models."""
    for model in state.in_stage(Stage.ABSENT):
        wanted = model.must_return and not state.is_closing
        if not wanted or now < model.retry_at or not state.may_load(model, now):
            continue
        idle = [s for s in movable(state) if s.is_idle]
        victims = cover(state.shortage_of(model), idle, lambda s: s.price(now))
        if victims is not None:
            return Plan(model, victims, PlanKind.PERMANENT, PermanentMissing())
    return None


def arrival_order(model: Candidate) -> tuple[bool, float, str]:
    """Rotation last, then the oldest request; of two that came together, the one that dispatch would start."""
    if not model.line:
        return (model.top_class() is WorkClass.ROTATION, float("inf"), model.name)
    oldest = model.line.oldest()
    return (model.top_class() is WorkClass.ROTATION, oldest.arrived_at, oldest.id)


class _InArrivalOrder:
    """Loads the model of the oldest request; the least recently used models that may leave do so."""

    name = ""
    kind: PlanKind
    refuses_late = False
    in_order = False

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        return forecast_start(state, model, request, now)

    def may_leave(self, model: ModelState, now: int) -> bool:
        # A request that was just granted would be cut: two models would evict each other without end, and serve no
        # request.
        return not model.running and not model.users

    def choose(self, state: State, now: int) -> Plan | None:
        if plan := returning(state, now):
            return plan
        plans = (self.bring_in(state, target, now) for target in self._heads(state, now))
        return next((plan for plan in plans if plan is not None), None)

    def bring_in(self, state: State, target: Candidate, now: int) -> Plan | None:
        """Frees memory by the models that may leave, the least recently used first."""
        by_use = sorted(movable(state, target), key=lambda s: (s.last_used, s.name))
        order = {s.name: 2.0 ** (i + 1) for i, s in enumerate(by_use)}
        leaving = [s for s in movable(state, target) if self._yields(s, target, now)]
        leaving += yielding(state, target, now)
        victims = cover(state.shortage_of(target), leaving, lambda s: order.get(s.name, 1.0))
        if victims is None:
            return None
        return Plan(target, victims, self.kind if victims else PlanKind.FITS, WaitedLongest())

    def _yields(self, model: ModelState, target: Candidate, now: int) -> bool:
        """Rotation replaces only idle models: otherwise two of its models would evict each other without end."""
        if target.top_class() is WorkClass.ROTATION:
            return model.has_lingered(now)
        return self.may_leave(model, now)

    def _heads(self, state: State, now: int) -> list[Candidate]:
        return sorted(waiting(state, now), key=arrival_order)[:1]


class Fifo(_InArrivalOrder):
    """Strict arrival order at any cost. For comparison, and for operators who need exactly that."""

    name = "fifo"
    kind = PlanKind.FIFO
    in_order = True

    def _heads(self, state: State, now: int) -> list[Candidate]:
        """Only the oldest of all: a model loaded for another request could not serve before it must leave again."""
        lined = [s for s in (*state.managed, *state.companion_sets.values()) if s.line]
        return [s for s in sorted(lined, key=arrival_order)[:1] if s in waiting(state, now)]


class Turns(_InArrivalOrder):
    """Arrival order with a quantum: loading takes at most 1 / (1 + alpha) of the time. It needs no learned figure."""

    name = "turns"
    kind = PlanKind.TURNS

    def may_leave(self, model: ModelState, now: int) -> bool:
        return model.has_had_turn(now)


# ------------------------------------------------------------------ the default


@dataclass(frozen=True, slots=True)
class Balance:
    """The gain and loss of replacing idle models by one that waits, in weight per millisecond.

    Both sides cover the same span: the round trip until the leaving models could be back.
    """

    waiting: float  # weight of the requests that wait for this memory now
    coming: float  # weight of the requests that will probably come for the target during its turn
    load_ms: float  # of the target
    residual_ms: float  # until the running requests of the victims have ended
    reload_ms: float  # of the victim that takes longest to be back: its load and its lost context
    momentum: float  # weight per millisecond of the requests to the victims, inertia included

    @property
    def round_trip_ms(self) -> float:
        """The time until the leaving models could be back at the earliest."""
        return self.residual_ms + self.load_ms + self.reload_ms

    @property
    def pressure(self) -> float:
        """The work that the change would serve, spread over the round trip."""
        return (self.waiting + self.coming) / self.round_trip_ms

    @property
    def tips(self) -> bool:
        """Whether the gain exceeds the loss."""
        return self.pressure > self.momentum


class Rate:
    """Turns by class, priority and patience, quanta, and a balance for models that ran dry."""

    name = "rate"
    refuses_late = True
    in_order = False

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """What the rule does if no further request comes: the turns before it, its own turn, its load."""
        if model.stage not in (*AWAY, *LEAVING) or model.spec.site is not None:
            return forecast_start(state, model, request, now)
        turns = turns_of(state, now)
        head = next((turn.model for turn in turns if turn.model is not model), None)
        earmarked = () if head is None else _gone_first(state, head, now)
        around = _around(state, model, head, earmarked)
        if not around:
            return forecast_start(state, model, request, now)  # it fits, and is loaded at once
        hard = _hard_turns_with(state, model, request, now)
        mine = hard[model.name]
        room_at = now + room_in_ms(state, model, now)
        ahead = turns_before(turns, model, request, hard_at=mine.latest, room_at=room_at, now=now)
        ahead += waiting_before(state, model, request, [turn.model for turn in turns], now)
        room = Room(state.shortage_of(model), ())
        if head in ahead and _is_beside(state, model, head, earmarked):
            room = Room(around, earmarked)
            ahead = [s for s in ahead if s is not head and _is_beside(state, s, head, earmarked)]
        oldest = min(model.line.oldest_of_top() or request, request, key=by_class_and_age)
        unsure, coming = uncertainty(state, [model]) is not None, coming_in(state, model)
        softly = soft_at(state, model, oldest, now, unsure=unsure, coming=coming)
        softly += finishing_ms(state, model, oldest, now)
        begins = min(softly, *(hard.get(s.name, mine).begins for s in (model, *ahead)))
        waiting = _weight_waiting(state, model) + state.catalog.policy.weights[request.work_class]
        found = forecast_start(
            state,
            model,
            request,
            now,
            ahead=ahead,
            turn_in_ms=max(0.0, begins - now),
            leaves_ms=lambda other, dry_ms: self._leaves_ms(
                state, other, model, request, dry_ms=dry_ms, waiting=waiting, now=now
            ),
            room=room,
        )
        back = returns_before(state, model, request, ahead, now)
        ends_in_ms = max(0.0, min(back.until, mine.begins) - now + model.load.ms - found.ms)
        found = found.plus(min(back.ms, ends_in_ms), guessed_by=back.models)
        overtaken_ms = _overtaken_ms(state, model, request, found.ms - model.load.ms, now)
        found = found.plus(min(overtaken_ms, max(0.0, mine.begins - now + model.load.ms - found.ms)))
        until = min(mine.begins, passed_until(state, model, request, now))
        found = found.after(until - now + model.load.ms)
        if now <= mine.latest and goes_first(state, model, request, ahead, now):
            found = found.before(mine.latest - now + mine.shortest_ms)  # no other model delays its hard turn
        if request.work_class > WorkClass.INTERACTIVE:
            found = found.before(self._brought_in_ms(state, model, request, found.ms, now))
        return found.after(until_place(state, model, request, now).ms)

    def _brought_in_ms(
        self, state: State, model: Candidate, request: Request, within_ms: float, now: int
    ) -> float:
        """When an interactive request that is likely to come brings the model of a lower class into memory.

        It is either one for the same model, or one that takes the room from a busy model of the same class: then the
        request that has waited longest goes first.
        """
        brought_ms = math.inf
        gap_ms = max(s.next_person_ms(now) for s in model.members)
        if gap_ms < within_ms:
            person = struct_replace(request, work_class=WorkClass.INTERACTIVE, arrived_at=now)
            brought_ms = gap_ms + self.forecast(state, model, person, now).ms
        return min(brought_ms, _freed_ms(state, model, request, now))

    def _leaves_ms(
        self,
        state: State,
        other: ModelState,
        model: Candidate,
        request: Request,
        *,
        dry_ms: float,
        waiting: float,
        now: int,
    ) -> float:
        """When another model leaves that runs dry in `dry_ms`: never if its callers come back before that, after a
        linger time where the balance, with this request in it, would not tip.

        For a lower class it leaves after a part of its turn, whatever the balance says.
        """
        if other.is_kept_busy(now):
            return math.inf
        is_there = other.stage is Stage.READY
        idle_ms = now - other.last_used if is_there and other.is_idle else 0
        stays_ms = self._stays_ms(state, other, model, request, waiting=waiting, now=now)
        quiet_ms = dry_ms + max(0.0, stays_ms - idle_ms)
        if not stays_ms or request.work_class <= other.worth_class(now):
            return quiet_ms
        oldest = model.line.oldest_arrival()
        since = min(now if oldest is None else oldest, now)
        ready_ms = other.ready_at - now if is_there else dry_ms - other.service_of(len(other.line))
        since_ms = max(since - now, ready_ms)
        return _lingers_ms(other, dry_ms, since_ms, quiet_ms, now)

    def _stays_ms(
        self, state: State, other: ModelState, model: Candidate, request: Request, *, waiting: float, now: int
    ) -> float:
        """How long another model stays after it ran dry, if no request comes back."""
        balance = self.balance(state, model, (other,), now, waiting=waiting)
        is_lower = request.work_class > other.worth_class(now)
        asked = max(other.inertia * other.demand(now), other.rhythm(now) if is_lower else 0.0)
        if replace(balance, residual_ms=0.0, momentum=asked).tips:
            return 0.0
        comes_back = other.is_frequented(now) and other.rate.is_known(now)
        return math.inf if comes_back and not is_lower else other.linger_ms

    def choose(self, state: State, now: int) -> Plan | None:
        """1. permanents return  2. the head of the turns  3. models that fit, or tip the balance, beside it."""
        if plan := returning(state, now):
            return plan
        candidates = waiting(state, now)
        if not candidates:
            return None
        turns = [turn for turn in turns_of(state, now) if turn.model in candidates]
        if not turns:
            return self._best(state, candidates, None, (), now)
        head = turns[0].model
        if plan := self._turn(state, turns[0], now):
            return plan
        state.wakes.append(now + 1_000)
        earmarked = _gone_first(state, head, now)
        for turn in turns[1:]:
            if plan := self._turn_beside(state, turn, head, earmarked, now):
                return plan
        return self._best(state, candidates, head, earmarked, now)

    # -- turns

    def _turn(self, state: State, turn: Turn, now: int) -> Plan | None:
        head = turn.model
        victims = cover(state.shortage_of(head), self._leaving(state, turn, now), lambda s: s.price(now))
        if victims is None:
            # A quantum protects work. A model that ran dry in its own leaves for a hard turn if that is a gain.
            if not turn.is_hard:
                return None
            plan = self._option(state, head, head, (), now, idle_plans=_idle_plans(state))
            return None if plan is None else replace(plan, kind=PlanKind.DUE)
        if not victims:
            return Plan(head, (), PlanKind.FITS, Fits())
        if not turn.is_hard:
            head, victims = self._better_for(state, head, victims, now)
        return self._for_turn(state, turn._replace(model=head), victims, now)

    @staticmethod
    def _better_for(state: State, head: Candidate, victims: Cover, now: int) -> tuple[Candidate, Cover]:
        """The model of the best class or priority that these would make room for: one that they kept out of its lane is
        not, once they leave."""
        rank = head.rank(now)
        for other in sorted(kept_out_by(state, victims, now), key=lambda s: (s.rank(now), s.name)):
            room = cover(state.shortage_of(other), victims, lambda s: s.price(now))
            if other.rank(now) < rank and share_room(other, head) and room:
                return other, room
        return head, victims

    def _turn_beside(
        self, state: State, turn: Turn, head: Candidate, earmarked: Cover, now: int
    ) -> Plan | None:
        """A turn in the room that the head of the turns cannot use: a small model in place of another small one."""
        over = [s for s in self._leaving(state, turn, now) if s not in earmarked]
        victims = cover(_around(state, turn.model, head, earmarked), over, lambda s: s.price(now))
        return self._for_turn(state, turn, victims, now) if victims else None

    def _leaving(self, state: State, turn: Turn, now: int) -> list[ModelState]:
        """The models that may leave for a turn."""
        work_class = turn.model.turn_class()
        done = [
            s
            for s in movable(state, turn.model)
            if (self._is_done(s, work_class, now) or is_cut_short(s, turn, now)) and gives_way(s, turn, now)
        ]
        return done + yielding(state, turn.model, now)

    def _for_turn(self, state: State, turn: Turn, victims: Cover, now: int) -> Plan:
        due, work_class = turn.model.due(), turn.model.turn_class()
        ready = [s for s in victims if s.stage is Stage.READY]
        is_early = not all(self._is_done(s, work_class, now) for s in ready)
        why = TurnCame(None if due is None else max(0, due - now), uncertainty(state, [turn.model]), is_early)
        return Plan(turn.model, victims, PlanKind.DUE if turn.is_hard else PlanKind.TURN, why)

    @staticmethod
    def _is_done(model: ModelState, work_class: WorkClass, now: int) -> bool:
        """Whether it may leave for work of this class: leased work has no quantum against an interactive request."""
        leased = model.top_class() is WorkClass.LEASED and work_class is WorkClass.INTERACTIVE
        return leased or (model.has_had_turn(now) and not model.is_kept_from(work_class, now))

    # -- the rest

    def _best(
        self, state: State, targets: Sequence[Candidate], head: Candidate | None, earmarked: Cover, now: int
    ) -> Plan | None:
        """The best model that fits, or replaces idle models for a gain: by class, priority, then age.

        A model replaces nothing while one of a better class or priority waits for the same room.
        """
        passed_over: list[tuple[Rank, Candidate]] = []
        idle_plans = _idle_plans(state)
        for target in sorted(targets, key=lambda s: (s.rank(now), s.next_came())):
            rank = target.rank(now)
            plan = self._option(state, target, head, earmarked, now, idle_plans=idle_plans)
            if plan is not None and not (plan.victims and _is_passed(target, rank, passed_over)):
                return plan
            if state.shortage_of(target):
                passed_over.append((rank, target))
        return None

    def _option(
        self,
        state: State,
        target: Candidate,
        head: Candidate | None,
        earmarked: Cover,
        now: int,
        *,
        idle_plans: Sequence[ModelState],
    ) -> Plan | None:
        """How a model could be loaded now without a turn."""
        mine = target is head
        short = state.shortage_of(target) if mine else _around(state, target, head, earmarked)
        if not short:
            return Plan(target, (), PlanKind.FITS, Fits())
        kept = () if mine else earmarked
        leaving = [s for s in self._may_yield(state, target, now) if s not in kept]
        hung = yielding(state, target, now)
        leaving += hung
        leaving += [s for s in state.in_stage(Stage.LOADING) if self._may_abort(s, target, now, hung)]
        leaving += [s for s in idle_plans if s not in target.members and self._may_drop(s, target, now)]
        if not leaving:
            return None  # the common case under load: every model is busy with work of the same class
        victims = cover(short, leaving, lambda s: self._momentum(s, target, now))
        return None if victims is None else self._weigh(state, target, victims, now)

    def _weigh(self, state: State, target: Candidate, victims: Cover, now: int) -> Plan | None:
        """A swap, or None when the leaving models are worth more."""
        if target.top_class() is WorkClass.ROTATION:
            if not target.line:
                return None  # a held turn has no weight
            return Plan(target, victims, PlanKind.ROTATION, TaskDue())
        quiet = quiet_at(state, target)
        if now < quiet:
            state.wakes.append(quiet)
            return None
        balance = self.balance(state, target, victims, now)
        if not balance.tips:
            return None
        return Plan(target, victims, PlanKind.RATE, Outweighs(balance.pressure, balance.momentum))

    def balance(
        self, state: State, target: Candidate, victims: Cover, now: int, *, waiting: float | None = None
    ) -> Balance:
        """Weighs the waiting work against the work of the leaving models."""
        return Balance(
            waiting=_weight_waiting(state, target) if waiting is None else waiting,
            coming=target.rate.seen(now) * target.quantum_ms,
            load_ms=target.load.ms,
            residual_ms=max((v.residual(now) for v in victims), default=0.0),
            reload_ms=max((v.load.ms + v.context.rebuild_ms for v in victims), default=0.0),
            momentum=sum(self._momentum(v, target, now) for v in victims),
        )

    @staticmethod
    def _momentum(victim: ModelState, target: Candidate, now: int) -> float:
        """The demand for a victim per millisecond, scaled by its inertia.

        Lingering has a limit when a lower class waits. Callers come in a rhythm: right after an answer the next
        request is farthest away. So the victim leaves right after an answer once half of its turn is over, and at the
        latest one linger time after its turn. Equals have their soft turns.
        """
        if victim.stage is Stage.PLANNED:
            return 0.0
        oldest = target.line.oldest_arrival()
        if victim.is_idle and oldest is not None and target.turn_class() > victim.worth_class(now):
            waited = now - max(oldest, victim.ready_at)
            just_answered = now - victim.last_used <= JUST_MS
            limit = (
                LINGER_LOWER * victim.quantum_ms if just_answered else victim.quantum_ms + victim.linger_ms
            )
            if waited >= limit:
                return 0.0
            price = victim.price(now)
            return max(price, victim.rhythm(now)) if price else 0.0
        return victim.price(now)

    def _may_yield(self, state: State, target: Candidate, now: int) -> list[ModelState]:
        """The idle models: a quantum protects work, not idle time. Rotation takes only models that have lingered."""
        work_class = target.turn_class()
        rotation = target.top_class() is WorkClass.ROTATION
        return [
            s
            for s in movable(state, target)
            if (s.has_lingered(now) if rotation else s.has_paused(now))
            and not s.is_kept_from(work_class, now)
        ]

    @staticmethod
    def _may_drop(model: ModelState, target: Candidate, now: int) -> bool:
        """Whether a plan makes room for a better class or priority. Where others were closed for it, only for a better
        class, and no more often than a load may be aborted: they are loaded again, and closed for it again."""
        if not model.plan_costs:
            return target.rank(now) < model.rank(now)
        return target.top_class() < min(model.plan_class, model.top_class()) and model.aborts < ABORTS_MAX

    @staticmethod
    def _may_abort(
        model: ModelState, target: Candidate, now: int, counted: Sequence[ModelState] = ()
    ) -> bool:
        if model in target.members or model in counted:
            return False
        lower = target.top_class() < min(model.plan_class, model.top_class())
        worth_it = model.load_left_ms(now) > target.load.ms + target.service.ms
        return lower and worth_it and not model.spec.permanent and model.aborts < ABORTS_MAX


def _weight_waiting(state: State, target: Candidate) -> float:
    """The weight of all that waits for the room of a model."""
    leased_counts = not state.local_interactive_waits()
    lines = [s for s in state.lines() if s.wants_memory and share_room(s, target)]
    return sum(s.weight_waiting(leased_counts=leased_counts) for s in lines)


def _idle_plans(state: State) -> list[ModelState]:
    """The plans that only wait for another load to end. Nothing leaves for them any more, and nothing was loaded."""
    loading, left_for = state.in_stage(Stage.LOADING), {s.leaving_for for s in state.managed}
    return [
        s
        for s in state.in_stage(Stage.PLANNED)
        if not (s.spec.permanent or s.sleeps)
        and s.plan_for == s.name
        and s.plan_for not in left_for
        and any(share_room(other, s) for other in loading)
    ]


def _lingers_ms(other: ModelState, dry_ms: float, since_ms: float, quiet_ms: float, now: int) -> float:
    """When a model leaves for a lower class that waits since `since_ms` (`Rate._momentum`): right after an answer once
    a part of its turn is over, or when it stays idle for long.

    Its callers come at random: it is idle after an answer if no other one has come meanwhile.
    """
    early_ms = since_ms + LINGER_LOWER * other.quantum_ms
    if dry_ms >= early_ms and not (other.stage is Stage.READY and other.is_idle):
        return dry_ms
    late_ms = max(dry_ms, since_ms + other.quantum_ms + other.linger_ms)
    per_ms = other.rate.seen(now) / max(other.rules.weights[other.worth_class(now)], 1e-9)
    idle_again_ms = (
        AGAIN_SHARE * math.exp(min(50.0, per_ms * other.service.ms)) / per_ms if per_ms else math.inf
    )
    if per_ms * quiet_ms < 1:
        late_ms = min(late_ms, quiet_ms)
    return min(late_ms, max(dry_ms, early_ms) + idle_again_ms)


def _freed_ms(state: State, model: Candidate, request: Request, now: int) -> float:
    """When an interactive request for another model has ended the turn of those that keep this one away."""
    others = [
        s for s in state.managed if s not in model.members and not s.spec.permanent and share_room(s, model)
    ]
    mine = (request.work_class, request.priority)
    if any(s.is_kept_busy(now) and (s.worth_class(now), s.spec.priority) < mine for s in others):
        return math.inf  # they come back first
    away = [s for s in others if s.stage in AWAY and not s.line and s.next_person_ms(now) < math.inf]
    per_ms = sum(1 / s.next_person_ms(now) for s in away)
    if not per_ms:
        return math.inf
    turns = ((SOFT_TURN_LOWER + 1) * s.load.ms + max(s.quantum_ms, s.service.ms) for s in away)
    return 1 / per_ms + max(turns) + model.load.ms


def _overtaken_ms(state: State, model: Candidate, request: Request, until_load_ms: float, now: int) -> float:
    """How long interactive requests that are likely to come delay a lower class, which waits so long for its load.

    Each of them brings its own model in first, and the wait for a pause begins anew.
    """
    if request.work_class is WorkClass.INTERACTIVE or request.operator or until_load_ms <= 0:
        return 0.0
    per_ms = cost_ms = 0.0
    for other in state.in_stage(*AWAY):
        gap_ms = other.next_person_ms(now)
        if other.line or other in model.members or gap_ms == math.inf or not share_room(other, model):
            continue
        per_ms += 1 / gap_ms
        cost_ms += (other.load.ms + max(until_load_ms, LINGER_LOWER * other.quantum_ms)) / gap_ms
    if not per_ms:
        return 0.0
    return math.expm1(min(50.0, per_ms * until_load_ms)) * cost_ms / per_ms


def _is_passed(target: Candidate, rank: Rank, others: Iterable[tuple[Rank, Candidate]]) -> bool:
    """Whether a model of a better class or priority waits for the same room."""
    return any(better < rank and share_room(s, target) for better, s in others)


def _hard_turns_with(state: State, model: Candidate, request: Request, now: int) -> dict[str, HardTurn]:
    """The hard turns once the request has joined the line of a model."""
    dues = dues_of(s for s in wanting(state) if s is not model)
    if own := Due.of(model, request):
        dues.append(own)
    return hard_turns(state, dues, movable(state), now)


def _gone_first(state: State, head: Candidate, now: int) -> Cover:
    """The victims of the head of the turns that could be gone first; no other model may take their place."""

    def until(model: ModelState) -> float:
        return max(now, model.ready_at + model.quantum_ms) + model.drain_ms(now)

    return cover(state.shortage_of(head), movable(state, head), until) or ()


def _is_beside(state: State, model: Candidate, head: Candidate | None, earmarked: Cover) -> bool:
    """Whether a model can be loaded in the room that the head of the turns cannot use."""
    others = [s for s in movable(state, model) if s not in earmarked]
    return can_cover(_around(state, model, head, earmarked), others)


def _around(state: State, target: Candidate, head: Candidate | None, earmarked: Cover) -> Needs:
    """What a model lacks once the head of the turns has the memory that it was promised."""
    if head is None:
        return state.shortage_of(target)
    free = state.planned_free(target)
    given = {r: sum(v.frees().get(r, 0) for v in earmarked) for r in free}
    left = {r: min(amount, amount + given[r] - head.needs.get(r, 0)) for r, amount in free.items()}
    return shortage(target.needs, left)


POLICIES: dict[str, Callable[[], Policy]] = {"rate": Rate, "turns": Turns, "fifo": Fifo}
