"""Files below a folder that others may write to, reached step by step: no link on the way is ever followed.

A path through a folder that others can change may lead anywhere in the next moment. Here each part of a path is
opened relative to the one before it and must be a real folder, so that nothing outside of the root is read or written,
whatever is changed meanwhile. Paths are relative, with "/" between their parts.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from watchbill.files.atomic import make_subfolder, open_folder, open_regular

__all__ = ["Beneath", "Entry", "parts_of"]


class Entry(NamedTuple):
    """What lies below a folder: a file or a folder. Everything else is left out."""

    path: str
    is_folder: bool
    size: int
    changed_ns: int
    is_executable: bool


def parts_of(path: str) -> list[str]:
    """The parts of a relative path. Raises PermissionError for one that is not, or that leads out."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise PermissionError(errno.EACCES, "not a path below the folder", path)
    return parts


class Beneath:
    """The files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def folder(self, path: str, *, make: bool = False) -> Generator[int]:
        """Hold a folder open; "" is the root. With `make` it and its parents are made."""
        with contextlib.ExitStack() as held:
            fd = held.enter_context(open_folder(self.root))
            for part in parts_of(path) if path else ():
                if make:
                    make_subfolder(part, dir_fd=fd)
                fd = held.enter_context(open_folder(part, own=True, dir_fd=fd))
            yield fd

    def parent(self, path: str, *, make: bool = False) -> "contextlib.AbstractContextManager[int]":
        """Hold the folder open in which a path lies."""
        parts_of(path)
        return self.folder(path.rpartition("/")[0], make=make)

    def open(self, path: str) -> int:
        """Open a regular file to read it. Raises NotAFile for anything else."""
        with self.parent(path) as folder:
            return open_regular(path.rpartition("/")[2], dir_fd=folder)

    def status(self, path: str) -> os.stat_result | None:
        """What is there, links not followed; None where there is nothing."""
        try:
            with self.parent(path) as folder:
                return os.stat(path.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.parent(path) as folder:
            os.unlink(path.rpartition("/")[2], dir_fd=folder)

    def walk(self, path: str, *, without: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """Everything below a folder, parents before children; `without` names folders that are not looked into."""
        try:
            with self.folder(path) as folder, os.scandir(folder) as entries:
                found = sorted(entries, key=lambda each: each.name)
                looked = [_entry(f"{path}/{each.name}" if path else each.name, each) for each in found]
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in looked:
            if entry is None or entry.path in without:
                continue
            yield entry
            if entry.is_folder:
                yield from self.walk(entry.path, without=without)

    def entry(self, path: str) -> Entry | None:
        """One file or folder."""
        status = self.status(path)
        return None if status is None else _entry_of(path, status)


def _entry(path: str, found: "os.DirEntry[str]") -> Entry | None:
    try:
        return _entry_of(path, found.stat(follow_symlinks=False))
    except FileNotFoundError:  # it has gone since
        return None


def _entry_of(path: str, status: os.stat_result) -> Entry | None:
    kind = status.st_mode
    try:
        path.encode()
    except UnicodeEncodeError:  # no text, so that no message can name it
        return None
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        return None
    is_folder = stat.S_ISDIR(kind)
    return Entry(path, is_folder, 0 if is_folder else status.st_size, 0 if is_folder else status.st_mtime_ns,
                 not is_folder and bool(kind & stat.S_IXUSR))  # fmt: skip
