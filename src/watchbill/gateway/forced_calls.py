"""Forced calls: a call of a tool that a model must make although its chat template knows no tools.

llama.cpp offers tools through a model's chat template. Where that knows none it leaves them out without a word, and a
call that was asked for never comes. So the tools are described in the system text, and a grammar lets the model write
nothing but one call. `ForcedCall.ask` makes such a chat of one with tools, `ForcedCall.hear` turns the JSON that the
model writes into the events of a call. Does no I/O.
"""

import secrets
from typing import cast

import msgspec

from watchbill.engines.sse import DONE, EventReader
from watchbill.errors import EngineFailed, RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.growing import Kept
from watchbill.gateway.typed import object_of, objects_of
from watchbill.gateway.wire import NO_STREAM, decode_fields, event
from watchbill.quoting import quoted

__all__ = ["ForcedCall", "is_forced", "messages_of", "with_calls_in_words"]

Fields = dict[str, object]

_SAY = (
    "Call one of the functions below. Answer with one JSON object and nothing else: "
    '{"name": the function\'s name, "arguments": an object with its arguments}.\n\nFunctions:\n'
)

#: A function without parameters takes none, as OpenAI has it; a grammar of any object would let the model wander.
_NO_ARGUMENTS: Fields = {"type": "object", "properties": {}, "additionalProperties": False}


def is_forced(chat: Fields) -> bool:
    """Whether a chat demands a call: any, or that of one tool."""
    choice = chat.get("tool_choice")
    return bool(chat.get("tools")) and (choice == "required" or isinstance(choice, dict))


def messages_of(chat: Fields) -> list[Fields]:
    """The messages of a chat that is written anew. Raises RequestError for what would be lost on the way."""
    return _all_objects(chat.get("messages"), "messages")


def with_calls_in_words(messages: list[Fields]) -> list[Fields]:
    """The messages of a chat for a template that knows no tools: calls and their results are texts, else it leaves
    them out."""
    told: list[Fields] = []
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "assistant" and isinstance(calls, list) and calls:
            words = [encode(_called(each)).decode() for each in objects_of(cast("object", calls))]
            said = message.get("content")
            begun = [said] if isinstance(said, str) and said else []
            told.append({"role": "assistant", "content": "\n".join([*begun, *words])})
        elif message.get("role") == "tool":
            content = message.get("content")
            words = content if isinstance(content, str) else encode({"result": content}).decode()
            told.append({"role": "user", "content": f"The function returned:\n{words}"})
        else:
            told.append(message)
    return told


def _called(call: Fields) -> Fields:
    function = call.get("function")
    fields = object_of(function)
    return {"name": fields.get("name"), "arguments": fields.get("arguments")}


class ForcedCall:
    """One call that must be made, in one answer."""

    def __init__(self, chat: Fields) -> None:
        self._chat = chat
        self._functions = _chosen(chat)
        self._reader = EventReader()
        self._texts: dict[int, list[str]] = {}  # by the choice: what the model wrote so far
        self._kept = Kept()

    # ------------------------------------------------------------------ what the engine is asked

    def ask(self) -> Fields:
        """The chat without its tools, with a text about them and a grammar for one call. Raises RequestError."""
        if self._chat.get("response_format") is not None:
            raise RequestError("a chat can demand a call of a tool or an answer of a format, not both")
        left = {"tools", "tool_choice", "parallel_tool_calls"}
        chat: Fields = {name: value for name, value in self._chat.items() if name not in left}
        listed = "\n".join(encode(function).decode() for function in self._functions)
        messages = with_calls_in_words(messages_of(chat))
        chat["messages"] = _with_system(messages, _SAY + listed)
        schema = {"name": "call", "strict": True, "schema": _schema(self._functions)}
        return {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}

    # ------------------------------------------------------------------ what the model writes

    def begin(self) -> None:
        """The engine is asked, maybe anew."""
        self._reader = EventReader()
        self._texts = {}
        self._kept = Kept()

    def hear(self, piece: bytes) -> bytes:
        """Takes bytes of the engine's stream; gives the events of the call."""
        return b"".join(self._rewritten(payload) for payload in self._reader.feed(piece))

    def _rewritten(self, payload: bytes) -> bytes:
        if payload == DONE:
            return b"data: [DONE]\n\n"
        told = decode_fields(payload, NO_STREAM)
        ends: list[Fields] = []
        for choice in objects_of(told.get("choices")):
            if (end := self._take(choice)) is not None:
                ends.append({**told, "choices": [end]})
        told.pop("usage", None) if ends else None
        return b"".join(map(event, [*ends, told]))

    def _take(self, choice: Fields) -> Fields | None:
        """Keeps what the model wrote; at its end the choice that is the call."""
        index = choice.get("index")
        at = index if isinstance(index, int) else 0
        delta = choice.get("delta")
        said = object_of(delta)
        text = said.pop("content", None)
        if isinstance(text, str):
            self._kept.text(text)
            self._texts.setdefault(at, []).append(text)
        if choice.get("finish_reason") != "stop":
            return None
        call = self._call("".join(self._texts.get(at, [])))
        choice["finish_reason"] = "tool_calls"
        return {"index": at, "delta": {"tool_calls": [call]}, "finish_reason": None}

    def _call(self, text: str) -> Fields:
        written = decode_fields(text.encode("utf-8", "replace"), "the model wrote no call")
        name, arguments = written.get("name"), written.get("arguments")
        if not any(function["name"] == name for function in self._functions):
            raise EngineFailed("the model wrote a call of a tool that it was not offered")
        spelled = msgspec.json.encode(arguments).decode()
        function = {"name": name, "arguments": spelled}
        return {"index": 0, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _chosen(chat: Fields) -> list[Fields]:
    """The functions that may be called."""
    offered: list[Fields] = []
    for tool in _all_objects(chat.get("tools"), "tools"):
        function = tool.get("function")
        fields = object_of(function)
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError("a tool must be a function with a name")
        offered.append(
            {each: fields[each] for each in ("name", "description", "parameters") if fields.get(each)}
        )
    choice = chat.get("tool_choice")
    if isinstance(choice, dict):
        function = cast("Fields", choice).get("function")
        name = cast("Fields", function).get("name") if isinstance(function, dict) else None
        offered = [each for each in offered if each["name"] == name]
        if not offered:
            raise RequestError(f"tool_choice names {quoted(name)}, which is not among the tools")
    return offered


def _schema(functions: list[Fields]) -> Fields:
    """A JSON schema of one call. What the schemas of arguments define themselves is found from the top."""
    shared: Fields = {}
    calls: list[Fields] = []
    for function in functions:
        given = function.get("parameters")
        arguments = dict(cast("Fields", given)) if isinstance(given, dict) and given else dict(_NO_ARGUMENTS)
        for place in ("$defs", "definitions"):
            found = arguments.pop(place, None)
            if isinstance(found, dict):
                known = cast("Fields", shared.setdefault(place, {}))
                if any(known.get(name, each) != each for name, each in cast("Fields", found).items()):
                    raise RequestError("two tools define different things under one name; rename one of them")
                known.update(cast("Fields", found))
        properties: Fields = {"name": {"const": function["name"]}, "arguments": arguments}
        required = ["name", "arguments"]
        calls.append(
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **shared}


def _with_system(messages: list[Fields], text: str) -> list[Fields]:
    """Many chat templates take one system message, at the beginning."""
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _all_objects(value: object, name: str) -> list[Fields]:
    objects = objects_of(value)
    if not isinstance(value, list) or len(objects) < len(cast("list[object]", value)):
        raise RequestError(f"{name} must be a list of objects")
    return objects
