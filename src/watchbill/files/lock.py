"""Locks on open files, which the kernel drops with the process that holds them, however it ends.

A lock belongs to a file and not to its name: a caller whose file may be replaced looks whether the name still means it.
"""

import fcntl
import time

__all__ = ["lock", "lock_within", "try_lock"]

_LOOK_EVERY_S = 0.01


def lock(fd: int) -> None:
    """Lock an open file or folder. Raises BlockingIOError while it is locked through another open file."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(fd: int) -> bool:
    """As `lock`; says whether it was done."""
    try:
        lock(fd)
    except BlockingIOError:
        return False
    return True


def lock_within(fd: int, wait_s: float) -> bool:
    """As `try_lock`, and waits for it, this long at most."""
    deadline = time.monotonic() + wait_s
    while not try_lock(fd):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
