"""Spending: what tiers cost today, kept over restarts.

    ROOT/spending/2026-11-17.1763354400000000000.log      one line for each reservation and each final amount

A request that costs money is reserved with what it may cost before it is sent, and settled with an estimate of what it
did cost afterwards. The reservation is on stable storage before the request leaves: a daemon that is killed, or a
power cut, can only make the sum too large. A day is a day of UTC. An answer that runs over midnight counts on both.

The clock may be set to any day, also to one on which a former daemon spent: the files of that day are read before the
first amount of this daemon is reserved there. Nor does the clock say which files are old: those of the latest days are
kept.

Nothing here blocks the event loop: one thread owns the files.
"""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

import msgspec

from watchbill.files.atomic import make_folder
from watchbill.files.checked_log import CheckedLog, LineReader
from watchbill.runtime.limits import SPENDING_BYTES_MAX, SPENDING_DAYS_KEPT

__all__ = ["Reserved", "Spending", "left_of_day_ms", "today"]

_LOG = logging.getLogger("watchbill.spending")
_DAY_S = 86_400
_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


#: The clock on the wall, whose days count.
_clock = time.time


def today() -> str:
    """The day of UTC, as in a file's name."""
    return time.strftime("%Y-%m-%d", time.gmtime(_clock()))


def left_of_day_ms() -> int:
    """Until the day of UTC ends."""
    return round((_DAY_S - _clock() % _DAY_S) * 1000)


class _Line(msgspec.Struct, frozen=True):
    """What something costs. A later line with the same id replaces it."""

    id: str
    site: str
    amount: float


class Reserved(msgspec.Struct, frozen=True):
    """An amount that is counted until it is settled."""

    id: str
    site: str
    amount: float
    day: str


@dataclass(slots=True)
class _Day:
    """What was spent on a day."""

    sums: dict[str, float] = field(default_factory=dict[str, float])  # of each site, reservations included
    is_read: bool = False  # what former daemons spent is among it


class Spending:
    """The spending of one root. Lives on the event loop."""

    def __init__(self, folder: Path, day: Callable[[], str] = today) -> None:
        self._folder, self._today = folder, day
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spending")
        self._prefix, self._numbers = os.urandom(4).hex(), itertools.count(1)
        self._day = ""
        #: Also of other days: a clock that is put back over midnight must not begin a day anew.
        self._days: dict[str, _Day] = {}
        self._reading = asyncio.Lock()
        self._log: CheckedLog | None = None  # of the thread
        self._log_day = ""

    async def start(self) -> None:
        """Reads what was spent today. Raises OSError when that cannot be read."""
        await self.know_today()

    async def close(self) -> None:
        """Writes what waits, and ends the thread."""
        await self._do(self._close)
        self._thread.shutdown(wait=False)

    async def know_today(self) -> None:
        """Reads what former daemons spent today, if the clock has come to a day that is not read yet. Raises OSError
        when that cannot be read."""
        while not self._turn_day().is_read:
            async with self._reading:
                name, day = self._day, self._turn_day()
                if day.is_read or name != self._day:
                    continue
                for site, amount in (await self._do(self._read, name)).items():
                    day.sums[site] = day.sums.get(site, 0.0) + amount
                day.is_read = True

    def spent(self, site: str) -> float:
        """What a site cost today, reservations included, as far as the day is known."""
        return self._turn_day().sums.get(site, 0.0)

    async def reserve(self, site: str, amount: float) -> Reserved:
        """Counts an amount; on return it is on stable storage. Raises OSError: then it is not counted."""
        self._turn_day()
        reserved = Reserved(f"{self._prefix}-{next(self._numbers)}", site, amount, self._day)
        self._add(site, amount)
        try:
            await self._do(self._write, reserved.day, _Line(reserved.id, site, amount))
        except OSError:
            if reserved.day == self._day:
                self._add(site, -amount)
            raise
        return reserved

    def settle(self, reserved: Reserved, amount: float) -> None:
        """Replaces a reservation by the final amount. Until that is on disk, the reservation counts."""
        self._turn_day()
        counted = reserved.amount if reserved.day == self._day else 0.0
        self._add(reserved.site, amount - counted)
        line = _Line(reserved.id, reserved.site, amount)
        self._thread.submit(self._write, self._day, line).add_done_callback(_tell)

    def open(self, site: str) -> Reserved:
        """A reservation of nothing, which grows with `change`."""
        self._turn_day()
        return Reserved(f"{self._prefix}-{next(self._numbers)}", site, 0.0, self._day)

    def change(self, reserved: Reserved, amount: float) -> Reserved:
        """Replaces a reservation by another one. It is on disk a little later."""
        if amount != reserved.amount:
            self.settle(reserved, amount)
        return Reserved(reserved.id, reserved.site, amount, self._day)

    def spend(self, site: str, amount: float) -> None:
        """Counts an amount that was not reserved: time that a machine ran."""
        self.settle(self.open(site), amount)

    def _turn_day(self) -> _Day:
        name = self._today()
        if name != self._day:
            self._day = name
            self._days[name] = self._days.pop(name, None) or _Day()  # the last one is the latest in use
            while len(self._days) > SPENDING_DAYS_KEPT:
                del self._days[next(iter(self._days))]
        return self._days[name]

    def _add(self, site: str, amount: float) -> None:
        sums = self._days[self._day].sums
        sums[site] = max(0.0, sums.get(site, 0.0) + amount)

    async def _do(self, work: Callable[[Unpack[_Args]], _T], *args: *_Args) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    # ------------------------------------------------------------------ the thread

    def _read(self, day: str) -> dict[str, float]:
        """The sums of a day without the amounts of this daemon, which are counted already."""
        make_folder(self._folder)
        self._forget_old()
        last: dict[str, _Line] = {}
        for path in sorted(self._folder.glob(f"{day}.*.log")):
            reader = LineReader(path)
            while reader.offset < SPENDING_BYTES_MAX and (payloads := reader.read()):
                lines = (msgspec.json.decode(payload, type=_Line) for payload in payloads)
                last |= {line.id: line for line in lines if not line.id.startswith(self._prefix)}
        sums: dict[str, float] = {}
        for line in last.values():
            sums[line.site] = sums.get(line.site, 0.0) + line.amount
        return sums

    def _forget_old(self) -> None:
        paths = list(self._folder.glob("*.log"))
        kept = sorted({_day_of(path) for path in paths})[-SPENDING_DAYS_KEPT:]
        for path in paths:
            if _day_of(path) not in kept:
                path.unlink(missing_ok=True)

    def _write(self, day: str, line: _Line) -> None:
        if self._log is None or self._log.failed or self._log_day != day:
            self._close()
            make_folder(self._folder)
            self._log = CheckedLog(self._folder / f"{day}.{time.time_ns()}.log", filled=False)
            self._log_day = day
        self._log.append([msgspec.json.encode(line)])

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _day_of(path: Path) -> str:
    return path.name.partition(".")[0]


def _tell(done: Future[None]) -> None:
    """A final amount that is not on disk: its reservation counts in its place after a restart."""
    error = done.exception()
    if error is not None:
        _LOG.warning("an amount that was spent could not be written down: %s", error)
