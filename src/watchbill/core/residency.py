"""Residency: what occupies memory, as the engines and the machine report it.

Believes only answers that carry the attempt that was asked for; late ones are dropped and counted. Every stage that
waits for an answer has a deadline, and what happens at the deadline is defined here. Idle models leave here, too.
"""

from collections.abc import Mapping

from watchbill.core.messages import Alert, Died, Loaded, LoadFailed, Observed, Stopped
from watchbill.core.state import State
from watchbill.core.station import HOLDING, Stage, Station
from watchbill.core.transition import Transitions

__all__ = ["Residency"]

#: The engine layer ends a load at its limit and says why; the core waits a little longer for that answer.
LOAD_ANSWER_MS = 15_000
#: The engine layer's own stop ladder ends well before this.
STOP_LIMIT_MS = 20_000
STOP_TRIES = 3
#: A planned load that still does not fit when all its victims are gone is given up after this.
PLAN_LIMIT_MS = 15_000


class Residency:
    """The table of what occupies memory."""

    def __init__(self, state: State, transitions: Transitions) -> None:
        self._state, self._do = state, transitions

    # ------------------------------------------------------------------ answers of the engines

    def loaded(self, event: Loaded, now: int) -> None:
        """A model is warm."""
        station = self._current(event.model, event.attempt, Stage.LOADING)
        if station is None:
            return
        station.load.learn(now - station.since)
        taken = now - station.since
        station.failures, station.failure, station.hopeless = 0, None, False
        self._state.enter(station, Stage.READY, now)
        station.ready_at = station.last_used = self._state.active_at = now
        station.loads, station.bad_answers, station.is_benched = station.loads + 1, 0, False
        self._measure(station, event.measured)
        station.warm_size = dict(event.measured)
        size = sum(station.sizes().values())
        self._state.note(
            "loaded", "warm: healthy, and a real probe was answered", station, ms=taken, size=size
        )

    def load_failed(self, event: LoadFailed, now: int) -> None:
        """A model could not be brought up; nothing of the attempt is left."""
        station = self._current(event.model, event.attempt, Stage.LOADING)
        if station is None:
            return
        self._state.enter(station, Stage.ABSENT, now)
        self._do.fail(station, event.reason, hopeless=event.hopeless, now=now)

    def stopped(self, event: Stopped, now: int) -> None:
        """A model is gone and its memory is back."""
        station = self._current(event.model, event.attempt, Stage.STOPPING)
        if station is None:
            return
        station.halt.learn(now - station.since)
        self._state.note("stopped", station.leaving_why, station, ms=now - station.since)
        self._state.enter(station, Stage.ABSENT, now)

    def died(self, event: Died, now: int) -> None:
        """An engine went without being asked: its work returns or fails, its remains are cleared away."""
        station = self._current(event.model, event.attempt, Stage.LOADING, Stage.READY, Stage.DRAINING)
        if station is not None:
            self._do.reset(station, f"its engine died: {event.reason}", now)

    def _current(self, name: str, attempt: int, *stages: Stage) -> Station | None:
        station = self._state.stations.get(name)
        if station is None or station.attempt != attempt or station.stage not in stages:
            self._state.late_answers += 1
            return None
        return station

    # ------------------------------------------------------------------ looks at the machine

    def observed(self, event: Observed, now: int) -> None:
        """Takes over what the machine says, and notices what nobody told."""
        self._state.remeasured()
        for name, reading in event.devices.items():
            if name in self._state.ledger.books:
                self._state.ledger.books[name].reading = reading
        for name, reading in event.models.items():
            station = self._state.stations.get(name)
            if station is None or station.attempt != reading.attempt or station.stage not in HOLDING:
                continue
            if (
                not reading.alive
                and station.stage in (Stage.READY, Stage.DRAINING)
                and event.taken_at > station.since
            ):
                self.died(Died(name, reading.attempt, "its process is gone"), now)
                continue
            station.held = dict(reading.memory)
            if station.stage is Stage.READY:
                self._measure(station, reading.memory)

    def _measure(self, station: Station, memory: Mapping[str, int]) -> None:
        if not memory:
            return
        station.held = dict(memory)
        station.measured = {d: max(size, station.measured.get(d, 0)) for d, size in memory.items()}
        self._state.weigh(station)

    # ------------------------------------------------------------------ the clock

    def close_idle(self, now: int) -> None:
        """RES-07: an idle model leaves after its time to live."""
        for station in self._state.in_stage(Stage.READY):
            if not station.is_idle or not self._state.is_leaving_when_idle(station):
                continue
            if now >= station.last_used + station.idle_ms:
                wished = ", as its last caller wished" if station.keep_alive_ms is not None else ""
                self._do.close(station, "", f"idle for {station.idle_ms // 1000} s{wished}", now)

    def enforce_deadlines(self, now: int) -> None:
        """What waits for an answer that does not come is ended here."""
        for station in self._state.in_stage(Stage.LOADING, Stage.STOPPING, Stage.PLANNED):
            deadline = self.deadline(station)
            if deadline is None or now < deadline:
                continue
            if station.stage is Stage.LOADING:
                self._do.fail(
                    station, f"not warm after {(now - station.since) // 1000} s", hopeless=False, now=now
                )
                self._do.halt(station, "its load took too long", now, hard=True)
            elif station.stage is Stage.STOPPING:
                self._stop_again(station, now)
            elif station.stage is Stage.PLANNED and not self._do.has_leaving(station):
                self._do.unplan(station, now)
                station.retry_at = now + PLAN_LIMIT_MS

    def deadline(self, station: Station) -> int | None:
        """When a station that waits for an answer stops waiting."""
        if station.stage is Stage.LOADING:
            return station.since + self._do.load_limit(station) + LOAD_ANSWER_MS
        if station.stage is Stage.STOPPING:
            return station.since + STOP_LIMIT_MS
        if station.stage is Stage.PLANNED:
            return station.since + PLAN_LIMIT_MS
        return None

    def _stop_again(self, station: Station, now: int) -> None:
        station.stop_tries += 1
        if station.stop_tries < STOP_TRIES:
            self._do.halt(station, station.leaving_why, now, hard=True)
            return
        text = f"{station.name} does not go away; what it holds is counted as foreign use from now on"
        self._state.out.append(Alert("stuck", text, station.name))
        self._state.enter(station, Stage.ABSENT, now)
        self._do.fail(station, "its engine could not be stopped", hopeless=True, now=now)
