"""Capture: finished requests become events in a spool, off the path of their answers.

`capture` puts an event into a bounded buffer and returns; a thread per spool commits what has gathered. A disk that is
slow, full or broken fills the buffer, never an answer's time: what no longer fits is dropped, counted, and alerted when
it begins. An event is safe when the thread has committed it; what is still in the buffer when the process is killed is
lost, which is the price of not waiting.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

from watchbill.catalog import SpoolRules
from watchbill.core.messages import Alert
from watchbill.errors import WatchbillError
from watchbill.limits import (
    CAPTURE_AGAIN_MS,
    CAPTURE_AGAIN_MS_MAX,
    CAPTURE_BATCH_MAX,
    CAPTURE_CHARS_MAX,
    CAPTURE_EVENTS_MAX,
    CAPTURE_STOP_MS,
)
from watchbill.runtime.spools import open_spool
from watchbill.spool import EventRefused, Spool

__all__ = ["Capture", "Captured", "SpoolCapture"]

_LOG = logging.getLogger("watchbill.capture")
Tell = Callable[[Alert], object]


@dataclass(frozen=True, slots=True)
class Captured:
    """One finished request, as it goes into the corpus (SPOOL-13)."""

    id: str
    ts: float  # seconds since 1970
    lane: str
    model: str
    tier: str  # local, burst, external
    prompt: object  # the messages, or the text
    answer: object
    outcome: str  # ok, or the error's code
    kind: str = "request"

    def as_event(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("id", "kind", *self.__slots__)}


class Capture(Protocol):
    """Takes finished requests."""

    def capture(self, spool: str, event: Captured) -> bool:
        """Takes an event for the spool of this name, at once. False when it had to be dropped."""
        ...


class SpoolCapture:
    """Captures into the spools of the config. `capture` may be called from any thread; `close` blocks."""

    def __init__(self, root: Path, spools: Mapping[str, SpoolRules], tell: Tell) -> None:
        self._root, self._tell = root, tell
        self._lock = threading.Lock()
        self._spools = dict(spools)
        self._writers: dict[str, _Writer] = {}

    def capture(self, spool: str, event: Captured) -> bool:
        """Takes an event for the spool of this name, at once. False when it had to be dropped."""
        writer = self._writers.get(spool) or self._begin(spool)
        return writer is not None and writer.take(event)

    def reconfigure(self, spools: Mapping[str, SpoolRules]) -> None:
        """Captures into these spools from now on; what waits for another one is written first. Blocks."""
        with self._lock:
            gone = [name for name, rules in self._spools.items() if spools.get(name) != rules]
            self._spools = dict(spools)
            ended = [self._writers.pop(name) for name in gone if name in self._writers]
        _close_all(ended)

    def close(self) -> None:
        """Writes what waits, for a bounded time."""
        with self._lock:
            ended, self._writers = list(self._writers.values()), {}
            self._spools = {}
        _close_all(ended)

    def view(self) -> dict[str, dict[str, int]]:
        """How many events of each spool were stored, wait, and were dropped."""
        return {name: writer.view() for name, writer in list(self._writers.items())}

    def _begin(self, spool: str) -> "_Writer | None":
        with self._lock:
            if spool not in self._spools:
                return None
            if spool not in self._writers:
                self._writers[spool] = _Writer(self._spools[spool], self._root, self._tell)
            return self._writers[spool]


def _close_all(writers: "list[_Writer]") -> None:
    for writer in writers:
        writer.ask_to_end()
    deadline = time.monotonic() + CAPTURE_STOP_MS / 1000
    for writer in writers:
        writer.join(deadline)


class _Writer:
    """The buffer and the thread of one spool."""

    def __init__(self, rules: SpoolRules, root: Path, tell: Tell) -> None:
        self._rules, self._root, self._tell = rules, root, tell
        self._waiting: deque[tuple[Captured, int]] = deque()
        self._chars = 0
        self._news = threading.Condition()
        self._ending = threading.Event()
        self._stored = self._dropped = 0
        self._is_dropping = False  # told once, until the buffer has room again
        self._thread = threading.Thread(target=self._run, name=f"capture-{rules.name}", daemon=True)
        self._thread.start()

    def take(self, event: Captured) -> bool:
        chars = _weight(event.prompt) + _weight(event.answer)
        with self._news:
            fits = len(self._waiting) < CAPTURE_EVENTS_MAX and self._chars + chars <= CAPTURE_CHARS_MAX
            if not fits or self._ending.is_set():
                self._drop(1, f"{len(self._waiting)} wait for the disk already")
                return False
            self._waiting.append((event, chars))
            self._chars += chars
            self._news.notify()
        return True

    def ask_to_end(self) -> None:
        with self._news:
            self._ending.set()
            self._news.notify()

    def join(self, deadline_s: float) -> None:
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            _LOG.warning(
                "spool=%s %d captured events did not reach the disk", self._rules.name, len(self._waiting)
            )

    def view(self) -> dict[str, int]:
        return {"stored": self._stored, "waiting": len(self._waiting), "dropped": self._dropped}

    def _drop(self, count: int, why: str) -> None:
        self._dropped += count
        if not self._is_dropping:
            self._is_dropping = True
            text = f"spool {self._rules.name}: captured requests are dropped: {why}"
            self._tell(Alert("capture", text))

    def _run(self) -> None:
        spool: Spool | None = None
        pause_ms = CAPTURE_AGAIN_MS
        while batch := self._next_batch():
            try:
                spool = spool or open_spool(self._rules, self._root, signed=True)
                self._store(spool, batch)
                pause_ms = CAPTURE_AGAIN_MS
            except (WatchbillError, OSError) as error:  # the disk, a key: what waits is kept and tried again
                _LOG.warning("spool=%s captured events wait: %s", self._rules.name, error)
                if self._ending.wait(pause_ms / 1000):
                    break  # it must not hold up the shutdown
                pause_ms = min(pause_ms * 2, CAPTURE_AGAIN_MS_MAX)
        if spool is not None:
            spool.close()

    def _next_batch(self) -> list[Captured]:
        """What has gathered, oldest first; it stays in the buffer until it is stored. Empty at the end."""
        with self._news:
            while not self._waiting and not self._ending.is_set():
                self._news.wait()
            return [event for event, _ in islice(self._waiting, CAPTURE_BATCH_MAX)]

    def _store(self, spool: Spool, batch: list[Captured]) -> None:
        try:
            spool.enqueue_many([event.as_event() for event in batch])
            self._forget(len(batch), stored=True)
        except EventRefused:
            for event in batch:  # one of them can never be stored; the others can
                try:
                    spool.enqueue(event.as_event())
                    self._forget(1, stored=True)
                except EventRefused as error:
                    self._forget(1, stored=False, why=f"{event.id}: {error}")

    def _forget(self, count: int, *, stored: bool, why: str = "") -> None:
        with self._news:
            for _ in range(count):
                _, chars = self._waiting.popleft()
                self._chars -= chars
            if stored:
                self._stored += count
                if len(self._waiting) < CAPTURE_EVENTS_MAX // 2:
                    self._is_dropping = False
            else:
                self._drop(count, why)


def _weight(value: object) -> int:
    """About how much text a value holds. Walks messages, not their letters: a megabyte costs no more than a word."""
    total, rest = 0, [value]
    while rest:
        each = rest.pop()
        total += len(each) + 16 if isinstance(each, str | bytes) else 16
        if isinstance(each, Mapping):
            rest.extend(cast("Mapping[str, object]", each).values())
        elif isinstance(each, list | tuple):
            rest.extend(cast("list[object]", each))
    return total
