"""The stand-in for Ollama answers as the real one did: every recorded answer is compared with its own."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wire.engine_contract import within
from wire.ollama_standin import Kept, OllamaStandin

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ollama"
HELLO = [{"role": "user", "content": "Hello"}]
USAGE = {"include_usage": True}
SIX = {"num_predict": 6}

#: Fixture -> what was asked, in the order in which it was asked.
ASKED: dict[str, tuple[str, str, Any]] = {
    "root": ("GET", "/", None),
    "head_root": ("HEAD", "/", None),
    "version": ("GET", "/api/version", None),
    "tags": ("GET", "/api/tags", None),
    "ps_empty": ("GET", "/api/ps", None),
    "show": ("POST", "/api/show", {"model": "smol"}),
    "load_only": ("POST", "/api/generate", {"model": "smol"}),
    "ps_loaded": ("GET", "/api/ps", None),
    "chat_stream": ("POST", "/api/chat", {"model": "smol", "messages": HELLO, "options": SIX}),
    "chat_nostream": ("POST", "/api/chat", {"model": "smol", "messages": HELLO, "options": SIX, "stream": False}),
    "generate_stream": ("POST", "/api/generate", {"model": "smol", "prompt": "The sky is", "options": SIX}),
    "generate_nostream": (
        "POST", "/api/generate", {"model": "smol", "prompt": "The sky is", "options": SIX, "stream": False}
    ),
    "keep_alive_minus1": ("POST", "/api/generate", {"model": "smol", "keep_alive": -1}),
    "ps_forever": ("GET", "/api/ps", None),
    "unload": ("POST", "/api/generate", {"model": "smol", "keep_alive": 0}),
    "ps_after_unload": ("GET", "/api/ps", None),
    "generate_badjson": ("POST", "/api/generate", b"{bad"),
    "chat_unknown": ("POST", "/api/chat", {"model": "nope", "messages": HELLO}),
    "embed_unsupported": ("POST", "/api/embed", {"model": "smol", "input": "Hello"}),
    "not_found": ("GET", "/api/nothing", None),
    "method": ("GET", "/api/generate", None),
    "v1_models": ("GET", "/v1/models", None),
    "v1_chat": ("POST", "/v1/chat/completions", {"model": "smol", "messages": HELLO, "max_tokens": 6}),
    "v1_chat_stream": (
        "POST", "/v1/chat/completions",
        {"model": "smol", "messages": HELLO, "max_tokens": 4, "stream": True, "stream_options": USAGE},
    ),
    "v1_unknown": ("POST", "/v1/chat/completions", {"model": "nope", "messages": HELLO}),
}  # fmt: skip

#: Tables whose keys depend on the model.
OPEN = {"model_info"}
#: Values that are facts about the API and not about the model or the moment.
EXACT = {"error", "done", "done_reason", "object", "role", "finish_reason", "owned_by", "capabilities", "index",
         "system_fingerprint", "code", "param", "format"}  # fmt: skip


def test_every_recorded_answer_is_asked_for() -> None:
    """Pitfall 6: a fixture that nobody compares proves nothing."""
    assert {path.stem for path in FIXTURES.glob("*.http")} == set(ASKED)


async def test_the_standin_answers_as_the_real_server_did() -> None:
    standin = OllamaStandin(Kept("A"), Kept("B"), Kept("C"), Kept("smol"))
    await standin.start()
    try:
        for name, (method, path, body) in ASKED.items():
            recorded = parse((FIXTURES / f"{name}.http").read_bytes(), is_dechunked=True)
            given = parse(await within(5, exchange(standin.port, method, path, body)), is_dechunked=False)
            assert given[0] == recorded[0], name
            assert headers_of(given[1]) == headers_of(recorded[1]), name
            assert list(shapes(given[2])) == list(shapes(recorded[2])), name
            assert given[2].endswith(b"\n") == recorded[2].endswith(b"\n"), name
    finally:
        await standin.die()


async def exchange(port: int, method: str, path: str, body: Any) -> bytes:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in answer:
            while size := int((piece := await reader.readuntil(b"\r\n")).strip(), 16):
                answer += piece + await reader.readexactly(size + 2)
            return answer
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return answer + (await reader.readexactly(length) if method != "HEAD" else b"")
    finally:
        writer.close()


def parse(answer: bytes, *, is_dechunked: bool) -> tuple[str, list[tuple[str, str]], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    if not is_dechunked and ("Transfer-Encoding", "chunked") in headers:
        whole = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        body = whole
    return first, headers, body


def headers_of(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names in their order, and the values that do not depend on the moment."""
    return [(name, "" if name in ("Date", "Content-Length") else value) for name, value in headers]


def shapes(body: bytes) -> Iterator[object]:
    """What each object of an answer is made of; equal neighbours count once."""
    last: object = None
    for line in body.decode().splitlines():
        said = line.removeprefix("data: ")
        shape = shape_of(json.loads(said)) if said.startswith("{") else said
        if shape != last:
            yield shape
        last = shape


def shape_of(value: Any, key: str = "") -> object:
    if key in EXACT or str(value).endswith("_error"):
        return value
    if isinstance(value, dict):  # the order counts, too
        return [] if key in OPEN else [(name, shape_of(inner, name)) for name, inner in value.items()]
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__
