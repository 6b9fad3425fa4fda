"""What `evict` says is true: who is told, what stays out, what comes back and for whom."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf, stage
from watchbill.catalog import WorkClass
from watchbill.core import messages as m
from watchbill.core.candidate import HeldTurn
from watchbill.core.stages import Stage
from watchbill.simulate.callers import Caller, Faults
from watchbill.simulate.world import World
from watchbill.units import Millis


def said(world: World) -> list[str]:
    return [reply.text for reply in world.replies]


def loads(world: World, name: str) -> int:
    return sum(note.event == "load" and note.model == name for _, note in world.journal)


def coming(world: World, name: str, stage_wanted: Stage) -> Caller:
    """Somebody waits for a model, which is planned (another one loads first, RES-24) or loads."""
    if stage_wanted is Stage.PLANNED:
        world.arrive("first", 500, lane="chat")
        world.run(world.now + 500)
    caller = world.arrive(name, 500, lane="chat")
    world.run(world.now + 1_500)
    assert stage(world, name) is stage_wanted
    return caller


both = pytest.mark.parametrize("on_its_way", [Stage.PLANNED, Stage.LOADING])


@both
def test_a_load_by_hand_that_is_evicted_by_hand_is_told_and_the_model_stays_out(
    world_of: WorldOf, model: ModelOf, on_its_way: Stage
) -> None:
    """RES-02: who wanted nothing but the load is refused; `evict` does not say "out" of a model that comes again."""
    world = world_of(model("A"), model("first", 4))
    load = coming(world, "A", on_its_way)
    begun = loads(world, "A")
    world.feed(m.EvictAsked(1, "A", loads=(load.request.id,)))
    assert (load.state, load.outcome) == ("ended", "preempted")
    world.run(60_000)
    assert (stage(world, "A"), loads(world, "A")) == (Stage.ABSENT, begun)
    assert "wait" not in said(world)[-1]
    assert not world.judge.broken


def test_a_refused_eviction_takes_nobodys_load_away(world_of: WorldOf, model: ModelOf) -> None:
    """RES-02: a permanent model stays without --force, and so does who waits for it."""
    world = world_of(model("P", permanent=True))
    load = world.arrive("P", 0, lane="chat")
    world.run(1_500)
    world.feed(m.EvictAsked(1, "P", loads=(load.request.id,)))
    world.run(20_000)
    assert ([reply.ok for reply in world.replies], load.outcome) == ([False], "answered")


@both
def test_who_waits_for_an_answer_keeps_the_place_and_evict_says_that_the_model_comes_back(
    world_of: WorldOf, model: ModelOf, on_its_way: Stage
) -> None:
    """RES-12: callers lose nothing by an eviction; the operator is told how many will bring the model back."""
    world = world_of(model("A", 8), model("B", 4), model("first", 4))
    callers = [coming(world, "A", on_its_way)]
    callers.append(world.arrive("B", 500, lane="chat", companions=("A",)))
    world.feed(m.EvictAsked(1, "A"))
    world.run(60_000)
    assert [caller.outcome for caller in callers] == ["answered", "answered"]
    (text,) = said(world)
    assert "2 requests wait for it and bring it back" in text


def test_what_was_cut_before_its_first_byte_is_counted_among_those_who_wait(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-12: it goes back to its lane, and brings the model back."""
    world = world_of(model("A"))
    world.arrive("A", 60_000, lane="chat")
    world.run(3_001)
    assert stage(world, "A") is Stage.READY
    world.feed(m.EvictAsked(1, "A"))
    world.run(5_000)
    assert "1 request waits for it and brings it back" in said(world)[0]


@pytest.mark.parametrize("foreign_gb", [0, 22])
def test_a_permanent_model_that_is_on_its_way_in_stays_out_when_it_is_evicted_by_force(
    world_of: WorldOf, model: ModelOf, foreign_gb: int
) -> None:
    """RES-02: planned, or not there for lack of memory: by force it returns for a request only, not by itself."""
    world = world_of(model("first", permanent=True), model("late", 4, permanent=True))
    world.foreign["gpu:0"] = foreign_gb * 10**9
    world.run(1_500)
    assert stage(world, "late") is (Stage.ABSENT if foreign_gb else Stage.PLANNED)
    world.feed(m.EvictAsked(1, "late", force=True))
    world.foreign["gpu:0"] = 0
    world.run(60_000)
    assert (stage(world, "late"), stage(world, "first"), loads(world, "late")) == (
        Stage.ABSENT,
        Stage.READY,
        0,
    )
    caller = world.arrive("late", 500, lane="chat")
    world.run(90_000)
    assert caller.outcome == "answered"


def test_nobody_comes_back_for_who_gave_up_waiting(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: a turn that is kept for callers who are gone does not bring an evicted model back."""
    world = world_of(model("A"), model("B"))
    world.arrive("B", 500, lane="chat")
    world.run(5_000)
    state = world.core.state
    state.hold_turn(state.models["A"], HeldTurn(20_000, WorkClass.INTERACTIVE))
    world.feed(m.EvictAsked(1, "A"))
    world.run(60_000)
    assert (said(world), loads(world, "A")) == (["A is not in memory"], 0)


@pytest.mark.parametrize(
    ("moment", "seen"),
    [(5_400, Stage.READY), (5_550, Stage.STOPPING), (7_000, Stage.ASLEEP), (8_500, Stage.PLANNED)],
)
def test_a_model_that_is_about_to_sleep_or_to_wake_leaves_all_the_same(
    world_of: WorldOf, model: ModelOf, moment: int, seen: Stage
) -> None:
    """RES-12: asleep is not out of memory; who asks for an eviction meanwhile is not left waiting."""
    sleeper = model("A", 8, sleep_ms=Millis(2_000), sleeps_when_told=True)
    world = world_of(sleeper, model("first", 4))
    world.arrive("A", 500, lane="chat")
    world.at(8_000, lambda: world.arrive("first", 500, lane="chat"))
    world.at(8_050, lambda: world.arrive("A", 500, lane="chat"))
    world.run(moment)
    assert stage(world, "A") is seen
    world.feed(m.EvictAsked(1, "A"))
    world.run(moment + 1_000)
    assert said(world)[0].startswith("A was unloaded")
    assert [note.event for _, note in world.journal if note.model == "A"].count("stopped") == 1


def test_an_eviction_is_answered_when_the_config_drops_the_model_meanwhile(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-12: the model is gone, and so is its name."""
    world = world_of(model("A"), model("B", 4))
    world.arrive("A", 20_000, lane="chat")
    world.run(5_000)
    world.feed(m.EvictAsked(1, "A"))
    catalog = replace(world.catalog, models={"B": world.catalog.models["B"]})
    world.feed(m.Reconfigured(catalog, {}))
    world.run(60_000)
    assert "A" not in world.core.state.models
    assert said(world) == ["A was unloaded"]


def test_an_engine_that_does_not_go_is_not_said_to_be_gone(world_of: WorldOf, model: ModelOf) -> None:
    """RES-12: its memory is counted as foreign use then, and whoever asked for it hears why."""
    world = world_of(model("A"), faults=Faults(answer_lost=1.0))
    world.arrive("A", 500, lane="chat")
    world.run(10_000)
    world.feed(m.EvictAsked(1, "A"))
    world.run(120_000)
    assert world.replies == [m.Reply(1, False, "A: its engine could not be stopped")]


def test_a_model_that_was_leaving_for_another_leaves_although_nobody_wants_that_one_any_more(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-02: a door that is opened again because a plan was dropped is closed for the operator who still waits."""
    world = world_of(model("A"), model("B"))
    served = world.arrive("A", 100_000, lane="chat")
    world.run(14_000)
    other = world.arrive("B", 500, lane="chat")
    while stage(world, "A") is Stage.READY and world.now < 100_000:
        world.run(world.now + 100)
    assert (stage(world, "A"), stage(world, "B")) == (Stage.DRAINING, Stage.PLANNED)
    world.feed(m.EvictAsked(1, "A"))
    world.leave(other)
    world.run(200_000)
    assert (served.outcome, stage(world, "A"), said(world)) == (
        "answered",
        Stage.ABSENT,
        ["A was unloaded"],
    )
