"""The pressure watcher: the kernel signals that memory gets short, so that we need not poll all the time.

A program that takes 100 MB/s fills a reserve of 256 MiB in under three seconds; a reading once a second would leave one
or two chances. The watcher combines the sources of this kernel in one descriptor for the event loop:

    PSI trigger       some task waited for memory for a part of a window (any kernel since 5.2)
    version 1         usage crossed `limit - reserve` and the two halves below it; reclaim has begun
    version 2         memory.events changed: a group reached its high or max bound

An event is a hint to read the probe now, never a verdict: file cache alone can cross a threshold.

    watcher = PressureWatcher(groups, reserve=...)
    loop.add_reader(watcher.fileno(), lambda: look(watcher.drain()))
"""

import errno
import os
import select
from collections.abc import Callable
from pathlib import Path

from watchbill.probes.cgroups import MemoryGroups

__all__ = ["PressureWatcher"]

#: Stall and window in microseconds: 150 ms of two seconds is the shortest for an unprivileged process. With privilege
#: it is half a second, so that the hint comes sooner.
PSI_TRIGGERS = (b"some 50000 500000", b"some 150000 2000000")
#: Errors of a kernel, a mount or a user that does not allow this kind of event.
UNSUPPORTED = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS, errno.EBUSY, errno.ENOSYS,
})  # fmt: skip


class PressureWatcher:
    """One descriptor that becomes readable when any source fires. Without a source it never does."""

    def __init__(self, groups: MemoryGroups, *, reserve: int, root: Path = Path("/")) -> None:
        self._epoll = select.epoll()
        self._names: dict[int, str] = {}
        self._owned: list[int] = []
        self._base = str(root).rstrip("/")
        self._try("psi", lambda: self._watch_stalls(f"{self._base}/proc/pressure/memory"))
        for folder, limit in groups.limited():
            if groups.version == 1:
                for room in (reserve, reserve * 3 // 4, reserve // 2):
                    if limit - room > 0:
                        self._try("threshold", lambda f=folder, at=limit - room: self._watch_usage(f, at))
                self._try("reclaim", lambda f=folder: self._watch_reclaim(f))
            else:
                self._try("events", lambda f=folder: self._watch_events(f"{f}/memory.events"))

    @property
    def sources(self) -> list[str]:
        """The sources that are watched: psi, threshold, reclaim, events."""
        return sorted(self._names.values())

    def fileno(self) -> int:
        """The descriptor for `loop.add_reader`."""
        return self._epoll.fileno()

    def drain(self) -> list[str]:
        """The sources that fired since the last call; afterwards the descriptor is quiet again. Never waits.

        The kernel forgets a stall as soon as a process was woken for it, and that is our wait for the descriptor: an
        empty list after a wake-up means `psi`.
        """
        fired = [fd for fd, _ in self._epoll.poll(0)]
        for fd in fired:
            self._reset(fd)
        return sorted({self._names[fd] for fd in fired})

    def close(self) -> None:
        """Closes all descriptors. Later calls do nothing."""
        self._epoll.close()
        while self._owned:
            os.close(self._owned.pop())

    def _reset(self, fd: int) -> None:
        match self._names[fd]:
            case "threshold" | "reclaim":
                os.eventfd_read(fd)
            case "events":
                os.pread(fd, 4096, 0)  # the read arms the next notification
            case _:
                pass  # the PSI trigger arms itself, and fires once per window at most

    def _try(self, name: str, watch: Callable[[], tuple[int, int]]) -> None:
        """Adds a source, or goes on without it. The other sources and the regular readings remain."""
        owned = len(self._owned)
        try:
            fd, mask = watch()
        except OSError as failure:
            if failure.errno not in UNSUPPORTED:
                raise
            while len(self._owned) > owned:
                os.close(self._owned.pop())
            return
        self._epoll.register(fd, mask)
        self._names[fd] = name

    def _watch_stalls(self, path: str) -> tuple[int, int]:
        fd = self._open(path, os.O_RDWR | os.O_NONBLOCK)
        for trigger in PSI_TRIGGERS[:-1]:
            try:
                os.write(fd, trigger + b"\0")
                break
            except OSError as failure:  # a window that is no multiple of two seconds needs CAP_SYS_RESOURCE
                if failure.errno != errno.EINVAL:
                    raise
        else:
            os.write(fd, PSI_TRIGGERS[-1] + b"\0")
        return fd, select.EPOLLPRI

    def _watch_usage(self, folder: str, threshold: int) -> tuple[int, int]:
        return self._register(folder, "memory.usage_in_bytes", str(threshold))

    def _watch_reclaim(self, folder: str) -> tuple[int, int]:
        # Needed beside the thresholds: a group full of file cache is above all of them from the start.
        return self._register(folder, "memory.pressure_level", "low")

    def _register(self, folder: str, file: str, argument: str) -> tuple[int, int]:
        """Version 1: an eventfd that the group increments."""
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._owned.append(event)
        target = self._open(f"{folder}/{file}", os.O_RDONLY)
        control = self._open(f"{folder}/cgroup.event_control", os.O_WRONLY)
        os.write(control, f"{event} {target} {argument}".encode())
        return event, select.EPOLLIN

    def _watch_events(self, path: str) -> tuple[int, int]:
        """Version 2: the file signals an exceptional condition when one of its counters rises."""
        fd = self._open(path, os.O_RDONLY)
        os.pread(fd, 4096, 0)
        return fd, select.EPOLLPRI

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC)
        self._owned.append(fd)
        return fd
