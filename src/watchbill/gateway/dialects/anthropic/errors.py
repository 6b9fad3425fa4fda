"""Whose client asks, errors in Anthropic's dialect, and the headers that its answers have. Does no I/O."""

from collections.abc import Mapping

from watchbill.errors import TheirsError, ThreadsUnsupported
from watchbill.gateway.answers import code_of, refuse, status_of, too_long
from watchbill.gateway.body import encode
from watchbill.gateway.http.messages import Response, header
from watchbill.gateway.request_context import RequestContext

__all__ = ["error_fields", "error_response", "is_anthropic", "lines"]

Fields = dict[str, object]

#: Anthropic's `type` of an error, by status.
_ERROR_TYPES = {
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


def is_anthropic(context: RequestContext) -> bool:
    """Whether a request comes from a client of Anthropic's: each of theirs has this header."""
    return "anthropic-version" in context.request.headers


def lines(context: RequestContext) -> str:
    """The headers of an answer; Anthropic's clients look for the request's id under a name of their own."""
    return context.lines() + header("request-id", context.given or context.id)


def error_fields(error: TheirsError, beside: Mapping[str, object] | None = None) -> Fields:
    """An error in Anthropic's shape; `code` is ours, for scripts."""
    status = status_of(error)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    said: Fields = {"type": kind, "message": _worded(error), "code": code_of(error)}
    if isinstance(error, ThreadsUnsupported):
        said["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return {"type": "error", "error": said, **(beside or {})}


def _worded(error: TheirsError) -> str:
    """Clients shorten a conversation by themselves when they read these words, by the figures where there are some."""
    long = too_long(error)
    if long is None:
        return str(error)
    if long.asked is None or long.most is None:
        return f"prompt is too long: {error}"
    return f"prompt is too long: {long.asked} tokens > {long.most} maximum"


def error_response(
    error: TheirsError, context: RequestContext, beside: Mapping[str, object] | None = None
) -> Response:
    """The answer to a request that failed."""
    body = encode(error_fields(error, beside))
    return refuse(error, body, "application/json; charset=utf-8", lines(context), status_of(error))
