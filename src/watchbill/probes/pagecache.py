"""Page cache: how much of a file it holds, that is, whether a load will be quick or must wait for the disk.

It asks for single bytes spread over the file and refuses to wait for them; bytes that come back at once were cached.
That costs about 0.2 ms and reads almost nothing, whatever the size of the file.
"""

import errno
import os
from pathlib import Path

__all__ = ["cached_share", "is_cached"]

SAMPLES = 64
#: From this share on a load is as fast as a cached one.
CACHED_FROM = 0.9


def cached_share(path: Path) -> float | None:
    """The share of the file in memory, 0.0 to 1.0; None where the file or its file system does not support it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # any errno: the file cannot be read
        return None
    try:
        size = os.fstat(fd).st_size
        spots = {size * number // SAMPLES for number in range(SAMPLES)} if size else set[int]()
        found = [_is_cached(fd, spot) for spot in sorted(spots)]
    finally:
        os.close(fd)
    known = [answer for answer in found if answer is not None]
    return sum(known) / len(known) if known else None


def is_cached(path: Path) -> bool:
    """Whether a load of this file will be quick; False where that is unknown."""
    return (cached_share(path) or 0.0) >= CACHED_FROM


def _is_cached(fd: int, spot: int) -> bool | None:
    try:
        return os.preadv(fd, [bytearray(1)], spot, os.RWF_NOWAIT) == 1
    except OSError as refusal:
        return False if refusal.errno == errno.EAGAIN else None
