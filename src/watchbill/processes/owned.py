"""Owned processes: one process tree behind its guard, as seen from the daemon's event loop.

A tree is started, watched and stopped here. Its end is known at once, without polling: the guard writes it into a pipe
that the event loop reads. Promises: `stop` ends within the bound of the stop sequence; when the guard itself is killed
or stuck, the tree is killed without it; and closing the pipe (which the kernel does when we die) is enough to end the
tree.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from watchbill.errors import EngineFailed
from watchbill.processes import guard, limits
from watchbill.processes.logs import Log
from watchbill.processes.reaping import extinguish, survivors_of
from watchbill.processes.registry import Record, Registry, with_engine, with_guard

__all__ = ["Command", "Ending", "OwnedProcess", "shielded"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a tree ended. `code` is the first process's exit code, negative for a signal, None when unknown."""

    code: int | None
    was_asked: bool
    guard_lost: bool = False

    def describe(self) -> str:
        """The ending as the predicate of a sentence."""
        if self.guard_lost:
            return "was killed because its guard process died"
        if self.code is None:
            return "ended in an unknown way"
        if self.code >= 0:
            return f"exited with status {self.code}"
        name = signal.Signals(-self.code).name
        cause = "; if no user sent it, the kernel ran out of memory" if self.code == -signal.SIGKILL else ""
        return f"was killed by {name}{cause}"


@dataclass(frozen=True, slots=True)
class Command:
    """The command to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # complete, not only additions
    log: int  # an open descriptor for output and errors
    log_bytes_max: int
    log_files_max: int = limits.LOG_FILES_MAX
    cwd: Path | None = None


class OwnedProcess:
    """One tree. Lives on the event loop that started it."""

    def __init__(self, record: Record, registry: Registry, log: Log) -> None:
        self.log = log
        self.record = record
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._said = b""  # the guard's current line so far
        self._code: int | None = None
        self._is_gone = False  # the guard reported it
        self._was_asked = False
        self._stuck: str = ""
        self._control = self._status = self._pidfd = -1
        self._guard: subprocess.Popen[bytes] | None = None
        self._cleanup: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The engine's first process."""
        return self.record.pid

    @property
    def guard_pid(self) -> int:
        """The root of the whole tree."""
        return self.record.guard_pid

    @property
    def has_ended(self) -> bool:
        """Whether no process of the tree is left."""
        return self._ended.done()

    @property
    def was_asked(self) -> bool:
        """Whether we asked it to end."""
        return self._was_asked

    async def start(self, command: Command) -> None:
        """Starts guard and command. Raises the OSError of a command that cannot be started.

        When it raises or is cancelled, nothing is left behind.
        """
        try:
            self._start_guard(command)
            async with asyncio.timeout(limits.GUARD_START_MS / 1000):
                await asyncio.shield(self._started)
        except BaseException:
            await shielded(self.stop(hard=True))
            raise

    async def ended(self) -> Ending:
        """Waits until no process of the tree is left."""
        return await asyncio.shield(self._ended)

    def on_end(self, callback: Callable[[Ending], None]) -> None:
        """Calls back from the event loop when no process of the tree is left; soon if that is already so."""
        self._ended.add_done_callback(lambda ended: callback(ended.result()))

    async def stop(
        self,
        *,
        hard: bool = False,
        number: int = signal.SIGTERM,
        ask: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Runs the stop sequence: ask, `number` (TERM), KILL; `hard` begins at KILL. Returns when all are gone.

        Raises EngineFailed when processes survive even KILL.
        """
        self._was_asked = True
        if ask is not None and not hard and await self._ask(ask):
            return
        self._tell("kill" if hard else f"stop {int(number)} {limits.STOP_TERM_MS}")
        wait_ms = limits.STOP_KILL_MS + limits.GUARD_GRACE_MS + (0 if hard else limits.STOP_TERM_MS)
        if await self.ends_within(wait_ms):
            return
        if self._stuck:
            raise EngineFailed(f"{self.record.label}: processes {self._stuck} survived SIGKILL")
        await self._end_without_guard()  # the guard is stopped or stuck

    def abandon(self) -> None:
        """Closes the pipe to the guard, which then kills the tree. For the last moment, when nothing can be awaited."""
        self._was_asked = True
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    # ------------------------------------------------------------------ steps of the stop sequence

    async def _ask(self, ask: Callable[[], Awaitable[object]]) -> bool:
        """Asks it to stop, and returns whether that was enough. An exception in `ask` does not end the sequence."""
        asking, until = asyncio.ensure_future(ask()), self._loop.time() + limits.STOP_ASK_MS / 1000
        try:
            await asyncio.wait(
                [self._ended, asking], timeout=limits.STOP_ASK_MS / 1000, return_when=FIRST_COMPLETED
            )
            if asking.done() and not asking.cancelled() and asking.exception() is not None:
                return self._ended.done()  # it was not asked, so nothing more can come of it
            return await self.ends_within(round(max(0.0, until - self._loop.time()) * 1000))
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled() and (error := asking.exception()):
                context = {"message": f"asking {self.record.label} to stop failed", "exception": error}
                self._loop.call_exception_handler(context)

    async def ends_within(self, millis: int) -> bool:
        """Waits for the end, but no longer than this; returns whether it came."""
        await asyncio.wait([self._ended], timeout=millis / 1000)
        return self._ended.done()

    def _tell(self, line: str) -> None:
        if self._control >= 0:
            # A guard that has just ended, or was killed, reads nothing: its pidfd reports that.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, line.encode() + b"\n")

    async def _end_without_guard(self) -> None:
        left = await asyncio.to_thread(extinguish, lambda: survivors_of(self.record), 0, limits.STOP_KILL_MS)
        if left:
            raise EngineFailed(f"{self.record.label}: processes {left} survived SIGKILL")
        await self.ends_within(limits.GUARD_GRACE_MS)

    # ------------------------------------------------------------------ the guard's side

    def _start_guard(self, command: Command) -> None:
        heard, self._control = os.pipe()
        self._status, said = os.pipe()
        os.set_blocking(self._status, False)
        bounds = (heard, said, limits.ORPHAN_TERM_MS, limits.STOP_KILL_MS)
        log_bounds = (command.log_bytes_max, command.log_files_max, limits.LOG_BYTES_PER_S_MAX)
        words = (*map(str, bounds), str(self.log.path), *map(str, log_bounds), *command.argv)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *words],
                stdin=subprocess.DEVNULL,
                stdout=command.log,
                stderr=command.log,
                pass_fds=(heard, said),
                env=dict(command.env),
                cwd=command.cwd,
                start_new_session=True,  # a Ctrl-C at the daemon's terminal must not reach the guard
            )
        except OSError:
            self._finish(Ending(None, was_asked=True))
            raise
        finally:
            os.close(heard)
            os.close(said)
        self._note(with_guard(self.record, self._guard.pid))
        self._pidfd = os.pidfd_open(self._guard.pid)
        self._loop.add_reader(self._status, self._on_status)
        self._loop.add_reader(self._pidfd, self._on_guard_end)

    def _note(self, record: Record) -> None:
        self.record = record
        self._registry.write(record)

    def _on_status(self) -> None:
        """Reads the guard's status lines."""
        try:
            words = os.read(self._status, 4096)
        except BlockingIOError:
            return
        if not words:
            self._loop.remove_reader(self._status)  # the pidfd reports the rest
            return
        *lines, self._said = (self._said + words).split(b"\n")
        for line in lines:
            self._hear(line.decode())

    def _hear(self, line: str) -> None:
        match line.split():
            case ["started", pid]:
                try:
                    self._note(with_engine(self.record, int(pid)))
                except OSError as error:  # a full disk: a start that no record tells of is undone
                    self._settle_start(error)
                else:
                    self._settle_start(None)
            case ["failed", number]:
                self._is_gone = True
                self._settle_start(OSError(int(number), os.strerror(int(number))))
            case ["exited", code]:
                self._code = int(code)
            case ["stuck", *pids]:
                self._stuck = " ".join(pids)
            case ["gone"]:
                self._is_gone = True
            case _:
                raise ValueError(f"the guard of {self.record.label} said {line!r}")

    def _settle_start(self, error: OSError | None) -> None:
        if self._started.done():
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)
            self._started.exception()  # a cancelled caller does not read it

    def _on_guard_end(self) -> None:
        """The guard is dead: its work is done, or it was killed and the tree runs without it."""
        self._loop.remove_reader(self._pidfd)
        self._on_status()
        if self._is_gone:
            self._finish(Ending(self._code, self._was_asked))
        else:
            self._cleanup = self._loop.create_task(self._end_the_rest())

    async def _end_the_rest(self) -> None:
        left = await asyncio.to_thread(extinguish, lambda: survivors_of(self.record), 0, limits.STOP_KILL_MS)
        self._stuck = " ".join(map(str, left))
        self._finish(Ending(self._code, self._was_asked, guard_lost=True))

    def _finish(self, ending: Ending) -> None:
        if self._guard is not None:
            self._guard.wait()  # it is a zombie already: this only removes it
        if self._status >= 0:
            self._loop.remove_reader(self._status)
        for descriptor in (self._control, self._status, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._control = self._status = self._pidfd = -1
        self._registry.forget(self.record.token)
        self._settle_start(ProcessLookupError(3, "it ended while it was started"))
        if not self._ended.done():
            self._ended.set_result(ending)


async def shielded(work: Awaitable[None]) -> None:
    """Runs a clean-up to its end even when the caller is cancelled meanwhile, then cancels the caller."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()
