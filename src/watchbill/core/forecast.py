"""The forecast: when would a request start, if it joined now?

Optimistic on purpose: means and no margins. It decides whether a request is let in at all, and it is printed, so
that a caller can choose; the error between forecast and start is recorded for every request.
"""

from collections.abc import Sequence

from watchbill.core.budget import shortage
from watchbill.core.eviction import cover
from watchbill.core.messages import Request
from watchbill.core.state import State
from watchbill.core.station import Stage, Station

__all__ = ["expected_start_ms"]


def expected_start_ms(
    state: State, station: Station, request: Request, now: int, turns: Sequence[Station]
) -> float:
    """Milliseconds until the request starts: until the model is warm, then what stands before it."""
    if not state.can_forecast(station):
        return 0.0  # maintenance, foreign use: it waits up to its max_wait, nothing is foretold
    warm = _until_warm(state, station, request, now, turns)
    running = len(station.running) if station.stage is Stage.READY else 0
    return warm + _until_slot(station, station.line.ahead_of(request), running, request, now)


def _until_slot(station: Station, ahead: int, running: int, request: Request, now: int) -> float:
    """Full rounds of the model's slots until everybody before this request has been served."""
    slots = station.slots_for(request.work_class, now)
    rounds = (ahead + running) // slots
    return rounds * station.service.ms * station.batch_factor(slots)


def _until_warm(
    state: State, station: Station, request: Request, now: int, turns: Sequence[Station]
) -> float:
    match station.stage:
        case Stage.READY:
            return 0.0
        case Stage.LOADING:
            return max(0.0, station.since + station.load.ms - now)
        case Stage.PLANNED:
            return _leaving(state, station, now) + station.load.ms
        case Stage.DRAINING | Stage.STOPPING:
            return station.drain_ms(now) + station.load.ms
        case Stage.ABSENT:
            pause = max(0, station.retry_at - now)
            ahead = [
                s for s in turns if s is not station and _goes_before(s, request) and _conflict(s, station)
            ]
            queue = sum(s.load.ms + s.quantum_ms for s in ahead)
            return pause + queue + _room(state, station, now) + station.load.ms


def _leaving(state: State, target: Station, now: int) -> float:
    """Until the last of a plan's victims is gone."""
    return max((s.drain_ms(now) for s in state.managed() if s.leaving_for == target.name), default=0.0)


def _room(state: State, station: Station, now: int) -> float:
    """Until there is room: nothing when it fits, else the drain of the victims that could go first."""
    victims = cover(
        shortage(station.needs, state.planned_free(station)),
        [s for s in state.in_stage(Stage.READY, Stage.LOADING) if not s.model.permanent],
        lambda s: s.drain_ms(now),
    )
    return max((s.drain_ms(now) for s in victims or ()), default=0.0)


def _goes_before(station: Station, request: Request) -> bool:
    due = station.due()
    return due is not None and due <= request.arrived_at + request.max_wait_ms


def _conflict(one: Station, other: Station) -> bool:
    return bool(one.needs.keys() & other.needs.keys())
