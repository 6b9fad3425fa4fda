"""Reloads in random worlds: models and lanes are removed, put back, renamed and changed while everything runs.

It imitates an editor that saves twice, and an operator who changes the config back and forth. Models load, drain and
stop meanwhile, and requests wait for them.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from watchbill.catalog import Catalog, Lane, Model
from watchbill.simulate.engine import TrueModel
from watchbill.units import Millis

__all__ = ["schedule_reloads"]

#: A removed part is put back within this time, usually before its process is gone.
BACK_MS = 4_000.0
#: The maximum number of reloads of one world.
RELOADS_MAX = 6


class Reloadable(Protocol):
    """The part of the world that a reload uses."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    truth: dict[str, TrueModel]

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def reload(self, catalog: Catalog, truth: Mapping[str, TrueModel] | None = None) -> None: ...


def schedule_reloads(draw: random.Random, world: Reloadable, until_ms: float) -> None:
    """In every second world the config changes now and then."""
    if draw.random() < 0.5:
        return
    for _ in range(draw.randint(1, RELOADS_MAX)):
        change = draw.choice((_save_twice, _save_twice, _change, _change, _rename, _drop_lane))
        world.at(draw.uniform(0, until_ms), lambda change=change: change(draw, world))


def _pick(draw: random.Random, world: Reloadable) -> Model | None:
    """A model that may be removed; the last one stays."""
    names = sorted(world.catalog.models)
    return world.catalog.models[draw.choice(names)] if len(names) > 1 else None


def _with(world: Reloadable, *models: Model, but: str = "") -> Catalog:
    kept = {name: model for name, model in world.catalog.models.items() if name != but}
    return replace(world.catalog, models={**kept, **{model.name: model for model in models}})


def _save_twice(draw: random.Random, world: Reloadable) -> None:
    """Removes a model from the config for a moment; it may come back with another definition."""
    model = _pick(draw, world)
    if model is None:
        return
    again = _changed(draw, model) if draw.random() < 0.3 else model
    world.reload(_with(world, but=model.name))
    world.at(world.now + draw.uniform(0, BACK_MS), lambda: world.reload(_with(world, again)))


def _change(draw: random.Random, world: Reloadable) -> None:
    model = _pick(draw, world)
    if model is not None:
        world.reload(_with(world, _changed(draw, model)))


def _changed(draw: random.Random, model: Model) -> Model:
    """Another definition: a change that its process sees, or one that it does not."""
    changes: list[dict[str, object]] = [
        {"context": model.context + 1},
        {"priority": draw.randint(1, 5)},
        {"concurrency": draw.choice((1, 2, 4))},
        {"idle_ms": Millis(draw.choice((5_000, 60_000)))},
        {"family": draw.choice((None, "tiers"))},
        {"exact": draw.random() < 0.5},
        {"health": f"/{draw.random()}"},
    ]
    if not model.permanent and not model.shared:
        changes.append({"group": draw.choice((None, "heavy"))})
    return replace(model, **draw.choice(changes))  # pyright: ignore[reportArgumentType]  each is one field and its kind


def _rename(draw: random.Random, world: Reloadable) -> None:
    """Renames a model. Requests for the old name are refused."""
    model = _pick(draw, world)
    if model is None or model.shared:
        return
    name = f"{model.name}x"
    true = replace(world.truth[model.name], name=name)
    world.reload(_with(world, replace(model, name=name), but=model.name), {name: true})


def _drop_lane(draw: random.Random, world: Reloadable) -> None:
    """Removes a lane for a moment; it comes back with another max_wait."""
    lanes = world.catalog.lanes
    if len(lanes) < 2:
        return
    lane = lanes[draw.choice(sorted(lanes))]
    kept = {name: other for name, other in lanes.items() if name != lane.name}
    world.reload(replace(world.catalog, lanes=kept))
    world.at(world.now + draw.uniform(0, 2 * BACK_MS), lambda: _put_back(draw, world, lane))


def _put_back(draw: random.Random, world: Reloadable, lane: Lane) -> None:
    back = replace(lane, max_wait_ms=Millis(draw.choice((5_000, 30_000))))
    world.reload(replace(world.catalog, lanes={**world.catalog.lanes, back.name: back}))
