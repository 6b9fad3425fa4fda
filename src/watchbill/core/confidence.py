"""Doubt: whether what was learned about the models concerned is good enough to compare rates of useful work.

Concerned are the models that wait for room and those that hold it. A figure is in doubt while it is a guess, and while
measurements are more than three times off it (`estimate` says when). Then `turns` decides, which needs none; new
measurements end the doubt.
"""

from collections.abc import Iterable

from watchbill.core.model_state import ModelState, Stage
from watchbill.core.state import State

__all__ = ["doubt"]


def doubt(state: State, candidates: Iterable[ModelState]) -> str | None:
    """Why rates cannot be compared now, or None: what is in doubt about whom."""
    short = [model for model in candidates if state.shortage_of(model)]
    if not short:
        return None  # what fits needs no comparison
    for model in (*short, *state.in_stage(Stage.READY)):
        why = None if model.spec.permanent else _doubt_about(model)
        if why is not None and any(not s.needs.keys().isdisjoint(model.needs) for s in short):
            return f"{why} of {model.name}"
    return None


def _doubt_about(model: ModelState) -> str | None:
    if model.load.is_guess:
        return "nothing was measured yet of the load"
    if model.load.is_off:
        return "the last load was more than 3 times off the learned time"
    if model.is_idle:
        return None  # its answers do not count in any price
    if model.service.is_guess:
        return "nothing was measured yet of the answers"
    if model.service.is_off:
        return "answers take more than 3 times the learned time"
    return None
