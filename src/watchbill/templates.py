"""Prompt templates: texts of the operator with places for values of a caller.

    {summary} {type} {id}       what the request says
    {payload.mood.name}         a value of the payload, by its path
    {{ and }}                   a brace as such

A brace that is none of these stands for itself, so that JSON can be written into a prompt. A value is put in as it
is, once: nothing in it is ever read as a placeholder. Has no expressions and no attributes, on purpose.
"""

import re
from collections.abc import Mapping
from typing import cast

import msgspec

from watchbill.errors import ConfigError, RequestError
from watchbill.limits import TEMPLATE_CHARS_MAX, TEMPLATE_VALUE_CHARS_MAX
from watchbill.quoting import cut, quoted

__all__ = ["PLACES", "Template"]

#: The places that every template may have, beside payload.NAME.
PLACES = ("summary", "type", "id")
_PAYLOAD = "payload"
_MARK = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\}", re.ASCII)


class Template:
    """A text that was read once and can be filled many times."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError for a place that does not exist."""
        if len(text) > TEMPLATE_CHARS_MAX:
            raise ConfigError(
                f"the template has more than {TEMPLATE_CHARS_MAX} characters", hint="make it shorter"
            )
        self._texts: list[str] = []  # one more than places
        self.places: list[str] = []
        said, end = "", 0
        for mark in _MARK.finditer(text):
            said += text[end : mark.start()]
            end = mark.end()
            if mark[1] is None:
                said += mark[0][0]
                continue
            self._texts.append(said)
            self.places.append(_known(mark[1]))
            said = ""
        self._texts.append(said + text[end:])

    def fill(self, values: Mapping[str, str], payload: Mapping[str, object]) -> str:
        """The text with its values. Raises RequestError for what the payload does not have."""
        parts = [self._texts[0]]
        for place, text in zip(self.places, self._texts[1:], strict=True):
            value = values[place] if place in PLACES else _spelled(_look_up(payload, place), place)
            parts += [value, text]
        return "".join(parts)


def _known(place: str) -> str:
    if place in PLACES or place.startswith(f"{_PAYLOAD}."):
        return place
    known = ", ".join(f"{{{name}}}" for name in PLACES)
    raise ConfigError(
        f"there is no {{{cut(place)}}}", hint=f"use {known}, {{payload.NAME}}, or {{{{ for a brace"
    )


def _look_up(payload: Mapping[str, object], place: str) -> object:
    value: object = dict(payload)
    for name in place.split(".")[1:]:
        fields = _fields(value)
        if name not in fields:
            raise RequestError(f"the payload has no {quoted(place.removeprefix(_PAYLOAD + '.'))}")
        value = fields[name]
    return value


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _spelled(value: object, place: str) -> str:
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (OverflowError, ValueError, RecursionError) as error:
        raise RequestError(f"{place} cannot be written down: {error}") from None
    if len(text) > TEMPLATE_VALUE_CHARS_MAX:
        raise RequestError(f"{place} is longer than {TEMPLATE_VALUE_CHARS_MAX} characters")
    return text
