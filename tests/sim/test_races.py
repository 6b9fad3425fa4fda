"""The races that other servers got wrong, at every point at which they can happen.

Each test first lets a story run and notes every moment at which the core was told something. Then it tells the story
again, once for each of these moments and the milliseconds around them, with one more thing happening just then.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Lane, WorkClass
from watchbill.core import messages as m
from watchbill.core.stages import Stage
from watchbill.simulate.world import Caller, Faults, World
from watchbill.units import Millis

Story = Callable[[], World]

#: Around each event: just before, at the same time but after it, and just after.
OFFSETS_MS = (-1.0, 0.0, 0.5, 1.0)


def moments(story: Story, until_ms: float) -> list[float]:
    """Every time at which something happens in a story, and the times around it."""
    world, seen = story(), set[float]()
    feed = world.feed

    def noting(event: m.Event) -> None:
        seen.add(world.now)
        feed(event)

    world.feed = noting  # type: ignore[method-assign]
    world.run(until_ms)
    return sorted({max(0.0, t + offset) for t in seen for offset in OFFSETS_MS})


def retold(story: Story, until_ms: float, act: Callable[[World], object]) -> list[tuple[float, World]]:
    """The story again, with `act` at each of its moments."""
    worlds: list[tuple[float, World]] = []
    for moment in moments(story, until_ms):
        world = story()
        world.at(moment, lambda world=world: act(world))
        world.run(until_ms + 200_000)
        worlds.append((moment, world))
    assert len(worlds) > 20
    return worlds


def assert_sound(worlds: list[tuple[float, World]], outcomes: tuple[str, ...] = ("answered",)) -> None:
    for moment, world in worlds:
        assert not world.judge.broken, (moment, world.judge.broken)
        odd = [(c.request.id, c.outcome) for c in world.callers.values() if c.outcome not in outcomes]
        assert not odd, (moment, odd)


@pytest.fixture
def swap(world_of: WorldOf, model: ModelOf) -> Story:
    """A serves, then B is asked for and A must leave for it."""

    def story() -> World:
        world = world_of(model("A", concurrency=2), model("B", concurrency=2), load_ms=1_000)
        world.at(500, lambda: world.arrive("A", 400, lane="chat"))
        world.at(4_000, lambda: world.arrive("B", 400, lane="chat"))
        return world

    return story


def test_the_victim_of_an_eviction_gets_a_request_at_any_point(swap: Story) -> None:
    """RES-12: race 1, R20: it is not resurrected, nobody hangs, everybody is answered."""
    assert_sound(retold(swap, 12_000, lambda world: world.arrive("A", 400, lane="chat")))


def test_a_loaded_model_serves_its_own_first_request_whatever_else_arrives(swap: Story) -> None:
    """RES-11: race 2: no model is evicted between its load and its first request."""

    def flood(world: World) -> None:
        for _ in range(3):
            world.arrive("A", 400, lane="chat")
            world.arrive("B", 400, lane="chat")

    worlds = retold(swap, 12_000, flood)
    assert_sound(worlds)
    assert max(world.tally.loads for _, world in worlds) <= 5


def test_two_models_that_do_not_fit_together_are_both_served(world_of: WorldOf, model: ModelOf) -> None:
    """RES-04: race 3: one after the other, memory never exceeded."""
    world = world_of(model("A"), model("B"))
    world.run(1_000)
    callers = [world.arrive(name, 400, lane="chat") for name in "AB"]
    world.run(60_000)
    assert [c.outcome for c in callers] == ["answered", "answered"]
    assert not world.judge.broken
    assert world.tally.peak["gpu:0"] == 16 * 10**9


def test_a_client_that_leaves_at_any_point_leaks_nothing(swap: Story) -> None:
    """LANE-07: races 4 and 5: queued, loading, prefill, mid-stream; no count is stranded, others are served."""

    def leave_all(world: World) -> None:
        for caller in list(world.open.values()):
            world.leave(caller)

    for moment, world in retold(swap, 12_000, leave_all):
        assert not world.judge.broken, (moment, world.judge.broken)
        later = world.arrive("A", 300, lane="chat")
        world.run(world.now + 30_000)
        assert later.outcome == "answered", moment
        assert all(not s.running and not s.line for s in world.core.state.models.values()), moment


def test_one_who_leaves_does_not_cancel_the_load_of_others(swap: Story) -> None:
    """LANE-07: race 11: followers of a load are served when the first one leaves."""

    def leave_first(world: World) -> None:
        world.arrive("B", 400, lane="chat")
        first = next((c for c in world.open.values() if c.request.model == "B"), None)
        if first is not None and len([c for c in world.open.values() if c.request.model == "B"]) > 1:
            world.leave(first)

    assert_sound(retold(swap, 12_000, leave_first), ("answered", "left"))


def test_the_idle_timer_fires_as_a_request_lands(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: race 6: at the very millisecond of its idle time, and around it, the request is served."""

    def story() -> World:
        world = world_of(model("A", idle_ms=Millis(3_000)), load_ms=500)
        world.at(500, lambda: world.arrive("A", 300, lane="chat"))
        return world

    assert_sound(retold(story, 6_000, lambda world: world.arrive("A", 300, lane="chat")))


def test_an_engine_dies_at_any_point(swap: Story) -> None:
    """RES-12, RES-20: race 7: while loading, ready, draining; the request is repeated or fails clearly."""

    def kill(world: World) -> None:
        for name, engine in world.engines.items():
            if engine.power.value in ("loading", "warm"):
                engine.jobs, engine.generation = {}, engine.generation + 1
                attempt, engine.power = engine.attempt, type(engine.power).DEAD
                world.feed(m.Died(name, attempt, "killed by the test"))

    assert_sound(retold(swap, 12_000, kill), ("answered", "engine_failed"))


def test_an_operator_evicts_at_any_point(swap: Story) -> None:
    """RES-12: race 7: stop during start, during a drain, during a stop; the work still gets done."""

    def evict(world: World) -> None:
        for number, name in enumerate("AB"):
            world.feed(m.EvictAsked(number, name))

    for moment, world in retold(swap, 12_000, evict):
        assert not world.judge.broken, (moment, world.judge.broken)
        assert sorted(r.command for r in world.replies) == [0, 1], moment
        assert all(c.outcome == "answered" for c in world.callers.values()), moment


def test_steady_traffic_cannot_keep_another_model_out(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: race 8, R22: B's wait is bounded by its max_wait, and the bound was printed as its forecast."""
    world = world_of(model("A", concurrency=4), model("B"), load_ms=6_000)
    for i in range(600):
        world.at(1_000 + i * 500, lambda: world.arrive("A", 800, lane="chat"))
    asked: list[Caller] = []
    world.at(60_000, lambda: asked.append(world.arrive("B", 500, lane="chat")))
    world.run(200_000)
    assert asked[0].outcome == "answered"
    assert (asked[0].started_at or 1e9) - 60_000 <= 60_000
    assert asked[0].forecast_ms > 0


def test_waiting_for_an_eviction_does_not_block_a_warm_model(world_of: WorldOf, model: ModelOf) -> None:
    """RES-10: race 12: while B waits for C to drain a long answer, requests for warm A start at once."""

    def story() -> World:
        world = world_of(model("A", 4, concurrency=2), model("C", 14), model("B", 14), load_ms=500)
        world.at(100, lambda: world.arrive("A", 200, lane="chat"))
        world.at(100, lambda: world.arrive("C", 9_000, lane="chat"))
        world.at(3_000, lambda: world.arrive("B", 300, lane="chat"))
        return world

    worlds = retold(story, 16_000, lambda world: world.arrive("A", 200, lane="chat"))
    assert_sound(worlds)
    for moment, world in worlds:
        late = [c for c in world.callers.values() if c.request.model == "A" and c.request.arrived_at > 2_000]
        assert all((c.started_at or 1e9) - c.request.arrived_at < 1_000 for c in late), moment


def test_an_engine_that_never_becomes_warm_is_given_up(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: race 13, R31: a load that hangs ends at its deadline; who waits is told, others are served."""
    small = [model(name, 0.4) for name in "AB"]
    world = world_of(*small, faults=Faults(load_hangs=1.0, until_ms=2_000))
    world.run(1_000)
    hung = world.arrive("A", 300, lane="chat")
    world.run(5_000)
    other = world.arrive("B", 300, lane="chat")
    world.run(100_000)
    assert (hung.outcome, other.outcome) == ("answered", "answered")
    assert world.tally.loads_by_model == {"A": 2, "B": 1}
    assert not world.judge.broken


@pytest.mark.parametrize("lane", ["chat", "rotation"])
def test_a_lane_that_gets_a_limit_while_it_is_used_keeps_to_it(
    world_of: WorldOf, model: ModelOf, lane: str
) -> None:
    """LANE-01: a warm model with a free slot takes no shortcut past the limit of a lane, nor one that was lifted."""
    lanes = {"chat": Lane("chat"), "rotation": Lane("rotation")}
    world = world_of(model("A", concurrency=4), lanes=lanes)
    state = world.core.state

    def running_of(count: int) -> int:
        for _ in range(count):
            world.arrive("A", 2_000, lane=lane)
        running = len(state.models["A"].running)
        world.run(world.now + 60_000)
        return running

    running_of(1)  # and it is warm
    for limit, at_once in ((None, 3), (1, 1), (None, 3)):
        changed = lanes | {lane: Lane(lane, concurrency=limit)}
        world.feed(m.Reconfigured(replace(state.catalog, lanes=changed), {}))
        assert running_of(3) == at_once
    assert {c.outcome for c in world.callers.values()} == {"answered"}


def test_an_operators_call_goes_before_a_request_that_is_nearly_out_of_patience(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-06: before every other of its class, in every line."""
    world = world_of(model("A"), known_service_ms=4_000)
    world.arrive("A", 58_000, lane="chat")
    world.run(3_500)
    urgent = world.arrive("A", 300, lane="chat")
    world.run(60_800)
    mine = world.arrive("A", 300, lane="chat", operator=True)
    world.run(80_000)
    assert mine.started_at is not None
    assert urgent.started_at is None or mine.started_at < urgent.started_at


def test_background_work_near_its_end_keeps_nobody_from_the_slot_that_is_kept_for_people(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-02: it cannot use that slot itself, and stood before the person all the same."""
    world = world_of(model("A", concurrency=2), known_service_ms=4_000)
    world.arrive("A", 300, lane="chat")
    world.run(8_000)
    for _ in range(2):
        world.arrive("A", 200_000, lane="batch", indivisible=True)
    world.run(127_000)
    person = world.arrive("A", 300, lane="chat")
    world.run(140_000)
    assert person.started_at == person.request.arrived_at
    assert not world.judge.broken


@pytest.mark.parametrize(("busy", "other"), ["AB", "BA"])
def test_a_lane_of_which_one_may_run_is_served_in_its_own_order_over_all_models(
    world_of: WorldOf, model: ModelOf, busy: str, other: str
) -> None:
    """LANE-02, P3: the model that has just answered took the place again and again, and the other one starved."""
    lane = Lane("chat", concurrency=1, max_wait_ms=Millis(20_000))
    world = world_of(
        model("A", size_gb=8, concurrency=4), model("B", size_gb=8, concurrency=4), lanes={"chat": lane}
    )

    def again(_: object = None) -> None:
        world.at(world.now + 5, lambda: world.arrive(busy, 500, lane="chat", then=again))

    for name in "AB":
        world.arrive(name, 300, lane="chat")
    world.run(10_000)
    for _ in range(3):
        again()
    world.run(15_000)
    alone = world.arrive(other, 500, lane="chat")
    world.run(40_000)
    assert alone.started_at is not None
    assert alone.started_at - alone.request.arrived_at <= 3 * 600
    assert not world.judge.broken


def test_a_request_whose_companion_is_out_of_reach_keeps_no_place_of_its_lane(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-02, RES-13: the host of a companion was silent, and the next of its lane waited until it was refused, too,
    although its own model was warm and idle."""
    lane = Lane("chat", concurrency=1, max_wait_ms=Millis(20_000))
    away = replace(model("C", size_gb=4), engine="far")
    world = world_of(model("A", size_gb=4), model("B", size_gb=4), away, lanes={"chat": lane})
    for name in "ABC":
        world.arrive(name, 300, lane="chat")
    world.run(18_000)
    world.feed(m.HostSeen("far", silence="it does not answer"))
    held = world.arrive("B", 300, lane="chat", companions=("C",))
    other = world.arrive("A", 300, lane="chat")
    world.run(60_000)
    assert (held.outcome, other.outcome) == ("wait_exceeded", "answered")
    assert other.started_at == other.request.arrived_at


def test_what_waits_for_a_host_when_it_falls_silent_is_not_loaded_there(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13: it was planned and waited for the bus; the load went to a host that could not be asked."""
    hosted = replace(model("B", size_gb=4), engine="host")
    world = world_of(model("A", size_gb=4), hosted, lanes={"chat": Lane("chat")}, load_ms=4_000)
    world.arrive("A", 300, lane="chat")
    waits = world.arrive("B", 300, lane="chat")
    world.run(1_000)
    world.hosts.fall_silent("host", 30_000, 0, 0)
    world.run(20_000)
    assert world.core.state.models["B"].stage is Stage.ABSENT
    assert world.tally.loads_by_model == {"A": 1}
    world.run(50_000)
    assert waits.outcome == "answered"
    assert not world.judge.broken


def test_a_plan_waits_for_a_model_that_leaves_for_one_whose_callers_are_gone(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-11: it was dropped after 15 s, and not made again for 15 more: memory stood empty while it waited."""
    lanes = {"chat": Lane("chat", max_wait_ms=Millis(120_000), timeout_ms=Millis(300_000))}
    world = world_of(model("A"), model("B"), model("C"), lanes=lanes, load_ms=1_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    long = world.arrive("A", 136_000, lane="chat")
    for _ in range(2):
        other = world.arrive("B", 300, lane="chat")
        while world.core.state.models["A"].stage is not Stage.DRAINING:
            world.run(world.now + 100)
        world.leave(other)
        world.run(world.now + 10)
    waits = world.arrive("C", 300, lane="chat")
    world.run(world.now + 150_000)
    assert long.ended_at is not None
    assert waits.started_at is not None
    assert waits.started_at <= long.ended_at + 3_000
    assert not world.judge.broken


def test_a_place_of_a_lane_is_kept_where_no_other_is_left(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-02, RES-11: two places were free, one earlier request waited for its model, and a later one for nothing."""
    lane = Lane("tasks", concurrency=2, max_wait_ms=Millis(60_000))
    world = world_of(model("A", 4), model("B", 4), lanes={"tasks": lane}, load_ms=2_000)
    for _ in range(3):
        world.arrive("A", 6_000, lane="tasks")
    world.run(40_000)
    world.arrive("B", 300, lane="tasks")
    at_once = world.arrive("A", 6_000, lane="tasks")
    assert at_once.started_at == at_once.request.arrived_at
    world.run(80_000)
    assert {c.outcome for c in world.callers.values()} == {"answered"}
    assert not world.judge.broken


def test_a_place_of_a_lane_is_kept_only_for_a_model_on_its_way(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11, LANE-02: it was kept for one whose model had to wait for the end of another's turn, and all models did
    nothing until then: 9 s with a model that had just loaded for 8 s, whose own request waited, too."""
    each = (model("slow", 14, priority=4), model("quick", 14, priority=2))
    world = world_of(*each, lanes={"desk": Lane("desk", concurrency=1)}, load_ms=8_000)
    world.engines["quick"].model = replace(world.truth["quick"], load_ms=1_000)
    for name, work_ms in (("slow", 10_000), ("quick", 1_000)) * 4:
        caller = world.arrive(name, work_ms, lane="desk")
        while not caller.outcome:
            world.run(world.now + 100)
    first = world.arrive("slow", 10_000, lane="desk")
    world.run(world.now + 4_000)
    second = world.arrive("quick", 1_000, lane="desk")
    world.run(world.now + 60_000)
    assert first.started_at is not None
    assert first.started_at <= first.request.arrived_at + 9_000
    assert second.started_at is not None
    assert second.started_at <= first.started_at + 10_000 + 2_000
    assert not world.judge.broken


def test_a_place_of_a_lane_is_kept_for_nobody_whose_model_comes_and_answers_others_first(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-11, LANE-02: it was kept until the model was there; then an earlier one of another lane took the only slot,
    for longer than the answer that had waited."""
    lanes = {"narrow": Lane("narrow", concurrency=1), "chat": Lane("chat")}
    world = world_of(model("A", 8), model("B", 8), lanes=lanes, load_ms=3_000, known_service_ms=20_000)
    world.arrive("B", 20_000, lane="chat")
    world.run(30_000)
    before = world.arrive("A", 20_000, lane="chat")
    held = world.arrive("A", 20_000, lane="narrow")
    at_once = world.arrive("B", 20_000, lane="narrow")
    world.run(90_000)
    assert at_once.started_at == at_once.request.arrived_at
    assert {before.outcome, held.outcome} == {"answered"}
    assert not world.judge.broken


@pytest.mark.parametrize(("mine_ms", "theirs_ms"), [(1_500, 1_000), (300, 3_000), (3_000, 300)])
def test_the_first_of_a_lane_finds_its_place_and_its_slot_together(
    world_of: WorldOf, model: ModelOf, mine_ms: int, theirs_ms: int
) -> None:
    """LANE-02, P3: others took each place of its lane and each slot of its model, one of which was always taken, and it
    ran out of its patience as the first of both lines."""
    lanes = {"narrow": Lane("narrow", concurrency=1), "chat": Lane("chat")}
    world = world_of(model("A", 8), model("B", 8), lanes=lanes)
    draw = random.Random(mine_ms)

    def loop(name: str, lane: str, work_ms: int) -> None:
        def again(_: object = None) -> None:
            length_ms = work_ms * draw.lognormvariate(0, 0.3)
            world.at(world.now + 5, lambda: world.arrive(name, length_ms, lane=lane, then=again))

        again()

    for _ in range(2):
        loop("A", "chat", theirs_ms)
        loop("B", "narrow", mine_ms)
    world.run(60_000)
    alone = world.arrive("A", 300, lane="narrow")
    world.run(90_000)
    assert alone.started_at is not None
    assert alone.started_at - alone.request.arrived_at <= 5 * (mine_ms + theirs_ms)
    assert not world.judge.broken


def test_a_place_is_not_held_by_one_whose_slot_is_kept_for_another(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-02, RES-11: the only slot of its model was kept for the first of another lane, and the place that it could
    not use for it: a third model was idle meanwhile."""
    lanes = {"narrow": Lane("narrow", concurrency=1), "wide": Lane("wide", concurrency=1)}
    each = (model(name, 6) for name in "ABC")
    world = world_of(*each, lanes=lanes, load_ms=500, known_service_ms=5_000)
    for name in "ABC":
        world.arrive(name, 5_000, lane="narrow")
        world.run(world.now + 10_000)
    world.arrive("C", 5_000, lane="narrow")
    world.run(world.now + 2_000)
    first = world.arrive("A", 5_000, lane="narrow")
    world.run(world.now + 10)
    second = world.arrive("A", 5_000, lane="wide")
    world.run(world.now + 10)
    at_once = world.arrive("B", 5_000, lane="wide")
    world.run(world.now + 60_000)
    assert at_once.started_at == at_once.request.arrived_at
    assert first.started_at is not None
    assert second.started_at is not None
    assert first.started_at < second.started_at
    assert not world.judge.broken


def test_a_place_that_one_after_the_other_is_kept_for_goes_to_who_waits(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-02, RES-11: two earlier ones, of which none was loaded, took turns in keeping it: it was kept for ever."""
    lane = Lane("tasks", WorkClass.ROTATION, concurrency=1, max_wait_ms=Millis(300_000))
    each = (model("A", 4, permanent=True), model("B", 8), model("C", 16))
    world = world_of(*each, lanes={"tasks": lane, "chat": Lane("chat")}, load_ms=500)
    world.engines["C"].model = replace(world.truth["C"], load_ms=20_000)
    for name in "AAAC":
        caller = world.arrive(name, 4_000, lane="chat")
        while not caller.outcome:
            world.run(world.now + 100)
    world.arrive("B", 300, lane="tasks")
    world.arrive("A", 300, lane="tasks", companions=("B",))
    last = world.arrive("A", 300, lane="tasks")
    world.run(world.now + 6_000)
    assert last.started_at is not None


@pytest.mark.parametrize("answer_ms", [5_000, 20_000])
def test_a_model_whose_lane_is_full_takes_the_room_of_others_only_when_it_can_serve(
    world_of: WorldOf, model: ModelOf, answer_ms: int
) -> None:
    """RES-11, LANE-02: it was loaded 45 times for three answers, each time in place of a model that people used, and
    did nothing until its turn was over, because the places of its lane were taken by another model's answers."""
    narrow = Lane("narrow", concurrency=1, max_wait_ms=Millis(300_000))
    lanes = {"narrow": narrow, "chat": Lane("chat", max_wait_ms=Millis(60_000))}
    each = (model("long", 4, concurrency=4), model("B", 14), model("C", 14))
    world = world_of(*each, lanes=lanes, load_ms=2_000)

    def ask(name: str, lane: str, work_ms: int, think_ms: int) -> None:
        def again(_: object = None) -> None:
            world.at(world.now + think_ms, lambda: world.arrive(name, work_ms, lane=lane, then=again))

        again()

    for _ in range(8):
        ask("long", "narrow", answer_ms, 50)
    for _ in range(2):
        ask("C", "chat", 500, 600)
    world.run(20_000)
    ask("B", "narrow", 300, 2_000)
    world.run(600_000)
    answered = Counter(c.request.model for c in world.callers.values() if c.outcome == "answered")
    assert answered["B"] >= 3
    assert world.tally.loads_by_model["B"] <= answered["B"] + 1
    assert answered["C"] >= 850  # it got 241 and 303
    assert not world.judge.broken


def test_a_model_comes_although_a_busy_one_has_earlier_requests_of_its_lane(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-02, P3: it was kept out for as long as those would take, which no slot was free for; meanwhile later ones of
    a third model passed all of them."""
    lanes = {"narrow": Lane("narrow", concurrency=1), "chat": Lane("chat")}
    world = world_of(model("busy", 4), model("B", 14), model("C", 14), lanes=lanes, load_ms=1_000)
    for name, work_ms in (("B", 300), ("C", 100), ("busy", 20_000)) * 3:
        caller = world.arrive(name, work_ms, lane="chat")
        while not caller.outcome:
            world.run(world.now + 100)

    def ask(_: object = None) -> None:
        world.at(world.now + 500, lambda: world.arrive("C", 100, lane="narrow", then=ask))

    ask()
    world.run(world.now + 5_000)
    world.arrive("busy", 20_000, lane="chat")
    world.run(world.now + 100)
    earlier = [world.arrive("busy", 20_000, lane="narrow") for _ in range(2)]
    world.run(world.now + 100)
    alone = world.arrive("B", 300, lane="narrow")
    world.run(world.now + 100_000)
    started = [each.started_at for each in (alone, *earlier)]
    assert started == sorted(filter(None, started))
    assert not world.judge.broken


def test_a_better_priority_comes_first_although_one_that_leaves_goes_before_it_in_its_lane(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-06, LANE-02: it was kept out because of an earlier request of a model that then left for a worse one."""
    lanes = {"narrow": Lane("narrow", concurrency=1), "chat": Lane("chat")}
    each = (model(name, 16, priority=priority) for name, priority in (("A", 1), ("B", 2), ("C", 3)))
    world = world_of(*each, lanes=lanes, load_ms=200, known_service_ms=3_000)

    def ask(_: object = None) -> None:
        world.at(world.now + 5, lambda: world.arrive("A", 3_000, lane="chat", then=ask))

    ask()
    world.run(18_350)
    world.arrive("A", 3_000, lane="narrow")
    world.run(world.now + 10)
    better = world.arrive("B", 3_000, lane="narrow")
    world.run(world.now + 10)
    worse = world.arrive("C", 3_000, lane="chat")
    world.run(world.now + 60_000)
    assert better.started_at is not None
    assert worse.started_at is not None
    assert better.started_at < worse.started_at
    assert not world.judge.broken


@pytest.mark.parametrize(("callers", "answer_ms"), [(1, 20_000), (2, 15_000)])
def test_a_place_of_a_lane_is_kept_for_an_earlier_one_whose_model_loads_faster_than_an_answer_ends(
    world_of: WorldOf, model: ModelOf, callers: int, answer_ms: int
) -> None:
    """RES-11, LANE-02, LANE-08: its model came early, missed the place by a moment, was swapped out and came back: of
    its requests half ran out of their patience, though each was the first of the lane after one answer or two."""
    draw = random.Random(callers)
    narrow = Lane("narrow", concurrency=1, max_wait_ms=Millis(60_000))
    lanes = {"narrow": narrow, "chat": Lane("chat", max_wait_ms=Millis(60_000))}
    world = world_of(
        model("long", 4, concurrency=4), model("B", 14), model("C", 14), lanes=lanes, load_ms=2_000
    )

    def ask(name: str, lane: str, work: Callable[[], float], think_ms: int) -> None:
        def again(_: object = None) -> None:
            world.at(world.now + think_ms, lambda: world.arrive(name, work(), lane=lane, then=again))

        again()

    for _ in range(callers):
        ask("long", "narrow", lambda: answer_ms * draw.lognormvariate(-0.125, 0.5), 50)
    for _ in range(2):
        ask("C", "chat", lambda: 500, 600)
    world.run(20_000)
    ask("B", "narrow", lambda: 300, 2_000)
    world.run(600_000)
    by_outcome = Counter((c.request.model, str(c.outcome)) for c in world.callers.values())
    assert by_outcome["B", "answered"] >= 12
    assert by_outcome["B", "wait_exceeded"] <= 1, "two answers before it may take a minute"
    assert world.tally.loads_by_model["B"] <= by_outcome["B", "answered"] + 1
    started = [c for c in world.callers.values() if c.request.model == "B" and c.started_at is not None]
    told = [c.forecast_ms or 0 for c in started]
    waited = [c.started_at - c.request.arrived_at for c in started if c.started_at is not None]
    assert sum(told) == pytest.approx(sum(waited), rel=0.2)
    assert not world.judge.broken
