"""Placeholders: `{NAME}`, `{ITEM}` and `{ITEM.field}` in the texts of a task.

Anything else between braces is not one: `{}`, `{a,b}`, `{1..3}`, `{ print }`, `${VAR}`, JSON. `\\{NAME}` is a literal.
A value is put in once and never read again: a value that looks like a placeholder stays as it is.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["ITEM", "PLACEHOLDER", "Placeholder", "fill", "places_in"]

ITEM = "ITEM"
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,99})((?:\.[A-Za-z0-9_-]{1,100}){0,20})\}")
_MAYBE_ESCAPED = re.compile(rf"(\\|\$)?{PLACEHOLDER.pattern}")


class Placeholder(NamedTuple):
    """A place for a value."""

    name: str
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, match: re.Match[str]) -> "Placeholder":
        """The placeholder that the pattern has found."""
        return cls(match[1], tuple(match[2].split(".")[1:]))

    @property
    def is_item(self) -> bool:
        """Whether the value comes from the item of a foreach."""
        return self.name == ITEM

    def __str__(self) -> str:
        return "{" + ".".join((self.name, *self.fields)) + "}"


def places_in(text: str) -> Iterator[tuple[int, Placeholder]]:
    """The placeholders of a text that is no command, with their offsets."""
    for match in _MAYBE_ESCAPED.finditer(text):
        if match[1] is None:
            yield match.start(), Placeholder(match[2], tuple(match[3].split(".")[1:]))


def fill(text: str, value_of: Callable[[Placeholder], str]) -> str:
    """The text with every placeholder replaced by its value, in one pass."""

    def put(match: re.Match[str]) -> str:
        if match[1] == "\\":
            return match[0][1:]
        if match[1] is not None:
            return match[0]
        return value_of(Placeholder(match[2], tuple(match[3].split(".")[1:])))

    return _MAYBE_ESCAPED.sub(put, text)
