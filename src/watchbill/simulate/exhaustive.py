"""Exhaustive batching: the way llama-swap swaps, as a policy for comparison. It cannot be chosen in a config.

A request for a warm model starts at once, before requests that wait for a cold one. A model leaves only when it is
idle. Then the model with the oldest request for which there is room loads, in place of the least recently used.
Requests wait as long as necessary: there is no forecast and no refusal. It swaps little, but a model that is never idle
blocks all others without limit.
"""

from watchbill.core.companions import Candidate
from watchbill.core.cover import cover
from watchbill.core.forecast import Forecast, forecast_start
from watchbill.core.messages import PlanKind, Request
from watchbill.core.policy import Plan, arrival_order, movable, returning, waiting
from watchbill.core.state import State

__all__ = ["Exhaustive"]


class Exhaustive:
    """Serves a warm model until it is idle, then loads the model of the oldest other request."""

    name = "exhaustive"
    refuses_late = False
    in_order = False

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """The forecast of the other policies; it is only printed, because no request is refused for it."""
        return forecast_start(state, model, request, now)

    def choose(self, state: State, now: int) -> Plan | None:
        """Tries every waiting model in order of arrival, not only the oldest.

        A model that does not fit does not delay one that does.
        """
        if plan := returning(state, now):
            return plan
        for target in sorted(waiting(state, now), key=arrival_order):
            idle = sorted(
                (s for s in movable(state, target) if s.is_idle), key=lambda s: (s.last_used, s.name)
            )
            age = {model.name: 2.0**place for place, model in enumerate(idle)}
            victims = cover(state.shortage_of(target), idle, lambda s, age=age: age[s.name])
            if victims is not None:
                return Plan(
                    target, victims, PlanKind.FIFO if victims else PlanKind.FITS, "its request came first"
                )
        return None
