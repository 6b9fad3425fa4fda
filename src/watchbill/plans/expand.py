"""Expansion: from the array in a manifest, or the rows of a table (`rows`), to tasks, item by item (PLAN-04).

Items are frozen when they are read: scripts may rewrite the manifest later. A value arrives as exactly the text that
the manifest has: numbers keep their spelling, objects and lists become compact JSON.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, cast

from watchbill.errors import OursError
from watchbill.limits import PLAIN_NAME_CHARS_MAX
from watchbill.plans import limits
from watchbill.plans.findings import shown
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.rows import Reader, reader_for
from watchbill.plans.task import Place, Task

__all__ = ["Expanded", "Item", "expand", "item_of", "items_at", "text_of", "values_of"]

#: One element of the array, as JSON has it; numbers are `Number`.
Item = object

_INDEX = re.compile(r"\d{1,9}")
_SAFE = re.compile(r"[A-Za-z0-9._-]+")


class Number(str):
    """A number as the manifest spells it: 1.10 stays 1.10, and a thousand digits cost nothing."""

    __slots__ = ()


class Expanded(NamedTuple):
    """A task for some items: its name, and the items from `first` up to `end`."""

    name: str
    first: int
    end: int


def items_at(content: bytes, place: Place) -> list[Item]:
    """The items at this place of a manifest. Raises OursError with what is wrong; its line is known to the caller."""
    if len(content) > limits.PLAN_MANIFEST_BYTES_MAX:
        raise OursError(f"{place.file} is larger than {limits.PLAN_MANIFEST_BYTES_MAX:,} bytes; split it")
    text = _decoded(content, place)
    reader = reader_for(place.file)
    if reader is not None and not _is_json(text, place):
        return _bounded(_rows(reader, text, place), place)
    value = _walk(_parse(text, place), place)
    if not isinstance(value, list):
        raise OursError(
            f"{place} is {_kind_of(value)}, not an array; name the path to the array behind the colon"
        )
    return _bounded(cast("list[Item]", value), place)


def _bounded(items: list[Item], place: Place) -> list[Item]:
    if len(items) > limits.PLAN_ITEMS_MAX:
        raise OursError(
            f"{place} has {len(items):,} items, and {limits.PLAN_ITEMS_MAX:,} is the limit; split it"
        )
    return items


def item_of(text: str) -> Item:
    """One item, spelled as JSON. Raises ValueError for a text that is none."""
    try:
        return cast("Item", json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number))
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def _decoded(content: bytes, place: Place) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OursError(f"{place.file} is not UTF-8 at byte {error.start}; write it as UTF-8") from None


def _is_json(text: str, place: Place) -> bool:
    """Whether a file whose name says lines of text is one JSON value all the same."""
    is_text = place.file.lower().endswith((".txt", ".list"))
    return is_text and (bool(place.path) or text.lstrip().startswith("["))


def _rows(reader: Reader, text: str, place: Place) -> list[Item]:
    if place.path:
        raise OursError(f"{place.file} has rows, and no path of keys", hint=f"write foreach: {place.file}")
    return reader(text, place.file, item_of)


def _parse(text: str, place: Place) -> object:
    try:
        return cast("object", json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number))
    except RecursionError:
        raise OursError(f"{place.file} nests too deeply to be read; write it flatter") from None
    except json.JSONDecodeError as error:
        raise OursError(
            f"{place.file} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def _walk(value: object, place: Place) -> object:
    for depth, part in enumerate(place.path):
        reached = ".".join(place.path[:depth]) or "its top"
        fields, elements = _fields_of(value), _elements_of(value)
        if fields is not None and part in fields:
            value = fields[part]
        elif fields is not None:
            raise OursError(f"{place.file} has no {shown(part)} at {reached}; there are: {_keys_of(fields)}")
        elif elements is not None and _INDEX.fullmatch(part) and int(part) < len(elements):
            value = elements[int(part)]
        else:
            raise OursError(f"{place.file} has {_kind_of(value)} at {reached}, which has no {shown(part)}")
    return value


def _fields_of(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _elements_of(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _keys_of(fields: Mapping[str, object]) -> str:
    return ", ".join(shown(key) for key in list(fields)[:20]) or "no keys"


def _kind_of(value: object) -> str:
    match value:
        case Number():
            return "a number"
        case str():
            return "a text"
        case dict():
            return "an object"
        case list():
            return "an array"
        case None:
            return "null"
        case _:
            return "true or false"


# ------------------------------------------------------------------ values


def text_of(value: object) -> str:
    """A value as a command gets it."""
    if isinstance(value, str):
        return str(value)
    try:
        return _compact(value)
    except RecursionError:
        raise OursError("a value nests too deeply to be written as text; write it flatter") from None


def _compact(value: object) -> str:
    """JSON in one line, with numbers as the manifest spells them."""
    if isinstance(value, Number):
        return str(value)
    if (fields := _fields_of(value)) is not None:
        pairs = (f"{json.dumps(key, ensure_ascii=False)}:{_compact(each)}" for key, each in fields.items())
        return "{" + ",".join(pairs) + "}"
    if (elements := _elements_of(value)) is not None:
        return "[" + ",".join(map(_compact, elements)) + "]"
    return json.dumps(value, ensure_ascii=False)


def values_of(
    item: Item, others: Callable[[Placeholder], str], *, where: str = "the item"
) -> Callable[[Placeholder], str]:
    """What the placeholders of a task mean for one item. Raises OursError for a field that the item does not have."""

    def value_of(place: Placeholder) -> str:
        if not place.is_item:
            return others(place)
        value: object = item
        for part in place.fields:
            fields = _fields_of(value)
            if fields is None or part not in fields:
                has = _kind_of(value) if fields is None else _keys_of(fields)
                raise OursError(f"{where} has no field for {place}; it has: {has}")
            value = fields[part]
        return text_of(value)

    return value_of


# ------------------------------------------------------------------ names


def expand(task: Task, items: Sequence[Item], taken: Container[str]) -> list[Expanded]:
    """The tasks for these items: TASK_ID where the item has a safe and unique id, else TASK_NUMBER.

    With a batch_size above 1 each task has several items and is numbered. `taken` are names of other tasks.
    """
    size = task.batch_size
    firsts = range(0, len(items), size)
    ids: Sequence[str | None] = _unique_ids(items) if size == 1 else [None] * len(firsts)
    used: set[str] = set()
    names: list[str | None] = [_reserved(task.name, each, taken, used) for each in ids]
    return [
        Expanded(name or _numbered(task.name, number, taken, used), first, min(first + size, len(items)))
        for number, (name, first) in enumerate(zip(names, firsts, strict=True), start=1)
    ]


def _unique_ids(items: Sequence[Item]) -> list[str | None]:
    ids = [_id_of(item) for item in items]
    counts = Counter(ids)
    return [each if each is not None and counts[each] == 1 else None for each in ids]


def _id_of(item: Item) -> str | None:
    fields = _fields_of(item)
    value = None if fields is None else fields.get("id")
    return str(value) if isinstance(value, str) else None


def _reserved(task: str, identifier: str | None, taken: Container[str], used: set[str]) -> str | None:
    """TASK_ID, if that is a safe name and no other task has it."""
    if identifier is None:
        return None
    name = f"{task}_{identifier}"
    if not _SAFE.fullmatch(identifier) or len(name) > PLAIN_NAME_CHARS_MAX or name in taken:
        return None
    if ".." in name or name.endswith("."):
        return None
    used.add(name)
    return name


def _numbered(task: str, number: int, taken: Container[str], used: set[str]) -> str:
    """TASK_NUMBER; where an id has that name already, TASK_NUMBER-2 and so on."""
    name = f"{task}_{number}"
    again = 1
    while name in used or name in taken:
        again += 1
        name = f"{task}_{number}-{again}"
    used.add(name)
    return name
