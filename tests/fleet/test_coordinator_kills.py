"""Kill the coordinator at random: each task is accepted exactly once, and the summary is right (R17, FLEET-09)."""

import json
import os
import random
import signal
import subprocess
from collections import Counter

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places

#: Kills on one folder: journals and result logs of many epochs pile up, as they do in a long life.
KILLS = 20
FOLDERS = 50  # of the long form: 1,000 kills
ITEMS = 12
PLAN = """### scan
- **command**: `cp items.json {BATCH_PATH}/manifest.json`
### first
- **command**: `echo >> {BATCH_PATH}/results/first.{ITEM.id}`
- **foreach**: {BATCH_PATH}/manifest.json
- **depends_on**: scan
### second
- **command**: `echo >> {BATCH_PATH}/results/second.{ITEM.id}`
- **foreach**: {BATCH_PATH}/manifest.json
- **depends_on**: first_{ITEM.id}
### sum
- **command**: `ls {BATCH_PATH}/results | wc -l > {BATCH_PATH}/output/count`
- **depends_on**: second
"""
TASKS = 2 + 2 * ITEMS


class Killing:
    """A coordinator that dies again and again, some while they start, some in the middle of their work."""

    def __init__(self, fleet: FleetFolder, seed: int) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.kills = 0
        self.brain: subprocess.Popen[bytes] = fleet.start_coordinator()

    def until_the_end_of(self, batch: str) -> None:
        """Kill until the batch has ended, or there were enough kills; then let it end."""
        while self.kills < KILLS and not has_ended(self.fleet, batch):
            self._let_it_begin(batch)
            turns = self.random.randrange(40)
            for _ in range(turns):  # each look is a moment of the coordinator's life
                if has_ended(self.fleet, batch):
                    return
            self.brain.send_signal(signal.SIGKILL)
            self.brain.wait(PATIENCE_S)
            self.kills += 1
            self.brain = self.fleet.start_coordinator()
        wait_until(lambda: has_ended(self.fleet, batch), 4 * PATIENCE_S)

    def _let_it_begin(self, batch: str) -> None:
        if self.random.random() < 0.2:
            return
        pid = self.brain.pid
        wait_until(lambda: says(self.fleet, pid) or has_ended(self.fleet, batch), 4 * PATIENCE_S)


def says(fleet: FleetFolder, pid: int) -> bool:
    """Whether the coordinator of this pid has taken over."""
    try:
        return json.loads((fleet.root / places.COORDINATOR).read_text())["pid"] == pid
    except FileNotFoundError:
        return False


def has_ended(fleet: FleetFolder, batch: str) -> bool:
    folders = (places.ACTIVE, places.INBOX)
    return not any((fleet.root / folder / f"{batch}.json").exists() for folder in reversed(folders))


def judge(fleet: FleetFolder, batch: str) -> None:
    """The laws: accepted once, nothing lost, nothing left, the summary right."""
    accepted = Counter(entry["task"] for entry in fleet.entries("p", batch, "accept"))
    assert len(accepted) == TASKS and set(accepted.values()) == {1}, accepted
    folder = fleet.batch("p", batch)
    assert int((folder / "output" / "count").read_text()) == 2 * ITEMS
    summary = json.loads((folder / "RUN_SUMMARY.json").read_text())
    assert summary["outcome"] == "complete" and summary["counts"]["complete"] == TASKS
    assert os.listdir(fleet.root / places.QUEUE) == []


def kill_and_judge(fleet: FleetFolder, seed: int) -> None:
    folder = fleet.write_plan("p", PLAN)
    (folder / "items.json").write_text(json.dumps([{"id": f"i{number}"} for number in range(ITEMS)]))
    killing = Killing(fleet, seed)
    for number in (1, 2):
        fleet.start_agent(f"cpu-{number}")
    while killing.kills < KILLS:
        batch = fleet.submit("p")
        killing.until_the_end_of(batch)
        judge(fleet, batch)


def test_a_coordinator_that_is_killed_twenty_times_loses_and_repeats_nothing(fleet: FleetFolder) -> None:
    """R17, FLEET-09, PLAN-06."""
    kill_and_judge(fleet, 7)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(FOLDERS))
def test_a_coordinator_that_is_killed_a_thousand_times_loses_and_repeats_nothing(
    fleet: FleetFolder, seed: int
) -> None:
    """R17, FLEET-09, PLAN-06."""
    kill_and_judge(fleet, seed)
