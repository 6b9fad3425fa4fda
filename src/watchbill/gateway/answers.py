"""What goes back to a client: JSON bodies, error bodies, and the headers that both carry.

Owns the shapes of errors. An error says whether Watchbill or the engine failed (`source`), and its `code` is of
the closed list in `errors`. Never contains a traceback, a path or a prompt.
"""

from collections.abc import Mapping
from typing import cast

import msgspec

from watchbill.engines.statuses import Said, said_by
from watchbill.errors import Cancelled, EngineFailed, LaneFull, NeverFits, TheirsError
from watchbill.gateway.http.messages import Response
from watchbill.limits import RETRY_AFTER_S_MAX

__all__ = [
    "EngineRefused",
    "as_response",
    "engine_error",
    "error_body",
    "error_fields",
    "json_response",
    "let_go",
    "refuse",
    "status_of",
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
#: Statuses after which a client may try again by itself.
_RETRYABLE = frozenset({429, 503, 507})

_encode = msgspec.json.Encoder().encode


class EngineRefused(EngineFailed):
    """The engine answered with an error of its own, which is passed on in its own words."""

    def __init__(self, status: int, message: str, *, kind: str | None = None, param: object = None) -> None:
        super().__init__(message)
        # An engine's 5xx is ours to answer for: 502 says that the gateway is well and the engine is not.
        self.said = said_by(status)
        self.answered = 502 if self.said is Said.FAILED else status
        self.kind = kind
        self.param = param


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
    return EngineRefused(status, message, kind=kept, param=fields.get("param"))


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
    code, param = error.code, None
    if isinstance(error, EngineRefused):
        kind, param = error.kind or kind, error.param
        if error.answered < 500:
            code = error.kind or "invalid_request"
    source = "engine" if isinstance(error, EngineFailed) else "watchbill"
    return {"message": str(error), "type": kind, "param": param, "code": code, "source": source}


def _retry_headers(error: TheirsError) -> dict[str, str]:
    """When, and whether, to try again."""
    status = status_of(error)
    if isinstance(error, (NeverFits, Cancelled)) or status == 501:  # the same request would end the same way
        return {"x-should-retry": "false"}  # SDKs retry every 5xx otherwise
    headers: dict[str, str] = {}
    if status in _RETRYABLE:
        known = error.retry_after_ms
        seconds = _RETRY_AFTER_DEFAULT_S if known is None else -(-known // 1000)
        headers["Retry-After"] = str(max(1, min(RETRY_AFTER_S_MAX, seconds)))
    if isinstance(error, LaneFull):
        headers["x-should-retry"] = "true"
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
