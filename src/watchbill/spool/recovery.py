"""Recovery: events that crashed workers left in flight go back to the queue.

Takes only folders that it can lock, so it never takes events from a worker that is alive; on a mount that other hosts
share, their workers are dead after a silence (`Witness`). An event that has used up its
attempts (it may be the cause of its workers' deaths) goes to poison instead, unless it is stored already, in our own
corpus or one that a drain of this host has noted (`corpora`): then it goes back, and the drain that leases it next only
has to finish it. Files that a foreign program leased without a lock are taken back ten minutes after they
were leased or touched, also at a start: until then a living worker cannot be told from a dead one.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watchbill.files.atomic import open_folder, write_file
from watchbill.files.lock import try_lock
from watchbill.files.owner import LOCK_NAME, remove_folder, sweep_newborns, take_dead
from watchbill.spool.consumer import move_unique, reason_bytes
from watchbill.spool.corpora import are_in_corpora
from watchbill.spool.events import Event
from watchbill.spool.item import read_events
from watchbill.spool.layout import Layout, State, walk_events
from watchbill.spool.limits import FOREIGN_LEASE_S
from watchbill.spool.names import attempt_of, is_event, is_own, with_attempt
from watchbill.spool.term import holds

__all__ = ["RECOVER_EVERY_S", "Recovered", "Rules", "counts_tries", "recover"]

#: Pause between two looks for dead workers, dead writers, and whether the spool is still where it was, in seconds.
RECOVER_EVERY_S = 5.0
_WORKER = re.compile(r"[A-Za-z0-9-]{1,32}\.\d{1,10}\.[0-9a-f]{8}", re.ASCII)


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    returned: int = 0
    poisoned: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """How a spool takes back the events of dead workers."""

    attempts: int
    foreign_lease_s: float = FOREIGN_LEASE_S
    #: Whether one of these events is already stored where their worker stores events.
    is_stored: Callable[[list[tuple[Event, bytes]]], bool] = lambda _: False


def recover(layout: Layout, rules: Rules) -> Recovered:
    """Put back the events of dead workers. Raises OSError on a disk that cannot be written."""
    layout.check()
    result = Recovered()
    folder = layout.folder(State.IN_FLIGHT)
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        try:
            _recover_entry(layout, folder / name, rules, result)
        except PermissionError as error:
            layout.barred.note(folder / name, error)  # another user's: the others are put back all the same
    with layout.entered(State.IN_FLIGHT.value) as inside:
        sweep_newborns(inside, shared=layout.is_shared)
    return result


def _recover_entry(layout: Layout, path: Path, rules: Rules, result: Recovered) -> None:
    if _is_folder(path):
        _recover_folder(layout, path, rules, result)
    elif is_event(path.name) and _foreign_is_over(path, rules.foreign_lease_s):
        _take_back(layout, path, rules, result, attempt_of(path.name) + 1)


def _recover_folder(layout: Layout, folder: Path, rules: Rules, result: Recovered) -> None:
    if not counts_tries(folder):
        for path in _files(folder):
            if _foreign_is_over(path, rules.foreign_lease_s):
                _take_back(layout, path, rules, result, attempt_of(path.name) + 1)
        return
    with layout.entered(State.IN_FLIGHT.value) as workers:
        lock = take_dead(folder.name, make_lock=_is_worker(folder), dir_fd=workers, witness=layout.witness)
        if lock is None:
            return
        try:
            files = _files(folder)
            if files and holds(folder):
                return  # a shell's lease: no process locks it, and its term says that it holds
            for path in files:
                _take_back(layout, path, rules, result, attempt_of(path.name))
            _remove_rest(folder.name, workers)
        finally:
            os.close(lock)


def counts_tries(folder: Path) -> bool:
    """Whether this worker is Watchbill's, with the attempt in the names of its leases; a foreign one keeps names."""
    return _is_worker(folder) or (folder / LOCK_NAME).exists()


def _is_worker(folder: Path) -> bool:
    return _WORKER.fullmatch(folder.name) is not None


def _files(folder: Path) -> list[Path]:
    """Return a worker's events, also those in the folders of its batches, oldest first."""
    return sorted((Path(entry.path) for entry in walk_events(folder)), key=lambda path: path.name)


def _remove_rest(worker: str, workers: int) -> None:
    """Remove a dead worker's folder: reasons that it did not come to give, folders of batches, and itself if empty."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_folder(worker, own=True, dir_fd=workers) as inside,
    ):
        for name in os.listdir(inside):
            with contextlib.suppress(
                OSError
            ):  # a folder that is not empty stays; another recovery was faster
                if name.startswith(".") and name.endswith(".reason"):
                    os.unlink(name, dir_fd=inside)
                elif not name.startswith("."):
                    os.rmdir(name, dir_fd=inside)
    remove_folder(worker, dir_fd=workers)


def _take_back(layout: Layout, path: Path, rules: Rules, result: Recovered, attempt: int) -> None:
    """Move one file back. `attempt` is the one that failed: a foreign lease does not change the name."""
    worn_out = attempt >= rules.attempts and not _is_stored(layout, rules, read_events(path))
    state = State.POISON if worn_out else State.QUEUE
    name = with_attempt(path.name, attempt)
    if worn_out:
        text = (
            f"retries exhausted: its worker died, or its lease ran out, in try {attempt} of {rules.attempts}"
        )
        reason = {"reason": text, "error": "worker died"}
        with layout.entered(state.value) as target:
            write_file(f"{name}.reason.json", reason_bytes(name, attempt, reason), dir_fd=target)
    inside = os.fspath(path.parent.relative_to(layout.root))
    try:
        with layout.entered(inside) as source, layout.entered(state.value) as target:
            rename = layout.take if worn_out else layout.give
            if is_own(name):
                rename(path.name, name, src_dir_fd=source, dst_dir_fd=target)
            else:
                move_unique(rename, path.name, name, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        return  # its holder finished it, or another recovery was faster
    result.returned += not worn_out
    result.poisoned += worn_out


def _is_stored(layout: Layout, rules: Rules, events: list[tuple[Event, bytes]]) -> bool:
    """Whether our own store has one of these events, or a corpus that another worker's drain has noted."""
    return rules.is_stored(events) or are_in_corpora(layout, (line for _, line in events))


def _foreign_is_over(path: Path, foreign_lease_s: float) -> bool:
    """Whether a file leased without an owner folder may be taken back.

    A rename or a touch renews the lease. A foreign worker that needs longer holds a flock on the file itself.
    """
    try:
        status = path.lstat()
        if time.time() - status.st_ctime < foreign_lease_s:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a link, a device, an unreadable file: the next lease will judge it
    try:
        return try_lock(fd)
    finally:
        os.close(fd)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
