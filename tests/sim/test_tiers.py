"""Families: a lower tier serves where the asked one cannot, also for requests that already wait."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.model_state import Stage
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
    return model("big", 16, family="f", tier=1, **more), model("small", 4, family="f", tier=2)


def test_a_request_that_waits_for_a_failing_head_steps_down_itself(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13, RES-20: not only the next one: the request that found the model failing is served by the lower tier."""
    world = world_of(*family(model))
    first, second = (world.arrive("big", 500, lane="chat") for _ in range(2))
    fail_until_quarantined(world, "big")
    assert (first.served_by, second.served_by) == ("small", "small")
    world.run(world.now + 20_000)
    assert (first.outcome, second.outcome) == ("answered", "answered")
    assert not world.judge.broken


def test_a_request_that_stepped_down_keeps_its_deadline(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: max_wait counts from arrival, whichever tier serves."""
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
def test_who_opted_out_of_tiers_is_told_that_the_model_failed(
    world_of: WorldOf, model: ModelOf, by: str
) -> None:
    """RES-13: opt-out per request and per model."""
    world = world_of(*family(model, exact=by == "model"))
    caller = world.arrive("big", 500, lane="chat", exact=by == "request")
    fail_until_quarantined(world, "big")
    assert caller.outcome == "model_failed"
    assert world.arrive("big", 500, lane="chat", exact=by == "request").outcome == "model_failed"
    assert world.arrive("small", 500, lane="chat").outcome == ""


def test_a_quarantined_tier_passes_its_requests_on_to_the_next(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: down the family, tier by tier, until one serves or none is left."""
    world = world_of(*family(model), model("tiny", 1, family="f", tier=3))
    caller = world.arrive("big", 500, lane="chat")
    fail_until_quarantined(world, "big")
    fail_until_quarantined(world, "small")
    assert caller.served_by == "tiny"
    fail_until_quarantined(world, "tiny")
    assert caller.outcome == "model_failed"


def test_a_request_for_a_removed_tier_goes_to_another_one_of_its_family(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, LANE-04: the tier that served in its place is removed from the config; the request is not lost."""
    world = world_of(*family(model), model("tiny", 1, family="f", tier=3))
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
    """A family whose tiers are on two cards."""
    devices = {name: Device(name, capacity=Bytes(24 * GB)) for name in ("gpu:0", "gpu:1")}
    models = [
        Model("big", "scripted", memory={"gpu:0": Bytes(16 * GB)}, devices=("gpu:0",), family="f", tier=1, **of_big),  # type: ignore[arg-type]
        Model("small", "scripted", memory={"gpu:1": Bytes(4 * GB)}, devices=("gpu:1",), family="f", tier=2),
    ]  # fmt: skip
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000))}
    engines = {"scripted": EngineRules("scripted", "scripted")}
    catalog = Catalog(devices, engines, {each.name: each for each in models}, lanes)
    truth = {each.name: TrueModel(each.name, 3_000, dict(each.memory), 0.0) for each in models}
    return World(catalog, truth, dict.fromkeys(devices, 24 * GB))


def test_while_a_card_is_lent_the_tier_on_another_card_serves() -> None:
    """RES-13, RES-14: maintenance of one card is no reason to wait for it."""
    world = two_cards()
    world.run(100)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    caller = world.arrive("big", 500, lane="chat")
    world.run(10_000)
    assert (caller.served_by, caller.outcome) == ("small", "answered")


@pytest.mark.parametrize("begun", [False, True])
def test_requests_that_wait_when_a_card_is_lent_go_to_the_tier_on_another_card(begun: bool) -> None:
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
    """RES-13: in a lane of 6 s there is no time for three tries; the lower tier is warm."""
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
