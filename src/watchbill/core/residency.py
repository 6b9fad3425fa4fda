"""Residency: what occupies memory, as the engines and the machine report it.

Believes only answers that carry the attempt that was asked for; late ones are dropped and counted. Every stage that
waits for an answer has a deadline, and what happens at the deadline is defined here. Idle models leave here, too.
"""

from collections.abc import Mapping

from watchbill.core.messages import (
    Alert,
    Blame,
    Cause,
    Died,
    HostSeen,
    Loaded,
    LoadFailed,
    Mishap,
    ModelReading,
    Observed,
    Proof,
    Slept,
    Stopped,
)
from watchbill.core.state import State
from watchbill.core.station import HOLDING, Stage, Station
from watchbill.core.transition import Transitions

__all__ = ["Residency"]

#: The engine layer ends a load at its limit and says why; the core waits a little longer for that answer.
LOAD_ANSWER_MS = 15_000
#: The engine layer's own stop ladder ends well before this.
STOP_LIMIT_MS = 20_000
STOP_TRIES = 3
#: A planned load that still does not fit is given up so long after the last of what stood in its way is gone.
PLAN_LIMIT_MS = 15_000
#: What the journal says of a model that is warm: no more than was proved.
_PROVEN = {
    Proof.CHAT: "warm: healthy, and a real prompt was answered",
    Proof.EMBED: "warm: healthy, and a real text was embedded",
    Proof.HTTP: 'healthy, and no real request was tried (probe = "http")',
    Proof.NONE: 'started, and nothing was asked (probe = "none")',
}


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
        taken, woke = now - station.since, station.load is station.wake
        station.load.learn(taken)
        station.failures, station.failure, station.trouble, station.hopeless = 0, None, None, False
        self._state.enter(station, Stage.READY, now)
        station.ready_at = station.last_used = self._state.active_at = now
        station.loads, station.wakings = station.loads + (not woke), station.wakings + woke
        station.bad_answers, station.is_suspect, station.is_benched = 0, False, False
        self._measure(station, event.measured)
        station.seen = {}
        size = sum(station.sizes().values())
        self._state.note(
            "awake" if woke else "loaded",
            _PROVEN[event.proof],
            station,
            ms=taken,
            size=size,
        )

    def load_failed(self, event: LoadFailed, now: int) -> None:
        """A model could not be brought up. What may be left of it counts until it was stopped."""
        station = self._current(event.model, event.attempt, Stage.LOADING)
        if station is None:
            return
        if not event.remains:
            self._state.enter(station, Stage.ABSENT, now)
        if event.blame is Blame.HOST:
            self._do.put_off(station, event.reason, now)
        elif event.blame is Blame.DISK:
            self._do.await_disk(station, event.reason, now)
        else:
            self._do.fail(station, event.reason, hopeless=event.hopeless, now=now)
        if event.remains:
            self._do.halt(station, event.reason, now, hard=True)

    def stopped(self, event: Stopped, now: int) -> None:
        """A model is gone and its memory is back."""
        station = self._current(event.model, event.attempt, Stage.STOPPING)
        if station is None:
            return
        station.halt.learn(now - station.since)
        self._state.note("stopped", station.leaving_why, station, ms=now - station.since)
        self._state.enter(station, Stage.ABSENT, now)

    def slept(self, event: Slept, now: int) -> None:
        """A model sleeps as it was told."""
        station = self._current(event.model, event.attempt, Stage.STOPPING)
        if station is not None:
            self._fall_asleep(station, event.measured, station.leaving_why, now)

    def _fall_asleep(self, station: Station, memory: Mapping[str, int], why: str, now: int) -> None:
        taken = now - station.since if station.stage is Stage.STOPPING else None
        station.leaving_for, station.stop_tries = "", 0
        station.asleep_size = dict(memory) or station.asleep_size
        station.held = dict(memory) or station.held
        self._state.enter(station, Stage.ASLEEP, now)
        self._state.weigh(station)
        self._state.note("asleep", why, station, ms=taken, size=sum(station.sizes_asleep().values()))

    def died(self, event: Died, now: int) -> None:
        """An engine went without being asked: its work returns or fails, its remains are cleared away."""
        stages = (Stage.LOADING, Stage.READY, Stage.DRAINING, Stage.ASLEEP, Stage.PLANNED)
        station = self._current(event.model, event.attempt, *stages)
        if station is not None and station.stage is Stage.PLANNED and station.naps:
            self._do.unplan(station, now)  # what was to be woken is gone
        if station is None or station.stage is Stage.PLANNED:
            return
        if event.blame is Blame.HOST:
            self._do.lose(station, event.reason, now)
        else:
            self._do.reset(station, f"its engine died: {event.reason}", now, mishap=Mishap.DIED)

    def host_seen(self, event: HostSeen, now: int) -> None:
        """What a program that hosts models says of itself, or that it says nothing.

        In its silence its models count as they were last seen, memory included: one that is only stopped for a while
        still has them. Nobody is sent there and nothing is loaded there until it has said what it holds."""
        hosted = [s for s in self._state.managed if s.model.engine == event.engine]
        was_silent = self._state.silent.pop(event.engine, None) is not None
        if event.silence is not None:
            self._state.silent[event.engine] = event.silence
        for station in hosted:
            station.silence = event.silence
            if was_silent and event.silence is None and not station.is_quarantined(now):
                station.retry_at = now
        if self._state.ledger.set_places(event.engine, event.places):
            for station in hosted:
                self._state.weigh(station)
            if event.places is not None:
                self._state.note("places", f"{event.engine} holds {event.places} of our models at once")
        if was_silent is not (event.silence is not None):
            self._tell_silence(event, hosted)
        for station in hosted:
            if station.name in event.leaving and station.stage is Stage.READY:
                self._do.close(
                    station,
                    "",
                    f"{event.engine} unloads it when its answers have ended",
                    now,
                    cause=Cause.HOST,
                )
        self._state.remeasured()

    def _tell_silence(self, event: HostSeen, hosted: list[Station]) -> None:
        if event.silence is None:
            self._state.note("host_back", f"{event.engine} answers again")
            return
        self._state.note("host_silent", event.silence)
        names = ", ".join(s.name for s in hosted if s.line or s.stage is not Stage.ABSENT) or "nobody"
        text = f"{event.engine}: {event.silence}; {names} waits until it answers again"
        self._state.out.append(Alert("host", text))

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
                and station.stage in (Stage.READY, Stage.DRAINING, Stage.ASLEEP)
                and event.taken_at > station.since
            ):
                self.died(Died(name, reading.attempt, "its process is gone"), now)
                continue
            station.held = dict(reading.memory)
            if reading.asleep is not None:
                self._see_sleep(station, reading, event.taken_at, now)
            if station.stage is Stage.READY:
                self._measure(station, reading.memory)
                if event.taken_at > station.since:
                    station.seen = dict(reading.memory)

    def _see_sleep(self, station: Station, reading: ModelReading, taken_at: int, now: int) -> None:
        """An engine may fall asleep by itself. Its memory is given away only from here on, where no request
        can reach it any more before that memory was promised to it again; until then it counts as warm."""
        fresh = taken_at > max(station.since, station.last_used)
        if station.stage is Stage.READY and reading.asleep and station.is_idle and fresh:
            self._fall_asleep(station, reading.memory, "its engine fell asleep by itself", now)
        elif station.stage is Stage.ASLEEP and fresh and not reading.asleep:
            self._state.enter(station, Stage.READY, now)  # its memory counts again, whoever has it now
            self._state.note("awake", "its engine woke by itself", station)
        elif station.stage is Stage.ASLEEP and reading.memory:
            station.asleep_size = dict(reading.memory)
            self._state.weigh(station)

    def _measure(self, station: Station, memory: Mapping[str, int]) -> None:
        if not memory:
            return
        station.held = dict(memory)
        station.measured = {d: max(size, station.measured.get(d, 0)) for d, size in memory.items()}
        self._state.weigh(station)

    # ------------------------------------------------------------------ the clock

    def close_idle(self, now: int) -> None:
        """RES-07: an idle model leaves after its time to live."""
        for station in self._state.in_stage(Stage.READY, Stage.ASLEEP):
            if station.silence is not None:
                continue  # it cannot be told to leave
            if self._is_sleepy(station, now):
                self._do.close(station, "", "nobody used it; it sleeps", now, cause=Cause.SLEEP, doze=True)
                continue
            if not station.is_idle or not self._state.is_leaving_when_idle(station):
                continue
            if now >= station.last_used + station.idle_ms:
                wished = ", as its last caller wished" if station.keep_alive_ms is not None else ""
                why = f"idle for {station.idle_ms // 1000} s{wished}"
                self._do.close(station, "", why, now, cause=Cause.IDLE)

    @staticmethod
    def _is_sleepy(station: Station, now: int) -> bool:
        """Whether it is time to tell an idle model to sleep. One that sleeps by itself is only watched."""
        sleep_ms = station.model.sleep_ms
        is_told = station.model.sleeps_when_told and station.stage is Stage.READY and station.is_idle
        return is_told and sleep_ms is not None and now >= station.last_used + sleep_ms

    def enforce_deadlines(self, now: int) -> None:
        """What waits for an answer that does not come is ended here."""
        for station in self._state.in_stage(Stage.LOADING, Stage.STOPPING, Stage.PLANNED):
            deadline = self.deadline(station)
            if deadline is None or now < deadline:
                continue
            if station.stage is Stage.LOADING:
                late = f"not warm after {(now - station.since) // 1000} s"
                if station.silence is not None:
                    self._do.put_off(station, station.silence, now)
                else:
                    self._do.fail(station, late, hopeless=False, now=now)
                self._do.halt(station, "its load took too long", now, hard=True)
            elif station.stage is Stage.STOPPING:
                self._stop_again(station, now)
            elif station.stage is Stage.PLANNED:
                self._do.unplan(station, now)
                station.retry_at = now + PLAN_LIMIT_MS

    def deadline(self, station: Station) -> int | None:
        """When a station that waits for an answer stops waiting."""
        if station.stage is Stage.LOADING:
            return station.since + self._do.load_limit(station) + LOAD_ANSWER_MS
        if station.stage is Stage.STOPPING:
            return station.since + STOP_LIMIT_MS
        if station.stage is Stage.PLANNED and station.clear_since is not None:
            return station.clear_since + PLAN_LIMIT_MS
        return None

    def _stop_again(self, station: Station, now: int) -> None:
        """Tells it once more. A host that cannot be asked has not refused: its models count until it answers."""
        station.stop_tries += station.silence is None
        if station.stop_tries < STOP_TRIES:
            self._do.halt(station, station.leaving_why, now, hard=True)
            return
        text = f"{station.name} does not go away; what it holds is counted as foreign use from now on"
        self._state.out.append(Alert("stuck", text, station.name))
        self._state.enter(station, Stage.ABSENT, now)
        why = "its engine could not be stopped"
        self._do.fail(station, why, hopeless=True, now=now, mishap=Mishap.STUCK)
