"""A flood of requests for many models: everything is served in its order, and planning leaves time for the rest."""

from collections import Counter
from itertools import pairwise

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Lane, WorkClass
from watchbill.core.companions import Candidate
from watchbill.core.forecast import Forecast
from watchbill.core.messages import Request
from watchbill.core.policy import Plan, Rate
from watchbill.core.state import State
from watchbill.units import Millis

MODELS, REQUESTS = 60, 600
PATIENCE_MS = 3_600_000


class Counted(Rate):
    """The default policy, with a count of what it is asked."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        self.calls["forecast"] += 1
        return super().forecast(state, model, request, now)

    def choose(self, state: State, now: int) -> Plan | None:
        self.calls["choose"] += 1
        return super().choose(state, now)


@pytest.mark.parametrize(("models", "shares"), [(MODELS, True), (10, False)])
def test_a_flood_is_weighed_together_where_many_models_wait(
    world_of: WorldOf, model: ModelOf, models: int, shares: bool
) -> None:
    """LANE-08, RES-01: a thousand requests at once for a hundred models blocked the daemon for twenty seconds. A few
    models are weighed at once, each time. Everybody is served."""
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(PATIENCE_MS), queue_max=REQUESTS)}
    each = [model(f"m{number:03d}", size_gb=number % 5 + 5, concurrency=2) for number in range(models)]
    world = world_of(*each, load_ms=500, lanes=lanes, known_service_ms=100)
    world.run(1_000)
    policy = world.core.policy = world.core._admission.policy = world.core._dispatch.policy = Counted()
    count = REQUESTS if shares else 100
    callers = [world.arrive(f"m{number % models:03d}", 100, lane="chat") for number in range(count)]
    if shares:
        assert policy.calls["forecast"] <= 2 * models and policy.calls["choose"] <= 2 * models
    else:
        assert policy.calls["choose"] >= count - models
    world.run(PATIENCE_MS)
    assert all(caller.outcome == "answered" for caller in callers)
    assert not world.judge.broken


def test_a_shared_forecast_counts_those_who_came_before(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-08: the tenth in line is not told the time of the first."""
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(PATIENCE_MS), queue_max=REQUESTS)}
    each = [model(f"m{number:03d}", size_gb=20) for number in range(30)]
    world = world_of(*each, load_ms=500, lanes=lanes, known_service_ms=1_000)
    world.run(1_000)
    for number in range(30):
        world.arrive(f"m{number:03d}", 1_000, lane="chat")
    told = [world.arrive("m029", 1_000, lane="chat").forecast_ms or 0 for _ in range(10)]
    assert [later - earlier for earlier, later in pairwise(told)] == [1_000] * 9
