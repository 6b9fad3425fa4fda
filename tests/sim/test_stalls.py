"""RES-20: answers that begin and stop in the middle are evidence that a simple question cannot outweigh for ever."""

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Lane, WorkClass
from watchbill.core import messages as m
from watchbill.core.reasons import Well
from watchbill.core.stages import ModelStatus
from watchbill.core.watchdog import STALL_RESET_PAUSE_MS, STALLED_MAX
from watchbill.runtime.explain import explain
from watchbill.simulate.callers import CallerOutcome, CallerState
from watchbill.simulate.fuzz import random_world
from watchbill.simulate.world import Faults, World
from watchbill.units import Millis

TIMEOUT_MS = 3_000
LANES = {
    "quick": Lane("quick", WorkClass.INTERACTIVE, max_wait_ms=Millis(6_000), timeout_ms=Millis(TIMEOUT_MS)),
    "long": Lane("long", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000), timeout_ms=Millis(600_000)),
}


def resets(world: World) -> list[m.Alert]:
    return [alert for alert in world.alerts if alert.kind == "watchdog"]


def warm(world: World) -> World:
    """A model in memory that has answered once and is idle."""
    world.arrive("A", 500, lane="quick")
    return world.run(10_000)


def ask_in_turn(world: World, count: int, work_ms: float = 1_000) -> None:
    """Sends one request after the other, each after the end of the one before."""
    for _ in range(count):
        caller = world.arrive("A", work_ms, lane="quick")
        while caller.state is not CallerState.ENDED:
            world.run(world.now + 100)


def stall(world: World) -> None:
    world.engines["A"].stalls = True


def test_a_model_whose_answers_stop_in_the_middle_is_reset_although_it_answers_simple_questions(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: seen: 50 of 50 answers failed in 150 s behind a green state; the probe passed five times."""
    world = warm(world_of(model("A"), lanes=LANES))
    stall(world)
    ask_in_turn(world, STALLED_MAX)
    world.run(world.now + 1_000)
    (alert,) = resets(world)
    assert "stopped in the middle" in alert.text
    ask_in_turn(world, 1)
    assert [c.outcome for c in world.callers.values()][-1] == "answered"
    assert not world.judge.broken


def test_the_journal_does_not_blame_requests_whose_answers_stopped_in_the_middle(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: an engine that took the request and began to answer cannot say that the request was at fault."""
    world = warm(world_of(model("A"), lanes=LANES))
    stall(world)
    ask_in_turn(world, STALLED_MAX - 1)
    (well,) = [note.reason for _, note in world.journal if isinstance(note.reason, Well)]
    assert well.stalled >= 1 and "at fault" not in str(well)


def test_a_model_whose_answers_stop_after_every_reset_is_quarantined(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a reset that changes nothing is not repeated without end, and not one caller was served since."""
    world = world_of(model("A"), lanes=LANES, faults=Faults(stalls=1.0))
    for _ in range(6 * STALLED_MAX):
        ask_in_turn(world, 1)
        if world.core.state.models["A"].status(int(world.now)) is ModelStatus.QUARANTINED:
            break
    assert len(resets(world)) == 3
    assert world.now < 300_000
    assert world.arrive("A", 500, lane="quick").outcome == "model_failed"


def test_one_caller_whose_answers_stop_takes_the_model_from_nobody_who_is_answered(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a good answer to another caller proves more than any number of bad ones before it."""
    world = warm(world_of(model("A"), lanes=LANES))
    for _ in range(10):
        stall(world)
        ask_in_turn(world, STALLED_MAX - 1)
        world.engines["A"].stalls = False
        ask_in_turn(world, 1, 300)
    assert not resets(world) and world.tally.loads == 1


def test_a_model_that_answers_in_between_is_reset_for_bursts_at_most_once_in_a_while(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: many bad requests at once look like a hang; each reset of a model that works costs its other callers."""
    world = warm(world_of(model("A"), lanes=LANES))
    began = world.now
    while world.now < began + 2 * STALL_RESET_PAUSE_MS:
        stall(world)
        ask_in_turn(world, STALLED_MAX)
        world.run(world.now + 5_000)
        world.engines["A"].stalls = False
        ask_in_turn(world, 1, 300)
    assert 1 <= len(resets(world)) <= 3
    assert not any(alert.kind == "quarantine" for alert in world.alerts)


def test_an_answer_that_still_comes_is_not_cut_because_others_stopped(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a long answer beside them may be well; its good end settles the question."""
    world = warm(world_of(model("A", concurrency=2), lanes=LANES))
    long = world.arrive("A", 200_000, lane="long")
    world.run(world.now + 1_000)
    parting = m.Parting(TIMEOUT_MS - 100, has_spoken=True)
    for _ in range(STALLED_MAX):
        if world.core.state.models["A"].is_suspect:
            break
        caller = world.arrive("A", 10**9, lane="quick")
        world.run(world.now + TIMEOUT_MS - 50)
        world._part(caller)
        world._fail(caller, "run_timeout", parting)
        world.run(world.now + 1_000)
    world.run(world.now + 400_000)
    assert long.outcome == "answered" and not resets(world)


def test_a_model_whose_answers_stop_does_not_await_one_that_may_take_an_hour(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: the work of a peer has an hour; it had stopped like all others, and meanwhile nobody was served."""
    lanes = {**LANES, "work": Lane("work", WorkClass.LEASED, timeout_ms=Millis(3_600_000))}
    world = warm(world_of(model("A", concurrency=2), lanes=lanes))
    stall(world)
    stopped = world.arrive("A", 20_000, lane="work")
    ask_in_turn(world, STALLED_MAX + 1)
    assert not resets(world), "it may still be well"
    world.run(world.now + 700_000)
    assert len(resets(world)) == 1
    assert stopped.outcome != CallerOutcome.OPEN
    ask_in_turn(world, 1)
    assert [c.outcome for c in world.callers.values()][-1] == "answered"
    assert not world.judge.broken


def test_callers_who_leave_an_answer_that_stopped_count_like_a_time_limit(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a client's own time limit ends the run before the lane's does."""
    world = warm(world_of(model("A"), lanes=LANES))
    world.core.state.models["A"].first.learn(300)  # the world tells no first bytes
    stall(world)
    for _ in range(STALLED_MAX):
        caller = world.arrive("A", 1_000, lane="long")
        while caller.state is CallerState.WAITING:
            world.run(world.now + 100)
        world.run(world.now + 8_000)
        world.leave(caller)
        world.run(world.now + 500)
    assert len(resets(world)) == 1


def test_explain_says_that_answers_stop_in_the_middle(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20, LANE-08: "ready" alone would be a green state in front of a hang."""
    world = warm(world_of(model("A"), lanes=LANES))
    stall(world)
    ask_in_turn(world, 4)
    request = m.Request("next", "A", "quick", WorkClass.INTERACTIVE, int(world.now), 6_000, TIMEOUT_MS)
    assert "stopped in the middle" in str(explain(world.core, request, int(world.now))["reason"])


@pytest.mark.parametrize("seed", range(6))
def test_in_random_worlds_no_model_stalls_unnoticed(seed: int) -> None:
    """RES-20: with every other fault beside it, no law is broken."""
    world = random_world(seed)
    world.faults = Faults(stalls=0.5, dies=0.05, answer_fails=0.02, until_ms=90_000)
    world.run(400_000)
    assert not world.judge.broken
