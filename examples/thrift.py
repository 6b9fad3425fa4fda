"""Thrift: a policy that spends as little energy on loading as it can. An example of a policy of your own.

    [policy]
    name = "thrift:Thrift"

- Of the models that wait, the one comes in first whose load costs the least energy per waiting request.
- The models leave that are the cheapest to bring back.
- Near the power limit of a card nothing is swapped there until a request has used up half of its patience.

Energy is load time x power: what the card may draw at most, or a usual figure where nothing tells. Nobody starves: a
request that has used up half of its patience goes first, by its deadline.
"""

from watchbill.core.companions import Candidate
from watchbill.core.cover import cover
from watchbill.core.forecast import Forecast, forecast_start
from watchbill.core.messages import PlanKind, Request
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Plan, movable, returning, waiting
from watchbill.core.state import State

#: What loading takes from the wall where no card tells.
USUAL_W = 60.0
#: A card that draws more than this part of its limit is near it.
NEAR_LIMIT = 0.9
#: A request that has used up this part of its patience goes first.
IMPATIENT = 0.5
#: What bringing a model back costs that nobody asked for lately, as a part of its load.
RARELY_WANTED = 0.1


class Thrift:
    """Fewest joules per answer."""

    refuses_late = False
    in_order = False

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """When a request would start: after the room, the load, and what stands before it."""
        return forecast_start(state, model, request, now)

    def choose(self, state: State, now: int) -> Plan | None:
        """The cheapest load, unless a request has waited for long."""
        if plan := returning(state, now):
            return plan
        for target in sorted(waiting(state, now), key=lambda s: self._order(state, s, now)):
            if plan := self._bring_in(state, target, now):
                return plan
        return None

    def _order(self, state: State, target: ModelState, now: int) -> tuple[bool, float, str]:
        if self._is_impatient(state, target, now):
            return (False, target.due() or 0, target.name)
        return (True, joules(state, target) / max(1, len(target.line)), target.name)

    def _bring_in(self, state: State, target: ModelState, now: int) -> Plan | None:
        leaving = [s for s in movable(state, target) if not s.running and not s.users and s.has_had_turn(now)]
        victims = cover(state.shortage_of(target), leaving, lambda s: self._to_bring_back(state, s, now))
        if victims is None:
            return None
        if victims and is_near_limit(state, target) and not self._is_impatient(state, target, now):
            return None
        cost = joules(state, target)
        return Plan(
            target, victims, PlanKind.CUSTOM if victims else PlanKind.FITS, f"its load costs {cost:.0f} J"
        )

    def _is_impatient(self, state: State, target: ModelState, now: int) -> bool:
        """Whether its most impatient request has used up half of its time; if not, asks to be called then."""
        first = target.line.earliest_due()
        if first is None:
            return target.held_turn is not None
        due, request = first
        at = due - (1 - IMPATIENT) * request.max_wait_ms
        if now < at:
            state.wakes.append(at)
        return now >= at

    def _to_bring_back(self, state: State, victim: ModelState, now: int) -> float:
        wanted = 1.0 if victim.line or victim.rate.seen(now) > 0 else RARELY_WANTED
        return wanted * joules(state, victim)


def joules(state: State, model: ModelState) -> float:
    """What one load of a model costs."""
    limits = [book.reading.power_limit_w for book in state.ledger.books_of(model.needs) if book.reading]
    watts = sum(limit or USUAL_W for limit in limits) or USUAL_W
    return model.load.ms / 1000 * watts


def is_near_limit(state: State, model: ModelState) -> bool:
    """Whether a card that a model needs draws nearly all that it may."""
    readings = [book.reading for book in state.ledger.books_of(model.needs) if book.reading]
    return any(r.power_w and r.power_limit_w and r.power_w >= NEAR_LIMIT * r.power_limit_w for r in readings)
