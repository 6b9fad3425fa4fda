"""Engines that sleep, in a simulated world: when they are told, and when nobody has used them for their time."""

import random
from collections.abc import Callable
from typing import Protocol

from watchbill.catalog import Model
from watchbill.core import messages as m
from watchbill.simulate.callers import Faults, Tally
from watchbill.simulate.engine import Power, SimEngine

__all__ = ["nod_off", "reading", "sleep", "wake"]


class _World(Protocol):
    """What sleeping engines need of their world."""

    now: float
    random: random.Random
    faults: Faults
    declared: dict[str, Model]
    engines: dict[str, SimEngine]
    tally: Tally

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def happens(self, chance: float) -> bool: ...
    def look(self) -> None: ...
    def feed(self, event: m.Event) -> None: ...
    def loaded(self, engine: SimEngine, attempt: int, began: float, fails: bool) -> None: ...
    def stopped(self, engine: SimEngine, attempt: int, lost: bool) -> None: ...


def wake(world: _World, action: m.Rouse) -> None:
    """Wakes an engine: a load with a shorter time."""
    engine = world.engines[action.model]
    engine.power, engine.attempt = Power.LOADING, action.attempt
    engine.held = dict(engine.model.memory)
    began, fails = world.now, world.happens(world.faults.load_fails)
    world.tally.wakings += 1
    taken = engine.model.wake_ms * world.random.uniform(*world.faults.jitter)
    world.at(world.now + taken, lambda: world.loaded(engine, action.attempt, began, fails))


def sleep(world: _World, action: m.Sleep) -> None:
    """Tells an engine to sleep; one that fails is stopped instead."""
    engine = world.engines[action.model]
    engine.power, engine.attempt = Power.STOPPING, action.attempt
    fails = world.happens(world.faults.load_fails)

    def ended() -> None:
        if fails:
            world.stopped(engine, action.attempt, lost=False)
        elif engine.power is Power.STOPPING and engine.attempt == action.attempt:
            engine.sleep()
            world.look()
            world.feed(m.Slept(engine.model.name, action.attempt, dict(engine.held)))

    world.at(world.now + world.random.uniform(*engine.model.stop_ms), ended)


def reading(model: Model, engine: SimEngine) -> m.ModelReading:
    """What a look shows of an engine."""
    asleep = engine.power is Power.ASLEEP if model.sleep_ms is not None else None
    return m.ModelReading(engine.attempt, engine.power is not Power.DEAD, dict(engine.held), asleep)


def nod_off(world: _World) -> None:
    """Engines that nobody tells fall asleep when they had nothing to do for their time."""
    for name, engine in world.engines.items():
        model = world.declared[name]
        is_at_work = engine.jobs or engine.lingering or engine.frozen_at is not None
        idle = engine.power is Power.WARM and not is_at_work and model.sleep_ms is not None
        if idle and not model.sleeps_when_told and world.now >= engine.used_at + (model.sleep_ms or 0):
            engine.sleep()
