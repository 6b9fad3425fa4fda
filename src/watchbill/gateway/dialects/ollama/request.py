"""Requests in Ollama's dialect, translated to OpenAI's. Does no I/O.

Owns the meaning of `options`, `format`, `think`, images and tool messages. Options that shape the runner (`num_ctx`
and its kin) are always taken out: in Ollama each of them reloads the model, and two clients with different options
would reload it again and again. Unknown fields go through.
"""

import base64
import binascii
import re
from typing import cast

from watchbill.config.limits import CONTEXT_TOKENS_MAX, THREADS_MAX
from watchbill.errors import RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.ollama.context import read_context
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import SMALL_BODY_BYTES_MAX
from watchbill.gateway.options import Range, check_ranges
from watchbill.gateway.typed import is_word, object_of
from watchbill.runtime.library import Entry
from watchbill.steps import Steps

__all__ = [
    "as_chat",
    "as_completion",
    "as_infill",
    "as_options",
    "check",
    "dressed",
    "for_ollama",
    "is_load_only",
    "options_of",
]

Fields = dict[str, object]

#: Options that make Ollama load a model anew when they differ from those it was loaded with.
_RUNNER = frozenset({
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram", "numa",
    "vocab_only", "f16_kv", "logits_all", "embedding_only",
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
    "think", "messages", "tools", "truncate", "shift", "keep_alive", "name", "logprobs", "top_logprobs",
})  # fmt: skip
_THINK = ("low", "medium", "high", "max")
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "stream": (bool, "true or false"), "raw": (bool, "true or false"), "truncate": (bool, "true or false"),
    "shift": (bool, "true or false"), "logprobs": (bool, "true or false"), "prompt": (str, "a text"),
    "system": (str, "a text"), "suffix": (str, "a text"), "template": (str, "a text"), "options": (dict, "an object"),
    "messages": (list, "a list"), "tools": (list, "a list"), "images": (list, "a list"),
}  # fmt: skip
#: A duration as Go writes it: "1h30m", "-1s", "0".
_SPAN = re.compile(r"[-+]?(?:0|(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+)")
_TOP_LOGPROBS_MAX = 20
#: Of models that draw.
_IMAGE_SIZES = frozenset({"width", "height", "steps"})
#: The first bytes of an image in base64, and what it is.
_IMAGES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lG", "gif"), ("UklGR", "webp"))


def check(body: Fields, *, is_native: bool) -> None:
    """Raises RequestError for fields of the wrong kind, and numbers out of range. `is_native`: an Ollama will read it,
    which has templates and token ids of its own."""
    for name, (kind, words) in _KINDS.items():
        if not isinstance(body.get(name), (kind, type(None))):
            raise RequestError(f"{name} must be {words}")
    think = body.get("think")
    if think is not None and not isinstance(think, bool) and not is_word(think, _THINK):
        raise RequestError("think must be true, false, low, medium or high")
    if not _is_span(body.get("keep_alive")):
        raise RequestError('keep_alive must be a number of seconds, or a duration such as "5m"')
    if not _in(body.get("top_logprobs"), 0, _TOP_LOGPROBS_MAX):
        raise RequestError(f"top_logprobs must be between 0 and {_TOP_LOGPROBS_MAX}")
    if body.get("raw") and (body.get("template") or body.get("system") or body.get("context")):
        raise RequestError("raw mode does not support template, system, or context")
    if not is_native:
        _check_made_here(body)
    _check_images(body.get("images"))
    options = options_of(body)
    if not _is_texts(options.get("stop")):
        raise RequestError("stop must be a text or a list of texts")
    check_ranges(options, _RANGES)
    check_ranges(options)
    check_ranges({name: value for name, value in body.items() if name not in _KNOWN and name != "dimensions"})


def _check_made_here(body: Fields) -> None:
    if body.get("template"):
        raise RequestError("template is the engine's own here; send the whole prompt with raw = true instead")
    if _IMAGE_SIZES.intersection(body):
        raise RequestError("images are made at /v1/images/generations, by models that can")
    read_context(body.get("context"))


def _is_span(value: object) -> bool:
    if isinstance(value, str):
        return _SPAN.fullmatch(value) is not None
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_texts(value: object) -> bool:
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    return value is None or all(isinstance(each, str) for each in listed)


def _in(value: object, low: int, high: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high)


def _check_images(images: object) -> None:
    for image in cast("list[object]", images or []):
        if not isinstance(image, str):
            raise RequestError("an image must be a text in base64")
        if (
            len(image) <= SMALL_BODY_BYTES_MAX and "\x01" not in image
        ):  # a mark: the text itself is not at hand
            try:
                base64.b64decode(image, validate=True)
            except (binascii.Error, ValueError):
                raise RequestError("an image must be a text in base64") from None


def check_lifted_images(body: Fields, lifted: Lifted) -> Steps[None]:
    """The same for images of a large body, of which `check` sees only marks. Raises RequestError."""
    messages = body.get("messages")
    said = cast("list[object]", messages) if isinstance(messages, list) else []
    for each in (body, *said):
        images = cast("Fields", each).get("images") if isinstance(each, dict) else None
        for image in cast("list[object]", images) if isinstance(images, list) else []:
            if isinstance(image, str) and not (yield from lifted.is_base64(image)):
                raise RequestError("an image must be a text in base64")


def dressed(body: Fields, entry: Entry | None, *, chat: bool) -> Fields:
    """The request with what a name of the library brings: parameters, a system text, messages before its own."""
    if entry is None or entry.is_plain:
        return body
    told = {**body, "options": {**entry.parameters, **options_of(body)}}
    if not chat:
        has_own = not entry.system or bool(body.get("system") or body.get("raw"))
        return told if has_own else {**told, "system": entry.system}
    messages = cast("list[object]", body.get("messages") or [])
    if not messages:
        return told
    first = object_of(messages[0])
    own_system = str(first.get("role")).lower() == "system"
    system = [{"role": "system", "content": entry.system}] if entry.system and not own_system else []
    return {**told, "messages": [*system, *entry.messages, *messages]}


def is_load_only(body: Fields, *, chat: bool) -> bool:
    """Whether the client wants nothing but the model in memory."""
    if chat:
        return not body.get("messages")
    return not body.get("prompt") and not body.get("images") and not body.get("suffix")


def for_ollama(body: Fields, *, stream: bool) -> Fields:
    """The same request for an Ollama behind us, without what would make it load the model anew."""
    options = {name: value for name, value in options_of(body).items() if name not in _RUNNER}
    kept = {name: value for name, value in body.items() if name not in ("keep_alive", "name")}
    return {**kept, "options": options, "stream": stream}


def as_completion(body: Fields) -> Fields:
    """A raw prompt, or one with a suffix, as an OpenAI completion."""
    suffix = body.get("suffix")
    return {**_common(body), "prompt": body.get("prompt") or "", **({"suffix": suffix} if suffix else {})}


def as_infill(body: Fields) -> Fields:
    """A prompt with a suffix as llama.cpp's own request to fill in what is between them."""
    asked = _common(body)
    asked.pop("stream_options")
    limit = asked.pop("max_tokens", None)
    if limit is not None:
        asked["n_predict"] = limit
    return {**asked, "input_prefix": body.get("prompt") or "", "input_suffix": body["suffix"]}


def as_chat(body: Fields) -> Fields:
    """A chat, or a prompt with its system text, context and images, as an OpenAI chat."""
    messages = body.get("messages")
    if messages is None:
        system = body.get("system")
        before = [{"role": role, "content": text} for role, text in read_context(body.get("context"))]
        said = {"role": "user", "content": body.get("prompt") or "", "images": body.get("images")}
        if system:
            before = [{"role": "system", "content": system}, *(m for m in before if m["role"] != "system")]
        messages = [*before, said]
    asked: Fields = {**_common(body), "messages": _messages(cast("list[object]", messages))}
    if tools := body.get("tools"):
        asked["tools"] = tools
    return asked


def _common(body: Fields) -> Fields:
    asked: Fields = {name: value for name, value in body.items() if name not in _KNOWN}
    asked["model"] = body["model"]
    asked.update(as_options(options_of(body)))
    if body.get("logprobs"):
        asked |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    asked.update(_format(body.get("format")))
    asked.update(_think(body.get("think")))
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


def as_options(options: Fields) -> Fields:
    """Options, or the parameters of a model, as OpenAI's fields."""
    asked: Fields = {}
    for name, value in options.items():
        if name in _RUNNER or name in _DROPPED or value is None:
            continue
        if name == "num_predict" and isinstance(value, int | float) and value <= 0:
            continue  # without an end, which is what leaving it out means
        asked[_RENAMED.get(name, name)] = value
    return asked


def options_of(body: Fields) -> Fields:
    """The options of a request; none where it has none."""
    options = body.get("options")
    return object_of(options)


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
    return {"reasoning_effort": wanted, "chat_template_kwargs": {"enable_thinking": True}}


# ------------------------------------------------------------------ messages


def _messages(messages: list[object]) -> list[Fields]:
    asked: list[Fields] = []
    pending: list[tuple[str, str]] = []  # (tool, id) of calls that have no answer yet, in order
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(cast("Fields", message).get("role"), str):
            raise RequestError(f"message {number} must be an object with a role")
        fields = cast("Fields", message)
        said: Fields = {"role": str(fields["role"]).lower(), "content": _content(fields)}
        if calls := _calls(fields, number):
            said["tool_calls"] = calls
            pending = [(str(cast("Fields", call["function"])["name"]), str(call["id"])) for call in calls]
        if said["role"] == "tool":
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
    _check_images(cast("object", images))
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
