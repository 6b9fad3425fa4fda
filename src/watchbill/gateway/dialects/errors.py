"""The answer to a request that failed, in the dialect of its address.

    /v1/messages...   Anthropic   {"type": "error", "error": {"type", "message"}}
                                  (also without /v1, and what else Anthropic's clients ask for, by their header)
    /api/..., /       Ollama      {"error": "a text"}; a full lane is 503; unknown addresses answer in plain text
    anything else     OpenAI      (LM Studio's /api/v0/..., too)
                                  {"error": {"message", "type", "param", "code"}}

with or without a lane's name before it (/lane/NAME/api/...). A key that is refused before any handler runs is refused
in a shape that the client understands, too.
"""

import re
from collections.abc import Mapping

from watchbill.errors import TheirsError
from watchbill.gateway.answers import as_response
from watchbill.gateway.dialects.anthropic.errors import error_response as anthropic_error
from watchbill.gateway.dialects.anthropic.errors import is_anthropic
from watchbill.gateway.dialects.ollama.response import error_response as ollama_error
from watchbill.gateway.http.messages import Response
from watchbill.gateway.request_context import RequestContext

__all__ = ["refusal"]

_MESSAGES = re.compile(r"(?:/v1)?/messages(?:/|$)")


def refusal(
    context: RequestContext, error: TheirsError, beside: Mapping[str, object] | None = None
) -> Response:
    """A whole answer that says what went wrong; `beside` goes next to the error where the dialect has room for it."""
    path, lines = context.request.path, context.lines()
    if context.lifted is not None:  # a message may quote a long text, of which only the beginning is at hand
        error.args = (context.lifted.hidden(str(error)), *error.args[1:])
    if path.startswith("/lane/"):
        path = "/" + path.removeprefix("/lane/").partition("/")[2]
    if path == "/" or (path.startswith("/api/") and not path.startswith("/api/v0/")):
        return ollama_error(error, lines)
    if _MESSAGES.match(path) or is_anthropic(context):
        return anthropic_error(error, context, beside)
    return as_response(error, lines, beside)
