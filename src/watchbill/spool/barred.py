"""What this process may not touch: files and folders of a spool that their modes, or the disk, keep from it.

Users of one group share a spool, and one of them may make a file that the others cannot read or move. Such a file must
not stop the rest, and must not be passed over in silence: whoever meets one notes it here, and `drain --once` and the
daemon say what stands here.
"""

import os
from pathlib import Path

from watchbill.spool.limits import BARRED_MAX

__all__ = ["Barred"]


class Barred:
    """Paths and why each cannot be used. Any thread may note; the oldest note is forgotten first."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def note(self, path: str | Path, error: OSError) -> None:
        self._why[os.fspath(path)] = error.strerror or str(error)
        while len(self._why) > BARRED_MAX:
            self._why.pop(next(iter(list(self._why))), None)

    def forget(self, path: str | Path) -> None:
        """It can be used after all."""
        self._why.pop(os.fspath(path), None)

    def standing(self) -> dict[str, str]:
        """Return what is still there, with the reason."""
        for path in list(self._why):
            try:
                os.lstat(path)
            except FileNotFoundError:
                self._why.pop(path, None)  # somebody who may has moved it
            except OSError:
                continue  # not even to be looked at
        return dict(self._why)
