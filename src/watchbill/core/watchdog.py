"""The watchdog: notices what nobody reports (RES-20, RES-18).

A model that answers nothing but failures, or takes more memory than its quota, is reset like one that died: its work
returns or fails, repeated failure leads to quarantine. And silence is an alarm: where background rotation should keep
the house busy, nothing happening means that something is wrong.
"""

from watchbill.core.messages import Alert
from watchbill.core.state import State
from watchbill.core.station import Stage, Station
from watchbill.units import format_bytes

__all__ = ["Watchdog"]

#: Failed answers in a row that count as a dead engine.
BAD_ANSWERS_MAX = 3
#: A model may take this much more than it needed before.
QUOTA_FACTOR = 1.15
#: Silence is counted from the rotation's interval and this.
SILENCE_EXTRA_MS = 60_000


class Watchdog:
    """Looks at every step; barks rarely."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._silent_since: int | None = None  # of the silence that was already reported

    def faults(self) -> list[tuple[Station, str]]:
        """The ready models that must be reset, and why."""
        found: list[tuple[Station, str]] = []
        for station in self._state.in_stage(Stage.READY):
            if station.bad_answers >= BAD_ANSWERS_MAX:
                found.append((station, f"{station.bad_answers} answers in a row failed"))
            elif over := self._over_quota(station):
                found.append((station, over))
        return found

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
