"""Items: what a conversation consists of in OpenAI's Responses API, and the messages of a chat that they become.

A chat has fewer kinds of things than a response: thoughts, texts and calls of one turn are a single message there.
Items that a chat has no place for are refused by their names; none is left out without a word. Does no I/O.
"""

import re
from collections.abc import Iterable
from typing import cast

from watchbill.errors import RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.thoughts import reveal
from watchbill.gateway.typed import is_word
from watchbill.quoting import quoted

__all__ = ["as_listed", "as_messages", "input_items", "token_of"]

Fields = dict[str, object]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})[0-9a-z]*")
#: What a part of a message has where its sender left it out.
_PARTS: dict[str, Fields] = {"output_text": {"annotations": []}, "input_image": {"detail": "auto"}}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def token_of(item_id: str) -> str | None:
    """The token of the response that an item belongs to, by its id; None for an id that is not from here."""
    found = _ID.fullmatch(item_id)
    return None if found is None else found[1]


def input_items(given: object, token: str) -> list[Fields]:
    """The items of an input, each with a type and an id. Raises RequestError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in cast("list[object]", given)):
        raise RequestError("input must be a text or a list of items")
    return [_named(item, token, at) for at, item in enumerate(cast("list[Fields]", given))]


def _named(item: Fields, token: str, at: int) -> Fields:
    kind = item.get("type")
    if kind is None:
        kind = "item_reference" if "role" not in item and "id" in item else "message"
    prefix = _PREFIXES.get(str(kind), "it")
    named: Fields = {"id": f"{prefix}_{token}i{at:x}", **item, "type": kind}
    if named["id"] is None:
        named["id"] = f"{prefix}_{token}i{at:x}"
    if kind == "message":
        named["status"] = "completed"
        if isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            named["content"] = [{"type": part, "text": item["content"]}]
    return named


def as_listed(item: Fields) -> Fields:
    """A kept item as OpenAI lists it: clients with types need what its sender could leave out."""
    listed = {**item, "status": item.get("status") or "completed"}
    for name in ("content", "output"):
        if isinstance(parts := item.get(name), list):
            listed[name] = [_whole(part) for part in cast("list[object]", parts)]
    return listed


def _whole(part: object) -> object:
    if not isinstance(part, dict):
        return part
    given = {name: value for name, value in cast("Fields", part).items() if value is not None}
    return {**_PARTS.get(str(given.get("type")), {}), **given}


# ------------------------------------------------------------------ to a chat


def as_messages(instructions: str, items: Iterable[Fields]) -> list[Fields]:
    """The messages of a chat. Instructions and the system texts that follow them are one message: many chat templates
    take no second one."""
    messages: list[Fields] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        match item.get("type"):
            case "message":
                _say(messages, item)
            case "reasoning":
                _turn(messages)["reasoning_content"] = _thoughts(item)
            case "function_call":
                _call(messages, item, item.get("arguments"))
            case "custom_tool_call":
                _call(messages, item, encode({"input": item.get("input")}).decode())
            case "function_call_output" | "custom_tool_call_output":
                messages.append(_result(item))
            case kind:
                raise RequestError(f"an item of type {quoted(kind)} cannot be passed on to a model here")
    return messages


def _say(messages: list[Fields], item: Fields) -> None:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise RequestError("a message's role must be user, assistant, system or developer")
    content = _content(item.get("content"))
    last = messages[-1] if messages else None
    if role == "assistant":
        turn = _turn(messages)
        if not isinstance(content, str):
            raise RequestError("a message of the assistant can have only texts")
        turn["content"] = str(turn["content"]) + content
    elif role == "system" and last is not None and len(messages) == 1 and last["role"] == "system":
        if not isinstance(content, str):
            raise RequestError("a system message can have only texts")
        last["content"] = f"{last['content']}\n\n{content}"
    else:
        messages.append({"role": role, "content": content})


def _turn(messages: list[Fields]) -> Fields:
    """The assistant's message that is still open: thoughts, texts and calls of one turn belong together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(messages: list[Fields], item: Fields, arguments: object) -> None:
    if not isinstance(item.get("call_id"), str) or not isinstance(item.get("name"), str):
        raise RequestError("a call of a tool must have a call_id and a name")
    if not isinstance(arguments, str):
        raise RequestError("the arguments of a call must be a text")
    function = {"name": item["name"], "arguments": arguments}
    calls = cast("list[Fields]", _turn(messages).setdefault("tool_calls", []))
    calls.append({"id": item["call_id"], "type": "function", "function": function})


def _result(item: Fields) -> Fields:
    if not isinstance(item.get("call_id"), str):
        raise RequestError("the output of a call must have its call_id")
    return {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item.get("output"))}


def _content(content: object) -> str | list[Fields]:
    """A message's content: one text where there are only texts, else parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(
        isinstance(each, dict) for each in cast("list[object]", content)
    ):
        raise RequestError("content must be a text or a list of parts")
    parts = [_part(part) for part in cast("list[Fields]", content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _part(part: Fields) -> Fields:
    match part.get("type"):
        case "input_image":
            return _image(part)
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case "refusal":
            return {"type": "text", "text": _text(part, "refusal")}
        case "input_file":
            raise RequestError(
                "input_file cannot be used: files are not read here; send their text as input_text"
            )
        case kind if is_word(kind, _TEXTS):
            return {"type": "text", "text": _text(part, "text")}
        case kind:
            raise RequestError(f"a part of type {quoted(kind)} cannot be passed on to a model here")


def _image(part: Fields) -> Fields:
    url = part.get("image_url")
    if isinstance(url, dict):
        url = cast("Fields", url).get("url")
    if not isinstance(url, str) or not url:
        raise RequestError(
            "input_image must have an image_url; images are not kept here, so file_id means nothing"
        )
    detail = part.get("detail")
    image: Fields = {"url": url} if detail is None else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image}


def _text(part: Fields, name: str) -> str:
    text = part.get(name)
    if not isinstance(text, str):
        raise RequestError(f"a part of type {quoted(part.get('type'))} must have a text")
    return text


# ------------------------------------------------------------------ thoughts


def _thoughts(item: Fields) -> str:
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return str(_content(cast("object", parts)))
    return reveal(item.get("encrypted_content"))
