"""Agents and coordinators of the reader's own machine that hang: their pids live, and they count as dead."""

import json
import signal
import subprocess
from pathlib import Path

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from support.stopping import stop
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk

MACHINE = str(Path(__file__).parents[1] / "support" / "machine.py")
#: Some thirty times as fast as in earnest.
STIRS_MS = 1_500
SHORT = {
    "SILENCE_MS_MAX": 3_000, "AGENT_LEASE_MS": 2_000, "AGENT_INTERNAL_MS": 300, "AGENT_EXTERNAL_MS": 500,
    "AGENT_POLL_BUSY_MS": 100, "AGENT_POLL_IDLE_MS": 300, "COORDINATOR_BEAT_MS": 500, "COORDINATOR_POLL_MS": 100,
    "COORDINATOR_STIRS_MS": STIRS_MS, "BACK_OFF_MS": [100, 100, 100],
}  # fmt: skip
#: Each attempt tells who runs it, and waits for a file.
WAITING = """### a
- **command**: `echo $WATCHBILL_AGENT >> {BATCH_PATH}/ran; while [ ! -e {BATCH_PATH}/go ]; do sleep 0.05; done`
"""


def start(fleet: FleetFolder, *words: str, **limits: int) -> "subprocess.Popen[bytes]":
    return fleet.start(MACHINE, "-", json.dumps(SHORT | limits), *words, "--root", str(fleet.root))


def start_agent(fleet: FleetFolder, name: str) -> "subprocess.Popen[bytes]":
    wait_until((fleet.root / places.RESULTS).is_dir)
    return start(fleet, "agent", name, "--cpu-slots", "2")


def ran(fleet: FleetFolder, batch: str) -> list[str]:
    try:
        return (fleet.batch("p", batch) / "ran").read_text().split()
    except FileNotFoundError:
        return []


def test_a_task_of_an_agent_that_hangs_beside_the_coordinator_goes_to_another_one(fleet: FleetFolder) -> None:
    """FLEET-08, FLEET-09: its pid lives and its heartbeat does not move; what it says later does not count."""
    start(fleet, "coordinator")
    stopped = start_agent(fleet, "cpu-1")
    fleet.write_plan("p", WAITING)
    batch = fleet.submit("p")
    wait_until(lambda: ran(fleet, batch) == ["cpu-1"])
    stop(stopped.pid)
    start_agent(fleet, "cpu-2")
    wait_until(lambda: ran(fleet, batch) == ["cpu-1", "cpu-2"])
    stopped.send_signal(signal.SIGCONT)
    (fleet.batch("p", batch) / "go").touch()
    assert fleet.wait(batch) == 0
    [accepted] = fleet.entries("p", batch, "accept")
    assert (accepted["agent"], accepted["attempt"]) == ("cpu-2", 2)


def test_a_coordinator_that_hangs_is_replaced_on_its_own_machine_and_leaves_when_it_goes_on(
    fleet: FleetFolder,
) -> None:
    """FLEET-09, R17: it keeps its lock while it hangs; the epoch is what counts."""

    def epoch() -> int:
        return json.loads((fleet.root / places.COORDINATOR).read_text())["epoch"]

    (fleet.root / "brain").mkdir()
    (fleet.root / "brain").chmod(0o2775)
    stopped = start(fleet, "coordinator")
    wait_until((fleet.root / places.COORDINATOR).exists)
    assert (fleet.root / "brain/.lock").stat().st_mode & 0o060 == 0o060, (
        "another user of the group takes over"
    )
    # Patient: on a busy machine the first one may be late with its sign of life.
    refused = start(fleet, "coordinator", COORDINATOR_STIRS_MS=60_000)
    assert refused.wait(PATIENCE_S) == 2 and f"(pid {stopped.pid})" in fleet.log.read_text()
    stop(stopped.pid)
    wait_until(lambda: FolderDisk(fleet.root).age_ms(places.COORDINATOR) > STIRS_MS)
    start(fleet, "coordinator")
    wait_until(lambda: epoch() == 2)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(PATIENCE_S) == 1, "superseded"
    start_agent(fleet, "cpu-1")
    fleet.write_plan("p", "### a\n- **command**: `true`\n")
    assert fleet.wait(fleet.submit("p")) == 0 and epoch() == 2
