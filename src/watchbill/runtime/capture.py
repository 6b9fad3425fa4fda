"""Capture: finished requests become events in a spool, without delaying their answers.

`capture` puts an event into a bounded buffer and returns. One thread per spool commits the buffered events. A slow,
full or broken disk fills the buffer; it never delays an answer. An alert says that events wait. Events that no longer
fit are dropped and counted, and an alert is raised when that begins. Once there is room, all waiting events are stored
in their order. An event is safe when the thread has committed it. Events that the disk refuses until the end of a
shutdown are lost, and their count is reported. Events in the buffer are lost without a report when the process is
killed; that is the cost of not waiting.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

from watchbill.catalog import SpoolRules
from watchbill.core.messages import Alert, AlertKind
from watchbill.errors import WatchbillError
from watchbill.runtime.limits import (
    CAPTURE_AGAIN_MS,
    CAPTURE_AGAIN_MS_MAX,
    CAPTURE_BATCH_MAX,
    CAPTURE_CHARS_MAX,
    CAPTURE_EVENTS_MAX,
    CAPTURE_STOP_MS,
)
from watchbill.runtime.spools import open_spool
from watchbill.spool import EventRefused
from watchbill.spool.backend import AnySpool

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
    tier: str  # local, burst or external
    prompt: object  # the messages, or the text
    answer: object
    outcome: str  # ok, or the error's code
    kind: str = "request"
    cost: float | None = None  # an estimate, of an answer that costs money

    def as_event(self) -> dict[str, object]:
        event = {name: getattr(self, name) for name in ("id", "kind", *self.__slots__)}
        if self.cost is None:
            del event["cost"]
        return event


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
        # Counts of stored and dropped events of writers that have ended.
        self._ended: dict[str, Counter[str]] = {}

    def capture(self, spool: str, event: Captured) -> bool:
        """Takes an event for the spool of this name, at once. False when it had to be dropped."""
        writer = self._writers.get(spool) or self._begin(spool)
        return writer is not None and writer.take(event)

    def reconfigure(self, spools: Mapping[str, SpoolRules]) -> None:
        """Captures into these spools from now on. Events that wait for another spool are written first. Blocks."""
        with self._lock:
            gone = [name for name, rules in self._spools.items() if spools.get(name) != rules]
            self._spools = dict(spools)
            ended = [self._writers.pop(name) for name in gone if name in self._writers]
        self._close(ended)

    def close(self) -> list[str]:
        """Writes the waiting events, for a bounded time. Returns a text for each spool that lost some."""
        with self._lock:
            ended, self._writers = list(self._writers.values()), {}
            self._spools = {}
        return self._close(ended)

    def view(self) -> dict[str, dict[str, int]]:
        """How many events of each spool were stored, wait, and were dropped."""
        with self._lock:
            now = {name: Counter(writer.view()) for name, writer in self._writers.items()}
            names = {**self._ended, **now}
            none = Counter[str]()
            sums = {name: self._ended.get(name, none) + now.get(name, none) for name in names}
        return {
            name: {key: told[key] for key in ("stored", "waiting", "dropped")} for name, told in sums.items()
        }

    def _close(self, writers: "list[_Writer]") -> list[str]:
        """Ends these writers, all within one bound. Returns a text for each that could not write everything."""
        for writer in writers:
            writer.ask_to_end()
        deadline = time.monotonic() + CAPTURE_STOP_MS / 1000
        lost: list[str] = []
        for writer in writers:
            lost += writer.join(deadline)
            with self._lock:
                self._ended[writer.name] = self._ended.get(writer.name, Counter()) + Counter(writer.view())
        for text in lost:
            _LOG.error("%s", text)
            self._tell(Alert(AlertKind.CAPTURE, text))
        return lost

    def _begin(self, spool: str) -> "_Writer | None":
        with self._lock:
            if spool not in self._spools:
                return None
            if spool not in self._writers:
                self._writers[spool] = _Writer(self._spools[spool], self._root, self._tell)
            return self._writers[spool]


class _Writer:
    """The buffer and the thread of one spool."""

    def __init__(self, rules: SpoolRules, root: Path, tell: Tell) -> None:
        self._rules, self._root, self._tell = rules, root, tell
        self.name = rules.name
        self._waiting: deque[tuple[Captured, int]] = deque()
        self._chars = 0
        self._news = threading.Condition()
        self._ending = threading.Event()
        self._stored = self._dropped = 0
        self._is_dropping = False  # alerted once, until the buffer has room again
        self._trouble = ""  # why events wait; alerted once, until they are stored
        self._thread = threading.Thread(target=self._run, name=f"capture-{rules.name}", daemon=True)
        self._thread.start()

    def take(self, event: Captured) -> bool:
        chars = _weight(event.prompt) + _weight(event.answer)
        with self._news:
            fits = len(self._waiting) < CAPTURE_EVENTS_MAX and self._chars + chars <= CAPTURE_CHARS_MAX
            if not fits or self._ending.is_set():
                self._drop(1, f"{len(self._waiting)} already wait for the disk")
                return False
            self._waiting.append((event, chars))
            self._chars += chars
            self._news.notify()
        return True

    def ask_to_end(self) -> None:
        with self._news:
            self._ending.set()
            self._news.notify()

    def join(self, deadline_s: float) -> list[str]:
        """Waits for the end until the deadline; returns a text about events that did not reach the disk."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._news:
            lost = len(self._waiting)
            self._dropped += lost
            self._waiting.clear()
            self._chars = 0
        if not lost:
            return []
        requests = "a captured request was" if lost == 1 else f"{lost} captured requests were"
        why = self._trouble or "the disk did not answer in time"
        return [f"spool {self.name}: {requests} lost at the end: {why}"]

    def view(self) -> dict[str, int]:
        return {"stored": self._stored, "waiting": len(self._waiting), "dropped": self._dropped}

    def _drop(self, count: int, why: str) -> None:
        self._dropped += count
        if not self._is_dropping:
            self._is_dropping = True
            text = f"spool {self._rules.name}: captured requests are dropped: {why}"
            self._tell(Alert(AlertKind.CAPTURE, text))

    def _run(self) -> None:
        spool: AnySpool | None = None
        pause_ms = CAPTURE_AGAIN_MS
        while batch := self._next_batch():
            is_last_try = self._ending.is_set()
            try:
                spool = spool or open_spool(self._rules, self._root, signed=True)
                self._store(spool, batch)
                self._trouble, pause_ms = "", CAPTURE_AGAIN_MS
            except (WatchbillError, OSError) as error:  # the disk, a key: the events are kept and tried again
                self._tell_of_trouble(error)
                if is_last_try:
                    break  # it must not delay the shutdown
                self._ending.wait(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, CAPTURE_AGAIN_MS_MAX)
        if spool is not None:
            spool.close()

    def _tell_of_trouble(self, error: Exception) -> None:
        _LOG.warning("spool=%s captured events wait: %s", self.name, error)
        is_new, self._trouble = not self._trouble, str(error)
        if is_new:
            bound = f"at most {CAPTURE_EVENTS_MAX} do, then they are dropped"
            self._tell(
                Alert(
                    AlertKind.CAPTURE,
                    f"spool {self.name}: captured requests wait in memory ({bound}): {error}",
                )
            )

    def _next_batch(self) -> list[Captured]:
        """The waiting events, oldest first. They stay in the buffer until they are stored. Empty at the end."""
        with self._news:
            while not self._waiting and not self._ending.is_set():
                self._news.wait()
            return [event for event, _ in islice(self._waiting, CAPTURE_BATCH_MAX)]

    def _store(self, spool: AnySpool, batch: list[Captured]) -> None:
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
            for _ in range(min(count, len(self._waiting))):  # none are left where `join` ended before us
                _, chars = self._waiting.popleft()
                self._chars -= chars
            if stored:
                self._stored += count
                if len(self._waiting) < CAPTURE_EVENTS_MAX // 2:
                    self._is_dropping = False
            else:
                self._drop(count, why)


def _weight(value: object) -> int:
    """The approximate size of the text in a value. It visits messages, not characters: a megabyte costs no more."""
    total, rest = 0, [value]
    while rest:
        each = rest.pop()
        total += len(each) + 16 if isinstance(each, str | bytes) else 16
        if isinstance(each, Mapping):
            rest.extend(cast("Mapping[str, object]", each).values())
        elif isinstance(each, list | tuple):
            rest.extend(cast("list[object]", each))
    return total
