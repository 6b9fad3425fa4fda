"""Errors in the words of each protocol, chosen by the address that was asked.

    /v1/messages...   Anthropic   {"type": "error", "error": {"type", "message"}}
    /api/..., /       Ollama      {"error": "a text"}; a full lane is 503; unknown addresses answer in plain text
    anything else     OpenAI      {"error": {"message", "type", "param", "code"}}

with or without a lane's name before it (/lane/NAME/api/...).
So a key that is refused before any door opens is refused in words that the client understands.
"""

from collections.abc import Mapping

import msgspec

from watchbill.errors import LaneFull, MethodNotAllowed, NotFound, TheirsError
from watchbill.gateway.answers import as_response, refuse, status_of
from watchbill.gateway.http.response import Response

__all__ = ["anthropic_error", "refusal"]

_encode = msgspec.json.Encoder().encode
_JSON = "application/json; charset=utf-8"
_TEXTS: dict[type[TheirsError], str] = {
    NotFound: "404 page not found",
    MethodNotAllowed: "405 method not allowed",
}
#: Anthropic's `type` of an error, by status.
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def refusal(
    path: str, error: TheirsError, lines: str, beside: Mapping[str, object] | None = None
) -> Response:
    """A whole answer that says what went wrong."""
    if path.startswith("/lane/"):
        path = "/" + path.removeprefix("/lane/").partition("/")[2]
    if path == "/" or path.startswith("/api/"):
        return _ollama(error, lines)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return refuse(error, _encode(anthropic_error(error, beside)), _JSON, lines, status_of(error))
    return as_response(error, lines, beside)


def anthropic_error(error: TheirsError, beside: Mapping[str, object] | None = None) -> dict[str, object]:
    """An error in Anthropic's shape; `code` is ours, for scripts."""
    status = status_of(error)
    kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
    said = {"type": kind, "message": str(error), "code": error.code}
    return {"type": "error", "error": said, **(beside or {})}


def _ollama(error: TheirsError, lines: str) -> Response:
    if text := _TEXTS.get(type(error)):
        return Response(text.encode(), {"Content-Type": "text/plain"}, error.status, lines)
    status = 503 if isinstance(error, LaneFull) else status_of(error)
    return refuse(error, _encode({"error": str(error)}), _JSON, lines, status)
