"""Answers in Ollama's dialect: lines of a stream, one object, or an error. Does no I/O.

    OpenAI chunks ──▶ Translated ──▶ lines        any engine
    Ollama lines  ──▶ Passed     ──▶ lines        an Ollama behind us; only the model's name is ours

The last line carries durations in nanoseconds: the engine's own where it tells them, else measured here.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, cast

from watchbill.engines.sse import DONE, ENDED_EARLY, EventReader
from watchbill.errors import EngineFailed, LaneFull, MethodNotAllowed, NotFound, PullFailed, TheirsError
from watchbill.gateway.answers import engine_error, refuse, status_of
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.ollama.context import write_context
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.growing import Kept
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import CONTEXT_TEXT_BYTES_MAX
from watchbill.gateway.toolcalls import ToolCalls
from watchbill.gateway.typed import count_of
from watchbill.gateway.wire import NO_STREAM, Chunk, ChunkReader, LineReader, decode_fields, line, read_chunk

__all__ = [
    "InfillCollector",
    "InfillReader",
    "Passed",
    "Telling",
    "Translated",
    "Translation",
    "error_line",
    "error_response",
    "fallen_back",
    "now_text",
    "renamed",
    "whole",
]

Fields = dict[str, object]

_NS_PER_MS = 1_000_000
_PLAIN_ERRORS: dict[type[TheirsError], str] = {
    NotFound: "404 page not found",
    MethodNotAllowed: "405 method not allowed",
}
#: What Ollama says with another status than we do elsewhere.
_STATUSES: dict[type[TheirsError], int] = {LaneFull: 503, PullFailed: 500}


def now_text() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass
class Telling:
    """One answer: its request, its shape, and its times."""

    model: str  # as the client named it
    chat: bool
    thoughts: bool = True  # whether the client wants to see the model think
    turns: list[tuple[str, str]] | None = None  # of the conversation so far, where the answer hands it back
    note: Mapping[str, object] = field(default_factory=dict[str, object])  # beside the last object's fields
    began_ns: int = field(default_factory=time.monotonic_ns)
    load_ms: int = 0
    sent_ns: int | None = None  # when the engine was asked
    first_ns: int | None = None  # when its first word came

    def mark_sent(self) -> None:
        """The engine is being asked."""
        self.sent_ns = time.monotonic_ns()

    def mark_first(self) -> None:
        """The engine's first word, or the beginning of its first tool call, is there."""
        self.first_ns = self.first_ns or time.monotonic_ns()

    def object(self, text: str, beside: Mapping[str, object] | None = None, *, done: bool = False) -> Fields:
        """One line's object. `beside` goes beside the text: thoughts and tool calls."""
        head: Fields = {"model": self.model, "created_at": now_text()}
        if self.chat:
            said: Fields = {"message": {"role": "assistant", "content": text, **(beside or {})}}
        else:
            said = {"response": text, **(beside or {})}
        return {**head, **said, "done": done}

    def durations(self, usage: Fields | None, timings: Fields | None) -> Fields:
        """What the last object says about time and tokens. A prompt counts whole, even where the engine had read a
        part of it before: so it does in Ollama, and clients take it for what they used."""
        now = time.monotonic_ns()
        sent = self.sent_ns or self.began_ns
        first = self.first_ns or now
        used, timed = usage or {}, timings or {}
        return {
            "total_duration": now - self.began_ns,
            "load_duration": self.load_ms * _NS_PER_MS,
            "prompt_eval_count": count_of(used.get("prompt_tokens"), timed.get("prompt_n")),
            "prompt_eval_duration": _ns(timed.get("prompt_ms"), first - sent),
            "eval_count": count_of(timed.get("predicted_n"), used.get("completion_tokens")),
            "eval_duration": _ns(timed.get("predicted_ms"), now - first),
        }

    def ending(self, text: str) -> Fields:
        """What the last object has beside times and tokens: the conversation, and what was not done as asked."""
        found = None if self.turns is None else write_context([*self.turns, ("assistant", text)])
        told: Fields = {} if found is None else {"context": found}
        return told | ({"watchbill": dict(self.note)} if self.note else {})


class Reader(Protocol):
    """Bytes of an engine's stream in, chunks out."""

    @property
    def is_done(self) -> bool: ...

    def feed(self, piece: bytes) -> Iterator[Chunk]: ...


class Translation(Protocol):
    """Bytes of an engine's stream in, lines out."""

    @property
    def is_done(self) -> bool: ...

    def feed(self, piece: bytes) -> Iterator[bytes]: ...

    def end(self) -> bytes: ...


class Translated:
    """OpenAI chunks to Ollama's lines."""

    def __init__(self, telling: Telling, reader: Reader | None = None) -> None:
        self._telling = telling
        self._reader = reader or ChunkReader()
        self._calls = ToolCalls()
        self._said: list[str] = []  # for the conversation that is handed back
        self._said_chars = 0
        self._reason: str | None = None
        self._usage: Fields | None = None
        self._timings: Fields | None = None

    @property
    def is_done(self) -> bool:
        """Whether the engine said that its answer is over, or how it ended."""
        return self._reader.is_done or self._reason is not None

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that a piece completes. Raises what the engine says went wrong."""
        return map(self._line, self._reader.feed(piece))

    def end(self) -> bytes:
        """The tool calls and the last line."""
        telling = self._telling
        calls = tool_calls(self._calls, cut=self._reason == "length")
        said = line(telling.object("", {"tool_calls": calls})) if calls else b""
        last = telling.object("", done=True)
        last |= {"done_reason": self._reason or "stop", **telling.ending("".join(self._said))}
        return said + line(last | telling.durations(self._usage, self._timings))

    def _line(self, chunk: Chunk) -> bytes:
        telling = self._telling
        self._calls.take(chunk.tool_calls)
        self._reason = done_reason(chunk.finish_reason) if chunk.finish_reason else self._reason
        self._usage, self._timings = chunk.usage or self._usage, chunk.timings or self._timings
        beside = beside_text(chunk, telling)
        if chunk.text or chunk.reasoning or chunk.tool_calls:
            telling.mark_first()
        if telling.turns is not None and self._said_chars < CONTEXT_TEXT_BYTES_MAX:
            self._said.append(chunk.text)
            self._said_chars += len(chunk.text)
        if not chunk.text and not beside:
            return b""
        return line(telling.object(chunk.text, beside) | _logprobs(chunk))


class Passed:
    """Lines of an Ollama behind us, with the model's name that the client used."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._reader = LineReader()
        self.is_done = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that a piece completes. Raises what the engine says went wrong."""
        return map(self._line, self._reader.feed(piece))

    def end(self) -> bytes:
        """Nothing is left: Ollama ends every line."""
        return b"".join(map(self._line, self._reader.end()))

    def _line(self, text: bytes) -> bytes:
        fields = decode_fields(text, NO_STREAM)
        if "error" in fields:
            raise engine_error(502, fields)
        self.is_done = fields.get("done") is True
        return line(renamed(fields, self._telling))


def renamed(answer: Fields, telling: Telling) -> Fields:
    """An Ollama's own answer under the name that our client used."""
    return {**answer, "model": telling.model}


def whole(answer: Fields, telling: Telling) -> Fields:
    """An OpenAI answer as Ollama's one object."""
    chunk, calls = read_chunk(answer), ToolCalls()
    calls.take([{**call, "index": at} for at, call in enumerate(chunk.tool_calls)])
    beside = beside_text(chunk, telling)
    if listed := tool_calls(calls, cut=chunk.finish_reason == "length"):
        beside["tool_calls"] = listed
    said = telling.object(chunk.text, beside, done=True) | _logprobs(chunk)
    said["done_reason"] = done_reason(chunk.finish_reason)
    said |= telling.ending(chunk.text)
    return said | telling.durations(chunk.usage, chunk.timings)


def fallen_back(fallback: Fallback, telling: Telling) -> Fields:
    """A fallback as Ollama's one object."""
    said = telling.object(fallback.text, done=True)
    said["done_reason"] = "stop"
    return said | telling.durations(None, None) | {"watchbill": fallback.note}


def error_line(error: TheirsError) -> bytes:
    """An error within a stream."""
    return line({"error": str(error)})


def done_reason(reason: str | None) -> str:
    """Ollama knows two ends of an answer; a tool call is an ordinary one."""
    return "length" if reason == "length" else "stop"


def beside_text(chunk: Chunk, telling: Telling) -> Fields:
    return {"thinking": chunk.reasoning} if chunk.reasoning and telling.thoughts else {}


def tool_calls(calls: ToolCalls, *, cut: bool) -> list[Fields]:
    """Whole calls in Ollama's shape, arguments as an object."""
    listed: list[Fields] = []
    for place, call in enumerate(calls.whole(cut=cut)):
        function: Fields = {"index": place, "name": call.name, "arguments": call.parsed()}
        listed.append({**({"id": call.id} if call.id else {}), "function": function})
    return listed


def _logprobs(chunk: Chunk) -> Fields:
    return {"logprobs": cast("object", chunk.logprobs)} if chunk.logprobs else {}


class InfillReader:
    """Events of llama.cpp's own kind, which fill in a text, as chunks."""

    def __init__(self) -> None:
        self._reader = EventReader()
        self.is_done = False

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that `piece` completes. Raises what the engine says went wrong."""
        return (self._read(payload) for payload in self._reader.feed(piece) if payload != DONE)

    def _read(self, payload: bytes) -> Chunk:
        fields = decode_fields(payload, NO_STREAM)
        if "error" in fields:
            raise engine_error(502, fields)
        self.is_done = self.is_done or fields.get("stop") is True
        text, timings = fields.get("content"), fields.get("timings")
        if fields.get("stop") is not True:
            return Chunk(text=text if isinstance(text, str) else "")
        return Chunk(
            text=text if isinstance(text, str) else "",
            finish_reason="length" if fields.get("stop_type") == "limit" else "stop",
            usage={
                "prompt_tokens": fields.get("tokens_evaluated"),
                "completion_tokens": fields.get("tokens_predicted"),
            },
            timings=cast("Fields", timings) if isinstance(timings, dict) else None,
        )


class InfillCollector:
    """The same as one answer, of OpenAI's shape."""

    def __init__(self) -> None:
        self._reader = InfillReader()
        self._kept = Kept()
        self._words: list[str] = []
        self._last: Chunk | None = None

    @property
    def is_over(self) -> bool:
        """Whether the engine said that its answer is over."""
        return self._reader.is_done

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises what the engine says went wrong."""
        for chunk in self._reader.feed(piece):
            self._kept.text(chunk.text)
            self._words.append(chunk.text)
            self._last = chunk if chunk.finish_reason else self._last

    def result(self) -> Fields:
        """The whole answer. Raises EngineFailed when the stream ended before its end."""
        if self._last is None:
            raise EngineFailed(ENDED_EARLY)
        choice = {"index": 0, "text": "".join(self._words), "finish_reason": self._last.finish_reason}
        return {"choices": [choice], "usage": self._last.usage, "timings": self._last.timings}


def _ns(told_ms: object, measured_ns: int) -> int:
    if isinstance(told_ms, int | float) and 0 <= told_ms < 1e12:
        return int(told_ms * _NS_PER_MS)
    return max(0, measured_ns)


def error_response(error: TheirsError, lines: str) -> Response:
    """The answer to a request that failed. Unknown addresses answer in plain text, as Ollama's own do."""
    if text := _PLAIN_ERRORS.get(type(error)):
        return Response(text.encode(), {"Content-Type": "text/plain"}, error.status, lines)
    status = _STATUSES.get(type(error)) or status_of(error)
    body = encode({"error": str(error)})
    return refuse(error, body, "application/json; charset=utf-8", lines, status)
