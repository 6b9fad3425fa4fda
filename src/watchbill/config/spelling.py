"""How values and keys of the config are written back: for hints, for `config show` and for the reference."""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from watchbill.config.document import TABLES, Table
from watchbill.config.fields import Written
from watchbill.config.locate import KeyPath, spell_key

__all__ = ["Key", "choices_of", "find_key", "keys_of", "place_of", "spell", "spell_value"]


class Key(NamedTuple):
    """One key of a table, as the file spells it."""

    name: str
    attribute: str
    field: FieldInfo

    def spell(self, value: object) -> str:
        """A value of this key as TOML: sizes and durations with their units."""
        return spell(value, _writer(self.field))

    @property
    def meaning(self) -> str:
        """The sentence about it."""
        return self.field.description or ""

    @property
    def default(self) -> object:
        """What the key is when nobody says anything; None when that is nothing, or depends on other keys."""
        return None if self.field.is_required() else cast("object", self.field.default)

    @property
    def example(self) -> str:
        """A value to show to somebody who got it wrong; empty when there is no good one."""
        examples = cast("list[object] | None", self.field.examples)
        if examples:
            return spell(examples[0])
        is_plain = isinstance(self.default, str | int | float)
        return self.spell(self.default) if is_plain else ""


def place_of(path: KeyPath) -> tuple[str, ...]:
    """The path with "*" for the names that the operator chose: models.a.idle is models.*.idle."""
    place: tuple[str, ...] = ()
    for part in path:
        named = (*place, "*")
        is_named = any(known[: len(named)] == named for known in TABLES)
        place = named if is_named or isinstance(part, int) else (*place, part)
    return place


def keys_of(table: type[Table]) -> dict[str, Key]:
    """The keys of a table in their order."""
    fields = table.model_fields.items()
    return {info.alias or name: Key(info.alias or name, name, info) for name, info in fields}


def find_key(path: KeyPath) -> Key | None:
    """The key that the path means, if there is such a key."""
    place = place_of(path)
    table = TABLES.get(place[:-1]) if place else None
    return keys_of(table).get(place[-1]) if table else None


def choices_of(key: Key) -> list[str]:
    """The words a key takes; empty when it takes any."""
    for kind in _kinds(key.field):
        if get_origin(kind) is Literal:
            return [str(choice) for choice in get_args(kind)]
    return []


def spell(value: object, writer: Callable[[int], str] | None = None) -> str:
    """A value as TOML; a writer spells the whole numbers in it."""
    if writer and isinstance(value, int) and not isinstance(value, bool):
        return spell_value(writer(value))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        inside = ", ".join(f"{spell_key((name,))} = {spell(each, writer)}" for name, each in pairs)
        return f"{{ {inside} }}" if inside else "{}"
    return spell_value(value)


def spell_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPES.get(letter) or _escape(letter) for letter in value) + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell_value, cast('list[object]', value)))}]"
    return str(value)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(letter: str) -> str:
    return letter if letter.isprintable() else f"\\U{ord(letter):08X}"


def _writer(field: FieldInfo) -> Callable[[int], str] | None:
    marks = [*field.metadata, *(mark for kind in _kinds(field) for mark in getattr(kind, "__metadata__", ()))]
    return next((mark.spell for mark in marks if isinstance(mark, Written)), None)


def _kinds(field: FieldInfo) -> Iterator[object]:
    """The field's type and everything inside it."""
    waiting: list[object] = [field.annotation]
    while waiting:
        kind = waiting.pop(0)
        yield kind
        waiting.extend(get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind))
