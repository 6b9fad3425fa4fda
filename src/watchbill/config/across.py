"""Checks across sections: references from one table to another, and whether what is declared fits.

Only what the file says by itself; `examine` adds what the machine says.
"""

from collections import defaultdict
from collections.abc import Iterator

from watchbill.config.checks import Draft, Wrong, did_you_mean, unknown
from watchbill.config.devices import room_of
from watchbill.config.document import Document
from watchbill.config.models import idle_of, memory_of
from watchbill.config.rotation import interval_of
from watchbill.config.sets import Member, Place, misfit
from watchbill.toml import KeyPath
from watchbill.units import Millis, format_bytes, spell_bytes, spell_millis

__all__ = ["check_across"]


def check_across(document: Document, draft: Draft) -> Iterator[Wrong]:
    """Everything that is wrong between the sections of a settled document."""
    yield from _check_lanes_named(document, draft)
    yield from _check_reservations(document, draft)
    yield from _check_set_names(document, draft)
    yield from _check_models_named(document, draft)
    yield from _check_captures(document)
    yield from _check_interval(document, draft)
    yield from _check_turns(document, draft)
    yield from _check_epoch_models(document, draft)
    if draft.is_sound("devices"):
        yield from _check_sizes(document, draft)
        for device in document.devices:
            yield from _check_staying(document, device)
        if draft.is_sound("models"):
            yield from _check_set_sizes(document)


# ------------------------------------------------------------------ references


def _check_lanes_named(document: Document, draft: Draft) -> Iterator[Wrong]:
    for name, key in document.server.keys.items():
        if key.lane is not None and not draft.knows("lanes", key.lane):
            yield unknown(("server", "keys", name, "lane"), "lane", key.lane, draft.names("lanes"))
    for name, table in document.process.items():
        if not draft.knows("lanes", table.lane):
            yield unknown(("process", name, "lane"), "lane", table.lane, draft.names("lanes"))


def _check_reservations(document: Document, draft: Draft) -> Iterator[Wrong]:
    for device, table in document.devices.items():
        if table.reservation is None:
            continue
        path, model = ("devices", device, "reservation", "model"), table.reservation.model
        if not draft.knows("models", model):
            yield unknown(path, "model", model, draft.names("models"))
        elif model in document.models and device not in (document.models[model].devices or ()):
            hint = f"keep memory for it on {document.models[model].devices}"
            yield path, f"{model} is not on {device}", hint


def _check_set_names(document: Document, draft: Draft) -> Iterator[Wrong]:
    aliases = {alias for table in document.models.values() for alias in table.aliases}
    for name in document.sets:
        if name in aliases or draft.knows("models", name):
            yield (
                ("sets", name),
                "is the name of a model, too",
                "rename one: a header could mean either",
            )


def _check_models_named(document: Document, draft: Draft) -> Iterator[Wrong]:
    """The models that types of work, agents and the coordinator name."""
    aliases = {alias for table in document.models.values() for alias in table.aliases}
    models = [*draft.names("models"), *sorted(aliases)]
    known = {name.removesuffix(":latest") for name in models}
    brain = document.coordinator
    named: dict[KeyPath, str | None] = {
        **{("process", name, "model"): table.model for name, table in document.process.items()},
        ("coordinator", "model"): brain.model if brain is not None else None,
        **{("agents", name, "model"): table.model for name, table in document.agents.items()},
    }
    for path, model in named.items():
        if model is not None and model.removesuffix(":latest") not in known:
            hint = did_you_mean(model, models) or "add one to [models]"
            yield path, f"there is no model {model}", hint


def _check_captures(document: Document) -> Iterator[Wrong]:
    captures: dict[KeyPath, str | None] = {
        **{("server", "keys", name, "capture"): key.capture for name, key in document.server.keys.items()},
        **{("models", name, "capture"): table.capture for name, table in document.models.items()},
        **{("lanes", name, "capture"): table.capture for name, table in document.lanes.items()},
        **{("process", name, "capture"): table.capture for name, table in document.process.items()},
    }
    for path, spool in captures.items():
        if spool is not None and spool not in document.spool:
            yield path, f"there is no spool {spool}", f"add [spool.{spool}]"


# ------------------------------------------------------------------ rotation and models


def _check_interval(document: Document, draft: Draft) -> Iterator[Wrong]:
    rotation, said = document.rotation, draft.keys_at("rotation")
    every = interval_of(rotation)
    if not every or not draft.is_sound("rotation") or not draft.is_sound("models"):
        return
    if "every" in said and not _tasks(document):
        text = "no model has a background task, so nothing would ever run"
        yield ("rotation", "every"), text, 'give a model background = { prompt = "..." }, or remove it'
    if rotation.max is not None and rotation.max < every:
        yield ("rotation", "max"), f"is shorter than every, {spell_millis(every)}", "make it longer"
    idle, model = max(
        ((idle_of(table), name) for name, table in document.models.items() if not table.permanent),
        default=(Millis(0), ""),
    )
    if every <= idle:
        at: KeyPath = ("rotation", "every") if "every" in said else ("models", model, "idle")
        text = (
            f"the rotation's interval of {spell_millis(every)} does not exceed the idle time of {model}, "
            f"{spell_millis(idle)}: models would come and go without rest"
        )
        yield at, text, f"let [rotation] every be more than {spell_millis(idle)}, or models idle for less"


def _check_turns(document: Document, draft: Draft) -> Iterator[Wrong]:
    order, tasks = document.rotation.order, _tasks(document)
    for place, name in enumerate(order):
        path = ("rotation", "order", place)
        if not draft.knows("models", name):
            yield path, f"there is no model {name}", did_you_mean(name, sorted(draft.names("models")))
        elif name not in tasks and draft.is_sound("models", name):
            yield path, f"{name} has no background task", "give it one, or remove it here"
        elif name in order[:place]:
            yield path, f"names {name} twice", "remove one"
    missing = [name for name in tasks if order and name not in order]
    if missing:
        text = f"leaves out {', '.join(missing)}, so that this background task would never run"
        yield ("rotation", "order"), text, "add it, or remove its task"


def _tasks(document: Document) -> list[str]:
    return [name for name, table in document.models.items() if table.background is not None]


def _check_epoch_models(document: Document, draft: Draft) -> Iterator[Wrong]:
    for name, table in document.epochs.items():
        for place, model in enumerate(table.models):
            if not draft.knows("models", model):
                hint = did_you_mean(model, sorted(draft.names("models")))
                yield ("epochs", name, "models", place), f"there is no model {model}", hint


# ------------------------------------------------------------------ fit


def _check_sizes(document: Document, draft: Draft) -> Iterator[Wrong]:
    """Models that are too large for their device by themselves."""
    for name, table in document.models.items():
        for device, size in memory_of(table).items():
            room = room_of(document.devices.get(device))
            if room is not None and size > room:
                key = "memory" if "memory" in draft.keys_at("models", name) else "script"
                text = f"{spell_bytes(size)} can never fit into the {format_bytes(room)} that {device} has for models"
                hint = "raise the capacity, lower the reserve, or take a smaller model"
                yield ("models", name, key), text, hint


def _check_staying(document: Document, device: str) -> Iterator[Wrong]:
    """Permanent models and a reservation that a device cannot hold together."""
    table, room = document.devices[device], room_of(document.devices[device])
    staying = {
        name: memory_of(model).get(device, 0)
        for name, model in document.models.items()
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
        groups[document.models[name].group or ""].append(name)
    for group, members in groups.items():
        if group and len(members) > 1:
            text = (
                f"only one of the group {group} can be on {device}, but {' and '.join(members)} are permanent"
            )
            yield ("models", members[-1], "permanent"), text, "make one of them rotate"


def _check_set_sizes(document: Document) -> Iterator[Wrong]:
    members, places = _members(document), _places(document)
    for name, table in document.sets.items():
        if table.models and all(model in document.models for model in table.models):
            why = misfit(table.models, members, places)
            if why is not None:
                hint = "name smaller models, or give a member a smaller sibling in a family"
                yield ("sets", name, "models"), why, hint


def _members(document: Document) -> dict[str, Member]:
    return {
        name: Member(
            memory_of(table), table.devices or (), table.group, table.family, table.tier, table.permanent
        )
        for name, table in document.models.items()
    }


def _places(document: Document) -> dict[str, Place]:
    return {
        name: Place(
            room_of(table),
            table.max_resident,
            (table.reservation.model, table.reservation.memory) if table.reservation else None,
        )
        for name, table in document.devices.items()
    }
