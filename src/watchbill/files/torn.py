"""The last line of a file that only grows, after a power cut or a full disk: it may have no end, or be zeros."""

import os

from watchbill.files.atomic import write_all
from watchbill.files.limits import LINES_READ_BYTES

__all__ = ["mend_end"]


def mend_end(fd: int, begins: bytes) -> int:
    """Cut a last line that has no end, so that every line is whole for whoever reads the file; return the new size.

    `begins`: how each of our lines begins. A text of somebody else's without a newline only gets one."""
    size = os.fstat(fd).st_size
    if not size:
        return 0
    start = max(0, size - LINES_READ_BYTES)
    tail = os.pread(fd, size - start, start)
    torn = tail[tail.rfind(b"\n") + 1 :]
    if not torn:
        return size
    said = torn.rstrip(b"\0")
    if len(torn) < LINES_READ_BYTES and said[: len(begins)] == begins[: len(said)]:
        os.ftruncate(fd, size - len(torn))
        return size - len(torn)
    write_all(fd, b"\n")
    return size + 1
