"""The tipping point: which model comes in next, and who leaves for it (RES-11).

Three policies behind one protocol. A policy only chooses among legal changes: the ledger, exclusive groups,
permanents and reservations bind every one of them.

`rate`, the default, in one sentence: every model gets its turn before its oldest request runs out of patience, for at
least a quantum, idle models linger for one load time, and rates of useful work choose among the rest.

- **momentum** of what would leave: its price, the useful work per time that is lost with it; for an idle model the
  arrivals it is likely to see while it lingers.
- **pressure** of what waits: the weight of its line over the time to drain, load and serve it, and to reload what is
  pushed out and still has a price.
- **inertia** scales the price, so that a near tie changes nothing.

While what it would compare is in doubt (`doubt`), `rate` decides as `turns` does.

Why not simply "the late one wins now": with several models late at once that is earliest deadline first with set-up
times, and the machine does nothing but load. A turn therefore lasts at least a quantum, and waits for others' quanta.
"""

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from watchbill.catalog import WorkClass
from watchbill.core.budget import shortage
from watchbill.core.doubt import doubt
from watchbill.core.eviction import Cover, cover
from watchbill.core.forecast import expected_start_ms
from watchbill.core.messages import Request
from watchbill.core.state import State
from watchbill.core.station import AWAY, Stage, Station

__all__ = ["POLICIES", "Fifo", "Plan", "Policy", "Rate", "Turns"]

#: A turn is due this part of the request's max_wait before it would be too late, and no more than one load time.
TURN_MARGIN = 0.05
#: What an idle model's price is multiplied with inside its quantum: the load that brought it is not paid off yet.
UNPAID = 2.0
#: A load under way is given up for a higher class at most this often per target.
ABORTS_MAX = 2
#: Against somebody who waits, pauses between uses count as lingering for this many linger times after the quantum.
LINGER_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of what is resident: the target comes in, the victims leave."""

    target: Station
    victims: Cover
    why: str  # fits, turn, rate, permanent, rotation, fifo, turns
    reason: str  # with figures, for the journal and `explain`


class Policy(Protocol):
    """Which change comes next. One object, chosen in the config, without state of its own."""

    refuses_late: bool
    in_order: bool  # nobody starts before who came earlier, whichever model they want

    def forecast(self, state: State, station: Station, request: Request, now: int) -> float:
        """Milliseconds until a request would start on this model, by means and without margins."""
        ...

    def choose(self, state: State, now: int) -> Plan | None:
        """The next change, or None when nothing should change now."""
        ...


# ------------------------------------------------------------------ what every policy needs


def waiting(state: State, now: int) -> list[Station]:
    """The models that should be loaded and may be tried."""
    wanted = [*state.in_stage(*AWAY), *state.companies.values()]
    return [s for s in wanted if s.wants_memory and now >= s.retry_at and state.may_load(s, now)]


def movable(state: State, target: Station | None = None) -> list[Station]:
    """The models that may leave for another one: not those of its own company, nor of one that is under way."""
    own = () if target is None else target.members or (target,)
    return [
        s
        for s in state.in_stage(Stage.READY, Stage.ASLEEP)
        if not (s.model.permanent or s.is_called or s in own or state.is_reserved_core(s))
        and s.silence is None  # what cannot be told to leave gives no memory back
    ]


def returning(state: State, now: int) -> Plan | None:
    """A permanent model that is not there returns into free memory, or over idle models."""
    for station in state.in_stage(Stage.ABSENT):
        wanted = station.must_return and not state.is_closing
        if not wanted or now < station.retry_at or not state.may_load(station, now):
            continue
        idle = [s for s in movable(state) if s.is_idle]
        victims = cover(state.shortage_of(station), idle, lambda s: s.price(now))
        if victims is not None:
            return Plan(station, victims, "permanent", "a permanent model is not resident")
    return None


def arrival_order(station: Station) -> tuple[bool, float, str]:
    """Rotation last, then the oldest waiter; of two who came together the one that dispatch would start."""
    if not station.line:
        return (station.top_class() is WorkClass.ROTATION, float("inf"), station.name)
    oldest = station.line.oldest()
    return (station.top_class() is WorkClass.ROTATION, oldest.arrived_at, oldest.id)


class _InArrivalOrder:
    """The oldest waiter's model comes in; the least recently used that may leave goes."""

    name = ""
    refuses_late = False
    in_order = False

    def forecast(self, state: State, station: Station, request: Request, now: int) -> float:
        return expected_start_ms(state, station, request, now, turns=())

    def may_leave(self, station: Station, now: int) -> bool:
        # What was just granted would only be cut: two models would evict each other for ever, answering nobody.
        return not station.running and not station.users

    def choose(self, state: State, now: int) -> Plan | None:
        if plan := returning(state, now):
            return plan
        plans = (self.bring_in(state, target, now) for target in self._heads(state, now))
        return next((plan for plan in plans if plan is not None), None)

    def bring_in(self, state: State, target: Station, now: int) -> Plan | None:
        """Makes room by those that may leave, the least recently used first."""
        by_use = sorted(movable(state, target), key=lambda s: (s.last_used, s.name))
        order = {s.name: 2.0**i for i, s in enumerate(by_use)}
        leaving = [s for s in movable(state, target) if self._yields(s, target, now)]
        victims = cover(state.shortage_of(target), leaving, lambda s: order[s.name])
        if victims is None:
            return None
        return Plan(target, victims, self.name if victims else "fits", "its request has waited longest")

    def _yields(self, station: Station, target: Station, now: int) -> bool:
        """Rotation takes only what nobody uses: two of its models would otherwise push each other out for ever."""
        if target.top_class() is WorkClass.ROTATION:
            return station.has_lingered(now)
        return self.may_leave(station, now)

    def _heads(self, state: State, now: int) -> list[Station]:
        return sorted(waiting(state, now), key=arrival_order)[:1]


class Fifo(_InArrivalOrder):
    """Strict arrival order, whatever it costs. For comparison, and for those who want nothing else."""

    name = "fifo"
    in_order = True

    def _heads(self, state: State, now: int) -> list[Station]:
        """Only the oldest of all: a model loaded for anybody else could not serve before it must leave again."""
        lined = [s for s in (*state.managed, *state.companies.values()) if s.line]
        return [s for s in sorted(lined, key=arrival_order)[:1] if s in waiting(state, now)]


class Turns(_InArrivalOrder):
    """Arrival order with a quantum: loading takes at most 1 / (1 + alpha) of the time. Needs no learned figure."""

    name = "turns"

    def may_leave(self, station: Station, now: int) -> bool:
        return station.has_had_turn(now)


# ------------------------------------------------------------------ the default


class Rate:
    """Turns before patience ends, quanta, lingering, and rates for the rest."""

    name = "rate"
    refuses_late = True
    in_order = False

    def forecast(self, state: State, station: Station, request: Request, now: int) -> float:
        turns = self._turns(state, now) if station.stage in AWAY else ()
        return expected_start_ms(state, station, request, now, turns)

    def choose(self, state: State, now: int) -> Plan | None:
        if plan := returning(state, now):
            return plan
        candidates = waiting(state, now)
        if not candidates:
            return None
        due = self._turns(state, now)
        if why := doubt(state, candidates):
            return self._as_turns(state, candidates, due, why, now)
        earmarked: Cover = ()
        head = next((s for s in due if s in candidates), None)
        if head is not None:
            if plan := self._turn(state, head, now):
                return plan
            earmarked = self._earmark(state, head, now)
        return self._best(state, [s for s in candidates if s is not head], head, earmarked, now)

    def _as_turns(
        self, state: State, candidates: Sequence[Station], due: Sequence[Station], why: str, now: int
    ) -> Plan | None:
        """The oldest waiter's turn, by no figure but its age. What fits around it needs no figure, either."""
        order = sorted(candidates, key=arrival_order)
        head = next((s for s in order if s.line or s in due), None)  # a ghost waits until it is due
        plan = Turns().bring_in(state, head, now) if head is not None else None
        if plan is not None:
            return replace(plan, reason=f"{plan.reason}; turns, because {why}") if plan.victims else plan
        earmarked = self._earmark(state, head, now) if head is not None else ()
        fits = (s for s in order if s is not head and not _around(state, s, head, earmarked))
        return next((Plan(s, (), "fits", "it fits beside what is resident") for s in fits), None)

    # -- turns

    def _turns(self, state: State, now: int) -> list[Station]:
        """The models whose turn must come now, by the patience of their oldest request."""
        due: list[tuple[float, Station]] = []
        later: list[tuple[float, Station]] = []
        leaving = [(s.needs.keys(), s.drain_ms(now)) for s in movable(state)]
        for station in (*state.in_stage(*AWAY), *state.companies.values()):
            oldest = station.due() if station.wants_memory else None
            if oldest is None or not station.is_promised:
                continue
            start_by = now if station.in_epoch else oldest - self._lead_ms(station, leaving)
            if now >= start_by:
                due.append((min(oldest, now) if station.in_epoch else oldest, station))
            else:
                later.append((start_by, station))
                state.wakes.append(start_by)
        due.sort(key=lambda entry: (entry[0], entry[1].name))
        order = [station for _, station in due]
        passes = self._passing(due, later, now) if due else None
        return order if passes is None else [passes, *(s for s in order if s is not passes)]

    @staticmethod
    def _passing(
        due: Sequence[tuple[float, Station]], later: Iterable[tuple[float, Station]], now: int
    ) -> Station | None:
        """A higher class that could not wait for the end of the first turn goes before it.

        Else a backlog with its fifteen minutes nearly over takes the one minute that a person has left. Whoever is
        late already is passed by nobody: the turns of a lower class are put off, never called off.
        """
        oldest, head = due[0]
        if oldest <= now:
            return None
        ends = now + head.load.ms + head.quantum_ms
        soon = [*due[1:], *(entry for entry in later if entry[0] < ends)]
        higher = [(s.turn_class(), at, s) for at, s in soon if s.turn_class() < head.turn_class()]
        return min(higher, key=lambda entry: (entry[0], entry[1], entry[2].name))[2] if higher else None

    @staticmethod
    def _lead_ms(station: Station, leaving: Iterable[tuple[KeysView[str], float]]) -> float:
        """How long before its due a turn must begin: the longest drain of who is in the way, load, and service."""
        first, needs = station.line.earliest_due(), station.needs.keys()
        patience = first[1].max_wait_ms if first else 0
        drain = 0.0
        for taken, drain_ms in leaving:
            if drain_ms > drain and not needs.isdisjoint(taken):
                drain = drain_ms
        margin = min(TURN_MARGIN * patience, station.load.ms)
        return station.load.ms + drain + station.service.ms + margin

    def _turn(self, state: State, head: Station, now: int) -> Plan | None:
        due = head.due()
        over = [
            s
            for s in movable(state, head)
            if self._is_done(s, head.top_class(), now) and not (due is not None and (s.due() or due) < due)
        ]
        victims = cover(state.shortage_of(head), over, lambda s: s.price(now))
        if victims is None:
            return None
        left = "" if due is None else f", its oldest request has {max(0, due - now) / 1000:.1f} s left"
        return Plan(head, victims, "turn" if victims else "fits", f"its turn{left}")

    @staticmethod
    def _earmark(state: State, head: Station, now: int) -> Cover:
        """The victims that could be gone first; nobody else may take their place."""

        def until(station: Station) -> float:
            return max(now, station.ready_at + station.quantum_ms) + station.drain_ms(now)

        state.wakes.append(now + 1_000)
        return cover(state.shortage_of(head), movable(state, head), until) or ()

    @staticmethod
    def _is_done(station: Station, work_class: WorkClass, now: int) -> bool:
        """Whether its place may be given to work of this class: leased work has no quantum against a person."""
        leased = station.top_class() is WorkClass.LEASED and work_class is WorkClass.INTERACTIVE
        return leased or station.has_had_turn(now)

    # -- the rest

    def _best(
        self, state: State, targets: Sequence[Station], head: Station | None, earmarked: Cover, now: int
    ) -> Plan | None:
        options: list[tuple[float, Plan]] = []
        loading = state.in_stage(Stage.LOADING)
        yielding: dict[WorkClass, list[Station]] = {}
        for target in targets:
            short = _around(state, target, head, earmarked)
            leaving: list[Station] = []
            if short:
                work_class = target.top_class()
                if work_class not in yielding:
                    yielding[work_class] = self._may_yield(state, work_class, now)
                leaving = [
                    s for s in yielding[work_class] if s not in (*earmarked, *(target.members or (target,)))
                ]
                leaving += [s for s in loading if self._may_abort(s, target, now)]
                if not leaving:
                    continue  # the common case under load: everybody is busy with work of the same class
            victims = cover(short, leaving, lambda s, t=target: self._price(s, t, now))
            if victims is not None and (option := self._weigh(state, target, victims, now)):
                options.append(option)
        if not options:
            return None
        return min(
            options,
            key=lambda option: (-option[0], option[1].target.top_class(), option[1].target.next_came()),
        )[1]

    def _weigh(self, state: State, target: Station, victims: Cover, now: int) -> tuple[float, Plan] | None:
        """How much a change gains, or None when what would leave is worth more."""
        if not victims:
            rotation = target.top_class() is WorkClass.ROTATION and not target.ghost
            return (0.0 if rotation else float("inf")), Plan(
                target, (), "fits", "it fits beside what is resident"
            )
        if target.top_class() is WorkClass.ROTATION:
            if not target.line:
                return None  # a ghost has no weight
            return 0.0, Plan(target, victims, "rotation", "its background turn, over models nobody uses")
        pressure, momentum = self.figures(state, target, victims, now)
        if pressure <= momentum:
            return None
        reason = (
            f"pressure {pressure * 1000:.3g}/s outweighs momentum {momentum * 1000:.3g}/s (inertia included)"
        )
        return pressure - momentum, Plan(target, victims, "rate", reason)

    def figures(self, state: State, target: Station, victims: Cover, now: int) -> tuple[float, float]:
        """Pressure of what waits and momentum of what would leave, both in weight per millisecond."""
        prices = [self._price(v, target, now) for v in victims]
        momentum = sum(prices)
        setup = target.load.ms + max((v.residual(now) for v in victims), default=0.0)
        setup += sum(v.load.ms for v, price in zip(victims, prices, strict=True) if price > 0)
        return target.pressure(setup, leased_counts=not state.local_interactive_waits()), momentum

    @staticmethod
    def _price(victim: Station, target: Station, now: int) -> float:
        """A victim's price. Lingering is a favour of limited length: a model that is idle now and has had its turn
        and its linger since somebody began to wait is worth nothing more, though it was used a moment ago.
        """
        oldest = target.line.oldest_arrival()
        if victim.is_idle and oldest is not None:
            waited = now - max(oldest, victim.ready_at)
            if waited >= victim.quantum_ms + LINGER_ROUNDS * victim.linger_ms:
                return 0.0
        return victim.price(now) * (1.0 if victim.has_had_turn(now) else UNPAID)

    def _may_yield(self, state: State, work_class: WorkClass, now: int) -> list[Station]:
        """Who may be displaced for a gain: idle, or after its quantum busy with a lower class.

        A quantum protects work. A model that ran dry inside it is protected by its price alone: holding the device
        for nobody while a line waits elsewhere would make every wait longer than plain batching does.
        """
        if work_class is WorkClass.ROTATION:
            return [s for s in movable(state) if s.has_lingered(now)]
        return [
            s
            for s in movable(state)
            if s.is_idle or (work_class < s.top_class() and self._is_done(s, work_class, now))
        ]

    @staticmethod
    def _may_abort(station: Station, target: Station, now: int) -> bool:
        if station in target.members:
            return False
        lower = target.top_class() < min(station.plan_class, station.top_class())
        left = station.since + station.load.ms - now
        worth_it = left > target.load.ms + target.service.ms
        return lower and worth_it and not station.model.permanent and station.aborts < ABORTS_MAX


def _around(state: State, target: Station, head: Station | None, earmarked: Cover) -> Mapping[str, int]:
    """What a model lacks once the head of the turns has what it was promised."""
    if head is None:
        return state.shortage_of(target)
    free = state.planned_free(target)
    given = {r: sum(v.frees().get(r, 0) for v in earmarked) for r in free}
    left = {r: min(amount, amount + given[r] - head.needs.get(r, 0)) for r, amount in free.items()}
    return shortage(target.needs, left)


POLICIES: dict[str, Callable[[], Policy]] = {"rate": Rate, "turns": Turns, "fifo": Fifo}
