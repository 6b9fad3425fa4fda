"""Every request of the list, sent to a gateway before llama.cpp's API and before an Ollama."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_models import make_chat_model
from support.open_gateway import CATALOG, OpenGateway, RawAnswer, open_gateway
from support.peer import Asked as EngineAsked
from support.peer import chat_events, sse
from watchbill.catalog import EngineRules, Model
from watchbill.engines.base import endpoint_of
from watchbill.units import Bytes
from wire.ollama_requests import DIFFERS, GGUF_NAME, REQUESTS, Asked
from wire.ollama_standin import Kept, OllamaStandin

MIB = {"ram": Bytes(2**20)}
ALL = frozenset({"tools", "thinking", "vision"})
MODELS = {
    "smol": Model("smol", "peer", concurrency=8, memory=MIB, abilities=frozenset()),
    "thinker": Model("thinker", "peer", concurrency=8, memory=MIB, abilities=ALL),
    "vectors": Model("vectors", "peer", memory=MIB, embedding=True),
}
LLAMACPP = replace(CATALOG, models=MODELS, engines={"peer": EngineRules("peer", "llamacpp")})
#: Checked by the Ollama behind us; the stand-in for one does not.
LEFT_TO_OLLAMA = {
    "chat: a content that is a number",
    "chat: a message that is a text",
    "generate: a context in words",
}
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.6, 0.0, 0.8]}
USED = {"prompt_tokens": 2, "total_tokens": 2}


async def answer(asked: EngineAsked, writer: asyncio.StreamWriter) -> None:
    """An engine that chats, completes and embeds."""
    body, kind = b"", "text/event-stream"
    if asked.path == "/v1/embeddings":
        given = asked.json["input"]
        count = len(given) if isinstance(given, list) else 1
        body, kind = json.dumps({"data": [VECTOR] * count, "usage": USED}).encode(), "application/json"
    elif asked.path == "/v1/completions":
        chunk = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
        said = [
            {**chunk, "choices": [{"index": 0, "text": text, "finish_reason": end}]}
            for text, end in (("a", None), ("", "stop"))
        ]
        body = sse(*said, {**chunk, "choices": [], "usage": {**USED, "completion_tokens": 1}}, "[DONE]")
    elif asked.path == "/v1/chat/completions":
        body = sse(*chat_events("hello there"), "[DONE]")
    head = f"HTTP/1.1 {200 if body else 404} -\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def mismatch(asked: Asked, told: RawAnswer) -> str:
    """What is not as Ollama's; empty where nothing is."""
    if told.status != asked.status:
        return f"{told.status}, not {asked.status}: {told.body[:120]!r}"
    kind = told.headers.get("content-type", "")
    if asked.kind == "empty":
        return "" if not told.body else "it has a body"
    if asked.kind == "text":
        return "" if kind.startswith("text/plain") else f"it is {kind}"
    if asked.kind == "lines" and not kind.startswith("application/x-ndjson"):
        return f"it is {kind}, not lines"
    if asked.kind == "json" and not kind.startswith("application/json"):
        return f"it is {kind}, not JSON"
    last = json.loads(told.body.splitlines()[-1])
    missing = [key for key in asked.keys if key not in last]
    return f"without {missing}: {last}" if missing else ""


async def send(opened: OpenGateway, asked: Asked, names: dict[str, str]) -> RawAnswer:
    body = (
        json.loads(json.dumps(asked.body).replace(GGUF_NAME, names[GGUF_NAME]))
        if isinstance(asked.body, dict)
        else asked.body
    )
    if asked.method != "HEAD":
        return await opened.ask(asked.path, body, method=asked.method)
    reader, writer = await opened.connect()
    writer.write(f"HEAD {asked.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    return RawAnswer(int(head.split(b" ")[1]), {}, rest)


@asynccontextmanager
async def standin() -> AsyncIterator[OllamaStandin]:
    theirs = OllamaStandin(Kept("smol"), Kept("thinker"), Kept("vectors", embedding=True))
    await theirs.start()
    try:
        yield theirs
    finally:
        await theirs.die()


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    make_chat_model(path, 300_000)
    return path


async def test_every_request_is_answered_as_ollama_does(small_model: Path) -> None:
    """LANE-03: status, kind and keys, but for the few that are listed with their reason."""
    content = small_model.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    found: dict[str, str] = {}
    async with open_gateway(answer, catalog=LLAMACPP) as opened:
        assert (await opened.ask(f"/api/blobs/{digest}", content, method="POST")).status == 201
        for asked in REQUESTS:
            if why := mismatch(asked, await send(opened, asked, {GGUF_NAME: digest})):
                found[asked.name] = why
    print(f"{len(REQUESTS) - len(found)} of {len(REQUESTS)} as Ollama's")
    assert {name: why for name, why in found.items() if name not in DIFFERS} == {}
    assert set(found) == set(DIFFERS)


async def test_every_request_is_answered_as_ollama_does_with_one_behind_us(small_model: Path) -> None:
    """LANE-03: the same list; what an Ollama reads itself is not refused here."""
    content = small_model.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    async with standin() as theirs:
        engines = {"peer": EngineRules("peer", "ollama", url=theirs.url)}
        models = {name: replace(model, source=name) for name, model in MODELS.items()}
        found: dict[str, str] = {}
        async with open_gateway(answer, catalog=replace(CATALOG, models=models, engines=engines)) as opened:
            opened.engine.endpoint = endpoint_of(theirs.url)
            assert (await opened.ask(f"/api/blobs/{digest}", content, method="POST")).status == 201
            for asked in REQUESTS:
                if why := mismatch(asked, await send(opened, asked, {GGUF_NAME: digest})):
                    found[asked.name] = why
    print(f"{len(REQUESTS) - len(found)} of {len(REQUESTS)} as Ollama's")
    assert {
        name: why for name, why in found.items() if name not in LEFT_TO_OLLAMA and name not in DIFFERS
    } == {}
