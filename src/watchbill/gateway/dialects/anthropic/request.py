"""Requests in Anthropic's dialect, translated to OpenAI's. Does no I/O.

Owns the meaning of system texts, content blocks, tools and tool results. What has no meaning for a local model
(caching marks, metadata, service tiers) is left out; what cannot be done (tools that run at Anthropic) is refused.
"""

from typing import cast

from watchbill.errors import RequestError
from watchbill.gateway.body import encode

__all__ = ["as_chat", "check", "estimate_tokens"]

Fields = dict[str, object]

#: Fields with a meaning of their own, or with none here; every other one goes through.
_KNOWN = frozenset({
    "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "thinking",
    "metadata", "service_tier", "cache_control", "container", "context_management", "mcp_servers", "output_format",
    "output_config", "inference_geo", "speed", "betas",
})  # fmt: skip
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
#: Characters of a token, where no tokenizer can be asked.
_CHARS_PER_TOKEN = 4


def check(body: Fields, *, counting: bool = False) -> None:
    """Raises RequestError for what every request must have."""
    limit = body.get("max_tokens")
    if not counting and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestError("max_tokens must be a whole number of at least 1")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise RequestError("stream must be true or false")
    if not isinstance(body.get("messages"), list):
        raise RequestError("messages must be a list")


def as_chat(body: Fields) -> Fields:
    """The request as an OpenAI chat that streams and counts."""
    asked: Fields = {name: value for name, value in body.items() if name not in _KNOWN}
    asked["model"], asked["max_tokens"] = body["model"], body.get("max_tokens")
    asked["messages"] = [*_system(body.get("system")), *_messages(body["messages"])]
    if stops := body.get("stop_sequences"):
        asked["stop"] = stops
    if tools := body.get("tools"):
        asked["tools"] = [_tool(tool) for tool in _list(tools, "tools")]
        asked.update(_choice(body.get("tool_choice")))
    thinking = body.get("thinking")
    if isinstance(thinking, dict):
        wanted = cast("Fields", thinking).get("type") != "disabled"
        asked["chat_template_kwargs"] = {"enable_thinking": wanted}
    asked.update(_format(body))
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


def estimate_tokens(body: Fields, lifted: int = 0) -> int:
    """About how many tokens a request has, for engines that cannot count them; `lifted`: bytes that are not in it."""
    counted = {name: body[name] for name in ("system", "messages", "tools") if name in body}
    return max(1, (len(encode(counted)) + lifted) // _CHARS_PER_TOKEN)


# ------------------------------------------------------------------ messages


def _system(system: object) -> list[Fields]:
    if not system:
        return []
    text = system if isinstance(system, str) else "\n\n".join(map(_text, _list(system, "system")))
    return [{"role": "system", "content": text}]


def _messages(messages: object) -> list[Fields]:
    asked: list[Fields] = []
    for message in _list(messages, "messages"):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise RequestError("a message's role must be user or assistant")
        if isinstance(content, str):
            asked.append({"role": role, "content": content})
        elif role == "assistant":
            asked.append(_assistant(_list(content, "content")))
        else:
            asked += _user(str(role), _list(content, "content"))
    return asked


def _user(role: str, blocks: list[Fields]) -> list[Fields]:
    """Results of tools are messages of their own in OpenAI's words, before what the user says."""
    asked = [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
    parts = [_part(block) for block in blocks if block.get("type") != "tool_result"]
    if parts:
        plain = all(part["type"] == "text" for part in parts)
        asked.append({"role": role, "content": "\n".join(str(p["text"]) for p in parts) if plain else parts})
    return asked


def _assistant(blocks: list[Fields]) -> Fields:
    said: Fields = {"role": "assistant", "content": ""}
    texts, thoughts, calls = list[str](), list[str](), list[Fields]()
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(_text(block))
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = encode(cast("Fields", block.get("input") or {})).decode()
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case kind:
                raise RequestError(f"a block of type {str(kind)[:60]!a} cannot be passed on")
    said["content"] = "".join(texts)
    if thoughts:
        said["reasoning_content"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return said


def _tool_result(block: Fields) -> Fields:
    content = block.get("content")
    if isinstance(content, list):
        parts = [_part(part) for part in _list(cast("object", content), "content")]
        plain = all(part["type"] == "text" for part in parts)
        content = "\n".join(str(part["text"]) for part in parts) if plain else parts
    said = content if content is not None else ""
    if block.get("is_error") and isinstance(said, str):
        said = f"Error: {said}"
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}


def _part(block: Fields) -> Fields:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": _text(block)}
        case "image":
            return {"type": "image_url", "image_url": {"url": _image_url(block.get("source"))}}
        case "document":
            source = block.get("source")
            fields = cast("Fields", source) if isinstance(source, dict) else {}
            if fields.get("type") == "text" and isinstance(fields.get("data"), str):
                return {"type": "text", "text": fields["data"]}
            raise RequestError("of documents only plain texts can be passed on")
        case kind:
            raise RequestError(f"a block of type {str(kind)[:60]!a} cannot be passed on")


def _image_url(source: object) -> str:
    fields = cast("Fields", source) if isinstance(source, dict) else {}
    if fields.get("type") == "base64":
        return f"data:{fields.get('media_type')};base64,{fields.get('data')}"
    url = fields.get("url")
    if fields.get("type") == "url" and isinstance(url, str):
        return url
    raise RequestError("an image's source must be base64 or url")


# ------------------------------------------------------------------ tools


def _tool(tool: Fields) -> Fields:
    if tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise RequestError("of tools only those that the caller runs can be used, each with a name")
    function: Fields = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if description := tool.get("description"):
        function["description"] = description
    return {"type": "function", "function": function}


def _choice(choice: object) -> Fields:
    if not isinstance(choice, dict):
        return {}
    fields = cast("Fields", choice)
    kind = fields.get("type")
    asked: Fields = {}
    if kind == "tool":
        asked["tool_choice"] = {"type": "function", "function": {"name": fields.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        asked["tool_choice"] = _CHOICES[kind]
    else:
        raise RequestError("tool_choice must be auto, any, tool or none")
    if fields.get("disable_parallel_tool_use") is True:
        asked["parallel_tool_calls"] = False
    return asked


def _format(body: Fields) -> Fields:
    wanted = body.get("output_format")
    config = body.get("output_config")
    if wanted is None and isinstance(config, dict):
        wanted = cast("Fields", config).get("format")
    if not isinstance(wanted, dict) or cast("Fields", wanted).get("type") != "json_schema":
        return {}
    schema = {"name": "answer", "strict": True, "schema": cast("Fields", wanted).get("schema")}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _text(block: Fields) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise RequestError("a block of type text must have a text")
    return text


def _list(value: object, name: str) -> list[Fields]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in cast("list[object]", value)):
        raise RequestError(f"{name} must be a text or a list of objects")
    return cast("list[Fields]", value)
