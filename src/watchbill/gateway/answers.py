"""What goes back to a client: JSON bodies, error bodies, and the headers that both carry.

Owns the shapes of errors. An error says whether Watchbill or the engine failed (`source`), and its `code` is of
the closed list in `errors`. Never contains a traceback, a path or a prompt.
"""

import re
from collections.abc import Mapping
from typing import cast

import msgspec

from watchbill.engines.statuses import Said, said_by
from watchbill.errors import (
    Cancelled,
    EngineFailed,
    LaneFull,
    NeverFits,
    ShuttingDown,
    TheirsError,
    TierClosed,
)
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import CLOSED_S_MAX, RETRY_AFTER_S_MAX

__all__ = [
    "EngineRefused",
    "SurelyTooLong",
    "TooLong",
    "as_response",
    "code_of",
    "engine_error",
    "error_body",
    "error_fields",
    "json_response",
    "let_go",
    "refuse",
    "status_of",
    "too_long",
    "verdict",
]

#: OpenAI's `type` of an error, by status; 5xx are `server_error`.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
#: The wait that a client is told where no forecast is known.
_RETRY_AFTER_DEFAULT_S = 5
#: What llama.cpp answers with 500 although nothing is wrong with it: the request is.
_CALLERS_FAULTS = ("is too large to process", "Failed to parse tool", "Failed to parse messages")
#: How engines say that a prompt is longer than the context: llama.cpp and OpenAI by a name; vLLM, SGLang and others in
#: words, with two figures. And how OpenAI says it, to chats and to responses.
_TOO_LONG_CODE = "context_length_exceeded"
_TOO_LONG_NAMES = frozenset({"exceed_context_size_error", _TOO_LONG_CODE})
_TOO_LONG_WORDS = re.compile(
    r"maximum context length|exceeds the available context size|longer than the model's context length|"
    r"exceeds? (?:the )?context (?:length|size|window)|is too large to process",
    re.IGNORECASE,
)
_TOO_LONG_SENTENCES = ("Input tokens exceed the configured limit", "this model's maximum context length is")
_FIGURES = re.compile(r"\b\d{1,9}(?= tokens)|(?<=is )\d{1,9}\b|(?<=size: )\d{1,9}\b")
#: What an engine says of the machine that asks it. The caller's own key was accepted here: it is nothing to mend there.
_OURS = {401: "the server of this model does not accept the key of this Watchbill", 402: "", 407: ""}
#: What a server says of itself, or of our key, wherever it says so.
_OF_THE_SITE = frozenset({429, 502})
#: Statuses after which a client may try again by itself.
_RETRYABLE = frozenset({429, 503, 507})

_encode = msgspec.json.Encoder().encode


class TooLong(msgspec.Struct, frozen=True):
    """A prompt is longer than its model's context, in tokens; None where the engine does not say."""

    asked: int | None = None
    most: int | None = None


class EngineRefused(EngineFailed):
    """The engine answered with an error of its own, which is passed on in its own words."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: object = None,
        too_long: TooLong | None = None,
    ) -> None:
        super().__init__(message)
        # An engine's 5xx is ours to answer for: 502 says that the gateway is well and the engine is not.
        self.said = said_by(status)
        self.answered = 502 if self.said is Said.FAILED or status in _OURS else status
        self.kind = None if status in _OURS else kind
        self.param = param
        self.too_long = too_long


class SurelyTooLong(EngineRefused):
    """A prompt that its engine would refuse, refused in its place: it would have to read all of it first."""

    def __init__(self, message: str, too_long: TooLong) -> None:
        super().__init__(400, message, kind="invalid_request_error", too_long=too_long)


def engine_error(status: int, answer: object) -> EngineRefused:
    """What an engine says about its failure, as an error of ours that keeps its words."""
    error: object = answer
    if isinstance(answer, dict):
        error = cast("dict[str, object]", answer).get("error", cast("dict[str, object]", answer))
    if not isinstance(error, dict):
        return EngineRefused(status, str(error)[:2000] or f"the engine answered {status}")
    fields = cast("dict[str, object]", error)
    code = fields.get("code")
    if status >= 500 and isinstance(code, int) and 400 <= code < 600:
        status = code
    kind = fields.get("type")
    message = str(fields.get("message") or fields.get("detail") or f"the engine answered {status}")[:2000]
    kept = kind if isinstance(kind, str) else None
    if status == 500 and any(fault in message for fault in _CALLERS_FAULTS):
        status, kept = 400, "invalid_request_error"
    message = _OURS.get(status) or message  # what it says of a wrong key may have parts of the key in it
    long = _too_long(fields, message) if status < 500 else None
    return EngineRefused(status, message, kind=kept, param=fields.get("param"), too_long=long)


def _too_long(fields: dict[str, object], message: str) -> TooLong | None:
    """Whether an engine says that the prompt exceeds the context: llama.cpp and OpenAI by a name, others in words."""
    found = _TOO_LONG_WORDS.search(message)
    if found is None and _TOO_LONG_NAMES.isdisjoint((str(fields.get("type")), str(fields.get("code")))):
        return None
    asked, most = fields.get("n_prompt_tokens"), fields.get("n_ctx")
    figures = [int(figure) for figure in _FIGURES.findall(message)]
    if isinstance(asked, int) and isinstance(most, int):
        return TooLong(asked, most)
    if found is not None and len(figures) == 2:
        return TooLong(max(figures), min(figures))
    return TooLong()


def too_long(error: TheirsError) -> TooLong | None:
    """By how much a prompt was too long; None for any other error."""
    return error.too_long if isinstance(error, EngineRefused) else None


def status_of(error: TheirsError) -> int:
    """The HTTP status that an error becomes."""
    return error.answered if isinstance(error, EngineRefused) else error.status


def verdict(error: TheirsError) -> bool | None:
    """What an error says of the engine: that it failed, or nothing.

    By what it means, wherever it was said: three failures in a row may reset a model, and one caller must not do that
    to all others. A refusal is no good answer either: it takes a moment, and answers would seem to."""
    if isinstance(error, EngineRefused):
        return False if error.said is Said.FAILED else None
    return False if isinstance(error, EngineFailed) else None


def is_of_the_site(error: EngineFailed) -> bool:
    """Whether what a server says with 200 is about itself and not about the request: another server may serve it."""
    return verdict(error) is False or (isinstance(error, EngineRefused) and error.answered in _OF_THE_SITE)


def let_go(error: BaseException) -> None:
    """Drops the frames that an error passed on its way, once it was told or logged.

    They hold what was at hand there, such as a body of many megabytes. An error that is itself among that (in a local
    variable, a future, a ticket) is part of a circle, which only the garbage collector would find, much later."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__


def error_body(error: TheirsError, beside: Mapping[str, object] | None = None) -> bytes:
    """The body of an error in OpenAI's shape; `beside` goes next to `error`."""
    return _encode({"error": error_fields(error), **(beside or {})})


def error_fields(error: TheirsError) -> dict[str, object]:
    """An error in OpenAI's shape."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = None
    if isinstance(error, EngineRefused):
        kind, param = error.kind or kind, error.param
    is_theirs = isinstance(error, EngineFailed) and not isinstance(error, SurelyTooLong)
    source = "engine" if is_theirs else "watchbill"
    long = too_long(error)
    message = str(error) if long is None else _in_words_of_openai(str(error), long)
    fields = {"message": message, "type": kind, "param": param, "code": code_of(error), "source": source}
    if long is not None and long.asked is not None:
        # The fields that llama.cpp's own clients look for.
        fields |= {"n_prompt_tokens": long.asked, "n_ctx": long.most}
    return fields


def _in_words_of_openai(message: str, long: TooLong) -> str:
    """Both sentences of OpenAI behind an engine's own: frameworks look for one of them in the message, since newer
    clients of OpenAI show them nothing else."""
    configured, maximum = _TOO_LONG_SENTENCES
    limit, most = ("", "less") if long.most is None else (f" of {long.most} tokens", f"{long.most} tokens")
    sent = "" if long.asked is None else f" Your messages resulted in {long.asked} tokens."
    said = f"{configured}{limit}: {maximum} {most}.{sent} Please reduce the length of the messages."
    return f"{message.rstrip('. ')}. {said}"


def code_of(error: TheirsError) -> str:
    """The code that scripts match on. A request that the engine refuses is no failure of the engine."""
    if not isinstance(error, EngineRefused) or error.answered >= 500:
        return error.code
    return _TOO_LONG_CODE if error.too_long is not None else error.kind or "invalid_request"


def _retry_headers(error: TheirsError) -> dict[str, str]:
    """When, and whether, to try again."""
    status = status_of(error)
    known = error.retry_after_ms
    # The same request would end the same way.
    if (
        isinstance(error, (NeverFits, Cancelled))
        or status == 501
        or (isinstance(error, TierClosed) and known is None)
    ):
        return {"x-should-retry": "false"}  # SDKs retry every 5xx otherwise
    headers: dict[str, str] = {}
    if status in _RETRYABLE:
        seconds = _RETRY_AFTER_DEFAULT_S if known is None else -(-known // 1000)
        # A tier that is closed opens when it does: an earlier question is in vain.
        seconds_max = CLOSED_S_MAX if isinstance(error, TierClosed) else RETRY_AFTER_S_MAX
        headers["Retry-After"] = str(max(1, min(seconds_max, seconds)))
    if isinstance(error, LaneFull):
        headers["x-should-retry"] = "true"
    if isinstance(error, ShuttingDown):  # what has made this machine a burst tier of its own starts another
        headers["X-Watchbill-Closing"] = "1"
    return headers


def as_response(error: TheirsError, lines: str = "", beside: Mapping[str, object] | None = None) -> Response:
    """A whole answer that says what went wrong, in OpenAI's shape."""
    return refuse(error, error_body(error, beside), "application/json", lines, status_of(error))


def refuse(error: TheirsError, body: bytes, content_type: str, lines: str, status: int) -> Response:
    """What every answer to an error has, whatever its shape."""
    headers = {"Content-Type": content_type, **_retry_headers(error)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = Response(body, headers, status, lines)
    response.closes = status in (408, 413)
    return response


def json_response(
    value: object, lines: str, status: int = 200, content_type: str = "application/json"
) -> Response:
    """A value as JSON."""
    return Response(_encode(value), {"Content-Type": content_type}, status, lines)
