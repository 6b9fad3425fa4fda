"""Shapes: fields of a chat or completion that an engine ignores when they are wrong, or when it does not know them.

llama.cpp answers as if a stop of the wrong kind, or a schema that is not there, had not been asked for, and so do
others: the caller takes the answer for what it wanted. What cannot be meant is refused here, for every engine; what
only llama.cpp or only Ollama passes over is said in words that it knows, else refused, for its models alone. Does no
I/O.
"""

from collections.abc import Callable
from typing import cast

from watchbill.errors import RequestError
from watchbill.gateway.typed import count_of, object_of
from watchbill.quoting import quoted

__all__ = ["SHAPED", "check_shapes", "for_llamacpp", "for_ollama", "with_older_limit"]

Fields = dict[str, object]

#: Fields that llama.cpp and Ollama take without a word and without an effect.
_IGNORED = frozenset(
    {"echo", "best_of", "modalities", "audio", "functions", "function_call", "web_search_options"}
)
#: These, and what llama.cpp understands only in part: a `tool_choice` of one tool is `auto` to it.
_LLAMACPP_MISREADS = _IGNORED | {"suffix", "tool_choice"}
#: These, and what Ollama has no field for at its addresses of OpenAI.
_OLLAMA_MISREADS = _IGNORED | {"logit_bias", "tool_choice"}


def check_shapes(body: Fields) -> Fields:
    """The body without stops that are empty, and without tools that may not be called. Raises RequestError for a field
    of the wrong shape."""
    for name, check in _CHECKS.items():
        if name in body:
            check(body)
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and cast("Fields", choice).get("type") == "allowed_tools":
        body = _with_allowed(body, cast("Fields", choice))
    return _with_stops(body) if "stop" in body else body


def for_llamacpp(body: Fields, model: str) -> Fields:
    """The body as llama.cpp understands it. Raises RequestError for what it would leave out."""
    if _LLAMACPP_MISREADS.isdisjoint(body):
        return body
    _refuse_ignored(body, model, "llama.cpp")
    if body.get("suffix"):
        raise RequestError(f"{model} takes no suffix here; ask llama.cpp's own /infill, or /api/generate")
    choice = body.get("tool_choice")
    return _with_one_tool(body, cast("Fields", choice)) if isinstance(choice, dict) else body


def for_ollama(body: Fields, model: str) -> Fields:
    """The body in the fields that Ollama has. Raises RequestError for what it would leave out.

    A demanded call stays as it is: Ollama cannot force one, so `forced_calls` has to."""
    if _OLLAMA_MISREADS.isdisjoint(body):
        return body
    _refuse_ignored(body, model, "Ollama")
    if body.get("logit_bias"):
        raise RequestError(f"{model} cannot weigh tokens: Ollama has no logit_bias; leave it out")
    if body.get("tool_choice") != "none":
        return body
    return _without(body, "tools", "tool_choice", "parallel_tool_calls")


def with_older_limit(body: Fields) -> Fields:
    """The body with `max_completion_tokens` under its older name: Ollama knows only that, and some of OpenAI's models
    only the newer one."""
    limit = body["max_completion_tokens"]
    return {**_without(body, "max_completion_tokens"), "max_tokens": limit}


def _refuse_ignored(body: Fields, model: str, program: str) -> None:
    """Raises RequestError for what neither of the two programs knows."""
    if body.get("echo"):
        raise RequestError(f"{model} cannot echo the prompt: {program} has no echo; leave it out")
    if count_of(body.get("best_of")) > max(1, count_of(body.get("n"))):
        raise RequestError(f"{model} makes no more choices than it gives: {program} has no best_of; use n")
    modalities = body.get("modalities")
    if body.get("functions") or body.get("function_call"):
        raise RequestError(f"{model} takes no functions, their older name: send tools and tool_choice")
    if body.get("audio") or (isinstance(modalities, list) and "audio" in modalities):
        raise RequestError(f"{model} answers in text alone; leave audio out")
    if body.get("web_search_options") is not None:
        raise RequestError(f"{model} does not search the web; leave web_search_options out")


def _with_one_tool(body: Fields, choice: Fields) -> Fields:
    """The demand for one call of one tool, as a choice without another: the other tools are left out."""
    tools = [tool for tool in _listed(body.get("tools")) if _name_of(tool) == _name_of(choice)]
    return {**body, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}


def _without(body: Fields, *names: str) -> Fields:
    return {name: value for name, value in body.items() if name not in names}


def _check_format(body: Fields) -> None:
    wanted = body["response_format"]
    if not isinstance(wanted, dict):
        raise RequestError('response_format must be an object, such as {"type": "json_object"}')
    fields = cast("Fields", wanted)
    inner = fields.get("json_schema")
    holder = cast("Fields", inner) if isinstance(inner, dict) else fields  # llama.cpp has it in either place
    if fields.get("type") == "json_schema" and not isinstance(holder.get("schema"), dict | bool):
        raise RequestError("response_format has no schema: it belongs into json_schema.schema")


def _check_choice(body: Fields) -> None:
    choice = body["tool_choice"]
    if (choice == "required" or isinstance(choice, dict)) and not body.get("tools"):
        raise RequestError("tool_choice demands a call, and the request has no tools")
    if isinstance(choice, dict) and cast("Fields", choice).get("type") != "allowed_tools":
        name = _name_of(cast("Fields", choice))
        if name is None or name not in map(_name_of, _listed(body.get("tools"))):
            raise RequestError(f"tool_choice names {quoted(name)}, which is not among the tools")


def _with_allowed(body: Fields, choice: Fields) -> Fields:
    """A choice among some of the tools, in words that every engine knows: the other tools are left out."""
    inner = choice.get("allowed_tools")
    told = cast("Fields", inner) if isinstance(inner, dict) else choice
    allowed, mode, tools = (
        set(map(_name_of, _listed(told.get("tools")))),
        told.get("mode"),
        _listed(body["tools"]),
    )
    if mode not in ("auto", "required") or not allowed or None in allowed:
        raise RequestError("allowed_tools must have a mode, auto or required, and tools that are named")
    if unknown := allowed.difference(map(_name_of, tools)):
        raise RequestError(f"allowed_tools names {quoted(str(unknown.pop()))}, which is not among the tools")
    return {**body, "tool_choice": mode, "tools": [tool for tool in tools if _name_of(tool) in allowed]}


def _name_of(tool: object) -> str | None:
    fields = object_of(tool)
    function = fields.get(str(fields.get("type")))
    name = (cast("Fields", function) if isinstance(function, dict) else fields).get("name")
    return name if isinstance(name, str) else None


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _check_bias(body: Fields) -> None:
    bias = body["logit_bias"]
    pairs = cast("Fields", bias).items() if isinstance(bias, dict) else _pairs(bias)
    if not all(isinstance(weight, int | float) for _, weight in pairs):
        raise RequestError("logit_bias must be an object of numbers, by token")


def _pairs(bias: object) -> list[tuple[object, object]]:
    """llama.cpp's own way to say it."""
    listed = cast("list[object]", bias) if isinstance(bias, list) else [bias]
    pairs = [cast("list[object]", each) if isinstance(each, list) else [] for each in listed]
    return [(each[0], each[1]) if len(each) == 2 else (None, None) for each in pairs]


def _check_stream_options(body: Fields) -> None:
    if not isinstance(body["stream_options"], dict):
        raise RequestError('stream_options must be an object, such as {"include_usage": true}')


def _check_stop(body: Fields) -> None:
    stop = body["stop"]
    listed = cast("list[object]", stop) if isinstance(stop, list) else [stop]
    if not all(isinstance(each, str) for each in listed):
        raise RequestError("stop must be a text or a list of texts")


def _with_stops(body: Fields) -> Fields:
    """An empty stop is none: llama.cpp would end the answer before its first word."""
    stop = body["stop"]
    if isinstance(stop, str) and stop:
        return body
    kept = [each for each in cast("list[object]", stop) if each] if isinstance(stop, list) else []
    if kept:
        return {**body, "stop": kept}
    return _without(body, "stop")


_CHECKS: dict[str, Callable[[Fields], None]] = {
    "stop": _check_stop,
    "response_format": _check_format,
    "tool_choice": _check_choice,
    "logit_bias": _check_bias,
    "stream_options": _check_stream_options,
}
#: Fields that are looked at; a body without any of them need not be.
SHAPED = frozenset(_CHECKS)
