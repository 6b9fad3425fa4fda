"""Everything that can die is killed at random: coordinator, agents, guards, workers. Nothing is lost, nothing is
accepted twice, the summary is right.

A task may be run more than once, because its agent may die after the work and before the report.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from support.fleet_judge import BrokenLaw, judge
from support.fleet_rig import marked_processes
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.results import End, Result, ResultLog

SLOTS = 3
TASKS = 200
PLAN = """### each
- **command**: `sleep 0.0{ITEM.pause}; echo {ITEM.id} >> {BATCH_PATH}/ran`
- **foreach**: items.json
- **retries**: 50
"""
MACHINE = str(Path(__file__).parents[1] / "support" / "machine.py")
CARELESS = str(Path(__file__).parent / "programs" / "careless_coordinator.py")
#: A killed worker is a failed attempt: it comes again at once. Who kills so often may meet one task five times, by
#: chance: then it would wait for a person.
AT_ONCE = json.dumps({"BACK_OFF_MS": [0, 0, 0], "LOSSES_MAX": 1_000})
VICTIMS = ("coordinator", "agent", "guard", "worker", "agent and guard", "all")


class Reaper:
    """Kills one of the parts, and starts what is dead anew."""

    def __init__(self, fleet: FleetFolder, seed: int, *coordinator: str) -> None:
        self.fleet, self.chance = fleet, random.Random(seed)
        self._coordinator = coordinator or (MACHINE, "-", AT_ONCE)
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: Counter[str] = Counter()
        self._number = 0
        self.revive("brain")
        wait_until((fleet.root / places.RESULTS).is_dir)

    # ------------------------------------------------------------ batches

    def begin(self) -> str:
        """Submit a batch."""
        folder = self.fleet.write_plan("p", PLAN)
        items = [{"id": f"t{number}", "pause": self.chance.randrange(10)} for number in range(TASKS)]
        (folder / "items.json").write_text(json.dumps(items))
        return self.fleet.submit("p")

    def run(self, batch: str, kills: int) -> None:
        """Kill until there were so many, or the batch has ended; then let it end."""
        deadline = time.monotonic() + 2 * PATIENCE_S + 10 * kills
        while not self.has_ended(batch):
            if time.monotonic() > deadline:
                raise AssertionError(f"{batch} does not end: {self.fleet.log.read_text()[-4_000:]}")
            self.revive("brain", "cpu-1", "cpu-2")
            if self.killed.total() < kills:
                self._let_it_work(batch)
                self.strike(self.chance.choice(VICTIMS))
            time.sleep(self.chance.uniform(0.0, 0.05))  # the moments of the kills are the experiment

    def _let_it_work(self, batch: str) -> None:
        """Until a few more tasks have run, so that everybody lives who can be killed."""
        target = self._count(batch) + self.chance.randrange(1, 10)
        wait_until(lambda: self._count(batch) >= target or self.has_ended(batch), 4 * PATIENCE_S)

    def _count(self, batch: str) -> int:
        try:
            return len((self.fleet.batch("p", batch) / "ran").read_bytes().split())
        except FileNotFoundError:
            return 0

    def has_ended(self, batch: str) -> bool:
        files = [self.fleet.root / folder / f"{batch}.json" for folder in (places.INBOX, places.ACTIVE)]
        return not any(file.exists() for file in files)

    # ------------------------------------------------------------ deaths

    def revive(self, *names: str) -> None:
        root = str(self.fleet.root)
        for name in names:
            process = self._living.get(name)
            if process is None or process.poll() is not None:
                words = (
                    (*self._coordinator, "coordinator")
                    if name == "brain"
                    else ("-m", "watchbill", "agent", name, "--cpu-slots", str(SLOTS))
                )
                self._living[name] = self.fleet.start(*words, "--root", root)

    def kill(self, name: str) -> None:
        self._living[name].kill()
        self._living[name].wait(PATIENCE_S)

    def strike(self, victim: str) -> None:
        agent = self.chance.choice(("cpu-1", "cpu-2"))
        pids = {
            "coordinator": [self._living["brain"].pid],
            "agent": [self._living[agent].pid],
            "guard": self._guards(agent),
            "worker": self._workers()[:1] if victim == "worker" else [],
            # In this order: an agent that sees its guard dead would bury what is left.
            "agent and guard": [self._living[agent].pid, *self._guards(agent)],
            "all": [each.pid for each in self._living.values()],
        }[victim]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed[victim] += 1
        for process in self._living.values():
            if process.pid in pids:
                process.wait(PATIENCE_S)

    def _guards(self, agent: str) -> list[int]:
        folders = (self.fleet.home / "home" / "agents").glob(f"{agent}.*/run/engines/*.json")
        found: list[int] = []
        for file in folders:
            try:
                found.append(int(json.loads(file.read_text())["guard_pid"]))
            except (FileNotFoundError, ValueError):
                continue
        return [pid for pid in found if pid > 0]

    def _workers(self) -> list[int]:
        found: list[int] = []
        for _ in range(20):  # they live for a few hundredths of a second
            found = found or marked_processes(f"BATCH_PATH={self.fleet.root}")
        self.chance.shuffle(found)
        return found


def kill_and_judge(fleet: FleetFolder, kills: int, seed: int) -> Counter[str]:
    """So many kills over as many batches as it takes; each batch is judged."""
    reaper = Reaper(fleet, seed)
    while reaper.killed.total() < kills:
        batch = reaper.begin()
        reaper.run(batch, kills)
        judge(fleet.root, "p", batch, [f"each_t{number}" for number in range(TASKS)])
        ran = set((fleet.batch("p", batch) / "ran").read_text().split())
        assert ran == {f"t{number}" for number in range(TASKS)}
    fleet.close()
    wait_until(lambda: not marked_processes(str(fleet.root)))
    print(
        f"counts: {' '.join(f'{name.replace(chr(32), chr(95))}={count}' for name, count in reaper.killed.items())}"
    )
    return reaper.killed


@pytest.mark.timeout(300)
def test_every_task_is_accepted_once_whoever_is_killed(fleet: FleetFolder) -> None:
    """FLEET-08, FLEET-09, R17: 20 kills among coordinator, agents, guards and workers."""
    kill_and_judge(fleet, 20, int.from_bytes(os.urandom(4)))


@pytest.mark.torture
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("seed", range(20))
def test_every_task_is_accepted_once_in_a_thousand_kills(fleet: FleetFolder, seed: int) -> None:
    """FLEET-08, FLEET-09, R17: 50 kills on each of 20 folders."""
    kill_and_judge(fleet, 50, seed)


@pytest.mark.parametrize("is_careless", [False, True])
def test_the_kills_would_show_a_coordinator_that_takes_any_token(
    fleet: FleetFolder, is_careless: bool
) -> None:
    """FLEET-09: the late report of an agent whose task another one runs by now. A coordinator that does not look at the
    token takes it for the other's attempt: then a law is broken, so the trials above can fail."""
    command = "echo $WATCHBILL_AGENT >> {BATCH_PATH}/ran; while [ ! -e {BATCH_PATH}/go ]; do sleep 0.05; done"
    fleet.write_plan("p", f"### a\n- **command**: `{command}`\n")
    reaper = Reaper(fleet, 1, *((CARELESS,) if is_careless else ()))
    batch = fleet.submit("p")
    ran = fleet.batch("p", batch) / "ran"
    reaper.revive("cpu-1")
    wait_until(ran.exists)
    reaper.kill("cpu-1")
    reaper.revive("cpu-2")
    wait_until(lambda: ran.read_text().split() == ["cpu-1", "cpu-2"])
    [over] = os.listdir(fleet.root / places.EXPIRED)
    late = ResultLog(FolderDisk(fleet.root), "cpu-1")
    late.commit([Result(over, "cpu-1", late.life, End.DONE, 0)])
    late.close()
    (fleet.batch("p", batch) / "go").touch()
    wait_until(lambda: reaper.has_ended(batch))
    with pytest.raises(BrokenLaw) if is_careless else nullcontext():
        judge(fleet.root, "p", batch, ["a"])
