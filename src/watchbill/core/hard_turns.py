"""Hard turns: when the turn of a waiting model must begin, so that no request runs out of patience.

Models that wait for the same room are loaded one after the other. So a turn has to begin early enough for its own
request and for every turn that is due after it: the plan is made from the last one backwards. Without it, models that
become due together all begin when the time is enough for one, and the others are refused.

If whole quanta leave too little time, there is a second plan with turns of one answer each (`squeezed`). When that plan
must begin, and everybody can be served by it, the quantum of a resident model may end early.

A turn is brought forward only after its request has waited a few load times. Where not all can be served in time, a
better priority may still come, and swapping earlier would serve no request sooner.
"""

import math
from collections import defaultdict
from collections.abc import Callable, KeysView, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

from watchbill.core.companions import Candidate
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState
from watchbill.core.resources import Resource
from watchbill.core.stages import STAYING
from watchbill.core.state import State

__all__ = ["Due", "HardTurn", "hard_turns"]

#: A turn is due this share of the request's max_wait before it would be too late, and no more than one load time.
TURN_MARGIN = 0.05
#: A turn is not brought forward before its oldest request has waited this many of its model's load times.
FORWARD_LOADS = 3.0

#: The resources of a model that may leave, and how long it would take to leave.
_Drain = tuple[KeysView[Resource], float]


class Due(NamedTuple):
    """A model that waits, and when its most impatient request must have started."""

    model: Candidate
    due: float
    patience_ms: float
    came: float  # when the next request to be served did; endless for a held turn

    @staticmethod
    def of(model: Candidate, joining: Request | None = None) -> "Due | None":
        """What a model's line and its held turn ask for, with a request that joins it; None if nothing does."""
        due, first, came = model.due(), model.line.earliest_due(), model.line.oldest_arrival()
        patience_ms = 0 if first is None else first[1].max_wait_ms
        if joining is not None and (due is None or joining.arrived_at + joining.max_wait_ms < due):
            due, patience_ms = joining.arrived_at + joining.max_wait_ms, joining.max_wait_ms
        if came is None:
            came = math.inf if joining is None else joining.arrived_at
        return None if due is None else Due(model, due, patience_ms, came)


class HardTurn(NamedTuple):
    """The times of one model's hard turn."""

    begins: float  # early enough for the turns after it, too
    latest: float  # when it would still be in time by itself
    lasts_ms: float  # its share of the room's time: until the next turn can begin
    shortest_ms: float  # the same without a quantum
    #: When it and all the turns after it would still be in time if each were as short as can be.
    squeezed: float
    margin_ms: float  # how much later that may be
    patience_ms: float  # of its most impatient request
    #: What is left of its patience after the shortest turn of everybody who waits for its room.
    slack_ms: float

    def is_pressing(self, now: float) -> bool:
        """Whether all can still be served in time, but only if no model has a whole quantum from now on."""
        return self.squeezed <= now <= self.squeezed + self.margin_ms and self.slack_ms >= 0

    def is_last_call(self, now: float) -> bool:
        """Whether its own request is in time only if its turn begins now."""
        return self.latest <= now <= self.latest + self.margin_ms


def hard_turns(
    state: State, dues: Sequence[Due], may_leave: Sequence[ModelState], now: int
) -> dict[str, HardTurn]:
    """When each turn begins, by the name of its model."""
    if not dues:
        return {}
    drains = [(s.needs.keys(), s.drain_ms(now)) for s in may_leave]
    beside = _models_at_once(state) if len(dues) > 1 else _one_at_once
    rivals = _longest_turns(dues)
    round_ms = _shortest_round(state, dues, beside, now)
    turns: dict[str, HardTurn] = {}
    next_start: dict[Resource, float] = {}
    next_squeezed: dict[Resource, float] = {}
    for each in sorted(dues, key=lambda each: (-each.due, each.model.name)):
        model, drain_ms = each.model, _drain_ms(each.model, drains)
        margin_ms = min(TURN_MARGIN * each.patience_ms, model.load.ms)
        answer_ms = _answer_ms(model)
        latest = each.due - (model.load.ms + drain_ms + answer_ms + margin_ms)
        at_once = beside(model)
        turn_ms = (model.load.ms + drain_ms + max(model.quantum_ms, answer_ms)) / at_once
        shortest_ms = _shortest_turn(model) / at_once
        squeezed = min(latest + drain_ms, _first(next_squeezed, model) - shortest_ms)
        begins = latest
        if len(dues) > 1:
            others = (ms for r in model.needs for name, ms in rivals[r] if name != model.name)
            rival_ms = max(others, default=0.0)  # a model that is served elsewhere needs no room here
            forward = min(_first(next_start, model) - turn_ms, latest - rival_ms)
            begins = min(latest, max(forward, each.came + FORWARD_LOADS * model.load.ms))
        next_start |= dict.fromkeys(model.needs, begins)
        next_squeezed |= dict.fromkeys(model.needs, squeezed)
        slack_ms = each.patience_ms - margin_ms - max((round_ms[r] for r in model.needs), default=0.0)
        turns[model.name] = HardTurn(
            begins,
            latest,
            turn_ms,
            drain_ms + shortest_ms,
            squeezed - drain_ms,
            margin_ms,
            each.patience_ms,
            slack_ms,
        )
    return turns


def _shortest_turn(model: Candidate) -> float:
    """One load and one answer."""
    return model.load.ms + _answer_ms(model)


def _answer_ms(model: Candidate) -> float:
    """One answer. A guess counts as a load at most: no turn is cut short for a long answer that was never measured."""
    return min(model.service.ms, model.load.ms) if model.service.is_guess else model.service.ms


def _first(starts: Mapping[Resource, float], model: Candidate) -> float:
    """When the first of the turns begins that need the room of this model."""
    return min((starts[r] for r in model.needs if r in starts), default=math.inf)


def _shortest_round(
    state: State, dues: Sequence[Due], beside: Callable[[Candidate], int], now: int
) -> dict[Resource, float]:
    """How long one short turn for everybody takes, for each resource: those that wait, and those that are asked often
    and so will wait soon."""
    taken: dict[Resource, float] = defaultdict(float)
    wait = [each.model for each in dues]
    often = [s for s in state.managed if not s.spec.permanent and s.is_frequented(now) and s not in wait]
    for model in (*wait, *often):
        turn_ms = _shortest_turn(model) / beside(model)
        for resource in model.needs:
            taken[resource] += turn_ms
    return taken


def _longest_turns(dues: Sequence[Due]) -> dict[Resource, list[tuple[str, float]]]:
    """The two longest turns for each resource, by the name of their model: one may have begun just before.

    The second is for the model of the first, which does not wait for itself; it lasts 0 where there is no other.
    """
    turns: dict[Resource, list[tuple[str, float]]] = {}
    for each in dues:
        model = each.model
        for resource in model.needs:
            turns.setdefault(resource, [("", 0.0)]).append((model.name, model.load.ms + model.quantum_ms))
    return {resource: nlargest(2, longest, key=itemgetter(1)) for resource, longest in turns.items()}


def _drain_ms(model: Candidate, drains: Sequence[_Drain]) -> float:
    """The longest drain of a model in the way."""
    needs, longest = model.needs.keys(), 0.0
    for taken, drain_ms in drains:
        if drain_ms > longest and not needs.isdisjoint(taken):
            longest = drain_ms
    return longest


def _one_at_once(_: Candidate) -> int:
    return 1


def _models_at_once(state: State) -> Callable[[Candidate], int]:
    """How many models of this size have room beside each other, and so need not wait for each other's turns."""
    room = dict(state.planned_free())
    for other in state.in_stage(*STAYING):
        if not other.spec.permanent:
            for resource, amount in other.frees().items():
                room[resource] = room.get(resource, 0) + amount

    def count(model: Candidate) -> int:
        return max(1, min((room.get(r, 0) // need for r, need in model.needs.items() if need), default=1))

    return count
