"""Files that a person names, on the command line or in what it reads: files and pipes, as far as a bound goes.

Never a device: `/dev/zero` has no end, and opening others may act on them. Raises OSError with a text for people, so
that callers say which file it was in the way they say it of a file that is missing.
"""

import errno
import os
import stat
from pathlib import Path

__all__ = ["OddFile", "open_given", "read_given"]


class OddFile(OSError):
    """It is neither a file nor a pipe, or too large; the text says which."""


def open_given(path: str | Path) -> int:
    """Opens a file or a pipe to read it. Raises OSError for everything else."""
    _judge(os.stat(path).st_mode, path)  # before: opening a device can act on it
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _judge(os.fstat(fd).st_mode, path)  # after: it may have been swapped in between
    except OSError:
        os.close(fd)
        raise
    return fd


def read_given(path: str | Path, bytes_max: int) -> bytes:
    """A whole file, or what comes out of a pipe. Raises OSError, also for more bytes than this."""
    with open(open_given(path), "rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OddFile(errno.EFBIG, f"larger than {bytes_max:,} bytes", os.fspath(path))
    return content


def _judge(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OddFile(errno.EINVAL, "neither a file nor a pipe", os.fspath(path))
