"""The journal: every decision with its reason, for people (Markdown) and for scripts (JSON lines).

`write` never waits: a line goes into a bounded buffer, and one thread writes it to the disk and syncs each second. An
emergency eviction must not hang because a disk does. While the disk refuses (full, read-only, broken) lines wait in the
buffer and are tried again; beyond its bound the oldest are dropped and counted. After a failed sync the descriptor is
never synced again: it is closed and the file is opened again.

Nothing a client or a model wrote can break a line or forge one: control characters are spelled out, and in the
Markdown file everything that could end a cell, open a link or start a tag is escaped.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from watchbill.catalog import JournalRules
from watchbill.core.messages import Note
from watchbill.errors import LaneFull
from watchbill.files.atomic import write_all
from watchbill.files.rotate import rotate
from watchbill.files.torn import mend_end
from watchbill.limits import (
    JOURNAL_BUFFER_LINES_MAX,
    JOURNAL_CLOSE_MS,
    JOURNAL_FILE_BYTES_MAX,
    JOURNAL_FILES_KEPT,
    JOURNAL_SUBSCRIBERS_MAX,
    JOURNAL_SYNC_MS,
    JOURNAL_TEXT_CHARS_MAX,
)
from watchbill.listeners import Listener
from watchbill.units import format_bytes, format_millis

__all__ = ["Journal", "json_line", "markdown_line"]

Line = dict[str, object]
Warn = Callable[[str], None]

MARKDOWN_HEAD = (
    b"# Watchbill journal\n\n"
    b"| time | event | model | device | reason | took | size | request |\n"
    b"|---|---|---|---|---|---|---|---|\n"
)
#: Characters with a meaning inside a Markdown table cell. Emphasis is left alone: it hides nothing.
_MEANINGFUL = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "`": "\\`", "[": "\\[", "]": "\\]", "<": "&lt;", ">": "&gt;"}
)
_LOG = logging.getLogger("watchbill.journal")


class Journal:
    """The two files and their listeners. Call `write`, `listen` and `close` on the event loop's thread."""

    def __init__(
        self,
        root: Path,
        rules: JournalRules,
        *,
        clock: Callable[[], float] = time.time,
        warn: Warn = _LOG.warning,
        file_bytes_max: int = JOURNAL_FILE_BYTES_MAX,
        sync_ms: int = JOURNAL_SYNC_MS,
    ) -> None:
        self._clock = clock
        self._sync_s = sync_ms / 1000
        self._wake = threading.Condition()  # guards the waiting lines of both files
        file = partial(_File, bytes_max=file_bytes_max, warn=warn, lock=self._wake)
        self._files = (
            file(root / rules.markdown, markdown_line, MARKDOWN_HEAD, b"| "),
            file(root / rules.events, json_line, b"", b'{"t":'),
        )
        self._listeners: list[Listener] = []
        #: Listeners that were dropped because they did not keep up.
        self.listeners_dropped = 0
        self._closing = False
        self._syncing = False  # a caller waits in flush
        self._thread = threading.Thread(target=self._carry, name="watchbill-journal", daemon=True)
        self._thread.start()

    def write(self, note: Note) -> None:
        """Takes one line. Never waits, never raises."""
        line = _line_of(note, self._clock())
        with self._wake:
            for file in self._files:
                file.take(line)
            self._wake.notify()
        for listener in [listener for listener in self._listeners if not listener.take(line)]:
            self._listeners.remove(listener)
            self.listeners_dropped += not listener.is_closed

    def listen(self) -> Listener:
        """Every line from now on, as an async iterator. It ends when its listener does not keep up."""
        self._listeners = [listener for listener in self._listeners if not listener.is_closed]
        if len(self._listeners) >= JOURNAL_SUBSCRIBERS_MAX:
            raise LaneFull(
                f"{JOURNAL_SUBSCRIBERS_MAX} listeners follow the journal already; close one of them"
            )
        self._listeners.append(Listener())
        return self._listeners[-1]

    @property
    def lines_dropped(self) -> int:
        """Lines that were lost because the disk refused for too long; the worse of the two files."""
        return max(file.lines_dropped for file in self._files)

    @property
    def failures(self) -> int:
        """How often the disk refused."""
        return sum(file.failures for file in self._files)

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything written so far is on the disk. Blocks: for tests and for the shutdown."""
        with self._wake:
            self._syncing = True
            self._wake.notify_all()
            return self._wake.wait_for(lambda: not any(file.is_behind for file in self._files), timeout_s)

    def close(self) -> None:
        """Writes the last lines to the disk, for at most JOURNAL_CLOSE_MS, and ends all listeners."""
        for listener in self._listeners:
            listener.close()
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(JOURNAL_CLOSE_MS / 1000)

    # -------------------------------------------------------------- the thread

    def _carry(self) -> None:
        """Writes lines as they come and syncs once per period; a refused line is tried again in the next one."""
        next_sync = time.monotonic() + self._sync_s
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work, max(0.0, next_sync - time.monotonic()))
                closing, syncing = self._closing, self._syncing
            due = closing or syncing or time.monotonic() >= next_sync
            for file in self._files:
                file.write_down(retry=due)
                if due:
                    file.sync()
            if due:
                next_sync = time.monotonic() + self._sync_s
                with self._wake:
                    self._syncing = False
                    self._wake.notify_all()
            if closing:
                for file in self._files:
                    file.close()
                return

    def _has_work(self) -> bool:
        return self._closing or self._syncing or any(file.is_ready for file in self._files)


class _File:
    """One growing file. `take` is called under the journal's lock, the rest by its thread alone."""

    def __init__(
        self,
        path: Path,
        render: Callable[[Line], bytes],
        head: bytes,
        begins: bytes,
        *,
        bytes_max: int,
        warn: Warn,
        lock: threading.Condition,
    ) -> None:
        self._path, self._render, self._head, self._bytes_max = path, render, head, bytes_max
        self._begins = begins  # each line
        self._warn, self._lock = warn, lock
        self._waiting: deque[Line] = deque()
        self._fd: int | None = None
        self._size = 0
        self._unsynced = False
        self._refusing = False
        self.lines_dropped = 0
        self.failures = 0

    @property
    def is_behind(self) -> bool:
        """Whether something is not on the disk yet."""
        return bool(self._waiting) or self._unsynced

    @property
    def is_ready(self) -> bool:
        """Whether writing now makes sense: a disk that refuses is tried again once per period only."""
        return bool(self._waiting) and not self._refusing

    def take(self, line: Line) -> None:
        if len(self._waiting) >= JOURNAL_BUFFER_LINES_MAX:
            self._waiting.popleft()
            self.lines_dropped += 1
        self._waiting.append(line)

    def write_down(self, *, retry: bool) -> None:
        """Writes the waiting lines. On a refusal the rest stays, and one warning is given per series of refusals."""
        if not self._waiting or (self._refusing and not retry):
            return
        try:
            while self._waiting:
                line = self._waiting[0]
                self._append(self._render(line))
                self._drop(line)
            self._refusing = False
        except OSError as refusal:  # every errno means the same here: keep the lines, try again later
            self._refuse(refusal)

    def _drop(self, line: Line) -> None:
        with self._lock:  # `take` may have dropped this very line meanwhile, to make room
            if self._waiting and self._waiting[0] is line:
                self._waiting.popleft()

    def sync(self) -> None:
        if self._fd is None or not self._unsynced:
            return
        try:
            os.fdatasync(self._fd)
            self._unsynced = False
        except OSError as refusal:
            # The kernel may have dropped the pages and would report success the next time: close the descriptor. Lines
            # since the last sync may be lost; that is what the journal promises.
            self._unsynced = False
            self._refuse(refusal)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        if self._size >= self._bytes_max:
            self._rotate()
        fd = self._open() if self._fd is None else self._fd
        try:
            write_all(fd, data)
        except OSError:
            os.ftruncate(fd, self._size)  # a full disk may have cut the line: the next try must be whole
            raise
        self._size += len(data)
        self._unsynced = True

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = mend_end(fd, self._begins)
        if not self._size and self._head:
            self._append(self._head)
        return fd

    def _rotate(self) -> None:
        self.sync()
        self.close()
        rotate(str(self._path), JOURNAL_FILES_KEPT + 1)
        self._size = 0

    def _refuse(self, refusal: OSError) -> None:
        self.failures += 1
        self.close()
        if not self._refusing:
            self._refusing = True
            self._warn(f"journal {self._path}: {refusal.strerror}; lines are kept and tried again")


# ------------------------------------------------------------------ lines


def json_line(line: Line) -> bytes:
    """One line of `events.jsonl`. Pure ASCII: no reader splits it at an unusual line separator."""
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def markdown_line(line: Line) -> bytes:
    """One row of `queue_log.md`."""
    ms, size = line["ms"], line["bytes"]
    cells = [_cell(line[key]) for key in ("t", "event", "model", "device", "reason")]
    cells += [
        format_millis(ms) if isinstance(ms, int) else "",
        format_bytes(size) if isinstance(size, int) else "",
    ]
    return f"| {' | '.join([*cells, _cell(line['request'])])} |\n".encode()


def _line_of(note: Note, now: float) -> Line:
    stamp = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    reason = str(note.reason) if note.alert is None else f"{note.alert}: {note.reason}"
    line: Line = {
        "t": stamp, "event": _short(note.event), "model": _short(note.model), "device": _short(note.device),
        "reason": _short(reason), "ms": note.ms, "bytes": note.bytes, "request": _short(note.request),
    }  # fmt: skip
    return line if note.alert is None else {**line, "alert": note.alert}


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= JOURNAL_TEXT_CHARS_MAX:
        return text
    return text[: JOURNAL_TEXT_CHARS_MAX - 1] + "…"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if not text.isprintable():  # line breaks of every kind, terminal sequences, letters that change direction
        text = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return text.translate(_MEANINGFUL)
