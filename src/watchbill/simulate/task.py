"""A background task in a simulated world: one request in the lane of the rotation."""

import random
from collections.abc import Callable
from typing import Protocol

from watchbill.catalog import ROTATION_LANE
from watchbill.core import messages as m
from watchbill.simulate.callers import Caller

__all__ = ["run_task"]


class _World(Protocol):
    """What a task needs of its world."""

    now: float
    random: random.Random

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def feed(self, event: m.Event) -> None: ...
    def arrive(
        self, model: str, work_ms: float, *, lane: str, then: Callable[[Caller], None] | None = None
    ) -> Caller: ...


def run_task(world: _World, action: m.RunTask) -> None:
    """Asks the model, and tells the core what came of it."""
    began = world.now

    def ended(caller: Caller) -> None:
        useful = round(world.now - caller.granted_at) if caller.started_at is not None else 0
        waited = round((caller.started_at or world.now) - began)
        done = caller.outcome == "answered"
        world.feed(m.TaskEnded(action.model, waited, useful, done, caller.outcome))

    work = world.random.uniform(1_000, 5_000)

    def ask() -> None:
        world.arrive(action.model, work, lane=ROTATION_LANE.name, then=ended)

    world.at(world.now, ask)
