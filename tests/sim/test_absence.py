"""Why a model is not in memory: one typed reason, told by status, explain, journal and alerts."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import BackgroundTask, Device, RotationRules, WorkClass
from watchbill.core import messages as m
from watchbill.core.absence import Absence, Why, absence_of, describe
from watchbill.core.resources import GroupPlace, HostPlaces, ResidentPlaces
from watchbill.core.stages import Stage
from watchbill.runtime.explain import explain
from watchbill.runtime.pins import with_pins
from watchbill.runtime.views import rotation_view, status_view
from watchbill.simulate.world import World
from watchbill.steps import at_once
from watchbill.units import Bytes, Millis

GB = 10**9


def why(world: World, name: str) -> Why | None:
    absence = absence_of(world.core.state, world.core.state.models[name], int(world.now))
    return None if absence is None else absence.why


def alerts(world: World, kind: str) -> list[m.Alert]:
    return [alert for alert in world.alerts if alert.kind == kind]


def told(world: World, name: str) -> dict[str, object]:
    """What `status` says of a model."""
    view = at_once(status_view(world.core.state, {}, int(world.now)))
    return view["models"][name]  # type: ignore[index,return-value]


def test_a_permanent_model_that_does_not_fit_at_start_says_why(world_of: WorldOf, model: ModelOf) -> None:
    """RES-02, RES-04, RES-26: not loaded, and journal, alert, status and explain name the figures."""
    world = world_of(model("rock", 8, permanent=True))
    world.foreign["gpu:0"] = 20 * GB
    world.run(30_000)
    assert why(world, "rock") is Why.NO_ROOM
    [alert] = alerts(world, "absent")
    assert (
        "rock is permanent and not in memory: it needs 8 GB of gpu:0, where 4 GB is available now"
        in alert.text
    )
    assert [note.event for _, note in world.journal].count("absent") == 1
    assert told(world, "rock")["absence"] == {
        "why": "no_room", "device": "gpu:0", "needed": 8 * GB, "room": 4 * GB, "cause": None,
    }  # fmt: skip
    assert "8 GB of gpu:0" in str(told(world, "rock")["reason"])
    request = m.Request("x", "rock", "chat", world.catalog.lanes["chat"].work_class, 30_000, 60_000, 60_000)
    assert "8 GB of gpu:0" in str(explain(world.core, request, 30_000)["absent_because"])
    world.foreign["gpu:0"] = 0
    world.run(60_000)
    assert (why(world, "rock"), told(world, "rock")["state"]) == (None, "ready")


def test_a_permanent_model_that_outgrows_its_budget_says_so(world_of: WorldOf, model: ModelOf) -> None:
    """RES-02, RES-26: it leaves with an alert that has the figures, and status says why it stays away."""
    world = world_of(model("rock", 8, permanent=True), capacity_gb=10)
    world.run(5_000)
    engine = world.engines["rock"]
    assert engine.held
    world.reload(replace(world.catalog, devices={"gpu:0": Device("gpu:0", capacity=Bytes(7 * GB))}))
    world.run(20_000)
    [left] = alerts(world, "budget")
    assert "rock is permanent and leaves: gpu:0 holds more than its budget of 7 GB" in left.text
    assert why(world, "rock") is Why.NEVER_FITS
    [absent] = alerts(world, "absent")
    assert "7 GB is all there is" in absent.text


def test_a_model_that_outgrew_its_device_is_tried_again_at_the_next_start(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-02: the size that an earlier daemon saw it grow to is no need of a load. Otherwise it would stay away for
    ever, however often the daemon is started."""
    world = world_of(model("rock", 8, permanent=True), model("sand", 8), capacity_gb=24)
    for name in ("rock", "sand"):
        grown = m.Footprint({"gpu:0": 30 * GB}, {}, fresh={"gpu:0": 8 * GB})
        world.core.state.models[name].footprint = grown
        world.core.state.weigh(world.core.state.models[name])
    world.at(2_000, lambda: world.arrive("sand", 300, lane="chat"))
    world.run(20_000)
    assert told(world, "rock")["state"] == "ready"
    assert [each.outcome for each in world.callers.values()] == ["answered"]


@pytest.mark.parametrize("reason", ["unused", "left", "by_hand", "maintenance", "failed"])
def test_every_absent_model_has_a_reason(world_of: WorldOf, model: ModelOf, reason: str) -> None:
    """RES-26: status never leaves a model without a word."""
    world = world_of(model("A", idle_ms=Millis(2_000)))
    world.run(100)
    if reason != "unused":
        world.arrive("A", 300, lane="chat")
        world.run(2_000)
    if reason == "failed":
        world.engines["A"].power_off()
        world.feed(m.LoadFailed("A", world.engines["A"].attempt, "the file is corrupt", hopeless=True))
    elif reason == "by_hand":
        world.run(4_000)
        world.feed(m.EvictAsked(1, "A"))
    elif reason == "maintenance":
        world.run(4_000)
        world.feed(m.MaintenanceAsked(1, "gpu:0", True, "drivers"))
    world.run(10_000)
    assert why(world, "A") is Why(reason)
    assert told(world, "A")["reason"]


def test_reasons_are_told_in_words_for_every_kind() -> None:
    """RES-26: the words come from the type, whatever its figures are."""
    for kind in Why:
        for places in (None, GroupPlace("gpu:0", "heavy"), ResidentPlaces("gpu:0"), HostPlaces("ollama")):
            assert describe(Absence(kind, "gpu:0", 5, 3, places, detail="words"))


def test_a_model_that_waits_for_a_place_in_its_host_names_the_host(world_of: WorldOf, model: ModelOf) -> None:
    """RES-26: the host's own bound, not the name of a device or its max_resident."""
    world = world_of(model("A", 2), model("B", 2))
    world.feed(m.HostSeen("scripted", places=1))
    world.arrive("A", 60_000, lane="batch")
    world.run(8_000)
    world.arrive("B", 300, lane="batch")
    world.run(8_100)
    absence = absence_of(world.core.state, world.core.state.models["B"], int(world.now))
    assert absence is not None and (absence.places, absence.device) == (HostPlaces("scripted"), None)
    assert describe(absence) == "it waits for scripted: every place for a model is taken"


def test_a_card_that_is_not_read_any_more_is_said_to_be_unwell(world_of: WorldOf, model: ModelOf) -> None:
    """R25, FLEET-04: status and its agent showed the last temperature, and the agent claimed tasks for the card."""
    world = world_of(model("A"))
    world.run(1_000)
    old = {"gpu:0": m.DeviceReading(24 * GB, 20 * GB, age_ms=31_000)}
    world.feed(m.Observed(int(world.now), old, {}))
    device = at_once(status_view(world.core.state, {}, int(world.now)))["devices"]["gpu:0"]  # type: ignore[index]
    assert device["constrained"] == "it could not be read for 31 s"
    assert device["constraint"] == {"trouble": "unread", "figure": 31.0, "limit": 30.0, "throttled": []}


def test_a_card_that_takes_no_model_is_in_the_journal_and_raises_an_alert(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-26, RES-27: status and explain said that a card was too hot, and nothing remained of it. A card that is over
    a limit for a moment is no news, and one that is often over it raises one alert in ten minutes."""
    world = world_of(model("A", 4))
    world.run(1_000)

    def look(*limits: m.Constraint | None, from_ms: int) -> list[str]:
        """What a card tells that is read once a second: the lines of the journal."""
        before = len(world.journal)
        for number, limit in enumerate(limits):
            world.run(from_ms + 1_000 * number)
            world.feed(m.Observed(int(world.now), {"gpu:0": m.DeviceReading(24 * GB, 24 * GB, 0, limit)}, {}))
        return [f"{note.event} {note.device}: {note.reason}" for _, note in world.journal[before:]]

    world.look = lambda: None  # type: ignore[method-assign]
    hot, drawing = m.Constraint(m.Trouble.HEAT, 91.0, 85.0), m.Constraint(m.Trouble.POWER, 320.0, 300.0)
    assert look(hot, hot, hot, None, None, from_ms=2_000) == []
    first = "constrained gpu:0: gpu:0 takes no new model: 91 C, and its limit is 85 C"
    assert look(*[hot] * 10, from_ms=10_000) == [first]
    assert [(alert.kind, alert.device) for alert in world.alerts] == [("card", "gpu:0")]
    assert "gpu:0 takes no new model: 91 C, and its limit is 85 C" in world.alerts[0].text
    other = "constrained gpu:0: gpu:0 takes no new model: 320 W, and its limit is 300 W"
    over = "recovered gpu:0: gpu:0 takes models again"
    assert look(*[drawing] * 10, None, None, from_ms=30_000) == [other, over]
    assert len(world.alerts) == 1
    assert look(*[hot] * 10, from_ms=640_000) == [first] and len(world.alerts) == 2


def test_a_planned_model_is_not_counted_as_loading(world_of: WorldOf, model: ModelOf) -> None:
    """status: what is promised is one figure, what loads another."""
    world = world_of(model("A"), model("B"))
    world.arrive("A", 60_000, lane="batch")
    world.run(8_000)
    world.arrive("B", 300, lane="chat")
    while world.core.state.models["B"].stage is not Stage.PLANNED:
        world.run(world.now + 50)
    view = at_once(status_view(world.core.state, {}, int(world.now)))
    device = view["devices"]["gpu:0"]  # type: ignore[index]
    assert (told(world, "B")["state"], device["loading"], device["planned"]) == ("planned", 0, 16 * GB)


def test_a_task_longer_than_the_idle_time_leaves_its_model_there_for_that_time(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-16, RES-07: idle time counts from the end of the task."""
    task = BackgroundTask(prompt="hello")
    world = world_of(model("A", background=task, idle_ms=Millis(4_000)))
    lane_work = 9_000
    world.arrive("A", lane_work, lane="rotation")
    world.run(3_500 + lane_work)
    there = world.core.state.models["A"]
    assert (there.stage, there.running) == (Stage.READY, {})
    world.run(3_000 + lane_work + 3_500)
    assert there.stage is Stage.READY
    world.run(3_000 + lane_work + 6_000)
    assert there.stage is Stage.ABSENT


def test_status_tells_the_rotations_interval_and_next_turn(world_of: WorldOf, model: ModelOf) -> None:
    """RES-16: how often, whose turn is next, and when."""
    models = [model(name, 1, background=BackgroundTask(prompt="hello")) for name in "AB"]
    world = world_of(*models)
    rules = RotationRules(every_ms=Millis(600_000))
    world.feed(m.Reconfigured(replace(world.catalog, rotation=rules), {}))
    world.run(60_000)
    view = rotation_view(world.core, 60_000)
    assert view == {
        "every_ms": 600_000, "interval_ms": 600_000, "next_ms": 540_000, "next_model": "A", "running": None,
    }  # fmt: skip


def test_a_model_that_a_pin_keeps_out_names_the_pinned_model(world_of: WorldOf, model: ModelOf) -> None:
    """RES-04: the refusal, status and explain say which model was pinned by hand, and how to let it go."""
    world = world_of(model("P", 20), model("A", 8))
    declared = world.catalog
    world.reload(with_pins(declared, {"P"}))
    world.run(5_000)
    request = m.Request("1", "A", "chat", WorkClass.INTERACTIVE, 5_000, 60_000, 60_000)
    refusal = next(each for each in world.core.step(m.Arrived(request), 5_000) if isinstance(each, m.Refuse))
    hint = "P is pinned by hand: watchbill pin P --off makes room"
    assert refusal.code == "never_fits" and refusal.message.endswith(hint)
    assert str(told(world, "A")["reason"]).endswith(hint)
    assert str(explain(world.core, request, 5_000)["absent_because"]).endswith(hint)
    world.reload(with_pins(declared, ()))
    assert world.arrive("A", 300, lane="chat").state == "waiting"


def test_a_pin_is_not_blamed_for_a_model_that_never_fits(world_of: WorldOf, model: ModelOf) -> None:
    """RES-04: advice that would not help is not given."""
    world = world_of(model("P", 2), model("A", 30))
    world.reload(with_pins(world.catalog, {"P"}))
    assert "pinned" not in str(told(world, "A")["reason"])
