"""Locks of this host: one owner per card, one agent per private folder.

A lock is a file with a flock, which the kernel drops with the process that holds it, so a crash leaves nothing to clean
up. The file stays on purpose and names its last holder, for the error message of the next process. A card's lock is
named after its UUID, not its index: two daemons may number the cards differently (R14). It lies in /run/lock, where the
processes of all users see it, else in the user's own folder.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from watchbill.errors import OursError
from watchbill.files.host import start_time
from watchbill.files.lock import try_lock
from watchbill.limits import DAEMON_RECORD_BYTES_MAX
from watchbill.names import file_stem

__all__ = ["CardLocks", "Holder", "HostLock", "LockHeld", "locks_folder"]

#: Every user may take a lock of the host, as every user may use a card.
_MODE = 0o666


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock, according to its file."""

    what: str
    pid: int

    def __str__(self) -> str:
        return f"{self.what} (pid {self.pid})" if self.pid else "a process that is just starting"


class LockHeld(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class HostLock:
    """One lock of this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def take(self, what: str) -> None:
        """Take the lock in the name of `what`. Raises LockHeld, and OSError where the file cannot be made."""
        descriptor = _open(self.path)
        try:
            if not try_lock(descriptor):
                raise LockHeld(_holder(os.pread(descriptor, DAEMON_RECORD_BYTES_MAX, 0)))
        except (OSError, LockHeld):
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        text = json.dumps({"pid": os.getpid(), "what": what}).encode() + b"\n"
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)
        except OSError:  # a full disk: the next try must not find this one in its way
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; does nothing when it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class CardLocks:
    """The cards that this process owns. Take them before anything is put on a card."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or locks_folder()
        self._locks: dict[str, HostLock] = {}

    def take(self, cards: Mapping[str, str], what: str) -> None:
        """Take cards, given as device -> UUID: all or none. Raises OursError, which says who holds which."""
        taken: list[str] = []
        for device, uuid in cards.items():
            if uuid in self._locks:
                continue
            lock = HostLock(self._folder / f"watchbill-{file_stem(uuid)}.lock")
            try:
                lock.take(what)
            except LockHeld as held:
                for each in taken:
                    self._locks.pop(each).release()
                raise OursError(
                    f"{device} ({uuid}) belongs to {held.holder}",
                    hint="stop that one, or choose another device",
                ) from None
            self._locks[uuid] = lock
            taken.append(uuid)

    def release(self) -> None:
        """Release all cards."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()


def locks_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the locks of this host are: one folder for all users where there is one, else the user's own."""
    own = environment.get("XDG_RUNTIME_DIR")
    for folder in (Path("/run/lock"), *([Path(own)] if own else [])):
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.gettempdir())


def _open(path: Path) -> int:
    """Open a lock file, or make it. In a folder of all users the kernel refuses O_CREAT on another user's file."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:  # another process was faster
        return os.open(path, flags)
    os.fchmod(descriptor, _MODE)
    return descriptor


def _holder(text: bytes) -> Holder:
    try:
        found = cast("object", json.loads(text))
    except ValueError:  # it has the lock and has not written yet
        found = None
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    pid = fields.get("pid")
    if not isinstance(pid, int) or start_time(pid) is None:
        return Holder("", 0)
    return Holder(str(fields.get("what") or "a process"), pid)
