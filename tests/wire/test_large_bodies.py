"""Large bodies mean what small ones do: the same request, once decoded at once and once with its long texts lifted out.

Each case is asked twice, of a gateway that decodes every body at once and of one that does not. What the engine is
asked, the status and the answer are the same, whatever the texts hold and wherever they stand; no mark of the lifting
reaches an engine or a client.
"""

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.open_gateway import HELLO, OpenGateway, RawAnswer, open_gateway
from watchbill.gateway import body as bodies
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX, JSON_WINDOW_BYTES

Fields = dict[str, Any]
#: A text goes across the border of a window; a field beside it makes the body large.
SIZE = JSON_WINDOW_BYTES * 5 // 4
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"


def long(text: str) -> str:
    return text * (SIZE // len(text.encode()) + 1)


#: What else a text may be made of: escapes, letters of all kinds, what looks like a mark, JSON, many digits.
ODD = (
    '"C:\\new\\table",[{ é \u2028 😀 \x00\x01\x1f\x7f\t\r\n \x010123456789abcdef.0\x01 {"a": "\\u0061 \\""} '
    + "31415926535897932" * 9
)
TEXTS = {
    "plain": long("A sentence of plain words. "),
    "odd": long(ODD),
    "an image": f"data:image/png;base64,{long(PNG)}",
}
TOOL: Fields = {
    "name": "look",
    "description": "TEXT",
    "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "TEXT"}}},
}
FUNCTION = {"type": "function", "function": TOOL}
CALLED: list[Fields] = [
    {"role": "user", "content": "TEXT"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps({"at": "TEXT"})},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "TEXT"},
]
IMAGE = {"type": "image_url", "image_url": {"url": "TEXT"}}
SAID = [{"role": "user", "content": "TEXT"}]
TWICE = [{"role": "user", "content": [{"type": "text", "text": "TEXT"}, {"type": "text", "text": "TEXT"}]}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "description": "TEXT", "enum": ["TEXT", "b"]}},
}
CHAT, COMPLETION, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)

#: The address, and what it is asked beside the model. TEXT is the long text, wherever it stands.
CASES: dict[str, tuple[str, Fields]] = {
    "chat": (CHAT, {"messages": SAID}),
    "chat, streamed": (CHAT, {"messages": SAID, "stream": True}),
    "chat of parts": (CHAT, {"messages": TWICE}),
    "chat with an image": (
        CHAT,
        {"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}]}]},
    ),
    "chat with a system text": (CHAT, {"messages": [{"role": "system", "content": "TEXT"}, *SAID]}),
    "chat with tools": (CHAT, {"messages": SAID, "tools": [FUNCTION]}),
    "chat with a forced call": (CHAT, {"messages": SAID, "tools": [FUNCTION], "tool_choice": "required"}),
    "chat with a tool that is named": (
        CHAT,
        {
            "messages": SAID,
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
    ),
    "chat with a tool's result": (CHAT, {"messages": CALLED, "tools": [FUNCTION]}),
    "chat with a schema": (
        CHAT,
        {
            "messages": SAID,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    "chat with a long stop": (CHAT, {"messages": SAID, "stop": ["TEXT"]}),
    "chat with n": (CHAT, {"messages": SAID, "n": 2}),
    "chat with a strange field": (CHAT, {"messages": SAID, "strange": {"TEXT": ["TEXT"]}}),
    "chat with a long name": (CHAT, {"messages": [{"role": "user", "content": "TEXT", "name": "TEXT"}]}),
    "chat with a long role": (CHAT, {"messages": [{"role": "TEXT", "content": "x"}]}),
    "chat of a long model": (CHAT, {"messages": SAID, "model": "TEXT"}),
    "chat with a wrong number": (CHAT, {"messages": SAID, "temperature": "TEXT"}),
    "chat with a wrong stream": (CHAT, {"messages": SAID, "stream": "TEXT"}),
    "chat with a tool without a name": (
        CHAT,
        {"messages": SAID, "tools": [{"type": "TEXT"}], "tool_choice": "required"},
    ),
    "completion": (COMPLETION, {"prompt": "TEXT", "suffix": "TEXT"}),
    "completion of several": (COMPLETION, {"prompt": ["TEXT", "short", "TEXT"]}),
    "embeddings": ("/v1/embeddings", {"input": ["TEXT", "short"]}),
    "responses": (RESPONSES, {"input": "TEXT"}),
    "responses, streamed": (RESPONSES, {"input": "TEXT", "stream": True}),
    "responses of items": (
        RESPONSES,
        {
            "instructions": "TEXT",
            "input": [
                {"role": "developer", "content": "TEXT"},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "TEXT"},
                        {"type": "input_text", "text": "TEXT"},
                    ],
                },
            ],
        },
    ),
    "responses with an image": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "TEXT"}]}]},
    ),
    "responses with a result": (
        RESPONSES,
        {
            "input": [
                {
                    "type": "function_call",
                    "call_id": "c",
                    "name": "look",
                    "arguments": json.dumps({"at": "TEXT"}),
                },
                {"type": "function_call_output", "call_id": "c", "output": "TEXT"},
            ],
            "tools": [{"type": "function", **TOOL}],
        },
    ),
    "responses with a custom call": (
        RESPONSES,
        {
            "input": [
                {"type": "custom_tool_call", "call_id": "c", "name": "look", "input": "TEXT"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "TEXT"},
            ]
        },
    ),
    "responses with thoughts": (
        RESPONSES,
        {
            "input": [
                {
                    "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": "TEXT"}],
                    "encrypted_content": "TEXT",
                },
                {"role": "user", "content": "TEXT"},
            ]
        },
    ),
    "responses with a schema": (
        RESPONSES,
        {"input": "TEXT", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ),
    "responses with a strange item": (RESPONSES, {"input": [{"type": "TEXT"}]}),
    "responses with a strange part": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "TEXT"}]}]},
    ),
    "responses after a strange one": (RESPONSES, {"input": "TEXT", "previous_response_id": "TEXT"}),
    "responses with a strange format": (RESPONSES, {"input": "TEXT", "text": {"format": {"type": "TEXT"}}}),
    "responses with long metadata": (RESPONSES, {"input": "TEXT", "metadata": {"a": "TEXT"}}),
    "count of input": ("/v1/responses/input_tokens", {"input": "TEXT"}),
    "messages": (MESSAGES, {"max_tokens": 9, "messages": SAID}),
    "messages, streamed": (MESSAGES, {"max_tokens": 9, "messages": SAID, "stream": True}),
    "messages with a system text": (
        MESSAGES,
        {
            "max_tokens": 9,
            "system": [{"type": "text", "text": "TEXT"}, {"type": "text", "text": "TEXT"}],
            "messages": SAID,
        },
    ),
    "messages of blocks": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "title": "TEXT",
                            "source": {"type": "text", "media_type": "text/plain", "data": "TEXT"},
                        },
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "TEXT"},
                        },
                        {
                            "type": "search_result",
                            "title": "t",
                            "source": "s",
                            "content": [{"type": "text", "text": "TEXT"}],
                        },
                    ],
                }
            ],
        },
    ),
    "messages with a result": (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "", "signature": "TEXT"},
                        {"type": "text", "text": "C:\\"},
                        {"type": "text", "text": "TEXT"},
                        {
                            "type": "tool_use",
                            "id": "t",
                            "name": "look",
                            "input": {"TEXT": {"deep": ["TEXT"]}},
                        },
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t",
                            "is_error": True,
                            "content": [{"type": "text", "text": "TEXT"}],
                        }
                    ],
                },
            ],
            "tools": [{"name": "look", "description": "TEXT", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
    "messages with stops": (MESSAGES, {"max_tokens": 9, "messages": SAID, "stop_sequences": ["TEXT"]}),
    "messages with a strange block": (
        MESSAGES,
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "TEXT"}]}]},
    ),
    "messages with a strange tool": (
        MESSAGES,
        {"max_tokens": 9, "messages": SAID, "tools": [{"type": "TEXT", "name": "x"}]},
    ),
    "messages with a strange config": (
        MESSAGES,
        {"max_tokens": 9, "messages": SAID, "output_config": {"TEXT": 1}},
    ),
    "count of messages": ("/v1/messages/count_tokens", {"messages": SAID}),
    "Ollama's chat": (
        "/api/chat",
        {"stream": False, "messages": [{"role": "system", "content": "TEXT"}, *SAID]},
    ),
    "Ollama's chat, streamed": ("/api/chat", {"messages": SAID}),
    "Ollama's chat with an image": (
        "/api/chat",
        {"stream": False, "messages": [{"role": "user", "content": "x", "images": [long(PNG), long(PNG)]}]},
    ),
    "Ollama's chat with calls": (
        "/api/chat",
        {
            "stream": False,
            "messages": [
                {"role": "user", "content": "TEXT"},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "TEXT",
                    "tool_calls": [{"function": {"name": "look", "arguments": {"at": "TEXT"}}}],
                },
                {"role": "tool", "tool_name": "look", "content": "TEXT"},
            ],
            "tools": [FUNCTION],
            "format": SCHEMA,
        },
    ),
    "Ollama's chat with a strange time": ("/api/chat", {"messages": SAID, "keep_alive": "TEXT"}),
    "Ollama's prompt": (
        "/api/generate",
        {"stream": False, "prompt": "TEXT", "system": "TEXT", "options": {"stop": ["TEXT"]}},
    ),
    "Ollama's raw prompt": ("/api/generate", {"stream": False, "prompt": "TEXT", "raw": True}),
    "Ollama's embed": ("/api/embed", {"input": ["TEXT", "TEXT"]}),
    "Ollama's embeddings": ("/api/embeddings", {"prompt": "TEXT"}),
    "rerank": ("/v1/rerank", {"query": "TEXT", "documents": ["TEXT", {"text": "TEXT"}]}),
    "tokens": ("/tokenize", {"content": "TEXT"}),
    "infill": (
        "/infill",
        {
            "input_prefix": "TEXT",
            "input_suffix": "TEXT",
            "input_extra": [{"text": "TEXT", "filename": "TEXT"}],
        },
    ),
    "template": ("/apply-template", {"messages": SAID}),
    "speech": ("/v1/audio/speech", {"input": "TEXT", "voice": "v"}),
    "image": ("/v1/images/generations", {"prompt": "TEXT"}),
    "LM Studio": ("/api/v0/chat/completions", {"messages": SAID}),
}


def filled(value: Any, text: str) -> Any:
    """The case with its text; also in the JSON that is a text itself, where it is written as JSON."""
    if isinstance(value, str):
        if value.startswith('{"'):
            return json.dumps(filled(json.loads(value), text))
        return text if value == "TEXT" else value
    if isinstance(value, dict):
        return {filled(name, text): filled(each, text) for name, each in value.items()}
    return [filled(each, text) for each in value] if isinstance(value, list) else value


@asynccontextmanager
async def gateways(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str, bytes], Any]]:
    """Asks both, and gives the two answers with what the engine was asked for them."""

    async def ask(opened: OpenGateway, path: str, body: bytes) -> tuple[RawAnswer, list[Fields]]:
        opened.peer.asked.clear()
        answer = await opened.ask(path, body)
        await opened.until_idle()
        return answer, [{"path": each.path, "body": each.json} for each in opened.peer.asked if each.body]

    async with open_gateway(HELLO) as opened:

        async def both(path: str, body: bytes) -> list[tuple[RawAnswer, list[Fields]]]:
            with monkeypatch.context() as patch:
                patch.setattr(bodies, "JSON_AT_ONCE_BYTES_MAX", 2**40)
                first = await ask(opened, path, body)
            return [first, await ask(opened, path, body)]

        yield both


def told(answer: RawAnswer) -> str:
    """An answer without what is another one each time. Of a refusal its code: a message shows less of a long text."""
    if answer.status >= 400:
        error = answer.json["error"]
        return f"{error['code']}, {error['type']}" if isinstance(error, dict) else "refused"
    text = re.sub(r"http-[0-9a-f]+-[0-9]+|[0-9a-f]{16,}", "ID", answer.body.decode())
    measured = "created|created_at|completed_at|[a-z_]+_duration|tokens_per_second|time_to_first_token|generation_time"
    return re.sub(rf'("(?:{measured})": ?)("[^"]*"|[0-9.]+)', r"\1T", text)


def meant(value: Any) -> Any:
    """What an engine is asked, with the arguments of calls read: the same JSON may be written in several ways."""
    if isinstance(value, dict):
        return {
            name: json.loads(each) if name == "arguments" and isinstance(each, str) else meant(each)
            for name, each in value.items()
        }
    return [meant(each) for each in value] if isinstance(value, list) else value


MARK = re.compile(rb"[0-9a-f]{16}\.[0-9]")


@pytest.mark.parametrize("name", CASES)
async def test_a_large_body_means_what_a_small_one_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-09, R42: the engine is asked the same, and the client is told the same."""
    path, asked = CASES[name]
    async with gateways(monkeypatch) as both:
        for text in TEXTS.values():
            fields = filled({"model": "a", **asked}, text) | {"user": "x" * JSON_AT_ONCE_BYTES_MAX}
            (plain, wanted), (lifted, found) = await both(path, json.dumps(fields).encode())
            assert meant(found) == meant(wanted)
            assert lifted.status == plain.status, (plain.body[:500], lifted.body[:500])
            assert not MARK.search(lifted.body.replace(b"0123456789abcdef", b"")), lifted.body[:500]
            assert told(lifted) == told(plain)


IMAGE = base64.b64encode(bytes(range(256)) * 4_000).decode()
#: Images as they stand in JSON, and how each is answered.
IMAGES = {
    "an image": (IMAGE, 200),
    "slashes as some clients write them": (IMAGE.replace("/", "\\/"), 200),
    "two letters to fill up": (IMAGE[:-4] + "AA==", 200),
    "another letter at its end": (IMAGE[:-1] + "!", 400),
    "another letter at its beginning": ("%" + IMAGE[1:], 400),
    "a new line": (IMAGE[:9_999] + "\\n" + IMAGE[9_999:], 400),
    "a letter too many": (IMAGE + "A", 400),
    "three letters to fill up": (IMAGE[:-3] + "===", 400),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_large_image_that_is_no_base64_is_refused(path: str, name: str) -> None:
    """Issue 18: what a small body is told, a large one is told as well, before an engine sees it."""
    image, status = IMAGES[name]
    rest = '"messages": [{"role": "user", "content": "x", "images": ["%s"]}]'
    rest = rest if path == "/api/chat" else '"prompt": "x", "images": ["%s"]'
    body = f'{{"model": "a", "stream": false, {rest % image}}}'.encode()
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask(path, body)
        assert (answer.status, len(opened.peer.asked)) == (status, int(status == 200)), answer.body
        assert status == 200 or answer.json["error"] == "an image must be a text in base64"
