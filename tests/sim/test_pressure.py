"""RES-06: what an emergency does, and what is none."""

from collections.abc import Callable

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import Device, Lane, WorkClass
from watchbill.core import messages as m
from watchbill.core.stages import Stage
from watchbill.simulate.engine import Power
from watchbill.simulate.world import World
from watchbill.units import Bytes, Millis

GB = 10**9
LANES = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000), timeout_ms=Millis(600_000))}
RAM = Device("ram", capacity=Bytes(20 * GB), reserve=Bytes(2 * GB))


def test_a_model_that_drains_for_another_one_does_not_hold_up_an_emergency(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-06: no drain is longer than the grace while memory is short, however it began."""
    world = world_of(model("A", 12, "ram"), model("B", 12, "ram"), device=RAM, lanes=LANES)
    world.run(1_000)
    streams = world.arrive("A", 500_000, lane="chat")
    world.run(10_000)
    world.feed(m.EvictAsked(1, "A"))
    world.run(20_000)
    assert world.core.state.models["A"].stage is Stage.DRAINING and streams.state == "running"
    world.foreign["ram"] = 7 * GB
    world.look()
    world.run(world.now + 2_600)
    assert world.engines["A"].power is Power.OFF and streams.outcome == "preempted"
    assert [a.kind for a in world.alerts] == ["emergency"]
    assert not world.judge.broken


def test_a_model_that_has_just_begun_to_drain_is_waited_for(world_of: WorldOf, model: ModelOf) -> None:
    """RES-06: one victim at a time: who is about to be gone may be enough."""
    world = world_of(model("A", 6, "ram"), model("B", 6, "ram"), device=RAM, lanes=LANES)
    for name in ("A", "B"):
        world.at(1_000, lambda name=name: world.arrive(name, 300, lane="chat"))
    world.run(30_000)
    world.feed(m.EvictAsked(1, "A"))
    world.foreign["ram"] = 7 * GB
    world.look()
    world.run(world.now + 5_000)
    assert world.engines["A"].power is Power.OFF and world.engines["B"].power is Power.WARM
    assert not world.alerts


def test_a_stalling_kernel_takes_nothing_from_a_card(world_of: WorldOf, model: ModelOf) -> None:
    """RES-06: the kernel's stalls are about host memory; a model on a card would leave for nothing."""
    world = world_of(model("A", 6), lanes=LANES)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    reading = {"gpu:0": m.DeviceReading(24 * GB, 18 * GB)}
    world.feed(m.Observed(int(world.now), reading, {}, pressure=True))
    assert world.core.state.models["A"].stage is Stage.READY and not world.alerts


def test_the_alert_of_a_stalling_kernel_says_so(world_of: WorldOf, model: ModelOf) -> None:
    """RES-06: memory may be above the reserve and still short; the text does not claim what is not true."""
    world = world_of(model("A", 6, "ram"), device=RAM, lanes=LANES)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    world.feed(m.Observed(int(world.now), {"ram": m.DeviceReading(20 * GB, 14 * GB)}, {}, pressure=True))
    (alert,) = world.alerts
    assert "stalls" in alert.text and "below" not in alert.text


def test_a_quota_that_was_set_holds_on_a_device_of_which_nothing_was_expected(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-20: more than its quota on one device is a fault, whether or not anybody knew that it would be there."""
    world = world_of(model("A", 6, quota=Bytes(8 * GB)), lanes=LANES)
    world.arrive("A", 300, lane="chat")
    world.run(10_000)
    world.engines["A"].held["ram"] = 9 * GB
    world.capacity["ram"], world.foreign["ram"] = 20 * GB, 0
    world.look()
    assert [a.kind for a in world.alerts] == ["watchdog"]


@pytest.mark.parametrize("short_of", ["budget", "reserve"])
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_permanent_model_that_grows_is_not_reset_while_another_one_leaves(
    world_of: WorldOf, model: ModelOf, short_of: str, is_busy: bool
) -> None:
    """RES-02, RES-20: growth alone resets nothing while memory can be had, and a permanent model has the memory of idle
    ones, and of those that an emergency takes. It was reset beside them. No running answer is cut for its growth."""
    device = Device("ram", capacity=Bytes(20 * GB), reserve=Bytes(2 * GB))
    models = model("rock", 8, "ram", permanent=True), model("sand", 6, "ram")
    world = world_of(*models, device=device, lanes=LANES)
    world.run(5_000)
    world.arrive("rock", 300, lane="chat")
    world.arrive("sand", 500_000 if is_busy else 300, lane="chat")
    world.run(15_000)
    if short_of == "budget":
        world.engines["sand"].held["ram"] = 4 * GB
        world.engines["rock"].held["ram"] = 13 * GB
    else:
        world.engines["rock"].held["ram"] = 11 * GB
        world.foreign["ram"] = GB * 3 // 2
    world.look()
    world.run(20_000)
    is_at_fault = is_busy and short_of == "budget"
    assert [alert.kind == "watchdog" for alert in world.alerts] == [is_at_fault] * len(world.alerts)
    assert world.tally.loads_by_model["rock"] == 1 + is_at_fault
    assert (world.engines["sand"].power is Power.WARM) is is_at_fault


def falls(world: World, per_second: int, *, until: Callable[[], bool]) -> int:
    """A program takes memory at this rate, and the machine is looked at every 50 ms: the least that was free."""
    least = world.available("ram")
    while not until() and world.now < 120_000:
        world.run(world.now + 50)
        world.foreign["ram"] += per_second // 20
        least = min(least, world.available("ram"))
        world.look()
    return least


def crowded(world_of: WorldOf, model: ModelOf, reserve_gb: float) -> World:
    """Five models of 3 GB, each with an answer under way, one of them permanent."""
    device = Device("ram", capacity=Bytes(20 * GB), reserve=Bytes(int(reserve_gb * GB)))
    names = ["A", "B", "C", "D"]
    models = [model(name, 3, "ram") for name in names] + [model("P", 3, "ram", permanent=True)]
    world = world_of(*models, device=device, lanes=LANES)
    for number, name in enumerate([*names, "P"]):
        world.run(1_000 + 5_000 * number)
        world.arrive(name, 500_000, lane="chat")
    world.run(40_000)
    assert all(engine.power is Power.WARM for engine in world.engines.values())
    return world


def test_the_faster_memory_falls_the_sooner_and_the_more_models_leave(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-06, RES-05: at 400 MB/s, and at ten times that, models leave before memory is gone: none of them has two
    seconds then, and where one would come too late several go."""
    for per_second, reserve_gb in ((400_000_000, 0.5), (400_000_000, 2), (4_000_000_000, 2)):
        world = crowded(world_of, model, reserve_gb)
        taken = world.foreign["ram"]

        def is_over(world: World = world, taken: int = taken) -> bool:
            return world.foreign["ram"] - taken > 14 * GB

        assert falls(world, per_second, until=is_over) > 0
        assert world.engines["P"].power is not Power.DEAD and not world.judge.broken


def test_a_slow_leak_takes_one_model_at_a_time(world_of: WorldOf, model: ModelOf) -> None:
    """RES-06: after one eviction the probe is read before the next victim is chosen; an answer has its two seconds."""
    world = crowded(world_of, model, 2)
    world.foreign["ram"] = 2_900_000_000
    falls(world, 20_000_000, until=lambda: len(world.alerts) >= 1)
    began = world.now
    falls(world, 20_000_000, until=lambda: world.now > began + 1_900)
    assert len(world.alerts) == 1
    assert sum(engine.power is Power.WARM for engine in world.engines.values()) == 5  # it still answers
    falls(world, 20_000_000, until=lambda: world.now > began + 30_000)
    assert len(world.alerts) == 1 and not world.judge.broken
