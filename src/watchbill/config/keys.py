"""The keys of a table: their names, kinds, defaults and sentences, and how their values are written back.

Hints, `config show` and the reference are drawn from the tables through this module, so that a key is described once.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from watchbill.config.values import Masked, Table, Written
from watchbill.toml import spell_value

__all__ = ["Key", "choices_of", "keys_of", "spell", "tables_of"]


class Key(NamedTuple):
    """One key of a table, as the file spells it."""

    name: str
    attribute: str
    field: FieldInfo

    def spell(self, value: object) -> str:
        """A value of this key as TOML: sizes and durations with their units."""
        return spell(value, self.writer)

    @property
    def writer(self) -> Callable[[int], str] | None:
        """What writes a whole number of this key with its unit; None when it has none."""
        return next((mark.spell for mark in self._marks() if isinstance(mark, Written)), None)

    def mask(self, value: object) -> object:
        """What may be shown of a value of this key: all of it, unless it holds a secret."""
        masked = next((mark for mark in self._marks() if isinstance(mark, Masked)), None)
        return masked.mask(value) if masked else value

    @property
    def meaning(self) -> str:
        """The sentence about it."""
        return self.field.description or ""

    @property
    def default(self) -> object:
        """The value without a word in the file; None when there is none, or when it depends on other keys."""
        return None if self.field.is_required() else cast("object", self.field.default)

    @property
    def example(self) -> str:
        """A value for the hint about a wrong one; empty when there is no good example."""
        examples = cast("list[object] | None", self.field.examples)
        if examples:
            return spell(examples[0])
        is_plain = isinstance(self.default, str | int | float)
        return self.spell(self.default) if is_plain else ""

    def _marks(self) -> Iterator[object]:
        yield from self.field.metadata
        for kind in _kinds(self.field):
            yield from getattr(kind, "__metadata__", ())


def keys_of(table: type[Table]) -> dict[str, Key]:
    """The keys of a table in their order."""
    fields = table.model_fields.items()
    return {info.alias or name: Key(info.alias or name, name, info) for name, info in fields}


def tables_of(table: type[Table], place: tuple[str, ...] = ()) -> dict[tuple[str, ...], type[Table]]:
    """The table and every table in it by its place; "*" is a name that the operator chooses."""
    found = {place: table}
    for key in keys_of(table).values():
        kinds = list(_kinds(key.field))
        is_named = any(get_origin(kind) is dict for kind in kinds)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Table):
                found |= tables_of(kind, (*place, key.name, "*") if is_named else (*place, key.name))
    return found


def choices_of(key: Key) -> list[str]:
    """The words a key takes; empty when it takes any."""
    for kind in _kinds(key.field):
        if get_origin(kind) is Literal:
            return [str(choice) for choice in get_args(kind)]
    return []


def spell(value: object, writer: Callable[[int], str] | None = None) -> str:
    """A value as TOML; a writer spells the whole numbers in it."""
    return spell_value(value if writer is None else _with_units(value, writer))


def _with_units(value: object, writer: Callable[[int], str]) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return writer(value)
    if isinstance(value, dict):
        return {name: _with_units(each, writer) for name, each in cast("dict[str, object]", value).items()}
    return value


def _kinds(field: FieldInfo) -> Iterator[object]:
    """The field's type and everything inside it."""
    waiting: list[object] = [field.annotation]
    while waiting:
        kind = waiting.pop(0)
        yield kind
        waiting.extend(get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind))
