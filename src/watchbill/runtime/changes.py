"""The differences between two catalogs, as sentences for people."""

from dataclasses import fields

from watchbill.catalog import Catalog

__all__ = ["awaiting_restart", "changes"]


def changes(old: Catalog, new: Catalog) -> list[str]:
    """The differences, as sentences."""
    told = [f"model {name} is new" for name in new.models if name not in old.models]
    told += [f"model {name} was removed" for name in old.models if name not in new.models]
    told += [
        f"model {name} changed"
        for name in new.models
        if name in old.models and new.models[name] != old.models[name]
    ]
    for part in fields(Catalog):
        if part.name != "models" and getattr(old, part.name) != getattr(new, part.name):
            told.append(f"{part.name} changed")
    return told


def awaiting_restart(started: Catalog, new: Catalog) -> list[str]:
    """What differs from the catalog of the start and takes effect at the next one only, as sentences."""
    told: list[str] = []
    if (started.server.host, started.server.port) != (new.server.host, new.server.port):
        told.append("the new address needs a restart")
    if _has_cards(new) and not _has_cards(started):
        told.append("the first card in the config needs a restart: cards are not probed yet")
    told += [
        f"the change of [{name}] needs a restart"
        for name in ("journal", "traces")
        if getattr(started, name) != getattr(new, name)
    ]
    if started.fleet != new.fleet:
        told.append("fleet, coordinator and agents change when the daemon is restarted")
    return told


def _has_cards(catalog: Catalog) -> bool:
    return any(name.startswith("gpu:") for name in catalog.devices)
