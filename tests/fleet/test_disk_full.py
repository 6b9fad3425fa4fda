"""Tasks that find a disk full: that of their agent, or one that only the task knows. No failure of theirs."""

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.eventually import eventually, wait_until
from support.fleet_folder import shared_folder
from support.fleet_rig import FleetRig, quicken, running_agent
from support.small_disk import free_up, leave_blocks, small_disks
from watchbill.cli.plan_views import told_hold
from watchbill.fleet import limits
from watchbill.fleet.agent import produced
from watchbill.fleet.agent.loop import AgentOptions
from watchbill.fleet.agent.room import Room
from watchbill.fleet.folder.agent_report import HeldWhy, OnHold
from watchbill.fleet.folder.heartbeat import read_heartbeat
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.matching.abilities import Ability, Need
from watchbill.fleet.matching.policy import Crowd, judge
from watchbill.fleet.state.entries import Fail, Spec
from watchbill.fleet.state.ledger import TaskState
from watchbill.plans.graph import Node
from watchbill.plans.task import TaskClass

ONCE = "- **retries**: 0\n"
SAYS_FULL = "### a\n- **command**: `echo 'cp: error writing x: No space left on device' >&2; exit 1`\n"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetRig:
    quicken(monkeypatch)
    monkeypatch.setattr(limits, "BACK_OFF_MS", (50, 50, 50))
    return FleetRig(tmp_path / "shared")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    with small_disks(tmp_path) as mount:
        yield mount


def results_of(rig: FleetRig) -> int:
    rig.turn()
    return len(rig.results("cpu-1"))


def figures_of(rig: FleetRig) -> tuple[int, int] | None:
    """Tasks completed and failed, as the agent tells them."""
    beat = read_heartbeat(rig.disk, "cpu-1")
    return None if beat is None else (beat.report.completed, beat.report.failed)


def hold_of(rig: FleetRig) -> OnHold | None:
    beat = read_heartbeat(rig.disk, "cpu-1")
    return None if beat is None else beat.report.hold


async def test_a_task_waits_for_room_on_the_disk_of_its_agent(
    rig: FleetRig, small_disk: Callable[[str], Path]
) -> None:
    """FLEET-08: a full disk used up the attempts of every task; now the agent claims nothing until there is room."""
    private = small_disk("size=1m")
    rig.submit("b1", f"### a\n- **command**: `echo '{{}}' > \"$WATCHBILL_RESULT\"; echo done`\n{ONCE}")
    async with running_agent(AgentOptions("cpu-1", rig.root, private, cpu_slots=2)):
        await eventually(lambda: read_heartbeat(rig.disk, "cpu-1") is not None)
        leave_blocks(private, 0)
        await eventually(lambda: results_of(rig) > 0 and hold_of(rig) is not None)
        assert hold_of(rig) == OnHold(HeldWhy.DISK_FULL, folder=str(private))
        attempts = len(rig.results("cpu-1"))
        for _ in range(20):  # many cycles, and no further attempt
            rig.turn()
            await asyncio.sleep(limits.AGENT_INTERNAL_MS / 1000)
        assert len(rig.results("cpu-1")) <= attempts + 1
        free_up(private)
        await eventually(rig.turn)
        await eventually(lambda: hold_of(rig) is None)
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"
    assert {entry["end"] for entry in rig.entries("b1", "fail")} == {"disk_full"}
    assert not any(entry["is_counted"] for entry in rig.entries("b1", "fail"))


def test_a_folder_of_temporary_files_that_was_full_at_the_start_is_looked_at(
    small_disk: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-08: the agent took the next folder that had room for its own, and its tasks failed one after the other."""
    scratch = small_disk("size=1m")
    leave_blocks(scratch, 0)
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a new process
    room = Room((tmp_path,))
    assert room.look()
    assert room.shown() == OnHold(HeldWhy.DISK_FULL, folder=str(scratch))
    free_up(scratch)
    assert room.look()
    assert room.shown() is None


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "private"])
def test_an_agent_that_is_started_while_a_disk_is_full_waits_for_room(
    is_shared: bool, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    """FLEET-08, P7: it ended at once with exit code 1, for good where nothing started it again."""
    disk = small_disk("size=2m")
    rig = FleetRig((disk if is_shared else tmp_path) / "shared")
    if is_shared:  # what the agent says is written beside the link
        (tmp_path / "shared").symlink_to(rig.root)
        rig.root = tmp_path / "shared"
    leave_blocks(disk, 0)
    agent = rig.start("cpu-1", WATCHBILL_HOME=str(tmp_path if is_shared else disk))
    try:
        wait_until(lambda: "it starts when there is room" in agent.said())
        assert agent.process.poll() is None
        free_up(disk)
        wait_until(agent.heartbeat)
        assert agent.end() == 0
        assert agent.said().count("when there is room") == 1
    finally:
        rig.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_is_found_full_by_the_sync_is_no_failure(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """FLEET-08: network disks and quotas refuse what was written only when it is synced; the task counted as failed."""
    synced: list[int] = []

    def sync_once_there_is_room(fd: int) -> None:
        synced.append(fd)
        if len(synced) < 2:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(produced, "sync_data", sync_once_there_is_room)
    rig.submit(
        "b1",
        f"### a\n- **command**: `echo x > {{BATCH_PATH}}/out`\n- **produces**: {{BATCH_PATH}}/out\n{ONCE}",
    )
    async with running_agent(AgentOptions("cpu-1", rig.root, rig.root.parent / "private", cpu_slots=2)):
        await eventually(rig.turn)
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"
    assert [entry["end"] for entry in rig.entries("b1", "fail")] == ["disk_full"]


async def test_a_task_that_finds_another_disk_full_comes_again(
    rig: FleetRig, small_disk: Callable[[str], Path]
) -> None:
    """FLEET-08: the agent does not know this disk and is not held; the task goes on when there is room."""
    data = small_disk("size=1m")
    leave_blocks(data, 0)
    os.chmod(data, 0o777)
    rig.submit(
        "b1",
        f"### a\n- **command**: `head -c 300000 /dev/zero > {data}/out`\n- **produces**: {data}/out\n{ONCE}",
    )
    async with running_agent(AgentOptions("cpu-1", rig.root, rig.root.parent / "private", cpu_slots=2)):
        await eventually(lambda: results_of(rig) >= 2)
        assert hold_of(rig) is None
        free_up(data)
        await eventually(rig.turn)
        await eventually(lambda: figures_of(rig) == (1, 0))  # a full disk is no failure of the task
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"


@pytest.mark.parametrize("words", [("signal", "cpu-1", "stop"), ("plan", "cancel", "BATCH")])
def test_a_person_is_told_which_file_found_no_room(
    words: tuple[str, ...], tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    """Only "cannot read or write" was said, and a person with several disks did not know which one."""
    root = small_disk("size=1m")
    with shared_folder(tmp_path, root) as fleet:
        fleet.write_plan("p", "### a\n- **command**: `true`\n")
        batch = fleet.submit("p")
        assert fleet.run("agent", "cpu-1", "--root", str(root), "--once").returncode == 0  # it is known now
        leave_blocks(root, 0)
        done = fleet.run(*(batch if word == "BATCH" else word for word in words), "--root", str(root))
    assert done.returncode == 1 and done.stderr.startswith(f"watchbill: {root}/"), done.stderr
    assert done.stderr.endswith(": no space left on device\n"), done.stderr


async def test_a_task_that_always_finds_a_disk_full_fails_in_the_end(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-08: it may be the one that fills the disk, and frees it when it ends."""
    monkeypatch.setattr(limits, "DISK_FULL_MAX", 3)
    rig.submit("b1", SAYS_FULL + "- **retries**: 1\n")
    async with running_agent(AgentOptions("cpu-1", rig.root, rig.root.parent / "private", cpu_slots=2)):
        await eventually(rig.turn)
    assert [entry["is_counted"] for entry in rig.entries("b1", "fail")] == [False, False, False, True, True]
    assert rig.entries("b1", "ended")[0]["outcome"] == "failed"


def test_the_waits_grow_and_another_agent_is_tried() -> None:
    """FLEET-08: 10 s, 60 s, 300 s, without a failure that counts."""
    result, state = Result("n", "a", 1, End.DISK_FULL), TaskState(attempt=1)
    crowd, need = Crowd((Ability("a", 1), Ability("b", 1))), Need(TaskClass.CPU)
    delays: list[int] = []
    for full in range(4):
        entry = judge("t", replace(state, disk_full=full), Spec(Node("t")), result, crowd, need=need)
        assert isinstance(entry, Fail)
        assert not entry.is_counted and not entry.is_final and entry.avoid == ("a",)
        delays.append(entry.delay_ms)
    assert delays == [10_000, 60_000, 300_000, 300_000]


def test_people_are_told_which_disk_is_full() -> None:
    hold = OnHold(HeldWhy.DISK_FULL, folder="/var/lib/x")
    assert OnHold.of(Fields(hold.fields())) == hold
    assert told_hold(Path("/mnt"), "cpu-1", hold) == (
        "cpu-1 is held: the disk of /var/lib/x on its machine is full; it goes on when there is room"
    )
