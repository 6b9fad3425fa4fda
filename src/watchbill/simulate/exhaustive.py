"""Exhaustive batching: how llama-swap swaps, as a policy to compare with. It cannot be chosen in a config.

A request for a warm model goes straight to it, ahead of whoever waits for a cold one. A model leaves only when it
serves nobody; then the model whose caller came first and for which there is room loads, over the least recently
used. Everybody waits as long as it takes: nothing is forecast and nobody is refused. It swaps little, and a model
that is never idle keeps everybody else out for ever.
"""

from watchbill.core.cover import cover
from watchbill.core.forecast import Forecast, forecast_start
from watchbill.core.messages import PlanKind, Request
from watchbill.core.model_state import Candidate
from watchbill.core.policy import Plan, arrival_order, movable, returning, waiting
from watchbill.core.state import State

__all__ = ["Exhaustive"]


class Exhaustive:
    """Serves whoever is warm until it is idle, then the oldest of the others."""

    name = "exhaustive"
    refuses_late = False
    in_order = False

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """What the others forecast; only printed, since nobody is refused for it."""
        return forecast_start(state, model, request, now)

    def choose(self, state: State, now: int) -> Plan | None:
        """Every waiting model in order of arrival, not only the oldest: one that fits is not held up by one that
        does not.
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
