"""Bounds and forecasts where several models, or several tries, stand before a request."""

from collections.abc import Callable
from typing import cast

import pytest

from watchbill.catalog import Lane, Model, WorkClass
from watchbill.runtime.views import request_view
from watchbill.simulate.world import World
from watchbill.units import Millis

WorldOf = Callable[..., World]
ModelOf = Callable[..., Model]


def lane(name: str, work_class: WorkClass, max_wait_ms: int, timeout_ms: int = 120_000) -> Lane:
    return Lane(name, work_class, max_wait_ms=Millis(max_wait_ms), timeout_ms=Millis(timeout_ms))


def test_background_work_that_makes_way_again_and_again_still_ends_within_its_bound(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-04, RES-12: a cut begins a new wait, but wait and time limit together bound the request."""
    max_wait, timeout = 5_000, 14_000
    lanes = {
        "chat": lane("chat", WorkClass.INTERACTIVE, 120_000),
        "batch": lane("batch", WorkClass.BACKGROUND, max_wait, timeout),
    }
    world = world_of(model("work", concurrency=3), model("talk"), load_ms=500, lanes=lanes)
    for number in range(60):
        world.at(1_000 + 2_700 * number, lambda: world.arrive("talk", 1_500, lane="chat"))
    workers = []
    for number in range(6):
        world.at(500 + 7_000 * number, lambda: workers.append(world.arrive("work", 12_000, lane="batch")))
    world.run(200_000)
    assert len(workers) == 6 and max(each.turns for each in workers) > 1
    for each in workers:
        assert each.ended_at is not None
        assert each.ended_at - each.request.arrived_at <= max_wait + timeout + 2_000
    assert not world.judge.broken


@pytest.mark.parametrize("order", ["54321", "42135", "32514", "431", "541", "51"])
def test_priority_decides_who_loads_though_patience_is_short(
    world_of: WorldOf, model: ModelOf, order: str
) -> None:
    """LANE-06: where not all can be served in time, the better priority is."""
    lanes = {
        "chat": lane("chat", WorkClass.INTERACTIVE, 120_000),
        "brief": lane("brief", WorkClass.INTERACTIVE, 6_000),
    }
    models = [model(f"p{number}", priority=int(number)) for number in "12345"]
    world = world_of(model("hog"), *models, load_ms=1_500, lanes=lanes, known_service_ms=300)
    world.arrive("hog", 300, lane="chat")
    world.run(5_000)
    world.arrive("hog", 2_000, lane="chat")
    callers = {}
    for place, number in enumerate(order):
        world.run(5_100 + 20 * place)
        callers[number] = world.arrive(f"p{number}", 300, lane="brief")
    world.run(60_000)
    started = [each for each in callers.values() if each.outcome == "answered"]
    first = min(started, key=lambda each: each.granted_at)
    assert callers["1"].outcome == "answered" and first is callers["1"]
    assert not world.judge.broken


def test_a_forecast_counts_the_models_that_wait_before_it(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-08: five models that wait together have five forecasts, each close to what is kept."""
    models = [model(f"p{number}", priority=number) for number in range(1, 6)]
    world = world_of(*models, load_ms=2_000, known_service_ms=300)
    world.arrive("p1", 300, lane="chat")
    world.run(5_000)
    world.arrive("p1", 2_000, lane="chat")
    callers = []
    for number in (2, 3, 4, 5):
        world.run(world.now + 20)
        callers.append(world.arrive(f"p{number}", 300, lane="chat"))
    views = [request_view(world.core, each.request.id, {}, int(world.now)) for each in callers]
    promised = [cast("int", view["starts_in_ms"]) for view in views if view is not None]
    assert promised == sorted(promised) and promised[-1] >= promised[0] + 3 * 2_000
    asked_at = world.now
    world.run(60_000)
    kept = [(each.started_at or 0) - asked_at for each in callers]
    assert kept == sorted(kept)
    assert all(abs(told - took) <= 4_000 for told, took in zip(promised, kept, strict=True))


def test_an_answer_that_is_nearly_finished_refuses_no_request_for_its_whole_time(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-11: the forecast that refuses is optimistic: the age of what runs is over."""
    lanes = {"chat": lane("chat", WorkClass.INTERACTIVE, 2_500)}
    world = world_of(model("A", concurrency=1), lanes=lanes, load_ms=1_000, known_service_ms=4_000)
    world.arrive("A", 4_000, lane="chat")
    world.run(4_600)
    caller = world.arrive("A", 4_000, lane="chat")
    assert caller.state == "waiting", caller.outcome
    world.run(30_000)
    assert caller.outcome == "answered"


@pytest.mark.parametrize(("busy", "mine"), [((1, 2), 5), ((1, 2), 3), ((2, 3), 5), ((1,), 5)])
def test_what_busy_models_of_a_better_priority_cost_is_forecast(
    world_of: WorldOf, model: ModelOf, busy: tuple[int, ...], mine: int
) -> None:
    """LANE-06, LANE-08: two that replace each other pass the others until these have aged; callers are told so."""
    lanes = {"chat": lane("chat", WorkClass.INTERACTIVE, 120_000)}
    models = [model(f"p{priority}", priority=priority) for priority in (*busy, mine)]
    world = world_of(*models, load_ms=1_000, lanes=lanes, known_service_ms=300)

    def loop(name: str) -> None:
        def again(_: object = None) -> None:
            world.at(world.now + 5, lambda: world.arrive(name, 300, lane="chat", then=again))

        again()

    for priority in busy:
        loop(f"p{priority}")
    world.run(20_000)
    caller = world.arrive(f"p{mine}", 300, lane="chat")
    promised = caller.forecast_ms
    world.run(150_000)
    assert caller.started_at is not None and not world.judge.broken
    kept = caller.started_at - 20_000
    assert kept / 1.25 <= promised <= kept * 1.25
