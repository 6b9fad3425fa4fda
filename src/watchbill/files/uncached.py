"""Small appends past the page cache, which on a fast disk accounts for half the cost of an append.

A buffered write only dirties a page, which the sync then has to find, to lock and to write back. A direct
write hands its bytes to the disk at once, but in whole blocks and from an aligned buffer. So the file's last,
partial block is kept here, and each append writes it again, filled up with newlines as the file itself is.

Nothing is durable before the file is synced: a disk has a cache, too. Where direct writes are refused (some
file systems, macOS), `write` returns False and the caller writes through the cache.
"""

import contextlib
import errno
import mmap
import os
from pathlib import Path

__all__ = ["BLOCK_BYTES", "O_DIRECT", "Tail"]

#: A multiple of what any usual disk asks of a direct write.
BLOCK_BYTES = 4096
#: 0 where the system has no direct writes.
O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_NEWLINES = b"\n" * BLOCK_BYTES


class Tail:
    """The end of a file that is filled ahead with newlines. Not thread-safe."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Open the file once more; no append may be larger than `bytes_max`. Raises OSError."""
        self._fd = _open_direct(path)
        self._end = -1
        self._buffer = memoryview(mmap.mmap(-1, bytes_max + 2 * BLOCK_BYTES))

    def write(self, data: bytes, start: int) -> bool:
        """Write at `start`, where the file's text ends. Returns False if direct writes are not possible here."""
        if self._fd < 0:
            return False
        buffer, head = self._buffer, start % BLOCK_BYTES
        stop = head + len(data)
        whole = stop + -stop % BLOCK_BYTES
        try:
            if start != self._end:  # the bytes before were not written by this object
                os.preadv(self._fd, [buffer[:BLOCK_BYTES]], start - head)
            buffer[head:stop] = data
            buffer[stop:whole] = _NEWLINES[: whole - stop]
            written = os.pwrite(self._fd, buffer[:whole], start - head)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            written = 0
        if written != whole:
            self.close()
            return False
        if stop >= BLOCK_BYTES:
            rest = stop % BLOCK_BYTES
            buffer[:rest] = buffer[stop - rest : stop]
        self._end = start + len(data)
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # of a mount that is gone; the descriptor is free all the same
                os.close(fd)


def _open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | O_DIRECT) if O_DIRECT else -1
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return -1
