"""Fallbacks: what a lane answers in place of a model (LANE-03, LANE-04).

Owns the rule which failures become a fallback and what they are called there: `stale` for a request that a newer
one superseded, `timeout` for one that could not start or end in time, any other failure by its own code. What the
caller itself did wrong stays an error. Also owns the summary that may stand in such a text: the payload's own, else one
line built from its entities and events. The shapes of answers belong to the dialects. Does no I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from watchbill.catalog import Lane
from watchbill.errors import RunTimeout, Stale, TheirsError, WaitExceeded
from watchbill.gateway.answers import status_of
from watchbill.gateway.body import encode
from watchbill.gateway.limits import SUMMARY_CHARS_MAX, SUMMARY_ITEM_CHARS_MAX, SUMMARY_ITEMS_MAX
from watchbill.quoting import on_one_line
from watchbill.templates import Template

__all__ = [
    "Fallback",
    "error_name",
    "fallback_for",
    "summarize",
    "summarize_request",
]


@dataclass(frozen=True, slots=True)
class Fallback:
    """An answer that no model gave."""

    text: str
    error: str  # stale, timeout, or the code of what went wrong
    model: str  # the one that was asked for

    @property
    def note(self) -> dict[str, object]:
        """What is said about it in an answer of another protocol."""
        return {"fallback": True, "error": self.error}


def error_name(error: TheirsError) -> str:
    """What a failure is called in a fallback."""
    return "timeout" if isinstance(error, WaitExceeded | RunTimeout) else error.code


def fallback_for(error: TheirsError, lane: Lane, model: str, summary: Callable[[], str]) -> Fallback | None:
    """The lane's answer to a failure; None when the failure is to be told as one.

    A superseded request always has one: it did nothing wrong, and its caller waits for a 200."""
    if isinstance(error, Stale):
        return Fallback(
            str(error) if lane.fallback is None else _filled(lane.fallback, summary), error.code, model
        )
    status = status_of(error)
    if lane.fallback is None or (status < 500 and status != 429):
        return None
    return Fallback(_filled(lane.fallback, summary), error_name(error), model)


def _filled(text: str, summary: Callable[[], str]) -> str:
    """A lane's text with its only place, `{summary}`, filled in."""
    template = Template(text)
    return template.fill({"summary": summary() if template.places else ""}, {})


Fields = dict[str, object]

#: Where a thing's or an event's name stands, the best first.
_ENTITY_NAMES = ("name", "type", "kind", "label", "id")
_EVENT_NAMES = ("summary", "description", "text", "message", "type", "kind", "name", "id")
NOTHING = "nothing of note"


def summarize(payload: Fields) -> str:
    """One line about what a payload says."""
    own = payload.get("summary")
    if isinstance(own, str) and own.strip():
        return on_one_line(own, SUMMARY_CHARS_MAX)
    parts = [*_listed(payload.get("entities"), _ENTITY_NAMES), *_listed(payload.get("events"), _EVENT_NAMES)]
    return on_one_line(", ".join(parts), SUMMARY_CHARS_MAX) or NOTHING


def summarize_request(asked: Fields) -> str:
    """One line about what a request asks: the text of its last message, its prompt or its input."""
    said: object = asked.get("prompt") or asked.get("input")
    messages = asked.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        said = cast("Fields", messages[-1]).get("content")
    return on_one_line(" ".join(_texts(said)), SUMMARY_CHARS_MAX) or NOTHING


def _texts(said: object) -> list[str]:
    """The texts of a message's content, of a prompt, or of an input."""
    if isinstance(said, str):
        return [said.partition("\x01")[0]]  # of a long text its beginning: the rest was lifted out
    parts = cast("list[object]", said) if isinstance(said, list) else []
    found = [cast("Fields", part).get("text") if isinstance(part, dict) else part for part in parts]
    return [text.partition("\x01")[0] for text in found if isinstance(text, str)]


def _listed(values: object, names: tuple[str, ...]) -> list[str]:
    """Each thing once, with how often it is there; what is too much is counted."""
    if not isinstance(values, list):
        return []
    counts: dict[str, int] = {}
    for value in cast("list[object]", values):
        text = on_one_line(_named(value, names), SUMMARY_ITEM_CHARS_MAX)
        if text:
            counts[text] = counts.get(text, 0) + 1
    told = [text if count == 1 else f"{count} x {text}" for text, count in counts.items()]
    rest = len(told) - SUMMARY_ITEMS_MAX
    return told if rest <= 0 else [*told[:SUMMARY_ITEMS_MAX], f"and {rest} more"]


def _named(value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, dict):
        fields = cast("Fields", value)
        found = next((fields[name] for name in names if _is_text(fields.get(name))), None)
        return str(found) if found is not None else encode(fields).decode()
    return "" if value is None else str(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
