"""The crowd: what is done less often where many models wait.

Each plan weighs every model that waits against the others, and so does each forecast. Under a flood of requests for a
hundred models, a plan and a forecast for each of them would leave no time for anything else. So arrivals are weighed
together after a short pause, and a forecast serves the next requests of its kind for a moment. With fewer models
everything is weighed at once.
"""

from collections.abc import Callable
from typing import NamedTuple

from watchbill.core.companions import Candidate
from watchbill.core.contenders import wanting
from watchbill.core.forecast import Forecast
from watchbill.core.messages import Request
from watchbill.core.state import State

__all__ = ["SharedForecasts", "pause_ms"]

#: So many models that wait are a crowd.
CROWD_MIN = 16
#: Arrivals are weighed at most once in so many milliseconds for each model that waits.
PAUSE_MS = 2
#: A forecast serves the next requests of its kind for so many milliseconds for each model that waits.
SHARED_MS = 50
#: Kinds of requests whose forecasts are kept.
KINDS_MAX = 4_096

#: Model, class, priority, whether the operator asks, patience.
_Kind = tuple[str, int, int, bool, int]


def pause_ms(state: State) -> int:
    """How long after the last plan an arrival that cannot start is weighed, together with the others; 0: at once."""
    return round(_crowd(state) * PAUSE_MS)


class _Told(NamedTuple):
    at: int
    in_line: int
    forecast: Forecast


class SharedForecasts:
    """The forecasts that serve other requests of the same kind."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: dict[_Kind, _Told] = {}

    def forecast(
        self, model: Candidate, request: Request, now: int, make: Callable[[], Forecast]
    ) -> Forecast:
        """The forecast of a request: its own, or where a crowd waits that of the last one of its kind, later by those
        that came meanwhile."""
        crowd = _crowd(self._state)
        if not crowd:
            self._told.clear()
            return make()
        kind = (model.name, request.work_class, request.priority, request.operator, request.max_wait_ms)
        told = self._told.get(kind)
        if told is not None and now - told.at <= SHARED_MS * crowd:
            came_ms = (len(model.line) - told.in_line) * model.service.ms / max(1, model.spec.concurrency)
            return told.forecast.plus(max(-told.forecast.ms, came_ms - (now - told.at)))
        if len(self._told) >= KINDS_MAX:
            self._told.clear()
        found = make()
        self._told[kind] = _Told(now, len(model.line), found)
        return found


def _crowd(state: State) -> int:
    """How many models wait; 0 where they are no crowd."""
    if state.waiting < CROWD_MIN:
        return 0
    found = len(wanting(state))
    return found if found >= CROWD_MIN else 0
