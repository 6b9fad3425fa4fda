"""Room: whether the shared folder takes anything more, as a look from here tells. Standard library only.

A full or read-only folder stops coordinator and agents without ending them: they claim nothing, and go on by themselves
when there is room. Their heartbeats then stand still, which looks like a hang to a command that does not look here
first.
"""

import os
from enum import Enum
from pathlib import Path

from watchbill.fleet import limits

__all__ = ["Shortage", "shortage_of"]


class Shortage(Enum):
    """Why a folder takes no more files."""

    FULL = "is full"
    FILES = "has no room for one more file: its inodes are used up"
    READ_ONLY = "is read-only"


def shortage_of(root: Path) -> Shortage | None:
    """What keeps the folder from taking a file; None where nothing is seen from here."""
    try:
        found = os.statvfs(root)
    except OSError:
        return None  # the next reader of the folder says why
    if found.f_flag & os.ST_RDONLY:
        return Shortage.READ_ONLY
    # A file system that counts nothing has no figures.
    if found.f_blocks and found.f_bavail * found.f_frsize < limits.ROOM_BYTES_MIN:
        return Shortage.FULL
    return Shortage.FILES if found.f_files and not found.f_favail else None
