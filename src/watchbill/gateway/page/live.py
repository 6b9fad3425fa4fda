"""The stream that the page shows: first a whole picture of the daemon, then what changed, up to twice a second.

    {"whole": true, "now": 81223, "wall": 1790000000000, "admin": true, "set": {SECTION: {KEY: ROW}}}
    {"now": 81723, "set": {"models": {"chat": ROW}}, "gone": {"requests": [ID]}, "journal": [LINE], "missed": 0}

A section is a table, a row of it is sent again as a whole when anything in it changed. Times in rows that end in `_at`
are milliseconds of the daemon's own clock, whose present value is `now`: so a row of a request that waits does not
change by waiting. However many events there are, a picture is made at most twice a second, once for all readers, and
none is made while there is no reader. A reader that falls behind gets a whole picture again instead of what it missed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

import msgspec

from watchbill.core.messages import JournalEvent, Mishap
from watchbill.gateway.audience import Audience
from watchbill.gateway.http.messages import Answer
from watchbill.gateway.limits import (
    EVENT_HEARTBEAT_MS,
    LIVE_BUSY_EVERY_MS,
    LIVE_CALM_BYTES,
    LIVE_EVERY_MS,
    LIVE_LINES_MAX,
    LIVE_MESSAGES_WAITING_MAX,
    LIVE_REQUESTS_MAX,
    LIVE_SHARE_MAX,
)
from watchbill.gateway.page.plans import has_plans
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.stream import StreamOut
from watchbill.listeners import Listener
from watchbill.runtime.driver import Picture
from watchbill.steps import Steps

__all__ = ["RESIDENCY", "LiveApi"]

Row = dict[str, object]
Section = dict[str, Row]

#: The lines of the journal that say which model is in memory; none of them is left out for others.
RESIDENCY = frozenset({
    JournalEvent.START, JournalEvent.LOAD, JournalEvent.LOADED, JournalEvent.EVICT, JournalEvent.REOPEN,
    JournalEvent.STOPPED, JournalEvent.ASLEEP, JournalEvent.WAKE, JournalEvent.AWAKE, JournalEvent.LOST,
    JournalEvent.QUARANTINE, *Mishap,
})  # fmt: skip
#: Fields of rows that say how long something lasts: sent as the time at which it is over.
_UNTIL = {"idle_left_ms": "idle_at", "retry_ms": "retry_at", "ends_ms": "ends_at", "next_ms": "next_at",
          "due_ms": "due_at", "starts_in_ms": "starts_at"}  # fmt: skip
#: The same for what has lasted.
_SINCE = {"oldest_wait_ms": "oldest_at", "waited_ms": "arrived_at"}
#: What changes all the time and is not shown.
_LEFT_OUT = frozenset({"renewed_ms", "ran_ms", "absence", "pid", "aliases"})
_FACTS = ("version", "policy", "policy_doubt", "policy_failure", "rotation", "batches", "unused_cards")
_SECTIONS = (
    "devices",
    "models",
    "lanes",
    "spools",
    "programs",
    "maintenance",
    "loans",
    "leases",
    "tiers",
    "epochs",
)


class LiveApi:
    """Serves /wb/v1/live."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._audience = Audience()
        self._readers: set[_Reader] = set()
        self._maker: asyncio.Task[None] | None = None
        self._shown: dict[str, Section] = {}
        self._now = 0
        self._journal: Listener | None = None

    @property
    def listeners(self) -> int:
        """How many watch."""
        return self._audience.size

    async def live(self, context: RequestContext) -> Answer:
        """GET /wb/v1/live."""
        with self._audience.enter(context.key):
            out, reader = StreamOut(context), _Reader(self._may_change(context))
            await out.open()
            self._readers.add(reader)
            if self._maker is None or self._maker.done():
                self._maker = asyncio.create_task(self._make_pictures(), name="live")
            try:
                await self._tell(reader, out)
            finally:
                self._readers.discard(reader)
            return await out.end()

    def _may_change(self, context: RequestContext) -> bool:
        return context.key.admin if context.key is not None else not self._services.server.asks_for_keys

    async def _tell(self, reader: "_Reader", out: StreamOut) -> None:
        closing = self._services.closing
        while not closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(EVENT_HEARTBEAT_MS / 1000):
                    await reader.news.wait()
            if not reader.news.is_set():
                await out.comment("quiet")
                continue
            for message in reader.take():
                await out.send(b"data: " + message + b"\n\n")

    # ------------------------------------------------------------------ pictures

    async def _make_pictures(self) -> None:
        """Makes pictures as long as there is a reader."""
        self._journal, self._shown = self._services.driver.subscribe(), {}
        try:
            while self._readers and not self._services.closing.is_set():
                spent_s, sent_bytes = await self._make_picture()
                every_ms = LIVE_EVERY_MS if sent_bytes <= LIVE_CALM_BYTES else LIVE_BUSY_EVERY_MS
                pause_s = max(every_ms / 1000, spent_s / LIVE_SHARE_MAX)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._services.closing.wait()
        finally:
            self._journal.close()
            for reader in self._readers:
                reader.news.set()

    async def _make_picture(self) -> tuple[float, int]:
        """Makes one, and says how much of a core's time that took and how long the message is."""
        steps = _timed(self._services.driver.picture_steps(LIVE_REQUESTS_MAX))
        picture, spent_s = await self._services.shares.do(steps)
        began = time.thread_time()
        sections = self._sections(picture)
        changed, gone = _difference(self._shown, sections)
        lines, missed = self._lines()
        self._shown, self._now = sections, picture.now
        message: dict[str, object] = {"now": picture.now, "set": changed}
        if gone:
            message["gone"] = gone
        if lines:
            message |= {"journal": lines, "missed": missed}
        encoded = msgspec.json.encode(message)
        self._send(encoded)
        return spent_s + time.thread_time() - began, len(encoded)

    def _send(self, change: bytes) -> None:
        for reader in self._readers:
            if reader.is_current:
                reader.give(change)
            else:
                reader.give_whole(self._whole(reader.may_change))

    def _whole(self, may_change: bool) -> bytes:
        wall = round(time.time() * 1000)
        return msgspec.json.encode(
            {"whole": True, "now": self._now, "wall": wall, "admin": may_change, "set": self._shown}
        )

    def _sections(self, picture: Picture) -> dict[str, Section]:
        status, now = picture.status, picture.now
        found = {name: _rows(cast("Section", status[name]), now) for name in _SECTIONS}
        answered = {} if self._services.metrics is None else self._services.metrics.answered()
        for name, row in found["lanes"].items():
            row["answered"] = answered.get(name, 0)
            if not row["queued"]:
                row["oldest_at"] = None
        rates = self._rates(now)
        found["requests"] = {
            str(row["id"]): _row(row, now) | rates.get(str(row["id"]), {}) for row in picture.requests
        }
        alerts = cast("list[Row]", status["alerts"])
        found["alerts"] = {f"{row['t']}/{row['kind']}/{row['text']}": row for row in alerts}
        facts = {name: status[name] for name in _FACTS} | {"open": picture.requests_open}
        facts["plans"] = has_plans(self._services.driver.catalog.fleet)
        facts["rotation"] = _row(cast("Row", facts["rotation"]), now)
        found["facts"] = {"daemon": facts}
        return found

    def _rates(self, now: int) -> dict[str, Row]:
        """How fast the answers are made that run now: an engine sends an event for each token."""
        found: dict[str, Row] = {}
        for relay in self._services.relays:
            ticket = relay.ticket
            if (first := ticket.first_at) is not None and now - first >= LIVE_EVERY_MS:
                rate = relay.events * 1000 / (now - first)
                found[ticket.id] = {"tokens": relay.events, "tokens_per_s": round(rate, 1)}
        return found

    def _lines(self) -> tuple[list[Row], int]:
        """The newest lines of the journal, of residency before others, and how many were left out."""
        assert self._journal is not None
        lines = self._journal.drain()
        if self._journal.has_ended:  # more lines than a listener may hold
            self._journal = self._services.driver.subscribe()
        if len(lines) <= LIVE_LINES_MAX:
            return lines, 0
        first = [n for n, line in enumerate(lines) if line["event"] in RESIDENCY][-LIVE_LINES_MAX:]
        rest = [n for n, line in enumerate(lines) if line["event"] not in RESIDENCY]
        kept = first + rest[len(rest) - (LIVE_LINES_MAX - len(first)) :]
        return [lines[n] for n in sorted(kept)], len(lines) - len(kept)


class _Reader:
    """One who watches. `is_current`: what it was sent so far is the last picture."""

    __slots__ = ("_messages", "is_current", "may_change", "news")

    def __init__(self, may_change: bool) -> None:
        self._messages: list[bytes] = []
        self.news = asyncio.Event()
        self.is_current = False
        self.may_change = may_change

    def give(self, message: bytes) -> None:
        self._messages.append(message)
        if len(self._messages) > LIVE_MESSAGES_WAITING_MAX:
            self._messages.clear()
            self.is_current = False
            return
        self.news.set()

    def give_whole(self, message: bytes) -> None:
        self._messages, self.is_current = [message], True
        self.news.set()

    def take(self) -> list[bytes]:
        messages, self._messages = self._messages, []
        self.news.clear()
        return messages


def _timed(steps: Steps[Picture]) -> Steps[tuple[Picture, float]]:
    """The same steps, and how long they took; others go on between them."""
    spent_s = 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, spent_s + time.thread_time() - began
        spent_s += time.thread_time() - began
        yield


def _rows(section: Mapping[str, Row], now: int) -> Section:
    return {name: _row(row, now) for name, row in section.items()}


def _row(row: Row, now: int) -> Row:
    """A row with times in place of durations."""
    told: Row = {}
    for name, value in row.items():
        if name in _LEFT_OUT:
            continue
        if (until := _UNTIL.get(name)) is not None:
            told[until] = _shifted(value, lambda ms: now + ms)
        elif (since := _SINCE.get(name)) is not None:
            told[since] = _shifted(value, lambda ms: now - ms)
        else:
            told[name] = value
    if isinstance(ran := row.get("ran_ms"), int):
        told["started_at"] = now - ran
        told["arrived_at"] = now - ran - cast("int", row["waited_ms"])
    return told


def _shifted(value: object, shift: Callable[[int], int]) -> int | None:
    return shift(value) if isinstance(value, int) else None


def _difference(
    old: Mapping[str, Section], new: Mapping[str, Section]
) -> tuple[dict[str, Section], dict[str, list[str]]]:
    """The rows that are new or changed, and the names of those that are gone."""
    changed: dict[str, Section] = {}
    gone: dict[str, list[str]] = {}
    for section, rows in new.items():
        before = old.get(section, {})
        if differing := {name: row for name, row in rows.items() if before.get(name) != row}:
            changed[section] = differing
        if missing := [name for name in before if name not in rows]:
            gone[section] = missing
    return changed, gone
