"""The reactor's side of the folders, opened once and never looked up again.

The reactor may run as root while the folders belong to the daemon's user, who must not be able to turn its writes
elsewhere: every folder is held by its descriptor, no symlink is followed, and nothing but plain files with one name is
opened for writing.
"""

import errno
import fcntl
import heapq
import os
import secrets
import stat
import time
from pathlib import Path

from watchbill import limits
from watchbill.errors import ConfigError
from watchbill.reactor.intents import DONE_FOLDER, INTENTS_FOLDER, REACTOR_FOLDER, read_small_regular

__all__ = ["Folders"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOG_FILE = "reactor.jsonl"
#: Removing a folder, or what was removed meanwhile, is not our business.
_NOT_REMOVED = frozenset({errno.ENOENT, errno.EISDIR, errno.EPERM, errno.ENOTEMPTY, errno.EACCES})


class Folders:
    """ROOT/reactor and what is in it. Held by one reactor at a time."""

    def __init__(self, root: Path) -> None:
        self.path = root / REACTOR_FOLDER
        self._open: list[int] = []
        try:
            top = self._keep(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self._folder = self._enter(top, REACTOR_FOLDER)
            self.intents = self._enter(self._folder, INTENTS_FOLDER)
            self.done = self._enter(self._folder, DONE_FOLDER)
            fcntl.flock(self.intents, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno == errno.EWOULDBLOCK:
                raise ConfigError(f"another reactor serves {self.path} already") from error
            raise ConfigError(f"cannot use {self.path}: {error.strerror}; is --root right?") from error

    def _enter(self, parent: int, name: str) -> int:
        """Opens a folder, made for the owner of its parent when it is missing."""
        try:
            return self._keep(os.open(name, _FOLDER, dir_fd=parent))
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=parent)
        folder = self._keep(os.open(name, _FOLDER, dir_fd=parent))
        owner = os.fstat(parent)
        if owner.st_uid != os.geteuid():
            os.fchown(folder, owner.st_uid, owner.st_gid)
        return folder

    def _keep(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Lets go of everything."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    # ------------------------------------------------------------------ intents and answers

    def names(self) -> list[str]:
        """The first intents in the order of their names; drafts are not among them."""
        with os.scandir(self.intents) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith("."))
            return heapq.nsmallest(limits.REACTOR_INTENTS_MAX, names)

    def read(self, name: str) -> bytes:
        """An intent's text. Raises NotReadable, and FileNotFoundError when it was withdrawn."""
        return read_small_regular(name, dir_fd=self.intents)

    def remove(self, name: str) -> bool:
        """Removes an intent. True when it was there and is gone: then it is ours to act on."""
        return _remove(name, self.intents)

    def is_answered(self, name: str) -> bool:
        """Whether there is an answer, or anything else, under this name."""
        try:
            os.stat(name, dir_fd=self.done, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def answer(self, name: str, text: bytes) -> None:
        """Writes an answer whole. It replaces nothing: a name is answered once."""
        draft = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o644, dir_fd=self.done)
        try:
            os.write(descriptor, text)
        except OSError:
            _remove(draft, self.done)
            raise
        finally:
            os.close(descriptor)
        os.rename(draft, name, src_dir_fd=self.done, dst_dir_fd=self.done)

    # ------------------------------------------------------------------ log and old files

    def log(self, line: bytes) -> None:
        """Appends to the reactor's own log, which keeps one predecessor."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        strange = ConfigError(f"{self.path / LOG_FILE} is not a plain file of its own; remove it")
        try:
            descriptor = os.open(LOG_FILE, flags, 0o644, dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise strange from error
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise strange
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)
        if found.st_size > limits.REACTOR_LOG_BYTES_MAX:
            os.rename(LOG_FILE, f"{LOG_FILE}.1", src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def clean(self) -> None:
        """Removes answers, drafts and whatever else is old in both folders."""
        oldest = time.time() - limits.REACTOR_KEEP_MS / 1000
        for folder in (self.intents, self.done):
            with os.scandir(folder) as entries:
                old = [
                    entry.name
                    for entry in entries
                    if not entry.is_dir(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_mtime < oldest
                ]
            for name in old:
                _remove(name, folder)


def _remove(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_REMOVED:
            return False
        raise
    return True
