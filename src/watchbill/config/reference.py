"""The reference of every key, drawn from the tables, and the JSON Schema for editors."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Union, cast, get_args, get_origin

from watchbill.config.document import TABLES, Document
from watchbill.config.keys import Key, choices_of, keys_of
from watchbill.config.planned import NOT_ACTED_ON
from watchbill.config.values import Table, Written
from watchbill.units import spell_bytes

__all__ = ["reference", "schema"]

_NAMES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "object": "value"}


def reference() -> str:
    """Every table and key as Markdown."""
    return "\n".join(line for place, table in TABLES.items() if place for line in _section(place, table))


def schema() -> dict[str, object]:
    """The JSON Schema of a config file."""
    drawn: dict[str, object] = Document.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **drawn,
        "title": "watchbill.toml",
    }


def _section(place: tuple[str, ...], table: type[Table]) -> Iterator[str]:
    name = ".".join("NAME" if part == "*" else part for part in place)
    yield f"### `[{name}]`"
    yield ""
    yield " ".join((table.__doc__ or "").split())
    yield ""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys_of(table).values():
        if not _is_table(place, key):
            yet = NOT_ACTED_ON.get((*place, key.name))
            meaning = f"{key.meaning} *No effect: this version {yet}.*" if yet else key.meaning
            yield f"| `{key.name}` | {_kind(key)} | {_default(key)} | {meaning} |"
    yield ""


def _is_table(place: tuple[str, ...], key: Key) -> bool:
    """Tables have sections of their own."""
    return any(known[: len(place) + 1] == (*place, key.name) for known in TABLES)


def _default(key: Key) -> str:
    if key.field.is_required():
        return "must be given"
    return "" if key.default is None else f"`{key.spell(key.default)}`"


def _kind(key: Key) -> str:
    if choices := choices_of(key):
        return ", ".join(f"`{choice}`" for choice in choices)
    return _kind_of(cast("object", key.field.annotation), key.field.metadata)


def _kind_of(kind: object, marks: list[object]) -> str:
    written = next((mark for mark in marks if isinstance(mark, Written)), None)
    if written is not None:
        return "size" if written.spell is spell_bytes else "duration"
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind_of(inside[0], list(inside[1:]))
    if origin in (Union, UnionType):
        return _kind_of(next(each for each in inside if each is not type(None)), [])
    if origin is tuple:
        return f"list of {_kind_of(inside[0], [])}s"
    if origin is dict:
        return "table of texts" if _kind_of(inside[1], []) == "text" else "table"
    return _NAMES.get(getattr(kind, "__name__", ""), "text")
