"""Doubt: whether what was learned about the models concerned is good enough to compare rates of useful work.

Concerned are the models that wait for room and those that hold it. A figure is in doubt while it is a guess, and while
measurements are more than three times off it (`estimate` says when). Then `turns` decides, which needs none; new
measurements end the doubt.
"""

from collections.abc import Iterable

from watchbill.core.state import State
from watchbill.core.station import Stage, Station

__all__ = ["doubt"]


def doubt(state: State, candidates: Iterable[Station]) -> str | None:
    """Why rates cannot be compared now, or None: what is in doubt about whom."""
    short = [station for station in candidates if state.shortage_of(station)]
    if not short:
        return None  # what fits needs no comparison
    for station in (*short, *state.in_stage(Stage.READY)):
        why = None if station.model.permanent else _doubt_about(station)
        if why is not None and any(not s.needs.keys().isdisjoint(station.needs) for s in short):
            return f"{why} of {station.name}"
    return None


def _doubt_about(station: Station) -> str | None:
    if station.load.is_guess:
        return "nothing was measured yet of the load"
    if station.load.is_off:
        return "the last load was more than 3 times off the learned time"
    if station.is_idle:
        return None  # its answers do not count in any price
    if station.service.is_guess:
        return "nothing was measured yet of the answers"
    if station.service.is_off:
        return "answers take more than 3 times the learned time"
    return None
