"""Logs: files that only their owner can read and that never exceed their bound.

An engine's log is written by its guard, so that the engine neither waits for the daemon nor dies with it. The guard
starts a new file when one is full. Each start is marked by a line of its own. `read_tail` returns the lines since that
mark, for the error of a failed load. A daemon in the background rotates its own log.
"""

import asyncio
import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from watchbill.files.atomic import PRIVATE_MODE, writing
from watchbill.names import file_stem
from watchbill.processes.guard import open_private, rotate_log, rotate_privately
from watchbill.processes.limits import (
    LOG_FILE_BYTES_MAX,
    LOG_FILES_MAX,
    LOG_LINE_CHARS_MAX,
    LOG_TAIL_BYTES_MAX,
)

__all__ = ["Log", "Seen", "cut_own_log", "engine_log", "open_log", "read_growth", "watch_own_log"]

_OWN_LOG_LOOK_S = 5


@dataclass(frozen=True, slots=True)
class Log:
    """One engine's log, and the position of the current start in it."""

    path: Path
    begin: int
    inode: int = 0  # of the file in which it begins

    def read_tail(self, lines_max: int) -> list[str]:
        """The last lines of the current start. Bounded; a missing log has none."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                is_same = os.fstat(file.fileno()).st_ino == self.inode and size >= self.begin
                begin = self.begin if is_same else 0  # rotated since
                file.seek(max(begin, size - LOG_TAIL_BYTES_MAX))
                text = file.read(LOG_TAIL_BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        lines = [line.rstrip()[:LOG_LINE_CHARS_MAX] for line in text.splitlines()]
        return [line for line in lines if line][-lines_max:]


class Seen(NamedTuple):
    """A file, and how far it was read."""

    inode: int
    place: int


def read_growth(path: Path, seen: Seen, bytes_max: int) -> tuple[bytes, Seen]:
    """What was added to a log, and how far it is read now.

    A log that was cut or replaced is read from its beginning. Blocks.
    """
    try:
        with path.open("rb") as file:
            now = os.fstat(file.fileno())
            is_same = now.st_ino == seen.inode and now.st_size >= seen.place
            file.seek(seen.place if is_same else 0)
            content = file.read(bytes_max)
            return content, Seen(now.st_ino, file.tell())
    except FileNotFoundError:  # not begun yet, or between the old log's move and the new one's first line
        return b"", seen


def engine_log(root: Path, model: str) -> Path:
    """The log file of a model's engine. A model called "daemon" does not write into the daemon's log."""
    stem = file_stem(model)
    return root / "logs" / (f"{stem}.engine.log" if stem == "daemon" else f"{stem}.log")


async def watch_own_log(path: Path) -> None:
    """Keeps our own log within its bound while we run."""
    while True:
        await asyncio.to_thread(cut_own_log, path)
        await asyncio.sleep(_OWN_LOG_LOOK_S)


def cut_own_log(path: Path, bytes_max: int = LOG_FILE_BYTES_MAX) -> None:
    """Rotates our own log when it is too large, if our standard output goes there: in the background. Blocks."""
    with contextlib.suppress(
        OSError
    ):  # no log, no output, no permission: there is no place to report it, and logs are best effort
        ours = os.fstat(1)
        if ours.st_size > bytes_max and os.path.samestat(ours, path.stat()):
            rotate_log(str(path), LOG_FILES_MAX)
            _keep_end(Path(f"{path}.1"), bytes_max)


def _keep_end(path: Path, bytes_max: int) -> None:
    """Truncates a file that is no longer written to its bound: it grew between two checks."""
    with path.open("rb") as source:
        if source.seek(0, os.SEEK_END) <= bytes_max:
            return
        source.seek(-bytes_max, os.SEEK_END)
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        with writing(draft, sync=False, mode=PRIVATE_MODE) as target:
            shutil.copyfileobj(source, target)
    draft.replace(path)


def open_log(path: Path, heading: str, bytes_max: int = LOG_FILE_BYTES_MAX) -> tuple[int, Log]:
    """Opens a log for appending, rotated when it is full; returns the descriptor and the log."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size >= bytes_max:
        rotate_privately(str(path), LOG_FILES_MAX)
    descriptor = open_private(str(path))
    os.write(descriptor, f"--- {heading}\n".encode())
    found = os.fstat(descriptor)
    return descriptor, Log(path, found.st_size, found.st_ino)
