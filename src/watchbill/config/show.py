"""Showing: the config as it is in force, every key written out, what was not said marked as default.

What is printed is itself a config with the same meaning (but for keys that are not shown), so it can be copied.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

from watchbill.catalog import RAM
from watchbill.config.devices import GPU_DEFAULTS, HEALTH_KEYS
from watchbill.config.document import Document
from watchbill.config.engines import DRIVERS, MODEL_KEYS, EngineTable
from watchbill.config.keys import Key, keys_of
from watchbill.config.load import Loaded
from watchbill.config.models import ModelTable
from watchbill.config.values import Table
from watchbill.toml import KeyPath, Raw, spell_key

__all__ = ["Entry", "entries", "show"]

_COMMENT_COLUMN = 44


class Entry(NamedTuple):
    """One key in force."""

    path: KeyPath
    value: str | None  # as TOML; None when it is not set
    is_default: bool
    meaning: str


def show(loaded: Loaded) -> list[str]:
    """The lines of the config in force."""
    lines = [f"# {loaded.origin}; the files it names are relative to {loaded.base}"]
    table: KeyPath = ()
    for entry in entries(loaded):
        if entry.path[:-1] != table:
            table = entry.path[:-1]
            lines += ["", f"[{spell_key(table)}]"]
        lines.append(_line(entry))
    return lines


def entries(loaded: Loaded) -> list[Entry]:
    """Every key in force, in the order of the reference."""
    return list(_walk(loaded, loaded.document, ()))


def _walk(loaded: Loaded, table: Table, path: KeyPath) -> Iterator[Entry]:
    """The table's own keys, then the tables in it: TOML wants it in this order."""
    inner: list[tuple[KeyPath, Table]] = []
    for key in keys_of(type(table)).values():
        value, at = cast("object", getattr(table, key.attribute)), (*path, key.name)
        if isinstance(value, Table):
            inner.append((at, value))
        elif value is None and isinstance(table, Document):
            continue  # a table that says by being there that there is something
        elif _is_named_tables(table, key):
            inner += [((*at, name), each) for name, each in cast("dict[str, Table]", value).items()]
        elif _matters(loaded.document, table, at):
            if (
                at[0] == "models"
                and key.name == "devices"
                and not loaded.catalog.models[str(at[1])].is_placed
            ):
                value = None  # a card may take it: written down, they would be said
            spelled = None if value is None else key.spell(key.mask(value))
            yield Entry(at, spelled, not _is_said(loaded.raw, at), key.meaning)
    if isinstance(table, Document) and _has(loaded.raw, ("devices", GPU_DEFAULTS)):
        inner.append((("devices", GPU_DEFAULTS), table.unnamed_card))
    for at, each in inner:
        yield from _walk(loaded, each, at)


def _is_named_tables(table: Table, key: Key) -> bool:
    return isinstance(table, Document) or key.name == "keys"


def _matters(document: Document, table: Table, path: KeyPath) -> bool:
    """Whether the key means anything here: a driver's own keys are not shown for another driver's model."""
    key = path[-1]
    if key in HEALTH_KEYS and path[1] == RAM:
        return False
    if key in ("script", "background", "reservation"):  # shown as tables of their own where they are given
        return False
    if isinstance(table, ModelTable):
        engine = document.engines.get(table.engine)
        driver = DRIVERS[engine.driver if engine else table.engine]
        return key not in MODEL_KEYS - driver.needs - driver.reads
    if isinstance(table, EngineTable):
        return key == "driver" or key in DRIVERS[table.driver].engine_reads
    return True


def _is_said(raw: Raw, path: KeyPath) -> bool:
    """Whether the file itself has this key, for the table or as a default for all GPUs."""
    if _has(raw, path):
        return True
    is_gpu = path[:1] == ("devices",) and str(path[1]).startswith("gpu:")
    return is_gpu and _has(raw, ("devices", GPU_DEFAULTS, *path[2:]))


def _has(raw: Raw, path: KeyPath) -> bool:
    table: object = raw
    for part in path:
        if not isinstance(table, dict) or part not in table:
            return False
        table = cast("dict[str | int, object]", table)[part]
    return True


def _line(entry: Entry) -> str:
    name = spell_key(entry.path[-1:])
    if entry.value is None:
        return f"# {name} is not set: {entry.meaning}"
    said = f"{name} = {entry.value}"
    return f"{said.ljust(_COMMENT_COLUMN)}# default" if entry.is_default else said
