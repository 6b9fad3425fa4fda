"""The forecast: when a request would start if it joined now.

The forecast is optimistic on purpose: it uses means and no margins. It decides whether a request is admitted, and it
is reported, so that a caller can choose. The error between forecast and start is recorded for every request. A
forecast that rests on a guess is marked as one: a guess refuses no request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchbill.catalog import WorkClass
from watchbill.core.cover import cover
from watchbill.core.messages import Request
from watchbill.core.model_state import STAYING, Candidate, ModelState, Stage
from watchbill.core.state import State

__all__ = ["Forecast", "can_forecast", "forecast_start"]


class Forecast(NamedTuple):
    """The time at which a request would start."""

    ms: float
    is_guess: bool  # it rests on a time that was never measured

    def plus(self, ms: float, *, guessed_by: Iterable[Candidate] = ()) -> "Forecast":
        """The forecast delayed by `ms`, which rests on the load times of these models."""
        return Forecast(self.ms + ms, self.is_guess or any(s.load.is_guess for s in guessed_by))

    def or_guess(self, is_guess: bool) -> "Forecast":
        """The same forecast, marked as a guess if it is one."""
        return Forecast(self.ms, self.is_guess or is_guess)

    def after(self, ms: float) -> "Forecast":
        """The forecast delayed to `ms` at the least."""
        return Forecast(max(self.ms, ms), self.is_guess)


#: The forecast of a request that can start now, and a stand-in where `can_forecast` is False.
NOW = Forecast(0.0, False)


def can_forecast(state: State, model: Candidate) -> bool:
    """Whether the start of a request can be forecast. While a device is lent or takes no loads, or the host of a model
    is silent, it waits up to its max_wait."""
    return model.silence is None and state.ledger.can_forecast(model.needs)


def forecast_start(
    state: State,
    model: Candidate,
    request: Request,
    now: int,
    *,
    ahead: Sequence[Candidate] = (),
    turn_in_ms: float = 0.0,
    stays: Callable[[ModelState], bool] = lambda _: False,
) -> Forecast:
    """When the request starts: once the model is warm and the requests before it are served.

    For a model that is not in memory, `ahead` are the models whose turn comes first. Its own turn does not begin
    before `turn_in_ms` where another model has to leave for it. A model that `stays` does not leave sooner when it
    runs dry for a moment: its callers are likely to come back.
    """
    if not can_forecast(state, model):
        return NOW
    warm = _Arrival(state, request.work_class, now, turn_in_ms, stays).until_warm(model, ahead)
    serving = model.serving
    running = serving.in_use if model.stage is Stage.READY else 0
    before = model.line.ahead_of(request)
    if serving is not model and model.stage is Stage.READY:
        before += serving.line.ahead_of(request)
    if serving.is_suspect and model.stage is Stage.READY:
        # It is asked whether it is well, and may have to be loaded anew.
        warm = Forecast(serving.recovery_ms(now), is_guess=True)
    slot_ms = _until_slot(serving, before, running, request, now)
    return Forecast(warm.ms + slot_ms, warm.is_guess or (slot_ms > 0 and serving.service.is_guess))


def _until_slot(model: ModelState, ahead: int, running: int, request: Request, now: int) -> float:
    """Full rounds of the model's slots until every request before this one has been served.

    Of the first round the age of the oldest answer is over: optimistic, because a long answer may take longer still.
    """
    slots = model.slots_for(request.work_class, now) or model.spec.concurrency
    rounds = (ahead + running) // slots
    if not rounds:
        return 0.0
    round_ms = model.service.ms * model.batch_factor(slots)
    age_ms = max((now - r.since for r in model.running.values()), default=0) if running else 0
    return rounds * round_ms - min(age_ms, round_ms)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A model's way into memory, for work of one class."""

    state: State
    work_class: WorkClass
    now: int
    turn_in_ms: float
    stays: Callable[[ModelState], bool]

    def until_warm(self, model: Candidate, ahead: Sequence[Candidate]) -> Forecast:
        match model.stage:
            case Stage.READY:
                return NOW
            case Stage.LOADING:
                return self._rest_of_load(model)
            case Stage.PLANNED:
                planned = model.serving  # a set is never planned: its members are
                bus = self._until_bus(model, [s for s in self._coming() if s.plan_order < planned.plan_order])
                return bus.after(self._until_left(planned)).plus(model.load.ms, guessed_by=[model])
            case Stage.DRAINING | Stage.STOPPING:
                bus = self._until_bus(model, self._coming())
                return bus.after(model.drain_ms(self.now)).plus(model.load.ms, guessed_by=[model])
            case Stage.ABSENT | Stage.ASLEEP:
                pause = max(0, model.retry_at - self.now)
                queue = sum(s.load.ms + min(s.quantum_ms, self._until_dry(s)) for s in ahead)
                room = self._until_room(model)
                bus = self._until_bus(model, self._coming())
                clear = Forecast(max(room.ms, bus.ms), room.is_guess or bus.is_guess)
                return clear.plus(pause + queue + model.load.ms, guessed_by=[model, *ahead])

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

    def _until_left(self, target: ModelState) -> float:
        """Until the last of a plan's victims is gone."""
        leaving = (s.drain_ms(self.now) for s in self.state.managed if s.leaving_for == target.plan_for)
        return max(leaving, default=0.0)

    def _until_dry(self, model: Candidate) -> float:
        """Until a model has no more work of this class or a higher one."""
        return model.service_of(model.work_of(self.work_class))

    def _until_room(self, model: Candidate) -> Forecast:
        """Until there is room: 0 when it fits, otherwise until the first possible victims are gone."""
        own = model.members
        staying = [s for s in self.state.in_stage(*STAYING) if not s.spec.permanent and s not in own]
        leaving = cover(self.state.shortage_of(model), staying, self._until_gone) or ()
        loading = [s for s in leaving if s.stage not in (Stage.READY, Stage.ASLEEP)]
        return NOW.plus(max(map(self._until_gone, leaving), default=0.0), guessed_by=loading)

    def _until_gone(self, model: ModelState) -> float:
        """Until a model could be gone: its load, then its turn or the end of its work, then its drain.

        A turn ends when the quantum is over and the other model's turn has come. A model that ran dry may leave
        earlier. Running requests may end inside the turn: the longer of the two counts, not their sum.
        """
        now, dry_ms = self.now, self._until_dry(model)
        if model.stage in (Stage.READY, Stage.ASLEEP):
            quantum_ms = 0.0 if model.has_had_turn(now) else model.ready_at + model.quantum_ms - now
            turn_ms = max(quantum_ms, self.turn_in_ms)
            turn_ms = turn_ms if self.stays(model) else min(turn_ms, dry_ms)
            return max(turn_ms, model.residual(now)) + model.halt.ms
        if model.yields(now):
            return model.halt.ms
        is_loading = model.stage is Stage.LOADING
        load_ms = model.load_left_ms(now) if is_loading else model.load.ms + self._until_left(model)
        turn_ms = load_ms + min(max(model.quantum_ms, self.turn_in_ms - load_ms), dry_ms)
        return (min(turn_ms, model.yields_at - now) if is_loading else turn_ms) + model.halt.ms
