"""Answers that grow: texts that come in many pieces, and a bound for all that is kept of an answer until its end.

An answer of a million pieces costs a million steps and not their square: a text is joined once, at its end. What is
kept has a weight, which is known at any time; an answer that becomes too heavy is refused, because encoding it at once
would hold up every other request. Does no I/O.
"""

from io import StringIO
from typing import cast

from watchbill.errors import EngineFailed
from watchbill.gateway.limits import GROWN_CHARACTER_WEIGHT, GROWN_VALUE_WEIGHT, GROWN_WEIGHT_MAX

__all__ = ["Kept", "growing_text", "whole_texts"]

Fields = dict[str, object]


class Kept:
    """The weight of what is kept of one answer. Its methods raise EngineFailed when the answer becomes too heavy."""

    __slots__ = ("_weight", "_weight_max")

    def __init__(self, weight_max: int = GROWN_WEIGHT_MAX) -> None:
        self._weight = 0
        self._weight_max = weight_max

    def text(self, text: str) -> None:
        """Counts a text that continues another one."""
        self._add(GROWN_CHARACTER_WEIGHT * len(text))

    def json(self, text: str) -> None:
        """Counts a part of a JSON document, by its characters and by the values that it seems to have."""
        marks = text.count(",") + text.count("[") + text.count("{")
        self._add(GROWN_CHARACTER_WEIGHT * len(text) + GROWN_VALUE_WEIGHT * marks)

    def value(self, value: object) -> None:
        """Counts a value with all that is in it."""
        self._add(_weigh(value))

    def put(self, fields: Fields, name: str, value: object) -> None:
        """Puts a value into a field and counts it, in place of what was there."""
        before = _weigh(fields[name]) if name in fields else -GROWN_CHARACTER_WEIGHT * len(name)
        fields[name] = value
        self._add(_weigh(value) - before)

    def _add(self, weight: int) -> None:
        self._weight += weight
        if self._weight > self._weight_max:
            characters = self._weight_max // GROWN_CHARACTER_WEIGHT
            values = self._weight_max // GROWN_VALUE_WEIGHT
            raise EngineFailed(
                f"the engine's answer has more than {characters} characters, or {values} values; ask for a stream"
            )


def _weigh(value: object) -> int:
    """The weight of a value with all that is in it, the names of fields included."""
    if not isinstance(value, str | dict | list | StringIO):
        return GROWN_VALUE_WEIGHT  # an event may have 10,000 of these
    count, characters = 0, 0
    level: list[object] = [value]
    while level:
        count += len(level)
        inner: list[object] = []
        for each in level:
            if isinstance(each, str):
                characters += len(each)
            elif isinstance(each, dict):
                characters += sum(map(len, cast("Fields", each)))
                inner += cast("Fields", each).values()
            elif isinstance(each, list):
                inner += cast("list[object]", each)
            elif isinstance(each, StringIO):
                characters += each.tell()
        level = inner
    return GROWN_VALUE_WEIGHT * count + GROWN_CHARACTER_WEIGHT * characters


def growing_text(fields: Fields, name: str) -> StringIO:
    """The text of a field, as one that goes on: `write` its further pieces."""
    text = fields.get(name)
    if not isinstance(text, StringIO):
        begun, text = str(text or ""), StringIO()
        text.write(begun)
        fields[name] = text
    return text


def whole_texts(fields: Fields) -> None:
    """Puts texts in the place of those that grew, in an object and the objects within."""
    for name, value in fields.items():
        if isinstance(value, StringIO):
            fields[name] = value.getvalue()
        elif isinstance(value, dict):
            whole_texts(cast("Fields", value))
