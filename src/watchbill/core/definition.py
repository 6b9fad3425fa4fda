"""A model's definition: what a changed key does to the model while it is in memory.

Only what the running process was started with, where it answers, and what it occupies is worth a restart. Everything
else Watchbill itself reads, and takes over while the model stays warm.
"""

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum

from watchbill.catalog import Catalog, Model

__all__ = ["EFFECTS", "SEEN_BY", "Effect", "effect_of"]


class Effect(Enum):
    """What a changed key of a model leads to."""

    NONE = 0  # nothing changed
    AT_ONCE = 1  # Watchbill reads it: the new value holds from now on
    NEXT_LOAD = 2  # read when a process is started, asked whether it is well, or stopped: the running one keeps the old
    RESTART = 3  # the running process, its address or its memory would differ: it leaves, and comes back when wanted


#: Every field of a model in the catalog. A test compares it with the fields, and with the keys of the config.
EFFECTS: Mapping[str, Effect] = {
    "name": Effect.RESTART,
    "engine": Effect.RESTART,
    "source": Effect.RESTART,
    "memory": Effect.RESTART,
    "devices": Effect.RESTART,
    "shared": Effect.RESTART,
    "context": Effect.RESTART,
    "threads": Effect.RESTART,
    "mmap": Effect.RESTART,
    "embedding": Effect.RESTART,
    "prompt_cache": Effect.RESTART,
    "command": Effect.RESTART,
    "env": Effect.RESTART,
    "arguments": Effect.RESTART,
    "script": Effect.RESTART,
    "url": Effect.RESTART,
    "unit": Effect.RESTART,
    "sleeps_when_told": Effect.RESTART,  # sleep was switched on or off
    "concurrency": Effect.RESTART,
    "sleep_ms": Effect.RESTART,
    "load_timeout_ms": Effect.NEXT_LOAD,
    "health": Effect.NEXT_LOAD,
    "stop": Effect.NEXT_LOAD,
    "probe": Effect.NEXT_LOAD,
    "image": Effect.NEXT_LOAD,
    "aliases": Effect.AT_ONCE,
    "permanent": Effect.AT_ONCE,
    "priority": Effect.AT_ONCE,
    "inertia": Effect.AT_ONCE,
    "idle_ms": Effect.AT_ONCE,
    "stays_if_room": Effect.AT_ONCE,
    "group": Effect.AT_ONCE,
    "family": Effect.AT_ONCE,
    "tier": Effect.AT_ONCE,
    "exact": Effect.AT_ONCE,
    "background": Effect.AT_ONCE,
    "capture": Effect.AT_ONCE,
    "asleep": Effect.AT_ONCE,
    "quota": Effect.AT_ONCE,
}
#: Fields that only the processes of these drivers are started with; with any other driver they hold at once.
SEEN_BY: Mapping[str, frozenset[str]] = {
    "concurrency": frozenset({"llamacpp", "scripted"}),
    "sleep_ms": frozenset({"llamacpp"}),
}
_FIELDS = tuple(field.name for field in fields(Model))


def effect_of(old: Model, new: Model, catalog: Catalog) -> Effect:
    """The strongest effect of what differs between two definitions of a model. `catalog` is that of the new one."""
    engine = catalog.engines.get(new.engine)
    driver = engine.driver if engine is not None else ""
    changed = (name for name in _FIELDS if getattr(old, name) != getattr(new, name))
    return max((_effect(name, driver) for name in changed), key=lambda e: e.value, default=Effect.NONE)


def _effect(name: str, driver: str) -> Effect:
    seen_by = SEEN_BY.get(name)
    return EFFECTS[name] if seen_by is None or driver in seen_by else Effect.AT_ONCE
