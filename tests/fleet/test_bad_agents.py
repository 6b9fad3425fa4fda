"""Who is to blame for failures: an agent is held only for what other agents can run, and never for long."""

import os
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_folder import shared_folder
from support.fleet_rig import FleetRig
from watchbill.fleet import limits
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport, HeldWhy
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.signals import Order, pending, send
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.matching.abilities import Ability, can_be_spared
from watchbill.fleet.matching.bad_agents import BadAgents, Failure
from watchbill.plans.batch import ExecutePlan

TRUE = "- **command**: `true`\n"


def of(plan: str, task: str = "t", template: str = "") -> Failure:
    return Failure(plan, template or task, f"batch-of-{plan}", task)


# ------------------------------------------------------------------ the rule


def test_one_wrong_command_of_a_fan_out_accuses_nobody() -> None:
    """FLEET-08: however many of its items fail, they are one task of the plan."""
    bad = BadAgents()
    for number in range(50):
        bad.hear("a", of("typo", f"conv_{number}", "conv"), End.FAILED)
    assert bad.due() == []


def test_the_tasks_of_one_plan_are_one_accusation_until_another_agent_runs_them() -> None:
    """FLEET-08."""
    bad = BadAgents()
    for task in ("x", "y", "z"):
        bad.hear("a", of("p", task), End.FAILED)
    assert bad.due() == []
    bad.hear("b", of("p", "x"), End.DONE)
    assert bad.due() == []
    bad.hear("b", of("p", "y"), End.DONE)
    assert bad.due() == ["a"]


def test_failures_of_three_plans_make_an_agent_a_bad_one_and_others_that_share_them_clear_it() -> None:
    """FLEET-08."""
    bad = BadAgents()
    for plan in ("p", "q", "r"):
        assert bad.due() == []
        bad.hear("a", of(plan), End.NOT_RUNNABLE)
    assert bad.due() == ["a"]
    bad.hear("b", of("q"), End.FAILED)
    assert bad.due() == []
    assert not bad.is_bad("a")
    bad.hear("c", of("q"), End.FAILED)
    assert not any(map(bad.is_bad, "abc"))


def test_a_success_ends_the_row() -> None:
    bad = BadAgents()
    for plan in ("p", "q"):
        bad.hear("a", of(plan), End.FAILED)
    bad.hear("a", of("other"), End.DONE)
    bad.hear("a", of("r"), End.FAILED)
    assert bad.due() == []


def test_after_a_hold_one_more_failure_is_enough_and_a_success_clears() -> None:
    bad = BadAgents()
    for plan in ("p", "q", "r"):
        bad.hear("a", of(plan), End.FAILED)
    bad.held("a")
    assert bad.due() == []
    bad.hear("a", of("s"), End.FAILED)
    assert bad.due() == ["a"]
    bad.held("a")
    bad.hear("a", of("s"), End.DONE)
    bad.hear("a", of("u"), End.FAILED)
    assert bad.due() == []


def test_what_is_remembered_of_failures_is_bounded() -> None:
    bad = BadAgents()
    for number in range(limits.ACCUSATIONS_MAX * 2):
        bad.hear("a", of("p", f"t{number}"), End.FAILED)
    assert bad.size() <= 2 * limits.ACCUSATIONS_MAX


@pytest.mark.parametrize(
    ("others", "is_spared"),
    [
        ([], False),
        ([Ability("brain", 4)], False),
        ([Ability("b", 1, True, False, 8_000)], False),  # another model
        ([Ability("b", 1, True, False, 4_000, "m", ("m",))], False),  # a smaller card
        ([Ability("b", 1, True, False, 8_000, "m", ("m",))], True),
        ([Ability("b", 0, True, False, 8_000, "m", ("m",)), Ability("c", 2)], True),
    ],
)
def test_the_last_agent_for_a_class_cannot_be_spared(others: list[Ability], is_spared: bool) -> None:
    agent = Ability("a", 2, True, False, 8_000, "m", ("m",))
    assert can_be_spared(agent, others) is is_spared


# ------------------------------------------------------------------ the coordinator


class Rig:
    """A coordinator driven turn by turn, and agents that are names."""

    def __init__(self, root: Path, *agents: str) -> None:
        root.mkdir(exist_ok=True)
        places.make_root(root)
        self.root, self.disk = root, FolderDisk(root)
        self.board = Board(self.disk)
        self.logs: dict[str, ResultLog] = {}
        self.now_ms = 0
        for agent in agents:
            self.board.join(agent)
            self.logs[agent] = ResultLog(self.disk, agent)
            self.disk.make_folder(os.path.dirname(places.heartbeat_path(agent)))
            self.beat(agent)
        self.brain = Coordinator(
            self.disk, Watcher("m"), Pulse("m", 1, 1, 0), wall_ms=lambda: 1_767_225_600_000
        )
        self.brain.start(0)

    def beat(self, agent: str, **values: object) -> None:
        report = AgentReport.of(Fields({"cpu_slots": 4, **values}))
        write_heartbeat(self.disk, agent, Heartbeat(Pulse("rig", 1, 1, self.now_ms), report))

    def turn(self, ms: int = 2_000) -> None:
        self.now_ms += ms
        self.brain.turn(self.now_ms)

    def submit(self, batch: str, plan: str, tasks: str) -> None:
        folder = self.root / "plans" / plan
        folder.mkdir(exist_ok=True)
        (folder / "plan.md").write_text(f"# Plan\n## Tasks\n{tasks}")
        (self.root / places.INBOX / f"{batch}.json").write_bytes(ExecutePlan(batch, plan, {}).encode())

    def run_all(self, agent: str, end: End) -> list[tuple[str, ...]]:
        """Let an agent take everything that is offered, and end it so. Returns what each slip asks to avoid."""
        avoided: list[tuple[str, ...]] = []
        for name in self.board.offered():
            assert self.board.claim(agent, name)
            slip = self.board.read(agent, name)
            assert slip is not None
            avoided.append(slip.avoid)
            rc = 0 if end is End.DONE else 1
            self.logs[agent].commit([Result(name, agent, self.logs[agent].life, end, rc)])
        return avoided

    def signals(self, agent: str) -> list[Order]:
        return [signal.order for signal in pending(self.disk, agent)]


def fail_three_plans(rig: Rig, agent: str) -> None:
    for plan in ("p", "q", "r"):
        rig.submit(f"b-{plan}", plan, f"### t\n{TRUE}")
    rig.turn()
    rig.run_all(agent, End.FAILED)
    rig.turn()


def test_an_agent_that_fails_what_others_run_is_held_for_a_while(tmp_path: Path) -> None:
    """FLEET-08: the signal says why and for how long."""
    rig = Rig(tmp_path, "a", "b")
    fail_three_plans(rig, "a")
    [signal] = pending(rig.disk, "a")
    assert (signal.order, signal.why, signal.for_ms) == (Order.HOLD, HeldWhy.FAILURES, limits.AGENT_HOLD_MS)
    assert rig.signals("b") == []


def test_a_hold_is_lifted_when_another_agent_fails_the_same(tmp_path: Path) -> None:
    """FLEET-08: then the plans are to blame."""
    rig = Rig(tmp_path, "a", "b")
    fail_three_plans(rig, "a")
    (rig.root / places.SIGNALS / "a.hold").unlink()
    rig.beat("a", constraints=["held"], hold={"why": "failures", "left_ms": 200_000})
    rig.turn(limits.BACK_OFF_MS[0])
    rig.run_all("b", End.FAILED)
    rig.turn()
    [signal] = pending(rig.disk, "a")
    assert (signal.order, signal.why) == (Order.RESUME, HeldWhy.FAILURES)
    assert rig.signals("b") == []


def test_the_last_agent_is_never_held(tmp_path: Path) -> None:
    """FLEET-08: not even when the only other one is held by a person, or is the coordinator's own."""
    rig = Rig(tmp_path, "a", "b", places.BRAIN)
    rig.beat("b", constraints=["held"], hold={"why": "person"})
    fail_three_plans(rig, "a")
    assert rig.signals("a") == []


def test_an_agent_that_cannot_run_a_task_is_no_reason_to_avoid_another(tmp_path: Path) -> None:
    """FLEET-08: neither the coordinator's own, nor one without slots, nor one on hold."""
    rig = Rig(tmp_path, "a", "b", "c", places.BRAIN)
    rig.beat("b", constraints=["held"], hold={"why": "person"})
    rig.beat("c", cpu_slots=0)
    rig.submit("b1", "p", f"### t\n{TRUE}")
    rig.turn()
    assert rig.run_all("a", End.FAILED) == [()]
    rig.turn()
    rig.turn(limits.BACK_OFF_MS[0])
    assert rig.run_all("a", End.DONE) == [()]


def test_a_failed_task_avoids_its_agent_where_another_can_run_it(tmp_path: Path) -> None:
    """FLEET-08."""
    rig = Rig(tmp_path, "a", "b")
    rig.submit("b1", "p", f"### t\n{TRUE}")
    rig.turn()
    rig.run_all("a", End.FAILED)
    rig.turn()
    rig.turn(limits.BACK_OFF_MS[0])
    assert rig.run_all("b", End.DONE) == [("a",)]


# ------------------------------------------------------------------ the agent


def hold_for(rig: FleetRig, agent: str, for_ms: int) -> None:
    send(rig.disk, agent, Order.HOLD, why=HeldWhy.FAILURES, for_ms=for_ms)


def test_a_hold_for_failures_ends_by_itself_and_one_task_is_tried_first(rig: FleetRig) -> None:
    """FLEET-08."""
    agent = rig.start("cpu-1", "--cpu-slots", "4")
    wait_until(agent.heartbeat)
    hold_for(rig, "cpu-1", 8_000)
    wait_until(lambda: agent.heartbeat().get("constraints") == ["held"])
    hold = agent.heartbeat()["hold"]
    assert hold["why"] == "failures" and 0 < hold["left_ms"] <= 8_000
    waits = "touch {BATCH_PATH}/began.$$; until test -e {BATCH_PATH}/go; do sleep 0.1; done"
    gate = "".join(f"### t{number}\n- **command**: `{waits}`\n" for number in range(3))
    rig.submit("b1", gate)
    rig.turn()

    def began() -> int:
        return len(list(rig.batch_folder("b1").glob("began.*")))

    wait_until(lambda: began() == 1, 60)
    wait_until(lambda: agent.heartbeat().get("active_workers"))
    assert agent.heartbeat()["active_workers"] == 1
    assert began() == 1
    assert agent.heartbeat()["constraints"] == []
    (rig.batch_folder("b1") / "go").touch()
    wait_until(rig.turn, 60)
    assert "goes on" in agent.said()


def test_a_new_start_says_that_it_is_still_held_by_a_person_and_forgets_a_hold_for_failures(
    rig: FleetRig,
) -> None:
    """FLEET-07, FLEET-08."""
    agent = rig.start("cpu-1")
    wait_until(agent.heartbeat)
    hold_for(rig, "cpu-1", 600_000)
    wait_until(lambda: agent.heartbeat().get("constraints") == ["held"])
    agent.end()
    agent = rig.start("cpu-1")
    # Until its first, the file is its predecessor's.
    wait_until(lambda: agent.heartbeat().get("constraints") == [])
    assert agent.heartbeat()["hold"] is None
    rig.signal("cpu-1", Order.HOLD)
    wait_until(lambda: agent.heartbeat().get("constraints") == ["held"])
    send(rig.disk, "cpu-1", Order.RESUME, why=HeldWhy.FAILURES)  # the coordinator's lifts its own alone
    wait_until(lambda: not rig.disk.names(places.SIGNALS))
    agent.end()
    agent = rig.start("cpu-1")
    wait_until(lambda: agent.heartbeat().get("constraints") == ["held"])
    assert agent.heartbeat()["hold"] == {"why": "person", "left_ms": None}
    wait_until(lambda: f"watchbill signal cpu-1 resume --root {rig.root}" in agent.said())


# ------------------------------------------------------------------ what people see


def test_a_wrong_command_does_not_stop_other_plans(tmp_path: Path) -> None:
    """FLEET-08: a fan-out of twelve that fails at once, two agents, and a second plan that completes."""
    with shared_folder(tmp_path) as fleet:
        folder = fleet.write_plan(
            "typo", "### conv\n- command: `exit 1 {ITEM}`\n- foreach: {PLAN_PATH}/n.json:n\n"
        )
        (folder / "n.json").write_text('{"n": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}')
        fleet.write_plan("good", "### fine\n- command: `echo fine`\n")
        fleet.start_coordinator()
        fleet.start_agent("cpu-1")
        fleet.start_agent("cpu-2")
        typo = fleet.submit("typo")
        wait_until(lambda: len(fleet.entries("typo", typo, "fail")) >= 12)
        assert fleet.wait(fleet.submit("good")) == 0


def test_status_says_that_agents_are_held_and_how_to_lift_it(tmp_path: Path) -> None:
    """FLEET-12: a task that waits for agents on hold says so, everywhere, with a command that works."""
    with shared_folder(tmp_path) as fleet:
        fleet.write_plan("good", "### fine\n- command: `echo fine`\n")
        fleet.start_coordinator()
        fleet.start_agent("cpu-1")
        beat = fleet.root / places.heartbeat_path("cpu-1")
        wait_until(beat.exists)
        assert fleet.run("signal", "cpu-1", "hold", "--root", str(fleet.root)).returncode == 0
        wait_until(lambda: '"held"' in beat.read_text())
        batch = fleet.submit("good")
        wait_until(lambda: fleet.status(batch)["counts"] == {"queued": 1})
        told = fleet.status(batch)
        assert told["tasks"][0]["why"] == "agents_held"
        assert told["held"] == {"cpu-1": {"why": "person", "left_ms": None}}
        lift = f"watchbill signal cpu-1 resume --root {fleet.root}"
        for words in (("plan", "status", batch), ("plan", "status"), ("gpus",)):
            said = fleet.run(*words, "--root", str(fleet.root)).stdout
            assert lift in said, said
            assert "held" in said
        following = fleet.start(
            "-m", "watchbill", "plan", "status", batch, "--follow", "--root", str(fleet.root)
        )
        wait_until(lambda: lift in fleet.log.read_text())
        assert fleet.run(*lift.split()[1:]).returncode == 0
        assert fleet.wait(batch) == 0
        assert following.wait(60) == 0
