"""What engines and clients send beside plain JSON: server-sent events, lines of JSON, and bounds for both. Does no I/O.

An engine's event or answer is bounded in bytes already. A large one is a long text, an image, or vectors, which are
passed on undecoded. One with more values, or digits in a number, than a decoder reads quickly is refused, so that no
answer holds up other requests. `ChunkReader` turns an OpenAI stream into chunks, which the other dialects translate;
an error within the stream is raised as the engine's, after the chunks before it. `LineReader` promises the same lines
however the bytes were split; a line larger than its bound is an error, so that an engine which never ends one cannot
fill the memory. The plain reader of events is `engines.sse`.
"""

import re
from collections.abc import Iterator

import msgspec

from watchbill.decodable import collector_paused, is_decodable, json_decoder
from watchbill.engines.sse import DONE, ENDED_EARLY, EventReader, EventTooLarge
from watchbill.errors import EngineFailed
from watchbill.gateway.answers import engine_error, is_of_the_site
from watchbill.gateway.typed import object_of, objects_of
from watchbill.limits import JSON_DECODED_BYTES_MAX, JSON_DIGITS_BYTES_MIN

__all__ = [
    "NO_STREAM",
    "Chunk",
    "ChunkReader",
    "Fields",
    "LineReader",
    "decode_fields",
    "event",
    "failure_in",
    "first_fields",
    "line",
    "read_chunk",
    "said_in",
]

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

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that `piece` completes, up to an error within (raises EngineRefused) or garbage (EngineFailed)."""
        for payload in self._reader.feed(piece):
            if self.is_done or self._is_end(payload):
                return  # nothing belongs to an answer that is over
            yield self._read(payload)

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
    """The chunk in an event, or in a whole answer, which has a message in place of a delta."""
    choice: Fields = {}
    for each in objects_of(fields.get("choices")):
        if each.get("index", 0) == 0:
            choice = each
    said = object_of(choice.get("delta")) or object_of(choice.get("message")) or choice
    logprobs = object_of(choice.get("logprobs"))
    reason = choice.get("finish_reason")
    content, thoughts = said_in(said.get("content"))
    return Chunk(
        text=content or _text(choice.get("text")) or _text(said.get("refusal")),
        reasoning=_text(said.get("reasoning_content")) or _text(said.get("reasoning")) or thoughts,
        tool_calls=objects_of(said.get("tool_calls")),
        logprobs=objects_of(logprobs.get("content")),
        finish_reason=reason if isinstance(reason, str) else None,
        usage=object_of(fields.get("usage")) or None,
        timings=object_of(fields.get("timings")) or None,
    )


def first_fields(events: bytes) -> Fields | None:
    """The fields of the first event of a stream; None where it is no object."""
    try:
        return decode_fields(next(iter(EventReader().feed(events)), b""), NO_STREAM)
    except EngineFailed:
        return None


def failure_in(events: bytes) -> EngineFailed | None:
    """The failure with which an OpenAI stream begins, where that is its server's own: an error, by its fields or by the
    name of its event, or an end without an answer. None for any other beginning."""
    if b"error" not in events and DONE not in events:
        return None
    try:
        payload = next(iter(EventReader().feed(events)), b"")
        if payload == DONE:
            return EngineFailed(ENDED_EARLY)
        fields = decode_fields(payload, NO_STREAM)
    except EngineFailed:
        return None
    if "error" not in fields and not _is_named_error(events):
        return None
    error = engine_error(502, fields)
    return error if is_of_the_site(error) else None


def _is_named_error(events: bytes) -> bool:
    """Whether the name of the first event says that it is an error."""
    for line in events.splitlines():
        if line.startswith(b"data:"):
            return False
        if line.replace(b" ", b"") == b"event:error":
            return True
    return False


def said_in(content: object) -> tuple[str, str]:
    """The text and the thoughts in a message's content: a text, or parts of it, as Mistral's engines have it."""
    if isinstance(content, str):
        return content, ""
    text, thoughts = "", ""
    for part in objects_of(content):
        if part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts += inner if isinstance(inner, str) else said_in(inner)[0]
        else:
            text += _text(part.get("text"))
    return text, thoughts


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def line(value: object) -> bytes:
    """An object as one line."""
    return _encode(value) + b"\n"


class LineReader:
    """Turns a stream of bytes into its lines, without their ends. Empty lines are left out."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line that has no end yet; joined once, not for every piece
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes, in order. Raises EventTooLarge."""
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._parts, whole[0]])
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > JSON_DECODED_BYTES_MAX or any(len(each) > JSON_DECODED_BYTES_MAX for each in whole):
            raise EventTooLarge
        return [each for each in map(_without_return, whole) if each]

    def end(self) -> list[bytes]:
        """The last line, when the stream ended without a newline behind it."""
        last, self._parts, self._size = _without_return(b"".join(self._parts)), [], 0
        return [last] if last else []


def _without_return(text: bytes) -> bytes:
    return text.removesuffix(b"\r")


NO_STREAM = "the engine's stream is no stream of JSON objects"

_decode = json_decoder(Fields).decode
#: An escaped half of a pair of surrogates without the other half behind, or before, it.
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def decode_fields(text: bytes, complaint: str) -> Fields:
    """The object that an engine sent. Raises EngineFailed with a complaint when it is none, or too much of one."""
    if not is_decodable(text):
        raise EngineFailed(f"{complaint}: it has too many bytes or values, or digits in a number")
    try:
        return _decoded(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fault = error
    if _HALF_PAIR.search(text) is not None:  # half of a character, whose other half is in the next event
        try:
            return _decoded(_HALF_PAIR.sub(rb"\\ufffd", text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = error
    raise EngineFailed(f"{complaint}: {fault}") from None


def _decoded(text: bytes) -> Fields:
    if len(text) < JSON_DIGITS_BYTES_MIN:
        return _decode(text)
    with collector_paused():
        return _decode(text)
