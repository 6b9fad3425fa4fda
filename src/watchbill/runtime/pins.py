"""Pins: models that an operator made permanent by hand, without the config. They last as long as the daemon.

A pinned model is a permanent one to the core. What a config would be refused for is refused here, too: two permanent
models of one exclusive group, and more of them than memory holds.
"""

from collections.abc import Collection
from dataclasses import replace

from watchbill.catalog import Catalog, Tier
from watchbill.core.state import State
from watchbill.errors import RequestError
from watchbill.units import format_bytes

__all__ = ["check_pin", "with_pins"]


def with_pins(catalog: Catalog, pinned: Collection[str]) -> Catalog:
    """The catalog with these models permanent."""
    if not pinned:
        return catalog
    models = {
        name: replace(model, permanent=True) if name in pinned else model
        for name, model in catalog.models.items()
    }
    return replace(catalog, models=models, pinned=frozenset(pinned))


def check_pin(state: State, name: str, pinned: Collection[str]) -> None:
    """Raises RequestError for a model that cannot stay, with the reason."""
    model = state.models[name]
    if model.spec.shared or model.spec.where is not Tier.LOCAL:
        raise RequestError(f"{name} is not loaded by this daemon, so it cannot be pinned")
    if model.spec.permanent and name not in pinned:
        raise RequestError(f"{name} is permanent by its config; it stays without a pin")
    if model.spec.sleep_ms is not None:
        raise RequestError(f"{name} sleeps when it is idle, by its config; a pinned model stays warm")
    staying = [s for s in state.models.values() if s.spec.permanent and s is not model]
    rivals = [s.name for s in staying if s.spec.group is not None and s.spec.group == model.spec.group]
    if rivals:
        raise RequestError(f"{rivals[0]} of the same exclusive group stays already; unpin it first")
    for device, size in model.sizes().items():
        held = sum(s.sizes().get(device, 0) for s in staying)
        budget = state.ledger.books[device].budget
        if held + size > budget:
            raise RequestError(
                f"{name} needs {format_bytes(size)} of {device}, where models that stay leave "
                f"{format_bytes(max(0, budget - held))}; unpin another one first"
            )
