"""What a NAS, a file manager or a person leaves in the shared folder is none of Watchbill's, and stops nothing."""

import os
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places

#: Synology, Windows, a person, a link to a disk that is away, a link that leads to itself.
FOREIGN = ("@eaDir", "Thumbs.db", "notes.txt", "away", "loop")


def litter(folder: Path) -> None:
    """Leave foreign entries in a folder, each of them once."""
    for name in FOREIGN:
        path = folder / name
        if path.exists() or path.is_symlink():
            continue
        if name == "@eaDir":
            path.mkdir()
            (path / "SYNO@.fileindex").write_text("index")
        elif name in ("away", "loop"):
            path.symlink_to("/nonexistent" if name == "away" else name)
        else:
            path.write_text("mine")


def litter_everywhere(fleet: FleetFolder) -> None:
    own = [Path(folder) for folder, _, _ in os.walk(fleet.root) if "@eaDir" not in folder]
    for folder in own:
        litter(folder)


def test_foreign_files_in_every_folder_stop_nothing(fleet: FleetFolder) -> None:
    """FLEET-09, FLEET-12: a stray file in tasks/processing or gpus ended the coordinator again and again, and every
    command failed with its name."""
    fleet.write_plan(
        "p", "### a\n- **command**: `echo {ITEM}`\n- **foreach**: items.json\n- **task_class**: cpu\n"
    )
    (fleet.root / "plans" / "p" / "items.json").write_text("[1, 2, 3, 4]")
    places.make_root(fleet.root)
    (fleet.root / places.INBOX / "folder.json").mkdir()
    (fleet.root / places.REFUSED / "folder.json").mkdir()
    litter_everywhere(fleet)
    coordinator = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    first = fleet.submit("p")
    assert fleet.wait(first, 25) == 0, fleet.log.read_text()
    litter_everywhere(fleet)
    second = fleet.submit("p")
    assert fleet.wait(second, 25) == 0, fleet.log.read_text()
    coordinator.kill()
    coordinator.wait()
    fleet.start_coordinator()
    third = fleet.submit("p")
    assert fleet.wait(third, 25) == 0, fleet.log.read_text()
    for words in (("plan", "list"), ("plan", "status"), ("gpus",), ("plan", "simulate", "p"), ("approve",)):
        told = fleet.run(*words, "--root", str(fleet.root))
        assert told.returncode == 0, (words, told.stderr)
    shown = fleet.run("gpus", "--root", str(fleet.root)).stdout
    assert not any(name in shown for name in FOREIGN), shown
    listed = fleet.plan("list").stdout
    assert [batch for batch in (first, second, third) if batch not in listed] == []
    assert not any(name in listed for name in FOREIGN), listed
    assert fleet.run("signal", "cpu-1", "hold", "--root", str(fleet.root)).returncode == 0
    wait_until(lambda: not (fleet.root / places.SIGNALS / "cpu-1.hold").exists())
    log = fleet.log.read_text()
    assert "the shared folder failed" not in log and "unreadable" not in log
    left = {path.name for path in (fleet.root / places.QUEUE).iterdir()}
    assert left == set(FOREIGN)  # they stay where they were put


@pytest.mark.parametrize("name", ["gpu-1", "gpu-2"])
def test_a_file_in_the_place_of_an_agent_is_none(fleet: FleetFolder, name: str) -> None:
    """FLEET-09: also one that has an agent's name."""
    fleet.write_plan("p", "### a\n- **command**: `true`\n- **task_class**: cpu\n")
    places.make_root(fleet.root)
    for folder in (places.PROCESSING, places.GPUS):
        (fleet.root / folder / name.replace("-", "_" if folder == places.GPUS else "-")).write_text("mine")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p")) == 0
    assert fleet.run("gpus", "--root", str(fleet.root)).returncode == 0


def test_what_is_no_file_is_no_signal(fleet: FleetFolder) -> None:
    """FLEET-03, FLEET-07: an agent obeyed a folder called AGENT.stop and could not remove it: it never left, took the
    shared folder for broken, claimed nothing, and showed no heartbeat, so that what it ran was given to others."""
    fleet.write_plan("p", "### a\n- **command**: `true`\n- **task_class**: cpu\n")
    places.make_root(fleet.root)
    signals = fleet.root / places.SIGNALS
    for order in ("stop", "resume", "kill.a"):
        (signals / f"cpu-1.{order}").mkdir()
    os.mkfifo(signals / "cpu-1.abort")
    (signals / "cpu-1.kill").symlink_to("/dev/zero")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    wait_until(lambda: "a signal is a small file, and this is none" in fleet.log.read_text())
    assert "the shared folder fails" not in fleet.log.read_text()
    assert len(list(signals.iterdir())) == 5  # they stay where they were put
    told = fleet.run("signal", "cpu-1", "stop", "--root", str(fleet.root))
    assert told.returncode == 1
    assert f"{signals}/cpu-1.stop: is a directory" in told.stderr
