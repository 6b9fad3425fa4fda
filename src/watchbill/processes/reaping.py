"""Reaping: kills the processes that a dead daemon, or a dead guard, left behind.

Nothing here is asynchronous and everything is bounded: call it before the event loop runs, or in a thread.
The caller of `reap` holds the root's lock; without it the survivors might be the engines of a living
daemon.
"""

import errno
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watchbill.probes.kernel_files import read_small
from watchbill.probes.trees import pids_of_tree
from watchbill.processes.limits import ORPHAN_TERM_MS, STOP_KILL_MS
from watchbill.processes.registry import ROOT_MARK, TOKEN_MARK, Record, Registry, marked_pids, root_id

__all__ = ["Reaped", "extinguish", "reap", "survivors_of"]

#: Pause between two checks of a tree that forks while it is killed.
ROUND_MS = 50


@dataclass(frozen=True, slots=True)
class Reaped:
    """A process that outlived its daemon and was killed."""

    pid: int
    label: str  # the model it served, if known
    command: str
    is_gone: bool  # False: it survived KILL and hangs in the kernel


def reap(root: Path) -> list[Reaped]:
    """Kills every process that an earlier daemon of this root started, and forgets its records and ports.

    Takes no longer than ORPHAN_TERM_MS + STOP_KILL_MS. Hold the root's lock.
    """
    registry = Registry(root)
    records = registry.records()
    mark = root_id(root)

    def survivors() -> list[int]:
        written_down = [pid for record in records for pid in record.living_pids()]
        return _with_trees([*written_down, *marked_pids(ROOT_MARK, mark)])

    found = {pid: _describe(pid, records) for pid in survivors()}
    left = set(extinguish(survivors, ORPHAN_TERM_MS, STOP_KILL_MS))
    registry.clear()
    ports = root / "run" / "ports"
    if ports.is_dir():
        for claim in ports.iterdir():
            claim.unlink(missing_ok=True)
    return [Reaped(pid, label, command, pid not in left) for pid, (label, command) in found.items()]


def survivors_of(record: Record) -> list[int]:
    """The living processes of one tree: by its record, by its mark, and all their descendants."""
    return _with_trees([*record.living_pids(), *marked_pids(TOKEN_MARK, record.token)])


def extinguish(survivors: Callable[[], list[int]], term_ms: int, kill_ms: int) -> list[int]:
    """Sends TERM, and KILL after `term_ms`, until no process is left; returns those that survive even that."""
    victims = survivors()
    if term_ms > 0:
        for pid in victims:
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
        _wait_for(victims, term_ms)
    deadline = time.monotonic() + kill_ms / 1000
    while (victims := survivors()) and time.monotonic() < deadline:
        for pid in victims:
            _send(pid, signal.SIGKILL)
        _wait_for(victims, ROUND_MS)
    return victims


def _with_trees(pids: list[int]) -> list[int]:
    """These and all their descendants, without this process: a daemon may itself run under a marked one."""
    found = {member for pid in pids for member in pids_of_tree(pid)}
    return sorted(found - {os.getpid()})


def _wait_for(pids: list[int], millis: int) -> None:
    """Waits until all of these have ended, or the time is over."""
    deadline = time.monotonic() + millis / 1000
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            watch = select.poll()
            watch.register(descriptor, select.POLLIN)
            watch.poll(max(0, (deadline - time.monotonic()) * 1000))
        finally:
            os.close(descriptor)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError as error:
        if error.errno not in {errno.ESRCH, errno.EPERM}:
            raise


def _describe(pid: int, records: list[Record]) -> tuple[str, str]:
    label = next((record.label for record in records if pid in (record.guard_pid, record.pid)), "")
    words = (read_small(f"/proc/{pid}/cmdline") or b"").replace(b"\0", b" ")
    return label, words.decode("utf-8", "replace").strip()
