"""Requests in Ollama's dialect, translated to OpenAI's. Does no I/O.

Owns the meaning of `options`, `format`, `think`, images and tool messages. Options that shape the runner (`num_ctx`
and its kin) are always taken out: in Ollama each of them reloads the model, and two clients with different options
would reload it again and again. Unknown fields go through.
"""

from typing import cast

from watchbill.errors import RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.options import Range, check_ranges
from watchbill.limits import CONTEXT_TOKENS_MAX, THREADS_MAX

__all__ = ["as_chat", "as_completion", "check", "for_ollama", "is_load_only"]

Fields = dict[str, object]

#: Options that make Ollama load a model anew when they differ from those it was loaded with.
_RUNNER = frozenset({
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram", "numa",
    "vocab_only", "f16_kv", "logits_all",
})  # fmt: skip
_RENAMED = {"num_predict": "max_tokens", "num_keep": "n_keep"}
#: Of no meaning to any engine but an old Ollama.
_DROPPED = frozenset({"penalize_newline", "tfs_z"})
_RANGES = {
    "num_ctx": Range(0, CONTEXT_TOKENS_MAX), "num_predict": Range(-2, CONTEXT_TOKENS_MAX),
    "num_keep": Range(-1, CONTEXT_TOKENS_MAX), "num_batch": Range(0, CONTEXT_TOKENS_MAX),
    "num_gpu": Range(-1, 1024), "main_gpu": Range(0, 1024), "num_thread": Range(0, THREADS_MAX),
}  # fmt: skip
#: Fields with a meaning of their own; every other one goes through.
_KNOWN = frozenset({
    "model", "prompt", "suffix", "images", "system", "template", "context", "stream", "raw", "format", "options",
    "think", "messages", "tools", "truncate", "shift", "keep_alive",
})  # fmt: skip
#: The first bytes of an image in base64, and what it is.
_IMAGES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lG", "gif"), ("UklGR", "webp"))


def check(body: Fields) -> None:
    """Raises RequestError for fields of the wrong kind and numbers out of range."""
    stream, think = body.get("stream"), body.get("think")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError("stream must be true or false")
    if think is not None and not isinstance(think, bool) and think not in ("low", "medium", "high"):
        raise RequestError("think must be true, false, low, medium or high")
    for name in ("prompt", "system", "suffix"):
        if not isinstance(body.get(name, ""), str | None):
            raise RequestError(f"{name} must be a text")
    options = body.get("options")
    if options is not None and not isinstance(options, dict):
        raise RequestError("options must be an object")
    check_ranges(cast("Fields", options or {}), _RANGES)
    check_ranges(cast("Fields", options or {}))
    check_ranges(body)


def is_load_only(body: Fields, *, chat: bool) -> bool:
    """Whether the client wants nothing but the model in memory."""
    if chat:
        return not body.get("messages")
    return not body.get("prompt") and not body.get("images") and not body.get("suffix")


def for_ollama(body: Fields, *, stream: bool) -> Fields:
    """The same request for an Ollama behind us, without what would make it load the model anew."""
    options = {name: value for name, value in _options(body).items() if name not in _RUNNER}
    kept = {name: value for name, value in body.items() if name != "keep_alive"}
    return {**kept, "options": options, "stream": stream}


def as_completion(body: Fields) -> Fields:
    """A raw prompt, or one with a suffix, as an OpenAI completion."""
    suffix = body.get("suffix")
    return {**_common(body), "prompt": body.get("prompt") or "", **({"suffix": suffix} if suffix else {})}


def as_chat(body: Fields) -> Fields:
    """A chat, or a prompt with its system text and images, as an OpenAI chat."""
    messages = body.get("messages")
    if messages is None:
        system = body.get("system")
        said = {"role": "user", "content": body.get("prompt") or "", "images": body.get("images")}
        messages = [*([{"role": "system", "content": system}] if system else []), said]
    if not isinstance(messages, list):
        raise RequestError("messages must be a list")
    asked: Fields = {**_common(body), "messages": _messages(cast("list[object]", messages))}
    if tools := body.get("tools"):
        asked["tools"] = tools
    return asked


def _common(body: Fields) -> Fields:
    asked: Fields = {name: value for name, value in body.items() if name not in _KNOWN}
    asked["model"] = body["model"]
    for name, value in _options(body).items():
        if name in _RUNNER or name in _DROPPED or value is None:
            continue
        if name == "num_predict" and isinstance(value, int | float) and value <= 0:
            continue  # without an end, which is what leaving it out means
        asked[_RENAMED.get(name, name)] = value
    asked.update(_format(body.get("format")))
    asked.update(_think(body.get("think")))
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


def _options(body: Fields) -> Fields:
    options = body.get("options")
    return cast("Fields", options) if isinstance(options, dict) else {}


def _format(wanted: object) -> Fields:
    if not wanted:
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, dict):
        schema = {"name": "answer", "strict": True, "schema": cast("Fields", wanted)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise RequestError('format must be "json" or a JSON schema')


def _think(wanted: object) -> Fields:
    if wanted is None:
        return {}
    if isinstance(wanted, bool):
        return {"chat_template_kwargs": {"enable_thinking": wanted}}
    return {"reasoning_effort": wanted}


# ------------------------------------------------------------------ messages


def _messages(messages: list[object]) -> list[Fields]:
    asked: list[Fields] = []
    pending: list[tuple[str, str]] = []  # (tool, id) of calls that have no answer yet, in order
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(cast("Fields", message).get("role"), str):
            raise RequestError(f"message {number} must be an object with a role")
        fields = cast("Fields", message)
        said: Fields = {"role": fields["role"], "content": _content(fields)}
        if calls := _calls(fields, number):
            said["tool_calls"] = calls
            pending = [(str(cast("Fields", call["function"])["name"]), str(call["id"])) for call in calls]
        if fields["role"] == "tool":
            said["tool_call_id"] = _answered(fields, pending)
        if thoughts := fields.get("thinking"):
            said["reasoning_content"] = thoughts
        asked.append(said)
    return asked


def _content(message: Fields) -> object:
    text, images = message.get("content") or "", message.get("images")
    if not isinstance(text, str):
        raise RequestError("content must be a text")
    if not images:
        return text
    if not isinstance(images, list):
        raise RequestError("images must be a list")
    parts = [_image(image) for image in cast("list[object]", images)]
    return [{"type": "text", "text": text}, *parts] if text else parts


def _image(image: object) -> Fields:
    if not isinstance(image, str):
        raise RequestError("an image must be a text in base64")
    kind = next((kind for start, kind in _IMAGES if image.startswith(start)), "jpeg")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}}


def _calls(message: Fields, number: int) -> list[Fields]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    asked: list[Fields] = []
    for place, call in enumerate(cast("list[object]", calls)):
        function = cast("Fields", call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError("a tool call must have a function")
        fields = cast("Fields", function)
        id = cast("Fields", call).get("id") or f"call_{number}_{place}"
        arguments = fields.get("arguments")
        text = arguments if isinstance(arguments, str) else encode(cast("Fields", arguments or {})).decode()
        name = str(fields.get("name", ""))
        asked.append({"id": id, "type": "function", "function": {"name": name, "arguments": text}})
    return asked


def _answered(message: Fields, pending: list[tuple[str, str]]) -> str:
    """The id of the call that a tool's message answers: Ollama names the tool, or leaves it to the order."""
    given = message.get("tool_call_id")
    if isinstance(given, str) and given:
        return given
    tool = message.get("tool_name") or message.get("name")
    place = next((at for at, (name, _) in enumerate(pending) if name == tool), 0)
    return pending.pop(place)[1] if pending else "call_0"
