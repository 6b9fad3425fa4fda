"""Owner folders: an owner is alive while it holds a lock. Pids, clocks and heartbeats prove nothing.

An owner has a folder of its own (of the spool: a writer `queue/.tmp/<writer>/`, a worker `queue-in-flight/<worker>/`)
and holds a `flock` on the folder's `.lock` for life; the kernel releases it when the process ends, however it ends.
A folder gets its name only after it is locked, so that no process can take it for the folder of a dead owner.

A forked child inherits the lock. The child closes it at once: otherwise a child that outlives its parent would keep a
dead worker's leases alive.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
import weakref
from pathlib import Path

from watchbill.files.atomic import make_subfolder, open_folder, open_shared, write_all
from watchbill.files.host import identity
from watchbill.files.limits import NEWBORN_AGE_S

__all__ = ["LEASE_NAME", "LOCK_NAME", "Owner", "remove_folder", "sweep_newborns", "take_dead"]

LOCK_NAME = ".lock"
#: Says how long a lease holds whose folder no process keeps locked.
LEASE_NAME = ".lease.json"
_NEWBORN = ".new-"


class Owner:
    """A folder that belongs to this process for as long as this object is open."""

    def __init__(self, parent: Path, name: str) -> None:
        """Make the folder, lock it, then give it its name. Raises OSError."""
        hidden = parent / f"{_NEWBORN}{name}"
        make_subfolder(hidden, exist_ok=False)
        self.name = name
        self.path = parent / name
        self.pid = os.getpid()
        self.fd = self._lock_fd = -1
        try:
            self._lock_fd = _new_lock(hidden / LOCK_NAME)
            hidden.rename(self.path)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            remove_folder(hidden)
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
            raise
        _close_in_children(self)

    @property
    def is_ours(self) -> bool:
        """False in a forked child, and after the folder was removed."""
        return self.pid == os.getpid() and self.fd >= 0 and os.fstat(self.fd).st_nlink > 0

    def close(self) -> None:
        """Remove the folder if nothing is left in it, then release the lock."""
        if self.fd < 0:
            return
        if self.pid == os.getpid():
            with contextlib.suppress(OSError):  # a dead disk: the next start removes it
                remove_folder(self.path)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and leave the folder to recovery."""
        fds = self.fd, self._lock_fd
        self.fd = (
            self._lock_fd
        ) = -1  # before they are closed: another thread may get the same numbers at once
        if fds[0] >= 0:
            for fd in fds:
                os.close(fd)


def _new_lock(path: Path) -> int:
    fd = open_shared(path, os.O_RDWR | os.O_EXCL)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_all(fd, (json.dumps(identity()) + "\n").encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def take_dead(folder: str | Path, *, make_lock: bool = True, dir_fd: int | None = None) -> int | None:
    """Lock a dead owner's folder and return the descriptor; None while its owner lives.

    A link is no owner's folder.
    With `make_lock` a folder without a lock file counts as dead: after a power cut the file may be missing.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open_folder(folder, own=True, dir_fd=dir_fd) as inside:
            fd = _open_lock(inside, flags, make_lock=make_lock)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if os.fstat(fd).st_nlink == 0:  # another process has recovered and removed it meanwhile
        os.close(fd)
        return None
    return fd


def _open_lock(folder: int, flags: int, *, make_lock: bool) -> int:
    return (
        open_shared(LOCK_NAME, flags, dir_fd=folder)
        if make_lock
        else os.open(LOCK_NAME, flags, dir_fd=folder)
    )


def remove_folder(folder: str | Path, *, dir_fd: int | None = None) -> bool:
    """Remove an owner folder that holds nothing but its lock and its term. Return False if something is left in it, or
    a link is in its place."""
    try:
        with open_folder(folder, own=True, dir_fd=dir_fd) as inside:
            if any(name not in (LOCK_NAME, LEASE_NAME) for name in os.listdir(inside)):
                return False
            for name in (LEASE_NAME, LOCK_NAME):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=inside)
        os.rmdir(folder, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EROFS):
            raise
        return error.errno == errno.ENOENT
    return True


def sweep_newborns(parent: int) -> None:
    """Remove folders in an open one whose maker died before it named them. They never hold anything but a lock."""
    for name in os.listdir(parent):
        if not name.startswith(_NEWBORN) or _age_s(parent, name) < NEWBORN_AGE_S:
            continue
        with contextlib.suppress(PermissionError):  # another user's; that user's own next start sweeps it
            fd = take_dead(name, dir_fd=parent)
            if fd is not None:
                remove_folder(name, dir_fd=parent)
                os.close(fd)


def _age_s(parent: int, name: str) -> float:
    try:
        return time.time() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_ctime
    except FileNotFoundError:
        return 0.0


def _close_in_children(owner: Owner) -> None:
    known = weakref.ref(owner)

    def close() -> None:
        living = known()
        if living is not None:
            living.abandon()

    os.register_at_fork(after_in_child=close)
