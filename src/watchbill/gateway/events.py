"""Server-sent events without any I/O: chunks of an OpenAI stream in, and events of our own out.

`ChunkReader` is what doors of other protocols translate from. Owns the bytes of an event that is not complete yet;
an error within the stream is raised as the engine's. The plain reader of payloads is `engines.sse`.
"""

from typing import cast

import msgspec

from watchbill.engines.sse import DONE, EventReader
from watchbill.gateway.answers import engine_error
from watchbill.gateway.engine_json import NO_STREAM, decode_fields

__all__ = ["Chunk", "ChunkReader", "event", "read_chunk"]

Fields = dict[str, object]

_encode = msgspec.json.Encoder().encode


def event(value: object, name: str | None = None) -> bytes:
    """An object as one event, with its name where the protocol has names. JSON has no newlines within."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encode(value) + b"\n\n"


class Chunk(msgspec.Struct, frozen=True):
    """One chunk of a chat or completion, first choice only."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[Fields] = []
    logprobs: list[Fields] = []
    finish_reason: str | None = None
    usage: Fields | None = None
    timings: Fields | None = None


class ChunkReader:
    """Turns the bytes of an OpenAI stream into chunks."""

    def __init__(self) -> None:
        self._reader = EventReader()
        self.is_done = False

    def feed(self, piece: bytes) -> list[Chunk]:
        """The chunks that `piece` completes. Raises EngineRefused on an error within, EngineFailed on garbage."""
        return [self._read(payload) for payload in self._reader.feed(piece) if not self._is_end(payload)]

    def _is_end(self, payload: bytes) -> bool:
        if payload != DONE:
            return False
        self.is_done = True
        return True

    def _read(self, payload: bytes) -> Chunk:
        fields = decode_fields(payload, NO_STREAM)
        if "error" in fields:
            raise engine_error(502, fields)
        return read_chunk(fields)


def read_chunk(fields: Fields) -> Chunk:
    """What doors need of a chunk, or of a whole answer, which looks the same but for its message."""
    choice: Fields = {}
    for each in _objects(fields.get("choices")):
        if each.get("index", 0) == 0:
            choice = each
    said = _object(choice.get("delta")) or _object(choice.get("message")) or choice
    logprobs = _object(choice.get("logprobs"))
    reason = choice.get("finish_reason")
    return Chunk(
        text=_text(said.get("content")) or _text(choice.get("text")),
        reasoning=_text(said.get("reasoning_content")) or _text(said.get("reasoning")),
        tool_calls=_objects(said.get("tool_calls")),
        logprobs=_objects(logprobs.get("content")),
        finish_reason=reason if isinstance(reason, str) else None,
        usage=_object(fields.get("usage")) or None,
        timings=_object(fields.get("timings")) or None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[Fields]:
    if not isinstance(value, list):
        return []
    return [cast("Fields", each) for each in cast("list[object]", value) if isinstance(each, dict)]
