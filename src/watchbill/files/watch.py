"""Wake-up on arrival: by inotify where the system has it, else by the clock alone.

`Watch.wait` returns when something may have arrived or the time is over. It may be wrong in both directions, so the
caller checks the folder itself and always passes a deadline. Watches one folder, and the folders below it that `follow`
names.
"""

import contextlib
import os
import select
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchbill.files.limits import WATCHED_FOLDERS_MAX

__all__ = ["Watch"]

_IN_MODIFY = 0x02
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_CLOSE_WRITE = 0x08
_IN_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Watch:
    """One reader's view of the folders in which files arrive."""

    def __init__(self, folder: Path, *, inotify: bool = True, appends: bool = False) -> None:
        """With `appends`, writes to files that stay open are noticed, too, not only arrivals."""
        self._folder = folder
        self._mask = (
            _IN_MOVED_TO | _IN_CREATE | _IN_CLOSE_WRITE | _IN_ONLYDIR | (_IN_MODIFY if appends else 0)
        )
        self._watched: dict[int, str] = {}
        self._names: set[str] = set()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._libc = _libc()
        self._fd: int = self._open() if inotify and hasattr(self._libc, "inotify_init1") else -1
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)

    @property
    def is_blind(self) -> bool:
        """True where arrivals cannot be noticed and only polling helps."""
        return self._fd < 0

    def fileno(self) -> int:
        """The descriptor that is readable when something may have arrived, for an event loop; -1 where it is blind."""
        return self._fd

    def follow(self, folders: Iterable[str]) -> bool:
        """Watch these folders below the main one, too. Return True if one is new: then look again first."""
        if self._fd < 0:
            return False
        added = False
        for name in folders:
            if name not in self._names and len(self._names) < WATCHED_FOLDERS_MAX:
                added = self._add(name) or added
        return added

    def renew(self) -> None:
        """Watch the folder that has the name now. One that was moved away only causes extra wake-ups."""
        self._names.clear()
        if self._fd >= 0:
            self._add("")

    def wait(self, timeout_s: float) -> bool:
        """Wait for an arrival or a `wake`; return False on a timeout."""
        ready = self._poll.poll(max(0, int(timeout_s * 1000)))
        for fd, _ in ready:
            self._drain(fd)
        return bool(ready)

    def arrivals(self) -> dict[str, set[str]]:
        """The folders in which something may have arrived since the last time, without waiting; "" is the main one.

        With the names of what arrived; a folder without any may have anything.
        """
        return self._drain(self._fd) if self._fd >= 0 else {}

    def wake(self) -> None:
        """End a `wait` in another thread."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if self._wake_write >= 0:
                os.write(self._wake_write, b"!")

    def close(self) -> None:
        for fd in (self._fd, self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._fd = self._wake_read = self._wake_write = -1

    def _open(self) -> int:
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd >= 0 and not self._add(""):
            os.close(self._fd)
            return -1
        return self._fd

    def _add(self, name: str) -> bool:
        path = os.fsencode(self._folder / name)
        number = self._libc.inotify_add_watch(self._fd, path, self._mask)
        if number < 0:
            return False
        self._watched[number] = name
        self._names.add(name)
        return True

    def _drain(self, fd: int) -> dict[str, set[str]]:
        """Take what a descriptor has to say; returns the folders of inotify's events, and the names in them."""
        found: dict[str, set[str]] = {}
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return found
        if fd != self._fd:
            return found
        offset = 0
        while offset + _EVENT.size <= len(data):
            number, mask, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            if mask & _IN_OVERFLOW:
                return {folder: set() for folder in self._names}
            found.setdefault(self._watched.get(number, ""), set()).add(os.fsdecode(name))
            if mask & _IN_IGNORED:  # the folder is gone
                self._names.discard(self._watched.pop(number, ""))
        return found


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
