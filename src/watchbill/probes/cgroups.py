"""Control groups: the memory limits that apply to us, of all ancestors, in both versions.

A process may use no more than the tightest of its ancestors leaves. A container's limit is often two or three levels
above the process, and reading only the own group misses it. A level without a limit costs one read.

    version 1   memory.limit_in_bytes - memory.usage_in_bytes + reclaimable
    version 2   min(memory.max, memory.high) - memory.current + reclaimable

Reclaimable is file cache that the kernel drops before it kills a process: all of the inactive list and half of the
active one. /dev/shm is not in those lists, and must not be: nothing can reclaim it.
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from watchbill.probes.kernel_files import number_in, read_small, table_of
from watchbill.units import Bytes

__all__ = ["Headroom", "MemoryGroups"]

#: Version 1 writes "no limit" as the largest page-aligned number; anything near it means the same.
V1_UNLIMITED = 2**62
_OCTAL = re.compile(r"\\([0-7]{3})")  # mountinfo writes a blank in a path as \040


@dataclass(frozen=True, slots=True)
class Headroom:
    """The memory that the tightest ancestor leaves."""

    limit: Bytes
    available: Bytes
    folder: str


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: str
    folder: str


class MemoryGroups:
    """The memory groups of this process, own group first. `root` is the root of the machine's file tree."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._base = str(root).rstrip("/")
        self._membership: bytes | None = None
        self._version = 0
        self._levels: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        """1 or 2; 0 where there is no memory controller."""
        self._refresh()
        return self._version

    def levels(self) -> tuple[str, ...]:
        """The folders of the own group and of all its visible ancestors."""
        self._refresh()
        return self._levels

    def limited(self) -> list[tuple[str, Bytes]]:
        """The levels that have a limit, each with its limit."""
        limits = ((folder, self._limit(folder)) for folder in self.levels())
        return [(folder, limit) for folder, limit in limits if limit is not None]

    def headroom(self) -> Headroom | None:
        """The tightest level; None when no ancestor limits us."""
        rooms = [self._room(folder, limit) for folder, limit in self.limited()]
        if not rooms:
            return None
        tightest = min(rooms, key=lambda room: room.available)
        # The capacity is the smallest limit, which need not be that of the fullest level.
        return Headroom(min(room.limit for room in rooms), tightest.available, tightest.folder)

    def _room(self, folder: str, limit: Bytes) -> Headroom:
        one = self._version == 1
        used = number_in(f"{folder}/memory.usage_in_bytes" if one else f"{folder}/memory.current") or 0
        stat = table_of(read_small(f"{folder}/memory.stat") or b"")
        prefix = b"total_" if one else b""  # version 1 separates children; version 2 always includes them
        inactive, active = stat.get(prefix + b"inactive_file", 0), stat.get(prefix + b"active_file", 0)
        return Headroom(limit, Bytes(max(0, limit - used + inactive + active // 2)), folder)

    def _limit(self, folder: str) -> Bytes | None:
        if self._version == 1:
            limit = number_in(f"{folder}/memory.limit_in_bytes")
            return None if limit is None or limit >= V1_UNLIMITED else Bytes(limit)
        bounds = (number_in(f"{folder}/memory.max"), number_in(f"{folder}/memory.high"))
        known = [bound for bound in bounds if bound is not None]
        return Bytes(min(known)) if known else None

    def _refresh(self) -> None:
        """Finds the levels again after we were moved to another group."""
        membership = read_small(f"{self._base}/proc/self/cgroup") or b""
        if membership != self._membership:
            self._membership = membership
            self._version, self._levels = self._find(membership.decode(errors="replace"))

    def _find(self, membership: str) -> tuple[int, tuple[str, ...]]:
        mounts = self._mounts()
        entries = [line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2]
        for _, controllers, path in entries:  # on a mixed machine version 1 owns the memory controller
            if "memory" in controllers.split(",") and 1 in mounts:
                return 1, _levels_of(mounts[1], path)
        for number, controllers, path in entries:
            if number == "0" and not controllers and 2 in mounts:
                return 2, _levels_of(mounts[2], path)
        return 0, ()

    def _mounts(self) -> dict[int, _Mount]:
        """Version -> where its memory controller is mounted."""
        found: dict[int, _Mount] = {}
        for line in (
            (read_small(f"{self._base}/proc/self/mountinfo") or b"").decode(errors="replace").splitlines()
        ):
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
                continue
            version = 2 if kind[0] == "cgroup2" else 1
            if version == 2 or "memory" in kind[2].split(","):
                found.setdefault(version, _Mount(version, _plain(fields[3]), self._base + _plain(fields[4])))
        return found


def _plain(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _levels_of(mount: _Mount, path: str) -> tuple[str, ...]:
    """The folders from our group up to the mount point."""
    group, root = PurePosixPath(path), PurePosixPath(mount.root)
    # In a container the mount shows only our part of the tree: its root is our group or an ancestor. A path
    # that leads out of it ("/../..") means that we were moved out of our namespace: we see only the mount.
    if group.is_relative_to(root):
        group = PurePosixPath("/") / group.relative_to(root)
    elif root != PurePosixPath("/"):
        group = PurePosixPath("/")
    if ".." in group.parts:
        group = PurePosixPath("/")
    return tuple((mount.folder + str(level)).rstrip("/") for level in (group, *group.parents))
