"""The two tables of the rig: what an agent claims by health and state, and when a card is heated or cooled."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from watchbill.catalog import Device
from watchbill.core.messages import Constraint
from watchbill.fleet.coordinator.heating import Heating
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.folder.slips import Headline, slip_name
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.matching.abilities import Need
from watchbill.fleet.matching.claiming import Health, Standing, may_claim
from watchbill.fleet.matching.heat import Command, Demand, Temperature, Told, orders
from watchbill.plans.task import MetaCommand, TaskClass
from watchbill.probes.fake import FakeGpuProbe
from watchbill.probes.health import constraint

GB = 10**9
#: The seed's table: health and state -> the classes that are claimed.
CLAIMED = {
    (Health.HEALTHY, True): {TaskClass.META, TaskClass.LLM, TaskClass.CPU},
    (Health.HEALTHY, False): {TaskClass.META, TaskClass.LLM, TaskClass.CPU, TaskClass.SCRIPT},
    (Health.CONSTRAINED, True): {TaskClass.META, TaskClass.CPU},
    (Health.CONSTRAINED, False): {TaskClass.META, TaskClass.CPU},
}


def claimed(health: Health, *, is_hot: bool) -> set[TaskClass]:
    """The classes of which an agent with room for everything takes a slip."""
    standing = Standing(
        "gpu-1", 4, has_device=True, health=health, is_hot=is_hot, own_model="qwen", models=("qwen",),
        llm_slots_free=1, vram_mb_free=4915,
    )  # fmt: skip
    slips = {
        each: slip_name(
            Headline(3, 1, each, 1024, 1, "gpu-1" if each is TaskClass.META else ""),
            model="",
            batch="b",
            task="t",
        )
        for each in TaskClass
    }
    return {each for each, name in slips.items() if may_claim(name, standing) is None}


@pytest.mark.parametrize(("health", "is_hot"), CLAIMED, ids=str)
def test_an_agent_claims_what_the_table_of_health_and_state_says(health: Health, is_hot: bool) -> None:
    """FLEET-04, FLEET-05: all four rows of the seed's matrix, against all four classes."""
    assert claimed(health, is_hot=is_hot) == CLAIMED[health, is_hot]


def cards_over_time(tmp_path: Path, *steps: dict[str, object]) -> list[Constraint | None]:
    """The constraint of a played-back card at each step, with the margin that the step before asks for."""
    device = Device("gpu:1", max_power_w=140.0)
    path, clock = tmp_path / "cards.json", itertools.count()
    timeline = [{"at": at, **step} for at, step in enumerate(steps)]
    card = {"name": "gpu:1", "capacity": "6GB", "timeline": timeline}
    path.write_text(json.dumps({"started": 0, "cards": [card]}))
    probe = FakeGpuProbe(path, wall=lambda: float(next(clock)))
    found: list[Constraint | None] = []
    for step in steps:
        ours = step.get("ours", 0)
        before = found[-1] if found else None
        found.append(constraint(device, probe.read()["gpu:1"], ours if isinstance(ours, int) else 0, before))
    return found


def test_a_hot_card_backs_off_at_85_degrees_and_is_back_four_degrees_below(tmp_path: Path) -> None:
    """FLEET-04: the seed's first example over time, with a margin so that it does not flap."""
    degrees = (78, 84, 85, 86, 84, 82, 81, 80, 84)
    found = cards_over_time(tmp_path, *({"temperature_c": each} for each in degrees))
    assert [each is not None for each in found] == [False, False, True, True, True, True, True, False, False]


def test_a_card_at_its_power_limit_backs_off_until_it_draws_less(tmp_path: Path) -> None:
    """FLEET-04: the seed's third example: 141 W of 140."""
    watts = (125, 139, 141, 138, 134, 132)
    found = cards_over_time(tmp_path, *({"power_w": each} for each in watts))
    assert [each is not None for each in found] == [False, False, True, True, True, False]


def test_memory_of_others_makes_a_card_constrained_and_our_own_does_not(tmp_path: Path) -> None:
    """FLEET-04: 96 % is over the limit where others hold it, and none where our models and tasks do."""
    full = int(0.96 * 6 * GB)
    found = cards_over_time(
        tmp_path, {"used": full, "ours": full}, {"used": full, "ours": 0}, {"used": int(0.94 * 6 * GB), "ours": 0},
        {"used": int(0.92 * 6 * GB), "ours": 0},
    )  # fmt: skip
    assert [each is not None for each in found] == [False, True, True, False]


# ------------------------------------------------------------------ heating and cooling

QWEN = ("qwen",)
COLD = [Temperature(f"gpu-{index}", "qwen", QWEN, host="rig") for index in (1, 2, 4)]
HOT = [replace(each, hot=QWEN) for each in COLD]
LOAD, UNLOAD = Command(MetaCommand.LOAD, "qwen"), Command(MetaCommand.UNLOAD, "qwen")


def test_all_start_cold_and_only_llm_tasks_heat_one() -> None:
    """FLEET-05."""
    assert orders(COLD, Demand(script=100), {}, 0) == {}
    assert orders(COLD, Demand({"": 1}), {}, 0) == {"gpu-1": LOAD}


def test_agents_of_one_host_are_heated_one_after_the_other_until_there_are_enough() -> None:
    """FLEET-05: the bus of the rig loads one model at a time; other hosts have their own."""
    three = Demand({"": 3})
    assert orders(COLD, three, {}, 0) == {"gpu-1": LOAD}
    assert orders(COLD, three, {"gpu-1": Told(LOAD, 600_000)}, 1_000) == {}
    warm = [HOT[0], *COLD[1:]]
    assert orders(warm, three, {}, 2_000) == {"gpu-2": LOAD}
    assert orders(warm, Demand({"": 1}), {}, 2_000) == {}
    elsewhere = replace(COLD[0], agent="pi-1", host="other")
    assert set(orders([*COLD, elsewhere], three, {}, 0)) == {"gpu-1", "pi-1"}


def test_a_task_that_names_a_model_heats_an_agent_that_serves_it() -> None:
    """FLEET-05: another card that is hot does not help it, and one that cannot serve it is left alone."""
    other = replace(COLD[2], own="bge", models=("bge", "rare"))
    assert orders([*HOT[:2], other], Demand({"rare": 1}), {}, 0) == {
        "gpu-4": Command(MetaCommand.LOAD, "rare")
    }
    assert orders([*HOT[:2], other], Demand({"": 1, "qwen": 1}), {}, 0) == {}
    assert orders(HOT, Demand({"unknown": 1}), {}, 0) == {}
    assert orders([replace(COLD[0], own="")], Demand({"": 1}), {}, 0) == {}


def test_agents_are_cooled_when_only_script_tasks_remain() -> None:
    """FLEET-05: not while one answers, and not while llm tasks wait or run. A model that is not the agent's own is not
    the coordinator's to unload."""
    busy = replace(HOT[1], tasks=1)
    assert orders([HOT[0], busy], Demand(script=5), {}, 0) == {"gpu-1": UNLOAD}
    assert orders(HOT, Demand(script=5, llm_running=1), {}, 0) == {}
    assert orders(HOT, Demand(), {}, 0) == {}
    assert orders([replace(COLD[0], models=("qwen", "chat"), hot=("chat",))], Demand(script=5), {}, 0) == {}


def test_an_overheated_agent_is_cooled_and_another_one_is_heated() -> None:
    """FLEET-05: a constrained hot agent gives its memory back; a constrained cold one is never heated."""
    ailing = replace(HOT[0], health=Health.CONSTRAINED)
    cold = replace(COLD[1], health=Health.CONSTRAINED)
    assert orders([ailing, cold, COLD[2]], Demand({"": 2}), {}, 0) == {"gpu-1": UNLOAD, "gpu-4": LOAD}


def test_an_order_that_had_no_effect_is_given_again_after_its_time() -> None:
    """FLEET-05: an agent that was told is left alone until then."""
    told = {"gpu-1": Told(LOAD, 600_000)}
    assert orders(COLD[:1], Demand({"": 1}), told, 599_999) == {}
    assert orders(COLD[:1], Demand({"": 1}), told, 600_000) == {"gpu-1": LOAD}
    assert told["gpu-1"].is_done_by(HOT[0]) and not told["gpu-1"].is_done_by(COLD[0])


# ------------------------------------------------------------------ the coordinator's orders


def beat(**values: object) -> Heartbeat:
    whole = {"model": "qwen", "models": ["qwen"], "llm_slots": 1, "host": "rig", **values}
    return Heartbeat(Pulse("boot", 1, 1, 1), AgentReport.of(Fields(whole)))


def test_an_order_is_a_slip_for_one_agent_and_its_end_is_heard() -> None:
    """FLEET-05: given once; a failure is repeated after a minute, and what others report is none of ours."""
    heating, waiting = Heating(), [Need(TaskClass.LLM)]
    [(name, slip)] = heating.look({"gpu-1": beat()}, waiting, 7, 0).items()
    assert may_claim(name, Standing("gpu-1", 0)) is None
    assert may_claim(name, Standing("gpu-2", 0, own_model="qwen")) is not None
    assert (slip.work.command, slip.work.model, slip.batch) == ("load_llm", "qwen", "")
    assert heating.look({"gpu-1": beat()}, waiting, 7, 1_000) == {}
    assert not heating.hear(Result("3-0000000001-cpu-v0-_-b-t.a1.json", "gpu-1", 1, End.DONE), 2_000)
    assert heating.hear(Result(name, "gpu-1", 1, End.FAILED, tail="no such file"), 2_000)
    assert heating.look({"gpu-1": beat()}, waiting, 7, 61_000) == {}
    [again] = heating.look({"gpu-1": beat()}, waiting, 7, 62_000)
    assert heating.hear(Result(again, "gpu-1", 1, End.DONE), 63_000)
    assert heating.look({"gpu-1": beat(hot_models=["qwen"])}, waiting, 7, 64_000) == {}
    assert again != name


def test_names_of_orders_differ_between_coordinators() -> None:
    """FLEET-09: a result of a predecessor's order is not taken for one of ours."""
    names = [set(Heating().look({"gpu-1": beat()}, [Need(TaskClass.LLM)], epoch, 0)) for epoch in (1, 2)]
    assert names[0].isdisjoint(names[1])
