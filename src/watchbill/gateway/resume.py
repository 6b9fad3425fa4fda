"""What a background answer is continued from when its model has to leave before the answer's end (RES-12).

Such an answer stops at the end of a sentence, or after a bounded number of further tokens. When its turn comes again
the engine gets the same request with the text so far: behind the prompt, or as the beginning of the assistant's
message. To the caller both parts are one answer: the second goes under the first one's id, and its usage counts both.
The text so far may also be that of an earlier daemon (`Begun`): then it comes as the first event.

Another machine may say in the middle of its answer that it cannot go on: it shuts down, or its engine died. Where the
text so far can be continued, the caller does not hear of that.

Only plain text can be continued. An answer with tools, a grammar, log probabilities, stop words or several choices,
and one that thinks aloud, has its safe boundary at its end. Does no I/O.
"""

from dataclasses import replace
from typing import NamedTuple, cast

import msgspec

from watchbill.decodable import json_decoder
from watchbill.engines.connection import Outgoing
from watchbill.engines.sse import DONE, EventReader, EventTooLarge, WholeEvents
from watchbill.errors import EngineFailed, NoLease
from watchbill.gateway.body import encode
from watchbill.gateway.far_errors import FAR_BREAKS
from watchbill.gateway.limits import RESUME_TEXT_CHARS_MAX, RESUME_TOKENS_MAX
from watchbill.gateway.typed import is_count, object_of
from watchbill.gateway.wire import NO_STREAM, decode_fields

__all__ = ["Begun", "Resumption"]

Fields = dict[str, object]

_decode = json_decoder(Fields).decode
_encode = msgspec.json.Encoder().encode
_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
#: Fields that make an answer more than plain text, or that a second request would begin anew.
_IN_THE_WAY = (
    "tools", "functions", "response_format", "json_schema", "grammar", "logprobs", "top_logprobs", "stop",
    "echo", "suffix", "n_probs", "modalities",
)  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_SENTENCE_ENDS = (".", "!", "?", "…", "\n", "。", "！", "？")
#: What may stand behind the end of a sentence and still belongs to it.
_CLOSING = " \"'”’)]*_"


class Begun(NamedTuple):
    """How far an answer was when its daemon ended."""

    text: str = ""
    tokens: int = 0


class Resumption:
    """One background answer, in one or several parts."""

    def __init__(self, model: str, refused: set[str], begun: Begun | None = None) -> None:
        self._model = model
        self.is_far = False  # another machine answers
        self._begun = begun if begun is not None and begun.text else None
        self._first = b""  # the event with what an earlier daemon had, until it was passed on
        self._refused = refused  # models whose chat template was seen to refuse it; shared by all answers
        self._is_chat = True
        self.is_possible = False  # whether what there is of it could be continued, as far as is known
        self._parts: list[str] = []  # the text so far
        self._size = 0
        self._tokens = 0
        self._earlier = 0  # tokens of the parts before this one
        self._limit: int | None = None  # of the whole answer's tokens
        self._named: Fields | None = None  # what the first part's events are called
        self._begin_part()

    def _begin_part(self) -> None:
        self.broken_by = ""  # why the other machine does not go on
        self.has_lost_lease = False  # it says that this is no failure: it is asked again under another lease
        self._reader = EventReader()
        self._events = WholeEvents()
        self._finished = self._is_ended = False
        self._tokens_max: int | None = None  # at which to stop wherever it is; None: without such a limit

    # ------------------------------------------------------------------ what the engine is asked

    def ask(self, outgoing: Outgoing) -> Outgoing:
        """The request as it goes to the engine: for the whole answer, or for its rest."""
        self._begin_part()  # of one that broke off before its first event, half of that may be here
        if outgoing.path not in (_CHAT, _COMPLETION):
            return outgoing
        body = _decode(outgoing.body)
        limits = {name: limit for name in _LIMITS if isinstance(limit := body.get(name), int) and limit > 0}
        self._limit = min(limits.values(), default=None)
        if not self._parts:
            self._is_chat = outgoing.path == _CHAT
            chats = outgoing.endpoint.continues and self._model not in self._refused
            begun = chats and _ends_with_caller(body) if self._is_chat else _has_text(body)
            self.is_possible = begun and _is_plain(body)
            if not self._take_up():
                return outgoing
        text = "".join(self._parts)
        if self._is_chat:
            messages = cast("list[object]", body["messages"])
            body["messages"] = [*messages, {"role": "assistant", "content": text}]
        else:
            body["prompt"] = cast("str", body["prompt"]) + text
        for name, limit in limits.items():
            body[name] = max(1, limit - self._tokens)  # of a text that is whole only its end is wanted
        # Only a machine that continues answers takes it over: this one is to wait for the person there.
        endpoint = replace(outgoing.endpoint, is_elsewhere=False, start_within_ms=None)
        return msgspec.structs.replace(outgoing, body=encode(body), endpoint=endpoint)

    def _take_up(self) -> bool:
        """Begins with the text of an earlier daemon. False where there is none, or it cannot be continued."""
        begun, self._begun = self._begun, None
        if begun is None or not self.is_possible or not self._is_chat:
            return False
        self._parts, self._size = [begun.text], len(begun.text)
        self._tokens = self._earlier = max(1, begun.tokens)
        delta = {"role": "assistant", "content": begun.text}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        self._first = b"data: " + _encode({"choices": [choice]}) + b"\n\n"
        return True

    # ------------------------------------------------------------------ what the engine says

    @property
    def is_begun_chat(self) -> bool:
        """Whether there are words of a chat's answer, which only some servers continue: others begin it anew."""
        return self._is_chat and bool(self._parts)

    @property
    def tokens(self) -> int:
        """How many tokens the answer has so far, also those of earlier parts."""
        return self._tokens

    def hear(self, piece: bytes) -> bytes:
        """Takes bytes of the engine's stream; gives the whole events among them, as they are passed on."""
        if not self.is_possible:
            return piece if self._events.is_between_events else self._events.rest() + piece
        whole = self._events.feed(piece)
        if not whole:
            return b""
        try:
            payloads = self._reader.feed(whole)
        except EventTooLarge:
            if self._earlier:
                raise
            self.is_possible = False
            return whole
        if not self._earlier:
            for place, payload in enumerate(payloads):
                if self._breaks_off(payload):
                    return b"".join(b"data: " + each + b"\n\n" for each in payloads[:place])
                self._read(payload)
            return whole
        first, self._first = self._first, b""
        heard = [first]
        for payload in payloads:
            if self._breaks_off(payload):
                break
            heard.append(self._rewritten(payload))
        return b"".join(heard)

    def _breaks_off(self, payload: bytes) -> bool:
        """Whether another machine says here that it does not go on, and the answer can be continued."""
        if not self.is_far or b'"error"' not in payload:
            return False
        try:
            error = decode_fields(payload, NO_STREAM).get("error")
        except EngineFailed:
            return False
        told = object_of(error)
        code = told.get("code")
        self.has_lost_lease = code == NoLease.code and (self.can_go_on or not self._parts)
        if self.has_lost_lease or (code in FAR_BREAKS and self.can_go_on and self.has_advanced):
            self.broken_by = str(told.get("message") or code)
        return bool(self.broken_by)

    def rest(self) -> bytes:
        """What is left at the end of the stream: an event without its blank line."""
        return self._events.rest()

    @property
    def is_over_there(self) -> bool:
        """Whether another machine has said how the answer ended, and what is still to come is only a count; or the text
        has all the tokens that were asked for, and the machine was asked once more how it ended."""
        was_asked_again = self._is_whole and self._earlier == self._tokens
        return self.is_far and self.is_possible and (self._finished or was_asked_again)

    def end(self) -> bytes:
        """The last events of an answer whose stream broke behind its end; then nothing."""
        if self._is_ended:
            return b""
        self._is_ended = True
        self._reader, self._events = EventReader(), WholeEvents()
        payloads = [DONE] if self._finished else [self._told_end(), DONE]
        return b"".join(b"data: " + each + b"\n\n" for each in payloads)

    def _told_end(self) -> bytes:
        """The event that says that the answer has as many tokens as were asked for."""
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        words: Fields = {"delta": {}} if self._is_chat else {"text": ""}
        choice = {"index": 0, **words, "finish_reason": "length"}
        return _encode({**(self._named or {}), "object": kind, "choices": [choice]})

    def _read(self, payload: bytes) -> Fields | None:
        """Counts an event in. None for one that is no object."""
        if payload == DONE:
            return None
        try:
            event = decode_fields(payload, NO_STREAM)
        except EngineFailed:
            self.is_possible = False
            return None
        if self._named is None:
            self._named = {name: event[name] for name in ("id", "created", "model") if name in event}
        choices = event.get("choices")
        for choice in cast("list[object]", choices) if isinstance(choices, list) else []:
            self._read_choice(object_of(choice))
        return event

    def _read_choice(self, choice: Fields) -> None:
        said = choice.get("delta") if self._is_chat else choice
        delta = object_of(said)
        self._finished = self._finished or choice.get("finish_reason") is not None
        if self._is_chat and any(value for name, value in delta.items() if name not in ("role", "content")):
            self.is_possible = False
        text = delta.get("content" if self._is_chat else "text")
        if isinstance(text, str) and text:
            self._parts.append(text)
            self._tokens += 1
            self._size += len(text)
            self.is_possible = self.is_possible and self._size <= RESUME_TEXT_CHARS_MAX

    def _rewritten(self, payload: bytes) -> bytes:
        """An event of a later part, as one of the first."""
        known, was_whole = self._tokens, self._is_whole
        event = self._read(payload)
        if event is None:
            return b"data: " + payload + b"\n\n"
        choices = cast("list[Fields]", event.get("choices") or [])
        if was_whole and self._tokens > known:
            self._take_back(choices)
        usage = event.get("usage")
        if isinstance(usage, dict):
            event["usage"] = _both(cast("Fields", usage), self._earlier, self._limit)
        elif known == self._tokens and not self._finished:
            return b""  # it only says again who speaks
        for choice in choices:
            cast("Fields", choice.get("delta") or {}).pop("role", None)
        return b"data: " + _encode({**event, **(self._named or {})}) + b"\n\n"

    @property
    def _is_whole(self) -> bool:
        """Whether the text has as many tokens as were asked for: nothing but the word of its end is to come. One with
        more is of an engine whose events are no tokens, and nothing is known of it."""
        return self._tokens == self._limit

    def _take_back(self, choices: list[Fields]) -> None:
        """Removes a token from an event: the engine had to be asked for one to say how the answer ended."""
        self._size -= len(self._parts.pop())
        self._tokens -= 1
        for choice in choices:
            said = cast("Fields", choice.get("delta") or {}) if self._is_chat else choice
            said["content" if self._is_chat else "text"] = ""

    # ------------------------------------------------------------------ stopping and going on

    def wind_up(self) -> None:
        """The model has to leave: the next safe boundary is the last one."""
        if self._tokens_max is None:
            self._tokens_max = self._tokens + RESUME_TOKENS_MAX

    @property
    def is_at_boundary(self) -> bool:
        """Whether the answer stops here, to be continued."""
        if self._tokens_max is None or not self.can_go_on or not self._events.is_between_events:
            return False
        if self._is_whole:
            return False  # its end comes next
        ending = self._parts[-1].rstrip(_CLOSING) or "".join(self._parts[-4:]).rstrip(_CLOSING)
        return self._tokens >= self._tokens_max or ending.endswith(_SENTENCE_ENDS)

    @property
    def can_go_on(self) -> bool:
        """Whether the answer could be continued from here."""
        return self.is_possible and bool(self._parts) and not self._finished

    @property
    def can_begin(self) -> bool:
        """Whether the answer could be continued from here, or has no word yet and could begin."""
        return self.is_possible and not self._finished

    @property
    def has_advanced(self) -> bool:
        """Whether this part has added to the answer."""
        return self._tokens > self._earlier

    def go_on(self) -> bool:
        """Makes ready for the next part. False when there is nothing to go on from: it begins anew."""
        goes_on = self.can_go_on
        if not goes_on:
            self.forget()
        self._earlier = self._tokens
        self._begin_part()
        return goes_on

    def forget(self) -> None:
        """The answer begins anew; the engine does not go on with what there is."""
        self._parts.clear()
        self._size = self._tokens = self._earlier = 0
        self._named = None
        self._first = b""
        self._begin_part()

    def give_up(self) -> None:
        """This engine does not continue answers: the next one need not try."""
        self._refused.add(self._model)
        self.forget()


def _is_plain(body: Fields) -> bool:
    if any(body.get(name) for name in _IN_THE_WAY):
        return False
    return body.get("stream") is True and body.get("n") in (None, 1) and body.get("best_of") in (None, 1)


def _ends_with_caller(body: Fields) -> bool:
    messages = body.get("messages")
    last = cast("list[object]", messages)[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and cast("Fields", last).get("role") not in ("assistant", None)


def _has_text(body: Fields) -> bool:
    return isinstance(body.get("prompt"), str)


def _both(usage: Fields, earlier: int, limit: int | None) -> Fields:
    """The usage of a last part, with what the engine was given as prompt and had written itself put right."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not is_count(prompt) or not is_count(completion):
        return usage
    written = completion + earlier if limit is None else min(completion + earlier, limit)
    return {**usage, "prompt_tokens": max(0, prompt - earlier), "completion_tokens": written}
