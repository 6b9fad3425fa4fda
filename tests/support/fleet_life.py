"""A whole fleet in one process on a real folder: the real coordinator, board and result logs; agents without workers.

For trials that end the process at any moment: tasks take no time, so that nearly everything that happens is the
protocol. An agent reports each task as done in the turn after it has claimed it; a task with a prompt gets an answer
that names the attempt. The agents have a model that is not in memory until they are told to load it, and the agent
`brain` scores every answer with 4.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from watchbill.files.host import boot_id, start_time
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.slips import Slip, headline_of
from watchbill.fleet.state.ledger import Phase
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import TaskClass

__all__ = ["FleetLife", "answer_of", "submit"]

Say = Callable[[object], None]
CLAIMS_MAX = 8
MODEL = "m"


def submit(root: Path, batch: str, tasks: str, *, plan: str = "p") -> Path:
    """Make a fleet with a plan, submit it, and return the folder of its batch; durable down to the last name."""
    (root / "plans" / plan).mkdir(parents=True, exist_ok=True)
    places.make_root(root)
    disk = FolderDisk(root)
    disk.put(f"plans/{plan}/plan.md", f"# Plan\n## Inputs\n\n## Tasks\n{tasks}".encode(), durable=True)
    disk.make_folder(places.batch_folder(plan, batch))
    disk.put(f"{places.INBOX}/{batch}.json", ExecutePlan(batch, plan, {}).encode(), durable=True)
    return root / places.batch_folder(plan, batch)


def answer_of(task: str, attempt: int, agent: str) -> str:
    """What an agent answers to a prompt."""
    return f"{task}, attempt {attempt}, {agent}"


class Worker:
    """An agent: claims what is for it, and reports it as done in its next turn."""

    def __init__(self, disk: FolderDisk, name: str, say: Say) -> None:
        self._disk, self._board, self.name, self._say = disk, Board(disk), name, say
        self._hot = name == places.BRAIN
        self._board.join(name)
        disk.make_folder(os.path.dirname(places.heartbeat_path(name)))
        self._log = ResultLog(disk, name)
        self._held: list[tuple[str, Slip]] = []
        self._seq = 0
        self._commit([Result(each, name, self._log.life, End.LOST) for each in self._board.held_by(name)])

    def turn(self) -> None:
        """Report what is held, show a heartbeat, claim."""
        self._commit([self._done(name, slip) for name, slip in self._held])
        self._held = []
        self._beat()
        for name in self._for_us():
            if self._board.claim(self.name, name):
                try:
                    slip = self._board.read(self.name, name)
                except FileNotFoundError:
                    continue  # taken back since
                if slip is None:
                    self._commit([Result(name, self.name, self._log.life, End.UNREADABLE)])
                else:
                    self._held.append((name, slip))

    def close(self) -> None:
        self._log.close()

    def _for_us(self) -> list[str]:
        offered = [(name, headline_of(name)) for name in self._board.offered()]
        ours = [
            name for name, line in offered
            if line is not None and line.addressee in ("", self.name) and (line.addressee or self.name != places.BRAIN)
        ]  # fmt: skip
        return ours[:CLAIMS_MAX]

    def _done(self, name: str, slip: Slip) -> Result:
        said = ""
        if slip.task.endswith(".evaluation"):
            said = json.dumps({"score": 4, "reason": "clear"})
        elif slip.work.task_class is TaskClass.META:
            self._hot = True
        elif slip.work.prompt:
            folder = f"{places.batch_folder(slip.plan, slip.batch)}/tasks/{slip.task}/a{slip.attempt}"
            self._disk.make_folder(folder)
            answer = answer_of(slip.task, slip.attempt, self.name).encode()
            self._disk.put(f"{folder}/stdout", answer, durable=True)
        return Result(name, self.name, self._log.life, End.DONE, 0, answer=said)

    def _commit(self, results: list[Result]) -> None:
        self._log.commit(results)
        for each in results:
            self._say(["reported", self.name, each.name])

    def _beat(self) -> None:
        self._seq += 1
        pulse = Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, self._seq)
        report = AgentReport(
            model=MODEL, models=(MODEL,), hot_models=(MODEL,) if self._hot else (), llm_slots=1, host="rig",
            available_mb=8192,
        )  # fmt: skip
        write_heartbeat(self._disk, self.name, Heartbeat(pulse, report))


class FleetLife:
    """One life of all: from its start to the end of every batch, or until the process is ended."""

    def __init__(self, root: Path, agents: tuple[str, ...], say: Say = lambda said: None) -> None:
        self._root, self._say = root, say
        disk = FolderDisk(root)
        self._now_ms = 0
        pulse = Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, 0)
        self._brain = Coordinator(disk, Watcher(boot_id()), pulse, wall_ms=lambda: 1_767_225_600_000)
        self._workers = [Worker(disk, name, say) for name in agents]
        self._brain.start(self._now_ms)

    def run(self) -> None:
        """Until no batch is left. Says what was reported and accepted, each after it was acknowledged."""
        said: set[str] = set()
        while self._is_busy():
            for worker in self._workers:
                worker.turn()
            self._now_ms += 1_000  # of a clock that nobody waits for
            self._brain.turn(self._now_ms)
            for task in self._accepted() - said:
                said.add(task)
                self._say(["accepted", task])
        self._brain.close()
        for worker in self._workers:
            worker.close()

    def _is_busy(self) -> bool:
        return any(os.listdir(self._root / folder) for folder in (places.INBOX, places.ACTIVE))

    def _accepted(self) -> set[str]:
        active = [each.ledger for each in self._brain._active.batches.values()]
        return {task for ledger in active for task in ledger.tasks() if ledger.phase(task) is Phase.COMPLETE}
