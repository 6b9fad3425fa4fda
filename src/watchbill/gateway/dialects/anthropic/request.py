"""Requests in Anthropic's dialect, translated to chats. Does no I/O.

Owns the checks of a request's fields, and what the fields about the answer (format, thinking, stop sequences) become.
The conversation itself is translated by `blocks`, tools by `tools`. What has no meaning for a local model (caching
marks, metadata, service tiers) is left out; what cannot be done is refused with the reason.
"""

from dataclasses import dataclass
from typing import cast

from watchbill.errors import RequestError, ThreadsUnsupported
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.anthropic.blocks import as_messages
from watchbill.gateway.dialects.anthropic.tools import offered
from watchbill.gateway.dialects.anthropic.treatment import FIELDS
from watchbill.gateway.dialects.thoughts import EFFORTS, thinking_fields
from watchbill.gateway.dialects.treatment import Treatment
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import STOP_SEQUENCE_CHARS_MAX, STOP_SEQUENCES_MAX
from watchbill.gateway.typed import is_word, object_of
from watchbill.quoting import cut

__all__ = ["Asked", "as_chat", "estimate_tokens", "for_llamacpp", "read"]

Fields = dict[str, object]

_REASONS = {
    "compaction": "conversations are not compacted here",
    "container": "no code runs here",
    "fallback_credit_token": "there are no credits here",
    "fallbacks": "models fall back by their family, see docs/scheduling.md",
    "mcp_servers": "no servers are called from here; call them yourself and offer their tools",
}
#: Fields of a chat that would make another answer than a message is, and what is meant by them here.
_OF_CHATS = {
    "n": "one message is made for a request",
    "stop": "use stop_sequences",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "response_format": "use output_config",
    "stream_options": "counts always come",
    "logprobs": "a message has no place for them",
    "top_logprobs": "a message has no place for them",
    "max_completion_tokens": "use max_tokens",
    "reasoning_effort": "use output_config",
}
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
#: Characters of a token, where no tokenizer can be asked.
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: what is needed again while the answer is made."""

    body: Fields  # without nulls
    stream: bool
    max_tokens: int | None
    stops: tuple[str, ...]
    hides_thoughts: bool  # they come only in their block's signature


def read(body: Fields, *, counting: bool = False) -> Asked:
    """Reads and checks a request. Raises RequestError."""
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(given)
    limit = given.get("max_tokens")
    if not isinstance(limit, int | None) or isinstance(limit, bool) or (limit is not None and limit < 1):
        raise RequestError("max_tokens must be a whole number of at least 1")
    if limit is None and not counting:
        raise RequestError("max_tokens must be a whole number of at least 1")
    stream = given.get("stream", False)
    if not isinstance(stream, bool):
        raise RequestError("stream must be true or false")
    if not isinstance(given.get("messages"), list):
        raise RequestError("messages must be a list")
    if not given["messages"]:
        raise RequestError("messages: at least one message is required")
    thinking = _object(given, "thinking")
    display = thinking.get("display")
    if display not in (None, "summarized", "omitted"):
        raise RequestError("thinking.display must be summarized or omitted")
    return Asked(given, stream, limit, _stops(given.get("stop_sequences")), display == "omitted")


def as_chat(asked: Asked, body: Fields) -> Fields:
    """The request as a chat that streams and counts; `body` is the request without our own fields."""
    given = asked.body
    chat: Fields = {
        name: value
        for name, value in body.items()
        if value is not None and (name not in FIELDS or name in ("temperature", "top_k", "top_p"))
    }
    chat["model"] = body["model"]
    chat["messages"] = as_messages(given.get("system"), given["messages"])
    if asked.max_tokens is not None:
        chat["max_tokens"] = asked.max_tokens
    chat |= offered(given.get("tools"), given.get("tool_choice"))
    chat |= _format(given) | _thinking(given, chat)
    return {**chat, "stream": True, "stream_options": {"include_usage": True}}


def for_llamacpp(asked: Asked) -> Fields:
    """What llama.cpp is told beside a chat: to count with every piece, and how long it may think."""
    told: Fields = {"timings_per_token": True}
    budget = _object(asked.body, "thinking").get("budget_tokens")
    return told if budget is None else {**told, "thinking_budget_tokens": budget}


def estimate_tokens(chat: Fields, lifted: Lifted | None = None) -> int:
    """About how many tokens a chat has, for engines that do not count them."""
    counted = {name: chat[name] for name in ("messages", "tools") if name in chat}
    size = len(encode(counted)) if lifted is None else sum(map(len, lifted.written(counted)))
    return max(1, size // _CHARS_PER_TOKEN)


def _check_names(given: Fields) -> None:
    if "thread" in given:
        raise ThreadsUnsupported  # by its code clients go on without one
    for name, value in given.items():
        if FIELDS.get(name) is Treatment.REFUSED and value not in ([], {}):
            raise RequestError(f"{name} cannot be used: {_REASONS[name]}")
        if name in _OF_CHATS:
            raise RequestError(
                f"{name} belongs to /v1/chat/completions, not to /v1/messages: {_OF_CHATS[name]}"
            )


def _stops(stops: object) -> tuple[str, ...]:
    if stops is None:
        return ()
    texts = cast("list[object]", stops) if isinstance(stops, list) else [None]
    if len(texts) > STOP_SEQUENCES_MAX:
        raise RequestError(f"stop_sequences has at most {STOP_SEQUENCES_MAX} texts")
    for text in texts:
        if not isinstance(text, str) or not text or len(text) > STOP_SEQUENCE_CHARS_MAX:
            raise RequestError(
                f"stop_sequences must be a list of texts, each of 1 to {STOP_SEQUENCE_CHARS_MAX} characters"
            )
    return tuple(cast("list[str]", texts))


def _format(given: Fields) -> Fields:
    """The form of the answer; `output_format` is the older name of `output_config.format`."""
    config = _object(given, "output_config")
    if strange := config.keys() - {"format", "effort"}:
        raise RequestError(
            f"output_config.{cut(min(strange))} is not known here; it may have format and effort"
        )
    wanted = config.get("format") or given.get("output_format")
    if wanted is None:
        return {}
    fields = object_of(wanted)
    if fields.get("type") != "json_schema" or not isinstance(fields.get("schema"), dict):
        raise RequestError("output_config.format must have the type json_schema and a schema")
    schema = {"name": "answer", "strict": True, "schema": fields["schema"]}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(given: Fields, chat: Fields) -> Fields:
    """Whether and how much the model thinks, in the words that chat templates know."""
    kind = _object(given, "thinking").get("type")
    effort = _object(given, "output_config").get("effort")
    if kind is not None and not is_word(kind, _THINKS):
        raise RequestError(f"thinking.type must be one of {', '.join(_THINKS)}")
    if effort is not None and not is_word(effort, EFFORTS):
        raise RequestError(f"output_config.effort must be one of {', '.join(EFFORTS)}")
    budget = _object(given, "thinking").get("budget_tokens")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
        raise RequestError("thinking.budget_tokens must be a whole number of at least 1")
    thinks = None if kind is None else _THINKS[kind]
    return thinking_fields(thinks, None if thinks is False else effort, chat)


def _object(given: Fields, name: str) -> Fields:
    value = given.get(name)
    if not isinstance(value, dict | None):
        raise RequestError(f"{name} must be an object")
    return cast("Fields", value) or {}
