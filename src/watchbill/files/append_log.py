"""An append-only log of bytes: what makes one fdatasync enough for an acknowledgement.

    log = AppendLog(path, b"# head\n")       the file is new, and its name is durable
    log.append(data)                          on return `data` is on stable storage

The file is filled ahead with newlines, so that committing bytes changes neither size nor allocation and the fdatasync
has no metadata to write; small appends go past the page cache. The text ends where nothing but newlines follow. The
caller decides what a record is, how it is checked and what an empty line means. On a network mount, where every byte
of the filling would travel, a log grows instead.

An append that fails is taken back, so that readers do not see it as acknowledged. A log that failed to sync accepts
nothing more and is never synced again: the kernel has dropped the dirty pages, and a second sync would report success.
A file has one writer, which created it; a successor begins a file of its own.
"""

import contextlib
import errno
import os
from pathlib import Path

from watchbill.files.atomic import FILE_MODE, fsync_folder, pwrite_all, sync_data
from watchbill.files.limits import LOG_DIRECT_BYTES_MIN, LOG_FILL_BYTES
from watchbill.files.uncached import BLOCK_BYTES, Tail

__all__ = ["AppendLog"]


class AppendLog:
    """The open log of one writer. Not thread-safe."""

    def __init__(
        self,
        path: Path,
        head: bytes = b"",
        *,
        filled: bool = True,
        followed: bool = False,
        mode: int = FILE_MODE,
        goes_on_at: int | None = None,
    ) -> None:
        """Create the file and make its name durable. Raises OSError and then leaves nothing behind.

        With `goes_on_at` open one that this process created and closed, and whose text ends there. Raises OSError,
        FileNotFoundError where it is gone.

        Without `filled` the file grows with each append. A `followed` file is read by other processes while it grows:
        they see an append whole or not at all, unless its sync fails.
        """
        self.path = path
        self.failed = False
        self._grows = not filled
        self._followed = followed
        self._fills = list(LOG_FILL_BYTES)
        is_new = os.O_CREAT | os.O_EXCL if goes_on_at is None else 0
        self._fd = os.open(path, os.O_RDWR | is_new | os.O_CLOEXEC, mode)
        self._tail: Tail | None = None
        self.end = self._filled = 0
        if goes_on_at is not None:
            self._go_on(goes_on_at)
            return
        try:
            self._begin(head)
            fsync_folder(path.parent)
        except OSError:
            self.discard()
            raise

    def _begin(self, head: bytes) -> None:
        if self._grows:
            pwrite_all(self._fd, head, 0)
            self._sync_size()
            self._filled = len(head)
        else:
            self._fill(len(head), head)
            self._tail = Tail(self.path, LOG_DIRECT_BYTES_MIN)
        self.end = len(head)

    def _go_on(self, end: int) -> None:
        """What was acknowledged is synced, and the size of the file with it: nothing has to be repaired."""
        try:
            self.end, self._filled = end, os.fstat(self._fd).st_size
            if not self._grows:
                self._tail = Tail(self.path, LOG_DIRECT_BYTES_MIN)
        except OSError:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Put bytes on stable storage with one fdatasync. Raises OSError: then none is acknowledged."""
        if self.failed:
            raise OSError(
                errno.EIO, "this log failed to sync before and accepts nothing more", os.fspath(self.path)
            )
        start = self.end
        # A large batch extends the file itself: filling first would write every byte twice.
        grows = self._grows or len(data) >= LOG_DIRECT_BYTES_MIN
        if start + len(data) >= self._filled and not grows:
            self._fill(start + len(data) + 1 - self._filled)
        try:
            if grows or not self._write_uncached(data, start):
                self._write(data, start)
            self._sync()
        except OSError:
            self._take_back(start, len(data))
            raise
        self._filled = max(self._filled, start + len(data))
        self.end = start + len(data)

    @property
    def is_linked(self) -> bool:
        """False after the file was removed: what is written to it is lost."""
        return os.fstat(self._fd).st_nlink > 0

    def close(self) -> None:
        """Close the file and keep it. Never fails: everything that was acknowledged is synced."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # A mount that is gone answers ENOTCONN or EIO, and the descriptor is free all the same.
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._tail is not None:
            self._tail.close()

    def discard(self) -> None:
        """Close and remove the log. Only after everything in it is durable elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, data: bytes, start: int) -> None:
        if self._followed:
            # The first byte comes last: while it is missing, a reader stops before all of it. What a full disk cuts
            # short would otherwise be read in part, taken back, and written over with something else.
            pwrite_all(self._fd, memoryview(data)[1:], start + 1)
            data = data[:1]
        pwrite_all(self._fd, data, start)

    def _write_uncached(self, data: bytes, start: int) -> bool:
        try:
            return self._tail is not None and self._tail.write(data, start)
        except OSError:
            self.failed = True  # the disk refused a block, and acknowledged records are in it
            raise

    def _sync(self) -> None:
        try:
            sync_data(self._fd)
        except OSError:
            self.failed = True
            raise

    def _fill(self, need_bytes: int, head: bytes = b"") -> None:
        """Extend the file with newlines by at least `need_bytes`, to whole blocks, and make its size durable."""
        step = self._fills.pop(0) if len(self._fills) > 1 else self._fills[0]
        need_bytes += -(self._filled + need_bytes) % BLOCK_BYTES
        try:
            size = max(step - self._filled % BLOCK_BYTES, need_bytes)
            self._extend(size, head)
        except OSError:
            size = need_bytes  # the full step does not fit; these records alone still may
            self._extend(size, head)
        self._sync_size()
        self._filled += size

    def _extend(self, size: int, head: bytes) -> None:
        try:
            pwrite_all(self._fd, head + b"\n" * (size - len(head)), self._filled)
        except OSError:
            os.ftruncate(self._fd, self._filled)  # no half-filled log
            raise

    def _sync_size(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError:
            self.failed = True
            raise

    def _take_back(self, start: int, size: int) -> None:
        """Take back bytes that were not acknowledged, so that a reader does not show them. Best effort: a record
        whose append raised may still appear, whole, which at-least-once allows."""
        try:
            if start + size > self._filled:
                os.ftruncate(self._fd, self._filled)
            pwrite_all(self._fd, b"\n" * (min(start + size, self._filled) - start), start)
        except OSError:
            self.failed = True
