"""A fleet of real processes for tests: a shared folder, a coordinator in this process, agents that are programs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.eventually import PATIENCE_S
from support.forked_commands import start_watchbill
from watchbill.files.host import boot_id, start_time
from watchbill.fleet import limits
from watchbill.fleet.agent.loop import Agent, AgentOptions
from watchbill.fleet.agent.memory import Memory
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Pulse, Watcher
from watchbill.fleet.folder.signals import Order, send
from watchbill.fleet.state.entries import encode_entry
from watchbill.fleet.state.journal import read_past
from watchbill.plans.batch import ExecutePlan

__all__ = ["AgentProcess", "FleetRig", "marked_processes", "quicken", "running_agent"]


#: The cycles of an agent, short enough for a test that waits for them.
_QUICK = {
    "AGENT_INTERNAL_MS": 50,
    "AGENT_EXTERNAL_MS": 100,
    "AGENT_POLL_BUSY_MS": 50,
    "AGENT_POLL_IDLE_MS": 100,
}


def quicken(monkeypatch: pytest.MonkeyPatch, **others: int) -> None:
    """Make the cycles of agents in this process short, and set other bounds."""
    for name, value in {**_QUICK, **others}.items():
        monkeypatch.setattr(limits, name, value)


@asynccontextmanager
async def running_agent(options: AgentOptions, memory: Memory | None = None) -> AsyncIterator[Agent]:
    """An agent in this process, until it is told to leave at once."""
    options.folder.mkdir(exist_ok=True)
    agent = Agent(options, memory)
    serving = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.leave(0)
        await serving


def now_ms() -> int:
    return int(time.monotonic() * 1000)


class AgentProcess:
    """`watchbill agent` as a process of its own."""

    def __init__(
        self,
        rig: "FleetRig",
        name: str,
        *options: str,
        user: int | None = None,
        rootless: bool = False,
        **environment: str,
    ) -> None:
        self.rig, self.name = rig, name
        self.home = rig.root.parent / f"home-{name}"
        self.log = rig.root.parent / f"{name}.log"
        where = [] if rootless else ["--root", str(rig.root)]
        words = ["agent", name, *where, *options]
        env = {**os.environ, "WATCHBILL_HOME": str(self.home), "PYTHONUTF8": "1", **environment}
        with self.log.open("ab") as log:
            if user is None:
                self.process = start_watchbill(
                    *words, env=env, cwd=Path.cwd(), stdout=log, stderr=log, in_new_session=True
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "watchbill", *words], env=env, stdout=log, stderr=log,
                    start_new_session=True, user=user, group=user,
                )  # fmt: skip

    @property
    def folder(self) -> Path:
        return self.home / "agents" / f"{self.name}.{places.check_root(self.rig.root)}"

    @property
    def guard_pid(self) -> int:
        """The pid of its guard; 0 while it has none."""
        for file in (self.folder / "run" / "engines").glob("*.json"):
            return int(json.loads(file.read_text())["guard_pid"])
        return 0

    def heartbeat(self) -> dict[str, Any]:
        """Its last heartbeat; empty while there is none of this process."""
        try:
            found = json.loads((self.rig.root / places.heartbeat_path(self.name)).read_text())
        except FileNotFoundError:
            return {}
        return found if found["pid"] == self.process.pid else {}

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """Ends it as an operator does."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(PATIENCE_S + 30)


class FleetRig:
    """A shared folder, its coordinator, and the agents that were started."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        places.make_root(root)
        self.root = root
        self.disk = FolderDisk(root)
        self.agents: list[AgentProcess] = []
        self.brain = self.new_brain()

    def new_brain(self) -> Coordinator:
        pulse = Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, 0)
        brain = Coordinator(self.disk, Watcher(boot_id()), pulse, wall_ms=lambda: 1_767_225_600_000)
        brain.start(now_ms())
        return brain

    def start(self, name: str, *options: str, **environment: str) -> AgentProcess:
        agent = AgentProcess(self, name, *options, **environment)
        self.agents.append(agent)
        return agent

    def submit(
        self, batch: str, tasks: str, *, plan: str = "p", inputs: dict[str, Any] | None = None
    ) -> Path:
        """Submit a plan with these tasks and return its folder."""
        folder = self.root / "plans" / plan
        folder.mkdir(exist_ok=True)
        listed = "".join(f"- `{name}`\n" for name in inputs or {})
        (folder / "plan.md").write_text(f"# Plan\n## Inputs\n{listed}\n## Tasks\n{tasks}")
        order = ExecutePlan(batch, plan, inputs or {})
        (self.root / places.INBOX / f"{batch}.json").write_bytes(order.encode())
        return folder

    def turn(self) -> bool:
        """One turn of the coordinator; True when no batch is left."""
        self.brain.turn(now_ms())
        return not os.listdir(self.root / places.ACTIVE) and not os.listdir(self.root / places.INBOX)

    def entries(self, batch: str, kind: str = "", plan: str = "p") -> list[dict[str, Any]]:
        """What counts of a batch's journal."""
        found = [encode_entry(entry) for entry in read_past(self.disk, plan, batch, 10**9).entries]
        return [entry for entry in found if not kind or entry["e"] == kind]

    def batch_folder(self, batch: str, plan: str = "p") -> Path:
        return self.root / places.batch_folder(plan, batch)

    def results(self, agent: str) -> list[dict[str, Any]]:
        """Every line that an agent has reported, of all its lives."""
        files = sorted((self.root / places.RESULTS).glob(f"{agent}.*.jsonl"))
        lines = [line for file in files for line in file.read_text().split("\n") if line]
        return [json.loads(line.partition(" ")[2]) for line in lines]

    def signal(self, agent: str, order: Order, task: str = "") -> Path:
        send(self.disk, agent, order, task)
        return self.root / places.SIGNALS / (f"{agent}.{order.value}" + (f".{task}" if task else ""))

    def close(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)
                agent.process.kill()
                agent.process.wait()
        self.brain.close()


def marked_processes(word: str) -> list[int]:
    """Living processes whose environment or command line has this word."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            text = Path(f"/proc/{entry}/environ").read_bytes() + Path(f"/proc/{entry}/cmdline").read_bytes()
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if word.encode() in text and state not in "ZX":
            found.append(int(entry))
    return found
