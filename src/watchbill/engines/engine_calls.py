"""How the daemon itself asks a model: background tasks, probes of a load, questions of the watchdog.

Knows the bodies of such questions and what an answer must have. A text is asked for as a stream, because engines notice
that their caller left only while they stream; the probe of a load is so short that it is asked for whole. Callers bring
the client and decide when to ask: a background task in its turn, a probe at any time.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from watchbill.decodable import is_decodable, json_decoder
from watchbill.engines import limits
from watchbill.engines.base import Endpoint
from watchbill.engines.sse import DONE, ENDED_EARLY, EventReader
from watchbill.engines.statuses import Said, said_by
from watchbill.engines.upstream import Call, Outgoing, Upstream
from watchbill.errors import EngineFailed, ShuttingDown, TheirsError
from watchbill.processes import limits as processes_limits
from watchbill.quoting import on_one_line

__all__ = ["ChatText", "Proving", "ask_chat", "ask_text", "prove", "prove_whole"]

#: What a probe asks for: one token, or one vector.
Proving = Literal["chat", "embed"]

_CHAT = "/v1/chat/completions"
#: Why an answer ended that was not at its end.
_CUT = "length"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ChatText(NamedTuple):
    """What a model said."""

    text: str
    is_cut: bool = False  # it was not at its end: the bound of the request, or the context of the model
    tokens: int | None = None  # of the answer, where the engine counts them
    is_private: bool = False  # by the word of the daemon that was asked


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    message: _Delta = msgspec.field(default_factory=_Delta)  # of a whole answer
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    """One event of a streamed chat, or a whole one, as far as it is read here."""

    choices: list[_Choice] = msgspec.field(default_factory=list[_Choice])
    error: dict[str, object] | str | None = None
    usage: _Usage | None = None

    @property
    def said(self) -> ChatText:
        text = "".join(choice.delta.content or choice.message.content or "" for choice in self.choices)
        is_cut = any(choice.finish_reason == _CUT for choice in self.choices)
        return ChatText(text, is_cut, None if self.usage is None else self.usage.completion_tokens)


_decode = json_decoder(_Event).decode


class _OneToken(msgspec.Struct):
    """What the answer to a chat must have."""

    choices: list[msgspec.Raw]


class _OneVector(msgspec.Struct):
    """What the answer to a request for embeddings must have."""

    data: list[msgspec.Raw]


def _chat(endpoint: Endpoint, model: str, prompt: str, tokens_max: int, *, stream: bool) -> bytes:
    fields: dict[str, object] = {
        "model": endpoint.upstream_model or model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens_max,
    }
    return msgspec.json.encode(fields | {"stream": True} if stream else fields)


async def ask_text(
    client: Upstream,
    endpoint: Endpoint,
    model: str,
    prompt: str,
    *,
    tokens_max: int,
    chars_max: int,
    leave: Callable[[Call], None] = Call.abort,
) -> str:
    """The model's answer to a prompt. `leave` is given the call when it is over, however it ended.

    Raises EngineFailed when the engine does not give a whole answer, TheirsError when it refuses the question or
    answers with more characters than `chars_max`."""
    body = _chat(endpoint, model, prompt, tokens_max, stream=True)
    asked = Outgoing(endpoint, "POST", _CHAT, body)
    return (await ask_chat(client, asked, chars_max=chars_max, leave=leave)).text


async def ask_chat(
    client: Upstream,
    asked: Outgoing,
    *,
    chars_max: int,
    leave: Callable[[Call], None] = Call.abort,
    on_bytes: Callable[[int], None] | None = None,
    on_text: Callable[[str], None] | None = None,
) -> ChatText:
    """What is said in a streamed chat. Raises as `ask_text` does; what was answered in place of a stream is in it.

    `on_bytes` hears how many bytes came, signs of life before the answer included, `on_text` each part of the answer.
    """
    call = client.call(asked, streamed=True)
    try:
        status = await call.head()
        if status != 200:
            error = _error_in(await call.read(limits.ERROR_BYTES_MAX))
            _raise_if_leaving(error)
            message = _message_of(error)
            about = f": {message}" if message else ""
            failed = said_by(status) is Said.FAILED
            raise (EngineFailed if failed else TheirsError)(f"the engine answered {status}{about}")
        is_private = call.is_private
        if call.content_type == "application/json":  # an engine without streams
            whole = _Collected(chars_max)
            whole.add(_said_in(await call.read(limits.UPSTREAM_ANSWER_BYTES_MAX)))
            said = whole.whole()
        else:
            said = await _text(call, _Collected(chars_max, on_text), on_bytes)
        return said._replace(is_private=is_private)
    finally:
        leave(call)


def _error_in(body: bytes) -> dict[str, object] | str:
    """The error of an error body; empty where it has none."""
    try:
        error = _decode(body).error if is_decodable(body) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "" if error is None else error


def _raise_if_leaving(error: dict[str, object] | str) -> None:
    """Raises ShuttingDown where a daemon, which serves this chat, says that it is."""
    if isinstance(error, dict) and error.get("code") == ShuttingDown.code:
        raise ShuttingDown(_message_of(error))


def _message_of(error: dict[str, object] | str) -> str:
    said = error.get("message", "") if isinstance(error, dict) else error
    return on_one_line(str(said))


async def _text(call: Call, said: "_Collected", on_bytes: Callable[[int], None] | None) -> ChatText:
    reader, is_done = EventReader(), False
    while piece := await call.chunk():
        if on_bytes is not None:
            on_bytes(len(piece))
        for payload in reader.feed(piece):
            is_done = is_done or payload == DONE
            if not is_done:
                said.add(_said_in(payload))
    if not is_done:
        raise EngineFailed(ENDED_EARLY)
    return said.whole()


class _Collected:
    """The parts of a streamed chat."""

    def __init__(self, chars_max: int, on_text: Callable[[str], None] | None = None) -> None:
        self._chars_max, self._on_text = chars_max, on_text
        self._texts: list[str] = []
        self._chars, self._is_cut = 0, False
        self._tokens: int | None = None

    def add(self, part: ChatText) -> None:
        """Raises TheirsError where it is too much."""
        self._texts.append(part.text)
        if self._on_text is not None:
            self._on_text(part.text)
        self._chars += len(part.text)
        self._is_cut = self._is_cut or part.is_cut
        self._tokens = self._tokens if part.tokens is None else part.tokens
        if self._chars > self._chars_max:
            raise TheirsError(f"the engine answered with more than {self._chars_max} characters")

    def whole(self) -> ChatText:
        return ChatText("".join(self._texts), self._is_cut, self._tokens)


def _said_in(payload: bytes) -> ChatText:
    """What one event of a chat says, or a whole one. Raises EngineFailed for anything else, and for a failure."""
    if not is_decodable(payload):
        raise EngineFailed("the engine sent an event of too many bytes or values, or digits in a number")
    try:
        event = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailed(f"the engine sent something else than an answer: {error}") from error
    if event.error is not None:
        _raise_if_leaving(event.error)
        raise EngineFailed(f"the engine broke off: {_message_of(event.error) or 'without a message'}")
    return event.said


async def prove(
    client: Upstream, endpoint: Endpoint, kind: Proving, headers: Mapping[str, str] = _NO_HEADERS
) -> None:
    """Has a model prove that it answers, with one token or one vector. Raises EngineFailed when it does not."""
    if kind == "chat":
        path, body = _CHAT, _chat(endpoint, "", "Hi", 1, stream=False)
    else:
        path = "/v1/embeddings"
        body = msgspec.json.encode({"model": endpoint.upstream_model, "input": "Hi"})
    reply = await client.fetch(
        Outgoing(endpoint, "POST", path, body, headers),
        timeout_ms=limits.PROBE_MS_MAX,
        limit_bytes=limits.PROBE_ANSWER_BYTES_MAX,
    )
    if reply.status != 200 or not _is_proof(kind, reply.body):
        shown = reply.body[: processes_limits.LOG_LINE_CHARS_MAX].decode("utf-8", "replace")
        raise EngineFailed(f"it answered with status {reply.status}: {shown}")


async def prove_whole(client: Upstream, endpoint: Endpoint, kind: Proving) -> None:
    """Has a model prove that it answers as its callers ask it: a streamed text of several tokens, up to its end.

    An engine that hangs after its first token passes any shorter question. Raises EngineFailed when it does not
    answer."""
    if kind != "chat":
        await prove(client, endpoint, kind)
        return
    body = _chat(endpoint, "", "Hi", limits.CHECK_TOKENS, stream=True)
    reply = await client.fetch(
        Outgoing(endpoint, "POST", _CHAT, body),
        timeout_ms=limits.PROBE_MS_MAX,
        limit_bytes=limits.PROBE_ANSWER_BYTES_MAX,
    )
    if reply.status != 200 or not (_is_whole(reply.body) or _is_proof(kind, reply.body)):
        shown = reply.body[: processes_limits.LOG_LINE_CHARS_MAX].decode("utf-8", "replace")
        raise EngineFailed(f"it answered with status {reply.status}: {shown}")


def _is_whole(stream: bytes) -> bool:
    """Whether a streamed chat came to its end. Raises EngineFailed for one that tells of a failure."""
    for payload in EventReader().feed(stream):
        if payload == DONE:
            return True
        _said_in(payload)
    return False


def _is_proof(kind: Proving, answer: bytes) -> bool:
    try:
        if kind == "chat":
            return bool(msgspec.json.decode(answer, type=_OneToken).choices)
        return bool(msgspec.json.decode(answer, type=_OneVector).data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
