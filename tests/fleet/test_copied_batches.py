"""Plans that were copied or renamed with their batches: what does not belong here is refused, the rest runs on."""

import json
import shutil
from pathlib import Path

import pytest

from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.state.entries import Epoch, Open
from watchbill.fleet.state.epochs import Superseded, take_epoch
from watchbill.fleet.state.journal import ForeignBatch, Journal, read_past
from watchbill.fleet.state.reading import batches_of

TASK = "### a\n- **command**: `true`\n"


def fleet_with_a_batch(root: Path, epochs: int) -> FolderDisk:
    """A fleet whose last epoch has opened a batch."""
    places.make_root(root)
    disk = FolderDisk(root)
    for _ in range(epochs):
        epoch = take_epoch(disk)
    disk.make_folder(places.batch_folder("p", "b"))
    journal = Journal(disk, "p", "b", Epoch(epoch, {}, places.check_root(root)))
    journal.commit([Open("p", {}, 3)])
    journal.close()
    return disk


@pytest.mark.parametrize("epochs", [1, 2, 6])
def test_a_journal_of_another_fleet_is_refused_whatever_its_epoch(tmp_path: Path, epochs: int) -> None:
    """FLEET-09: it does not make this coordinator leave."""
    fleet_with_a_batch(tmp_path / "a", epochs)
    places.make_root(tmp_path / "b")
    here = FolderDisk(tmp_path / "b")
    take_epoch(here)
    epoch = take_epoch(here)
    shutil.copytree(tmp_path / "a/plans/p", tmp_path / "b/plans/p")
    with pytest.raises(ForeignBatch, match=r"plans/p/history/b is a batch of another fleet.*plan submit p"):
        read_past(here, "p", "b", epoch, places.check_root(here.root))


def test_a_journal_of_a_later_epoch_of_this_fleet_is_a_successor(tmp_path: Path) -> None:
    """FLEET-09."""
    disk = fleet_with_a_batch(tmp_path, 2)
    with pytest.raises(Superseded):
        read_past(disk, "p", "b", 1)


def test_a_batch_in_a_copied_plan_is_listed_under_the_plan_that_it_is_of(tmp_path: Path) -> None:
    disk = fleet_with_a_batch(tmp_path, 1)
    for copy in ("a", "z"):
        shutil.copytree(tmp_path / "plans/p", tmp_path / "plans" / copy)
    assert [(each.batch, each.plan) for each in batches_of(disk)] == [("b", "p")]


def test_requests_about_copied_and_renamed_batches_are_refused_and_the_rest_runs_on(
    tmp_path: Path, fleet: FleetFolder
) -> None:
    """FLEET-08, FLEET-09: the request leaves the inbox, and neither this coordinator nor the next one ends."""
    other = fleet_with_a_batch(tmp_path / "other", 6)
    fleet.write_plan("p", TASK)
    shutil.copytree(other.root / "plans/p/history", fleet.root / "plans/p/history")
    brain = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    first = fleet.submit("p")
    assert fleet.wait(first) == 0
    (fleet.root / "plans/p").rename(fleet.root / "plans/q")
    for batch in ("b", first):
        draft = tmp_path / "draft"
        draft.write_text(request(batch, "q"))
        draft.rename(fleet.root / places.INBOX / f"{batch}.1.reopen")  # whole, as the commands do it
    fleet.write_plan("r", TASK)
    assert fleet.wait(fleet.submit("r")) == 0
    assert brain.poll() is None and not list((fleet.root / places.INBOX).iterdir())
    refused = {name: refusal(fleet, name) for name in (f"{first}.1.reopen", "b.1.reopen")}
    assert "it is a batch of the plan p, and lies in plans/q" in refused[f"{first}.1.reopen"]
    assert "is a batch of another fleet" in refused["b.1.reopen"]


def request(batch: str, plan: str) -> str:
    return json.dumps(
        {"type": "reopen", "format": 1, "batch": batch, "plan": plan, "id": "1", "tasks": ["a"]}
    )


def refusal(fleet: FleetFolder, name: str) -> str:
    return json.loads((fleet.root / places.REFUSED / name).read_text())["error"]
