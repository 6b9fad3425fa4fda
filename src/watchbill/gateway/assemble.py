"""Makes one answer out of the pieces of a stream, for clients that did not ask for a stream.

Engines are always asked to stream, because llama.cpp notices that a caller left only while it streams. What a
whole answer would have contained is put together here: texts are joined, tool calls by their index, log
probabilities in order, choices by theirs; unknown fields are kept. Choices, tool calls and all that is
kept together have a bound. Does no I/O.

Nearly every event of a chat carries a few words of its only choice and nothing else. Those are read many at once
and by type (`_Plain`), at a fraction of the cost; whatever is not exactly of that shape is read one by one, as
fields.
"""

import secrets
from io import StringIO
from typing import Literal, cast

import msgspec

from watchbill.decodable import is_decodable, json_decoder
from watchbill.engines.sse import DONE, ENDED_EARLY, EventReader
from watchbill.errors import EngineFailed
from watchbill.gateway.answers import engine_error
from watchbill.gateway.growing import Kept, growing_text, whole_texts
from watchbill.gateway.limits import ASSEMBLY_HELD_BYTES, CHOICES_MAX, TOOL_CALLS_MAX
from watchbill.gateway.toolcalls import begins_call, spelled
from watchbill.gateway.usage import UsageSum
from watchbill.gateway.wire import NO_STREAM, decode_fields, said_in
from watchbill.limits import JSON_DIGITS_BYTES_MIN

__all__ = ["Assembly"]

Fields = dict[str, object]


_CHAT = "chat.completion"
#: How engines write nearly every stream: events of one line each, and the one that ends it.
_FIRST, _BETWEEN, _LAST = b"data: ", b"\n\ndata: ", b"\n\ndata: [DONE]\n\n"
#: Texts that say what something is, and are repeated rather than continued.
_LABELS = frozenset({"role", "id", "type", "name", "index", "object"})


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str | None = None
    role: str | None = None  # an answer's is always the assistant


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _Delta
    index: Literal[0] = 0
    finish_reason: str | None = None
    logprobs: None = None


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event of a chat of one choice that carries words, or its end, and nothing else."""

    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]
    system_fingerprint: str | None = None
    usage: Fields | None = None
    timings: Fields | None = None


_decode_plain = json_decoder(list[_Plain]).decode


class Assembly:
    """One answer in the making. `feed` bytes of the stream, then `result`."""

    __slots__ = (
        "_choices", "_finish_reason", "_has_choice", "_held", "_held_bytes", "_held_max", "_is_done", "_kept", "_last",
        "_more", "_reader", "_sum", "_top", "_words", "chat",
    )  # fmt: skip

    is_over = False  # only the engine ends it

    def __init__(self, *, chat: bool, sums: bool = False) -> None:
        """`sums`: several choices are made, and their tokens may be told one by one."""
        self.chat = chat
        self._sum = UsageSum() if sums else None
        self._reader: EventReader | None = None  # made, with `_kept`, for the first pieces that are read
        self._kept: Kept
        self._held: list[bytes] = []  # pieces that are not read yet
        self._held_bytes = 0
        self._held_max = ASSEMBLY_HELD_BYTES
        self._is_done = False
        # what plain events said since the last other one
        self._last: _Plain | None = None
        self._words: list[str] = []
        self._finish_reason: str | None = None
        self._has_choice = False
        self._more: Fields = {}  # usage and the like, in the order they came
        # what all events said before
        self._top: Fields = {}
        self._choices: dict[int, Fields] = {}

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the stream. Raises EngineRefused on an error within it, EngineFailed on garbage, both at
        the latest at the end."""
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes >= self._held_max or piece.find(b'"error"') >= 0:
            # Half an event may be half an error, with nothing behind its rest.
            self._held_max = ASSEMBLY_HELD_BYTES if self._read_held().is_between_events else 0

    def result(self) -> Fields:
        """The whole answer. Raises EngineFailed when the stream ended before its end."""
        if self._reader is None and (last := self._read_whole()) is not None:
            return self._said(last)
        reader = self._read_held()
        if not self._is_done and (last := reader.end()):
            self._read(last)
        if self._last is None and not self._top and not self._choices:
            raise EngineFailed(ENDED_EARLY)  # nothing came but the end
        if self._last is None or self._top or self._choices:
            answer, is_finished = self._finish()
        else:  # all events were plain
            self._kept.text("".join(self._words))
            answer, is_finished = self._said(self._last), self._finish_reason is not None
        if not is_finished and not self._is_done:
            raise EngineFailed(ENDED_EARLY)
        return answer

    def _read_whole(self) -> _Plain | None:
        """Reads a whole stream of plain events at once; its last event. None: it is not of that shape.

        It is small: a larger one was read on its way."""
        text = b"".join(self._held)
        count = text.count(_BETWEEN)
        if not (self.chat and text.startswith(_FIRST) and text.endswith(_LAST)) or text.find(b"\r") >= 0:
            return None
        if self._sum is not None:
            return None
        if text.count(b"\n") != 2 * (count + 1):
            return None
        if len(text) >= JSON_DIGITS_BYTES_MIN and not is_decodable(text):
            return None
        try:
            events = _decode_plain(b"[%b]" % text[len(_FIRST) : -len(_LAST)].replace(_BETWEEN, b","))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(events) != count:
            return None  # two in one
        self._take_plain(events)
        return self._last

    def _read_held(self) -> EventReader:
        text, self._held, self._held_bytes = b"".join(self._held), [], 0
        reader = self._reader
        if reader is None:
            reader, self._kept = EventReader(), Kept()
            self._reader = reader
        self._read(reader.feed(text))
        return reader

    def _read(self, payloads: list[bytes]) -> None:
        """Reads events: at once if they are all plain, else one by one, as fields."""
        if self._is_done:
            return  # nothing belongs to an answer that is over
        if DONE in payloads:
            self._is_done = True
            payloads = payloads[: payloads.index(DONE)]
        if not payloads:
            return
        joined = b",".join(payloads)
        # Otherwise the payloads are decoded one by one: a single one may be at fault.
        is_plain = self.chat and self._sum is None and is_decodable(joined)
        try:
            events = _decode_plain(b"[" + joined + b"]") if is_plain else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = []
        if len(events) == len(payloads):
            self._take_plain(events)
            return
        self._merge_plain()  # they are not plain, or two in one
        for payload in payloads:
            self._take(payload)

    def _take_plain(self, events: list[_Plain]) -> None:
        self._last = events[-1]
        words, more, choice = self._words, self._more, None
        for event in events:
            for choice in event.choices:
                content = choice.delta.content
                if content is not None:
                    words.append(content)
                if choice.finish_reason is not None:
                    self._finish_reason = choice.finish_reason
            if event.usage is not None:
                more["usage"] = event.usage
            if event.system_fingerprint is not None:
                more["system_fingerprint"] = event.system_fingerprint
            if event.timings is not None:
                more["timings"] = event.timings
        if choice is not None:
            self._has_choice = True

    def _said(self, last: _Plain) -> Fields:
        """The whole answer that plain events are."""
        text = "".join(self._words)
        choices = [_chat_choice(0, text, self._finish_reason or "stop")] if self._has_choice else []
        top: Fields = {"id": last.id, "object": _CHAT, "created": last.created, "model": last.model}
        return {**top, **self._more, "choices": choices}

    def _merge_plain(self) -> None:
        """Takes one event that says what plain ones said together."""
        last, words, reason, has_choice = self._last, self._words, self._finish_reason, self._has_choice
        if last is None:
            return
        delta: Fields = {"content": "".join(words)} if words else {}
        choice: Fields = {"index": 0, "delta": delta, "finish_reason": reason}
        event = {**self._said(last), "object": last.object, "choices": [choice] if has_choice else []}
        self._last, self._words, self._finish_reason, self._has_choice, self._more = None, [], None, False, {}
        self._take_fields(event)

    def _take(self, payload: bytes) -> None:
        event = decode_fields(payload, NO_STREAM)
        if "error" in event:
            raise engine_error(502, event)
        self._take_fields(event)

    def _take_fields(self, event: Fields) -> None:
        choices = event.pop("choices", None)
        if self._sum is not None and "usage" in event:
            self._sum.take(event["usage"], choices)
            event["usage"] = self._sum.total or None
        # "usage": null in every event but the last must not hide the last one's
        for name, value in event.items():
            if value is not None:
                self._kept.put(self._top, name, value)
        if isinstance(choices, list):
            for choice in cast("list[object]", choices):
                if isinstance(choice, dict):
                    self._take_choice(cast("Fields", choice))

    def _take_choice(self, piece: Fields) -> None:
        index = piece.get("index", 0)
        if not isinstance(index, int):
            raise EngineFailed("the engine numbers its choices strangely")
        choice = self._choices.get(index) or self._begin(index)
        for name, value in piece.items():
            if name == "delta" and isinstance(value, dict):
                self._merge(_message_of(choice), cast("Fields", value))
            elif name in ("logprobs", "text"):
                self._merge_value(choice, name, value)
            elif name != "index" and (value is not None or name not in choice):
                self._kept.put(choice, name, value)

    def _merge(self, into: Fields, delta: Fields) -> None:
        for name, value in delta.items():
            if name == "tool_calls" and isinstance(value, list):
                calls = into.setdefault("tool_calls", [])
                self._merge_calls(cast("list[Fields]", calls), cast("list[object]", value))
            else:
                self._merge_value(into, name, value)

    def _merge_calls(self, calls: list[Fields], pieces: list[object]) -> None:
        for piece in pieces:
            if not isinstance(piece, dict):
                continue
            fields = cast("Fields", piece)
            index = fields.get("index", len(calls))
            call = next((known for known in reversed(calls) if known.get("index") == index), None)
            if call is None or begins_call(fields, call.get("id")):
                if len(calls) >= TOOL_CALLS_MAX:
                    raise EngineFailed(f"the model made more than {TOOL_CALLS_MAX} tool calls")
                call = {"index": index}
                calls.append(call)
            for name, value in fields.items():
                self._merge_value(call, name, value)

    def _merge_value(self, into: Fields, name: str, value: object) -> None:
        """Continues a text, extends a list, goes into an object; anything else is replaced."""
        known = into.get(name)
        if value is None:
            if name not in into:
                self._kept.put(into, name, None)
        elif isinstance(known, str | StringIO) and isinstance(value, str):
            if name not in _LABELS:
                self._kept.text(value)
                growing_text(into, name).write(value)
            elif not known:
                self._kept.put(into, name, value)
        elif isinstance(known, list) and isinstance(value, list):
            self._kept.value(cast("object", value))
            cast("list[object]", known).extend(cast("list[object]", value))
        elif isinstance(known, dict) and isinstance(value, dict):
            for inner, content in cast("Fields", value).items():
                self._merge_value(cast("Fields", known), inner, content)
        else:
            self._kept.put(into, name, value)

    def _begin(self, index: int) -> Fields:
        if len(self._choices) >= CHOICES_MAX:
            raise EngineFailed(f"the engine gave more than {CHOICES_MAX} choices")
        choice: Fields = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        if self.chat:
            choice = _chat_choice(index, None, None)
        self._choices[index] = choice
        return choice

    def _finish(self) -> tuple[Fields, bool]:
        """The answer, and whether each of its choices has an end."""
        self._merge_plain()
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            whole_texts(choice)
        reasons = [choice.get("finish_reason") for choice in choices]
        for choice in choices:
            _finish_choice(choice)
        answer = self._top
        answer["object"] = _CHAT if self.chat else "text_completion"
        answer["choices"] = choices
        return answer, bool(reasons) and None not in reasons


def _message_of(choice: Fields) -> Fields:
    message = choice.get("message")
    if not isinstance(message, dict):
        message = choice["message"] = {"role": "assistant", "content": None}
    return cast("Fields", message)


def _chat_choice(index: int, content: str | None, finish_reason: str | None) -> Fields:
    message: Fields = {"role": "assistant", "content": content}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}


def _finish_choice(choice: Fields) -> None:
    """Gives a choice what clients rely on, where its engine left it out: the reason of its end, and whole calls."""
    message = choice.get("message")
    has_calls = isinstance(message, dict) and _finish_message(cast("Fields", message))
    if has_calls and choice.get("finish_reason") in (None, "stop"):
        choice["finish_reason"] = "tool_calls"
    elif choice.get("finish_reason") is None:
        choice["finish_reason"] = "stop"


def _finish_message(message: Fields) -> bool:
    """A whole message; whether it has calls."""
    if isinstance(message.get("content"), list):  # of parts, as some engines have it
        text, thoughts = said_in(message["content"])
        message["content"] = text
        if thoughts and not message.get("reasoning_content"):
            message["reasoning_content"] = thoughts
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        listed = cast("list[Fields]", calls)
        for call in listed:
            whole_texts(call)
            call.pop("index", None)  # a whole answer has no such field
            _finish_call(call)
        return bool(listed)
    if message.get("content") is None:
        message["content"] = ""
    return False


def _finish_call(call: Fields) -> None:
    call["id"] = call.get("id") or f"call_{secrets.token_hex(12)}"
    call["type"] = call.get("type") or "function"
    function = call.get("function")
    if isinstance(function, dict):
        fields = cast("Fields", function)
        if not isinstance(fields.get("arguments"), str):
            fields["arguments"] = spelled(fields.get("arguments")) or "{}"
