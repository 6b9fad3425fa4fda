"""Examining: what is right in the file and still will not work on this machine.

Takes the facts as data (`cli.config` gathers them), so it can be asked about any machine. A grave finding means
that something the file asks for cannot happen; the others are worth a look. `up` starts in spite of both: one
missing file must not keep the other models from serving.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from watchbill.catalog import Catalog, Device, Model
from watchbill.config.document import find_key, place_of
from watchbill.config.load import Loaded
from watchbill.config.planned import NOT_ACTED_ON
from watchbill.config.server import variable_of
from watchbill.config.sets import Member, Place, misfit
from watchbill.config.tiers import engine_name
from watchbill.errors import Problem
from watchbill.toml import KeyPath
from watchbill.units import Bytes, format_bytes, spell_bytes

__all__ = ["Finding", "MachineFacts", "ModelFacts", "examine"]

#: A key that can be guessed in an afternoon.
_KEY_CHARS_MIN = 16
#: A declared size this far below the prediction is more likely a slip than knowledge.
_DECLARED_SHARE_MIN = 0.7
_PORT_VARIABLE = re.compile(r"\$PORT\b")
_SHELL = re.compile(r"\s*(?:env\s+)?(?:\S*/)?(?:ba|da|k|z)?sh\s")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was seen of one model without loading it."""

    complaint: str | None = None  # why it cannot be loaded
    hint: str = ""  # what to do about it
    key: str = "source"  # what the complaint is about
    predicted: Bytes | None = None  # from its file
    context: int | None = None  # that a request can have, where the file says it


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the machine says."""

    capacity: Mapping[str, Bytes]  # of the devices that can be read
    models: Mapping[str, ModelFacts]
    is_config_public: bool = False  # whether other users can read the config
    #: spool -> the key that cannot be used, and why
    spools: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    #: engine -> why its address does not answer
    silent: Mapping[str, str] = field(default_factory=dict[str, str])
    #: NATS server -> why nothing can be stored there
    silent_brokers: Mapping[str, str] = field(default_factory=dict[str, str])
    #: engine of a burst tier -> the key whose command cannot run, and why
    no_commands: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    on_shelf: int = 0  # models that need no table
    no_cards: str = ""  # why none can be read, where the config names one


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know."""

    problem: Problem
    is_grave: bool


def examine(loaded: Loaded, facts: MachineFacts) -> list[Finding]:
    """Everything that this machine has to say about the config, in the order of the file."""
    found = [Finding(problem, is_grave=True) for problem in _grave(loaded, facts)]
    found += [Finding(problem, is_grave=False) for problem in _notes(loaded, facts)]
    return sorted(found, key=lambda finding: (finding.problem.line or 0, finding.problem.key))


def _grave(loaded: Loaded, facts: MachineFacts) -> Iterator[Problem]:
    catalog = loaded.catalog
    if not catalog.models and not facts.on_shelf:
        yield loaded.problem(
            ("models",), "there is no model", "add one, or fetch one with: watchbill pull qwen2.5:0.5b"
        )
    for name, model in catalog.models.items():
        seen = facts.models.get(name, ModelFacts())
        if seen.complaint is not None:
            yield loaded.problem(("models", name, seen.key), seen.complaint, seen.hint)
        for device in model.devices:
            if facts.capacity and device not in facts.capacity:
                text = f"nothing on this machine reads {device}, so nothing is ever loaded there"
                hint = facts.no_cards or f"known here: {', '.join(facts.capacity)}"
                yield loaded.problem(("models", name, "devices"), text, hint)
    yield from _misfits(loaded, facts)
    yield from _sets(loaded, facts)
    for name, (key, complaint) in facts.spools.items():
        yield loaded.problem(("spool", name, key), complaint)


def _misfits(loaded: Loaded, facts: MachineFacts) -> Iterator[Problem]:
    catalog = loaded.catalog
    for device in (catalog.devices[name] for name in facts.capacity if name in catalog.devices):
        room = _room(device, facts)
        needs = {name: _need(model, device.name, facts) for name, model in catalog.models.items()}
        staying = sum(needs[name] for name in needs if catalog.models[name].permanent)
        told = f"the {format_bytes(room)} that {device.name} leaves for models ({_budget(device, facts)})"
        if staying > room:
            text = f"the permanent models need {format_bytes(staying)} of {told}"
            yield loaded.problem(("devices", device.name), text, "make one of them rotate")
        for name, need in needs.items():
            is_rotating = not catalog.models[name].permanent
            beside = staying if is_rotating and staying <= room else 0
            if need + beside > room and (is_rotating or need > room):
                extra = f" beside {format_bytes(beside)} of permanent models" if beside else ""
                origin = "" if device.name in catalog.models[name].memory else ", predicted from its file,"
                text = f"can never fit: {format_bytes(need)}{origin} into {told}{extra}"
                yield loaded.problem(("models", name), text, "take a smaller model, context or concurrency")


def _sets(loaded: Loaded, facts: MachineFacts) -> Iterator[Problem]:
    """Sets that this machine cannot hold, as far as the sizes are known before anything was loaded."""
    models, devices = loaded.catalog.models, loaded.catalog.devices
    members = {
        name: Member(
            {device: _need(model, device, facts) for device in model.devices},
            model.devices, model.group, model.family, model.family_rank, model.permanent,
        )
        for name, model in models.items()
    }  # fmt: skip
    places = {
        name: Place(
            _room(device, facts),
            device.max_resident,
            (device.reservation.model, device.reservation.memory) if device.reservation else None,
        )
        for name, device in devices.items()
        if name in facts.capacity
    }
    for name, together in loaded.catalog.sets.items():
        why = misfit(together, members, places)
        if why is not None:
            yield loaded.problem(("sets", name, "models"), why, "name smaller models")


def _notes(loaded: Loaded, facts: MachineFacts) -> Iterator[Problem]:
    catalog = loaded.catalog
    for name, device in catalog.devices.items():
        real = facts.capacity.get(name)
        if real is not None and device.capacity is not None and device.capacity > real:
            text = f"is more than the {format_bytes(real)} there are, which is what counts"
            yield loaded.problem(("devices", name, "capacity"), text)
    for name, model in catalog.models.items():
        seen = facts.models.get(name, ModelFacts())
        yield from _declared_too_low(loaded, name, model, seen.predicted)
        if seen.context is not None and seen.context < model.context:
            text = (
                f"is more than the {seen.context} tokens that it was trained on, which is what requests get"
            )
            yield loaded.problem(("models", name, "context"), text, f"write context = {seen.context}")
        if _PORT_VARIABLE.search(model.command or "") and not _SHELL.match(model.command or ""):
            text = "$PORT is not filled in: no shell reads this line"
            yield loaded.problem(("models", name, "command"), text, "write ${PORT}")
    for name, complaint in facts.silent.items():
        table = _table_of(loaded, name)
        key = "" if table[0] == "engines" else " or key"
        yield loaded.problem((*table, "url"), complaint, f"start it, or correct the address{key}")
    for name, (key, complaint) in facts.no_commands.items():
        yield loaded.problem((*_table_of(loaded, name), key), complaint, "install it or correct the command")
    for complaint in facts.silent_brokers.values():
        hint = "start it, or correct the addresses and what this machine shows there"
        yield loaded.problem(("nats", "servers"), complaint, hint)
    yield from _lonely_groups(loaded, catalog)
    yield from _without_effect(loaded)
    for path, said, secret in _keys_shown_here(loaded, catalog):
        if len(secret) < _KEY_CHARS_MIN:
            yield loaded.problem(
                path, "is short enough to be guessed", f"use {_KEY_CHARS_MIN} characters or more"
            )
        if facts.is_config_public and variable_of(said) is None:
            yield loaded.problem(
                path, "can be read by other users of this machine", "chmod 600, or use env:NAME"
            )


def _keys_shown_here(loaded: Loaded, catalog: Catalog) -> Iterator[tuple[KeyPath, str, str]]:
    """Where each key stands that a caller may show, what the file says there, and the key itself."""
    document = loaded.document
    for key in catalog.server.keys:
        if key.peer is None:
            yield ("server", "keys", key.name, "key"), document.server.keys[key.name].key, key.key
            continue
        table = document.peers[key.name]
        yield ("peers", key.name, "their_key"), table.their_key or "", key.key
        if key.old_key:
            yield ("peers", key.name, "their_old_key"), table.their_old_key or "", key.old_key


def _table_of(loaded: Loaded, engine: str) -> tuple[str, str]:
    """The table that an engine stands for: its own, or that of a site."""
    for kind, sites in (("peers", loaded.document.peers), ("tiers", loaded.document.tiers)):
        if site := next((name for name in sites if engine_name(name) == engine), None):
            return kind, site
    return "engines", engine


def _declared_too_low(loaded: Loaded, name: str, model: Model, predicted: Bytes | None) -> Iterator[Problem]:
    declared = sum(model.memory.values())
    if predicted is not None and model.memory and declared < predicted * _DECLARED_SHARE_MIN:
        text = (
            f"{spell_bytes(declared)} is much less than the {format_bytes(predicted)} that its file predicts"
        )
        yield loaded.problem(
            ("models", name, "memory"), text, "leave the key out to have it predicted and measured"
        )


def _lonely_groups(loaded: Loaded, catalog: Catalog) -> Iterator[Problem]:
    members = Counter(model.group for model in catalog.models.values() if model.group)
    for name, model in catalog.models.items():
        if model.group and members[model.group] == 1:
            yield loaded.problem(("models", name, "group"), f"is the only model of the group {model.group}")


def _without_effect(loaded: Loaded) -> Iterator[Problem]:
    for path in loaded.lines:
        text = NOT_ACTED_ON.get(place_of(path))
        if text is not None and find_key(path) is not None:
            yield loaded.problem(path, f"has no effect: this version of Watchbill {text}")


def _room(device: Device, facts: MachineFacts) -> int:
    capacity = min(filter(None, (device.capacity, facts.capacity[device.name])))
    return max(0, int(capacity * device.share) - device.reserve)


def _budget(device: Device, facts: MachineFacts) -> str:
    real = facts.capacity[device.name]
    capped = device.capacity is not None and device.capacity < real
    share = "" if device.share == 1 else f" x {device.share:g}"
    of = f"{format_bytes(device.capacity if capped and device.capacity else real)}{share}"
    return f"{of} less a reserve of {spell_bytes(device.reserve)}"


def _need(model: Model, device: str, facts: MachineFacts) -> int:
    """What the model takes on the device, as far as that is known before it was ever loaded."""
    if device not in model.devices:
        return 0
    predicted = facts.models.get(model.name, ModelFacts()).predicted
    return model.memory.get(device) or (predicted if predicted and len(model.devices) == 1 else 0) or 0
