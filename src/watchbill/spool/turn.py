"""The turn of a spool: one worker at a time on the whole spool, where the order of arrival must be kept, or one move.

A lock on a file of the spool, held until it is let go. A spool that was moved has another file, and another turn.
Locks do not reach other hosts: on a shared mount one host keeps the order, the first that asked (`host_mark`).
"""

import os
from pathlib import Path

from watchbill.files.atomic import make_folder, open_shared
from watchbill.files.lock import try_lock
from watchbill.spool.faults import disk_fault
from watchbill.spool.host_mark import refuse_other_host

__all__ = ["Turn"]


class Turn:
    """The turn of one worker. Not thread-safe."""

    def __init__(self, name: str = ".ordered") -> None:
        """`name` is that of the turn's files in the spool."""
        self._name = name
        self._fd = -1

    def take(self, root: Path, *, shared: bool = False) -> bool:
        """Whether it is ours now. Raises SpoolFull or SpoolBroken."""
        path = root / f"{self._name}.lock"
        try:
            if self._fd >= 0 and _is_at(path, self._fd):
                return True
            self.let_go()  # the lock of a spool that was moved
            make_folder(path.parent)
            if shared:
                refuse_other_host(root / f"{self._name}.host", f"the order of {root}")
            fd = open_shared(path, os.O_RDWR)
        except OSError as error:
            raise disk_fault(error, "open the lock that keeps the order") from error
        if not try_lock(fd):
            os.close(fd)
            return False
        self._fd = fd
        return True

    def let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _is_at(path: Path, fd: int) -> bool:
    """Whether an open file is the one that has the name now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
