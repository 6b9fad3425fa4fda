"""What makes a log's sync cheap: small appends past the page cache, and an inode apart from busy ones.

A buffered write only dirties a page, which the sync then has to find, to lock and to write back. A direct
write hands its bytes to the disk at once, but in whole blocks and from an aligned buffer. So the file's last,
partial block is kept here, and each append writes it again, filled up with newlines as the file itself is.
Together that is half of what an append costs on a fast disk.

Nothing is durable before the file is synced: a disk has a cache, too. Where direct writes are refused (some
file systems, macOS), `write` says so and the caller writes as ever.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BLOCK_BYTES", "O_DIRECT", "Tail", "create_apart"]

#: A multiple of what any usual disk asks of a direct write.
BLOCK_BYTES = 4096
#: 0 where the system has no direct writes.
O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_NEWLINES = b"\n" * BLOCK_BYTES
#: Inodes in one block of ext4's inode table, as it is made by default.
_INODES = 16


class Tail:
    """The end of a file that is filled ahead with newlines. Not thread-safe."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Open the file once more; no append may be larger than `bytes_max`. Raises OSError."""
        self._fd = _open_direct(path)
        self._end = -1
        self._buffer = memoryview(mmap.mmap(-1, bytes_max + 2 * BLOCK_BYTES))

    def write(self, data: bytes, start: int) -> bool:
        """Write at `start`, where the file's text ends. False: not possible here, write it another way."""
        if self._fd < 0:
            return False
        buffer, head = self._buffer, start % BLOCK_BYTES
        stop = head + len(data)
        whole = stop + -stop % BLOCK_BYTES
        try:
            if start != self._end:  # somebody else wrote what stands before
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | O_DIRECT) if O_DIRECT else -1
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return -1


def create_apart(path: Path, mode: int, busy: Sequence[int]) -> int:
    """Create a file whose inode shares no block of the inode table with those of the `busy` open files.

    Without a journal ext4 writes that block with every fdatasync if anything in it has changed: a second write
    to the disk for each event, because the folders through which events go change with each of them. A new file
    gets the lowest free inode, so those that are too near are held until one is not. Best effort; raises OSError.
    """
    blocks = {_inode_block(fd) for fd in busy}
    too_near: list[int] = []
    try:
        while len(too_near) < _INODES:
            fd = _create(path, mode)
            if _inode_block(fd) not in blocks:
                return fd
            too_near.append(fd)
            os.unlink(path)
    except OSError:
        if not too_near:
            raise
    finally:
        for fd in too_near:
            os.close(fd)
    return _create(path, mode)


def _create(path: Path, mode: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _inode_block(fd: int) -> int:
    return (os.fstat(fd).st_ino - 1) // _INODES
