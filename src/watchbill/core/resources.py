"""Resources: everything limited that a model takes while it is resident.

The bytes of a device (named by the device), its optional count of resident models, one place per exclusive group on a
device, and the places in a program that hosts models. A model needs some of each, and may load when all of them are
free. Treating a group as a resource of one place makes the rule of exclusivity and the rule of memory the same rule.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from watchbill.catalog import Catalog, Model

__all__ = [
    "GroupPlace",
    "HostPlaces",
    "Needs",
    "Places",
    "ResidentPlaces",
    "Resource",
    "in_order",
    "needs_of",
    "shortage",
]


class ResidentPlaces(Struct, frozen=True):
    """The `max_resident` of a device."""

    device: str

    def __str__(self) -> str:
        return f"{self.device}#count"


class GroupPlace(Struct, frozen=True):
    """The one place of an exclusive group on a device."""

    device: str
    group: str

    def __str__(self) -> str:
        return f"{self.device}#group:{self.group}"


class HostPlaces(Struct, frozen=True):
    """The models that an engine's program holds at once."""

    engine: str

    def __str__(self) -> str:
        return f"engine:{self.engine}#count"


#: Resources that are counted in models, not in bytes.
Places = ResidentPlaces | GroupPlace | HostPlaces
#: A text is the name of a device, and stands for its bytes.
Resource = str | Places
Needs = Mapping[Resource, int]


def needs_of(
    model: Model, sizes: Mapping[str, int], catalog: Catalog, places: Mapping[str, int]
) -> dict[Resource, int]:
    """Everything a model takes while it is resident. `places`: the engines that hold a limited number of models."""
    needs: dict[Resource, int] = {device: size for device, size in sizes.items() if device in catalog.devices}
    for device in [device for device in sizes if device in catalog.devices]:
        if catalog.devices[device].max_resident is not None:
            needs[ResidentPlaces(device)] = 1
        if model.group is not None:
            needs[GroupPlace(device, model.group)] = 1
    if model.engine in places:
        needs[HostPlaces(model.engine)] = 1
    return needs


def shortage(needs: Needs, free: Needs) -> dict[Resource, int]:
    """The missing amount of each resource."""
    return {
        resource: amount - free.get(resource, 0)
        for resource, amount in needs.items()
        if amount > free.get(resource, 0)
    }


def in_order(resources: Iterable[Resource]) -> list[Resource]:
    """The resources by name: same input, same decisions."""
    return sorted(resources, key=str)
