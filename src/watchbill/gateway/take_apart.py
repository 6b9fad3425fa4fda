"""Makes a stream out of one whole answer, for clients that asked for a stream of an engine that has none.

The counterpart of `assemble`: the same events that an engine would have streamed, with all that was said in the first
one of each choice. Does no I/O.
"""

from typing import cast

import msgspec

__all__ = ["events_of"]

Fields = dict[str, object]
_encode = msgspec.json.Encoder().encode


def events_of(answer: Fields) -> bytes | None:
    """A whole chat or completion as a stream of events; None where it is neither."""
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(map(_is_choice, cast("list[object]", choices)))
    ):
        return None
    told = cast("list[Fields]", choices)
    is_chat = "message" in told[0]
    usage = {"usage": answer["usage"]} if isinstance(answer.get("usage"), dict) else {}
    kind = {"object": "chat.completion.chunk"} if is_chat else {}
    base = {name: value for name, value in answer.items() if name not in ("choices", "usage")} | kind
    events = [base | {"choices": [_said(choice) | {"finish_reason": None}]} for choice in told]
    events += [base | {"choices": [_end(choice, is_chat=is_chat)]} for choice in told]
    events[-1] |= usage
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _is_choice(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    fields = cast("Fields", choice)
    return isinstance(fields.get("message"), dict) or isinstance(fields.get("text"), str)


def _said(choice: Fields) -> Fields:
    """What a choice says. The parts of a message are those of a delta, except that tool calls are numbered."""
    others = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    message = choice.get("message")
    if not isinstance(message, dict):
        return others
    delta = dict(cast("Fields", message))
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        listed = cast("list[Fields]", calls)
        delta["tool_calls"] = [{"index": place} | call for place, call in enumerate(listed)]
    return others | {"delta": delta}


def _end(choice: Fields, *, is_chat: bool) -> Fields:
    nothing: Fields = {"delta": {}} if is_chat else {"text": ""}
    ended = choice.get("finish_reason")
    return {
        "index": choice.get("index", 0),
        **nothing,
        "finish_reason": ended if isinstance(ended, str) else "stop",
    }
