"""A shared folder in memory, for a simulated fleet. Nothing is lost here, and nothing is ever late."""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["FolderInMemory"]


@dataclass(slots=True)
class _LogInMemory:
    """A record file: its lines. Offsets count lines."""

    lines: list[bytes] = field(default_factory=list[bytes])

    @property
    def end(self) -> int:
        return len(self.lines)

    def append(self, payloads: Iterable[bytes]) -> None:
        self.lines += payloads

    def close(self) -> None:
        """Nothing is to be closed."""


class FolderInMemory:
    """`fleet.folder.disk.Disk` without a disk.

    Whatever is looked for with `has` is there: simulated tasks produce what they promise.
    """

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, bytes]] = {}
        self._logs: dict[str, _LogInMemory] = {}

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self._folders.get(folder, ()) if not name.startswith("."))

    def read(self, path: str, bytes_max: int) -> bytes:
        folder, _, name = path.rpartition("/")
        try:
            return self._folders[folder][name]
        except KeyError:
            raise _not_there(path) from None

    def has(self, pattern: str) -> bool:
        return True

    def put(self, path: str, data: bytes, *, draft: str = "", durable: bool = False) -> None:
        folder, _, name = path.rpartition("/")
        self._folder(folder)[name] = data

    def take(self, path: str) -> None:
        if self._is_there(path):
            raise FileExistsError(path)
        self.put(path, b"")

    def move(self, source: str, target: str) -> None:
        folder, _, name = source.rpartition("/")
        try:
            data = self._folders[folder].pop(name)
        except KeyError:
            raise _not_there(source) from None
        self.put(target, data)

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._folders.get(folder, {}).pop(name, None)

    def make_folder(self, path: str) -> None:
        self._folder(path)

    def create_log(self, path: str) -> _LogInMemory:
        self.take(path)
        return self._logs.setdefault(path, _LogInMemory())

    def reopen_log(self, path: str, end: int) -> _LogInMemory:
        return self._logs[path]

    def sync(self, path: str) -> None:
        """Everything is stable."""

    def lines(self, path: str, offset: int, until: int | None = None) -> tuple[list[bytes], int]:
        log = self._logs.get(path)
        if log is None:
            return [], offset
        found = log.lines[offset:until]
        return found, offset + len(found)

    def _folder(self, path: str) -> dict[str, bytes]:
        """A folder, made with its parents where it is not there: a parent lists it."""
        found = self._folders.get(path)
        if found is None:
            found = self._folders[path] = {}
            above, _, name = path.rpartition("/")
            if name:
                self._folder(above)[name] = b""
        return found

    def _is_there(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._folders.get(folder, ())


def _not_there(path: str) -> FileNotFoundError:
    """As a real disk says it: with a number that tells what went wrong."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
