"""The watchdog: notices what nobody reports (RES-20, RES-18).

A model that answers nothing but failures, or takes more memory than its quota, is reset like one that died: its work
returns or fails, repeated failure leads to quarantine. Failures in a row may be the callers' fault, and one caller must
not take a model from all others: before the reset it is asked something easy. And silence is an alarm: where background
rotation should keep the house busy, nothing happening means that something is wrong.
"""

from watchbill.core.messages import Alert, Check, Checked
from watchbill.core.state import State
from watchbill.core.station import Stage, Station
from watchbill.units import format_bytes

__all__ = ["Watchdog"]

#: Failed answers in a row that count as a dead engine.
BAD_ANSWERS_MAX = 3
#: A model that was asked something easy has failed when no answer came in this time; one that answered is not asked
#: again before it is over: who sends bad requests for ever must not have it answer us for ever.
CHECK_MS = 30_000
#: A model may take this much more than it needed before.
QUOTA_FACTOR = 1.15
#: Silence is counted from the rotation's interval and this.
SILENCE_EXTRA_MS = 60_000


class Watchdog:
    """Looks at every step; barks rarely."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._silent_since: int | None = None  # of the silence that was already reported
        self._asked: dict[tuple[str, int], int] = {}  # models and attempts that are asked now -> since when
        self._failed: dict[tuple[str, int], str] = {}  # what those said that gave no answer
        self._well: dict[tuple[str, int], int] = {}  # those that gave one -> when

    def faults(self, now: int) -> list[tuple[Station, str]]:
        """The ready models that must be reset, and why."""
        found: list[tuple[Station, str]] = []
        for station in self._state.in_stage(Stage.READY):
            if over := self._over_quota(station):
                found.append((station, over))
            elif station.bad_answers >= BAD_ANSWERS_MAX and (why := self._examine(station, now)):
                found.append((station, f"{station.bad_answers} answers in a row failed, and {why}"))
        return found

    def _examine(self, station: Station, now: int) -> str | None:
        """Has a model asked something easy. Why it is not well, once that is known."""
        which = (station.name, station.attempt)
        asked_at, failure = self._asked.get(which), self._failed.get(which)
        if asked_at is None:
            if now >= self._well.get(which, -CHECK_MS) + CHECK_MS:
                self._ask(which, now)
            return None
        is_over = now >= asked_at + CHECK_MS
        if failure is None and not is_over:
            return None
        if _was_full(station, asked_at):
            # There was no room for the question. Who has it will tell: a good answer ends all this.
            if is_over:
                self._ask(which, now)
            return None
        self._forget(which)
        if failure is None:
            return "it said nothing when it was asked something easy"
        return f"it failed when it was asked something easy: {failure}"

    def _ask(self, which: tuple[str, int], now: int) -> None:
        self._forget(which)
        self._asked[which] = now
        self._state.out.append(Check(*which))

    def _forget(self, which: tuple[str, int]) -> None:
        self._asked.pop(which, None)
        self._failed.pop(which, None)

    def checked(self, event: Checked, now: int) -> None:
        """A model was asked something easy. If it answered, its callers had asked what it cannot do."""
        self._tidy()
        which = (event.model, event.attempt)
        if which not in self._asked:
            self._state.late_answers += 1
        elif event.failure is not None:
            self._failed[which] = event.failure
        else:
            self._forget(which)
            station = self._state.stations[event.model]
            reason = (
                f"{station.bad_answers} answers in a row failed, but it is well: the requests were at fault"
            )
            self._state.note("well", reason, station)
            station.bad_answers, self._well[which] = 0, now

    def deadlines(self) -> list[int]:
        """When a model that was asked must have answered, or may be asked again."""
        self._tidy()
        return [at + CHECK_MS for at in (*self._asked.values(), *self._well.values())]

    def _tidy(self) -> None:
        """Forgets who is no longer ready, and what was asked of those that gave a good answer since."""
        if not (self._asked or self._well):
            return
        ready = {(station.name, station.attempt): station for station in self._state.in_stage(Stage.READY)}
        self._well = {which: at for which, at in self._well.items() if which in ready}
        for which in list(self._asked):
            if which not in ready or ready[which].bad_answers < BAD_ANSWERS_MAX:
                self._forget(which)

    def _over_quota(self, station: Station) -> str | None:
        for device, held in station.held.items():
            needed = max(station.footprint.expected.get(device, 0), station.warm_size.get(device, 0))
            quota = station.model.quota or round(QUOTA_FACTOR * needed)
            if needed and held > quota:
                return (
                    f"it uses {format_bytes(held)} of {device}, more than its quota of {format_bytes(quota)}"
                )
        return None

    def listen(self, interval_ms: int | None, now: int) -> None:
        """Raises the alarm when nothing has happened for too long."""
        rules, last = self._state.catalog.rotation, self._state.active_at
        bound = rules.silence_ms or (None if interval_ms is None else interval_ms + SILENCE_EXTRA_MS)
        if not rules.silence or bound is None:
            return
        lent = any(book.in_maintenance for book in self._state.ledger.books.values())
        if last is None or lent:  # the operator is at work: that is no silence
            last = self._state.active_at = now
        if now - last < bound:
            self._state.wakes.append(last + bound)
        elif self._silent_since != last:
            self._silent_since = last
            text = f"no load, no grant and no background task for {(now - last) // 1000} s"
            self._state.out.append(Alert("silence", text))


def _was_full(station: Station, since: int) -> bool:
    """Whether every slot has been taken by the same requests all the time."""
    held = sum(running.since <= since for running in station.running.values())
    return held >= station.model.concurrency
