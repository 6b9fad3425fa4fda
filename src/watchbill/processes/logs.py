"""Logs: files, never pipes, so that an engine can neither block on us nor die with us.

A log is rotated before an engine starts when it is full, and cut by the guard while it runs. Each start is
marked by a line of its own; `read_tail` gives what was written since, for the error of a load that failed. A daemon
in the background cuts its own.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from watchbill.limits import LOG_FILE_BYTES_MAX, LOG_FILES_MAX, LOG_LINE_CHARS_MAX, LOG_TAIL_BYTES_MAX
from watchbill.names import file_stem
from watchbill.processes.guard import cut_log, shift_logs

__all__ = ["Log", "cut_own_log", "engine_log", "open_log", "watch_own_log"]

_OWN_LOG_LOOK_S = 5


@dataclass(frozen=True, slots=True)
class Log:
    """One engine's log, and where the present start begins in it."""

    path: Path
    begin: int

    def read_tail(self, lines_max: int) -> list[str]:
        """The last lines of the present start. Bounded; a log that is gone has none."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = self.begin if size >= self.begin else 0  # cut since
                file.seek(max(begin, size - LOG_TAIL_BYTES_MAX))
                text = file.read(LOG_TAIL_BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        lines = [line.rstrip()[:LOG_LINE_CHARS_MAX] for line in text.splitlines()]
        return [line for line in lines if line][-lines_max:]


def engine_log(root: Path, model: str) -> Path:
    """Where the engine of a model writes. A model called "daemon" does not write into the daemon's log."""
    stem = file_stem(model)
    return root / "logs" / (f"{stem}.engine.log" if stem == "daemon" else f"{stem}.log")


async def watch_own_log(path: Path) -> None:
    """Keeps our own log within its bound for as long as we run."""
    while True:
        await asyncio.to_thread(cut_own_log, path)
        await asyncio.sleep(_OWN_LOG_LOOK_S)


def cut_own_log(path: Path, bytes_max: int = LOG_FILE_BYTES_MAX) -> None:
    """Cuts our own log when it grew too large, where our standard output goes there: in the background. Blocks."""
    with contextlib.suppress(
        OSError
    ):  # no log, no output, no right to it: nobody to tell, and it is no record
        if os.path.samestat(os.fstat(1), path.stat()):
            cut_log(str(path), bytes_max, LOG_FILES_MAX)


def open_log(path: Path, heading: str, bytes_max: int = LOG_FILE_BYTES_MAX) -> tuple[int, Log]:
    """Opens a log for appending, rotated when it is full; gives the descriptor and the log."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size >= bytes_max:
        shift_logs(str(path), LOG_FILES_MAX)
        path.replace(f"{path}.1")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(descriptor, f"--- {heading}\n".encode())
    return descriptor, Log(path, os.fstat(descriptor).st_size)
