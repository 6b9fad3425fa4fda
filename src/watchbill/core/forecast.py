"""The forecast: when a request would start if it joined now.

The forecast is optimistic on purpose: it uses means and no margins. It decides whether a request is admitted, and it
is reported, so that a caller can choose. The error between forecast and start is recorded for every request. A
forecast that rests on a guess is marked as one: a guess refuses no request.

One figure in it is not optimistic: an answer in the way, which may run for as long again as it has run. So a forecast
also says how much earlier the request starts if that answer ends as soon as it may. A refusal goes by that.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import NamedTuple

from watchbill.catalog import WorkClass
from watchbill.core.companions import Candidate
from watchbill.core.cover import cover
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState
from watchbill.core.resources import Needs
from watchbill.core.running import BOUNDARY_MS, Running
from watchbill.core.stages import AWAY, STAYING, Stage
from watchbill.core.state import State

__all__ = [
    "Forecast",
    "Room",
    "ahead_in_lane",
    "can_forecast",
    "finds_place_kept",
    "forecast_start",
    "place_in_ms",
    "room_in_ms",
    "slot_in_ms",
    "until_lane",
    "until_place",
    "way_in_ms",
]


class Forecast(NamedTuple):
    """The time at which a request would start."""

    ms: float
    is_guess: bool  # it rests on a time that was never measured
    early_ms: float = 0.0  # how much earlier that may be: the answers in the way may end sooner

    @staticmethod
    def between(least_ms: float, ms: float) -> "Forecast":
        """A forecast that rests on no guess, and the earliest time that is possible."""
        return Forecast(ms, False, ms - least_ms)

    @property
    def least_ms(self) -> float:
        """When the request starts if the answers in the way end as soon as they may."""
        return self.ms - self.early_ms

    def plus(self, ms: float, *, guessed_by: Iterable[Candidate] = ()) -> "Forecast":
        """The forecast delayed by `ms`, which rests on the load times of these models."""
        is_guess = self.is_guess or any(s.is_load_unsure for s in guessed_by)
        return Forecast(self.ms + ms, is_guess, self.early_ms)

    def or_guess(self, is_guess: bool) -> "Forecast":
        """The same forecast, marked as a guess if it is one."""
        return Forecast(self.ms, self.is_guess or is_guess, self.early_ms)

    def after(self, ms: float) -> "Forecast":
        """The forecast delayed to `ms` at the least."""
        return self if ms <= self.least_ms else self.when_both(Forecast(ms, False))

    def when_both(self, other: "Forecast") -> "Forecast":
        """The later one of two forecasts, which both have to come."""
        ms, least_ms = max(self.ms, other.ms), max(self.least_ms, other.least_ms)
        return Forecast(ms, self.is_guess or other.is_guess, ms - least_ms)

    def before(self, ms: float) -> "Forecast":
        """The forecast, and at most `ms`."""
        least_ms, ms = min(self.least_ms, ms), min(self.ms, ms)
        return Forecast(ms, self.is_guess, ms - least_ms)


class Room(NamedTuple):
    """What a model lacks, and the models that do not leave for it: their place is kept for another one."""

    short: Needs
    kept: Sequence[ModelState]


#: A single answer that takes far longer than usual may be the first of many: the next one is expected in the middle.
LONG_SHARE = 0.5
#: The forecast of a request that can start now, and a stand-in where `can_forecast` is False.
NOW = Forecast(0.0, False)


def can_forecast(state: State, model: Candidate) -> bool:
    """Whether the start of a request can be forecast. While a device is lent or takes no loads, or the host of a model
    is silent, it waits up to its max_wait."""
    is_known = not model.is_cut_off and (model.silence is None or model.stage is Stage.READY)
    return is_known and state.ledger.can_forecast(model.needs)


def forecast_start(
    state: State,
    model: Candidate,
    request: Request,
    now: int,
    *,
    ahead: Sequence[Candidate] = (),
    turn_in_ms: float = 0.0,
    leaves_ms: Callable[[ModelState, float], float] = lambda _, dry_ms: dry_ms,
    room: Room | None = None,
) -> Forecast:
    """When the request starts: once the model is warm and the requests before it are served.

    For a model that is not in memory, `ahead` are the models whose turn comes first. Its own turn does not begin
    before `turn_in_ms` where another model has to leave to make `room` for it. `leaves_ms` is when a
    model leaves that runs dry at a time: its callers are likely to come back.
    """
    if not can_forecast(state, model):
        return NOW
    warm = _Arrival(state, now, turn_in_ms, leaves_ms, room).until_warm(model, ahead)
    serving = model.serving
    running = serving.in_use if model.stage is Stage.READY else 0
    before = model.line.ahead_of(request)
    if serving is not model and model.stage is Stage.READY:
        before += serving.line.ahead_of(request)
    if serving.is_suspect and model.stage is Stage.READY:
        # It is asked whether it is well, and may have to be loaded anew.
        warm = Forecast(serving.recovery_ms(now), is_guess=True)
    slot = _until_slot(serving, before, running, request, now)
    lane = until_place(state, model, request, now)
    found = Forecast(warm.ms + slot.ms, warm.is_guess or slot.is_guess, warm.early_ms)
    return found if lane is NOW else found.when_both(lane)


def room_in_ms(state: State, model: Candidate, now: int) -> float:
    """When there is room for a model, if the turn of the models in its way ends as soon as it may."""
    arrival = _Arrival(state, now, 0.0, lambda _, dry_ms: dry_ms, None)
    return arrival.until_room(model).ms


def way_in_ms(state: State, model: Candidate, now: int) -> float:
    """When a model is warm, if the turn of the models in its way ends as soon as it may."""
    return _Arrival(state, now, 0.0, lambda _, dry_ms: dry_ms, None).until_warm(model, ()).ms


def until_lane(
    state: State,
    model: Candidate,
    request: Request,
    now: int,
    *,
    ahead: Sequence[tuple[Candidate, int]] | None = None,
) -> Forecast:
    """Until one more request of this lane may run; most lanes have no limit of their own.

    All that wait in the lane before it go first, or only these, so many of each line.
    """
    lane = state.catalog.lanes.get(request.lane)
    if lane is None or lane.concurrency is None:
        return NOW
    limit = lane.concurrency
    every = [(s, r) for s in state.models.values() for r in s.running.values() if r.request.lane == lane.name]
    ahead = list(ahead_in_lane(state, request, now)) if ahead is None else ahead
    kept = {line.name: _kept_ms(state, line, model, now) for line, _ in ahead}
    if len(every) < limit and model.serving.can_start(request.work_class, now) and not any(kept.values()):
        return NOW  # what waits before it in its lane waits for another model, which cannot start it yet
    left = sorted(_left_ms(r, s.service.ms, request, now) for s, r in every)
    places = [0.0] * (limit - len(left)) + left[max(0, len(left) - limit) :]
    is_guess = any(s.service.is_guess or now - r.since > s.usual_ms for s, r in every)
    for line, count in ahead:
        is_guess = is_guess or line.service.is_guess
        for number in range(count):
            way_ms = 0.0 if number else kept[line.name]
            heapreplace(places, places[0] + way_ms + line.service.ms)
    return Forecast(places[0], places[0] > 0 and is_guess)


def place_in_ms(state: State, request: Request, now: int) -> float:
    """When the next answer of its lane ends, as far as answers take as long as usual."""
    every = (
        (s, r) for s in state.models.values() for r in s.running.values() if r.request.lane == request.lane
    )
    return min((_left_ms(r, s.service.ms, request, now) for s, r in every), default=0.0)


def slot_in_ms(model: ModelState, request: Request, ahead: int, now: int) -> float:
    """When a model in memory could start a request that has so many of its line before it."""
    return _until_slot(model, ahead, model.in_use, request, now).ms


def until_place(state: State, model: Candidate, request: Request, now: int) -> Forecast:
    """Until a request may start in its lane, where the place is kept for it while its model is loaded."""
    lane = until_lane(state, model, request, now)
    if lane.ms and model.stage is not Stage.READY and finds_place_kept(state, model, request, now):
        return lane.plus(way_in_ms(state, model, now), guessed_by=[model])
    return lane


def finds_place_kept(state: State, model: Candidate, request: Request, now: int) -> bool:
    """Whether a place of its lane will be kept for a request while its model is loaded: the answers that run now take
    longer than that."""
    models = state.models.values()
    runs = [s for s in models if any(r.request.lane == request.lane for r in s.running.values())]
    return way_in_ms(state, model, now) < min((s.service.ms for s in runs), default=math.inf)


def _kept_ms(state: State, line: Candidate, model: Candidate, now: int) -> float:
    """How long a place is kept for a model that comes into memory, before a request for another one gets it."""
    if line.stage is Stage.READY or model.stage is not Stage.READY:
        return 0.0
    way_ms = way_in_ms(state, line, now)
    return way_ms if way_ms < model.service.ms else 0.0


def ahead_in_lane(
    state: State, request: Request, now: int, lines: Iterable[Candidate] | None = None
) -> Iterator[tuple[Candidate, int]]:
    """How many requests of its lane wait before this one in each line: all that do, where it is in none yet."""
    if not state.lane_waiting.get(request.lane):
        return
    own = state.home.get(request.id)
    rank = own.line.rank(request.id, now + own.service.ms) if own and request.id in own.line else None
    for line in state.lines() if lines is None else lines:
        if not (count := line.line.lanes.get(request.lane, 0)):
            continue
        if rank is not None:
            urgent_at = now + line.service.ms
            of_lane = (id for id in line.line.ids() if line.line.get(id).lane == request.lane)
            count = sum(line.line.rank(id, urgent_at) < rank for id in of_lane)
        if count:
            yield line, count


def _until_slot(model: ModelState, ahead: int, running: int, request: Request, now: int) -> Forecast:
    """Until a slot is free for this request, by full rounds of the slots after the answers that run now."""
    slots = model.slots_for(request.work_class, now) or model.spec.concurrency
    rounds, place = divmod(ahead, slots)
    if not rounds and place < slots - running:
        return NOW
    usual_ms = model.service.ms * model.batch_factor(slots)
    round_ms = model.likely_ms(now, single=LONG_SHARE) * model.batch_factor(slots)
    left = sorted(_left_ms(r, round_ms, request, now) for r in model.running.values()) if running else []
    left += [round_ms] * (running - len(left))  # cut runs that the engine still works on
    free = max(0, slots - running)
    slot_ms = rounds * round_ms + ([0.0] * free + left)[place]
    is_late = any(now - r.since > usual_ms for r in model.running.values())
    is_unsure = model.service.is_guess or model.service.is_doubtful(())
    return Forecast(slot_ms, is_late or (slot_ms > 0 and is_unsure))


def _left_ms(running: Running, usual_ms: float, request: Request, now: int) -> float:
    """How much longer an answer runs: the rest of its usual time, then as long as it has been late.

    Whatever no person waits for makes way for a person at its next boundary.
    """
    left = abs(usual_ms - (now - running.since))
    makes_way = request.work_class is WorkClass.INTERACTIVE and running.makes_way
    return min(left, BOUNDARY_MS) if makes_way else left


@dataclass(slots=True)
class _Arrival:
    """A model's way into memory."""

    state: State
    now: int
    turn_in_ms: float
    leaves_ms: Callable[[ModelState, float], float]
    room: Room | None

    def until_warm(self, model: Candidate, ahead: Sequence[Candidate]) -> Forecast:
        match model.stage:
            case Stage.READY:
                return NOW
            case Stage.LOADING:
                return self._rest_of_load(model)
            case Stage.PLANNED:
                planned = model.serving  # a set is never planned: its members are
                bus = self._until_bus(model, [s for s in self._coming() if s.plan_order < planned.plan_order])
                left = Forecast.between(self._until_left(planned, least=True), self._until_left(planned))
                return bus.when_both(left).plus(model.next_load_ms, guessed_by=[model])
            case Stage.ABSENT | Stage.ASLEEP | Stage.DRAINING | Stage.STOPPING:
                away = model.stage in AWAY
                pause = max(0, model.retry_at - self.now)
                queue = sum(s.next_load_ms + min(s.quantum_ms, self._until_dry(s)) for s in ahead)
                room = self.until_room(model)
                bus = self._until_bus(model, self._coming())
                clear = room.when_both(bus)
                clear = clear.plus(pause) if away else clear.when_both(self._until_drained(model))
                return clear.plus(queue + model.next_load_ms, guessed_by=[model, *ahead])

    def _rest_of_load(self, model: Candidate) -> Forecast:
        """A load that is late may end at any time, so the rest of it is a guess."""
        if model.is_set:  # its load time is what is left of its members'
            return NOW.plus(model.load.ms, guessed_by=[model])
        serving = model.serving
        left = NOW.plus(serving.load_left_ms(self.now), guessed_by=[serving])
        return left.or_guess(self.now - serving.since > serving.load.ms)

    def _coming(self) -> tuple[ModelState, ...]:
        """The models on their way in."""
        return self.state.in_stage(Stage.PLANNED, Stage.LOADING)

    def _until_bus(self, model: Candidate, others: Sequence[ModelState]) -> Forecast:
        """Until the loads before this one have ended, where they use the same bus (RES-24)."""
        if model.spec.site is not None:
            return NOW  # it is loaded elsewhere
        own = model.members
        one_bus = self.state.catalog.policy.parallel_loads == 1
        before = [
            s
            for s in others
            if s not in own
            and not s.is_stuck(self.now)
            and s.spec.site is None
            and (one_bus or s.needs.keys() & model.needs.keys())
        ]
        loading = [s for s in before if s.stage is Stage.LOADING]
        left_ms = sum(s.load_left_ms(self.now) if s in loading else s.load.ms for s in before)
        late = any(self.now - s.since > s.load.ms for s in loading)
        return NOW.plus(left_ms, guessed_by=before).or_guess(late)

    def _until_drained(self, model: Candidate) -> Forecast:
        """Until a model that leaves is gone."""
        return Forecast.between(model.drain_ms(self.now, least=True), model.drain_ms(self.now))

    def _until_left(self, target: ModelState, *, least: bool = False) -> float:
        """Until the last of a plan's victims is gone."""
        leaving = [s for s in self.state.managed if s.leaving_for == target.plan_for]
        return max((s.drain_ms(self.now, least=least) for s in leaving), default=0.0)

    def _until_dry(self, model: Candidate) -> float:
        """Until a model has no more work."""
        serving = model.serving
        longer = serving.likely_ms(self.now) / serving.service.ms
        return longer * model.service_of(len(model.running) + len(model.line))

    def until_room(self, model: Candidate) -> Forecast:
        """Until there is room: 0 when it fits, otherwise until the first possible victims are gone."""
        room = self.room or Room(self.state.shortage_of(model), ())
        keep = (*model.members, *room.kept)
        staying = [s for s in self.state.in_stage(*STAYING) if not s.spec.permanent and s not in keep]
        leaving = cover(room.short, staying, self._until_gone) or ()
        loading = [s for s in leaving if s.stage not in (Stage.READY, Stage.ASLEEP)]
        gone_ms = max(map(self._until_gone, leaving), default=0.0)
        least_ms = max((self._until_gone(s, least=True) for s in leaving), default=0.0)
        is_guess = any(s.is_load_unsure for s in loading)
        return Forecast(gone_ms, is_guess, gone_ms - least_ms)

    def _until_gone(self, model: ModelState, *, least: bool = False) -> float:
        """Until a model could be gone: its load, then its turn or the end of its work, then its drain.

        A turn ends when the quantum is over and the other model's turn has come. A model that ran dry may leave
        earlier. Running requests may end inside the turn: the longer of the two counts, not their sum.
        """
        now, dry_ms = self.now, self._until_dry(model)
        if model.stage in (Stage.READY, Stage.ASLEEP):
            quantum_ms = 0.0 if model.has_had_turn(now) else model.ready_at + model.quantum_ms - now
            turn_ms = max(quantum_ms, self.turn_in_ms)
            turn_ms = min(turn_ms, self.leaves_ms(model, dry_ms))
            return max(turn_ms, model.residual(now, least=least)) + model.halt.ms
        if model.yields(now):
            return model.halt.ms
        is_loading = model.stage is Stage.LOADING
        left_ms = 0.0 if is_loading else self._until_left(model, least=least)
        load_ms = model.load_left_ms(now) if is_loading else model.load.ms + left_ms
        turn_ms = max(model.quantum_ms, self.turn_in_ms - load_ms)
        turn_ms = min(load_ms + turn_ms, self.leaves_ms(model, load_ms + dry_ms))
        return (min(turn_ms, model.yields_at - now) if is_loading else turn_ms) + model.halt.ms
