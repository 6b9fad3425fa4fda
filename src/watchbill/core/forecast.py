"""The forecast: when would a request start, if it joined now?

Optimistic on purpose: means and no margins. It decides whether a request is let in at all, and it is printed, so
that a caller can choose; the error between forecast and start is recorded for every request.
"""

from collections.abc import Sequence

from watchbill.core.eviction import cover
from watchbill.core.messages import Request
from watchbill.core.state import State
from watchbill.core.station import STAYING, Stage, Station

__all__ = ["expected_start_ms"]


def expected_start_ms(
    state: State, station: Station, request: Request, now: int, turns: Sequence[Station]
) -> float:
    """Milliseconds until the request starts: until the model is warm, then what stands before it."""
    if station.silence is not None or not state.ledger.can_forecast(station.needs):
        return (
            0.0  # maintenance, foreign use, a silent host: it waits up to its max_wait, nothing is foretold
        )
    warm = _until_warm(state, station, request, now, turns)
    serving = station.serving
    running = serving.in_use if station.stage is Stage.READY else 0
    ahead = station.line.ahead_of(request)
    if serving is not station and station.stage is Stage.READY:
        ahead += serving.line.ahead_of(request)
    return warm + _until_slot(serving, ahead, running, request, now)


def _until_slot(station: Station, ahead: int, running: int, request: Request, now: int) -> float:
    """Full rounds of the model's slots until everybody before this request has been served."""
    slots = station.slots_for(request.work_class, now) or station.model.concurrency
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
        case Stage.ABSENT | Stage.ASLEEP:
            pause = max(0, station.retry_at - now)
            queue = sum(s.load.ms + s.quantum_ms for s in _turns_before(station, request, turns))
            return pause + queue + _until_room(state, station, now) + station.load.ms


def _leaving(state: State, target: Station, now: int) -> float:
    """Until the last of a plan's victims is gone."""
    return max((s.drain_ms(now) for s in state.managed if s.leaving_for == target.plan_for), default=0.0)


def _until_room(state: State, station: Station, now: int) -> float:
    """Until there is room: nothing when it fits, else until the victims that could go first are gone."""

    def gone_in(victim: Station) -> float:
        return _gone_in(state, victim, now)

    own = station.members or (station,)
    staying = [s for s in state.in_stage(*STAYING) if not s.model.permanent and s not in own]
    leaving = cover(state.shortage_of(station), staying, gone_in)
    return max((gone_in(s) for s in leaving or ()), default=0.0)


def _gone_in(state: State, station: Station, now: int) -> float:
    """Until a model could be gone: its load and its quantum come first, then its drain.

    What runs now may well end inside the quantum: the longer of the two counts, not their sum.
    """
    if station.stage in (Stage.READY, Stage.ASLEEP):
        turn = 0.0 if station.has_had_turn(now) else station.ready_at + station.quantum_ms - now
        return max(turn, station.residual(now)) + station.halt.ms
    load = station.load.ms
    load = (
        station.since + load - now if station.stage is Stage.LOADING else _leaving(state, station, now) + load
    )
    return max(0.0, load) + station.quantum_ms + station.halt.ms


def _turns_before(station: Station, request: Request, turns: Sequence[Station]) -> list[Station]:
    """The models whose turn comes before this one's, and that need the same room."""
    own = station.due()
    due = request.arrived_at + request.max_wait_ms
    mine = (due if own is None else min(own, due), station.name)
    return [
        s
        for s in turns
        if s is not station and (s.due() or 0, s.name) < mine and s.needs.keys() & station.needs.keys()
    ]
