"""Leases that outlive the process that took them, for workers that are shell scripts (SPOOL-03).

    path=$(watchbill spool dequeue --spool DIR --pid $$)  &&  work "$path"  &&  watchbill spool done "$path" --spool DIR

The event lies in an owner folder of its own, as every leased event does, but no process holds the folder's lock. A file
in it says how long the lease holds: as long as a process lives (identified by pid, start time and boot, because pids
are reused), or until a time. The path is the lease: the attempt is in its name, so the path of a lease that was taken
back never names a later lease.
"""

import contextlib
import os
import time
from pathlib import Path

from watchbill.files.atomic import fsync_folder, make_subfolder
from watchbill.files.host import host_name
from watchbill.files.lossy import move_here
from watchbill.files.owner import LEASE_NAME, Owner, remove_folder, take_dead
from watchbill.spool.consumer import done_folder, move_unique
from watchbill.spool.faults import LeaseLost, SpoolBroken, disk_fault
from watchbill.spool.inspect import Entry, find_leased, poison_named, release_named
from watchbill.spool.item import Item
from watchbill.spool.layout import State
from watchbill.spool.queue import Spool
from watchbill.spool.term import Term, write_term

__all__ = ["dequeue", "done", "fail", "renew"]


def dequeue(spool: Spool, term: Term) -> tuple[Path, Item] | None:
    """Lease the oldest event for a worker outside this process; None when nothing waits."""
    item = spool.lease()
    if item is None:
        return None
    try:
        owner = Owner(
            spool.layout.folder(State.IN_FLIGHT), f"{host_name()}.{os.getpid()}.{os.urandom(4).hex()}"
        )
        try:
            write_term(owner.path, term)
            path = owner.path / item.name
            if spool.layout.is_shared:
                move_here(os.fspath(item.path), os.fspath(path))
            else:
                os.rename(item.path, path)
        finally:
            owner.abandon()  # unlocked: from here on the term counts
    except OSError as error:
        spool.give_back(item)
        raise disk_fault(error, f"lease {item.name}") from error
    spool.forget(item)
    return path, item


def renew(spool: Spool, path: Path, term: Term) -> Path:
    """Renew a lease for another term. Raises LeaseLost if it was taken back."""
    entry = find_leased(spool, path)
    lock = take_dead(entry.path.parent, make_lock=False)
    if lock is None:
        raise SpoolBroken(f"{entry.name} is being looked at by another process; try again")
    try:
        if not (entry.path.parent / LEASE_NAME).exists():
            raise LeaseLost(f"{entry.path} was not leased by `spool dequeue`; it cannot be renewed")
        write_term(entry.path.parent, term)
        find_leased(spool, path)  # still ours: recovery takes the same lock
    except OSError as error:
        raise disk_fault(error, f"renew the lease of {entry.name}") from error
    finally:
        os.close(lock)
    return entry.path


def done(spool: Spool, path: Path) -> str:
    """Finish a leased event, durably, and return its name. Raises LeaseLost if it was taken back."""
    entry = find_leased(spool, path)
    layout, folder = spool.layout, done_folder(int(time.time()) // 86_400)
    try:
        make_subfolder(State.DONE.value, dir_fd=layout.root_fd)
        make_subfolder(folder, dir_fd=layout.root_fd)
        source = os.fspath(entry.path.relative_to(layout.root))
        target = move_unique(
            layout.take,
            source,
            f"{folder}/{entry.name}",
            src_dir_fd=layout.root_fd,
            dst_dir_fd=layout.root_fd,
        )
        fsync_folder(layout.root / folder)
        fsync_folder(layout.folder(State.DONE))
        fsync_folder(entry.path.parent)
    except FileNotFoundError as error:
        raise LeaseLost(
            f"{entry.path} is not leased any more: it was settled or taken back meanwhile"
        ) from error
    except OSError as error:
        raise disk_fault(error, f"finish {entry.name}") from error
    _leave(entry)
    return os.path.basename(target)


def fail(spool: Spool, path: Path, reason: str) -> State:
    """Put a leased event back for another attempt or, after the last one, poison it. Return where it went."""
    entry = find_leased(spool, path)
    worn_out = entry.attempt >= spool.attempts
    if worn_out:
        poison_named(spool, entry, f"retries exhausted: {reason}", holder=True)
    else:
        release_named(spool, entry, holder=True, failed=True)
    _leave(entry)
    return State.POISON if worn_out else State.QUEUE


def _leave(entry: Entry) -> None:
    """Remove the folder of a settled lease; if that fails now, recovery removes it."""
    with contextlib.suppress(OSError):
        remove_folder(entry.path.parent)
