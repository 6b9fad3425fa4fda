"""A config that changes while models load, drain, stop and are waited for."""

import time
from dataclasses import fields, replace
from typing import Any, cast

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import BackgroundTask, Catalog, EngineRules, Lane, Model, RequestRules, Tier, WorkClass
from watchbill.config.models import ModelTable
from watchbill.core import messages as m
from watchbill.core.reconfigure import EFFECTS, SEEN_BY, Effect, effect_of
from watchbill.core.running import LINGER_LIMIT_MS
from watchbill.core.stages import Stage
from watchbill.runtime.explain import explain
from watchbill.runtime.views import status_view
from watchbill.simulate.callers import Faults
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.world import World
from watchbill.steps import at_once
from watchbill.units import Bytes, Millis


def without(world: World, *names: str) -> Catalog:
    """The world's catalog without some models."""
    kept = {name: model for name, model in world.catalog.models.items() if name not in names}
    return replace(world.catalog, models=kept)


def with_(world: World, *models: Model) -> Catalog:
    """The world's catalog with these definitions."""
    return replace(world.catalog, models={**world.catalog.models, **{m.name: m for m in models}})


def ended(world: World) -> dict[str, int]:
    """How often each outcome happened."""
    found: dict[str, int] = {}
    for caller in world.callers.values():
        found[caller.outcome] = found.get(caller.outcome, 0) + 1
    return found


# ------------------------------------------------------------------ removed and put back


@pytest.mark.parametrize("stage", [Stage.LOADING, Stage.READY, Stage.DRAINING, Stage.STOPPING])
def test_a_model_that_is_put_back_before_its_process_is_gone_answers_again(
    world_of: WorldOf, model: ModelOf, stage: Stage
) -> None:
    """LANE-04: an editor that saves twice. No request outlives its bound, whatever happens to its model."""
    world = world_of(model("A"), model("B", 1))
    whole = world.catalog
    world.arrive("A", 8_000, lane="chat")
    if stage is not Stage.LOADING:
        world.run(4_000)
        if stage is Stage.STOPPING:
            world.leave(next(iter(world.callers.values())))
    if stage is Stage.DRAINING:
        world.feed(m.EvictAsked(1, "A"))
    world.reload(without(world, "A"))
    world.run(world.now + 50)
    world.reload(whole)
    late = world.arrive("A", 300, lane="chat")
    view = explain(world.core, late.request, int(world.now))
    assert view["model"] == "A"
    world.run(world.now + 61_000)
    assert late.outcome == "answered"
    assert not world.open
    assert not world.judge.broken


def test_a_request_that_is_cut_on_a_removed_model_is_told(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: a request whose engine dies goes back to its line; where the model is gone it is told at once."""
    world = world_of(model("A"), model("B", 1))
    world.mute = True
    running = world.arrive("A", 8_000, lane="chat")
    world.run(4_000)
    assert running.state == "running"
    world.reload(without(world, "A"))
    world._die(world.engines["A"], world.engines["A"].attempt)
    world.run(world.now + 1_000)
    assert running.outcome == "model_not_found"
    assert "A" not in world.core.state.models
    assert not world.judge.broken


def test_an_answer_that_has_begun_on_a_removed_model_is_finished(world_of: WorldOf, model: ModelOf) -> None:
    """RES-12, LANE-04: background work stops at a boundary to be continued; on a removed model nothing continues it."""
    world = world_of(model("A"), model("B", 1))
    running = world.arrive("A", 8_000, lane="batch")
    world.run(4_000)
    assert running.state == "running"
    world.reload(without(world, "A"))
    world.run(world.now + 20_000)
    assert running.outcome == "answered"
    assert "A" not in world.core.state.models
    assert not world.judge.broken


def test_a_shared_model_that_is_removed_under_a_request_keeps_the_time_limit(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-04: what runs on a server of somebody else is cut at its timeout, though its model is gone."""
    far = Model("far", "far", devices=(), shared=True)
    lanes = {"chat": Lane("chat", timeout_ms=Millis(10_000))}
    world = world_of(model("A"), lanes=lanes)
    engines = {**world.catalog.engines, "far": EngineRules("far", "remote", shared=True)}
    world.reload(replace(with_(world, far), engines=engines), {"far": TrueModel("far", 0, {})})
    running = world.arrive("far", 500_000, lane="chat")
    world.run(1_000)
    world.reload(without(world, "far"))
    world.run(30_000)
    assert running.outcome == "run_timeout"
    assert "far" not in world.core.state.models
    assert not world.judge.broken


def test_a_shared_model_that_is_put_back_counts_what_its_server_still_works_on(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-09: one at a time is the server's truth; it goes on with an answer whose caller left before the reload."""
    far = Model("far", "far", devices=(), shared=True, concurrency=1)
    world = world_of(model("A"), lanes={"chat": Lane("chat")}, faults=Faults(lingers=1.0))
    engines = {**world.catalog.engines, "far": EngineRules("far", "remote", shared=True)}
    with_far = replace(with_(world, far), engines=engines)
    world.reload(with_far, {"far": TrueModel("far", 0, {})})
    left = world.arrive("far", 500_000, lane="chat")
    world.run(1_000)
    world.leave(left)
    world.reload(without(world, "far"))
    world.run(1_010)
    world.reload(with_far)
    later = world.arrive("far", 500, lane="chat")
    assert world.engines["far"].lingering and later.state == "waiting"
    world.run(world.now + LINGER_LIMIT_MS + 5_000)
    assert later.outcome == "answered"
    assert not world.judge.broken


def test_a_request_ends_though_its_lane_was_removed(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: max_wait is a promise to the request, not to the lane."""
    world = world_of(model("A"), model("B"))
    world.arrive("A", 400_000, lane="chat")
    world.run(4_000)
    waiting = world.arrive("A", 300, lane="chat")
    lanes = {"batch": world.catalog.lanes["batch"]}
    world.reload(replace(world.catalog, lanes=lanes))
    shown = at_once(status_view(world.core.state, {}, int(world.now)))["lanes"]
    assert cast(dict[str, Any], shown)["chat"]["queued"] == 1  # it is still there for people to see
    world.run(world.now + 61_000)
    assert waiting.outcome == "wait_exceeded"
    world.run(1_000_000)
    assert not world.open
    assert not world.judge.broken


def test_a_renamed_model_leaves_under_its_old_name_and_loads_under_its_new_one(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-04: both names need the memory; the old one has to be gone first."""
    world = world_of(model("A"))
    old = world.arrive("A", 2_000, lane="chat")
    world.run(3_500)
    waiting = world.arrive("A", 2_000, lane="chat")
    world.reload(replace(world.catalog, models={"Z": model("Z")}), {"Z": replace(world.truth["A"], name="Z")})
    new = world.arrive("Z", 300, lane="chat")
    world.run(60_000)
    assert (old.outcome, waiting.outcome, new.outcome) == ("answered", "model_not_found", "answered")
    assert set(world.core.state.models) == {"Z"}
    assert not world.judge.broken


# ------------------------------------------------------------------ what a changed key does


def changed(model: Model) -> dict[str, Model]:
    """One other definition of a model for every field that it has."""
    other: dict[str, object] = {
        "engine": "other", "source": "/m/other.gguf", "served_as": "big",
        "memory": {"gpu:0": Bytes(2 * 10**9)}, "devices": ("ram",),
        "aliases": ("alias",), "permanent": True, "shared": True, "priority": 1, "concurrency": 7, "inertia": 9.0,
        "idle_ms": Millis(200_000), "stays_if_room": True,
        "group": "heavy", "family": "tiers", "family_rank": 2, "exact": True,
        "context": 99, "threads": 3, "mmap": True, "embedding": True, "prompt_cache": Bytes(5),
        "load_timeout_ms": Millis(9_000), "command": "sleep", "health": "/up", "stop": "SIGINT", "probe": "none",
        "env": {"A": "b"}, "arguments": ("--x",), "script": {"tokens": 1}, "background": BackgroundTask("hi"),
        "capture": "spool", "sleep_ms": Millis(9_000), "sleeps_when_told": True, "asleep": {"gpu:0": Bytes(1)},
        "quota": Bytes(9 * 10**9), "url": "http://127.0.0.1:1", "unit": "x.service", "image": "x",
        "writes_here": False, "private": True, "where": Tier.BURST, "site": "box", "copy_of": "B",
        "is_placed": False,
        "abilities": frozenset({"tools"}),
        "requests": RequestRules({"seed": 1}),
    }  # fmt: skip
    return {name: replace(model, **{name: value}) for name, value in other.items()}  # type: ignore[arg-type]


#: Keys of the config whose names in the catalog differ.
FIELDS_OF = {
    "idle": ("idle_ms", "stays_if_room"),
    "sleep": ("sleep_ms",),
    "load_timeout": ("load_timeout_ms",),
    "tier": ("family_rank",),
    **dict.fromkeys(("set_fields", "drop_fields", "set_fields_by_name"), ("requests",)),
}


def test_every_key_of_a_model_says_what_its_change_does() -> None:
    """RES-09: a new key cannot be forgotten; the table names each of them, and nothing that does not exist."""
    assert set(EFFECTS) == {field.name for field in fields(Model)}
    of_keys = {name for key in ModelTable.model_fields for name in FIELDS_OF.get(key, (key,))}
    assert of_keys <= set(EFFECTS)
    # Copied from the engine, or from a tier.
    assert set(EFFECTS) - of_keys == {
        "name",
        "shared",
        "sleeps_when_told",
        "writes_here",
        "where",
        "site",
        "copy_of",
        "is_placed",
    }
    assert set(SEEN_BY) <= set(EFFECTS)


def test_a_changed_memory_counts_at_once_and_unloads_nothing_that_fits(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-04, RES-09: the ledger counts the new figure; the process has not changed."""
    world = world_of(model("A", 4), model("B", 16))
    world.arrive("A", 300, lane="chat")
    world.run(5_000)
    larger = replace(world.catalog.models["A"], memory={"gpu:0": Bytes(10 * 10**9)})
    world.known["A"] = m.Knowledge(m.Footprint(dict(larger.memory), dict(larger.memory)))
    world.reload(with_(world, larger))
    state = world.core.state
    assert state.models["A"].stage is Stage.READY and state.models["A"].needs["gpu:0"] == 10 * 10**9
    assert world.arrive("A", 300, lane="chat").state == "running"
    world.arrive("B", 300, lane="chat")  # 10 + 16 of 24 GB: they do not fit beside each other any more
    world.run(20_000)
    assert state.models["A"].stage is Stage.ABSENT and not world.judge.broken


@pytest.mark.parametrize("field", sorted(set(EFFECTS) - {"name"}))
def test_a_changed_key_restarts_a_warm_model_only_where_its_process_would_differ(
    world_of: WorldOf, model: ModelOf, field: str
) -> None:
    """RES-09: changing a priority must not unload a model."""
    world = world_of(model("A", 1), model("B", 1))
    first = world.arrive("A", 300, lane="chat")
    world.run(5_000)
    assert first.outcome == "answered"
    before, other = world.catalog.models["A"], changed(world.catalog.models["A"])[field]
    catalog = with_(world, other)
    effect = effect_of(before, other, catalog)
    engines = {**catalog.engines, "other": EngineRules("other", "process")}
    world.reload(replace(catalog, engines=engines))
    there = world.core.state.models["A"]
    restarts = effect is Effect.RESTART
    assert (there.stage is not Stage.READY) == restarts
    assert (EFFECTS[field] is Effect.RESTART) == restarts or field in SEEN_BY
    if not restarts:
        assert there.spec == other
        world.run(world.now + 1)
        assert world.arrive("A", 300, lane="chat").state == "running"


@pytest.mark.parametrize(
    ("field", "driver", "effect"),
    [
        ("concurrency", "llamacpp", Effect.RESTART), ("concurrency", "process", Effect.AT_ONCE),
        ("concurrency", "ollama", Effect.AT_ONCE), ("sleep_ms", "llamacpp", Effect.RESTART),
        ("sleep_ms", "process", Effect.AT_ONCE), ("priority", "llamacpp", Effect.AT_ONCE),
    ],
)  # fmt: skip
def test_a_key_that_the_engine_does_not_see_holds_at_once(
    model: ModelOf, field: str, driver: str, effect: Effect
) -> None:
    """RES-10: slots are llama.cpp's, and only a number of ours where the engine was never told."""
    old = replace(model("A"), engine="e")
    catalog = Catalog({}, {"e": EngineRules("e", driver)}, {})
    assert effect_of(old, changed(old)[field], catalog) is effect


def test_new_bounds_hold_for_a_model_that_stays_warm(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: the idle time that was changed is the one that counts."""
    world = world_of(replace(model("A", 1), idle_ms=Millis(300_000)))
    world.arrive("A", 300, lane="chat")
    world.run(5_000)
    world.reload(with_(world, replace(world.catalog.models["A"], idle_ms=Millis(10_000))))
    world.run(12_000)
    assert world.core.state.models["A"].stage is Stage.READY
    world.run(15_000)
    assert world.core.state.models["A"].stage is Stage.ABSENT
    assert not world.judge.broken


def test_a_model_that_waits_for_room_takes_a_new_definition_over_at_once(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-09, RES-11: its plan was dropped, and made again with the old definition, in every step of the drain."""
    world = world_of(model("A", 16), model("B", 16))
    world.arrive("A", 40_000, lane="chat")
    world.run(5_000)
    waiting = world.arrive("B", 300, lane="chat")
    while world.core.state.models["B"].stage is not Stage.PLANNED:
        world.run(world.now + 100)
    assert world.core.state.models["A"].stage is Stage.DRAINING
    other = replace(world.catalog.models["B"], threads=2)
    world.reload(with_(world, other))
    for _ in range(5):
        world.run(world.now + 100)
        world.feed(m.Tick())
    there = world.core.state.models["B"]
    assert (there.spec, there.stage) == (other, Stage.PLANNED)
    assert sum(note.event == "unplan" for _, note in world.journal) == 1
    world.run(60_000)
    assert waiting.outcome == "answered"
    assert not world.judge.broken


def test_of_two_warm_models_that_are_put_into_one_group_one_leaves(world_of: WorldOf, model: ModelOf) -> None:
    """RES-08: the group holds from the reload on; the model that is not used leaves, the other stays warm."""
    world = world_of(model("A", 1), model("B", 1))
    for name in "AB":
        world.arrive(name, 300, lane="chat")
    world.run(9_000)
    models = [replace(world.catalog.models[name], group="heavy") for name in "AB"]
    world.reload(with_(world, *models))
    world.run(world.now + 2_000)
    stages = sorted(s.stage.value for s in world.core.state.models.values())
    assert stages == ["absent", "ready"]
    assert not world.judge.broken


def test_work_class_is_kept_by_a_request_whose_lane_changes(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-02: what waits was promised the class of the lane as it was."""
    world = world_of(model("A"))
    world.arrive("A", 20_000, lane="chat")
    world.run(4_000)
    waiting = world.arrive("A", 300, lane="chat")
    lanes = {**world.catalog.lanes, "chat": Lane("chat", WorkClass.BACKGROUND, max_wait_ms=Millis(60_000))}
    world.reload(replace(world.catalog, lanes=lanes))
    world.run(60_000)
    assert waiting.outcome == "answered"


def test_a_reload_costs_the_number_of_models_and_not_its_square(world_of: WorldOf, model: ModelOf) -> None:
    """R42: 10,000 models come, change and go; going through all of them for each takes minutes."""
    world = world_of(model("A"))
    whole = {f"m{n}": replace(world.catalog.models["A"], name=f"m{n}") for n in range(10_000)}
    changed = {name: replace(each, engine="B") for name, each in whole.items()}
    engines = {**world.catalog.engines, "B": EngineRules("B", "process")}
    began = time.process_time()  # of ours alone: the machine may be busy
    for models in (whole, changed, {}):
        catalog = replace(world.catalog, models={**world.catalog.models, **models}, engines=engines)
        world.core.step(m.Reconfigured(catalog, {}), int(world.now))
        at_once(status_view(world.core.state, {}, int(world.now)))
        assert len(world.core.state.models) == 1 + len(models)
    assert time.process_time() - began < 30


@pytest.mark.parametrize("lane", ["chat", "batch"])
def test_a_running_answer_of_a_renamed_model_is_finished(
    world_of: WorldOf, model: ModelOf, lane: str
) -> None:
    """LANE-04: a whole answer, of which nothing is known before its end, is not cut and refused with 404."""
    world = world_of(model("A"))
    world.mute = True
    caller = world.arrive("A", 8_000, lane=lane)
    world.run(5_000)
    assert caller.state == "running"
    renamed = replace(world.catalog.models["A"], name="B")
    world.reload(replace(world.catalog, models={"B": renamed}), {"B": replace(world.truth["A"], name="B")})
    world.run(60_000)
    assert caller.outcome == "answered" and caller.turns == 1
    later = world.arrive("B", 300, lane=lane)
    world.run(80_000)
    assert later.outcome == "answered" and not world.judge.broken


# ------------------------------------------------------------------ lanes


def with_max_wait(world: World, max_wait_ms: int) -> Catalog:
    lane = replace(world.catalog.lanes["chat"], max_wait_ms=Millis(max_wait_ms))
    return replace(world.catalog, lanes={**world.catalog.lanes, "chat": lane})


@pytest.mark.parametrize(
    ("reload_at", "max_wait_ms", "ends_at"), [(10_000, 20_000, 25_000), (40_000, 20_000, 40_000)]
)
def test_a_shorter_max_wait_holds_for_those_that_wait(
    world_of: WorldOf, model: ModelOf, reload_at: int, max_wait_ms: int, ends_at: int
) -> None:
    """LANE-04: counted from their arrival, and never before the change. The request that runs goes on."""
    world = world_of(model("A"), model("B"))
    running = world.arrive("A", 100_000, lane="chat")
    world.run(5_000)
    waiting = world.arrive("A", 500, lane="chat")
    world.run(reload_at)
    assert (running.state, waiting.state) == ("running", "waiting")
    world.reload(with_max_wait(world, max_wait_ms))
    world.run(ends_at + 50)
    assert waiting.outcome == m.Refusal.WAIT_EXCEEDED
    assert waiting.ended_at is not None and abs(waiting.ended_at - ends_at) <= 5
    assert running.state == "running"
    assert not world.judge.broken


def test_a_longer_max_wait_holds_for_new_requests(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: those that wait were promised the old one."""
    world = world_of(model("A"), model("B"))
    world.arrive("A", 300_000, lane="chat")
    world.run(5_000)
    waiting = world.arrive("A", 500, lane="chat")
    world.reload(with_max_wait(world, 200_000))
    late = world.arrive("A", 500, lane="chat")
    world.run(66_000)
    assert waiting.outcome == m.Refusal.WAIT_EXCEEDED
    assert late.state == "waiting"


def test_a_refusal_names_the_bound_that_the_request_came_with(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: a max_wait that went down and up again is no deadline of the caller."""
    world = world_of(model("A"), model("B"))
    world.arrive("A", 300_000, lane="chat")
    world.run(5_000)
    world.arrive("A", 500, lane="chat")
    world.reload(with_max_wait(world, 20_000))
    world.arrive("A", 500, lane="chat")
    world.reload(with_max_wait(world, 200_000))
    world.run(30_000)
    expired = [n.reason for _, n in world.journal if n.event is m.JournalEvent.EXPIRE]
    assert expired == ["the max_wait of lane chat"] * 2
