"""Small files of /proc and /sys, read with few system calls.

A file that is one record (meminfo, smaps_rollup, a group's figures) comes whole with the first read, a list of records
(mounts, children) one page at a time. A missing file is a normal result here: processes end between two reads, and
kernels differ.
"""

import errno
import os

from watchbill.probes.limits import PROBE_FILE_BYTES_MAX

__all__ = ["number_in", "read_small", "table_of"]

#: Python allocates a buffer of this size for each read: a large one costs more than the read.
CHUNK_BYTES = 16 * 1024
#: Errors that mean: it does not exist (any more), or we may not read it.
ABSENT = frozenset({
    errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EOPNOTSUPP,
    errno.EINVAL,
})  # fmt: skip


def read_small(path: str) -> bytes | None:
    """The file's bytes, or None when it is absent or not readable for us. Other errors are raised."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise
    try:
        return _read_whole(fd)
    except OSError as error:  # the process ended between open and read
        if error.errno in ABSENT:
            return None
        raise
    finally:
        os.close(fd)


def _read_whole(fd: int) -> bytes:
    text = os.read(fd, CHUNK_BYTES)
    while len(text) < PROBE_FILE_BYTES_MAX and (more := os.read(fd, CHUNK_BYTES)):
        text += more
    return text


def number_in(path: str) -> int | None:
    """The one number in a file of a cgroup; None for "max", for an absent file and for anything else."""
    text = (read_small(path) or b"").strip()
    return int(text) if text.isdigit() else None


def table_of(text: bytes) -> dict[bytes, int]:
    """`name[:] number [unit]` lines as a table of the bare numbers; other lines are skipped."""
    rows = (line.split(None, 2) for line in text.splitlines())
    return {row[0].rstrip(b":"): int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}
