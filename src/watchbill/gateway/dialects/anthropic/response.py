"""Answers in Anthropic's dialect: events of a stream, one message, or an error. Does no I/O.

    OpenAI chunks     ──▶ Events      ──▶ events        an engine that does not speak Anthropic's protocol
    OpenAI answer     ──▶ message     ──▶ one object
    Anthropic events  ──▶ Gathering   ──▶ one object    an engine that does, for a client without a stream
    Anthropic events  ──▶ Opening     ──▶ events        the same for one with

An answer is a row of blocks (text, thinking, tool_use); one is open at a time, and opening the next closes it.
"""

from collections.abc import Mapping
from io import StringIO
from typing import cast

from watchbill.engines.sse import EventReader
from watchbill.errors import EngineFailed, TheirsError
from watchbill.gateway.answers import EngineRefused, engine_error, refuse, status_of
from watchbill.gateway.body import encode
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.growing import Kept, growing_text, whole_texts
from watchbill.gateway.http.messages import Response, header
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.toolcalls import ToolCalls
from watchbill.gateway.wire import NO_STREAM, Chunk, ChunkReader, decode_fields, event, read_chunk
from watchbill.limits import FIRST_EVENTS_BYTES_MAX, GROWN_CALLS_WEIGHT_MAX

__all__ = [
    "PING",
    "Events",
    "Gathering",
    "Opening",
    "error_fields",
    "error_response",
    "fallen_back",
    "fallen_back_events",
    "lines",
    "message",
    "named",
]

Fields = dict[str, object]

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
#: Where a delta of this type goes in its block.
_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}

#: Events that have a message around them.
_INNER = frozenset({
    "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
})  # fmt: skip

#: Anthropic's `type` of an error, by status.
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: llama.cpp's own type of the error that a prompt is longer than the context.
_TOO_LONG = "exceed_context_size_error"

PING = event({"type": "ping"}, "ping")


class Events:
    """OpenAI chunks to Anthropic's events."""

    def __init__(self, id: str, model: str) -> None:
        self._id = id
        self._model = model
        self._reader = ChunkReader()
        self._calls = ToolCalls()
        self._begun = False
        self._index = -1
        self._open: object = None  # "text", "thinking", or the index of a tool call
        self._reason = "end_turn"
        self._usage: Fields = {}

    @property
    def is_done(self) -> bool:
        """Whether the engine said that its answer is over."""
        return self._reader.is_done

    def feed(self, piece: bytes) -> bytes:
        """The events that a piece completes. Raises what the engine says went wrong."""
        return b"".join(self._take(chunk) for chunk in self._reader.feed(piece))

    def end(self) -> bytes:
        """The last events: the open block, the reason of the end, the counts."""
        said = self._begin() + self._close()
        delta: Fields = {"stop_reason": self._reason, "stop_sequence": None}
        told = {"type": "message_delta", "delta": delta, "usage": usage_of(self._usage)}
        return said + event(told, "message_delta") + event({"type": "message_stop"}, "message_stop")

    def _take(self, chunk: Chunk) -> bytes:
        self._usage = chunk.usage or self._usage
        if chunk.finish_reason:
            self._reason = _REASONS.get(chunk.finish_reason, "end_turn")
        said = self._begin()
        if chunk.reasoning:
            said += self._turn_to("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            said += self._grow({"type": "thinking_delta", "thinking": chunk.reasoning})
        if chunk.text:
            said += self._turn_to("text", {"type": "text", "text": ""})
            said += self._grow({"type": "text_delta", "text": chunk.text})
        for call, text in self._calls.take(chunk.tool_calls):
            if call.index != self._open and call is not self._calls.calls[-1]:
                raise EngineFailed("the engine went back to a tool call that it had ended")
            id = call.id or f"toolu_{self._id}_{call.index}"
            block: Fields = {"type": "tool_use", "id": id, "name": call.name, "input": {}}
            said += self._turn_to(call.index, block)
            if text:
                said += self._grow({"type": "input_json_delta", "partial_json": text})
        return said

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return _start(self._id, self._model)

    def _turn_to(self, kind: object, block: Fields) -> bytes:
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + event(start, "content_block_start")

    def _grow(self, delta: Fields) -> bytes:
        told = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(told, "content_block_delta")

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return event({"type": "content_block_stop", "index": self._index}, "content_block_stop")


def message(answer: Fields, id: str, model: str) -> Fields:
    """An OpenAI answer as one message."""
    chunk, calls = read_chunk(answer), ToolCalls()
    calls.take([{**call, "index": at} for at, call in enumerate(chunk.tool_calls)])
    content: list[Fields] = []
    if chunk.reasoning:
        content.append({"type": "thinking", "thinking": chunk.reasoning, "signature": ""})
    if chunk.text:
        content.append({"type": "text", "text": chunk.text})
    for call in calls.whole(cut=chunk.finish_reason == "length"):
        id_of_call = call.id or f"toolu_{id}_{call.index}"
        content.append({"type": "tool_use", "id": id_of_call, "name": call.name, "input": call.parsed()})
    reason = _REASONS.get(chunk.finish_reason or "", "end_turn")
    return _message(id, model, content, reason, usage_of(chunk.usage or {}))


def fallen_back(fallback: Fallback, id: str) -> Fields:
    """A fallback as one message."""
    said = _message(id, fallback.model, [{"type": "text", "text": fallback.text}], "end_turn", usage_of({}))
    return {**said, "watchbill": fallback.note}


def fallen_back_events(fallback: Fallback, id: str) -> bytes:
    """A fallback as a stream."""
    head = {**_message(id, fallback.model, [], None, usage_of({})), "watchbill": fallback.note}
    delta = {"type": "text_delta", "text": fallback.text}
    block = {"type": "text", "text": ""}
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    told: tuple[Fields, ...] = (
        {"type": "message_start", "message": head},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": usage_of({})},
        {"type": "message_stop"},
    )
    return b"".join(event(each, str(each["type"])) for each in told)


def usage_of(usage: Fields) -> Fields:
    """Token counts in Anthropic's words, where a part of the prompt that was read from a cache counts apart."""
    cached = _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return {
        "input_tokens": max(0, _count(usage.get("prompt_tokens")) - cached),
        "output_tokens": _count(usage.get("completion_tokens")),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _message(id: str, model: str, content: list[Fields], reason: str | None, usage: Fields) -> Fields:
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }


def named(message: Fields, id: str, model: str) -> Fields:
    """An engine's own message, under our name where it has none: see `Opening`."""
    if "role" in message:
        return message
    usage = usage_of({}) | _object(message.get("usage"))
    return _message(id, model, [], None, usage) | message | {"usage": usage}


class Opening:
    """An engine's own events, as they are, but for the first one where it is missing.

    llama.cpp says `message_start` with its first token. One that is only half a character, as that of an emoji often
    is, is held back there and takes the event with it; clients then have no message to put the blocks into."""

    def __init__(self, id: str, model: str) -> None:
        self._id = id
        self._model = model
        self._reader = EventReader()
        self._held = b""
        self._is_open = False

    def feed(self, piece: bytes) -> bytes:
        """What can be sent: nothing before it is known which event is the first."""
        if self._is_open:
            return piece
        self._held += piece
        for payload in self._reader.feed(piece):
            if (kind := _kind(payload)) != "ping":
                self._is_open = True
                return (_start(self._id, self._model) if kind in _INNER else b"") + self.end()
        self._is_open = len(self._held) >= FIRST_EVENTS_BYTES_MAX
        return self.end() if self._is_open else b""

    def end(self) -> bytes:
        """What is held back."""
        held, self._held = self._held, b""
        return held


def _start(id: str, model: str) -> bytes:
    head = _message(id, model, [], None, usage_of({}))
    return event({"type": "message_start", "message": head}, "message_start")


def _kind(payload: bytes) -> object:
    """What an event is, None where it is no object."""
    try:
        return decode_fields(payload, NO_STREAM).get("type")
    except EngineFailed:
        return None


class Gathering:
    """Makes one message out of Anthropic's own events."""

    def __init__(self) -> None:
        self._reader = EventReader()
        self._message: Fields = {}
        self._blocks: dict[int, Fields] = {}
        self._json: dict[int, StringIO] = {}
        self._kept, self._kept_json = Kept(), Kept(GROWN_CALLS_WEIGHT_MAX)
        self._is_done = False

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises EngineRefused on an error within it, EngineFailed on garbage."""
        for payload in self._reader.feed(piece):
            self._take(decode_fields(payload, NO_STREAM))

    def result(self) -> Fields:
        """The whole message. Raises EngineFailed when the stream ended before its end."""
        if not self._is_done:
            raise EngineFailed("the engine's stream ended before its answer did")
        for index, text in self._json.items():
            if index in self._blocks:
                self._blocks[index]["input"] = _arguments(text.getvalue())
        for block in self._blocks.values():
            whole_texts(block)
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}

    def _take(self, told: Fields) -> None:
        index = told.get("index")
        at = index if isinstance(index, int) else 0
        match told.get("type"):
            case "error":
                raise engine_error(502, told)
            case "message_start":
                self._message = dict(_object(told.get("message")))
            case "content_block_start":
                self._kept.value(told)
                self._blocks[at] = dict(_object(told.get("content_block")))
            case "content_block_delta":
                self._grow(at, _object(told.get("delta")))
            case "message_delta":
                self._kept.value(told)
                self._message.update(_object(told.get("delta")))
                used = {**_object(self._message.get("usage")), **_object(told.get("usage"))}
                self._message["usage"] = used
            case "message_stop":
                self._is_done = True
            case _:
                pass  # pings, and what nobody has heard of

    def _grow(self, index: int, delta: Fields) -> None:
        if index not in self._blocks:
            self._kept.value(delta)
            self._blocks[index] = {}
        kind = str(delta.get("type"))
        if kind == "input_json_delta":
            text, more = self._json.setdefault(index, StringIO()), str(delta.get("partial_json", ""))
            self._kept_json.json(more)
        elif name := _GROWS.get(kind):
            text, more = growing_text(self._blocks[index], name), str(delta.get(name, ""))
        else:
            return
        self._kept.text(more)
        text.write(more)


def _arguments(text: str) -> Fields:
    return decode_fields(
        (text or "{}").encode("utf-8", "replace"), "the model called a tool with arguments that are no JSON"
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _object(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def lines(context: RequestContext) -> str:
    """The headers of an answer; Anthropic's clients look for the request's id under a name of their own."""
    return context.lines() + header("request-id", context.given or context.id)


# ------------------------------------------------------------------ errors


def error_fields(error: TheirsError, beside: Mapping[str, object] | None = None) -> Fields:
    """An error in Anthropic's shape; `code` is ours, for scripts."""
    status = status_of(error)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    is_too_long = isinstance(error, EngineRefused) and error.kind == _TOO_LONG
    # Clients shorten a conversation by themselves when they read these words.
    message = f"prompt is too long: {error}" if is_too_long else str(error)
    said = {"type": kind, "message": message, "code": error.code}
    return {"type": "error", "error": said, **(beside or {})}


def error_response(
    error: TheirsError, context: RequestContext, beside: Mapping[str, object] | None = None
) -> Response:
    """The answer to a request that failed."""
    body = encode(error_fields(error, beside))
    return refuse(error, body, "application/json; charset=utf-8", lines(context), status_of(error))
