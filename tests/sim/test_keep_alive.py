"""How long a model stays after an answer, when the caller wished something."""

import msgspec
import pytest

from support.worlds import ModelOf, WorldOf, stage
from watchbill.core import messages as m
from watchbill.core.dispatch import KEEP_ALIVE_MAX_MS
from watchbill.core.stages import Stage
from watchbill.simulate.callers import Caller
from watchbill.simulate.world import World
from watchbill.units import Millis


def ask(world: World, model: str, keep_alive_ms: int | None, work_ms: float = 500) -> Caller:
    """Somebody asks a model and says how long it should stay."""
    rules = world.catalog.find_lane("chat")
    id = f"k{len(world.callers) + 1:06d}"
    request = m.Request(
        id, model, "chat", rules.work_class, int(world.now), rules.max_wait_ms, rules.timeout_ms
    )
    request = msgspec.structs.replace(request, keep_alive_ms=keep_alive_ms)
    caller = Caller(request, work_ms, None, due=world.now + request.max_wait_ms)
    world.callers[id] = world.open[id] = caller
    world.feed(m.Arrived(request))
    return caller


def evictions(world: World) -> list[str]:
    return [str(note.reason) for _, note in world.journal if note.event == "evict"]


def test_keep_alive_takes_the_place_of_the_idle_time_until_the_next_use(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-07: a longer wish keeps the model, and a caller without a wish restores the model's own time."""
    world = world_of(model("A", idle_ms=Millis(20_000)))
    world.run(1_000)
    ask(world, "A", 60_000)
    world.run(50_000)
    assert stage(world) is Stage.READY
    ask(world, "A", None)
    world.run(75_000)
    assert stage(world) is Stage.ABSENT
    assert evictions(world) == ["idle for 20 s"]


def test_a_shorter_keep_alive_lets_the_model_go_earlier(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: the timer follows the wish, also when no other event comes."""
    world = world_of(model("A", idle_ms=Millis(300_000)))
    world.look_every_ms = 10**9  # nothing but the armed timer can wake the core
    world.run(1_000)
    ask(world, "A", None)
    world.run(10_000)
    ask(world, "A", 5_000)
    world.run(17_000)
    assert stage(world) is not Stage.READY
    assert evictions(world) == ["idle for 5 s, as its last caller asked"]


def test_keep_alive_zero_leaves_with_the_answer(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: 0 means: leave when idle, which is now."""
    world = world_of(model("A"))
    world.run(1_000)
    ask(world, "A", None)
    world.run(10_000)
    caller = ask(world, "A", 0)
    world.run(12_000)
    assert caller.outcome == "answered"
    assert stage(world) is Stage.ABSENT


def test_keep_alive_zero_waits_for_whoever_waits(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: 0 sends no model away from another caller, and the other one's wish counts then."""
    world = world_of(model("A"))
    world.run(1_000)
    ask(world, "A", 0)
    later = ask(world, "A", None)
    world.run(20_000)
    assert later.outcome == "answered"
    assert world.tally.loads == 1
    assert stage(world) is Stage.READY


def test_keep_alive_zero_does_not_move_a_permanent_model(world_of: WorldOf, model: ModelOf) -> None:
    """RES-02: what is permanent stays."""
    world = world_of(model("A", permanent=True))
    world.run(10_000)
    ask(world, "A", 0)
    world.run(60_000)
    assert stage(world) is Stage.READY


def test_keep_alive_protects_against_no_swap(world_of: WorldOf, model: ModelOf) -> None:
    """RES-05: a wish for hours is below the memory budget: another model gets its turn as ever."""
    turns: list[float] = []
    for submission in (None, 10 * 3_600_000):
        world = world_of(model("A"), model("B"))
        world.run(1_000)
        ask(world, "A", submission)
        world.run(10_000)
        other = ask(world, "B", None)
        world.run(60_000)
        assert other.outcome == "answered"
        turns.append(next(at for at, note in world.journal if note.event == "loaded" and note.model == "B"))
    assert turns[0] == turns[1]


def test_keep_alive_does_not_cancel_an_eviction_under_way(world_of: WorldOf, model: ModelOf) -> None:
    """RES-12: a closed door stays closed, whatever the one who still runs behind it wished."""
    world = world_of(model("A"), model("B"))
    world.run(1_000)
    ask(world, "A", 3_600_000, work_ms=8_000)
    world.run(5_000)
    world.feed(m.EvictAsked(1, "A"))
    world.run(60_000)
    assert world.replies[-1].ok
    assert [note.event for _, note in world.journal].count("reopen") == 0


def test_a_new_load_forgets_what_was_wished_before(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: the wish belongs to the stay in which it was made."""
    world = world_of(model("A", idle_ms=Millis(20_000)))
    world.run(1_000)
    ask(world, "A", 3_600_000)
    world.run(10_000)
    world.feed(m.EvictAsked(1, "A"))
    world.run(20_000)
    assert world.core.state.models["A"].keep_alive_ms is None


@pytest.mark.parametrize("submission", [10**15, KEEP_ALIVE_MAX_MS + 1])
def test_keep_alive_is_bounded(world_of: WorldOf, model: ModelOf, submission: int) -> None:
    """RES-07: nobody pins a model by a number."""
    world = world_of(model("A"))
    world.run(1_000)
    ask(world, "A", submission)
    world.run(10_000)
    assert world.core.state.models["A"].idle_ms == KEEP_ALIVE_MAX_MS
