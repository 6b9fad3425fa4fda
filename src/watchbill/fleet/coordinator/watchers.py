"""Watchers: what is noticed about agents and their tasks over time, and the steps it leads to. Pure.

A task is **stuck** when it has shown no sign of progress (`headway`) for `stuck_after`, or for its timeout where it
has one. Then:

    1. abort     the agent is asked to end the worker
    2. kill      two minutes later, if the task is still held
    3. give up   two minutes later: the task is left to a person

Time in which the agent's device is constrained does not count: a card that cools down is not stuck (FLEET-04). A task
is **stranded** when no living agent could run it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from watchbill.fleet import limits
from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.matching.abilities import Ability, Lack, Need, lack_of
from watchbill.limits import STUCK_AFTER_MS

__all__ = ["Held", "Ladder", "Step", "Stranded"]


class Step(IntEnum):
    """How far the ladder has been climbed."""

    NONE = 0
    ABORT = 1
    KILL = 2
    GIVE_UP = 3


@dataclass(frozen=True, slots=True)
class Held:
    """A task that an agent holds, as a look finds it."""

    name: str  # of its slip
    agent: str
    headway: Headway
    timeout_ms: int = 0
    is_constrained: bool = False


@dataclass(slots=True)
class _Climb:
    headway: Headway  # at the last sign of progress
    seen_ms: int
    idle_ms: int = 0
    step: Step = Step.NONE
    step_ms: int = 0


class Ladder:
    """Who is stuck. Knows only what it saw itself: a new coordinator counts from its start."""

    def __init__(self, stuck_after_ms: int = STUCK_AFTER_MS) -> None:
        self._stuck_after_ms = stuck_after_ms
        self._climbs: dict[str, _Climb] = {}

    def look(self, held: Iterable[Held], now_ms: int) -> list[tuple[Held, Step]]:
        """The steps that are due, given everything that is held now."""
        climbs: dict[str, _Climb] = {}
        due: list[tuple[Held, Step]] = []
        for each in held:
            climb = climbs[each.name] = self._climbs.get(each.name) or _Climb(each.headway, now_ms)
            step = self._next(climb, each, now_ms)
            if step is not Step.NONE:
                climb.step, climb.step_ms = step, now_ms
                due.append((each, step))
        self._climbs = climbs
        return due

    def _next(self, climb: _Climb, held: Held, now_ms: int) -> Step:
        passed_ms, climb.seen_ms = now_ms - climb.seen_ms, now_ms
        if climb.step is Step.NONE:
            if held.headway.is_beyond(climb.headway):
                climb.headway, climb.idle_ms = held.headway, 0
            elif not held.is_constrained:
                climb.idle_ms += passed_ms
            bound_ms = held.timeout_ms or self._stuck_after_ms
            return Step.ABORT if climb.idle_ms >= bound_ms else Step.NONE
        if climb.step is Step.GIVE_UP or now_ms - climb.step_ms < limits.STUCK_STEP_MS:
            return Step.NONE
        return Step(climb.step + 1)


class Stranded:
    """Needs of waiting tasks that no living agent meets: each is told once when it has lasted for some time."""

    def __init__(self) -> None:
        self._since_ms: dict[Need, int] = {}
        self._told: set[Need] = set()

    def look(self, needs: Iterable[Need], living: Iterable[Ability], now_ms: int) -> list[tuple[Need, Lack]]:
        """The needs to tell people about now, and what is missing."""
        agents = list(living)
        lacks = {need: lack for need in dict.fromkeys(needs) if (lack := lack_of(need, agents)) is not None}
        self._since_ms = {need: self._since_ms.get(need, now_ms) for need in lacks}
        self._told &= lacks.keys()
        due = [
            (need, lack)
            for need, lack in lacks.items()
            if need not in self._told and now_ms - self._since_ms[need] >= limits.STRANDED_MS
        ]
        self._told.update(need for need, _ in due)
        return due
