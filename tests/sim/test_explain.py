"""`explain` says what would happen; then it happens. In 200 states that nobody designed."""

import dataclasses
import random
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import WorkClass
from watchbill.core import messages as m
from watchbill.core.stages import Stage
from watchbill.runtime.duplicate import duplicate, duplicate_steps
from watchbill.runtime.explain import explain
from watchbill.runtime.limits import COPY_TRIES_MAX
from watchbill.runtime.views import Known, request_view
from watchbill.simulate.fuzz import TRAFFIC_MS, random_world
from watchbill.simulate.world import World
from watchbill.steps import at_once

WORLDS, LOOKS = 40, 8  # 320 states
PARTS = 4
FIGURES = {
    "pressure_per_s",
    "momentum_per_s",
    "inertia",
    "expected_ms",
    "load_ms",
    "service_ms",
    "memory",
    "queued",
}


def asked(world: World, model: str) -> m.Request:
    lane = world.catalog.lane_for("interactive")  # a reload may have removed it
    priority = lane.priority or world.catalog.models[model].priority
    return m.Request(
        "explain",
        model,
        lane.name,
        lane.work_class,
        int(world.now),
        lane.max_wait_ms,
        lane.timeout_ms,
        priority,
    )


def leaving(world: World) -> dict[str, str]:
    """Who is on the way out, and for whom."""
    return {s.name: s.leaving_for for s in world.core.state.in_stage(Stage.DRAINING, Stage.STOPPING)}


def compare(world: World, model: str) -> str:
    """Asks, acts, and compares. Gives the verdict."""
    before, untouched = leaving(world), duplicate(world.core).step(m.Tick(), int(world.now))
    said = explain(world.core, asked(world, model), int(world.now))
    assert duplicate(world.core).step(m.Tick(), int(world.now)) == untouched, "asking changed something"
    assert said.keys() >= FIGURES

    told = len(world.journal)
    caller = world.arrive(model, 1_000, lane="interactive")
    if world.core.state.disk_asked_at is not None:  # explained for a disk that is as it was last seen
        world.feed(m.DiskSeen(world.core.state.disk_fault))
    refused = caller.outcome if caller.state == "ended" else ""
    planned = any(n.event == "plan" and n.model == caller.served_by for _, n in world.journal[told:])
    # A model that leaves for no other one has no target, and a refused request no model.
    left = [
        n for n, target in leaving(world).items() if target and target == caller.served_by and n not in before
    ]
    assert said["served_by"] == (caller.served_by or None), said
    assert said["leaving"] == sorted(left), said
    if refused:
        assert said["verdict"] == refused, said
    elif caller.state == "running":
        assert (said["verdict"], said["expected_ms"]) == ("starts now", caller.forecast_ms), said
    else:
        expected = ("these leave" if said["leaving"] else "fits") if planned else "waits"
        assert (said["verdict"], said["expected_ms"]) == (expected, caller.forecast_ms), said
    return str(said["verdict"])


@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_explained_is_what_happens(part: int) -> None:
    """RES-11: verdict, who serves, who leaves and the forecast are the same; asking changed nothing; pressure, momentum
    and inertia are there, so that the decision can be checked by hand."""
    verdicts: set[str] = set()
    for seed in range(part * WORLDS // PARTS, (part + 1) * WORLDS // PARTS):
        draw = random.Random(f"explain {seed}")
        world = random_world(seed, faults=seed % 3 != 0)
        world.kept = 0.0  # what is explained may be served anywhere
        for moment in sorted(draw.uniform(5_000, TRAFFIC_MS) for _ in range(LOOKS)):
            world.run(moment)
            verdicts.add(compare(world, draw.choice(sorted(world.catalog.models))))
    assert {"starts now", "waits", "these leave"} <= verdicts, verdicts


def test_no_forecast_is_made_while_a_device_is_lent(world_of: WorldOf, model: ModelOf) -> None:
    """RES-14, RES-26: nobody knows when it comes back; "in 0 s" would be a promise."""
    world = world_of(model("A"), model("B"))
    world.run(1_000)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    world.run(3_000)
    said = explain(
        world.core, m.Request("x", "A", "chat", WorkClass.INTERACTIVE, 3_000, 60_000, 60_000), 3_000
    )
    assert (said["verdict"], said["expected_ms"]) == ("waits", None)
    assert "until gpu:0 is back from maintenance" in str(said["reason"])
    caller = world.arrive("A", 300, lane="chat")
    assert caller.forecast_ms is None
    view = request_view(
        world.core, caller.request.id, {caller.request.id: Known(None, waits_there=False)}, 3_000
    )
    assert view is not None and (view["starts_in_ms"], view["forecast_ms"]) == (None, None)
    world.feed(m.MaintenanceAsked(2, "gpu:0", False, "drivers"))
    world.run(20_000)
    assert caller.outcome == "answered"


def test_a_model_that_waits_with_nothing_resident_is_not_said_to_be_worth_less(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-26: the reason is the memory that others use, or the failed load, with its figures."""
    world = world_of(model("A"))
    world.foreign["gpu:0"] = 20 * 10**9
    world.run(5_000)
    request = m.Request("x", "A", "chat", WorkClass.INTERACTIVE, 5_000, 60_000, 60_000)
    reason = str(explain(world.core, request, 5_000)["reason"])
    assert "16 GB of gpu:0" in reason and "resident" not in reason
    world.foreign["gpu:0"] = 0
    world.run(10_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_100)
    world.feed(m.LoadFailed("A", world.core.state.models["A"].attempt, "the port is taken"))
    world.engines["A"].power_off()
    said = explain(world.core, replace(request, arrived_at=10_200), 10_200)
    assert "tried again in" in str(said["reason"]) and "the port is taken" in str(said["reason"])


def test_a_copy_in_steps_is_of_one_moment(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: a model at a time, so that a thousand of them hold up nobody; an event in between is in it whole."""
    world = world_of(*(model(f"M{at}") for at in range(40)))
    world.run(1_000)
    steps = duplicate_steps(world.core)
    for at in (3, 30):
        next(steps)
        world.arrive(f"M{at}", 300, lane="chat")
    assert sum(1 for _ in steps) >= 40  # begun anew, and then a model at a time
    copies = [at_once(duplicate_steps(world.core)), duplicate(world.core)]
    assert [len(s.line) for s in copies[0].state.managed] == [len(s.line) for s in world.core.state.managed]
    assert copies[0].step(m.Tick(), 1_500) == copies[1].step(m.Tick(), 1_500)


def test_a_copy_holds_a_definition_that_is_not_the_one_of_the_config(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-11: what was found for a model that a reload replaced in the same moment made `explain` fail with 500."""
    world = world_of(model("A"))
    world.core.state.models["A"].successor = dataclasses.replace(world.catalog.models["A"], threads=3)
    assert duplicate(world.core).state.models["A"].successor == world.core.state.models["A"].successor


def test_a_copy_holds_a_set_that_waits_since_before_a_reload(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: `explain` failed with 500 from a reload until no request with companions waited any more."""
    first = model("A", 8)
    first = dataclasses.replace(
        first, memory=MappingProxyType(dict(first.memory))
    )  # as the tables of a config
    world = world_of(first, model("B", 8))
    world.run(1_000)
    world.arrive("A", 300, lane="chat", companions=("B",))
    models = {**world.catalog.models, "A": dataclasses.replace(first, priority=1)}
    world.feed(m.Reconfigured(dataclasses.replace(world.catalog, models=models), {}))
    copy = duplicate(world.core).state
    assert list(copy.companion_sets) == ["A + B"]
    assert copy.companion_sets["A + B"].members == (copy.models["A"], copy.models["B"])
    assert type(copy.companion_sets) is type(world.core.state.companion_sets)


def test_a_copy_that_events_always_interrupt_is_made_at_once(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: a busy daemon explains itself, too."""
    world = world_of(*(model(f"M{at}") for at in range(40)))
    world.run(1_000)
    steps, count = duplicate_steps(world.core), 0
    for _ in steps:
        world.feed(m.Tick())
        count += 1
    assert count == COPY_TRIES_MAX
