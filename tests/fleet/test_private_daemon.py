"""The private daemon of an agent ends with its agent, and an agent that could run nothing does not start."""

import signal
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places


def daemons_below(folder: Path) -> list[int]:
    """The daemons whose root lies in this folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:  # it has ended
            continue
        if b"up" in words and any(word.startswith(bytes(folder)) for word in words):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_private_daemon_of_an_agent_that_is_ended_while_it_starts_ends_with_it(
    fleet: FleetFolder, number: int
) -> None:
    """FLEET-01, SUP-05: nothing outlives the process that it was started for."""
    places.make_root(fleet.root)
    agent = fleet.start("-m", "watchbill", "agent", "k1", "--device", "gpu:9", "--root", str(fleet.root))
    wait_until(lambda: len(daemons_below(fleet.home)) == 1)
    agent.send_signal(number)
    agent.wait(2 * PATIENCE_S)
    wait_until(lambda: not daemons_below(fleet.home))


def test_an_agent_for_a_device_that_is_not_there_says_so_and_leaves_nothing(fleet: FleetFolder) -> None:
    """FLEET-01: it does not join a fleet whose tasks it could never run."""
    places.make_root(fleet.root)
    told = fleet.run("agent", "k1", "--device", "gpu:9", "--root", str(fleet.root))
    assert told.returncode == 2 and "this machine has no device gpu:9; it has " in told.stderr
    assert not daemons_below(fleet.home) and not (fleet.root / places.PROCESSING / "k1").exists()


def test_an_agent_without_slots_device_and_model_is_refused(fleet: FleetFolder) -> None:
    """FLEET-01."""
    places.make_root(fleet.root)
    told = fleet.run("agent", "k1", "--cpu-slots", "0", "--root", str(fleet.root))
    assert told.returncode == 2 and "runs nothing; give it --cpu-slots 1" in told.stderr
