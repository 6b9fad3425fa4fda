"""Answers that grow: texts that come in many pieces, and a bound for all that is kept of an answer until its end.

An answer of a million pieces costs a million steps and not their square: a text is joined once, at its end. What is
kept has a weight; an answer that becomes too heavy is refused, because encoding it at once would hold up every other
request. Does no I/O.
"""

from io import StringIO
from typing import cast

from watchbill.errors import EngineFailed
from watchbill.limits import GROWN_VALUE_WEIGHT, GROWN_WEIGHT_MAX

__all__ = ["Kept", "growing_text", "whole_texts"]

Fields = dict[str, object]


class Kept:
    """The weight of what is kept of one answer: a character weighs 1, any other value GROWN_VALUE_WEIGHT."""

    __slots__ = ("_weight",)

    def __init__(self) -> None:
        self._weight = 0

    def text(self, text: str) -> None:
        """Counts a text that continues another one. Raises EngineFailed when the answer becomes too heavy."""
        self._weight += len(text)
        if self._weight > GROWN_WEIGHT_MAX:
            raise EngineFailed(
                f"the engine's answer has more than {GROWN_WEIGHT_MAX} characters, or as many values; ask for a stream"
            )

    def value(self, value: object) -> None:
        """Counts a value with all that is in it. Raises EngineFailed when the answer becomes too heavy."""
        level: list[object] = [value]
        while level:
            self._weight += GROWN_VALUE_WEIGHT * len(level)
            inner: list[object] = []
            for each in level:
                if isinstance(each, str):
                    self._weight += len(each)
                elif isinstance(each, dict):
                    inner += cast("Fields", each).values()
                elif isinstance(each, list):
                    inner += cast("list[object]", each)
            level = inner
        self.text("")


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
