"""What differs between two catalogs, as sentences for people."""

from watchbill.catalog import Catalog

__all__ = ["changes"]


def changes(old: Catalog, new: Catalog) -> list[str]:
    """What differs, as sentences."""
    told = [f"model {name} is new" for name in new.models if name not in old.models]
    told += [f"model {name} is gone" for name in old.models if name not in new.models]
    told += [
        f"model {name} changed"
        for name in new.models
        if name in old.models and new.models[name] != old.models[name]
    ]
    for part in ("devices", "engines", "lanes", "policy", "server", "journal", "alerts"):
        if getattr(old, part) != getattr(new, part):
            told.append(f"{part} changed")
    if (old.server.host, old.server.port) != (new.server.host, new.server.port):
        told.append("the new address needs a restart")
    return told
