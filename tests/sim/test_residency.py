"""What residency promises, one promise a test, in a world where exactly one thing happens."""

from dataclasses import replace
from itertools import pairwise

import pytest

from support.worlds import ModelOf, WorldOf, stage
from watchbill.catalog import (
    BackgroundTask,
    Catalog,
    Device,
    EngineRules,
    Epoch,
    Lane,
    Model,
    Reservation,
    RotationRules,
    WorkClass,
)
from watchbill.core import messages as m
from watchbill.core.ledger import READING_AGE_MAX_MS
from watchbill.core.machine import Machine
from watchbill.core.residency import NEXT, Move, Residency
from watchbill.core.stages import Stage
from watchbill.core.watchdog import CHECK_MS, WELL_MS
from watchbill.errors import IllegalTransition
from watchbill.runtime.explain import explain
from watchbill.simulate.callers import Caller
from watchbill.simulate.engine import Power
from watchbill.simulate.world import Faults, World
from watchbill.units import Bytes, Millis

GB = 10**9


def callers_come(world: World, count: int, first_ms: int, each_ms: int) -> None:
    for number in range(count):
        world.at(first_ms + number * each_ms, lambda: world.arrive("A", 300, lane="chat"))


def reasons(world: World, event: str, model: str | None = None) -> list[str]:
    return [str(n.reason) for _, n in world.journal if n.event == event and model in (None, n.model)]


def test_a_model_loads_on_demand_and_leaves_when_idle(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07: an idle model is evicted after its time to live; the journal says why."""
    world = world_of(model("A", idle_ms=Millis(20_000)))
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat")
    world.run(10_000)
    assert caller.outcome == "answered"
    assert stage(world, "A") is Stage.READY
    world.run(26_000)
    assert stage(world, "A") is Stage.ABSENT
    assert reasons(world, "evict", "A") == ["idle for 20 s"]


def test_a_permanent_model_loads_at_start_and_stays(world_of: WorldOf, model: ModelOf) -> None:
    """RES-02: permanent models are loaded at start, ignore their idle time and are not evicted without force."""
    world = world_of(model("P", permanent=True, idle_ms=Millis(5_000)))
    world.run(120_000)
    assert stage(world, "P") is Stage.READY
    world.feed(m.EvictAsked(1, "P"))
    assert [r.ok for r in world.replies] == [False]
    assert stage(world, "P") is Stage.READY
    world.feed(m.EvictAsked(2, "P", force=True))
    world.run(122_000)
    assert world.replies[-1] == m.Reply(2, True, "P was unloaded")


def test_an_eviction_lets_answers_end_and_a_forced_one_cuts_them(world_of: WorldOf, model: ModelOf) -> None:
    """RES-12: the operator's evict drains; with force what runs ends with `preempted`, also while it drains already."""
    world = world_of(model("A"))
    answer = world.arrive("A", 60_000, lane="chat")
    world.run(10_000)
    world.feed(m.EvictAsked(1, "A"))
    world.run(20_000)
    assert (answer.state, world.replies) == ("running", [])
    world.feed(m.EvictAsked(2, "A", force=True))
    world.run(22_000)
    assert (answer.state, answer.outcome) == ("ended", "preempted")
    assert world.replies == [m.Reply(number, True, "A was unloaded") for number in (1, 2)]


def test_nothing_loads_without_room_above_the_reserve(world_of: WorldOf, model: ModelOf) -> None:
    """RES-04: available memory >= size + reserve, as the machine reports it, whatever the books say."""
    device = Device("ram", capacity=Bytes(15 * GB), reserve=Bytes(2 * GB))
    world = world_of(model("A", 4.6, "ram"), device=device)
    world.foreign["ram"] = 9 * GB  # 6 GB available: 0.6 short
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat")
    world.run(30_000)
    assert world.tally.loads == 0
    assert caller.state == "waiting"
    world.foreign["ram"] = 8 * GB
    world.run(45_000)
    assert caller.outcome == "answered"


def test_small_models_sit_beside_large_ones_until_the_budget_is_full(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-03, RES-11: what fits beside the others loads without any tipping point and nobody leaves."""
    world = world_of(model("big", 16), model("small", 4), model("tiny", 4))
    for name in ("big", "small", "tiny"):
        world.at(1_000, lambda name=name: world.arrive(name, 300, lane="chat"))
    world.run(30_000)
    assert {n for n in ("big", "small", "tiny") if stage(world, n) is Stage.READY} == {"big", "small", "tiny"}
    assert not reasons(world, "evict")


def test_a_count_of_resident_models_can_be_capped(world_of: WorldOf, model: ModelOf) -> None:
    """RES-03: max_resident is a limit beside memory."""
    device = Device("gpu:0", capacity=Bytes(24 * GB), max_resident=1)
    world = world_of(model("A", 2), model("B", 2), device=device)
    for name in "AB":
        world.at(1_000, lambda name=name: world.arrive(name, 300, lane="chat"))
    world.run(60_000)
    assert all(c.outcome == "answered" for c in world.callers.values())
    assert world.tally.peak["gpu:0"] == 2 * GB


def test_a_group_is_never_resident_twice_even_when_a_load_fails(world_of: WorldOf, model: ModelOf) -> None:
    """RES-08: at most one member of an exclusive group on a device, also while transitions fail."""
    faults = Faults(load_fails=0.5, memory_late=0.5, until_ms=40_000)
    world = world_of(model("A", 2, group="heavy"), model("B", 2, group="heavy"), faults=faults)
    for i in range(20):
        world.at(i * 2_000 + 1, lambda i=i: world.arrive("AB"[i % 2], 300, lane="chat"))
    world.run(200_000)
    assert not world.judge.broken
    assert any(c.outcome == "answered" for c in world.callers.values())


def test_a_serial_model_gets_one_request_at_a_time(world_of: WorldOf, model: ModelOf) -> None:
    """RES-10, LANE-01: concurrency 1 is serial, and a model is never swapped for itself."""
    world = world_of(model("A", concurrency=1))
    for _ in range(5):
        world.at(1_000, lambda: world.arrive("A", 1_000, lane="chat"))
    world.run(30_000)
    assert world.tally.loads == 1
    starts = sorted(c.started_at or 0 for c in world.callers.values())
    assert all(later - earlier >= 999 for earlier, later in pairwise(starts))


def test_an_emergency_takes_even_a_permanent_model(world_of: WorldOf, model: ModelOf) -> None:
    """RES-05, RES-06: 173 MB free with a 4.6 GB permanent model: it leaves within the grace, and returns later."""
    device = Device("ram", capacity=Bytes(15 * GB), reserve=Bytes(2 * GB))
    world = world_of(model("mnemos", 4.6, "ram", permanent=True), device=device, load_ms=30_000)
    world.run(40_000)
    assert stage(world, "mnemos") is Stage.READY
    world.arrive("mnemos", 60_000, lane="chat")
    world.run(42_000)
    world.foreign["ram"] = 15 * GB - int(4.6 * GB) - 173_000_000
    world.look()
    world.run(world.now + 2_600)
    assert world.engines["mnemos"].power is Power.OFF
    assert [a.kind for a in world.alerts] == ["emergency"]
    assert next(iter(world.callers.values())).outcome == "preempted"
    world.foreign["ram"] = 3 * GB
    world.run(world.now + 60_000)
    assert stage(world, "mnemos") is Stage.READY


def test_an_emergency_takes_the_cheapest_loss_first_and_looks_before_the_next(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-06: the idle one goes, not the busy or the permanent one; and only one, when that is enough."""
    device = Device("ram", capacity=Bytes(20 * GB), reserve=Bytes(2 * GB))
    world = world_of(
        model("P", 4, "ram", permanent=True), model("busy", 4, "ram"), model("idle", 4, "ram"), device=device
    )
    for name in ("busy", "idle"):
        world.at(5_000, lambda name=name: world.arrive(name, 300, lane="chat"))
    world.run(30_000)
    world.arrive("busy", 60_000, lane="chat")
    world.run(33_000)
    world.foreign["ram"] = 7 * GB
    world.look()
    world.run(60_000)
    assert reasons(world, "evict", "idle")
    assert {name: stage(world, name) for name in ("P", "busy")} == {"P": Stage.READY, "busy": Stage.READY}


def test_the_reserved_core_model_is_the_last_to_leave(world_of: WorldOf, model: ModelOf) -> None:
    """RES-15: memory is kept for the core model, no swap takes it, and an emergency takes it last."""
    device = Device(
        "gpu:0",
        capacity=Bytes(10 * GB),
        reserve=Bytes(GB),
        reservation=Reservation("lexicon", Bytes(2 * GB)),
    )
    world = world_of(model("lexicon", 2), model("other", 7), model("large", 8), device=device)
    world.run(1_000)
    # 8 GB fit the budget of 9, but never beside the reservation.
    assert world.arrive("large", 300, lane="chat").outcome == "never_fits"
    world.arrive("other", 300, lane="chat")
    world.run(15_000)
    assert stage(world, "other") is Stage.READY
    world.arrive("lexicon", 300, lane="chat")
    world.run(25_000)
    assert stage(world, "lexicon") is Stage.READY
    world.foreign["gpu:0"] = int(0.5 * GB)
    world.look()
    world.run(40_000)
    assert stage(world, "lexicon") is Stage.READY
    assert reasons(world, "evict", "other")


def test_maintenance_empties_the_device_and_permanents_return(world_of: WorldOf, model: ModelOf) -> None:
    """RES-14: everything drains and unloads; requests wait, then 503 maintenance; on release permanents return."""
    lanes = {"chat": Lane("chat", max_wait_ms=Millis(20_000))}
    world = world_of(model("P", 4, permanent=True), model("A", 4), lanes=lanes)
    world.at(2_000, lambda: world.arrive("A", 300, lane="chat"))
    world.run(20_000)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "forge"))
    world.run(25_000)
    assert world.replies == [m.Reply(1, True, "gpu:0 is empty and lent to you")]
    assert reasons(world, "evict", "A") == ["gpu:0 is lent for maintenance: forge"]
    assert world.available("gpu:0") == 24 * GB
    waiting = world.arrive("A", 300, lane="chat")
    said = explain(world.core, waiting.request, int(world.now))
    assert said["verdict"] == "waits" and "until gpu:0 is back from maintenance (forge)" in str(
        said["reason"]
    )
    world.run(50_000)
    assert (waiting.outcome, world.tally.loads) == ("maintenance", 2)
    world.feed(m.MaintenanceAsked(2, "gpu:0", False, "done"))
    world.run(60_000)
    assert stage(world, "P") is Stage.READY


def test_a_lower_tier_serves_when_the_asked_one_cannot_in_time(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: within a family a smaller model serves when the asked one would pass the bound; exact opts out."""
    lanes = {"chat": Lane("chat", max_wait_ms=Millis(8_000))}
    world = world_of(
        model("70b", 20, family="reasoning", family_rank=1),
        model("8b", 4, family="reasoning", family_rank=2),
        lanes=lanes,
    )
    world.core.state.models["70b"].load.learn(25_000)
    world.core.state.models["70b"].load.learn(25_000)
    world.run(1_000)
    caller = world.arrive("70b", 300, lane="chat")
    world.run(10_000)
    assert (caller.served_by, caller.outcome) == ("8b", "answered")


def test_a_constrained_device_takes_nothing_new_and_recovers(world_of: WorldOf, model: ModelOf) -> None:
    """RES-27: on a device in bad health nothing is loaded, what is warm serves on; it recovers by itself."""
    world = world_of(model("A", 4), model("B", 4))
    world.run(1_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    hot = {"gpu:0": m.DeviceReading(24 * GB, 20 * GB, constrained=m.Constraint(m.Trouble.HEAT, 90.0, 85.0))}
    world.look = lambda: world.feed(m.Observed(int(world.now), hot, {}))  # type: ignore[method-assign]
    world.look()
    cold, warm = world.arrive("B", 300, lane="chat"), world.arrive("A", 300, lane="chat")
    world.run(20_000)
    assert (cold.state, warm.outcome) == ("waiting", "answered")
    del world.look
    world.run(40_000)
    assert cold.outcome == "answered"


@pytest.mark.parametrize(
    ("age_ms", "is_loaded"), [(READING_AGE_MAX_MS, True), (READING_AGE_MAX_MS + 1, False)]
)
def test_nothing_is_loaded_on_a_reading_that_is_too_old(
    world_of: WorldOf, model: ModelOf, age_ms: int, is_loaded: bool
) -> None:
    """R25: a probe that hangs or vanished; what is warm serves on, and loads go on with the next reading."""
    world = world_of(model("A", 4), model("B", 4))
    world.run(1_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    old = {"gpu:0": m.DeviceReading(24 * GB, 20 * GB, age_ms=age_ms)}
    world.look = lambda: world.feed(m.Observed(int(world.now), old, {}))  # type: ignore[method-assign]
    world.look()
    cold, warm = world.arrive("B", 300, lane="chat"), world.arrive("A", 300, lane="chat")
    world.run(20_000)
    assert (cold.outcome == "answered", warm.outcome) == (is_loaded, "answered")
    del world.look
    world.run(40_000)
    assert cold.outcome == "answered"


def test_a_model_that_fails_three_times_is_quarantined_with_growing_pauses(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: never retried in a tight loop; its requests get a clear error; it comes back when it is mended."""
    world = world_of(model("A"), faults=Faults(load_fails=1.0, until_ms=400_000))
    world.run(1_000)
    caller = world.arrive("A", 300, lane="chat")
    world.run(60_000)
    assert caller.outcome == "model_failed"
    assert world.tally.loads == 3
    assert [a.kind for a in world.alerts] == ["quarantine"]
    refused = world.arrive("A", 300, lane="chat")
    assert (refused.outcome, world.tally.loads) == ("model_failed", 3)
    world.run(500_000)
    mended = world.arrive("A", 300, lane="chat")
    world.run(520_000)
    assert mended.outcome == "answered"


@pytest.mark.parametrize("fault", ["answers", "memory"])
def test_the_watchdog_resets_what_nobody_reports(world_of: WorldOf, model: ModelOf, fault: str) -> None:
    """RES-20: only failures in a row, or more memory than its quota: hard reset and an alert."""
    faults = Faults(answer_fails=1.0, until_ms=30_000) if fault == "answers" else None
    world = world_of(model("A", 4, quota=Bytes(4_500_000_000)), faults=faults)
    callers_come(world, 4, 5_000, 2_000)
    world.run(16_000)
    if fault == "memory":
        world.engines["A"].held["gpu:0"] = 5 * GB
        world.look()
    assert "watchdog" in [a.kind for a in world.alerts]


def test_background_rotation_takes_turns_and_yields(world_of: WorldOf, model: ModelOf) -> None:
    """RES-16, RES-17: in the configured order, one at a time, and an explicit request goes before it."""
    tasks = [
        model(name, 16, background=BackgroundTask("Look around.")) for name in ("gamma", "mantis", "logos")
    ]
    world = world_of(*tasks, model("chat", 16), load_ms=2_000)
    rules = RotationRules(Millis(60_000), order=("logos", "gamma", "mantis"))
    world.feed(m.Reconfigured(replace(world.catalog, rotation=rules), {}))
    world.run(200_000)
    loaded = [n.model for _, n in world.journal if n.event == "load"]
    assert loaded[:3] == ["logos", "gamma", "mantis"]
    assert len(reasons(world, "rotation")) >= 2
    caller = world.arrive("chat", 300, lane="chat")
    world.run(210_000)
    assert caller.outcome == "answered"


def test_rotation_slows_down_while_it_loads_more_than_it_works(world_of: WorldOf, model: ModelOf) -> None:
    """RES-16: the interval doubles up to its maximum while load time exceeds useful time, and comes back."""
    world = world_of(model("A", 16, background=BackgroundTask("Look.")), load_ms=2_000)
    rules = RotationRules(Millis(60_000), max_ms=Millis(200_000))
    world.feed(m.Reconfigured(replace(world.catalog, rotation=rules), {}))
    rotation = world.core.rotation  # pyright: ignore[reportPrivateUsage]
    seen = [rotation.interval_ms]
    for load, useful in ((900, 1), (900, 1), (900, 1), (1, 900), (1, 900), (1, 900)):
        world.feed(m.TaskEnded("A", load, useful, True, "done"))
        seen.append(rotation.interval_ms)
    assert seen == [60_000, 120_000, 200_000, 200_000, 100_000, 60_000, 60_000]


def test_silence_is_an_alarm_and_probes_do_not_count(world_of: WorldOf, model: ModelOf) -> None:
    """RES-18: no load, grant or task for longer than the interval and a minute: one alert per silence."""
    world = world_of(model("A"))
    rules = RotationRules(Millis(60_000))
    world.feed(m.Reconfigured(replace(world.catalog, rotation=rules), {}))
    world.run(119_000)
    assert not world.alerts
    world.run(600_000)
    assert [a.kind for a in world.alerts] == ["silence"]
    world.arrive("A", 300, lane="chat")
    world.run(1_200_000)
    assert [a.kind for a in world.alerts] == ["silence", "silence"]


def test_an_epoch_lifts_ingestion_above_background_and_below_people(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-19: inside its window ingestion counts as normal work; it still yields to interactive work."""
    world = world_of(model("embed", 16), model("other", 16), load_ms=2_000)
    epochs = {"ingest": Epoch("ingest", ("embed",), window_ms=Millis(30_000), every_ms=Millis(60_000))}
    world.feed(m.Reconfigured(replace(world.catalog, epochs=epochs), {}))
    for i in range(400):
        world.at(1_000 + i * 400, lambda: world.arrive("other", 500, lane="batch"))
    world.at(5_000, lambda: world.arrive("embed", 300, lane="batch"))
    world.run(75_000)
    embed = next(c for c in world.callers.values() if c.request.model == "embed")
    assert reasons(world, "epoch")
    assert embed.outcome == "answered"
    lifted = [c for c in world.callers.values() if c.request.model == "other"]
    assert lifted
    assert all(c.request.work_class is WorkClass.BACKGROUND for c in lifted)


def test_enough_memory_means_no_swaps_at_all(world_of: WorldOf, model: ModelOf) -> None:
    """RES-25: 80 GB hold sixteen 4.6 GB models beside the reserve; nothing ever leaves."""
    device = Device("ram", capacity=Bytes(80 * GB), reserve=Bytes(2 * 2**30))
    names = [f"m{i:02d}" for i in range(16)]
    world = world_of(*(model(name, 4.6, "ram", idle_ms=Millis(10**8)) for name in names), device=device)
    for i in range(320):
        world.at(1_000 + i * 500, lambda i=i: world.arrive(names[i % 16], 300, lane="chat"))
    world.run(300_000)
    assert world.tally.loads == 16
    assert not reasons(world, "evict")


def test_every_load_and_eviction_is_in_the_journal_with_its_reason(world_of: WorldOf, model: ModelOf) -> None:
    """RES-26: each line carries its reason; as many load lines as loads."""
    world = world_of(model("A"), model("B"), load_ms=1_000)
    for i in range(20):
        world.at(1_000 + i * 3_000, lambda i=i: world.arrive("AB"[i % 2], 300, lane="chat"))
    world.run(120_000)
    assert len(reasons(world, "load")) == world.tally.loads > 1
    assert len(reasons(world, "stopped")) == world.tally.evictions > 0
    assert all(str(note.reason) for _, note in world.journal)


def test_all_memory_pinned_is_a_clear_refusal(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: what can never fit beside the permanents is refused at once, without Retry-After (race 9)."""
    world = world_of(model("P", 20, permanent=True), model("A", 8))
    world.run(5_000)
    caller = world.arrive("A", 300, lane="chat")
    assert (caller.outcome, caller.retry_after_ms) == ("never_fits", 0.0)


def test_a_card_that_nobody_can_read_is_not_called_too_small() -> None:
    """RES-11: a smaller context would not help; the refusal says what to look at."""
    catalog = Catalog(
        {"gpu:0": Device("gpu:0")},
        {"scripted": EngineRules("scripted", "scripted")},
        {"A": Model("A", "scripted", memory={"gpu:0": Bytes(10**9)}, devices=("gpu:0",))},
        {"chat": Lane("chat")},
    )
    machine = Machine(catalog, {"A": m.Knowledge(m.Footprint({"gpu:0": 10**9}))})
    request = m.Request("1", "A", "chat", WorkClass.INTERACTIVE, 0, 1_000, 1_000, 1)
    refusals = [each for each in machine.step(m.Arrived(request), 0) if isinstance(each, m.Refuse)]
    assert [each.code for each in refusals] == ["device_unreadable"] and refusals[0].retry_after_ms
    assert "there is no reading of gpu:0; watchbill doctor" in refusals[0].message


def test_a_full_lane_refuses_and_latest_wins_keeps_the_newest(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-08, LANE-03: a bound on the queue; and N that arrive during a run cost one further model call."""
    lanes = {
        "chat": Lane("chat", queue_max=2),
        "watch": Lane("watch", policy="latest-wins", queue_max=4),
    }
    world = world_of(model("A"), lanes=lanes)
    world.run(1_000)
    outcomes = [world.arrive("A", 300, lane="chat").outcome for _ in range(4)]
    assert outcomes == ["", "", "lane_full", "lane_full"]
    world.run(20_000)
    running = world.arrive("A", 2_000, lane="watch")
    seen = [world.arrive("A", 300, lane="watch") for _ in range(40)]
    assert [c.outcome for c in seen[:-1]] == ["stale"] * 39
    world.run(40_000)
    assert (running.outcome, seen[-1].outcome) == ("answered", "answered")


def test_a_guess_refuses_nobody(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: a model that was never loaded is admitted, however long its size lets us guess; then it is known."""
    world = world_of(model("large", 24), capacity_gb=80, load_ms=None, known_service_ms=None)
    world.run(1_000)
    caller = world.arrive("large", 300, lane="chat")
    assert (caller.state, caller.forecast_ms) == ("waiting", 60_000)
    world.run(20_000)
    assert caller.outcome == "answered"


def test_a_model_that_gives_not_one_byte_in_all_its_time_is_reset(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: R31: answers that time out before their first byte count as failures; three in a row reset it."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(2_000))}
    world = world_of(model("A"), lanes=lanes)
    world._first_byte = lambda caller, granted: None  # type: ignore[method-assign]  it accepts and says nothing
    world._acts[m.Check] = lambda action: None  # nor does it when it is asked something easy
    for i in range(3):
        world.at(1_000 + i * 4_000, lambda: world.arrive("A", 60_000, lane="chat"))
    world.run(12_000)
    assert [c.outcome for c in world.callers.values()] == ["run_timeout"] * 3
    assert "watchdog" not in [a.kind for a in world.alerts]
    world.run(12_000 + CHECK_MS)
    assert "watchdog" in [a.kind for a in world.alerts]


def test_answers_that_fail_by_their_callers_fault_take_the_model_from_nobody(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: however many answers fail, a model that still answers is not reset; it is asked before."""
    world = world_of(model("A"), faults=Faults(answer_fails=1.0, until_ms=30_000))
    world._acts[m.Check] = lambda action: world.feed(m.Checked(action.model, action.attempt))
    callers_come(world, 20, 5_000, 1_000)
    world.run(40_000)
    assert [c.outcome for c in world.callers.values()] == ["failed"] * 20
    assert world.tally.loads == 1 and not world.alerts
    assert reasons(world, "well")[0].startswith("3 failures in a row, but it is well")


def test_a_late_word_about_a_model_that_was_loaded_anew_is_dropped(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: what was asked of an engine says nothing about its successor."""
    world = world_of(model("A"), faults=Faults(answer_fails=1.0, until_ms=14_000))
    asked: list[m.Check] = []
    world._acts[m.Check] = asked.append
    callers_come(world, 3, 5_000, 1_000)
    world.run(15_000)
    world.feed(m.Died("A", asked[0].attempt, "simulated crash"))
    world.run(18_000)
    later = world.arrive("A", 300, lane="chat")
    world.run(40_000)
    world.feed(m.Checked("A", asked[0].attempt, "no answer"))
    assert later.outcome == "answered" and not world.alerts
    assert world.core.state.late_answers == 1 and world.core.state.models["A"].stage is Stage.READY


def test_a_failed_check_that_a_good_answer_refuted_is_forgotten(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: what a model said once is not held against it later: it is asked anew, and no count of 0 is noted."""
    world = world_of(model("A", concurrency=2), faults=Faults(answer_fails=1.0, until_ms=9_000))
    asked: list[m.Check] = []
    world._acts[m.Check] = asked.append
    world.at(1_000, lambda: world.arrive("A", 7_000, lane="chat"))
    callers_come(world, 3, 5_000, 1_500)
    world.run(12_000)
    assert [c.outcome for c in world.callers.values()] == ["answered"] + ["failed"] * 3
    world.feed(m.Checked("A", asked[0].attempt, "no answer in time"))
    world.faults = replace(world.faults, until_ms=100_000)
    callers_come(world, 3, 60_000, 1_000)
    world.run(64_000)
    assert len(asked) == 2 and not world.alerts and stage(world, "A") is Stage.READY
    world.feed(m.Checked("A", asked[1].attempt))
    assert [reason[:16] for reason in reasons(world, "well")] == ["3 failures in a "]


def test_a_model_that_has_something_else_to_do_is_not_reset_for_its_silence(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a question beside others proves nothing; who is served since before it is not cut off."""
    world = world_of(model("A", concurrency=2), faults=Faults(answer_fails=1.0, until_ms=9_000))
    asked: list[tuple[float, m.Check]] = []

    def ask(action: m.Check) -> None:
        asked.append((world.now, action))
        failed = m.Checked(action.model, action.attempt, "no answer in 20 s")
        world.at(world.now + 20_000, lambda: world.feed(failed))  # the engine's only slot is taken

    world._acts[m.Check] = ask
    world.at(1_000, lambda: world.arrive("A", 250_000, lane="batch"))
    callers_come(world, 3, 5_000, 1_500)
    world.run(250_000)
    assert stage(world, "A") is Stage.READY and not world.alerts
    gaps = [later - before for (before, _), (later, _) in pairwise(asked)]
    assert gaps and min(gaps) >= CHECK_MS
    world.run(300_000)
    assert [c.outcome for c in world.callers.values()] == ["answered"] + ["failed"] * 3


def test_who_sends_bad_requests_for_ever_does_not_have_the_model_asked_for_ever(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: a model that was found well is left alone for a while; what fails after it is still found out."""
    world = world_of(model("A"), faults=Faults(answer_fails=1.0))
    asked: list[float] = []
    is_well = True

    def ask(action: m.Check) -> None:
        asked.append(world.now)
        failure = None if is_well else "no answer"
        world.at(world.now + 50, lambda: world.feed(m.Checked(action.model, action.attempt, failure)))

    world._acts[m.Check] = ask
    for i in range(800):
        world.at(10_000 + i * 100, lambda: world.arrive("A", 20, lane="chat"))
    world.run(92_000)
    assert 2 <= len(asked) <= 1 + 82_000 / WELL_MS and world.tally.loads == 1 and not world.alerts
    is_well = False
    for _ in range(3):
        world.arrive("A", 20, lane="chat")
    world.run(92_000 + WELL_MS)
    assert "watchdog" in [a.kind for a in world.alerts]


@pytest.mark.parametrize("change", ["removed", "without a task"])
def test_the_rotation_gives_no_turn_to_a_model_that_is_on_its_way_out_of_the_config(
    world_of: WorldOf, model: ModelOf, change: str
) -> None:
    """RES-16: who drains after a reload has no task any more; the others' turns go on."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(900_000))}
    task = BackgroundTask("Look around.")
    world = world_of(model("gamma", 4, background=task), model("logos", 4, background=task), lanes=lanes)
    rules = RotationRules(Millis(60_000), order=("gamma", "logos"))
    world.feed(m.Reconfigured(replace(world.catalog, rotation=rules), {}))
    streams = world.arrive("gamma", 800_000, lane="chat")
    world.run(30_000)
    tasks: list[str] = []
    carry_out = world._acts[m.RunTask]

    def note(action: m.RunTask) -> None:
        tasks.append(action.model)
        if action.model == "logos":  # as the driver does: of gamma the config knows no task
            carry_out(action)

    world._acts[m.RunTask] = note
    kept = {"logos": world.catalog.models["logos"]}
    if change == "without a task":
        kept["gamma"] = replace(world.catalog.models["gamma"], background=None)
    world.feed(m.Reconfigured(replace(world.catalog, models=kept, rotation=rules), {}))
    world.run(400_000)
    assert streams.state == "running"
    assert tasks.count("logos") >= 2 and "gamma" not in tasks


def meets_a_death(
    world: World, service_ms: float, *, dies_ms: float, until_ms: float
) -> tuple[Caller, float]:
    """One request to A whose engine dies in its answer, when it is over, and when it had begun."""
    world.mute = True
    caller = world.arrive("A", service_ms, lane="chat")
    world.run(dies_ms)
    began = caller.started_at
    assert caller.state == "running" and began is not None
    world._die(world.engines["A"], world.engines["A"].attempt)
    world.run(until_ms)
    assert caller.ended_at is not None and not world.judge.broken
    return caller, began


def test_a_retry_after_a_death_has_what_is_left_of_its_time(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04: `timeout` bounds the time from start to end, in all tries together: an engine that dies late in an
    answer does not double it."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(20_000))}
    world = world_of(model("A"), lanes=lanes)
    caller, began = meets_a_death(world, 15_000, dies_ms=15_000, until_ms=60_000)
    assert caller.outcome == "run_timeout" and caller.ended_at - began < 21_000


def test_one_death_does_not_cost_a_request_that_has_time_for_a_retry(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-04, RES-20: the first restart after a death comes at once; later ones in a row have a pause."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(5_000))}
    world = world_of(model("A"), lanes=lanes, load_ms=500)
    caller, _ = meets_a_death(world, 2_500, dies_ms=1_500, until_ms=60_000)
    assert caller.outcome == "answered"
    # No good answer in between: the second death in a row has a pause.
    world.arrive("A", 2_500, lane="chat")
    for _ in range(2):
        world.run(world.now + 1_000)
        world._die(world.engines["A"], world.engines["A"].attempt)
        died = world.now
        world.run(world.now + 700)
    assert world.core.state.models["A"].retry_at - died >= 3_000


@pytest.mark.parametrize("size_gb", [1, 16])
def test_a_hung_load_is_bounded_by_its_learned_time(world_of: WorldOf, model: ModelOf, size_gb: int) -> None:
    """RES-20: three times what was learned, with a floor; no multiple of a guess by its size lengthens it."""
    state = world_of(model("A", size_gb), load_ms=4_000).core.state.models["A"]
    assert state.load_limit_ms == max(12_000, round(state.load_from_disk_ms))  # a cold disk may come
    state.cold_load_ms = 4_500
    assert state.load_limit_ms == 13_500
    unknown = world_of(model("A", size_gb), load_ms=None).core.state.models["A"]
    assert unknown.load_limit_ms >= 300_000


def test_a_request_whose_time_ends_before_its_model_is_back_is_told(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-04: the time goes on while the engine that died is loaded anew; a death never looks like a timeout."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(2_000))}
    world = world_of(model("A"), lanes=lanes, load_ms=8_000)
    caller, began = meets_a_death(world, 30_000, dies_ms=9_000, until_ms=30_000)
    assert caller.outcome == "engine_failed" and caller.ended_at - began < 2_100


def test_a_request_whose_patience_ended_before_its_engine_died_is_told_of_the_death(
    world_of: WorldOf, model: ModelOf
) -> None:
    """LANE-04: an engine's death never looks like a wait that took too long."""
    lanes = {"chat": Lane("chat", timeout_ms=Millis(60_000), max_wait_ms=Millis(10_000))}
    world = world_of(model("A"), lanes=lanes, load_ms=8_000)
    caller, _ = meets_a_death(world, 50_000, dies_ms=20_000, until_ms=60_000)
    assert caller.outcome == "engine_failed"


def test_who_made_way_pays_for_its_own_time_only(world_of: WorldOf, model: ModelOf) -> None:
    """LANE-04, RES-17: work that was cut for somebody else keeps what it has not used of its time."""
    lanes = {
        "chat": Lane("chat", timeout_ms=Millis(60_000)),
        "batch": Lane("batch", WorkClass.BACKGROUND, timeout_ms=Millis(8_000), max_wait_ms=Millis(600_000)),
    }
    world = world_of(model("A"), lanes=lanes)
    world.mute = True
    background = world.arrive("A", 6_000, lane="batch")
    world.run(4_000)
    assert background.state == "running"
    world.arrive("A", 30_000, lane="chat")
    world.run(120_000)
    assert background.outcome == "answered" and not world.judge.broken


def test_a_load_that_the_disk_failed_is_not_held_against_the_model(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: whoever waits is told that it is the disk, nothing is quarantined however often it fails, a person is
    told once, and the next load may go well."""
    world = world_of(model("A"))
    load, fails = world._acts[m.Load], [True]

    def full(action: m.Load) -> None:
        if fails[0]:
            failure = m.LoadFailed(
                action.model, action.attempt, "No space left on device", blame=m.Blame.DISK
            )
            world.at(world.now + 10, lambda: world.feed(failure))
        else:
            load(action)

    world._acts[m.Load] = full
    callers = []
    for number in range(6):
        world.at(1_000 + number * 8_000, lambda: callers.append(world.arrive("A", 300, lane="chat")))
    world.run(50_000)
    assert [caller.outcome for caller in callers] == ["disk_failed"] * 6
    assert [alert.kind for alert in world.alerts] == ["disk"]
    fails[0] = False
    last = world.arrive("A", 300, lane="chat")
    world.run(70_000)
    assert last.outcome == "answered" and world.core.state.models["A"].trouble is None


def test_no_model_leaves_for_a_load_that_the_disk_prevents(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: while the disk is full, what is warm goes on serving and the rest is told at once; a change that has
    begun is taken back, and all goes on by itself when there is room."""
    world = world_of(model("A"), model("B"), load_ms=1_000)
    world.arrive("A", 300, lane="chat")
    world.run(3_000)
    long = world.arrive("A", 4_000, lane="chat")
    under_way = world.arrive("B", 300, lane="chat")
    world.run(8_000 if long.state == "waiting" else 3_500)
    world.disk_fault = "No space left on device"
    world.look()
    told = world.arrive("B", 300, lane="chat")
    world.run(20_000)
    assert (under_way.outcome, told.outcome, long.outcome) == ("disk_failed", "disk_failed", "answered")
    assert world.core.state.models["A"].stage is Stage.READY
    still = world.arrive("A", 300, lane="chat")
    world.run(22_000)
    assert still.outcome == "answered" and world.tally.loads == 1
    world.disk_fault = None
    world.look()
    after = world.arrive("B", 300, lane="chat")
    world.run(40_000)
    assert after.outcome == "answered" and not world.judge.broken


def test_the_disk_is_looked_at_before_a_warm_model_is_stopped_for_a_load(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: it became full after the last look. The warm model stays, and the caller of the other one is told."""
    world = world_of(model("A"), model("B"), load_ms=1_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_001)
    world.disk_fault = "No space left on device"
    told = world.arrive("B", 300, lane="chat")
    world.run(10_500)
    assert told.outcome == "disk_failed"
    assert world.core.state.models["A"].stage is Stage.READY and world.tally.loads == 1
    still = world.arrive("A", 300, lane="chat")
    world.run(11_500)
    assert still.outcome == "answered" and not world.judge.broken


@pytest.mark.parametrize("victim", [Stage.ASLEEP, Stage.LOADING])
def test_the_disk_is_looked_at_before_a_model_is_stopped_at_once(
    world_of: WorldOf, model: ModelOf, victim: Stage
) -> None:
    """RES-20: a model that sleeps or loads does not drain first. Found by random worlds: it was stopped for a load
    that failed a moment later."""
    asleep = {"gpu:0": Bytes(10**10)} if victim is Stage.ASLEEP else {}
    world = world_of(
        model("A", sleep_ms=Millis(1_000) if asleep else None, sleeps_when_told=True, asleep=asleep),
        model("B"),
        load_ms=20_000 if victim is Stage.LOADING else 1_000,
        known_service_ms=10_000 if victim is Stage.LOADING else 500,
    )
    world.truth["A"] = world.engines["A"].model = replace(world.truth["A"], asleep=dict(asleep))
    world.arrive("A", 300, lane="batch")
    world.run(1_001 if victim is Stage.LOADING else 10_001)
    assert world.core.state.models["A"].stage is victim
    for _ in range(3):
        world.core.state.models["B"].load.learn(100)  # so quick that a load in its way is worth giving up
    world.disk_fault = "No space left on device"
    told = world.arrive("B", 300, lane="chat")
    world.run(world.now + 500)
    assert told.outcome == "disk_failed"
    assert world.core.state.models["A"].stage is victim and not world.judge.broken
    world.disk_fault = None
    world.run(world.now + 2_000)
    served = world.arrive("B", 300, lane="chat")
    world.run(world.now + 30_000)
    assert served.outcome == "answered"


def test_a_warm_model_stays_where_a_set_wants_the_load_that_the_disk_prevents(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20, RES-13: found by random worlds: a companion was loading for a set with the same model, so the plan was
    kept, and the warm model was stopped for it."""
    world = world_of(model("A"), model("B"), model("C", 4), load_ms=1_000)
    world.arrive("A", 300, lane="chat")
    world.run(10_001)
    world.disk_fault = "No space left on device"
    alone = world.arrive("B", 300, lane="chat")
    together = world.arrive("B", 300, lane="chat", companions=("C",))
    world.run(10_500)
    assert (alone.outcome, together.outcome) == ("disk_failed", "disk_failed")
    assert world.core.state.models["A"].stage is Stage.READY and not world.judge.broken


def test_a_disk_that_does_not_answer_holds_up_no_swap(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: a disk that hangs says nothing about the load; it is waited for a second, and the next swap does not
    wait again."""
    world = world_of(model("A"), model("B"), load_ms=1_000)
    world._acts[m.LookAtDisk] = lambda _: None
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    first = world.arrive("B", 300, lane="chat")
    world.run(20_000)
    assert first.started_at is not None and first.started_at - 10_000 <= 3_000
    world.run(30_000)
    second = world.arrive("A", 300, lane="chat")
    world.run(40_000)
    assert second.started_at is not None and second.started_at - 30_000 <= 2_000
    assert not world.judge.broken


def test_a_model_that_sleeps_wakes_although_the_disk_is_full(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: its process is there, so nothing is written; another model may leave for it."""
    world = world_of(
        model("A", sleep_ms=Millis(1_000), sleeps_when_told=True, asleep={"gpu:0": Bytes(10**8)}),
        model("B"),
        load_ms=1_000,
    )
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    assert world.core.state.models["A"].stage is Stage.ASLEEP
    world.arrive("B", 4_000, lane="chat")
    world.run(13_000)
    waking = world.arrive("A", 300, lane="chat")
    world.disk_fault = "No space left on device"
    world.look()
    world.run(60_000)
    assert waking.outcome == "answered" and not world.judge.broken


def test_a_full_disk_here_does_not_concern_engines_elsewhere(world_of: WorldOf, model: ModelOf) -> None:
    """RES-20: a model of another program writes nothing below the root."""
    world = world_of(model("A", writes_here=False), model("B"), load_ms=1_000)
    world.disk_fault = "No space left on device"
    world.look()
    far, here = world.arrive("A", 300, lane="chat"), world.arrive("B", 300, lane="chat")
    world.run(10_000)
    assert (far.outcome, here.outcome) == ("answered", "disk_failed")


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("stage", Stage)
def test_a_move_that_the_table_does_not_have_raises_and_changes_nothing(
    world_of: WorldOf, model: ModelOf, stage: Stage, move: Move
) -> None:
    """RES-09: the table is all that can happen to a model."""
    state = world_of(model("A")).core.state
    moved = state.models["A"]
    moved.stage = stage
    before = (moved.stage, moved.since, state.moving, state.changes)
    if (stage, move) in NEXT:
        Residency(state).enter(moved, move, 7)
        assert (moved.stage, moved.since) == (NEXT[stage, move], 7)
        return
    with pytest.raises(IllegalTransition, match=f"A is {stage.value}: it cannot {move.value}"):
        Residency(state).enter(moved, move, 7)
    assert (moved.stage, moved.since, state.moving, state.changes) == before


def test_every_stage_can_be_reached_and_left() -> None:
    """RES-09: no model is kept in a stage for want of a move."""
    assert {stage for stage, _ in NEXT} == set(NEXT.values()) == set(Stage)
    assert {move for _, move in NEXT} == set(Move)


def test_people_who_come_in_a_rhythm_meet_their_model_though_background_work_waits(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-11: the first turn of a model teaches little about its demand; the times between people's requests do. It
    left for four loops right before the next person, who then waited for both loads."""
    world = world_of(model("A", concurrency=4), model("B", concurrency=4), load_ms=None)
    loops = [world.arrive("B", 500, lane="batch") for _ in range(4)]
    ready_at = None
    for now in range(10, 20_000, 10):
        world.run(now)
        loops = [world.arrive("B", 500, lane="batch") if each.outcome else each for each in loops]
        if now % 2_000 == 300:
            person = world.arrive("A", 500, lane="chat")
            if ready_at is not None:
                assert stage(world, "A") is Stage.READY
                break
        if ready_at is None and stage(world, "A") is Stage.READY:
            ready_at = now
    world.run(world.now + 600)
    assert person.outcome == "answered"
    assert not world.judge.broken
