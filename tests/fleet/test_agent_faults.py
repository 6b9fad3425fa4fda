"""An agent whose shared folder is gone, full or hangs, and heartbeats that are not what they seem: in one process, so
that its bounds can be shortened."""

import asyncio
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from support.eventually import eventually
from support.fleet_rig import FleetRig, marked_processes, quicken, running_agent
from watchbill.errors import OursError
from watchbill.files.host import boot_id
from watchbill.fleet import limits
from watchbill.fleet.agent.loop import Agent, AgentOptions
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, write_heartbeat
from watchbill.fleet.folder.values import Fields
from watchbill.processes import limits as processes_limits

WAITING = "### a\n- **command**: `touch {BATCH_PATH}/started; while [ ! -e {BATCH_PATH}/go ]; do sleep 0.05; done`\n"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetRig:
    quicken(monkeypatch, AGENT_RIVAL_WATCH_MS=500)
    return FleetRig(tmp_path / "shared")


def options(rig: FleetRig, name: str = "cpu-1") -> AgentOptions:
    folder = rig.root.parent / f"private-{name}"
    folder.mkdir(exist_ok=True)
    return AgentOptions(name, rig.root, folder, cpu_slots=2)


def is_started(rig: FleetRig) -> bool:
    rig.turn()
    return (rig.batch_folder("b1") / "started").exists()


def tasks_of(rig: FleetRig) -> list[int]:
    return marked_processes(f"BATCH_PATH={rig.root}")


def whys(rig: FleetRig) -> list[str]:
    return [str(result["why"]) for result in rig.results("cpu-1")]


async def test_a_short_loss_of_the_folder_costs_no_task(rig: FleetRig) -> None:
    """An empty mount point is not taken for revoked tasks; what ended meanwhile is reported afterwards."""
    rig.submit("b1", WAITING)
    async with running_agent(options(rig)):
        await eventually(lambda: is_started(rig))
        away = rig.root.with_name("away")
        rig.root.rename(away)
        rig.root.mkdir()
        (away / "plans/p/history/b1/go").touch()
        await eventually(lambda: not list(rig.root.iterdir()))
        for _ in range(20):  # some of the agent's cycles see the empty folder
            await asyncio.sleep(limits.AGENT_INTERNAL_MS / 1000)
        assert list(rig.root.iterdir()) == [] and tasks_of(rig)
        rig.root.rmdir()
        away.rename(rig.root)
        await eventually(rig.turn)
    assert whys(rig) == ["done"]
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"


async def test_an_agent_without_its_folder_ends_its_tasks_and_goes_on_when_it_is_back(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-08: 60 s in earnest. The guard ends the task, the report says lost, and the next attempt runs here."""
    monkeypatch.setattr(limits, "AGENT_LEASE_MS", 1_000)
    rig.submit("b1", WAITING)
    async with running_agent(options(rig)):
        await eventually(lambda: is_started(rig))
        away = rig.root.with_name("away")
        rig.root.rename(away)
        await eventually(lambda: not tasks_of(rig))
        (away / "plans/p/history/b1/go").touch()
        away.rename(rig.root)
        await eventually(rig.turn)
    assert whys(rig) == ["lost", "done"]


async def test_a_folder_that_hangs_stops_neither_the_guard_nor_the_end(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file thread is stuck as on a dead mount: tasks end by their lease, and the agent leaves when it is told."""
    monkeypatch.setattr(limits, "AGENT_LEASE_MS", 1_000)
    monkeypatch.setattr(processes_limits, "LEAVE_LAST_MS_MAX", 200)
    monkeypatch.setattr(processes_limits, "STOP_TERM_MS", 200)
    rig.submit("b1", WAITING)
    agent = Agent(options(rig))
    serving = asyncio.create_task(agent.run())
    await eventually(lambda: is_started(rig))
    mounted = threading.Event()
    stuck = asyncio.create_task(agent._files.do(mounted.wait))
    await eventually(lambda: not tasks_of(rig))
    assert not serving.done()
    agent.leave(0)
    await asyncio.wait_for(serving, 30)
    assert whys(rig) == []  # before the mount is back: then the stuck thread may still report
    mounted.set()
    await stuck


async def test_a_full_folder_loses_no_result(rig: FleetRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result log cannot grow: the result waits in memory, nothing is claimed, and it is reported later."""
    import resource

    rig.submit("b1", WAITING + "### b\n- **command**: `true`\n- **depends_on**: a\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with running_agent(options(rig)):
        await eventually(lambda: is_started(rig))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # every write beyond byte 0 fails: EFBIG
        try:
            (rig.batch_folder("b1") / "go").touch()
            await eventually(lambda: not tasks_of(rig))
            for _ in range(10):
                await asyncio.sleep(limits.AGENT_INTERNAL_MS / 1000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await eventually(rig.turn)
    assert whys(rig) == ["done", "done"]


# ------------------------------------------------------------------ heartbeats that are not what they seem


def leave_heartbeat(rig: FleetRig, pulse: Pulse, **values: object) -> None:
    rig.disk.make_folder(os.path.dirname(places.heartbeat_path("cpu-1")))
    report = AgentReport.of(Fields({"name": "cpu-1", "state": "cold", **values}))
    write_heartbeat(rig.disk, "cpu-1", Heartbeat(pulse, report))


async def test_a_pid_that_was_used_again_is_no_rival(rig: FleetRig) -> None:
    """R15: same boot and pid, another start time; and a heartbeat from the future is only a text."""
    leave_heartbeat(rig, Pulse(boot_id(), os.getppid(), 1, 5), last_updated="2099-01-01T00:00:00+00:00")
    rig.submit("b1", "### a\n- **command**: `true`\n")
    async with running_agent(options(rig)):
        await eventually(rig.turn)
    assert whys(rig) == ["done"]


async def test_a_rival_on_another_machine_is_noticed_by_its_moving_heartbeat(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R15: times of two machines are never compared; the younger one gives way."""
    monkeypatch.setattr(limits, "AGENT_RIVAL_WATCH_MS", 30_000)
    pulse = Pulse("another-boot", 7, 7, 1)
    leave_heartbeat(rig, pulse)
    serving = asyncio.create_task(Agent(options(rig)).run())
    while not serving.done():
        pulse = replace(pulse, seq=pulse.seq + 1)
        leave_heartbeat(rig, pulse, host="elsewhere")
        await asyncio.sleep(0.05)
    with pytest.raises(OursError, match="runs already, on the host elsewhere with pid 7"):
        await serving
    assert rig.disk.names(places.RESULTS) == []


async def test_a_silent_heartbeat_of_another_machine_is_nobody(rig: FleetRig) -> None:
    """R15, and a machine that was started anew knows its own last boot without waiting."""
    leave_heartbeat(rig, Pulse("another-boot", 7, 7, 1))
    given = options(rig)
    async with running_agent(given):
        await eventually(lambda: rig.disk.names(places.RESULTS))
    assert (given.folder / "boot").read_text() == boot_id()
    (given.folder / "boot").write_text("boot-before")
    leave_heartbeat(rig, Pulse("boot-before", 7, 7, 1))
    agent = Agent(given)
    limits.AGENT_RIVAL_WATCH_MS = 10**9  # restored by the fixture
    serving = asyncio.create_task(agent.run())
    await eventually(lambda: len(rig.disk.names(places.RESULTS)) == 2)
    agent.leave(0)
    await serving
    heartbeat = json.loads((rig.root / places.heartbeat_path("cpu-1")).read_text())
    assert (heartbeat["state"], heartbeat["boot_id"]) == ("stopped", boot_id())


# ------------------------------------------------------------------ slips that nobody issued


@pytest.mark.parametrize(
    "work",
    [
        {"class": "other", "command": "true"},
        {"type": "generate", "prompt": "x"},
        {"command": "echo {NOTHING}"},
        {"command": "eval {ITEM}"},
        {"command": "true", "requires": ["a\0b"]},
        {"command": "true", "produces": ["\ud800"]},
        {"command": "true", "env": {"A=B": "x"}},
        {"command": "true", "env": {"A": "\ud800"}},
        {"command": "true", "items": ["{"]},
        {"command": "true", "plan": "../../etc"},
    ],
    ids=repr,
)
async def test_a_slip_that_makes_no_sense_fails_and_harms_nobody(
    rig: FleetRig, work: dict[str, object]
) -> None:
    """R50: anybody may write into a shared folder."""
    slip = {
        "format": 1,
        "task": "a",
        "batch": "b1",
        "plan": "p",
        "attempt": 1,
        "inputs": {},
        "items": [],
        **work,
    }
    (rig.root / "plans/p").mkdir()
    name = "3-0000000001-cpu-v0-_-b1-a.a1.json"
    async with running_agent(options(rig)):
        offer(rig, name, slip)
        await eventually(lambda: whys(rig))
        offer(rig, name.replace("0001", "0002"), {**slip, **SENSIBLE})
        await eventually(lambda: len(whys(rig)) == 2)
    assert whys(rig)[0] in ("failed", "missing_output", "wrong") and whys(rig)[1] == "done"


def offer(rig: FleetRig, name: str, slip: dict[str, object]) -> None:
    """Whole at once: an agent that is quick takes an empty file otherwise."""
    FolderDisk(rig.root).put(
        f"{places.QUEUE}/{name}", json.dumps(slip).encode(), draft=f"{places.DRAFTS}/{name}"
    )


SENSIBLE = {"class": "cpu", "type": "shell", "command": "true", "requires": [], "produces": [], "env": {},
            "items": [], "plan": "p"}  # fmt: skip
