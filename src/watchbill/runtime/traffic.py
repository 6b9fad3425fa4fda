"""Traffic: arrivals, waits and loads of the last day, on the disk, for "what would 8 GB more buy me?".

A few files of lines as `recorder.py` makes them. They grow to a bound, the oldest is deleted, and they survive
restarts: a line of the machine begins the lines of each daemon and each file. `take` never waits: one thread encodes
what waits, and writes it to the disk once a second. While the disk refuses, lines are dropped and counted: no request
waits for its own statistics.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from watchbill.files.atomic import write_all
from watchbill.files.torn import mend_end
from watchbill.runtime.limits import (
    TRACE_FLUSH_MS,
    TRAFFIC_AT_ONCE,
    TRAFFIC_CLOSE_MS,
    TRAFFIC_FILE_BYTES_MAX,
    TRAFFIC_FILES_KEPT,
    TRAFFIC_WAITING_MAX,
)

__all__ = ["Traffic", "traffic_files"]

_LOG = logging.getLogger("watchbill.traffic")
_DIGITS = 6
Line = msgspec.Struct | msgspec.Raw  # what is encoded as one line


def traffic_files(folder: Path) -> list[Path]:
    """The files in a folder of traffic, the oldest first; none where there is no such folder."""
    try:
        found = [folder / name for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []
    return [path for path in found if path.suffix == ".jsonl" and path.stem.isdecimal()]


class Traffic:
    """The files and the thread that writes them. Call `begin`, `take` and `close` on the event loop's thread."""

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes_max: int = TRAFFIC_FILE_BYTES_MAX,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._folder, self._file_bytes_max, self._warn = folder, file_bytes_max, warn
        self._wake = threading.Condition()  # guards `_closing` and `lines_dropped`
        self._lines: deque[Line] = deque()  # appended to by one thread, and taken from by the other
        self._encode = msgspec.json.Encoder().encode_lines
        self._head = b""
        self._closing = False
        self._refusing = False
        self.lines_dropped = 0
        self._thread = threading.Thread(target=self._carry, name="watchbill-traffic", daemon=True)
        self._thread.start()

    def begin(self, head: Line) -> None:
        """The line that says from when the next lines are; every new file begins with it."""
        self._head = self._encode([head])
        self._lines.append(head)

    def take(self, line: Line) -> None:
        """Takes one line. Never waits, never raises."""
        if len(self._lines) < TRAFFIC_WAITING_MAX:
            self._lines.append(line)
        else:
            self._drop(1)

    def close(self) -> None:
        """Writes the last lines, for at most TRAFFIC_CLOSE_MS."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(TRAFFIC_CLOSE_MS / 1000)

    # -------------------------------------------------------------- the thread

    def _carry(self) -> None:
        while True:
            with self._wake:
                closing = self._wake.wait_for(lambda: self._closing, TRACE_FLUSH_MS / 1000)
            self._write()
            if closing:
                return

    def _write(self) -> None:
        """Writes the lines that wait now."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        head = self._head
        if not lines:
            return
        pieces = [
            self._encode(lines[at : at + TRAFFIC_AT_ONCE]) for at in range(0, len(lines), TRAFFIC_AT_ONCE)
        ]
        try:
            self._append(b"".join(pieces), head)
            self._refusing = False
        except OSError as error:  # every errno means the same here: these lines are gone, the next are tried
            self._drop(len(lines))
            if not self._refusing:
                self._refusing = True
                self._warn(
                    f"traffic {self._folder}: {error.strerror}; nothing is kept for simulations meanwhile"
                )

    def _drop(self, lines: int) -> None:
        with self._wake:
            self.lines_dropped += lines

    def _append(self, lines: bytes, head: bytes) -> None:
        """Opens, appends and closes: once a second, so that a person may delete the folder at any time."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = traffic_files(self._folder)
        is_new = not files or files[-1].stat().st_size >= self._file_bytes_max
        path = self._next(files) if is_new else files[-1]
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            mend_end(fd, b"{")
            write_all(fd, head + lines if is_new and not lines.startswith(head) else lines)
        finally:
            os.close(fd)
        if is_new:
            for old in files[: max(0, len(files) + 1 - TRAFFIC_FILES_KEPT)]:
                old.unlink(missing_ok=True)

    def _next(self, files: list[Path]) -> Path:
        number = int(files[-1].stem) + 1 if files else 1
        return self._folder / f"{number:0{_DIGITS}}.jsonl"
