"""Answers in Anthropic's dialect: events of a stream, or one message. Does no I/O.

    OpenAI chunks ──▶ Making      ──▶ events        a stream sends them
    events        ──▶ Collecting  ──▶ one message   whole answers are put together from the same events

An answer is a row of blocks (thinking, text, tool_use); one is open at a time, and opening the next closes it.
Promises that the deltas of a block are its text however the bytes came, and that the reason of the end is the true one.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import cast

from watchbill.engines.sse import ENDED_EARLY
from watchbill.errors import EngineFailed
from watchbill.gateway.dialects.anthropic.request import Asked
from watchbill.gateway.dialects.anthropic.stops import StopSequences
from watchbill.gateway.dialects.thoughts import seal
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.growing import Kept, growing_text, whole_texts
from watchbill.gateway.model_calls import Whole
from watchbill.gateway.toolcalls import ToolCall, ToolCalls
from watchbill.gateway.typed import count_of, is_count, object_of
from watchbill.gateway.wire import Chunk, ChunkReader, decode_fields, event, read_chunk

__all__ = ["PING", "Collecting", "Making"]

Fields = dict[str, object]

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
#: Reasons of an end in the middle of something.
_CUT_SHORT = ("max_tokens", "model_context_window_exceeded")
#: Where a delta of this type goes in its block.
_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
#: In a block of thoughts that are shown whole; nothing checks it, but some clients send no block back without one.
_SIGNATURE = "watchbill"
#: Ids of calls as Anthropic's clients know them; some engines give none, or others.
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

PING = event({"type": "ping"}, "ping")


class Making:
    """One message, from its beginning to its end. Each method returns the events of its step.

    `foretold` says about how many tokens the prompt has: asked only where a stop sequence ended an answer whose engine
    had counted nothing so far."""

    def __init__(self, asked: Asked, id: str, foretold: Callable[[], int] = lambda: 0) -> None:
        self._asked = asked
        self._id = id
        self._foretold = foretold
        self._reader = ChunkReader()
        self._calls = ToolCalls()
        self._stops = StopSequences(asked.stops)
        self._hidden = StringIO()  # the thoughts of the open block, where they are not shown
        self._kept = Kept()
        self._begun = False
        self._index = -1
        self._open: object = None  # "text", "thinking", or the index of a tool call
        self._reason: str | None = None
        self._pieces = 0  # that had a text in them: about the tokens of the answer
        self._usage: Fields | None = None
        self._timings: Fields | None = None

    @property
    def is_done(self) -> bool:
        """Whether the engine said that its answer is over, or a stop sequence ended it."""
        return self._reader.is_done or self.is_over

    @property
    def is_ended(self) -> bool:
        """Whether that is so, or the engine said how its answer ended."""
        return self.is_done or self._reason is not None

    @property
    def is_over(self) -> bool:
        """Whether a stop sequence ended the answer: what the engine still says is of no use."""
        return self._stops.found is not None

    def feed(self, piece: bytes, model: str) -> Iterator[Fields]:
        """Takes bytes of the engine's stream. Raises what the engine says went wrong."""
        for chunk in self._reader.feed(piece):
            yield from self._take(chunk, model)

    def take_whole(self, answer: Fields, model: str) -> list[Fields]:
        """Takes a whole chat, of an engine that does not stream."""
        chunk = read_chunk(answer)
        events = self._take(Chunk(text=chunk.text, reasoning=chunk.reasoning), model)
        calls = [{**call, "index": at} for at, call in enumerate(chunk.tool_calls)]
        rest = Chunk(tool_calls=calls, finish_reason=chunk.finish_reason, usage=chunk.usage)
        return events + self._take(rest, model)

    def end(self, model: str) -> list[Fields]:
        """The engine ended its answer in good order: the open block, the reason of the end, the counts."""
        events = self._begin(model) + self._say(self._stops.end()) + self._close()
        counted = self._counted()
        delta: Fields = {"stop_reason": self._ended(counted), "stop_sequence": self._stops.found}
        told: Fields = {"type": "message_delta", "delta": {**delta, "stop_details": None}, "usage": counted}
        if "context_management" in self._asked.body:
            told["context_management"] = {"applied_edits": []}
        return [*events, told, {"type": "message_stop"}]

    def fall_back(self, fallback: Fallback) -> list[Fields]:
        """A text that no model wrote stands in for the answer."""
        start = _message(self._id, fallback.model, [], _usage()) | {"watchbill": fallback.note}
        self._begun = True
        said = self._turn_to("text", {"type": "text", "text": ""})
        said.append(self._delta({"type": "text_delta", "text": fallback.text}))
        return [{"type": "message_start", "message": start}, *said, *self.end(fallback.model)]

    # ------------------------------------------------------------------ steps

    def _take(self, chunk: Chunk, model: str) -> list[Fields]:
        if self.is_over:
            return []
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        self._reason = chunk.finish_reason or self._reason
        is_empty = not (chunk.text or chunk.reasoning or chunk.tool_calls)
        if is_empty and not self._begun:
            return []  # only who speaks; with the first word the engine tells the prompt's tokens
        self._pieces += not is_empty
        events = self._begin(model)
        if chunk.reasoning:
            events += self._think(chunk.reasoning)
        if chunk.text:
            events += self._say(self._stops.feed(chunk.text))
        if not self.is_over:
            for call, text in self._calls.take(chunk.tool_calls):
                events += self._call(call, text)
        return events

    def _begin(self, model: str) -> list[Fields]:
        if self._begun:
            return []
        self._begun = True
        return [
            {
                "type": "message_start",
                "message": _message(self._id, model, [], {**self._counted(), "output_tokens": 0}),
            }
        ]

    def _think(self, text: str) -> list[Fields]:
        events = self._turn_to("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if self._asked.hides_thoughts:
            self._kept.text(text)
            self._hidden.write(text)
            return events
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def _say(self, text: str) -> list[Fields]:
        if not text:
            return []
        events = self._turn_to("text", {"type": "text", "text": ""})
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def _call(self, call: ToolCall, text: str) -> list[Fields]:
        events: list[Fields] = []
        if call.index != self._open:
            if call is not self._calls.calls[-1]:
                raise EngineFailed("the engine went back to a tool call that it had ended")
            id = call.id if _CALL_ID.fullmatch(call.id) else f"toolu_{self._id}_{call.index}"
            block: Fields = {"type": "tool_use", "id": id, "name": call.name, "input": {}}
            events = self._say(self._stops.end()) + self._turn_to(call.index, block)
        return [*events, self._delta({"type": "input_json_delta", "partial_json": text})] if text else events

    def _turn_to(self, kind: object, block: Fields) -> list[Fields]:
        if self._open == kind:
            return []
        closed = self._close()
        self._open = kind
        self._index += 1
        return [*closed, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: Fields) -> Fields:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[Fields]:
        if self._open is None:
            return []
        signed: list[Fields] = []
        if self._open == "thinking":
            hidden, self._hidden = self._hidden.getvalue(), StringIO()
            signature = seal(hidden) if self._asked.hides_thoughts else _SIGNATURE
            signed = [self._delta({"type": "signature_delta", "signature": signature})]
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    # ------------------------------------------------------------------ the end

    def _ended(self, counted: Fields) -> str:
        """Why the answer ended. A limit that was not reached was not the caller's: the context was full."""
        if self.is_over:
            return "stop_sequence"
        reason = _REASONS.get(self._reason or "", "end_turn")
        most, made = self._asked.max_tokens, cast("int", counted["output_tokens"])
        if reason == "max_tokens" and self._usage is not None and most is not None and made < most:
            return "model_context_window_exceeded"
        return "tool_use" if reason == "end_turn" and self._calls.calls else reason

    def _counted(self) -> Fields:
        """The tokens so far: as the engine counts them, else the pieces that came."""
        if self._usage is not None:
            return usage_of(self._usage)
        if self._timings is not None:
            told = {
                name: count_of(self._timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n")
            }
            return _usage(told["prompt_n"], told["predicted_n"], told["cache_n"])
        return _usage(self._foretold(), self._pieces) if self.is_over else _usage()


class Collecting:
    """A whole message out of a stream, for a client that wants no events. A stream that broke off begins it anew."""

    def __init__(self, make: Callable[[], Making], model: Callable[[], str]) -> None:
        self._make, self._model = make, model
        self.begin()

    @property
    def is_over(self) -> bool:
        """Whether the rest of the stream is of no use."""
        return self._making.is_over

    def begin(self) -> "Collecting":
        """Takes a stream from its beginning."""
        self._making = self._make()
        self._message: Fields = {}
        self._blocks: list[Fields] = []
        self._kept = Kept()
        return self

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises what the engine says went wrong."""
        self._gather(self._making.feed(piece, self._model()))

    def result(self) -> Fields:
        """The message. Raises EngineFailed when the stream ended before its end."""
        if not self._making.is_ended:
            raise EngineFailed(ENDED_EARLY)
        return self._finish(self._making.end(self._model()))

    def final(self, answer: Whole | Fallback) -> Fields:
        """The message, whatever came."""
        if isinstance(answer, Fallback):
            self.begin()
            return self._finish(self._making.fall_back(answer))
        if answer.assembled is not None:
            return answer.assembled
        self._gather(self._making.take_whole(answer.fields(), self._model()))
        return self._finish(self._making.end(self._model()))

    def _gather(self, events: Iterable[Fields]) -> None:
        for told in events:
            match told["type"]:
                case "message_start":
                    self._message = cast("Fields", told["message"])
                case "content_block_start":
                    self._kept.value(told)
                    self._blocks.append(cast("Fields", told["content_block"]))
                case "content_block_delta":
                    self._grow(cast("Fields", told["delta"]))
                case "message_delta":
                    self._message |= cast("Fields", told["delta"]) | {"usage": told["usage"]}
                    if "context_management" in told:
                        self._message["context_management"] = told["context_management"]
                case _:
                    pass  # the end of a block, or of all

    def _grow(self, delta: Fields) -> None:
        kind, block = str(delta["type"]), self._blocks[-1]
        if kind == "input_json_delta":
            text = block["input"]
            if not isinstance(text, StringIO):
                block["input"] = text = StringIO()
            more = cast("str", delta["partial_json"])
        else:
            text, more = growing_text(block, _GROWS[kind]), cast("str", delta[_GROWS[kind]])
        self._kept.text(more)
        text.write(more)

    def _finish(self, events: list[Fields]) -> Fields:
        self._gather(events)
        is_cut = self._message["stop_reason"] in _CUT_SHORT
        content: list[Fields] = []
        for block in self._blocks:
            whole_texts(block)
            if not isinstance(block.get("input"), str) or self._read_call(block, is_cut=is_cut):
                content.append(block)
        return {**self._message, "content": content}

    def _read_call(self, block: Fields, *, is_cut: bool) -> bool:
        """Puts the arguments of a call in place of their text. False for half of a call, which must not be run."""
        text = str(block["input"]).strip() or "{}"
        try:
            block["input"] = decode_fields(
                text.encode("utf-8", "replace"),
                f"the model called {block['name']} with arguments that are no JSON",
            )
        except EngineFailed:
            if not is_cut or block is not self._blocks[-1]:
                raise
            return False
        return True


# ------------------------------------------------------------------ objects


def _message(id: str, model: str, content: list[Fields], usage: Fields) -> Fields:
    return {
        "id": f"msg_{id}", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None, "usage": usage,
    }  # fmt: skip


def usage_of(usage: Fields) -> Fields:
    """Token counts in Anthropic's words, where a part of the prompt that was read from a cache counts apart."""
    cached = count_of(object_of(usage.get("prompt_tokens_details")).get("cached_tokens"))
    thought = object_of(usage.get("completion_tokens_details")).get("reasoning_tokens")
    prompt = max(0, count_of(usage.get("prompt_tokens")) - cached)
    told = _usage(prompt, count_of(usage.get("completion_tokens")), cached)
    return {**told, "output_tokens_details": {"thinking_tokens": thought}} if is_count(thought) else told


def _usage(prompt: int = 0, answer: int = 0, cached: int = 0) -> Fields:
    return {
        "input_tokens": prompt,
        "output_tokens": answer,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }
