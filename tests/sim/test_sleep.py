"""Asleep: a state with its own size and its own time to wake, in worlds where exactly one thing happens."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf, stage
from watchbill.catalog import Model
from watchbill.core import messages as m
from watchbill.core.residency import Move, Residency
from watchbill.core.stages import Stage
from watchbill.runtime.explain import explain
from watchbill.runtime.views import request_view, status_view
from watchbill.simulate.engine import Power
from watchbill.simulate.fuzz import random_world, run_out
from watchbill.simulate.world import World
from watchbill.steps import at_once
from watchbill.units import Bytes, Millis

GB = 10**9


def events(world: World, model: str) -> list[str]:
    return [n.event for _, n in world.journal if n.model == model]


def sleepy(world: World, keeps_gb: float = 0.5, wake_ms: float = 400) -> World:
    """The same world, where every model that sleeps keeps so much and wakes so fast."""
    for name, true in list(world.truth.items()):
        asleep = {device: int(keeps_gb * GB) for device in true.memory}
        world.truth = {**world.truth, name: replace(true, asleep=asleep, wake_ms=wake_ms)}
        world.engines[name].model = world.truth[name]
    return world


def told(model: ModelOf, name: str, size: float = 16, sleep_ms: int = 5_000, **more: object) -> Model:
    return model(name, size, sleep_ms=Millis(sleep_ms), sleeps_when_told=True, **more)


def test_an_idle_model_is_told_to_sleep_and_wakes_for_the_next_request(
    world_of: WorldOf, model: ModelOf
) -> None:
    """scheduler.md, asleep: its process stays, its memory is free for others, it is back in its waking time."""
    world = sleepy(world_of(told(model, "A")))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(12_000)
    assert (stage(world, "A"), world.engines["A"].power) == (Stage.ASLEEP, Power.ASLEEP)
    view = at_once(status_view(world.core.state, {}, int(world.now)))
    assert (view["models"]["A"]["state"], view["models"]["A"]["asleep"]) == ("asleep", GB // 2)  # type: ignore[index]
    assert view["devices"]["gpu:0"]["asleep"] == GB // 2  # type: ignore[index]
    caller = world.arrive("A", 500, lane="chat")
    world.run(20_000)
    assert (caller.outcome, caller.started_at) == ("answered", 12_400)
    assert (world.tally.loads, world.tally.wakings) == (1, 1)
    assert events(world, "A")[:8] == ["plan", "load", "loaded", "evict", "asleep", "plan", "wake", "awake"]
    assert world.core.state.models["A"].wake.ms == 400
    assert not world.judge.broken


def test_a_victim_sleeps_where_that_is_enough(world_of: WorldOf, model: ModelOf) -> None:
    """scheduler.md: a transition asks for the cheapest state that frees enough."""
    models = [told(model, "A", sleep_ms=600_000, asleep={"gpu:0": Bytes(GB // 2)}), model("B", 16)]
    world = sleepy(world_of(*models))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(30_000)
    world.arrive("B", 500, lane="chat")
    world.run(60_000)
    assert (stage(world, "A"), stage(world, "B")) == (Stage.ASLEEP, Stage.READY)
    back = world.arrive("A", 500, lane="chat")
    world.run(90_000)
    assert back.outcome == "answered"
    assert world.tally.loads_by_model == {"A": 1, "B": 1}
    assert not world.judge.broken


def test_a_victim_leaves_where_sleeping_is_not_enough(world_of: WorldOf, model: ModelOf) -> None:
    """The room must hold what the sleeper keeps, too."""
    models = [told(model, "A", sleep_ms=600_000, asleep={"gpu:0": Bytes(2 * GB)}), model("B", 23)]
    world = sleepy(world_of(*models), keeps_gb=2)
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(30_000)
    caller = world.arrive("B", 500, lane="chat")
    world.run(60_000)
    assert (stage(world, "A"), caller.outcome) == (Stage.ABSENT, "answered")
    assert "asleep" not in events(world, "A")


def test_a_sleeper_that_is_to_wake_for_one_set_gives_another_no_room(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-03, RES-13: what it holds asleep is a part of what was promised to it. Counted twice, a second set was
    planned beside the first in 2 GB that were not there, and dropped again in every step."""
    world = sleepy(world_of(told(model, "S", 8), model("A", 4), model("B", 14)), keeps_gb=2)
    world.run(1_000)
    world.arrive("S", 500, lane="chat")
    world.run(20_000)
    assert stage(world, "S") is Stage.ASLEEP
    first = world.arrive("A", 500, lane="chat", companions=("S",))
    assert (stage(world, "A"), stage(world, "S")) == (Stage.LOADING, Stage.PLANNED), "one load at a time"
    second = world.arrive("B", 500, lane="chat", companions=("S",))
    assert stage(world, "B") is Stage.ABSENT
    world.run(60_000)
    assert (first.outcome, second.outcome) == ("answered", "answered")
    assert "unplan" not in [str(note.event) for _, note in world.journal]
    assert not world.judge.broken


def test_a_sleeper_leaves_when_its_place_is_needed(world_of: WorldOf, model: ModelOf) -> None:
    """Asleep it holds a little, and even that can be had."""
    world = sleepy(world_of(told(model, "A"), model("B", 24)))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(12_000)
    assert stage(world, "A") is Stage.ASLEEP
    caller = world.arrive("B", 500, lane="chat")
    world.run(40_000)
    assert (stage(world, "A"), caller.outcome) == (Stage.ABSENT, "answered")


def test_an_engine_that_falls_asleep_by_itself_is_noticed(world_of: WorldOf, model: ModelOf) -> None:
    """llama.cpp's own timer: until it is seen asleep it counts as warm; then another model may have the memory, and no
    request reaches it before it was promised its own again."""
    world = sleepy(world_of(model("A", 16, sleep_ms=Millis(5_000)), model("B", 16)))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(13_000)
    assert stage(world, "A") is Stage.ASLEEP
    assert "its engine fell asleep by itself" in [str(n.reason) for _, n in world.journal]
    beside = world.arrive("B", 60_000, lane="chat")
    world.run(20_000)
    assert (beside.state, stage(world, "A")) == ("running", Stage.ASLEEP)
    caller = world.arrive("A", 500, lane="chat")
    world.run(30_000)
    assert (caller.state, world.engines["A"].power) == ("waiting", Power.ASLEEP)
    world.run(70_000)
    assert not world.judge.broken


def test_a_request_that_meets_an_unnoticed_sleeper_finds_its_memory(
    world_of: WorldOf, model: ModelOf
) -> None:
    """The ledger kept the warm commitment: the engine wakes with the request, and nothing is over the budget."""
    world = sleepy(world_of(model("A", 16, sleep_ms=Millis(5_000)), model("B", 16)))
    world.look_every_ms = 100_000
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(12_000)
    world.engines["A"].sleep()
    caller = world.arrive("A", 500, lane="chat")
    assert caller.state == "running"
    assert not world.judge.broken


def test_an_engine_that_somebody_else_woke_counts_in_full_again(world_of: WorldOf, model: ModelOf) -> None:
    """What the machine shows is believed: memory that was given away is taken back by who must leave."""
    world = sleepy(world_of(model("A", 16, sleep_ms=Millis(5_000))))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(13_000)
    engine = world.engines["A"]
    engine.power, engine.held, engine.used_at = Power.WARM, dict(engine.model.memory), world.now
    world.look()
    assert stage(world, "A") is Stage.READY


def test_what_can_happen_to_a_sleeper(world_of: WorldOf, model: ModelOf) -> None:
    """RES-14, RES-20: an eviction by hand, maintenance and a death end its sleep; its idle time does, too."""
    for end in ("evict", "maintenance", "death", "idle"):
        world = sleepy(world_of(told(model, "A", sleep_ms=2_000, idle_ms=Millis(20_000))))
        world.run(1_000)
        world.arrive("A", 500, lane="chat")
        world.run(8_000)
        assert stage(world, "A") is Stage.ASLEEP
        if end == "evict":
            world.feed(m.EvictAsked(1, "A"))
        elif end == "maintenance":
            world.feed(m.MaintenanceAsked(1, "gpu:0", True, "forge"))
        elif end == "death":
            world.engines["A"].power = Power.DEAD
            world.feed(m.Died("A", world.core.state.models["A"].attempt, "shot"))
        world.run(40_000 if end == "idle" else 12_000)
        assert (end, stage(world, "A"), world.engines["A"].held) == (end, Stage.ABSENT, {})
        assert not world.judge.broken


def test_waking_is_explained(world_of: WorldOf, model: ModelOf) -> None:
    """`explain` and the request itself say that it sleeps, and how long it takes to wake."""
    world = sleepy(world_of(told(model, "A"), model("B", 16)))
    world.run(1_000)
    for _ in range(2):
        world.arrive("A", 500, lane="chat")
        world.run(world.now + 12_000)
    lane = world.catalog.lanes["chat"]
    asked = m.Request("x", "A", "chat", lane.work_class, int(world.now), lane.max_wait_ms, lane.timeout_ms)
    said = explain(world.core, asked, int(world.now))
    assert (said["state"], said["verdict"], said["expected_ms"]) == ("asleep", "fits", 400)
    assert str(said["reason"]).startswith("A is asleep, wakes in about 0.4 s")
    world.arrive("B", 60_000, lane="chat")
    world.run(world.now + 8_000)
    caller = world.arrive("A", 500, lane="chat")
    view = request_view(world.core, caller.request.id, {}, int(world.now))
    assert view is not None
    assert "A is asleep, wakes in about 0.4 s" in str(view["reason"])


def test_a_set_wakes_its_sleepers(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: a sleeping companion is not warm; it is woken with the plan of its set."""
    world = sleepy(world_of(told(model, "A", 8), told(model, "B", 8, group="g")))
    world.run(1_000)
    world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(20_000)
    assert (stage(world, "A"), stage(world, "B")) == (Stage.ASLEEP, Stage.ASLEEP)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(30_000)
    assert (caller.outcome, world.tally.loads, world.tally.wakings) == ("answered", 2, 2)
    assert not world.judge.broken


# ------------------------------------------------------------------ random worlds


def test_random_worlds_really_sleep() -> None:
    """A law about sleepers means nothing where nobody sleeps."""
    worlds = [run_out(random_world(seed, faults=False)) for seed in range(32)]
    assert sum(world.tally.wakings for world in worlds) > 5
    assert {str(n.reason).split(":")[0] for w in worlds for _, n in w.journal if n.event == "asleep"} >= {
        "its engine fell asleep by itself",
        "idle; it is put to sleep",
    }
    assert not any(world.judge.broken for world in worlds)


def test_the_judge_sees_a_sleeper_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory given away while the engine may still be asked: the request that wakes it has nowhere to go."""
    original = Residency._see_sleep  # pyright: ignore[reportPrivateUsage]

    def see(self: Residency, model: object, reading: m.ModelReading, taken_at: int, now: int) -> None:
        original(self, model, reading, taken_at, now)  # type: ignore[arg-type]
        if model.stage is Stage.ASLEEP:  # type: ignore[attr-defined]
            model.measured = model.footprint.floor and dict.fromkeys(model.held, 1)  # type: ignore[attr-defined]
            self.enter(model, Move.WOKE, now)  # type: ignore[arg-type]
            model.needs = {}  # type: ignore[attr-defined]
            self._state.remeasured()  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(Residency, "_see_sleep", see)
    laws = {"an engine woke without its memory", "memory over the budget when a load was emitted"}
    for seed in range(60):
        world = run_out(random_world(seed, faults=False))
        if laws & world.judge.broken.keys():
            return
    pytest.fail("nobody saw it")
