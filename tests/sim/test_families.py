"""Families: a smaller model serves where the asked one cannot, also for requests that already wait."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.stages import Stage
from watchbill.runtime.explain import explain
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.world import World
from watchbill.units import Bytes, Millis

GB = 10**9


def fail_load(world: World, name: str, *, hopeless: bool = False) -> None:
    """The load that is under way fails."""
    engine = world.engines[name]
    engine.power_off()
    world.look()
    world.feed(m.LoadFailed(name, engine.attempt, "simulated", hopeless))


def fail_until_quarantined(world: World, name: str) -> None:
    model = world.core.state.models[name]
    for _ in range(3):
        while model.stage is not Stage.LOADING:
            world.run(world.now + 100)
        fail_load(world, name)


def family(model: ModelOf, **more: object) -> tuple[Model, Model]:
    return model("big", 16, family="f", family_rank=1, **more), model("small", 4, family="f", family_rank=2)


def test_a_request_that_waits_for_a_failing_head_steps_down_itself(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13, RES-20: not only the next one: the request that found the model failing is served by the smaller one."""
    world = world_of(*family(model))
    first, second = (world.arrive("big", 500, lane="chat") for _ in range(2))
    fail_until_quarantined(world, "big")
    assert (first.served_by, second.served_by) == ("small", "small")
    world.run(world.now + 20_000)
    assert (first.outcome, second.outcome) == ("answered", "answered")
    assert not world.judge.broken


def test_a_request_that_stepped_down_keeps_its_deadline(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: max_wait counts from arrival, whichever model serves."""
    big, small = family(model)
    world = world_of(big, small, model("other", 22))
    busy = world.arrive("small", 300_000, lane="chat")
    world.run(4_000)
    assert busy.state == "running"
    waiting = world.arrive("big", 500, lane="chat")
    came = world.now
    fail_until_quarantined(world, "big")
    assert waiting.served_by == "small"
    world.run(came + 60_010)
    assert waiting.outcome == "wait_exceeded"
    assert waiting.ended_at is not None
    assert waiting.ended_at <= came + 60_002


@pytest.mark.parametrize("by", ["request", "model"])
def test_who_opted_out_of_smaller_models_is_told_that_the_model_failed(
    world_of: WorldOf, model: ModelOf, by: str
) -> None:
    """RES-13: opt-out per request and per model."""
    world = world_of(*family(model, exact=by == "model"))
    caller = world.arrive("big", 500, lane="chat", exact=by == "request")
    fail_until_quarantined(world, "big")
    assert caller.outcome == "model_failed"
    assert world.arrive("big", 500, lane="chat", exact=by == "request").outcome == "model_failed"
    assert world.arrive("small", 500, lane="chat").outcome == ""


def test_a_quarantined_model_passes_its_requests_on_to_the_next(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: down the family, one by one, until one serves or none is left."""
    world = world_of(*family(model), model("tiny", 1, family="f", family_rank=3))
    caller = world.arrive("big", 500, lane="chat")
    fail_until_quarantined(world, "big")
    fail_until_quarantined(world, "small")
    assert caller.served_by == "tiny"
    fail_until_quarantined(world, "tiny")
    assert caller.outcome == "model_failed"


def test_a_request_for_a_removed_model_goes_to_another_one_of_its_family(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, LANE-04: the model that served in its place is removed from the config; the request is not lost."""
    world = world_of(*family(model), model("tiny", 1, family="f", family_rank=3))
    caller = world.arrive("big", 500, lane="chat")
    fail_until_quarantined(world, "big")
    assert caller.served_by == "small"
    kept = {name: each for name, each in world.catalog.models.items() if name != "small"}
    world.reload(replace(world.catalog, models=kept))
    assert caller.served_by == "tiny"
    world.run(world.now + 20_000)
    assert caller.outcome == "answered"


# ------------------------------------------------------------------ maintenance


def two_cards(**of_big: object) -> World:
    """A family whose models are on two cards."""
    devices = {name: Device(name, capacity=Bytes(24 * GB)) for name in ("gpu:0", "gpu:1")}
    models = [
        Model("big", "scripted", memory={"gpu:0": Bytes(16 * GB)}, devices=("gpu:0",), family="f", family_rank=1,
              **of_big),  # type: ignore[arg-type]
        Model("small", "scripted", memory={"gpu:1": Bytes(4 * GB)}, devices=("gpu:1",), family="f", family_rank=2),
    ]  # fmt: skip
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000))}
    engines = {"scripted": EngineRules("scripted", "scripted")}
    catalog = Catalog(devices, engines, {each.name: each for each in models}, lanes)
    truth = {each.name: TrueModel(each.name, 3_000, dict(each.memory), 0.0) for each in models}
    return World(catalog, truth, dict.fromkeys(devices, 24 * GB))


def test_while_a_card_is_lent_the_model_on_another_card_serves() -> None:
    """RES-13, RES-14: maintenance of one card is no reason to wait for it."""
    world = two_cards()
    world.run(100)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    caller = world.arrive("big", 500, lane="chat")
    world.run(10_000)
    assert (caller.served_by, caller.outcome) == ("small", "answered")


@pytest.mark.parametrize("begun", [False, True])
def test_requests_that_wait_when_a_card_is_lent_go_to_the_model_on_another_card(begun: bool) -> None:
    """RES-13, RES-14: what runs ends where it is; what waits, or had no byte yet, goes to the other card."""
    world = two_cards()
    world.mute = not begun
    running = world.arrive("big", 5_000, lane="chat")
    world.run(4_000)
    waiting = world.arrive("big", 500, lane="chat")
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    world.run(20_000)
    assert (waiting.served_by, waiting.outcome) == ("small", "answered")
    assert (running.served_by, running.outcome) == ("big" if begun else "small", "answered")
    assert world.replies[-1].ok
    assert not world.judge.broken


HOT = m.Constraint(m.Trouble.HEAT, 91.0, 85.0)


@pytest.mark.parametrize("reading", [{"age_ms": 31_000}, {"constrained": HOT}], ids=["unread", "hot"])
def test_while_a_card_takes_no_model_the_one_on_another_card_serves(reading: dict[str, Any]) -> None:
    """RES-13, RES-27: while a card could not be read, callers waited to the end of their patience for a model on it,
    beside a smaller one that was warm; and who has no other one is told what is in the way."""
    world = two_cards()
    world.run(1_000)
    seen = {
        "gpu:0": m.DeviceReading(24 * GB, 24 * GB, **reading),
        "gpu:1": m.DeviceReading(24 * GB, 24 * GB),
    }
    world.feed(m.Observed(int(world.now), seen, {}))
    assert world.arrive("big", 500, lane="chat").served_by == "small"
    alone = world.arrive("big", 500, lane="chat", exact=True, deadline_ms=100)
    actions = world.core.step(m.Tick(), int(world.now) + 100)
    texts = [action.message for action in actions if isinstance(action, m.Refuse)]
    assert len(texts) == 1 and alone.served_by == "big"
    why = "cannot be read" if "age_ms" in reading else "takes no new model: 91 C, and its limit is 85 C"
    assert f", the deadline of its caller: gpu:0 {why}" in texts[0]


def test_a_model_that_opted_out_waits_for_its_card() -> None:
    """RES-13, RES-14: its requests wait up to their max_wait, and are served when the card is back."""
    world = two_cards(exact=True)
    world.run(100)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    caller = world.arrive("big", 500, lane="chat")
    world.run(20_000)
    assert caller.state == "waiting"
    world.feed(m.MaintenanceAsked(2, "gpu:0", False, "done"))
    world.run(30_000)
    assert (caller.served_by, caller.outcome) == ("big", "answered")


def test_a_request_that_cannot_wait_for_the_next_try_of_a_failing_head_steps_down_at_once(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13: in a lane of 6 s there is no time for three tries; the smaller model is warm."""
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(6_000))}
    world = world_of(*family(model), lanes=lanes)
    warm = world.arrive("small", 100, lane="chat")
    world.run(5_000)
    assert warm.outcome == "answered"
    caller = world.arrive("big", 300, lane="chat")
    while world.core.state.models["big"].stage is not Stage.LOADING:
        world.run(world.now + 50)
    world.run(world.now + 1_500)
    fail_load(world, "big")
    world.run(world.now + 5_000)
    assert (caller.outcome, caller.served_by) == ("answered", "small")
    assert not world.judge.broken


# ------------------------------------------------------------------ a head that hangs


def hung_head(world_of: WorldOf, model: ModelOf, *, sibling_warm: bool, max_wait_ms: int = 8_000) -> World:
    """A family whose head answered, and then hangs; its sibling is idle in memory, or not loaded."""
    quick = Lane(
        "chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(max_wait_ms), timeout_ms=Millis(max_wait_ms // 2)
    )
    world = world_of(*family(model), lanes={"chat": quick})
    for name in ("big", "small") if sibling_warm else ("big",):
        world.arrive(name, 300, lane="chat")
        world.run(world.now + 8_000)
    world.core.state.models["big"].first.learn(100)  # the world tells no first bytes
    world.engines["big"].freeze(world.now)
    return world


@pytest.mark.parametrize("max_wait_s", [8, 9, 10, 12, 16, 20, 24, 30])
@pytest.mark.parametrize("after_ms", [1_000, 5_000], ids=["fails", "hangs"])
def test_who_waits_for_a_head_that_never_loads_is_served_by_the_smaller_one_in_time(
    world_of: WorldOf, model: ModelOf, max_wait_s: int, after_ms: int
) -> None:
    """RES-13, LANE-04: however often the head is tried meanwhile, time is left for the load of the smaller one. With
    ten seconds of patience the first caller got 503 in the middle of the third try, with twenty where loads hang."""
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(1_000 * max_wait_s))}
    big, small = (replace(each, group="g") for each in family(model))  # not beside each other
    world = world_of(big, small, load_ms=1_000, lanes=lanes)
    engine = world.engines["big"]
    engine.model = replace(engine.model, load_ms=3_600_000)

    def break_off() -> None:
        state = world.core.state.models["big"]
        if state.stage is Stage.LOADING and world.now >= state.since + after_ms:
            fail_load(world, "big")
        world.at(world.now + 50, break_off)

    break_off()
    caller = world.arrive("big", 500, lane="chat")
    world.run(60_000)
    assert (caller.outcome, caller.served_by) == ("answered", "small")


def test_while_the_head_is_suspect_its_sibling_in_memory_serves(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13, RES-20: seen: 6 of 6 requests got 503 over 42 s with an idle sibling beside the hung head."""
    world = hung_head(world_of, model, sibling_warm=True)
    first = world.arrive("big", 300, lane="chat")
    world.run(world.now + 4_100)
    later = [world.arrive("big", 300, lane="chat") for _ in range(3)]
    said = explain(world.core, msgspec.structs.replace(later[0].request, id="next"), int(world.now))
    assert said["served_by"] == "small" and "in place of big" in str(said["reason"])
    world.run(world.now + 5_000)
    assert first.outcome == "run_timeout"
    assert [(c.served_by, c.outcome) for c in later] == [("small", "answered")] * 3
    assert not world.judge.broken


def test_a_request_that_waits_for_a_suspect_head_is_served_by_its_sibling(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, RES-20: not only the next one; those in the line of the head go on at once."""
    world = hung_head(world_of, model, sibling_warm=True)
    callers = [world.arrive("big", 300, lane="chat") for _ in range(4)]
    world.run(world.now + 9_000)
    assert [c.outcome for c in callers].count("answered") == 3
    assert not world.judge.broken


def test_a_request_behind_a_long_answer_goes_to_the_sibling_before_its_wait_is_over(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13: a smaller model serves what would pass its max_wait, also where nothing is known against the head."""
    patient = Lane("slow", WorkClass.INTERACTIVE, max_wait_ms=Millis(8_000), timeout_ms=Millis(600_000))
    world = world_of(*family(model), lanes={"slow": patient})
    for name in ("big", "small"):
        world.arrive(name, 300, lane="slow")
        world.run(world.now + 8_000)
    world.arrive("big", 100_000, lane="slow")
    waiting = world.arrive("big", 300, lane="slow")
    came = world.now
    world.run(came + 6_000)
    assert waiting.served_by == "big"  # never merely to save a wait
    world.run(came + 8_000)
    assert (waiting.served_by, waiting.outcome) == ("small", "answered")


def test_a_sibling_is_loaded_where_a_suspect_head_would_come_too_late(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, RES-20: if the time allows the load."""
    world = hung_head(world_of, model, sibling_warm=False)
    world.arrive("big", 300, lane="chat")
    world.run(world.now + 4_100)
    later = world.arrive("big", 300, lane="chat")
    world.run(world.now + 8_000)
    assert (later.served_by, later.outcome) == ("small", "answered")


def test_who_asks_for_exactly_the_suspect_head_is_told_when_it_may_be_back(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, LANE-04: no smaller model; its Retry-After counts the question, the reset and the load."""
    world = hung_head(world_of, model, sibling_warm=True, max_wait_ms=4_000)
    world.arrive("big", 300, lane="chat")
    world.run(world.now + 2_100)
    later = world.arrive("big", 300, lane="chat", exact=True)
    world.run(world.now + 4_100)
    assert later.outcome == "wait_exceeded" and later.retry_after_ms > 5_000


def test_a_frozen_model_that_is_known_to_be_fast_is_asked_after_its_first_silent_timeout(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: alone with the question nobody waits longer for it; the reset came 36 to 69 s after the freeze."""
    world = hung_head(world_of, model, sibling_warm=False)
    frozen = world.now
    while not world.alerts and world.now < frozen + 60_000:
        world.arrive("big", 300, lane="chat", exact=True)
        world.run(world.now + 2_000)
    assert [alert.kind for alert in world.alerts] == ["watchdog"]
    assert world.now - frozen < 35_000
