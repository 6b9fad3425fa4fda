"""Blocks: what a conversation consists of in Anthropic's Messages API, and the messages of a chat that they become.

A block that a chat has no place for is refused by its name; none is left out without a word, but for thoughts that
another server encrypted, which no model here could read. Does no I/O.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import cast

from watchbill.errors import RequestError, TooLarge
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.thoughts import reveal
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import READ_BLOCKS_BYTES_MAX
from watchbill.gateway.typed import is_word
from watchbill.quoting import quoted

__all__ = ["as_messages", "restored"]

Fields = dict[str, object]

_ROLES = ("user", "assistant", "system")


def as_messages(system: object, messages: object) -> list[Fields]:
    """The messages of a chat. The system text and those that follow it at the beginning are one message: many chat
    templates take no second one."""
    asked = _system(system)
    for message in _list(messages, "messages"):
        role, content = message.get("role"), message.get("content")
        if not is_word(role, _ROLES):
            raise RequestError("a message's role must be user, assistant or system")
        said: Fields = {"type": "text", "text": content}
        blocks = [said] if isinstance(content, str) else _list(content, "content")
        if role == "assistant":
            asked.append(_assistant(blocks))
        elif role == "system":
            _add_system(asked, "\n\n".join(_text(block) for block in blocks))
        else:
            asked += _user(blocks)
    return asked


def _system(system: object) -> list[Fields]:
    if not system:
        return []
    text = system if isinstance(system, str) else "\n\n".join(map(_text, _list(system, "system")))
    return [{"role": "system", "content": text}]


def _add_system(asked: list[Fields], text: str) -> None:
    if len(asked) == 1 and asked[0]["role"] == "system":
        asked[0]["content"] = f"{asked[0]['content']}\n\n{text}"
    else:
        asked.append({"role": "system", "content": text})


def _user(blocks: list[Fields]) -> list[Fields]:
    """Results of tools are messages of their own in a chat, before what the user says."""
    asked = [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
    parts = [part for block in blocks if block.get("type") != "tool_result" for part in _parts(block)]
    if parts:
        asked.append({"role": "user", "content": _joined(parts)})
    return asked


def _assistant(blocks: list[Fields]) -> Fields:
    said: Fields = {"role": "assistant", "content": ""}
    texts, thoughts, calls = list[str](), list[str](), list[Fields]()
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(_text(block))
            case "thinking":
                thoughts.append(_thoughts(block))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block))
            case kind:
                raise _refusal(kind)
    said["content"] = "".join(texts)
    if thoughts := [each for each in thoughts if each]:
        said["reasoning_content"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return said


def _thoughts(block: Fields) -> str:
    thinking = block.get("thinking")
    return thinking if isinstance(thinking, str) and thinking else reveal(block.get("signature"))


def _call(block: Fields) -> Fields:
    id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not isinstance(name, str):
        raise RequestError("a block of type tool_use must have an id and a name")
    if not isinstance(given, dict | None):
        raise RequestError("the input of a block of type tool_use must be an object")
    arguments = encode(cast("Fields", given or {})).decode()
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_result(block: Fields) -> Fields:
    if not isinstance(block.get("tool_use_id"), str):
        raise RequestError("a block of type tool_result must have the tool_use_id of its call")
    content = block.get("content")
    said: str | list[Fields] = content if isinstance(content, str) else ""
    if not isinstance(content, str | None):
        said = _joined([part for each in _list(content, "content") for part in _parts(each)])
    if block.get("is_error") is True:
        said = f"Error: {said}" if isinstance(said, str) else [{"type": "text", "text": "Error:"}, *said]
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": said}


def _joined(parts: list[Fields]) -> str | list[Fields]:
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _parts(block: Fields) -> list[Fields]:
    match block.get("type"):
        case "text":
            return [{"type": "text", "text": _text(block)}]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _image_url(_source(block))}}]
        case "document":
            return _document(block)
        case "search_result":
            _refuse_citations(block)
            heading = _heading({"Title": block.get("title"), "Source": block.get("source")})
            return [*heading, *_texts(block.get("content"))]
        case kind:
            raise _refusal(kind)


def _refusal(kind: object) -> RequestError:
    return RequestError(
        f"a block of type {quoted(kind)} cannot be passed on to a model here: it belongs to a tool or a "
        "service of Anthropic, or to another place"
    )


# ------------------------------------------------------------------ images and documents


def _source(block: Fields) -> Fields:
    source = block.get("source")
    if not isinstance(source, dict):
        raise RequestError(f"a block of type {block['type']} must have a source")
    return cast("Fields", source)


def _image_url(source: Fields) -> str:
    kind, data, url = source.get("type"), source.get("data"), source.get("url")
    if kind == "base64" and isinstance(data, str):
        media = source.get("media_type")
        if not isinstance(media, str) or not media.startswith("image/"):
            raise RequestError("an image in base64 must have a media_type, such as image/png")
        return f"data:{media};base64,{data}"
    if kind == "url" and isinstance(url, str):
        return url
    if kind == "file":
        raise RequestError("an image.file cannot be used: files are not kept here; send the image as base64")
    raise RequestError("an image's source must be base64, with its data, or url")


def _document(block: Fields) -> list[Fields]:
    _refuse_citations(block)
    source = _source(block)
    kind, data = source.get("type"), source.get("data")
    heading = _heading({"Title": block.get("title"), "Context": block.get("context")})
    if kind == "text" and isinstance(data, str):
        return [*heading, {"type": "text", "text": data}]
    if kind == "content":
        return [*heading, *_texts(source.get("content"))]
    if kind == "base64":
        return [*heading, {"type": "text", "text": _decoded(source)}]
    if kind in ("url", "file"):
        raise RequestError(
            f"a document.{kind} cannot be used: documents are not fetched or kept here; send its text"
        )
    raise RequestError("a document's source must be text, content or base64")


def _decoded(source: Fields) -> str:
    """The text of a document in base64. Raises RequestError for one that is no text."""
    media, data = str(source.get("media_type")), source.get("data")
    if not media.startswith("text/") and media != "application/json":
        raise RequestError(
            f"a document of type {quoted(media)} cannot be used: only texts are read here; send its text"
        )
    try:
        return base64.b64decode(str(data), validate=True).decode()
    except (binascii.Error, ValueError):
        raise RequestError("a document in base64 must be a text in UTF-8") from None


def _texts(content: object) -> list[Fields]:
    """The parts of a document's or a search result's own content."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for each in _list(content, "content") for part in _parts(each)]


def _heading(lines: Fields) -> list[Fields]:
    told = [f"{name}: {value}" for name, value in lines.items() if isinstance(value, str) and value]
    return [{"type": "text", "text": "\n".join(told)}] if told else []


def _refuse_citations(block: Fields) -> None:
    citations = block.get("citations")
    if isinstance(citations, dict) and cast("Fields", citations).get("enabled") is True:
        raise RequestError("citations cannot be made here; leave them out, or ask for quotes in the text")


def _text(block: Fields) -> str:
    text = block.get("text")
    if block.get("type", "text") != "text":
        raise _refusal(block.get("type"))
    if not isinstance(text, str):
        raise RequestError("a block of type text must have a text")
    return text


def _list(value: object, name: str) -> list[Fields]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in cast("list[object]", value)):
        raise RequestError(f"{name} must be a text or a list of objects")
    return cast("list[Fields]", value)


# ------------------------------------------------------------------ large bodies


def restored(body: Fields, lifted: Lifted) -> Fields:
    """A large body with the long texts that are read here and not only passed on. Raises TooLarge."""
    blocks = [block for block in _all_blocks(body.get("messages")) if _is_read(block)]
    looked_at: Fields = {"stops": body.get("stop_sequences"), "blocks": blocks}
    found = lifted.restore(looked_at, READ_BLOCKS_BYTES_MAX)
    if found is looked_at:
        raise TooLarge(
            f"the documents in base64 have more than {READ_BLOCKS_BYTES_MAX} bytes; send them as text"
        )
    whole = cast("Fields", found)
    for block, read in zip(blocks, cast("list[Fields]", whole["blocks"]), strict=True):
        block.update(read)
    return {**body, "stop_sequences": whole["stops"]}


def _is_read(block: Fields) -> bool:
    source = block.get("source")
    is_coded = isinstance(source, dict) and cast("Fields", source).get("type") == "base64"
    match block.get("type"):
        case "document":
            return is_coded
        case "thinking":
            return not block.get("thinking")
        case _:
            return False


def _all_blocks(value: object) -> Iterator[Fields]:
    """Every block of these messages, also those in a tool's result."""
    for each in cast("list[object]", value) if isinstance(value, list) else []:
        if isinstance(each, dict):
            fields = cast("Fields", each)
            yield fields
            yield from _all_blocks(fields.get("content"))  # as deep as a body may be nested
