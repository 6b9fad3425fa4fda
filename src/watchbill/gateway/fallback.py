"""Fallbacks: what a lane answers in place of a model (LANE-03, LANE-04).

Owns the rule which failures become a fallback and what they are called there: `stale` for a request that a newer
one superseded, `timeout` for one that could not start or end in time, any other failure by its own code. What the
caller itself did wrong stays an error. The shapes belong to the doors; OpenAI's are here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from watchbill.catalog import Lane
from watchbill.errors import RunTimeout, Stale, TheirsError, WaitExceeded
from watchbill.gateway.answers import status_of
from watchbill.templates import Template

__all__ = ["Fallback", "completion", "completion_events", "error_name", "fallback_for"]

_encode = msgspec.json.Encoder().encode


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


# ------------------------------------------------------------------ in OpenAI's shapes


def completion(fallback: Fallback, id: str, *, chat: bool) -> dict[str, object]:
    """A whole chat or completion."""
    said: dict[str, object] = (
        {"message": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    return {
        **_base(fallback, id, "chat.completion" if chat else "text_completion"),
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def completion_events(fallback: Fallback, id: str, *, chat: bool) -> bytes:
    """The same as a stream."""
    base = _base(fallback, id, "chat.completion.chunk" if chat else "text_completion")
    said: dict[str, object] = (
        {"delta": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    events = (
        {**base, "choices": [{"index": 0, **said, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, **last, "finish_reason": "stop"}]},
    )
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _base(fallback: Fallback, id: str, kind: str) -> dict[str, object]:
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": fallback.model,
        "watchbill": fallback.note,
    }
