"""What clients of other people are tried with: a model that calls tools, and programs that ask it through a gateway.

Each scenario is a program of its own that asks as a user's would and prints what the client made of the answers, as
JSON. Nothing of it reaches any other address than this machine's.
"""

import asyncio
import json
import os
from pathlib import Path

from support.peer import Asked, Talk, chat_events, sse

__all__ = ["ANIMAL", "BEFORE", "CALL", "delta", "hears", "run", "send", "send_events"]

BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "engine-name"}
BEFORE = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
#: What the model answers where a schema is asked for, as JSON or as the arguments of a tool.
ANIMAL = {"animal": "cow", "legs": 4}
PROGRAM_S_MAX = 90


def delta(fields: dict[str, object], reason: str | None = None) -> dict[str, object]:
    return {**BASE, "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


#: A call of the tool `look`, piece by piece.
CALL = [
    delta({"role": "assistant", "content": None}),
    delta({"tool_calls": [BEFORE]}),
    delta({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    delta({}, "tool_calls"),
]


def send(
    writer: asyncio.StreamWriter, content: bytes, *, status: int = 200, kind: str = "text/event-stream"
) -> None:
    writer.write(f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\n".encode())
    writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)


def send_events(writer: asyncio.StreamWriter, *events: object) -> None:
    send(writer, sse(*events, "[DONE]"))


def hears(never: asyncio.Event) -> Talk:
    """A model for every scenario: it looks where it is offered `look`, fills in what else it is offered or the schema
    that is asked for, then tells what came back; "too long" exceeds its context, "slow" is never answered."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = asked.json
        if asked.path == "/v1/embeddings":
            return send(writer, _vectors(body), kind="application/json")
        messages = body["messages"]
        assert isinstance(messages, list)
        said = str(messages[-1].get("content"))
        if "too long" in said:
            return send(writer, json.dumps(TOO_LONG).encode(), status=400, kind="application/json")
        if "slow" in said:
            await never.wait()
        return send_events(writer, *_answer(body, messages))

    return talk


TOO_LONG = {
    "error": {
        "code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 999, "n_ctx": 512,
        "message": "the request exceeds the available context size, try increasing it",
    }
}  # fmt: skip


def _answer(body: dict[str, object], messages: list[dict[str, object]]) -> list[object]:
    tools = body.get("tools") or []
    assert isinstance(tools, list)
    offered = [tool["function"]["name"] for tool in tools]
    results = [str(message.get("content")) for message in messages if message.get("role") == "tool"]
    if "look" in offered and not results:
        return _call("look", {"at": "field"})
    if others := [name for name in offered if name != "look"]:
        return _call(others[0], ANIMAL)
    if body.get("response_format") or any('"legs"' in str(message.get("content")) for message in messages):
        return chat_events(json.dumps(ANIMAL))[:-1]
    return chat_events(f"I see {results[-1]}" if results else "hello there")[:-1]


def _call(name: str, arguments: dict[str, object]) -> list[object]:
    function = {"arguments": json.dumps(arguments)}
    return [
        CALL[0], delta({"tool_calls": [{**BEFORE, "function": {"name": name, "arguments": ""}}]}),
        delta({"tool_calls": [{"index": 0, "function": function}]}), CALL[-1],
        {**BASE, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}},
    ]  # fmt: skip


def _vectors(body: dict[str, object]) -> bytes:
    texts = body["input"]
    count = len(texts) if isinstance(texts, list) else 1
    data = [{"object": "embedding", "index": at, "embedding": [0.25, 0.5, at]} for at in range(count)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return json.dumps({"object": "list", "data": data, "model": "engine-name", "usage": usage}).encode()


async def run(*words: str, folder: Path, **variables: str) -> str:
    """What a program printed."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "127.0.0.1", **variables}
    env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    program = await asyncio.create_subprocess_exec(
        *words, env=env, cwd=folder, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PROGRAM_S_MAX):
            out, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
    assert program.returncode == 0, errors.decode()[-4000:]
    return out.decode()
