"""RES-20: who is reset and who is not, in worlds where the engine's own slots, not the configured ones, decide."""

import random

import pytest
from msgspec.structs import replace

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.core.watchdog import ALONE_MS_MIN, CHECK_MS
from watchbill.runtime.explain import explain
from watchbill.runtime.views import status_view
from watchbill.simulate.callers import Caller
from watchbill.simulate.world import Faults, World
from watchbill.steps import at_once
from watchbill.units import Bytes, Millis

#: The engine layer's limit for an answer to a simple question; the core waits a little longer.
PATIENCE_MS = CHECK_MS - 10_000
TIMEOUT_MS = 300_000
GB = 10**9


def grown(readings: list[tuple[int, int]], *, quota: Bytes | None = None) -> tuple[Machine, list[m.Alert]]:
    """A model without declared memory that answers well and grows: what each look shows of it, and of what is free."""
    catalog = Catalog(
        {"gpu:0": Device("gpu:0", capacity=Bytes(24 * GB), reserve=Bytes(GB))},
        {"scripted": EngineRules("scripted", "scripted")},
        {"A": Model("A", "scripted", devices=("gpu:0",), quota=quota)},
        lane(),
    )
    machine = Machine(catalog, {"A": m.Knowledge(m.Footprint({}))})
    alerts: list[m.Alert] = []

    def step(event: m.Event, at: int) -> list[m.Action]:
        actions = machine.step(event, at)
        alerts.extend(each for each in actions if isinstance(each, m.Alert))
        return actions

    step(m.Observed(1, {"gpu:0": m.DeviceReading(24 * GB, 23 * GB)}, {}), 1)
    first = m.Request("0", "A", "chat", WorkClass.INTERACTIVE, 2, 60_000, TIMEOUT_MS)
    (load,) = [each for each in step(m.Arrived(first), 2) if isinstance(each, m.Load)]
    step(m.Loaded("A", load.attempt, {"gpu:0": GB // 10}), 3_000)
    step(m.Ended("0", True), 3_100)
    for number, (held, free) in enumerate(readings, 1):
        at = 3_100 + 5_000 * number
        models = {"A": m.ModelReading(load.attempt, True, {"gpu:0": held})}
        step(m.Observed(at, {"gpu:0": m.DeviceReading(24 * GB, free)}, models), at)
        request = m.Request(str(number), "A", "chat", WorkClass.INTERACTIVE, at, 60_000, TIMEOUT_MS)
        step(m.Arrived(request), at)
        step(m.Ended(request.id, True), at + 100)
    return machine, alerts


def test_a_model_is_not_reset_for_being_used_while_memory_is_free() -> None:
    """RES-20: the size of a model whose memory was not declared is the largest seen while it is healthy, and growth
    alone resets nothing. Seen with `python3 -m http.server`, whose size right after its load became its quota."""
    machine, alerts = grown([(GB, 22 * GB), (5 * GB, 18 * GB), (12 * GB, 11 * GB), (20 * GB, 3 * GB)])
    assert not alerts and machine.state.models["A"].loads == 1
    assert machine.state.models["A"].needs == {"gpu:0": 20 * GB}  # the ledger books it


def test_where_memory_is_short_the_model_that_took_far_more_than_it_needed_is_reset() -> None:
    """RES-20: and the message says what to set."""
    machine, alerts = grown([(2 * GB, 21 * GB), (2 * GB, 21 * GB), (23 * GB + GB // 2, 2 * GB)])
    assert [each.kind for each in alerts] == ["watchdog"] and "set models.A.memory" in alerts[0].text
    assert machine.state.models["A"].needs == {"gpu:0": 2 * GB}  # or it would never fit again


def test_a_quota_that_was_set_holds_though_memory_is_free() -> None:
    """RES-20: it is the operator's word, and the message says how to change it."""
    _, alerts = grown([(2 * GB, 21 * GB), (5 * GB, 18 * GB)], quota=Bytes(4 * GB))
    assert [each.kind for each in alerts] == ["watchdog"] and "raise models.A.quota" in alerts[0].text


def lane(timeout_ms: int = TIMEOUT_MS) -> dict[str, Lane]:
    return {
        "chat": Lane(
            "chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(3_600_000), timeout_ms=Millis(timeout_ms)
        )
    }


def asks_truly(world: World, *, slots: int = 1, hangs_from: float = float("inf")) -> list[float]:
    """Has checks answered by an engine with so many slots of its own: who finds none free hears nothing."""
    asked: list[float] = []

    def ask(action: m.Check) -> None:
        asked.append(world.now)
        world.at(world.now, lambda since=world.now: wait(action, since))

    def wait(action: m.Check, since: float) -> None:
        if world.now >= since + PATIENCE_MS:
            world.feed(m.Checked(action.model, action.attempt, "no answer in time"))
        elif world.now < hangs_from and len(world.engines[action.model].jobs) < slots:
            world.feed(m.Checked(action.model, action.attempt))
        else:
            world.at(world.now + 500, lambda: wait(action, since))

    world._acts[m.Check] = ask
    return asked


def resets(world: World) -> list[m.Alert]:
    return [alert for alert in world.alerts if alert.kind == "watchdog"]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_hung_model_with_work_for_every_slot_is_reset_when_its_requests_time_proves_it(
    world_of: WorldOf, model: ModelOf, slots: int
) -> None:
    """RES-20: who has a slot ran out of its time without a byte, and a line waits for the slots: nobody else is sent
    there before the model has answered, so that there is room for the question, and silence is a proof."""
    world = world_of(model("A", concurrency=slots), lanes=lane())
    world.mute = True
    asks_truly(world, hangs_from=0)
    for number in range(12):
        world.at(10_000 + number, lambda: world.arrive("A", 10**9, lane="chat"))
    proven = 10_000 + TIMEOUT_MS
    world.run(proven - 1_000)
    assert not resets(world)
    world.run(proven + 2 * CHECK_MS)
    assert len(resets(world)) == 1
    assert sum(c.outcome == "run_timeout" for c in world.callers.values()) == slots


def test_a_model_busy_with_a_long_prompt_is_not_reset_though_other_slots_are_free(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: engines take one long prompt after the other, whatever slots they have; a question waits behind it."""
    world = world_of(
        model("A", concurrency=4), lanes=lane(900_000), faults=Faults(answer_fails=1.0, until_ms=12_000)
    )
    world.mute = True
    asks_truly(world)
    world.at(5_000, lambda: world.arrive("A", 600_000, lane="chat"))
    for number in range(3):
        world.at(8_000 + number * 500, lambda: world.arrive("A", 100, lane="chat"))
    world.run(700_000)
    assert not world.alerts and world.tally.loads == 1
    assert [c.outcome for c in world.callers.values()] == ["answered"] + ["failed"] * 3


def asked_after_failures(world_of: WorldOf, model: ModelOf) -> tuple[World, m.Check, Caller]:
    """A model that failed three times and is asked whether it is well: its world, the question, and one more caller."""
    world = world_of(
        model("A", concurrency=2), lanes=lane(), faults=Faults(answer_fails=1.0, until_ms=12_000)
    )
    asked: list[m.Check] = []
    world._acts[m.Check] = asked.append
    for number in range(3):
        world.at(8_000 + number * 500, lambda: world.arrive("A", 100, lane="chat"))
    world.run(13_000)
    (question,) = asked
    return world, question, world.arrive("A", 5_000, lane="chat")


def test_who_came_while_a_model_was_asked_is_served_when_it_was_found_well(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: the door is closed for the question only; a good answer opens it at once, and so does a good end."""
    world, question, first = asked_after_failures(world_of, model)
    assert first.state == "waiting"
    world.feed(m.Checked("A", question.attempt))
    assert first.state == "running"


def test_a_model_that_is_asked_whether_it_is_well_does_not_read_as_healthy(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: status and explain say what keeps everybody waiting, and stop when it was found well."""
    world, question, first = asked_after_failures(world_of, model)
    why = "answers failed; it is being asked whether it is well"
    assert model_view(world) == ("ready", why, "suspect")
    assert explain(world.core, replace(first.request, id="next"), int(world.now))["reason"] == why
    world.feed(m.Checked("A", question.attempt))
    assert model_view(world) == ("ready", None, None)
    said = explain(world.core, replace(first.request, id="next"), int(world.now))
    assert said["verdict"] == "starts now"


def model_view(world: World) -> tuple[object, ...]:
    models = at_once(status_view(world.core.state, {}, int(world.now)))["models"]
    assert isinstance(models, dict)
    return tuple(models["A"][key] for key in ("state", "reason", "trouble"))


def test_a_good_end_opens_the_door_at_once(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: who was served well says more than any question; nobody waits for its answer then."""
    world = world_of(
        model("A", concurrency=2), lanes=lane(), faults=Faults(answer_fails=1.0, until_ms=12_000)
    )
    world._acts[m.Check] = lambda action: None
    world.at(1_000, lambda: world.arrive("A", 10_000, lane="chat"))
    for number in range(3):
        world.at(8_000 + number * 500, lambda: world.arrive("A", 100, lane="chat"))
    world.run(13_000)
    later = world.arrive("A", 500, lane="chat")
    assert later.state == "waiting"
    world.run(20_000)
    assert later.outcome == "answered" and not world.alerts


def test_a_model_that_can_be_asked_nothing_is_reset_for_three_silent_answers_not_for_one(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a probe that asks for no answer is no evidence; then the callers' own time is all there is."""
    world = world_of(model("A"), lanes=lane())
    world.mute = True
    world._acts[m.Check] = lambda action: world.at(
        world.now, lambda: world.feed(m.Checked(action.model, action.attempt, "no question", was_asked=False))
    )
    for number in range(4):
        world.at(10_000 + number, lambda: world.arrive("A", 10**9, lane="chat"))
    world.run(10_000 + 3 * TIMEOUT_MS - 1_000)
    assert not resets(world)
    world.run(14_000 + 3 * TIMEOUT_MS)
    assert len(resets(world)) == 1


def test_a_shared_model_keeps_its_door_open_however_silent_it_is(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: nobody resets what others own, so nobody asks it, and nobody waits for such an answer."""
    world = world_of(model("A", shared=True, size_gb=0), lanes=lane())
    world.mute = True
    for number in range(8):
        world.at(10_000 + number, lambda: world.arrive("A", 10**9, lane="chat"))
    world.run(10_000 + 4 * TIMEOUT_MS + 1_000)
    assert [c.outcome for c in world.callers.values()][:4] == ["run_timeout"] * 4
    assert not resets(world)


@pytest.mark.parametrize("seed", range(24))
def test_a_healthy_model_is_never_reset_however_busy(world_of: WorldOf, model: ModelOf, seed: int) -> None:
    """RES-20: requests fail by their callers' fault, others run out of their time without a byte, the engine has
    fewer slots than the config says, or takes one prompt at a time: as long as it works it stays."""
    draw = random.Random(seed)
    timeout = draw.choice((20_000, 60_000, 300_000))
    world = world_of(model("A", concurrency=draw.choice((1, 2, 4, 8))), lanes=lane(timeout))
    world.mute = draw.random() < 0.7
    world.faults = Faults(answer_fails=draw.choice((0.5, 0.9)), caller_leaves=draw.choice((0.0, 0.2)))
    asked = asks_truly(world, slots=draw.choice((1, 1, 2)))
    when = 5_000.0
    while when < 1_800_000:
        work = draw.choice((50, 2_000, 30_000, 0.9 * timeout, 2 * timeout))
        world.at(when, lambda work=work: world.arrive("A", work, lane="chat"))
        when += draw.expovariate(1 / draw.choice((500, 10_000, 60_000)))
    world.run(7_200_000)
    assert not resets(world) and not world.judge.broken
    assert asked


@pytest.mark.parametrize("seed", range(12))
def test_a_hung_model_is_reset_within_two_time_limits_of_its_requests(
    world_of: WorldOf, model: ModelOf, seed: int
) -> None:
    """RES-20: whoever comes, however many slots there are: the third that ran out of its time closes the door, what
    is still there runs out of its own, and then the question is proof."""
    draw = random.Random(seed)
    timeout = draw.choice((20_000, 60_000, 300_000))
    slots = draw.choice((1, 2, 4, 8))
    world = world_of(model("A", concurrency=slots), lanes=lane(timeout))
    world.mute = True
    asks_truly(world, hangs_from=0)
    when, every = 5_000.0, draw.choice((500, 5_000))
    while when < 1_000_000:
        world.at(when, lambda: world.arrive("A", 10**9, lane="chat"))
        when += draw.expovariate(1 / every)
    while sum(c.outcome == "run_timeout" for c in world.callers.values()) < 3:
        world.run(world.now + 1_000)
    world.run(world.now + timeout + 2 * CHECK_MS)
    assert resets(world) and not world.judge.broken


def test_a_model_that_is_known_to_answer_fast_is_not_waited_for_like_one_that_starts(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: asked alone, a model whose first bytes came within a second has twenty seconds, not seventy."""
    timeout = 3_000
    world = world_of(model("A"), lanes=lane(timeout))
    for number in range(5):
        world.at(1_000 + 2_000 * number, lambda: world.arrive("A", 500, lane="chat"))
    world.run(14_000)
    assert {caller.outcome for caller in world.callers.values()} == {"answered"}
    world.core.state.models["A"].first.learn(300)  # the world tells no first bytes
    world.mute = True
    asked = asks_truly(world, hangs_from=0)
    for number in range(3):
        world.at(15_000 + 5_000 * number, lambda: world.arrive("A", 10**9, lane="chat"))
    world.run(30_000)
    assert asked and not resets(world)
    world.run(30_000 + 1.5 * ALONE_MS_MIN)
    assert len(resets(world)) == 1


def test_the_forecast_for_a_model_under_question_counts_a_load(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-08: it may have to be loaded anew; zero would be a promise that is hardly kept."""
    world = world_of(model("A", concurrency=2), lanes=lane(3_000))
    world.mute = True
    asked = asks_truly(world, hangs_from=0)
    for number in range(3):
        world.at(5_000 + 5_000 * number, lambda: world.arrive("A", 10**9, lane="chat"))
    world.run(20_000)
    assert asked and world.core.state.models["A"].is_suspect
    caller = world.arrive("A", 300, lane="chat")
    assert (caller.forecast_ms or 0) >= world.core.state.models["A"].load.ms
