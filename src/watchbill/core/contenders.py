"""Contenders: the models that want memory, those that may leave for them, and whether their figures can be compared.

Questions about the state that every policy asks. A policy chooses only among these.
"""

from collections.abc import Iterable, Sequence

from watchbill.catalog import WorkClass
from watchbill.core.companions import Candidate
from watchbill.core.limited_lanes import is_kept_out
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Uncertain, Uncertainty
from watchbill.core.stages import AWAY, Stage
from watchbill.core.state import State

__all__ = [
    "is_held_back",
    "kept_out_by",
    "movable",
    "share_room",
    "uncertainty",
    "waiting",
    "wanted_elsewhere",
    "wanting",
    "yielding",
]


def wanting(state: State) -> list[Candidate]:
    """The models and sets that have work and are not in memory. One that is served elsewhere needs no memory here."""
    away = (*state.in_stage(*AWAY), *state.companion_sets.values())
    wanted: list[Candidate] = [s for s in away if s.wants_memory and s.spec.site is None]
    return [s for s in wanted if not is_held_back(state, s)] if state.leases_held_back else wanted


def is_held_back(state: State, model: Candidate) -> bool:
    """RES-23: whether only leased work wants it while a person works at this machine; also work that gave up, and whose
    turn is held: such a load would take the person's memory."""
    if not state.leases_held_back or model.spec.permanent:
        return False
    return min(model.top_class(), model.turn_class()) is WorkClass.LEASED


def wanted_elsewhere(state: State, now: int) -> list[ModelState]:
    """The models of other sites that have work, are not up, and may be tried: nothing here is in their way."""
    return [
        s
        for s in state.in_stage(Stage.ABSENT)
        if s.spec.site is not None and s.wants_memory and now >= s.retry_at and state.may_load(s, now)
    ]


def waiting(state: State, now: int) -> list[Candidate]:
    """The models that should be loaded and may be tried."""
    return [s for s in _tried(state, now) if not is_kept_out(state, s, now)]


def kept_out_by(state: State, leaving: Sequence[ModelState], now: int) -> list[Candidate]:
    """The models that should be loaded, too, once these have left, whose requests go before theirs in a lane."""
    kept_out = [s for s in _tried(state, now) if is_kept_out(state, s, now)]
    return [s for s in kept_out if not is_kept_out(state, s, now, leaving)]


def _tried(state: State, now: int) -> list[Candidate]:
    return [s for s in wanting(state) if now >= s.retry_at and state.may_load(s, now)]


def movable(state: State, target: Candidate | None = None) -> list[ModelState]:
    """The models that may leave for another one: not members of its own set, nor of a set under way."""
    own = () if target is None else target.members
    return [
        s
        for s in state.in_stage(Stage.READY, Stage.ASLEEP)
        if not (s.spec.permanent or s.is_kept_for_set or s in own or state.is_reserved_core(s))
        and s.silence is None  # its host cannot be asked to unload it, so it frees no memory
    ]


def yielding(state: State, target: Candidate, now: int) -> list[ModelState]:
    """The loads that seem to hang and make room for this model; for rotation only those that no request waits for."""
    explicit = target.top_class() is not WorkClass.ROTATION
    return [
        s
        for s in state.in_stage(Stage.LOADING)
        if s not in target.members and s.yields(now, target.top_class()) and (explicit or s.is_idle)
    ]


def share_room(one: Candidate, other: Candidate) -> bool:
    """Whether two models need something of the same resource."""
    return not one.needs.keys().isdisjoint(other.needs)


def uncertainty(state: State, candidates: Iterable[Candidate]) -> Uncertainty | None:
    """Why rates cannot be compared now; None when they can."""
    short = [model for model in candidates if state.shortage_of(model)]
    if not short:
        return None  # models that fit need no comparison
    for model in (*short, *state.in_stage(Stage.READY)):
        figure = None if model.spec.permanent else _uncertain_figure(model)
        if figure is not None and any(share_room(s, model) for s in short):
            return Uncertainty(figure, model.name)
    return None


def _uncertain_figure(model: Candidate) -> Uncertain | None:
    if model.load.is_guess:
        return Uncertain.LOAD_UNMEASURED
    if model.load.is_off:
        return Uncertain.LOAD_OFF
    if model.is_idle:
        return None  # its answers count in no price
    if model.service.is_guess:
        return Uncertain.ANSWERS_UNMEASURED
    return Uncertain.ANSWERS_OFF if model.service.is_off else None
