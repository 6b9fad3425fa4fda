"""A small world by hand, for tests that say exactly what happens."""

from collections.abc import Callable

from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, PolicyRules, WorkClass
from watchbill.core.messages import Footprint, Knowledge
from watchbill.core.stages import Stage
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.world import Faults, World
from watchbill.units import Bytes, Millis

__all__ = ["ModelOf", "WorldOf", "make_model", "make_world", "stage"]

GB = 10**9

#: What the fixtures `world_of` and `model` give.
WorldOf = Callable[..., World]
ModelOf = Callable[..., Model]


def make_world(
    *models: Model,
    capacity_gb: float = 24,
    load_ms: float | None = 3_000,  # None: 3 s, and nobody knows
    device: Device | None = None,
    lanes: dict[str, Lane] | None = None,
    rules: PolicyRules | None = None,
    faults: Faults | None = None,
    known_service_ms: float | None = 500,
) -> World:
    """A world of one device in which nothing happens by itself."""
    device = device or Device("gpu:0", capacity=Bytes(int(capacity_gb * GB)))
    lanes = lanes or {
        "chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000)),
        "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(120_000)),
    }
    catalog = Catalog(
        {device.name: device},
        {"scripted": EngineRules("scripted", "scripted")},
        {m.name: m for m in models},
        lanes,
        rules or PolicyRules(),
    )
    truth = {m.name: TrueModel(m.name, load_ms or 3_000, dict(m.memory), 0.0) for m in models}
    known = {
        m.name: Knowledge(Footprint(dict(m.memory), dict(m.memory)), load_ms, known_service_ms)
        for m in models
    }
    return World(catalog, truth, {device.name: int(device.capacity or 0)}, faults=faults, known=known)


def make_model(name: str, size_gb: float = 16, device: str = "gpu:0", **more: object) -> Model:
    """A model that fits a 24 GB device alone."""
    return Model(name, "scripted", memory={device: Bytes(int(size_gb * GB))}, devices=(device,), **more)  # type: ignore[arg-type]


def stage(world: World, name: str = "A") -> Stage:
    """Where a model is, as the core sees it."""
    return world.core.state.models[name].stage
