"""A simulated rig: the real coordinator and the real tables of claiming, in virtual time."""

from collections.abc import Mapping, Sequence

import pytest

from watchbill.errors import OursError
from watchbill.plans.batch import ExecutePlan
from watchbill.simulate.agenda import Agenda
from watchbill.simulate.rig import Played, Rig, SimAgent

ITEMS = '{"all": [%s]}'


def play(tasks: str, agents: Sequence[SimAgent], times_ms: Mapping[str, int], *, items: int = 0) -> Played:
    rig = Rig([*agents, SimAgent("brain", 1)], lambda template, _items: times_ms[template])
    rig.put("plans/p/plan.md", f"# P\n\n## Tasks\n\n{tasks}".encode())
    rig.put("plans/p/m.json", (ITEMS % ",".join(map(str, range(items)))).encode())
    return rig.play(ExecutePlan("b", "p", {}))


FAN_OUT = "### each\n- **command**: `x {ITEM}`\n- **foreach**: m.json:all\n"


def test_tasks_fill_the_slots_of_the_agents_and_no_more() -> None:
    """PLAN-07: 10 tasks of 3 s on 2 slots."""
    played = play(FAN_OUT, [SimAgent("a", 2)], {"each": 3_000}, items=10)
    assert played.elapsed_ms == 15_000
    assert played.tasks == {"each": 10} and played.work_ms == {"each": 30_000}
    assert played.shares["a"].busy_ms == 15_000
    more = play(FAN_OUT, [SimAgent("a", 2), SimAgent("b", 3)], {"each": 3_000}, items=10)
    assert more.elapsed_ms == 6_000


def test_an_item_follows_its_own_item_without_a_barrier() -> None:
    """PLAN-01: the second stage of the first item begins while the last item is in the first stage."""
    second = "### then\n- **command**: `y {ITEM}`\n- **foreach**: m.json:all\n- **depends_on**: each_{ITEM}\n"
    waits = second.replace("each_{ITEM}", "each")
    # Three workers for six items: with a barrier the last round of the first stage leaves slots empty.
    times = {"each": 2_000, "then": 2_000}
    item_by_item = play(FAN_OUT + second, [SimAgent("a", 4)], times, items=6)
    barrier = play(FAN_OUT + waits, [SimAgent("a", 4)], times, items=6)
    assert item_by_item.elapsed_ms == 6_000
    assert barrier.elapsed_ms == 8_000


CARD = SimAgent("gpu-1", 4, ("gpu:0",), 4_000, "m", ("m",), 1, "host", 7_000)
ASK = "### ask\n- **prompt**: say {ITEM}\n- **foreach**: m.json:all\n"
SCRIPT = (
    "### run\n- **task_class**: script\n- **vram_estimate_mb**: 1500\n- **command**: `x {ITEM}`\n"
    "- **foreach**: m.json:all\n"
)


def test_memory_bounds_script_tasks_and_a_model_is_loaded_once() -> None:
    """FLEET-02: two tasks of 1,500 MB fit into a budget of 4,000; one question at a time, after one load."""
    scripts = play(SCRIPT, [CARD], {"run": 10_000}, items=6)
    assert scripts.elapsed_ms == 30_000 and scripts.shares["gpu-1"].loads == 0
    asked = play(ASK, [CARD], {"ask": 10_000}, items=3)
    assert asked.shares["gpu-1"].loads == 1
    assert 37_000 <= asked.elapsed_ms < 39_000  # the coordinator looks at its agents once a second


def test_cards_of_one_host_load_one_after_the_other() -> None:
    """FLEET-05: the second card is useful 7 s after the first; on a host of its own, at once."""
    other = SimAgent("gpu-2", 4, ("gpu:1",), 4_000, "m", ("m",), 1, "host", 7_000)
    apart = SimAgent("gpu-2", 4, ("gpu:0",), 4_000, "m", ("m",), 1, "elsewhere", 7_000)
    together = play(ASK, [CARD, other], {"ask": 60_000}, items=2)
    separate = play(ASK, [CARD, apart], {"ask": 60_000}, items=2)
    assert together.elapsed_ms - separate.elapsed_ms >= 6_000


def test_what_nobody_can_run_is_said_instead_of_waiting_for_ever() -> None:
    with pytest.raises(OursError, match="never run run_1"):
        play(SCRIPT, [SimAgent("a", 2)], {"run": 1_000}, items=1)


def test_a_plan_that_the_coordinator_refuses_is_refused_here() -> None:
    with pytest.raises(OursError, match=r"plan\.md"):
        play("### a\n- **command**: `x {NOTHING}`\n", [SimAgent("a", 1)], {"a": 1})


def test_two_runs_are_the_same() -> None:
    first, second = (
        play(FAN_OUT + ASK, [CARD, SimAgent("a", 2)], {"each": 900, "ask": 1_100}, items=20) for _ in range(2)
    )
    assert first == second


def test_acts_of_one_time_happen_in_the_order_they_were_put_down() -> None:
    agenda, seen = Agenda(), list[str]()
    agenda.at(5, lambda: seen.append("b"))
    agenda.at(5, lambda: seen.append("c"))
    agenda.at(1, lambda: agenda.at(0, lambda: seen.append("a")))
    while agenda.has_before(10):
        agenda.step()
    assert seen == ["a", "b", "c"] and agenda.now == 5


@pytest.mark.parametrize("tasks", [200, 2_000])
def test_a_decision_costs_the_same_with_more_tasks(tasks: int) -> None:
    """P9: turns and journal lines per task do not grow with the plan; bench/fleet.py measures the time."""
    played = play(FAN_OUT, [SimAgent(f"a-{n}", 4) for n in range(10)], {"each": 1_000}, items=tasks)
    assert played.elapsed_ms == tasks // 40 * 1_000
    assert played.entries <= 2 * tasks + 10
    assert played.turns <= tasks // 40 + 10
