"""`[sets.NAME]`: models that are in memory together or not at all (RES-13).

A set fits when one rung of its ladder does: the largest member of a family steps down first. Permanent models and
reservations are counted beside it. Sizes that are not known count as nothing: only a set that certainly cannot be in
memory is refused. `across` asks this of what the file declares, `examine` of what the machine has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from watchbill.config.checks import Draft, Wrong, did_you_mean
from watchbill.config.values import ModelName, Table
from watchbill.ladder import ladder
from watchbill.units import format_bytes

__all__ = ["Member", "Place", "SetTable", "check_sets", "misfit"]

# ------------------------------------------------------------------ the table


class SetTable(Table):
    """Companions: a request that names the set in `X-Watchbill-With` starts when all of its models are warm."""

    models: tuple[ModelName, ...] = Field(
        strict=False,
        description="The models that are needed at the same time; a smaller model of the same family may take a place.",
        examples=[["vision", "big"]],
    )


# ------------------------------------------------------------------ checks


def check_sets(sets: Mapping[str, SetTable], draft: Draft) -> Iterator[Wrong]:
    """Sets of fewer than two models, and models that do not exist or are named twice."""
    for name, table in sets.items():
        path = ("sets", name, "models")
        if len(set(table.models)) < 2:
            yield path, "needs at least two models", 'write for example ["vision", "big"]'
        for place, model in enumerate(table.models):
            if not draft.knows("models", model):
                hint = did_you_mean(model, sorted(draft.names("models")))
                yield (*path, place), f"there is no model {model}", hint
            elif model in table.models[:place]:
                yield (*path, place), f"names {model} twice", "remove one"


# ------------------------------------------------------------------ whether a set fits


@dataclass(frozen=True, slots=True)
class Member:
    """What counts of a model when it is to stand beside others."""

    sizes: Mapping[str, int]
    devices: tuple[str, ...] = ()
    group: str | None = None
    family: str | None = None
    family_rank: int | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What a device has for models."""

    room: int | None = None  # None: not known
    count: int | None = None
    reserved: tuple[str, int] | None = None  # a core model and what is kept for it


def misfit(names: Sequence[str], members: Mapping[str, Member], places: Mapping[str, Place]) -> str | None:
    """Why these models can never be in memory together, whichever smaller models stand in; None when they can."""
    why: str | None = None
    for rung in ladder(names, lambda name: _below(name, members), lambda n: sum(members[n].sizes.values())):
        why = _misfit(rung, members, places)
        if why is None:
            return None
    return why


def _misfit(rung: Sequence[str], members: Mapping[str, Member], places: Mapping[str, Place]) -> str | None:
    for device, place in places.items():
        mine = [name for name in rung if device in members[name].devices]
        kept = {n: m.sizes.get(device, 0) for n, m in members.items() if m.stays and device in m.devices}
        if place.reserved is not None and place.reserved[0] not in kept:
            kept[place.reserved[0]] = place.reserved[1]
        beside = {name: size for name, size in kept.items() if name not in mine}
        for name in mine:
            mates = [n for n in (*mine, *beside) if n != name and members[n].group == members[name].group]
            if members[name].group is not None and mates:
                return f"{name} and {mates[0]} exclude each other on {device}: only one of a group is there"
        if place.count is not None and mine and len(mine) + len(beside) > place.count:
            return f"{device} takes {place.count} models at a time, too few for {', '.join((*mine, *beside))}"
        total = sum(members[name].sizes.get(device, 0) for name in mine) + sum(beside.values())
        if mine and place.room is not None and total > place.room:
            sizes = [f"{name} {format_bytes(members[name].sizes.get(device, 0))}" for name in mine]
            sizes += [f"{name} {format_bytes(size)}, which stays" for name, size in beside.items()]
            return f"{device} cannot hold them together: {' + '.join(sizes)} into {format_bytes(place.room)}"
    return None


def _below(name: str, members: Mapping[str, Member]) -> list[str]:
    family = members[name].family
    if family is None:
        return []
    ranked = [other for other, member in members.items() if member.family == family]
    ranked.sort(key=lambda n: (members[n].family_rank or 0, -sum(members[n].sizes.values()), n))
    return ranked[ranked.index(name) + 1 :]
