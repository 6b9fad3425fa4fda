"""Everything that can die is killed at random: agents, guards, workers. Nothing is lost, nothing is accepted twice.

A task may be run more than once, because its agent may die after the work and before the report.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_rig import AgentProcess, FleetRig, marked_processes

SLOTS = 3


class Reaper:
    """Kills one of the parts, and starts agents that are dead anew."""

    def __init__(self, rig: FleetRig, chance: random.Random) -> None:
        self.rig, self.chance = rig, chance
        self.agents = [self.start(name) for name in ("cpu-1", "cpu-2")]
        self.killed: Counter[str] = Counter()

    def start(self, name: str) -> AgentProcess:
        return self.rig.start(name, "--cpu-slots", str(SLOTS))

    def revive(self) -> None:
        for number, agent in enumerate(self.agents):
            if agent.process.poll() is not None:
                self.agents[number] = self.start(agent.name)

    def strike(self) -> None:
        agent = self.chance.choice(self.agents)
        victim = self.chance.choice(["agent", "guard", "worker", "both"])
        pids = {
            "agent": [agent.process.pid],
            "guard": [agent.guard_pid],
            "worker": self.workers()[:1],
            # In this order: an agent that sees its guard dead would bury what is left.
            "both": [agent.process.pid, agent.guard_pid],
        }[victim]
        for pid in filter(None, pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed[victim] += 1
        if victim in ("agent", "both"):
            agent.process.wait()

    def workers(self) -> list[int]:
        found = marked_processes(f"BATCH_PATH={self.rig.root}")
        self.chance.shuffle(found)
        return found


def run_with_deaths(rig: FleetRig, tasks: int, rounds: int, seed: int) -> Counter[str]:
    folder = rig.submit(
        "b1",
        "### each\n- **command**: `sleep 0.0{ITEM.pause}; echo {ITEM.id} >> {BATCH_PATH}/ran`\n"
        "- **foreach**: items.json\n- **retries**: 50\n",
    )
    chance = random.Random(seed)
    items = [{"id": f"t{number}", "pause": chance.randrange(10)} for number in range(tasks)]
    (folder / "items.json").write_text(json.dumps(items))
    reaper = Reaper(rig, chance)
    next_at, struck = time.monotonic() + 2.0, 0
    deadline = time.monotonic() + 60 + rounds * 3
    while not rig.turn():
        assert time.monotonic() < deadline, [agent.said()[-2_000:] for agent in reaper.agents]
        reaper.revive()
        if struck < rounds and time.monotonic() >= next_at:
            reaper.strike()
            struck, next_at = struck + 1, time.monotonic() + chance.uniform(0.05, 0.8)
        time.sleep(0.005)  # the pace of the coordinator, not a wait for anything
    for agent in reaper.agents:
        agent.end()
    return reaper.killed


def check(rig: FleetRig, tmp_path: Path, tasks: int) -> None:
    accepted = [str(entry["task"]) for entry in rig.entries("b1", "accept")]
    assert sorted(accepted) == sorted(f"each_t{number}" for number in range(tasks))
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"
    ran = set((rig.batch_folder("b1") / "ran").read_text().split())
    assert ran == {f"t{number}" for number in range(tasks)}
    assert list((rig.root / "tasks").glob("[qp]*/**/*.json")) == []
    wait_until(lambda: not marked_processes(str(tmp_path)))


@pytest.mark.timeout(300)
def test_every_task_is_accepted_once_whoever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-08, FLEET-09, R17: 20 kills among agents, guards and workers."""
    monkeypatch.setattr("watchbill.limits.BACK_OFF_MS", (0, 0, 0))
    rig = FleetRig(tmp_path / "shared")
    try:
        killed = run_with_deaths(rig, tasks=600, rounds=20, seed=int.from_bytes(os.urandom(4)))
    finally:
        rig.close()
    assert killed.total() >= 5  # a strike may find nobody; how many do depends on the machine
    check(rig, tmp_path, 600)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_every_task_is_accepted_once_in_a_thousand_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-08, FLEET-09, R17."""
    monkeypatch.setattr("watchbill.limits.BACK_OFF_MS", (0, 0, 0))
    rig = FleetRig(tmp_path / "shared")
    try:
        killed = run_with_deaths(rig, tasks=20_000, rounds=1_000, seed=int.from_bytes(os.urandom(4)))
    finally:
        rig.close()
    assert killed.total() >= 900
    check(rig, tmp_path, 20_000)
