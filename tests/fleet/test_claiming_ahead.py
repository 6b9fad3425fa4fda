"""Tasks that an agent claims before a slot is free: only quick ones, never for long, and each runs once."""

import json
from collections import deque
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_rig import FleetRig
from watchbill.files.host import boot_id
from watchbill.fleet import limits
from watchbill.fleet.agent.board_client import BoardClient
from watchbill.fleet.agent.claimed_ahead import ClaimedAhead
from watchbill.fleet.agent.work import Prepared, Setting
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, write_heartbeat
from watchbill.fleet.folder.signals import Order
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.work import Work
from watchbill.fleet.matching.claiming import Standing
from watchbill.plans.task import TaskClass
from watchbill.processes.crew import Job

#: The twentieth of thirty tasks does not end before it is told to.
TASKS = (
    "### t\n- **command**: `test {ITEM} != 20 || until test -e {BATCH_PATH}/go; do sleep 0.1; done`\n"
    "- **foreach**: items.json\n"
)


def held_by(rig: FleetRig, agent: str) -> list[str]:
    return rig.disk.names(places.processing_folder(agent))


def submitted(rig: FleetRig) -> None:
    folder = rig.submit("b1", TASKS)
    (folder / "items.json").write_text(json.dumps(list(range(1, 31))))


def works_at_the_long_one(rig: FleetRig) -> bool:
    rig.turn()
    return ["t_20" in name for name in held_by(rig, "cpu-1")] == [True]


def test_what_is_claimed_ahead_of_a_long_task_goes_back_and_runs_once(rig: FleetRig) -> None:
    """FLEET-01, FLEET-09: others may take it, under the same token; nothing counts as lost."""
    submitted(rig)
    agent = rig.start("cpu-1", "--cpu-slots", "1")
    wait_until(lambda: works_at_the_long_one(rig))
    assert any(line.count(".a1.json") > 1 for line in agent.said().splitlines() if " claimed " in line)
    queued = rig.disk.names(places.QUEUE)
    assert len(queued) == 10 and all(".a1." in name for name in queued)
    rig.start("cpu-2", "--cpu-slots", "1")
    wait_until(lambda: rig.turn() or len(rig.entries("b1", "accept")) == 29)
    (rig.batch_folder("b1") / "go").touch()
    wait_until(rig.turn)
    accepted = [(entry["task"], entry["attempt"]) for entry in rig.entries("b1", "accept")]
    assert sorted(accepted) == sorted((f"t_{number}", 1) for number in range(1, 31))
    assert not rig.entries("b1", "lost") and not rig.entries("b1", "revoke")


def test_an_agent_that_leaves_starts_nothing_of_what_it_claimed_ahead(rig: FleetRig) -> None:
    """FLEET-07: stop means that it finishes what runs, and starts nothing."""
    submitted(rig)
    agent = rig.start("cpu-1", "--cpu-slots", "1")
    wait_until(lambda: works_at_the_long_one(rig))
    rig.signal("cpu-1", Order.STOP)
    (rig.batch_folder("b1") / "go").touch()
    assert agent.process.wait(30) == 0
    wait_until(lambda: rig.turn() or held_by(rig, "cpu-1") == [])
    assert len(rig.disk.names(places.QUEUE)) == 10
    assert len(rig.entries("b1", "accept")) == 20 and not rig.entries("b1", "lost")


def test_what_could_not_be_returned_is_taken_up_again(rig: FleetRig, tmp_path: Path) -> None:
    """FLEET-09: the reply to the first of several returns was lost; the others were in nobody's mind after that."""
    rig.submit("b1", "".join(f"### t{number}\n- **command**: `true`\n" for number in range(3)))
    rig.turn()
    board, setting = BoardClient(rig.root, "cpu-1"), Setting(rig.root, "cpu-1", tmp_path)
    board.join(cpu_slots=3)
    standing = Standing("cpu-1", 3)
    names = [each.name for each in board.round(setting, deque(), standing, 0).prepared]
    assert len(names) == 3
    in_the_way = rig.root / places.QUEUE / names[0]
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        board.give_back_unstarted(names)
    in_the_way.rmdir()
    assert board.look().held == set(names)
    assert [each.name for each in board.round(setting, deque(), standing, 0).prepared] == names


def test_a_second_slip_under_a_token_is_not_run_beside_the_first(rig: FleetRig, tmp_path: Path) -> None:
    """FLEET-09: a coordinator that does not see the claim yet offers the task again, and its agent takes it again. It
    ran twice at the same time, or was reported as unreadable a dozen times."""
    rig.submit("b1", "### t\n- **command**: `true`\n")
    rig.turn()
    board, setting = BoardClient(rig.root, "cpu-1"), Setting(rig.root, "cpu-1", tmp_path)
    board.join(cpu_slots=2)
    [first] = board.round(setting, deque(), Standing("cpu-1", 2), 0).prepared
    held = rig.root / places.processing_folder("cpu-1") / first.name
    (rig.root / places.QUEUE / first.name).write_bytes(held.read_bytes())
    assert board.round(setting, deque(), Standing("cpu-1", 1), 1).prepared == []
    assert rig.disk.names(places.QUEUE) == [] and board.look().held == {first.name}


@pytest.mark.parametrize("is_pair", [True, False])
def test_a_task_that_needs_a_pair_of_cards_is_left_to_an_agent_with_one(
    rig: FleetRig, tmp_path: Path, is_pair: bool
) -> None:
    """PLAN-02, FLEET-14: `llm_placement: split_gpu` was looked at when the plan was submitted, and not by agents."""
    rig.submit("b1", "### t\n- **prompt**: Go.\n- **llm_placement**: split_gpu\n")
    rig.turn()
    board = BoardClient(rig.root, "gpu-1")
    setting = Setting(rig.root, "gpu-1", tmp_path, model="m", model_url="http://x")
    board.join(cpu_slots=1)
    standing = Standing(
        "gpu-1", 1, has_device=True, own_model="m", is_hot=True, llm_slots_free=1, is_pair=is_pair
    )
    for now_ms in (0, 100_000):
        prepared = board.round(setting, deque(), standing, now_ms).prepared
        if is_pair:
            break
    assert len(prepared) == is_pair and len(rig.disk.names(places.QUEUE)) == (not is_pair)


def held_by_a_dead_agent(rig: FleetRig) -> list[str]:
    """Four tasks in the hands of an agent with one slot that is dead; returns their slips."""
    rig.submit("b1", "".join(f"### t{number}\n- **command**: `true`\n" for number in range(4)))
    rig.turn()
    names = rig.disk.names(places.QUEUE)
    rig.disk.make_folder(places.processing_folder("gone"))
    rig.disk.make_folder(places.heartbeat_path("gone").rpartition("/")[0])
    for name in names:
        rig.disk.move(f"{places.QUEUE}/{name}", f"{places.processing_folder('gone')}/{name}")
    pulse = Pulse(boot_id(), 2**22 + 1, 1, 1)
    write_heartbeat(rig.disk, "gone", Heartbeat(pulse, AgentReport("gone", cpu_slots=1)))
    return names


def test_a_task_that_its_dead_agent_had_not_started_is_not_blamed_for_it(rig: FleetRig) -> None:
    """FLEET-08: only what may have run counts as a loss; five of them wait for a person. A thousand kills found it."""
    held_by_a_dead_agent(rig)
    wait_until(lambda: rig.turn() or len(rig.entries("b1", "revoke")) == 4)
    causes = [entry["cause"] for entry in sorted(rig.entries("b1", "revoke"), key=lambda each: each["task"])]
    assert causes == ["agent_dead", "unstarted", "unstarted", "unstarted"]
    ledger = rig.brain.offer_of(rig.disk.names(places.QUEUE)[0])
    assert ledger is not None and sum(ledger.ledger.state(f"t{number}").losses for number in range(4)) == 1


def test_the_next_life_of_an_agent_reports_what_had_not_started_as_such(rig: FleetRig) -> None:
    """FLEET-08: one loss for each slot."""
    names = held_by_a_dead_agent(rig)
    board = BoardClient(rig.root, "gone")
    assert board.join(2) == names
    assert [result["why"] for result in rig.results("gone")] == ["lost", "lost", "unstarted", "unstarted"]
    wait_until(lambda: rig.turn() or len(rig.entries("b1", "lost")) == 4)


# ------------------------------------------------------------------ how many


def prepared(name: str) -> Prepared:
    slip = Slip("t", "b", "p", 1, 1, 0, (), {}, (), Work())
    return Prepared(name, slip, TaskClass.CPU, Job(name, ("true",), {}))


def test_only_quick_tasks_are_claimed_ahead_and_several_at_once() -> None:
    """FLEET-02: a slot is what a task runs in; more are claimed only for milliseconds."""
    ahead = ClaimedAhead(slots=4)
    assert ahead.room() == 0  # nothing is known about its tasks yet
    ahead.ended(2)
    assert ahead.room() == 4 * limits.AHEAD_PER_SLOT
    for number in range(5):
        ahead.put(prepared(f"s{number}"))
    assert ahead.room() == 0  # it has enough for now
    assert [each.name for each in (ahead.take(), ahead.take()) if each is not None] == ["s0", "s1"]
    assert ahead.room() == 4 * limits.AHEAD_PER_SLOT - 3
    ahead.drop({"s3"})
    assert ahead.names == {"s2", "s4"}
    ahead.ended(60_000)
    assert ahead.room() == 0


def test_what_waits_too_long_is_returned_and_nothing_more_is_claimed_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FLEET-09: until another task was quick."""
    ahead = ClaimedAhead(slots=1)
    ahead.ended(1)
    ahead.put(prepared("a"))
    assert ahead.overdue() == []
    monkeypatch.setattr(limits, "AHEAD_MS_MAX", 0)
    ahead.drop({"a"})
    ahead.put(prepared("b"))
    assert [each.name for each in ahead.overdue()] == ["b"]
    assert len(ahead) == 0 and ahead.room() == 0
