"""Children: programs that run beside this process for as long as it lives, and are restarted whenever they end.

One that may leave, and ends by itself with exit status 0, was told to leave and is not restarted.

Each is behind a guard (`processes.keeper`), so that none outlives this process, and has a log of its own. One that
ends at once again and again is started less and less often. One that runs but no longer works is stopped, and restarted
in the same way: a watch can tell.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from watchbill.processes import Keeper, OwnedProcess
from watchbill.runtime import limits

__all__ = ["Children", "Watch"]

_LOG = logging.getLogger("watchbill.children")


class Watch(Protocol):
    """Tells whether a program that runs still works. Its methods are called in a thread, and may block."""

    def needs_restart(self) -> bool:
        """Whether it does not, and would after a restart."""
        ...

    def close(self) -> None:
        """The program runs no more."""
        ...


@dataclass(slots=True)
class _Child:
    """One program."""

    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str]  # added to our own
    watch: Watch | None = None
    may_leave: bool = False
    has_left: bool = False
    process: OwnedProcess | None = None
    task: "asyncio.Task[None] | None" = None
    starts: int = 0
    last_end: str = ""


@dataclass(slots=True)
class Children:
    """All children of one process."""

    keeper: Keeper
    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])  # added to our own
    _children: dict[str, _Child] = field(default_factory=dict[str, _Child])

    def start(
        self, label: str, argv: tuple[str, ...], environment: Mapping[str, str] = MappingProxyType({}),
        watch: Watch | None = None, *, may_leave: bool = False,
    ) -> None:  # fmt: skip
        """Run a program from now on, with more variables than all have. Call it in the event loop."""
        log, full = self.logs / f"{label}.log", {**self.environment, **environment}
        child = self._children[label] = _Child(argv, log, full, watch, may_leave)
        child.task = asyncio.get_running_loop().create_task(self._keep(label, child), name=label)

    def view(self) -> dict[str, dict[str, object]]:
        """Each child: its pid, how often it was started, and how it last ended."""
        return {
            label: {
                "pid": child.process.pid if child.process is not None and not child.process.has_ended else None,
                "starts": child.starts, "last_end": child.last_end,
            }
            for label, child in self._children.items()
        }  # fmt: skip

    async def close(self, *, hard: bool = False) -> None:
        """Stop all of them, and wait until none is left; `hard` asks for nothing first. May be repeated."""
        await asyncio.gather(*(self._stop(child, hard=hard) for child in self._children.values()))

    @staticmethod
    async def _stop(child: _Child, *, hard: bool) -> None:
        if child.task is not None:
            child.task.cancel()
            await asyncio.wait([child.task])
        if child.process is not None:
            await child.process.stop(hard=hard)
        if child.watch is not None:
            await asyncio.to_thread(child.watch.close)

    async def _keep(self, label: str, child: _Child) -> None:
        pause_ms = limits.CHILD_AGAIN_MS[0]
        while True:
            began = time.monotonic()
            child.last_end = await self._once(label, child)
            if child.has_left:
                child.last_end = "it was told to leave, and starts again with this daemon"
                _LOG.info("%s has left: it was told to, and starts again with this daemon", label)
                return
            _LOG.warning("%s %s; it is restarted in %d s", label, child.last_end, pause_ms // 1000)
            if time.monotonic() - began > limits.CHILD_STEADY_MS / 1000:
                pause_ms = limits.CHILD_AGAIN_MS[0]
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.CHILD_AGAIN_MS[1])

    async def _once(self, label: str, child: _Child) -> str:
        """Run it to its end, and say how it ended, with the last line that it wrote."""
        child.starts += 1
        try:
            child.process = await self.keeper.start(label, child.argv, log=child.log, env=child.environment)
        except OSError as error:  # no memory, no more processes: the next try may find some
            return f"could not be started: {error}"
        looking = asyncio.create_task(self._look(label, child.process, child.watch))
        try:
            ending = await child.process.ended()
        finally:
            looking.cancel()
        child.has_left = child.may_leave and ending.code == 0
        said = child.process.log.read_tail(1)
        told = ending.describe()
        return f"{told}: {said[-1][: limits.CHILD_WORDS_MAX]}" if said else told

    @staticmethod
    async def _look(label: str, process: OwnedProcess, watch: Watch | None) -> None:
        """Stop it as soon as its watch says so."""
        while watch is not None:
            await asyncio.sleep(limits.CHILD_LOOK_MS / 1000)
            if await asyncio.to_thread(watch.needs_restart):
                _LOG.warning("%s does not work any more, and is stopped", label)
                await process.stop()
                return
