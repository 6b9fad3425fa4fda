"""The crew: many short process trees behind one guard, as seen from an agent's event loop.

    crew = Crew(folder, on_event)      a private folder; everything that starts carries its mark
    await crew.open()                  one guard process, about 50 ms, once
    crew.start(job)                    about a millisecond; `on_event` hears Started and, once no process is left, Ended
    crew.lease(number, ms)             without the next one in time, the guard ends every tree by itself

Every start is answered by exactly one Ended, whatever dies. When the agent dies, the guard ends all trees. When the
guard dies, the trees are found by their marks and killed here, and the next `open` starts a new guard. When both die,
the next start of the agent reaps (`reaping.reap` on the folder): the guard has a record in the folder's registry and
every process the folder's mark, as engines have.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

from watchbill.files.host import boot_id, start_time
from watchbill.processes import crew_guard, limits, process_table
from watchbill.processes.environment import Withheld
from watchbill.processes.reaping import extinguish, survivors_of
from watchbill.processes.registry import ROOT_MARK, TOKEN_MARK, Record, Registry, root_id, with_guard

__all__ = [
    "Cause",
    "Crew",
    "CrewEvent",
    "Ended",
    "Job",
    "LeaseHeard",
    "Measured",
    "Output",
    "Started",
    "Stuck",
]

#: Environment variables that change how a shell reads a command.
_OF_THE_SHELL = frozenset(
    {"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "CDPATH", "GLOBIGNORE", "POSIXLY_CORRECT", "BASH_COMPAT"}
)
_FUNCTION = "BASH_FUNC_"
_STATUS_BYTES = 64 * 2**10  # as much as a pipe holds


class Cause(Enum):
    """Why a tree ended."""

    EXIT = "exit"  # its first process ended by itself
    TIMEOUT = "timeout"
    MEMORY = "memory"  # all its processes together had more than it may
    PROCESSES = "processes"  # it had more of them than it may
    STOPPED = "stopped"
    KILLED = "killed"
    LEASE = "lease"  # the agent did not renew its lease
    GUARD_LOST = "guard_lost"
    NOT_STARTED = "not_started"
    DAEMON_GONE = "daemon_gone"  # of a question to a model: its daemon ended, or is about to


@dataclass(frozen=True, slots=True)
class Job:
    """A command to start. `env` is added to the crew's own environment and wins."""

    id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    timeout_ms: int | None = None
    grace_ms: int = limits.STOP_TERM_MS  # between TERM and KILL when its time is over
    memory_bytes_max: int = 0  # resident, of all its processes together; 0: no limit
    processes_max: int = 0  # 0: no limit


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a task: how much there was, its end, and the file with its beginning where it was long."""

    total: int = 0
    tail: bytes = b""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A job runs."""

    id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """No process of a job is left. `code` is its first process's, negative for a signal, None when unknown."""

    id: str
    cause: Cause
    code: int | None = None
    ms: int = 0
    cpu_ms: int = 0
    rss_bytes: int = 0  # the most that its tree was seen to have, or that its largest process had
    out: Output = Output()
    err: Output = Output()
    error: OSError | None = None  # why it could not be started
    is_private: bool = False  # of a question to a model: its daemon counted it as private


@dataclass(frozen=True, slots=True)
class Stuck:
    """Processes of a job survive KILL: they hang in the kernel."""

    id: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaseHeard:
    """The guard has renewed the lease: it is alive."""

    number: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What the tree of a running job has done so far, ended processes included. The figures never fall."""

    id: str
    output_bytes: int
    written_bytes: int  # to files, pipes and sockets; 0 where the kernel does not report it
    cpu_ms: int
    rss_bytes: int  # resident memory of all its processes together
    tails: tuple[str, ...] = ()  # the end of each output, where something was added since the last time


CrewEvent = Started | Ended | Stuck | LeaseHeard | Measured


class Crew:
    """The trees of one agent. Lives on the event loop on which it is opened."""

    def __init__(
        self, folder: Path, on_event: Callable[[CrewEvent], None], withheld: Withheld | None = None
    ) -> None:
        self.folder = folder
        self.outputs = folder / "outputs"  # long outputs, and what jobs leave for the agent
        self._withheld = withheld or Withheld()
        self.guard_pid = 0
        self._on_event = on_event
        self._running: dict[str, None] = {}
        self._registry = Registry(folder)
        self._record = Record("", "", "")
        self._guard: subprocess.Popen[bytes] | None = None
        self._control = self._status = self._pidfd = -1
        self._unsent = b""
        self._is_full = False  # the guard takes no more orders for now
        self._heard = b""
        self._burial: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._sessions: dict[
            str, tuple[int, int]
        ] = {}  # job -> pid of its first process, and when it ran, in ticks

    @property
    def is_open(self) -> bool:
        """Whether a guard runs."""
        return self._guard is not None

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Starts the guard. Hold the folder's lock, and reap first. Raises OSError."""
        self.outputs.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.outputs.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        self._gone.clear()
        self._record = Record(secrets.token_hex(8), "crew", boot_id())
        self._registry.write(self._record)
        self._start_guard()
        assert self._guard is not None
        self.guard_pid = self._guard.pid
        self._record = with_guard(self._record, self._guard.pid)
        self._registry.write(self._record)
        self._pidfd = os.pidfd_open(self._guard.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._status, self._on_status)
        loop.add_reader(self._pidfd, self._on_guard_end)

    async def close(self) -> None:
        """Ends every tree and the guard. Returns when no process is left, or at the bound of the stop sequence."""
        if self._guard is None:
            return
        self._let_go_of_control()
        bound_ms = limits.ORPHAN_TERM_MS + limits.STOP_KILL_MS + limits.GUARD_GRACE_MS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_ms / 1000):
                await self._gone.wait()
        self.give_up_guard()
        await self._gone.wait()  # bounded by the killing of its trees

    def give_up_guard(self) -> None:
        """Kills a guard that does not answer; its trees are then ended as after its death."""
        if self._guard is not None:
            self._guard.kill()

    # ------------------------------------------------------------ orders

    def start(self, job: Job) -> None:
        """Starts a job. Started or Ended follows, also when there is no guard."""
        self._running[job.id] = None
        if self._control < 0:
            self._finish(Ended(job.id, Cause.GUARD_LOST))
            return
        self._send(
            {
                "do": "start", "id": job.id, "argv": job.argv, "env": dict(job.env),
                "spill": f"{self.outputs}/{job.id}", "timeout_ms": job.timeout_ms, "grace_ms": job.grace_ms,
                "memory_max": job.memory_bytes_max, "processes_max": job.processes_max,
            }
        )  # fmt: skip

    def stop(self, job: str, grace_ms: int = limits.STOP_TERM_MS) -> None:
        """Sends a job's tree TERM, and KILL after the grace."""
        self._send({"do": "stop", "id": job, "grace_ms": grace_ms})

    def kill(self, job: str) -> None:
        """Kills a job's tree."""
        self._send({"do": "kill", "id": job})

    def lease(self, number: int, millis: int) -> None:
        """Lets the trees run for that long. The guard answers with LeaseHeard."""
        self._send({"do": "lease", "number": number, "ms": millis})

    def measure(self) -> None:
        """Asks how far the running jobs have got. The guard answers with a Measured for each."""
        self._send({"do": "measure"})

    def _send(self, order: dict[str, object]) -> None:
        if self._control < 0:
            return  # its trees are being ended already
        if not self._unsent:
            # At the end of this turn of the loop: orders that come together cost one write and wake the guard once.
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent += json.dumps(order).encode() + b"\n"

    def flush(self) -> None:
        """Sends the orders that were given, before the turn of the loop ends: as much as the guard takes at once."""
        if self._control < 0:
            return  # closed in the meantime
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._control, self._unsent) :]
        except BlockingIOError:
            self._is_full = True
            asyncio.get_running_loop().add_writer(self._control, self.flush)
            return
        except BrokenPipeError:  # its pidfd reports that
            self._unsent = b""
        if self._is_full:
            self._is_full = False
            asyncio.get_running_loop().remove_writer(self._control)

    # ------------------------------------------------------------ the guard's side

    def _start_guard(self) -> None:
        heard, self._control = os.pipe()
        self._status, said = os.pipe()
        for own in (self._control, self._status):
            os.set_blocking(own, False)
        bounds = (
            heard, said, limits.ORPHAN_TERM_MS, limits.STOP_KILL_MS, limits.TASK_OUTPUT_MEMORY_BYTES,
            limits.TASK_OUTPUT_FILE_BYTES, limits.TASK_OUTPUT_BYTES_PER_S,
        )  # fmt: skip
        try:
            with open(self.folder / "guard.log", "wb") as log:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", crew_guard.__file__, *map(str, bounds)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(heard, said),
                    env=self._environment(),
                    cwd="/",  # a folder that is unmounted later is not held busy
                    start_new_session=True,  # a Ctrl-C at the agent's terminal must not reach the guard
                )
        finally:
            os.close(heard)
            os.close(said)

    def _environment(self) -> dict[str, str]:
        marks = {ROOT_MARK: root_id(self.folder), TOKEN_MARK: self._record.token}
        inherited = {
            name: value
            for name, value in self._withheld.rest_of(os.environ).items()
            if name not in _OF_THE_SHELL and not name.startswith(_FUNCTION)
        }
        return marks | inherited | marks

    def _on_status(self) -> None:
        try:
            words = os.read(self._status, _STATUS_BYTES)
        except BlockingIOError:
            return
        if not words:
            asyncio.get_running_loop().remove_reader(self._status)  # the pidfd reports the rest
            return
        self._take(words)

    def _take(self, words: bytes) -> None:
        *lines, self._heard = (self._heard + words).split(b"\n")
        for line in lines:
            # As a text: of bytes json would guess the encoding, in Python code.
            self._hear(cast("dict[str, object]", json.loads(line.decode())))

    def _hear(self, said: dict[str, object]) -> None:
        job = cast("str", said.get("id", ""))
        match said["said"]:
            case "started":
                pid = cast("int", said["pid"])
                self._sessions[job] = (pid, _ticks_now())
                self._on_event(Started(job, pid))
            case "failed":
                number = cast("int", said["errno"])
                error = OSError(number, os.strerror(number))
                self._finish(Ended(job, Cause.NOT_STARTED, error=error))
            case "ended":
                self._finish(self._ended(job, said))
            case "stuck":
                self._on_event(Stuck(job, tuple(cast("list[int]", said["pids"]))))
            case "measured":
                output, written, cpu_ms, rss = (
                    cast("int", said[key]) for key in ("output", "written", "cpu_ms", "rss")
                )
                tails = tuple(cast("list[str]", said["tails"]))
                self._on_event(Measured(job, output, written, cpu_ms, rss, tails))
            case "lease":
                self._on_event(LeaseHeard(cast("int", said["number"])))
            case _:
                raise ValueError(f"the crew's guard said {said!r}")

    def _ended(self, job: str, said: dict[str, object]) -> Ended:
        code, ms, cpu_ms, rss = (cast("int", said[key]) for key in ("code", "ms", "cpu_ms", "rss"))
        out, err = (self._output(job, key, cast("dict[str, object]", said[key])) for key in ("out", "err"))
        return Ended(job, Cause(said["cause"]), code, ms, cpu_ms, rss, out, err)

    def _output(self, job: str, key: str, said: dict[str, object]) -> Output:
        tail = cast("str", said["tail"]).encode("utf-8", "surrogateescape")
        return Output(
            cast("int", said["total"]), tail, self.outputs / f"{job}.{key}" if said["is_spilled"] else None
        )

    def _finish(self, ended: Ended) -> None:
        if ended.id in self._running:
            del self._running[ended.id]
            self._sessions.pop(ended.id, None)
            self._on_event(ended)

    def _on_guard_end(self) -> None:
        """Handles the end of the guard. If it was killed, its trees run without it."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        with contextlib.suppress(BlockingIOError):
            while words := os.read(self._status, _STATUS_BYTES):
                self._take(words)
        self._let_go_of_control()
        loop.remove_reader(self._status)
        self._burial = loop.create_task(self._bury())

    def _let_go_of_control(self) -> None:
        if self._control >= 0:
            asyncio.get_running_loop().remove_writer(self._control)
            self._is_full = False
            os.close(self._control)
            self._control = -1
        self._unsent = b""

    async def _bury(self) -> None:
        record, sessions = self._record, dict(self._sessions.values())
        await asyncio.to_thread(
            extinguish, lambda: [*survivors_of(record), *_members_of(sessions)], 0, limits.STOP_KILL_MS
        )
        assert self._guard is not None
        self._guard.wait()
        for descriptor in (self._status, self._pidfd):
            os.close(descriptor)
        self._status = self._pidfd = -1
        self._heard = b""
        self._registry.forget(record.token)
        self._guard, self.guard_pid = None, 0
        for job in list(self._running):
            self._finish(Ended(job, Cause.GUARD_LOST))
        self._gone.set()


def _ticks_now() -> int:
    """The time in the unit of start times of processes. Reading a start time costs a third of a start."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * process_table.TICKS_PER_S) + 1


def _members_of(sessions: Mapping[int, int]) -> list[int]:
    """The processes in the sessions of these first processes, given with a time at which they ran.

    They may have cleared their environment. The kernel does not reuse a pid while a session is named after it, so a
    session whose first process is gone is still the same one; a first process that started later belongs to another.
    """
    started = {pid: start_time(pid) for pid in sessions}
    ours = {pid for pid, ticks in started.items() if ticks is None or ticks <= sessions[pid]}
    return [pid for pid, row in process_table.processes().items() if row.session in ours]
