"""Companions that a caller names: `X-Watchbill-With: vision, see` (RES-13).

A name is a model, by its name or alias, or a `[sets.NAME]`, which stands for all of its models. An unknown one is left
out and counted, like every wish that cannot be understood; models that can never be there together are refused.
"""

from watchbill.catalog import Catalog
from watchbill.errors import RequestError

__all__ = ["read_companions"]

#: Companions that one request may have.
COMPANIONS_MAX = 8


def read_companions(asked: str, model: str, catalog: Catalog) -> tuple[tuple[str, ...], list[str]]:
    """The models that are to be beside this one, and the names that mean nothing. Raises RequestError."""
    found: dict[str, None] = {}
    unknown: list[str] = []
    for name in filter(None, (part.strip() for part in asked.split(","))):
        one = catalog.find_model(name)
        members = catalog.sets.get(name, ()) if one is None else (one.name,)
        if not members:
            unknown.append(name)
        found.update(dict.fromkeys(members))
    own = catalog.find_model(model)
    if own is None:
        return (), unknown  # who asks for a model that is not there is told so first
    found.pop(own.name, None)
    if len(found) > COMPANIONS_MAX:
        raise RequestError(f"X-Watchbill-With names {len(found)} models; {COMPANIONS_MAX} is the most")
    _refuse_exclusive((own.name, *found), catalog)
    return tuple(found), unknown


def _refuse_exclusive(names: tuple[str, ...], catalog: Catalog) -> None:
    """Two of an exclusive group on one device are never there together, unless a smaller tier can stand in."""
    owners: dict[tuple[str, str], str] = {}
    for model in (catalog.models[name] for name in names):
        for device in model.devices if model.group is not None and model.family is None else ():
            other = owners.setdefault((device, model.group or ""), model.name)
            if other != model.name:
                raise RequestError(
                    f"{other} and {model.name} exclude each other on {device} (group {model.group}): "
                    "they can never be in memory together"
                )
