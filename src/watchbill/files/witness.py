"""Which owners on other hosts are alive, on a mount that several hosts share.

No lock is seen by other hosts, and clocks of two hosts are never compared. So an owner there writes a rising number to
the `.beat` of its folder every ten seconds, and a reader measures by its own clock how long the number has not changed
while it could look. An owner that is silent for too long is ended: its `.beat` is removed first, and nothing of it is
touched before. An owner that comes back finds its `.beat` gone, and makes a new folder.

An owner of this host, boot and mount is judged by its lock, as on a disk of our own.
"""

import contextlib
import errno
import json
import os
import time
from dataclasses import dataclass
from typing import Any, cast

from watchbill.files.host import boot_id, host_name
from watchbill.files.limits import LOOK_GAP_S_MAX, SILENCE_S_MAX, WITNESSED_MAX

__all__ = ["BEAT_NAME", "LEASE_NAME", "LOCK_NAME", "Witness"]

LOCK_NAME = ".lock"
#: Says how long a lease holds whose folder no process keeps locked.
LEASE_NAME = ".lease.json"
#: A number that rises while the owner lives, on mounts that several hosts share.
BEAT_NAME = ".beat"
_SMALL_BYTES = 4_096


@dataclass(slots=True)
class _Seen:
    beat: bytes
    looked_at_s: float
    silent_s: float = 0.0


class Witness:
    """What this process has seen of the owners of one shared folder."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def may_take(self, name: str, folder: int, silence_s: float = SILENCE_S_MAX) -> bool:
        """Whether this owner is dead as far as other hosts are concerned; the lock is still to be tried.

        One that was silent for too long is ended by this call. Raises OSError.
        """
        owner = _identity(folder)
        if _is_here(owner, folder) or _read(folder, LEASE_NAME) is not None:
            return True  # its lock decides, or the term of its lease
        if owner and not owner.get("beats"):
            return False  # a process on the disk itself, which does not know that other hosts mount it
        beat = _read(folder, BEAT_NAME)
        if beat is None and owner:
            return True  # ended before
        if not self._is_silent(name, beat or b"", silence_s):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(BEAT_NAME, dir_fd=folder)
        return True

    def _is_silent(self, name: str, beat: bytes, silence_s: float) -> bool:
        now_s = time.monotonic()
        seen = self._seen.get(name)
        if seen is None or seen.beat != beat:
            self._seen.pop(name, None)
            self._seen[name] = _Seen(beat, now_s)
            while len(self._seen) > WITNESSED_MAX:
                self._seen.pop(next(iter(self._seen)))
            return False
        # A reader that did not look has not seen silence: it may have been stopped, or without its mount.
        seen.silent_s += min(now_s - seen.looked_at_s, LOOK_GAP_S_MAX)
        seen.looked_at_s = now_s
        return seen.silent_s >= silence_s


def _identity(folder: int) -> dict[str, Any]:
    """What the lock of a folder says about its owner; empty if it cannot be read."""
    try:
        read: object = json.loads(_read(folder, LOCK_NAME) or b"")
    except ValueError:
        return {}
    return cast(dict[str, Any], read) if isinstance(read, dict) else {}


def _is_here(owner: dict[str, Any], folder: int) -> bool:
    """Whether the owner and we see each other's locks."""
    here = {"host": host_name(), "boot": boot_id(), "device": os.fstat(folder).st_dev}
    return all(owner.get(key) == value for key, value in here.items())


def _read(folder: int, name: str) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE, errno.ELOOP):
            return None
        raise
    try:
        return os.read(fd, _SMALL_BYTES)
    finally:
        os.close(fd)
