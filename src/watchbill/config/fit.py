"""What fits: declared memory against declared capacity, before anything is loaded."""

from collections import defaultdict
from collections.abc import Iterator

from watchbill.config.document import Document
from watchbill.config.draft import Draft
from watchbill.config.problems import Wrong
from watchbill.config.settle import memory_of
from watchbill.units import format_bytes, spell_bytes

__all__ = ["check_fit", "room_on"]


def check_fit(draft: Draft) -> Iterator[Wrong]:
    """Only what the file says by itself; `examine` adds what the machine says."""
    if not draft.is_sound("devices"):
        return
    for name, table in draft.document.models.items():
        for device, size in memory_of(table).items():
            room = room_on(draft.document, device)
            if room is not None and size > room:
                key = "memory" if "memory" in draft.keys_at("models", name) else "script"
                text = f"{spell_bytes(size)} can never fit into the {format_bytes(room)} that {device} has for models"
                yield (
                    ("models", name, key),
                    text,
                    "raise the capacity, lower the reserve, or take a smaller model",
                )
    for device in draft.document.devices:
        yield from _check_permanents(draft, device)


def _check_permanents(draft: Draft, device: str) -> Iterator[Wrong]:
    table, room = draft.document.devices[device], room_on(draft.document, device)
    staying = {
        name: memory_of(model).get(device, 0)
        for name, model in draft.document.models.items()
        if model.permanent and device in (model.devices or ())
    }
    kept = table.reservation if table.reservation and table.reservation.model not in staying else None
    total = sum(staying.values()) + (kept.memory if kept else 0)
    # One that is too large by itself has been named already.
    if room is not None and total > room and max([*staying.values(), kept.memory if kept else 0]) <= room:
        who = " + ".join([*sorted(staying), *([f"the reservation for {kept.model}"] if kept else [])])
        text = f"what must stay needs {format_bytes(total)} of {format_bytes(room)}: {who}"
        yield ("devices", device), text, "make one of them rotate, or raise the capacity"
    if table.max_resident is not None and len(staying) > table.max_resident:
        text = f"fewer than the {len(staying)} permanent models: {', '.join(sorted(staying))}"
        yield ("devices", device, "max_resident"), text, "raise it, or make one of them rotate"
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in staying:
        groups[draft.document.models[name].group or ""].append(name)
    for group, members in groups.items():
        if group and len(members) > 1:
            text = (
                f"only one of the group {group} can be on {device}, but {' and '.join(members)} are permanent"
            )
            yield ("models", members[-1], "permanent"), text, "make one of them rotate"


def room_on(document: Document, device: str) -> int | None:
    """What the file itself leaves for models on a device; None when it sets no capacity."""
    table = document.devices.get(device)
    if table is None or table.capacity is None:
        return None
    return max(0, int(table.capacity * table.budget) - (table.reserve or 0))
