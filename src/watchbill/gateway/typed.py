"""Values whose type is not sure, because a client or an engine wrote them: words, counts and objects. Does no I/O.

A list or an object cannot be looked up in a table, and true is a number to Python. So what a client or an engine wrote
is compared with known words, or taken for a count, only here.
"""

from collections.abc import Container
from typing import TypeGuard, cast

__all__ = ["Fields", "count_of", "is_count", "is_word", "object_of", "objects_of"]

Fields = dict[str, object]


def is_word(value: object, known: Container[str]) -> TypeGuard[str]:
    """Whether a value is one of these words."""
    return isinstance(value, str) and value in known


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count_of(*told: object) -> int:
    """The first of these that is a count; 0 where none is."""
    return next((value for value in told if is_count(value)), 0)


def object_of(value: object) -> Fields:
    """The value where it is an object; an empty one otherwise."""
    return cast("Fields", value) if isinstance(value, dict) else {}


def objects_of(value: object) -> list[Fields]:
    """Those members of a list that are objects; none of what is no list."""
    if not isinstance(value, list):
        return []
    return [cast("Fields", each) for each in cast("list[object]", value) if isinstance(each, dict)]
