"""Requests for responses, translated to chats. Does no I/O.

Owns the checks of a request's fields, and what the fields about the answer (tools, format, thinking) become in a chat.
The conversation itself is translated by `items`. What cannot be done is refused with the reason; tools that run at
OpenAI are left out, because OpenAI's own clients offer them to every model.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from watchbill.catalog import Reach
from watchbill.config.limits import CONTEXT_TOKENS_MAX
from watchbill.errors import RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.responses.items import as_messages, input_items
from watchbill.gateway.dialects.responses.treatment import FIELDS, INCLUDES
from watchbill.gateway.dialects.thoughts import EFFORTS, thinking_fields
from watchbill.gateway.dialects.treatment import Treatment
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.options import read_metadata
from watchbill.gateway.typed import is_word, object_of
from watchbill.quoting import quoted

__all__ = ["Asked", "as_chat", "estimate_tokens", "fitting", "read"]

Fields = dict[str, object]

_REASONS = {
    "context_management": "conversations are not compacted here",
    "conversation": "conversations are not kept here; use previous_response_id",
    "moderation": "no model here judges texts",
    "prompt": "there are no stored prompts here; send the texts as instructions and input",
}
#: Fields of a chat that would make another answer than a response is.
_OF_CHATS = frozenset(
    {
        "messages", "n", "functions", "function_call", "logprobs", "response_format", "max_tokens",
        "max_completion_tokens",
    }
)  # fmt: skip
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_SUMMARIES = ("auto", "concise", "detailed")
_TOOL_MODES = ("none", "auto", "required")
_TOP_LOGPROBS_MAX = 20
#: A custom tool takes a text; models call it as a function of this one argument.
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
#: Bytes of a token, where no tokenizer can be asked; few, so that a conversation that is shortened by it surely fits.
_BYTES_PER_TOKEN = 3
#: Tokens that are left for an answer without a bound of its own.
_ANSWER_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: what is needed again while the answer is made."""

    token: str  # in the ids of the response and of all its items
    input: list[Fields]  # its own items, each with an id
    tools: list[Fields]  # those that the model is offered
    custom: frozenset[str]  # the names of those that take a text
    body: Fields
    stream: bool
    background: bool
    store: bool
    previous: str | None
    logprobs: bool
    encrypted: bool
    summarized: bool  # thoughts come as their summary
    # How far from this machine it may be served, by its caller and the turns before it.
    reach: Reach = Reach.ANYWHERE

    @property
    def id(self) -> str:
        """The response's id."""
        return f"resp_{self.token}"


def read(body: Fields, *, counting: bool = False, token: str | None = None) -> Asked:
    """Reads and checks a request; one of an earlier daemon has its token. Raises RequestError."""
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(given)
    stream, background = _flag(given, "stream"), _flag(given, "background")
    store = _flag(given, "store", default=True)
    if background and not store:
        raise RequestError("a response that is made in the background must be stored: leave out store")
    if background and stream:
        raise RequestError("a response is streamed or made in the background; ask for one of the two")
    included = _included(given.get("include"))
    _check_limits(given)
    read_metadata(given.get("metadata"))
    token, previous = token or secrets.token_hex(16), given.get("previous_response_id")
    if not isinstance(previous, str | None):
        raise RequestError("previous_response_id must be a text")
    if "input" not in given and previous is None and not counting:
        raise RequestError("input must be a text or a list of items")
    tools = given.get("tools")
    offered = _allowed(_offered(tools), given.get("tool_choice"), tools)
    custom = frozenset(str(tool["name"]) for tool in offered if tool["type"] == "custom")
    return Asked(
        token, input_items(given.get("input", []), token), offered, custom, given, stream, background, store, previous,
        _LOGPROBS in included or bool(given.get("top_logprobs")), _ENCRYPTED in included,
        _wants_summary(given.get("reasoning")),
    )  # fmt: skip


def as_chat(asked: Asked, body: Fields, items: list[Fields]) -> Fields:
    """The chat that answers these items; `body` is the request without our own fields."""
    chat: Fields = {name: value for name, value in body.items() if name not in FIELDS and value is not None}
    given = asked.body
    chat["model"] = body["model"]
    chat["messages"] = as_messages(_instructions(given.get("instructions")), items)
    for name, named in (
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("max_output_tokens", "max_tokens"),
    ):
        if name in given:
            chat[named] = given[name]
    if asked.logprobs:
        chat["logprobs"], chat["top_logprobs"] = True, given.get("top_logprobs", 0)
    chat |= _tools(asked) | _format(given.get("text")) | _thinking(given.get("reasoning"), chat)
    return {**chat, "stream": True, "stream_options": {"include_usage": True}}


def fitting(
    messages: list[Fields], context: int, answer: object, size_of: Callable[[Fields], int]
) -> list[Fields]:
    """The newest messages that fit a context by an estimate, and every system text before them (`truncation: auto`)."""
    room = (context - (answer if isinstance(answer, int) else _ANSWER_TOKENS)) * _BYTES_PER_TOKEN
    fixed = 1 if messages and messages[0].get("role") == "system" else 0
    sizes = [size_of(message) for message in messages]
    total, first = sum(sizes), fixed
    while total > room and first < len(messages) - 1:
        total -= sizes[first]
        first += 1
        while first < len(messages) - 1 and messages[first].get("role") == "tool":  # its call is gone
            total -= sizes[first]
            first += 1
    return [*messages[:fixed], *messages[first:]]


def estimate_tokens(chat: Fields, lifted: Lifted | None = None) -> int:
    """About how many tokens a chat has."""
    counted = {name: chat[name] for name in ("messages", "tools") if name in chat}
    size = len(encode(counted)) if lifted is None else sum(map(len, lifted.written(counted)))
    return max(1, size // 4)


# ------------------------------------------------------------------ checks


def _check_names(given: Fields) -> None:
    for name in given:
        if FIELDS.get(name) is Treatment.REFUSED:
            raise RequestError(f"{name} cannot be used: {_REASONS[name]}")
        if name in _OF_CHATS:
            raise RequestError(f"{name} belongs to /v1/chat/completions, not to /v1/responses")


def _flag(given: Fields, name: str, *, default: bool = False) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false")
    return value


def _included(include: object) -> frozenset[str]:
    if include is None:
        return frozenset()
    values = cast("list[object]", include) if isinstance(include, list) else [include]
    for value in values:
        if not is_word(value, INCLUDES):
            raise RequestError(f"include may hold {', '.join(INCLUDES)}")
    return frozenset(cast("list[str]", values))


def _check_limits(given: Fields) -> None:
    limit, top = given.get("max_output_tokens"), given.get("top_logprobs")
    if limit is not None and not _is_whole(limit, 1, CONTEXT_TOKENS_MAX):
        raise RequestError(f"max_output_tokens must be a whole number from 1 to {CONTEXT_TOKENS_MAX}")
    if top is not None and not _is_whole(top, 0, _TOP_LOGPROBS_MAX):
        raise RequestError(f"top_logprobs must be a whole number from 0 to {_TOP_LOGPROBS_MAX}")
    if given.get("truncation", "disabled") not in ("auto", "disabled"):
        raise RequestError("truncation must be auto or disabled")
    if not isinstance(given.get("parallel_tool_calls", True), bool):
        raise RequestError("parallel_tool_calls must be true or false")


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _instructions(instructions: object) -> str:
    if instructions is not None and not isinstance(instructions, str):
        raise RequestError("instructions must be a text")
    return instructions or ""


# ------------------------------------------------------------------ tools


def _offered(tools: object) -> list[Fields]:
    """The tools that the model is offered: those that their caller runs."""
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in cast("list[object]", tools)):
        raise RequestError("tools must be a list of objects")
    offered = [tool for tool in cast("list[Fields]", tools) if _is_usable(tool)]
    for tool in offered:
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise RequestError("a tool must have a name")
    return offered


def _is_usable(tool: Fields) -> bool:
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise RequestError("a tool must have a type")
    if kind == "custom":  # a text of a grammar cannot be promised
        shape = tool.get("format")
        return not isinstance(shape, dict) or cast("Fields", shape).get("type", "text") == "text"
    return kind == "function"


def _allowed(tools: list[Fields], choice: object, given: object) -> list[Fields]:
    """The tools that `tool_choice` leaves of those that can be used; `given` are all. Raises RequestError for a choice
    that cannot be kept."""
    if choice is None or choice in ("none", "auto"):
        return tools
    if choice == "required":
        if not tools:
            raise RequestError("tool_choice is required, and none of the tools can be used here")
        return tools
    if not isinstance(choice, dict):
        raise RequestError(f"tool_choice must be {', '.join(_TOOL_MODES)} or an object")
    fields = cast("Fields", choice)
    kind = fields.get("type")
    if kind == "allowed_tools":
        return _subset(tools, fields, cast("list[Fields]", given or []))
    if kind in ("function", "custom"):
        _find(tools, fields)
        return tools
    raise RequestError(f"tool_choice names {quoted(kind)}, a tool that cannot be used here")


def _subset(tools: list[Fields], choice: Fields, given: list[Fields]) -> list[Fields]:
    named = choice.get("tools")
    if choice.get("mode") not in ("auto", "required") or not isinstance(named, list):
        raise RequestError("allowed_tools must have a mode, auto or required, and a list of tools")
    wanted = [cast("Fields", each) for each in cast("list[object]", named) if isinstance(each, dict)]
    names = [each.get("name") for each in wanted if is_word(each.get("type"), ("function", "custom"))]
    if not all(isinstance(name, str) for name in names):
        raise RequestError("a tool that allowed_tools names must have its name")
    allowed = frozenset(cast("list[str]", names))
    if unknown := allowed.difference(tool.get("name") for tool in given):
        raise RequestError(f"allowed_tools names {quoted(min(unknown))}, which is not among the tools")
    left = [tool for tool in tools if tool["name"] in allowed]
    if not left and choice["mode"] == "required":
        raise RequestError("tool_choice allows only tools that cannot be used here")
    return left


def _find(tools: list[Fields], choice: Fields) -> None:
    if not any(tool["name"] == choice.get("name") and tool["type"] == choice["type"] for tool in tools):
        raise RequestError(f"tool_choice names {quoted(choice.get('name'))}, which is not among the tools")


def _tools(asked: Asked) -> Fields:
    if not asked.tools:
        return {}
    chosen = asked.body.get("tool_choice")
    chat: Fields = {"tools": [_tool(tool) for tool in asked.tools]}
    chat["parallel_tool_calls"] = asked.body.get("parallel_tool_calls", True)
    if isinstance(chosen, str):
        chat["tool_choice"] = chosen
    elif isinstance(chosen, dict):
        fields = cast("Fields", chosen)
        name: object = {"type": "function", "function": {"name": fields.get("name")}}
        chat["tool_choice"] = fields["mode"] if fields["type"] == "allowed_tools" else name
    return chat


def _tool(tool: Fields) -> Fields:
    function: Fields = {
        name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None
    }
    function["parameters"] = (
        _CUSTOM if tool["type"] == "custom" else tool.get("parameters") or {"type": "object"}
    )
    return {"type": "function", "function": function}


# ------------------------------------------------------------------ the answer's form


def _format(text: object) -> Fields:
    if text is None:
        return {}
    if not isinstance(text, dict):
        raise RequestError("text must be an object")
    shape = cast("Fields", text).get("format") or {"type": "text"}
    fields = object_of(shape)
    match fields.get("type"):
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema" if isinstance(fields.get("schema"), dict):
            names = ("name", "description", "schema", "strict")
            schema = {name: fields[name] for name in names if fields.get(name) is not None}
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **schema}}}
        case "json_schema":
            raise RequestError("text.format must have a schema")
        case kind:
            raise RequestError(f"text.format must be text, json_object or json_schema, not {quoted(kind)}")


def _wants_summary(reasoning: object) -> bool:
    """Whether thoughts are asked for as a summary, by today's name or the older one."""
    said = _reasoning(reasoning)
    wanted = [said[name] for name in ("summary", "generate_summary") if said.get(name) is not None]
    for each in wanted:
        if not is_word(each, _SUMMARIES):
            raise RequestError(f"reasoning.summary must be one of {', '.join(_SUMMARIES)}")
    return bool(wanted)


def _reasoning(given: object) -> Fields:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RequestError("reasoning must be an object")
    return cast("Fields", given)


def _thinking(reasoning: object, chat: Fields) -> Fields:
    effort = _reasoning(reasoning).get("effort")
    if effort is None:
        return {}
    if not is_word(effort, EFFORTS):
        raise RequestError(f"reasoning.effort must be one of {', '.join(EFFORTS)}")
    return thinking_fields(None, effort, chat)
