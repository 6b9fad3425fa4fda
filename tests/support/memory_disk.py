"""A disk in memory for the fleet: what was synced and what was only seen, replies that are lost, power cuts.

The state of a disk is a value (`State`), so that many of them can be kept and compared.
Every operation of `fleet.folder.disk.Disk` is one step here, except an append, which is two: written, then synced.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from watchbill.files.checked_log import checked_line, whole_lines


class Cut(Enum):
    """What a power cut leaves of names that were never synced."""

    NOTHING = "nothing"
    WHERE_THEY_WERE = "where they were"  # the name, and an empty file
    WHERE_THEY_BEGAN = "where they began"  # the same, and every rename is lost


@dataclass(frozen=True, slots=True)
class File:
    """A file: what everybody sees, what is on stable storage, and under which name."""

    seen: bytes
    synced: bytes = b""
    stable: str = ""  # its name on stable storage; "" where it has none
    origin: str = ""  # its first name


@dataclass(frozen=True, slots=True)
class State:
    """All files. Equal states are equal disks."""

    files: frozenset[tuple[str, File]] = frozenset()
    removed: frozenset[File] = frozenset()  # names whose removal was not synced

    def after(self, cut: Cut) -> "State":
        """The disk after a power cut."""
        files: dict[str, File] = {}
        for path, file in self.files:
            unsynced = {Cut.NOTHING: "", Cut.WHERE_THEY_WERE: path, Cut.WHERE_THEY_BEGAN: file.origin}[cut]
            where = path if cut is Cut.WHERE_THEY_WERE else file.stable or unsynced
            if where:
                files[where] = File(file.synced, file.synced, where, where)
        if cut is not Cut.WHERE_THEY_WERE:
            for file in self.removed:
                files.setdefault(file.stable, File(file.synced, file.synced, file.stable, file.stable))
        return State(frozenset(files.items()))

    def names(self, folder: str) -> list[str]:
        """The names in a folder, files and folders alike."""
        start = f"{folder}/"
        return sorted({path[len(start) :].split("/")[0] for path, _ in self.files if path.startswith(start)})

    def read(self, path: str) -> bytes:
        """What is seen of a file."""
        return next(file.seen for each, file in self.files if each == path)


class MemoryDisk:
    """A disk whose operations are carried out at once."""

    def __init__(self, state: State = State()) -> None:  # noqa: B008 - a frozen value
        self._files = dict(state.files)
        self._removed = set(state.removed)

    @property
    def state(self) -> State:
        return State(frozenset(self._files.items()), frozenset(self._removed))

    def perform(self, kind: str, *arguments: Any) -> Any:
        """Carry out one step by its name."""
        return getattr(self, f"_{kind}")(*arguments)

    def _names(self, folder: str) -> list[str]:
        start = f"{folder}/"
        found = {path[len(start) :].split("/")[0] for path in self._files if path.startswith(start)}
        return sorted(name for name in found if not name.startswith("."))

    def _read(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path].seen

    def _put(self, path: str, data: bytes, durable: bool) -> None:
        self._files[path] = File(data, data, path, path) if durable else File(data, origin=path)

    def _take(self, path: str) -> None:
        if path in self._files:
            raise FileExistsError(path)
        self._files[path] = File(b"", b"", path, path)

    def _move(self, source: str, target: str) -> None:
        if source not in self._files:
            raise FileNotFoundError(source)
        self._files[target] = self._files.pop(source)

    def _remove(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None and file.stable:
            self._removed.add(file)

    def _make_folder(self, path: str) -> None:
        self._files.setdefault(f"{path}/.here", File(b"", b"", f"{path}/.here", f"{path}/.here"))

    def _write(self, path: str, data: bytes) -> None:
        file = self._files[path]
        self._files[path] = replace(file, seen=file.seen + data)

    def _sync(self, path: str) -> None:
        file = self._files[path]
        self._files[path] = replace(file, synced=file.seen)

    def _lines(self, path: str, offset: int, until: int | None) -> tuple[list[bytes], int]:
        data = self._files[path].seen[offset:until] if path in self._files else b""
        payloads, size = whole_lines(data)
        return payloads, offset + size


@dataclass
class Steps:
    """The disk as one process sees it: each operation passes through `perform`, which may be told to stop there."""

    disk: MemoryDisk

    def perform(self, kind: str, *arguments: Any) -> Any:
        return self.disk.perform(kind, *arguments)

    def names(self, folder: str) -> list[str]:
        return self.perform("names", folder)

    def read(self, path: str, bytes_max: int) -> bytes:
        return self.perform("read", path)

    def has(self, pattern: str) -> bool:
        folder, _, name = pattern.rpartition("/")
        return name in self.names(folder)

    def put(self, path: str, data: bytes, *, draft: str = "", durable: bool = False) -> None:
        self.perform("put", path, data, durable)

    def take(self, path: str) -> None:
        self.perform("take", path)

    def move(self, source: str, target: str) -> None:
        self.perform("move", source, target)

    def remove(self, path: str) -> None:
        self.perform("remove", path)

    def make_folder(self, path: str) -> None:
        self.perform("make_folder", path)

    def sync(self, path: str) -> None:
        self.perform("sync", path)

    def lines(self, path: str, offset: int, until: int | None = None) -> tuple[list[bytes], int]:
        return self.perform("lines", path, offset, until)

    def create_log(self, path: str) -> "MemoryLog":
        self.perform("take", path)
        return MemoryLog(self, path)

    def reopen_log(self, path: str, end: int) -> "MemoryLog":
        return MemoryLog(self, path, end)


@dataclass
class MemoryLog:
    """A record file in memory."""

    steps: Steps
    path: str
    end: int = 0

    def append(self, payloads: Iterable[bytes]) -> None:
        data = b"".join(map(checked_line, payloads))
        self.steps.perform("write", self.path, data)
        self.steps.perform("sync", self.path)
        self.end += len(data)

    def close(self) -> None:
        """Nothing is open."""
