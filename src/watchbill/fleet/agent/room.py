"""Room: whether the disks of an agent take anything more, once one of its tasks has ended because a disk was full.

A full disk fails whatever runs there, and uses up the attempts of one task after the other. So after such an end the
agent writes a little to each disk that tasks use, and claims nothing until all of them take it. A disk that only the
task knows is not looked at: the task comes again after a while.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from watchbill.files.disk import DISK_FULL, fault_of
from watchbill.fleet.folder.agent_report import HeldWhy, OnHold
from watchbill.fleet.logs import Part

__all__ = ["Room"]

_LOG = Part.AGENT.logger


class Room:
    """The disks of one agent. `look` belongs to the file thread."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: the shared one and the private one; that of temporary files is added."""
        self._folders = (*folders, _scratch())
        self._full: Path | None = None
        self.is_suspect = False  # a task said so, and nothing was tried since

    @property
    def is_short(self) -> bool:
        """Whether the agent claims nothing for lack of room."""
        return self._full is not None

    @property
    def is_due(self) -> bool:
        """Whether it is worth a look."""
        return self.is_suspect or self.is_short

    def shown(self) -> OnHold | None:
        """The lack of room in the heartbeat."""
        return None if self._full is None else OnHold(HeldWhy.DISK_FULL, folder=str(self._full))

    def look(self) -> bool:
        """Try the disks; whether the answer has changed."""
        self.is_suspect, before = False, self._full
        self._full = next((each for each in self._folders if _is_full(each)), None)
        if self._full is not None and before is None:
            _LOG.error("the disk of %s is full: claiming nothing until there is room", self._full)
        elif self._full is None and before is not None:
            _LOG.info("the disk of %s has room again: it goes on", before)
        return (self._full is None) is not (before is None)


def _scratch() -> Path:
    """The folder of temporary files, as tasks see it. Not `tempfile.gettempdir`: that skips a disk that is full."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def _is_full(folder: Path) -> bool:
    fault = fault_of(folder)
    return fault is not None and fault.errno in DISK_FULL
