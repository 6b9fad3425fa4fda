"""RES-24: one load at a time, and what that means for everybody behind it."""

from collections.abc import Callable
from typing import cast

import pytest

from watchbill.catalog import Lane, Model, WorkClass
from watchbill.runtime.views import Known, request_view, requests_view
from watchbill.simulate.world import Faults, World
from watchbill.steps import at_once
from watchbill.units import Millis

LOAD_MS = 8_000


def lanes(max_wait_ms: int) -> dict[str, Lane]:
    return {
        "chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(max_wait_ms)),
        "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(600_000)),
    }


@pytest.fixture
def begun(world_of: Callable[..., World], model: Callable[..., Model]) -> Callable[..., World]:
    """A world with room for both models, 0.4 s after the first load began."""

    def begin(max_wait_ms: int, faults: Faults | None = None) -> World:
        models = (model("first", 4), model("second", 4))
        world = world_of(*models, load_ms=LOAD_MS, lanes=lanes(max_wait_ms), faults=faults)
        world.run(1)
        world.arrive("first", 100, lane="batch")
        return world.run(400)

    return begin


def test_a_forecast_counts_the_load_that_is_on_the_bus(begun: Callable[..., World]) -> None:
    """RES-24, RES-11: a model that fits was forecast its own load, and waited for another model's."""
    caller = begun(60_000).arrive("second", 100, lane="chat")
    assert caller.forecast_ms >= 2 * LOAD_MS - 400


def test_a_request_that_the_bus_makes_late_is_refused_at_once(begun: Callable[..., World]) -> None:
    """RES-11: even the optimistic forecast misses its bound: told now, not after the whole wait."""
    caller = begun(10_000).arrive("second", 100, lane="chat")
    assert caller.outcome == "wait_exceeded"
    assert caller.retry_after_ms >= 2 * LOAD_MS - 400


def test_a_load_that_hangs_holds_up_no_other(begun: Callable[..., World]) -> None:
    """RES-24: a load that takes far longer than it should keeps its memory, and no longer the bus."""
    world = begun(60_000, Faults(load_hangs=1.0, until_ms=100))
    caller = world.arrive("second", 100, lane="chat")
    world.run(60_000)
    assert caller.outcome == "answered"
    assert not world.judge.broken


def test_a_waiting_request_tells_when_it_would_start_by_what_is_known_now(
    world_of: Callable[..., World], model: Callable[..., Model]
) -> None:
    """LANE-08: the forecast of the arrival stays what was promised; the one of now follows what happens."""
    world = world_of(model("A"))
    world.run(1_000)
    caller = world.arrive("A", 300, lane="chat")
    promised = {caller.request.id: Known(int(caller.forecast_ms or 0), waits_there=False)}
    seen: list[int] = []
    for _ in range(3):
        view = request_view(world.core, caller.request.id, promised, int(world.now))
        assert view is not None and view["forecast_ms"] == caller.forecast_ms
        assert view == at_once(requests_view(world.core, promised, int(world.now)))[0]
        seen.append(cast("int", view["starts_in_ms"]))
        world.run(world.now + 900)
    assert seen == sorted(seen, reverse=True) and len(set(seen)) == 3
