"""Responses in the making: chunks of a chat become items, and each step an event. Does no I/O.

    OpenAI chunks ──▶ Making.feed ──▶ events      a stream sends them
                      Making.final ─▶ one object  whole answers are only that

A response is a row of items (reasoning, message, function_call, custom_tool_call); one is open at a time, and opening
the next closes it. Promises that the deltas of an item are its text in the `done` events and in the last object,
however the bytes came and wherever the answer was cut.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from io import StringIO

from watchbill.engines.sse import ENDED_EARLY
from watchbill.errors import EngineFailed, Preempted, RunTimeout, ShuttingDown, TheirsError
from watchbill.gateway.answers import error_fields
from watchbill.gateway.dialects.responses.request import Asked
from watchbill.gateway.dialects.thoughts import seal
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.growing import Kept
from watchbill.gateway.model_calls import Whole
from watchbill.gateway.toolcalls import ToolCall, ToolCalls
from watchbill.gateway.typed import count_of, object_of
from watchbill.gateway.wire import Chunk, ChunkReader, decode_fields, read_chunk

__all__ = ["Collecting", "Making", "restarted", "usage_of"]

Fields = dict[str, object]

#: Ends of a chat that leave a response incomplete.
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: What ends an answer that is well so far: it is incomplete, not failed.
_CUTS = (Preempted, RunTimeout, ShuttingDown)
_ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key",
    "safety_identifier", "temperature", "top_p", "user",
)  # fmt: skip


class Making:
    """One response, from its creation to its end. Each method returns the events of its step."""

    def __init__(self, asked: Asked, *, is_stored: bool) -> None:
        self._asked = asked
        self._frame = _frame(asked, is_stored=is_stored)
        self._reader = ChunkReader()
        self._calls = ToolCalls()
        self._kept = Kept()
        self._number = 0
        self._output: list[Fields] = []
        self._open: _Item | None = None
        self._begun = self._running = False
        self._reason: str | None = None
        self._usage: Fields | None = None

    @property
    def is_done(self) -> bool:
        """Whether the engine said that its answer is over."""
        return self._reader.is_done

    @property
    def is_ended(self) -> bool:
        """Whether it said so, or how the answer ended."""
        return self._reader.is_done or self._reason is not None

    @property
    def is_begun(self) -> bool:
        """Whether the first event was made."""
        return self._begun

    @property
    def plain_text(self) -> str:
        """What it says so far, if that is one text and nothing else."""
        return self._open.text if isinstance(self._open, _Message) and not self._output else ""

    def now(self, status: str, **more: object) -> Fields:
        """The response as it is."""
        return {**self._frame, "status": status, "output": list(self._output), **more}

    # ------------------------------------------------------------------ steps

    def wait(self, model: str) -> list[Fields]:
        """It is created, and waits for its turn."""
        if self._begun:
            return []
        return [*self._create(model, "queued"), self._event("response.queued", response=self.now("queued"))]

    def feed(self, piece: bytes, model: str) -> Iterator[Fields]:
        """Takes bytes of the engine's stream. Raises what the engine says went wrong."""
        yield from self._run(model)
        for chunk in self._reader.feed(piece):
            yield from self._take(chunk)

    def take_whole(self, answer: Fields, model: str) -> list[Fields]:
        """Takes a whole chat, of an engine that does not stream."""
        chunk = read_chunk(answer)
        calls = [{**call, "index": at} for at, call in enumerate(chunk.tool_calls)]
        whole = Chunk(
            chunk.text,
            chunk.reasoning,
            calls,
            chunk.logprobs,
            chunk.finish_reason,
            chunk.usage,
            chunk.timings,
        )
        return self._run(model) + self._take(whole)

    def end(self, model: str) -> tuple[list[Fields], Fields]:
        """The engine ended its answer in good order: the last events, and the response."""
        why = _CUT_SHORT.get(self._reason or "")
        status = "completed" if why is None else "incomplete"
        events = self._run(model) + self._close(status)
        if not self._output:  # a turn without a word is a message all the same
            events += self._turn_to(_Message(self._next_id("msg"))) + self._close(status)
        return self._finish(events, self._ended(why))

    def fail(self, error: TheirsError, model: str) -> tuple[list[Fields], Fields]:
        """The answer broke off: incomplete where it was cut, failed where something went wrong."""
        events = ([] if self._begun else self._create(model, "in_progress")) + self._close("incomplete")
        if isinstance(error, _CUTS):
            return self._finish(events, self._ended(error.code))
        return self._finish(events, self.now("failed", error=error_fields(error), usage=self._counted()))

    def cancel(self, model: str) -> Fields:
        """Its caller does not want it any more."""
        self._frame["model"] = model
        self._close("incomplete")
        return self.now("cancelled", usage=self._counted())

    def fall_back(self, fallback: Fallback) -> tuple[list[Fields], Fields]:
        """A text that no model wrote stands in for the answer."""
        events = self._run(fallback.model)
        self._frame["watchbill"] = fallback.note
        events += self._take(Chunk(text=fallback.text))
        return self._finish(events + self._close("completed"), self._ended(None))

    # ------------------------------------------------------------------ inside

    def _create(self, model: str, status: str) -> list[Fields]:
        self._begun = True
        self._frame["model"] = model
        return [self._event("response.created", response=self.now(status))]

    def _run(self, model: str) -> list[Fields]:
        if self._running:
            return []
        events = [] if self._begun else self._create(model, "in_progress")
        self._running = True
        self._frame["model"] = model
        return [*events, self._event("response.in_progress", response=self.now("in_progress"))]

    def _ended(self, why: str | None) -> Fields:
        if why is None:
            return self.now("completed", usage=self._counted(), completed_at=int(time.time()))
        return self.now("incomplete", incomplete_details={"reason": why}, usage=self._counted())

    def _finish(self, events: list[Fields], final: Fields) -> tuple[list[Fields], Fields]:
        return [*events, self._event(f"response.{final['status']}", response=final)], final

    def _counted(self) -> Fields | None:
        return None if self._usage is None else usage_of(self._usage)

    def _take(self, chunk: Chunk) -> list[Fields]:
        self._usage = chunk.usage or self._usage
        self._reason = chunk.finish_reason or self._reason
        events: list[Fields] = []
        if chunk.reasoning:
            if not isinstance(self._open, _Reasoning):
                kind = _Summary if self._asked.summarized else _Reasoning
                events += self._turn_to(kind(self._next_id("rs"), seals=self._asked.encrypted))
            events += self._grow(chunk.reasoning, [])
        if chunk.text:
            if not isinstance(self._open, _Message):
                events += self._turn_to(_Message(self._next_id("msg")))
            events += self._grow(chunk.text, chunk.logprobs if self._asked.logprobs else [])
        for call, text in self._calls.take(chunk.tool_calls):
            events += self._take_call(call, text)
        return events

    def _take_call(self, call: ToolCall, text: str) -> list[Fields]:
        events: list[Fields] = []
        if not isinstance(self._open, _Call) or self._open.call is not call:
            if call is not self._calls.calls[-1]:
                raise EngineFailed("the engine went back to a tool call that it had ended")
            call.id = call.id or f"call_{self._asked.token}{call.index:x}"
            is_custom = call.name in self._asked.custom
            kind = _CustomCall if is_custom else _FunctionCall
            events += self._turn_to(kind(self._next_id("ctc" if is_custom else "fc"), call))
        return events + (self._grow(text, []) if text else [])

    def _next_id(self, prefix: str) -> str:
        at = len(self._output) + (self._open is not None)
        return f"{prefix}_{self._asked.token}{at:x}"

    def _turn_to(self, item: "_Item") -> list[Fields]:
        closed = self._close("completed")
        self._open = item
        return [
            *closed,
            self._event("response.output_item.added", item=item.begun()),
            *self._told(item.opening()),
        ]

    def _grow(self, text: str, logprobs: list[Fields]) -> list[Fields]:
        item = self._open
        assert item is not None
        self._kept.text(text)
        for each in logprobs:
            self._kept.value(each)
        return self._told(item.grow(text, logprobs))

    def _close(self, status: str) -> list[Fields]:
        item, self._open = self._open, None
        if item is None:
            return []
        whole = item.whole(status)
        self._output.append(whole)
        told = self._told(item.closing(), at=len(self._output) - 1)
        done = self._event("response.output_item.done", at=len(self._output) - 1, item=whole)
        return [*told, done]

    def _told(self, events: list[Fields], at: int | None = None) -> list[Fields]:
        return [self._event(str(each.pop("type")), at=at, **each) for each in events]

    def _event(self, kind: str, at: int | None = None, **fields: object) -> Fields:
        event: Fields = {"type": kind, "sequence_number": self._number}
        self._number += 1
        if "response" not in fields:
            event["output_index"] = len(self._output) if at is None else at
        return {**event, **fields}


class Collecting:
    """A whole response out of a stream, for a client that wants no events. A stream that broke off begins it anew."""

    is_over = False  # only the engine ends it

    def __init__(self, make: Callable[[], Making], model: Callable[[], str]) -> None:
        self._make, self._model = make, model
        self._making = make()

    def now(self, status: str) -> Fields:
        """The response as far as it is."""
        return self._making.now(status, model=self._model())

    @property
    def plain_text(self) -> str:
        """What it says so far, if that is one text and nothing else."""
        return self._making.plain_text

    def begin(self) -> "Collecting":
        """Takes a stream from its beginning."""
        self._making = self._make()
        return self

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises what the engine says went wrong."""
        for _ in self._making.feed(piece, self._model()):
            pass

    def result(self) -> Fields:
        """The response. Raises EngineFailed when the stream ended before its end."""
        if not self._making.is_ended:
            raise EngineFailed(ENDED_EARLY)
        return self._making.end(self._model())[1]

    def final(self, answer: Whole | Fallback) -> Fields:
        """The response, whatever came."""
        if isinstance(answer, Fallback):
            return self._make().fall_back(answer)[1]
        if answer.assembled is not None:
            return answer.assembled
        self._making.take_whole(answer.fields(), self._model())
        return self._making.end(self._model())[1]

    def failed(self, error: TheirsError) -> Fields:
        """The response that an error ended."""
        return self._making.fail(error, self._model())[1]

    def cancelled(self) -> Fields:
        """The response that its caller does not want any more."""
        return self._making.cancel(self._model())


# ------------------------------------------------------------------ items


class _Item(ABC):
    """An item that grows. Its events lack their number and place, which `Making` adds."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._text = StringIO()

    @property
    def text(self) -> str:
        """What there is of it."""
        return self._text.getvalue()

    @abstractmethod
    def begun(self) -> Fields:
        """The item while nothing of it is there."""

    def opening(self) -> list[Fields]:
        """The events that follow its announcement."""
        return []

    def grow(self, text: str, logprobs: list[Fields]) -> list[Fields]:
        """Takes more of its text."""
        self._text.write(text)
        return [{"type": self._delta, "item_id": self.id, "delta": text}]

    @abstractmethod
    def closing(self) -> list[Fields]:
        """The events that say what it has become."""

    @abstractmethod
    def whole(self, status: str) -> Fields:
        """The item as it is kept."""

    _delta = ""


class _Message(_Item):
    _delta = "response.output_text.delta"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._logprobs: list[Fields] = []

    def begun(self) -> Fields:
        return {"id": self.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def opening(self) -> list[Fields]:
        part: Fields = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [{"type": "response.content_part.added", "item_id": self.id, "content_index": 0, "part": part}]

    def grow(self, text: str, logprobs: list[Fields]) -> list[Fields]:
        self._logprobs += logprobs
        return [{**each, "content_index": 0, "logprobs": logprobs} for each in super().grow(text, logprobs)]

    def closing(self) -> list[Fields]:
        here: Fields = {"item_id": self.id, "content_index": 0}
        done = {
            "type": "response.output_text.done",
            **here,
            "text": self._text.getvalue(),
            "logprobs": self._logprobs,
        }
        return [done, {"type": "response.content_part.done", **here, "part": self._part()}]

    def whole(self, status: str) -> Fields:
        return {**self.begun(), "status": status, "content": [self._part()]}

    def _part(self) -> Fields:
        text = self._text.getvalue()
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}


class _Reasoning(_Item):
    _delta, _done = "response.reasoning_text.delta", "response.reasoning_text.done"
    _part_event, _part_type = "response.content_part", "reasoning_text"
    _place, _index = "content", "content_index"

    def __init__(self, id: str, *, seals: bool) -> None:
        super().__init__(id)
        self._seals = seals

    def begun(self) -> Fields:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": [], self._place: []}

    def opening(self) -> list[Fields]:
        return [{"type": f"{self._part_event}.added", **self._here(), "part": self._part("")}]

    def grow(self, text: str, logprobs: list[Fields]) -> list[Fields]:
        return [{**each, **self._here()} for each in super().grow(text, logprobs)]

    def closing(self) -> list[Fields]:
        done = {"type": self._done, **self._here(), "text": self.text}
        return [done, {"type": f"{self._part_event}.done", **self._here(), "part": self._part(self.text)}]

    def whole(self, status: str) -> Fields:
        sealed = {"encrypted_content": seal(self.text)} if self._seals else {}
        return {**self.begun(), "status": status, self._place: [self._part(self.text)], **sealed}

    def _here(self) -> Fields:
        return {"item_id": self.id, self._index: 0}

    def _part(self, text: str) -> Fields:
        return {"type": self._part_type, "text": text}


class _Summary(_Reasoning):
    """Thoughts for a client that asked for a summary, because such clients show nothing else of them."""

    _delta, _done = "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"
    _part_event, _part_type = "response.reasoning_summary_part", "summary_text"
    _place, _index = "summary", "summary_index"


class _Call(_Item):
    def __init__(self, id: str, call: ToolCall) -> None:
        super().__init__(id)
        self.call = call


class _FunctionCall(_Call):
    _delta = "response.function_call_arguments.delta"

    def begun(self) -> Fields:
        named = {"call_id": self.call.id, "name": self.call.name}
        return {"id": self.id, "type": "function_call", "status": "in_progress", **named, "arguments": ""}

    def closing(self) -> list[Fields]:
        told: Fields = {"item_id": self.id, "name": self.call.name, "arguments": self._text.getvalue()}
        return [{"type": "response.function_call_arguments.done", **told}]

    def whole(self, status: str) -> Fields:
        return {**self.begun(), "status": status, "arguments": self._text.getvalue()}


class _CustomCall(_Call):
    """A tool that takes a text: the model writes it as the only argument of a function, known at its end."""

    def begun(self) -> Fields:
        named = {"call_id": self.call.id, "name": self.call.name}
        return {"id": self.id, "type": "custom_tool_call", "status": "in_progress", **named, "input": ""}

    def grow(self, text: str, logprobs: list[Fields]) -> list[Fields]:
        self._text.write(text)
        return []

    def closing(self) -> list[Fields]:
        text = self._input()
        delta: Fields = {"type": "response.custom_tool_call_input.delta", "item_id": self.id, "delta": text}
        return [delta, {"type": "response.custom_tool_call_input.done", "item_id": self.id, "input": text}]

    def whole(self, status: str) -> Fields:
        return {**self.begun(), "status": status, "input": self._input()}

    def _input(self) -> str:
        """The text that the model wrote; all that it wrote where that is not the argument, or half of it."""
        text = self._text.getvalue()
        try:
            found = decode_fields(text.encode("utf-8", "replace"), "no argument").get("input")
        except EngineFailed:
            return text
        return found if isinstance(found, str) else text


# ------------------------------------------------------------------ objects


def _frame(asked: Asked, *, is_stored: bool) -> Fields:
    """What a response says of its request, from its creation on."""
    given = asked.body
    return {
        "id": asked.id, "object": "response", "created_at": int(time.time()), "status": "in_progress",
        "background": asked.background, "completed_at": None, "error": None, "incomplete_details": None,
        **{name: given.get(name) for name in _ECHOED}, "metadata": given.get("metadata", {}), "model": "", "output": [],
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "reasoning": {"effort": None, "summary": None, **object_of(given.get("reasoning"))},
        "service_tier": "default", "store": is_stored,
        "text": {"format": {"type": "text"}, **object_of(given.get("text"))},
        "tool_choice": given.get("tool_choice", "auto"), "tools": asked.tools,
        "top_logprobs": given.get("top_logprobs", 0), "truncation": given.get("truncation", "disabled"), "usage": None,
    }  # fmt: skip


def restarted(response: Fields) -> Fields:
    """A response that the end of a daemon found unfinished."""
    error = ShuttingDown("Watchbill was restarted before this response was done; ask again")
    return {**response, "status": "failed", "error": error_fields(error)}


def usage_of(usage: Fields) -> Fields:
    """Token counts in the words of this API."""
    prompt, answer = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    cached = count_of(object_of(usage.get("prompt_tokens_details")).get("cached_tokens"))
    thought = count_of(object_of(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + answer,
    }
