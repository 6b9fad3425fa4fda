"""Owner folders: an owner is alive while it holds a lock. On a disk of one host pids, clocks and beats prove nothing.

An owner has a folder of its own (of the spool: a writer `queue/.tmp/<writer>/`, a worker `queue-in-flight/<worker>/`)
and holds a `flock` on the folder's `.lock` for life; the kernel releases it when the process ends, however it ends.
A folder gets its name only after it is locked, so that no process can take it for the folder of a dead owner.
Other hosts see no lock: on a mount that they share the owner also beats (`witness`).

A forked child inherits the lock. The child closes it at once: otherwise a child that outlives its parent would keep a
dead worker's leases alive.
"""

import contextlib
import errno
import json
import os
import threading
import time
import weakref
from pathlib import Path

from watchbill.files.atomic import make_subfolder, open_folder, open_shared, write_all
from watchbill.files.host import identity
from watchbill.files.limits import BEAT_EVERY_S, NEWBORN_AGE_S, NEWBORN_AGE_SHARED_S, SILENCE_S_MAX
from watchbill.files.lock import lock, try_lock
from watchbill.files.lossy import is_on_server, move_here
from watchbill.files.witness import BEAT_NAME, LEASE_NAME, LOCK_NAME, Witness

__all__ = ["LEASE_NAME", "LOCK_NAME", "Owner", "remove_folder", "sweep_newborns", "take_dead"]

_NEWBORN = ".new-"
#: What an owner folder holds besides its owner's files; the beat is removed first, because it says that all is there.
_OWN_FILES = (BEAT_NAME, LEASE_NAME, LOCK_NAME)


class Owner:
    """A folder that belongs to this process for as long as this object is open."""

    def __init__(self, parent: Path, name: str, *, beats: bool = False) -> None:
        """Make the folder, lock it, then give it its name. Raises OSError.

        With `beats` other hosts share it, and a thread of its own shows them that this owner lives.
        """
        hidden = parent / f"{_NEWBORN}{name}"
        make_subfolder(hidden, exist_ok=False)
        self.name = name
        self.path = parent / name
        self.pid = os.getpid()
        self.fd = self._lock_fd = -1
        self._over = threading.Event()  # closed, or ended by another host
        try:
            self._lock_fd = _new_lock(hidden / LOCK_NAME, beats)
            if beats:
                _write_beat(hidden, 0, os.O_CREAT | os.O_EXCL)
                move_here(os.fspath(hidden), os.fspath(self.path))
            else:
                hidden.rename(self.path)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            remove_folder(hidden)
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
            raise
        _close_in_children(self)
        if beats:
            threading.Thread(
                target=_beat, args=(self.path, self._over), daemon=True, name="watchbill-beat"
            ).start()

    @property
    def is_ours(self) -> bool:
        """False in a forked child, after the folder was removed, or ended by another host, and without its mount."""
        if self.pid != os.getpid() or self.fd < 0 or self._over.is_set():
            return False
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:  # whichever errno: a mount that is gone
            return False

    def refuse_if_ended(self) -> None:
        """Raises OSError if another host has given up this owner, who beats, and removes its files."""
        if not is_on_server(os.fspath(self.path / BEAT_NAME)):
            self._over.set()
            raise OSError(errno.ESTALE, "another host has taken this owner for dead", os.fspath(self.path))

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
        self._over.set()
        # Forgotten before they are closed: another thread may get the same numbers at once.
        fds, self.fd, self._lock_fd = (self.fd, self._lock_fd), -1, -1
        if fds[0] >= 0:
            for fd in fds:
                with contextlib.suppress(
                    OSError
                ):  # a mount that is gone; the descriptor is free all the same
                    os.close(fd)


def _new_lock(path: Path, beats: bool) -> int:
    fd = open_shared(path, os.O_RDWR | os.O_EXCL)
    try:
        lock(fd)
        told = identity() | ({"device": os.fstat(fd).st_dev, "beats": True} if beats else {})
        write_all(fd, (json.dumps(told) + "\n").encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def _beat(folder: Path, over: threading.Event) -> None:
    """Beat until the owner is closed, or until another host has ended it."""
    number = 0
    while not over.wait(BEAT_EVERY_S):
        number += 1
        try:
            _write_beat(folder, number)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                over.set()
            # Anything else is a mount that does not answer: it may come back before others give this owner up.


def _write_beat(folder: Path, number: int, flags: int = 0) -> None:
    """Write the number, always as many bytes: other hosts may know an older size. Closed each time, because a network
    mount sends what was written when the file is closed."""
    fd = os.open(folder / BEAT_NAME, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o660)
    try:
        write_all(fd, b"%019d\n" % number)
    finally:
        os.close(fd)


def take_dead(
    folder: str | Path,
    *,
    make_lock: bool = True,
    dir_fd: int | None = None,
    witness: Witness | None = None,
    silence_s: float = SILENCE_S_MAX,
) -> int | None:
    """Lock a dead owner's folder and return the descriptor; None while its owner lives.

    A link is no owner's folder.
    With `make_lock` a folder without a lock file counts as dead: after a power cut the file may be missing.
    With a `witness` an owner on another host is dead after `silence_s`, whatever its lock says here.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open_folder(folder, own=True, dir_fd=dir_fd) as inside:
            if witness is not None and not witness.may_take(os.fspath(folder), inside, silence_s):
                return None
            fd = _open_lock(inside, flags, make_lock=make_lock)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
            return None
        raise
    if not try_lock(fd):
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
            if any(name not in _OWN_FILES for name in os.listdir(inside)):
                return False
            for name in _OWN_FILES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=inside)
        os.rmdir(folder, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EROFS, errno.ESTALE):
            raise
        return error.errno in (errno.ENOENT, errno.ESTALE)
    return True


def sweep_newborns(parent: int, *, shared: bool = False) -> None:
    """Remove folders in an open one whose maker died before it named them. They never hold anything but a lock."""
    age_s = NEWBORN_AGE_SHARED_S if shared else NEWBORN_AGE_S
    for name in os.listdir(parent):
        if not name.startswith(_NEWBORN) or _age_s(parent, name) < age_s:
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
