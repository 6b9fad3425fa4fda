"""A model that is asked something easy, in a simulated world: it fails as often as any answer does."""

import random
from collections.abc import Callable
from typing import Protocol

from watchbill.core import messages as m
from watchbill.simulate.callers import Faults
from watchbill.simulate.engine import Power, SimEngine

__all__ = ["check"]

#: What the engine layer waits for an answer; the core waits a little longer.
PATIENCE_MS = 60_000


class _World(Protocol):
    """What a check needs of its world."""

    now: float
    random: random.Random
    faults: Faults
    engines: dict[str, SimEngine]

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def happens(self, chance: float) -> bool: ...
    def feed(self, event: m.Event) -> None: ...


def check(world: _World, action: m.Check) -> None:
    """Asks the engine; one that is gone, and some others, say nothing."""
    if world.engines[action.model].frozen_at is not None:
        world.at(
            world.now + PATIENCE_MS, lambda: world.feed(m.Checked(action.model, action.attempt, "no answer"))
        )
        return
    lost = world.happens(world.faults.answer_lost)
    failure = "simulated failure" if world.happens(world.faults.answer_fails) else None

    def answer() -> None:
        engine = world.engines[action.model]
        if engine.power is Power.WARM and engine.attempt == action.attempt and not lost:
            world.feed(m.Checked(action.model, action.attempt, failure))

    world.at(world.now + world.random.uniform(20, 1_000), answer)
