"""Mailboxes: folders in which programs leave requests for each other, one file per message.

    BOX/.DRAFT     being written: no message yet
    BOX/NAME       a message, whole

The two sides need not trust each other. The reader may run as root while the folder belongs to another user, who must
not be able to redirect its reads and writes: the folder is held open and never looked up by name again, no link is
followed, and only small regular files are read.

A message belongs to the process that removes it: `remove` returns True to exactly one caller, which then acts on it.
The reader removes a message before it acts, so that a reader that dies in between does nothing twice; a sender may
withdraw a message by removing it. A refused message is removed and answered, too, in a second box under the same name:
its sender should not have to wait for a deadline.
"""

import errno
import heapq
import os
import secrets
import time
from pathlib import Path
from typing import Self

from watchbill.files.atomic import PRIVATE_MODE, NotAFile, put_file, read_regular
from watchbill.files.lock import lock

__all__ = ["Box"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_MODE = 0o700
#: A folder is not a message, and a message may have been removed meanwhile.
_NOT_REMOVED = frozenset({errno.ENOENT, errno.EISDIR, errno.EPERM, errno.ENOTEMPTY, errno.EACCES})


class Box:
    """One folder of messages, open until `close`."""

    def __init__(self, path: Path, *, within: "Box | None" = None) -> None:
        """Open an existing folder or, `within` another one, make it for the owner of that one. Raises OSError."""
        self.fd = os.open(path, _FOLDER) if within is None else _enter(within.fd, os.fspath(path))

    def lock(self) -> None:
        """Become the only reader of this box. Raises BlockingIOError while another process is."""
        lock(self.fd)

    def names(self, count_max: int) -> list[str]:
        """Return the first messages in the order of their names; drafts are not among them."""
        with os.scandir(self.fd) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))
            return heapq.nsmallest(count_max, names)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return a message. Raises NotAFile, and FileNotFoundError when it was withdrawn."""
        try:
            return read_regular(name, dir_fd=self.fd, bytes_max=bytes_max)
        except FileNotFoundError:
            raise
        except OSError as error:  # whichever errno: a message that cannot be read is refused
            raise NotAFile(f"cannot be read: {error.strerror}") from error

    def put(self, name: str, data: bytes, *, sync: bool = False, mode: int = PRIVATE_MODE) -> None:
        """Write a message; it replaces one of that name. Raises OSError: then nothing of it is left.

        With `sync` it survives a power cut.
        """
        put_file(name, f".{secrets.token_hex(8)}", data, dir_fd=self.fd, sync=sync, mode=mode, new=True)

    def holds(self, name: str) -> bool:
        """Whether there is a message, or anything else, under this name."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> bool:
        """Remove a message. True if this call removed it: then the caller acts on it."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except OSError as error:
            if error.errno in _NOT_REMOVED:
                return False
            raise
        return True

    def clean(self, age_s: float) -> None:
        """Remove messages, drafts and whatever else is older than this."""
        oldest = time.time() - age_s
        with os.scandir(self.fd) as entries:
            old = [entry.name for entry in entries if _is_older(entry, oldest)]
        for name in old:
            self.remove(name)

    def close(self) -> None:
        """Close the folder, and release the lock."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_older(entry: os.DirEntry[str], oldest: float) -> bool:
    try:
        is_folder = entry.is_dir(follow_symlinks=False)
        return not is_folder and entry.stat(follow_symlinks=False).st_mtime < oldest
    except FileNotFoundError:  # withdrawn since it was listed
        return False


def _enter(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    folder = os.open(name, _FOLDER, dir_fd=parent)
    owner = os.fstat(parent)
    if owner.st_uid != os.geteuid():
        os.fchown(folder, owner.st_uid, owner.st_gid)
    return folder
