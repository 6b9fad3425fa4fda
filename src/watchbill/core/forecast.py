"""The forecast: when would a request start, if it joined now?

Optimistic on purpose: means and no margins. It decides whether a request is let in at all, and it is printed, so
that a caller can choose; the error between forecast and start is recorded for every request. A forecast that rests on
a guess says so: a guess refuses no request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchbill.catalog import WorkClass
from watchbill.core.eviction import cover
from watchbill.core.messages import Request
from watchbill.core.state import State
from watchbill.core.station import STAYING, Stage, Station

__all__ = ["Forecast", "forecast_start"]


class Forecast(NamedTuple):
    """When a request would start."""

    ms: float
    is_guess: bool  # a time that it rests on was never measured

    def plus(self, ms: float, *, guessed_by: Iterable[Station] = ()) -> "Forecast":
        """So much later, by the load times of these models."""
        return Forecast(self.ms + ms, self.is_guess or any(s.load.is_guess for s in guessed_by))

    def after(self, ms: float) -> "Forecast":
        """This late at the least."""
        return Forecast(max(self.ms, ms), self.is_guess)


#: What nothing stands in the way of, or nothing can be said about.
NOW = Forecast(0.0, False)


def forecast_start(
    state: State,
    station: Station,
    request: Request,
    now: int,
    *,
    ahead: Sequence[Station] = (),
    turn_in_ms: float = 0.0,
    stays: Callable[[Station], bool] = lambda _: False,
) -> Forecast:
    """When the request starts: once the model is warm and what stands before it is served.

    For a model that is not in memory: `ahead` are the models whose turn comes first, and its own turn does not begin
    before `turn_in_ms` where another one has to leave for it. A model that `stays` does not leave sooner though it
    runs dry for a moment: its callers are likely to come back.
    """
    if station.silence is not None or not state.ledger.can_forecast(station.needs):
        return (
            NOW  # maintenance, foreign use, a silent host: it waits up to its max_wait, nothing is foretold
        )
    warm = _Way(state, request.work_class, now, turn_in_ms, stays).until_warm(station, ahead)
    serving = station.serving
    running = serving.in_use if station.stage is Stage.READY else 0
    before = station.line.ahead_of(request)
    if serving is not station and station.stage is Stage.READY:
        before += serving.line.ahead_of(request)
    slot_ms = _until_slot(serving, before, running, request, now)
    return Forecast(warm.ms + slot_ms, warm.is_guess or (slot_ms > 0 and serving.service.is_guess))


def _until_slot(station: Station, ahead: int, running: int, request: Request, now: int) -> float:
    """Full rounds of the model's slots until every request before this one has been served."""
    slots = station.slots_for(request.work_class, now) or station.model.concurrency
    rounds = (ahead + running) // slots
    return rounds * station.service.ms * station.batch_factor(slots)


@dataclass(frozen=True, slots=True)
class _Way:
    """A model's way into memory, for work of one class."""

    state: State
    work_class: WorkClass
    now: int
    turn_in_ms: float
    stays: Callable[[Station], bool]

    def until_warm(self, station: Station, ahead: Sequence[Station]) -> Forecast:
        match station.stage:
            case Stage.READY:
                return NOW
            case Stage.LOADING:
                return NOW.plus(max(0.0, station.since + station.load.ms - self.now), guessed_by=[station])
            case Stage.PLANNED:
                bus = self._until_bus(
                    station, [s for s in self._coming() if s.plan_order < station.plan_order]
                )
                return bus.after(self._until_left(station)).plus(station.load.ms, guessed_by=[station])
            case Stage.DRAINING | Stage.STOPPING:
                bus = self._until_bus(station, self._coming())
                return bus.after(station.drain_ms(self.now)).plus(station.load.ms, guessed_by=[station])
            case Stage.ABSENT | Stage.ASLEEP:
                pause = max(0, station.retry_at - self.now)
                queue = sum(s.load.ms + min(s.quantum_ms, self._until_dry(s)) for s in ahead)
                room = self._until_room(station)
                bus = self._until_bus(station, self._coming())
                clear = Forecast(max(room.ms, bus.ms), room.is_guess or bus.is_guess)
                return clear.plus(pause + queue + station.load.ms, guessed_by=[station, *ahead])

    def _coming(self) -> tuple[Station, ...]:
        """The models on their way in."""
        return self.state.in_stage(Stage.PLANNED, Stage.LOADING)

    def _until_bus(self, station: Station, others: Sequence[Station]) -> Forecast:
        """Until the loads before this one have ended, where they share its bus (RES-24)."""
        own = station.members or (station,)
        one_bus = self.state.catalog.policy.parallel_loads == 1
        before = [
            s
            for s in others
            if s not in own
            and not s.is_stuck(self.now)
            and (one_bus or s.needs.keys() & station.needs.keys())
        ]
        left_ms = sum(
            max(0.0, s.since + s.load.ms - self.now) if s.stage is Stage.LOADING else s.load.ms
            for s in before
        )
        return NOW.plus(left_ms, guessed_by=before)

    def _until_left(self, target: Station) -> float:
        """Until the last of a plan's victims is gone."""
        leaving = (s.drain_ms(self.now) for s in self.state.managed if s.leaving_for == target.plan_for)
        return max(leaving, default=0.0)

    def _until_dry(self, station: Station) -> float:
        """Until a model has no work of this class or a higher one any more."""
        return station.service_of(station.work_of(self.work_class))

    def _until_room(self, station: Station) -> Forecast:
        """Until there is room: nothing when it fits, else until the victims that could go first are gone."""
        own = station.members or (station,)
        staying = [s for s in self.state.in_stage(*STAYING) if not s.model.permanent and s not in own]
        leaving = cover(self.state.shortage_of(station), staying, self._until_gone) or ()
        loading = [s for s in leaving if s.stage not in (Stage.READY, Stage.ASLEEP)]
        return NOW.plus(max(map(self._until_gone, leaving), default=0.0), guessed_by=loading)

    def _until_gone(self, station: Station) -> float:
        """Until a model could be gone: its load, then its turn or the end of its work, then its drain.

        A turn ends when the quantum is over and the other one's turn has come; a model that ran dry may go before
        that. What runs now may well end inside the turn: the longer of the two counts, not their sum.
        """
        now, dry_ms = self.now, self._until_dry(station)
        if station.stage in (Stage.READY, Stage.ASLEEP):
            quantum_ms = 0.0 if station.has_had_turn(now) else station.ready_at + station.quantum_ms - now
            turn_ms = max(quantum_ms, self.turn_in_ms)
            turn_ms = turn_ms if self.stays(station) else min(turn_ms, dry_ms)
            return max(turn_ms, station.residual(now)) + station.halt.ms
        load_ms = station.load.ms
        load_ms += station.since - now if station.stage is Stage.LOADING else self._until_left(station)
        turn_ms = max(station.quantum_ms, self.turn_in_ms - load_ms)
        return max(0.0, load_ms) + min(turn_ms, dry_ms) + station.halt.ms
