"""The two tables of the rig: what an agent claims by health and state, and when a card is heated or cooled."""

import itertools
import json
from pathlib import Path

import pytest

from watchbill.catalog import Device
from watchbill.core.messages import Constraint
from watchbill.fleet.claiming import Health, Standing, may_claim
from watchbill.fleet.heat import Demand, Order, Temperature, orders
from watchbill.fleet.slips import Headline, slip_name
from watchbill.plans.fields import TaskClass
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
        "gpu-1", 4, has_device=True, health=health, is_hot=is_hot, models=("qwen",), llm_slots_free=1, vram_mb_free=4915
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

COLD = [Temperature(f"gpu-{index}", False, host="rig") for index in (1, 2, 4)]
HOT = [Temperature(f"gpu-{index}", True, host="rig") for index in (1, 2, 4)]


def test_all_start_cold_and_only_llm_tasks_heat_one() -> None:
    """FLEET-05."""
    assert orders(COLD, Demand(script=100), {}, 0) == {}
    assert orders(COLD, Demand(llm=1), {}, 0) == {"gpu-1": Order.LOAD}


def test_agents_of_one_host_are_heated_one_after_the_other_until_there_are_enough() -> None:
    """FLEET-05: the bus of the rig loads one model at a time; other hosts have their own."""
    assert orders(COLD, Demand(llm=3), {}, 0) == {"gpu-1": Order.LOAD}
    assert orders(COLD, Demand(llm=3), {"gpu-1": 0}, 1_000) == {}
    warm = [HOT[0], *COLD[1:]]
    assert orders(warm, Demand(llm=3), {}, 2_000) == {"gpu-2": Order.LOAD}
    assert orders(warm, Demand(llm=1), {}, 2_000) == {}
    elsewhere = Temperature("pi-1", False, host="other")
    assert set(orders([*COLD, elsewhere], Demand(llm=3), {}, 0)) == {"gpu-1", "pi-1"}


def test_agents_are_cooled_when_only_script_tasks_remain() -> None:
    """FLEET-05: not while one answers, and not while llm tasks wait or run."""
    busy = Temperature("gpu-2", True, tasks=1, host="rig")
    assert orders([HOT[0], busy], Demand(script=5), {}, 0) == {"gpu-1": Order.UNLOAD}
    assert orders(HOT, Demand(script=5, llm_running=1), {}, 0) == {}
    assert orders(HOT, Demand(), {}, 0) == {}


def test_an_overheated_agent_is_cooled_and_another_one_is_heated() -> None:
    """FLEET-05: a constrained hot agent gives its memory back; a constrained cold one is never heated."""
    ailing = Temperature("gpu-1", True, Health.CONSTRAINED, host="rig")
    cold = Temperature("gpu-2", False, Health.CONSTRAINED, host="rig")
    assert orders([ailing, cold, COLD[2]], Demand(llm=2), {}, 0) == {
        "gpu-1": Order.UNLOAD,
        "gpu-4": Order.LOAD,
    }


def test_an_order_that_had_no_effect_is_given_again_after_its_time() -> None:
    """FLEET-05: an agent that was told is left alone until then."""
    assert orders(COLD[:1], Demand(llm=1), {"gpu-1": 0}, 599_999) == {}
    assert orders(COLD[:1], Demand(llm=1), {"gpu-1": 0}, 600_000) == {"gpu-1": Order.LOAD}
