"""The tables of docs/ollama.md: complete by Ollama's own client, and true of a running gateway."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ollama._types as client
import pytest

from gguf_models import make_chat_model
from support.documented import DOCS, holds, rows_of, working
from support.eventually import eventually
from support.open_gateway import OpenGateway, open_gateway
from support.peer import Asked, sse
from watchbill.catalog import Model
from wire.ollama_requests import DIFFERS, PIXEL, REQUESTS, SCHEMA, TOOL
from wire.test_ollama_requests import LLAMACPP, answer

PAGE = "ollama.md"
TABLES = {
    "Fields of /api/generate": client.GenerateRequest,
    "Fields of /api/chat": client.ChatRequest,
    "Fields of /api/embed": client.EmbedRequest,
    "Fields of /api/create": client.CreateRequest,
    "Options": client.Options,
}
#: What each field is tried with.
SAMPLES: dict[str, Any] = {
    "model": "thinker", "prompt": "x", "suffix": "", "system": "x", "template": "x", "context": [], "stream": False,
    "raw": True, "images": [PIXEL], "format": SCHEMA, "options": {"seed": 1}, "keep_alive": "5m", "think": True,
    "logprobs": True, "top_logprobs": 2, "width": 5, "height": 5, "steps": 5, "tools": [TOOL], "input": ["x"],
    "messages": [{"role": "user", "content": "x"}], "truncate": False, "dimensions": 2, "from": "smol", "license": "x",
    "files": {}, "parameters": {"seed": 1}, "adapters": {"a": "b"}, "quantize": "q4_0", "stop": ["x"],
}  # fmt: skip
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Fields of /api/generate": ("/api/generate", {"model": "thinker", "prompt": "x"}),
    "Fields of /api/chat": ("/api/chat", {"model": "thinker", "messages": SAMPLES["messages"]}),
    "Fields of /api/embed": ("/api/embed", {"model": "vectors", "input": "x"}),
    "Fields of /api/create": ("/api/create", {"model": "made", "from": "smol"}),
}
EFFECTS = {"num_predict": "max_tokens", "num_keep": "n_keep"}


@pytest.mark.parametrize("title", TABLES)
def test_a_table_has_every_field_of_the_client(title: str) -> None:
    """LANE-03: nothing is silently ignored; what does not work has its reason."""
    rows = rows_of(PAGE, title)
    assert set(rows) == {name.rstrip("_") for name in TABLES[title].model_fields}
    assert {what for what, _ in rows.values()} <= {"works", "ignored", "refused"}
    assert all(why.strip() for what, why in rows.values() if what != "works")


@pytest.mark.parametrize("title", BASES)
async def test_every_row_of_fields_is_true(title: str) -> None:
    """LANE-03: each field is sent to a gateway."""
    path, base = BASES[title]
    async with open_gateway(answer, catalog=LLAMACPP) as opened:
        for name, (what, _) in rows_of(PAGE, title).items():
            value = base["model"] if name == "model" else SAMPLES[name]
            told = await opened.ask(path, {**base, name: value})
            assert told.status == (400 if what == "refused" else 200), (name, told.body)


USER = {"role": "user", "content": "x"}
SYSTEM = {"role": "system", "content": "be brief"}
SEEN = {"type": "image_url"}
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}
PROBABLE = {"logprobs": True, "top_logprobs": 2}
FORMAT = {"response_format": {"type": "json_schema"}}
#: Of each row: what is sent, what the engine is then asked with, and what the last object of the answer has. Rows whose
#: proof takes more are below, by their name.
ROWS: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "Fields of /api/generate": {
        "model": ({"model": "smol"}, {}, {"model": "smol"}),
        "prompt": ({"prompt": "ahoy"}, {"messages": [{"role": "user", "content": "ahoy"}]}, {}),
        "system": ({"system": "be brief"}, {"messages": [SYSTEM, USER]}, {}),
        "raw": ({"raw": True}, {"prompt": "x"}, {}),
        "images": ({"images": [PIXEL]}, {"messages": [{"content": [{"type": "text"}, SEEN]}]}, {}),
        "format": ({"format": SCHEMA}, FORMAT, {}), "options": ({"options": {"seed": 7}}, {"seed": 7}, {}),
        "think": ({"think": True}, THINKS, {}), "logprobs": ({"logprobs": True}, {"logprobs": True}, {}),
        "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, PROBABLE, {}),
    },
    "Fields of /api/chat": {
        "model": ({"model": "smol"}, {}, {"model": "smol"}),
        "messages": (
            {"messages": [SYSTEM, {"role": "USER", "content": "x"}, {"role": "assistant", "content": "so"}, USER]},
            {"messages": [SYSTEM, USER, {"role": "assistant", "content": "so"}, USER]}, {},
        ),
        "tools": ({"tools": [TOOL]}, {"tools": [{"type": "function"}]}, {}),
        "format": ({"format": SCHEMA}, FORMAT, {}), "options": ({"options": {"seed": 7}}, {"seed": 7}, {}),
        "think": ({"think": True}, THINKS, {}), "logprobs": ({"logprobs": True}, {"logprobs": True}, {}),
        "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, PROBABLE, {}),
    },
    "Fields of /api/embed": {
        "model": ({"model": "vectors:latest"}, {}, {"model": "vectors:latest"}),
        "input": ({"input": ["a", "b"]}, {"input": ["a", "b"]}, {"embeddings": [[0.6, 0.0, 0.8]] * 2}),
        "dimensions": ({"dimensions": 1}, {}, {"embeddings": [[1.0]]}),
        "options": ({"options": {"seed": 7}}, {}, {"embeddings": [[0.6, 0.0, 0.8]]}),
    },
    "Fields of /api/create": {},
}  # fmt: skip


async def told(opened: OpenGateway, path: str, **body: object) -> dict[str, Any]:
    """The last object of an answer."""
    answer = await opened.ask(path, body)
    assert answer.status == 200, answer.body
    return json.loads(answer.body.splitlines()[-1])


async def is_filled_in(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    found = await told(opened, path, **{**base, "model": "filler"}, suffix="end", stream=False)
    assert found["response"] == "middle"
    assert holds({"input_prefix": "x", "input_suffix": "end"}, opened.peer.asked[-1].json)


async def is_continued(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    first = await told(opened, path, **base)
    await told(opened, path, **base, context=first["context"])
    said = [message["content"] for message in opened.peer.asked[-1].json["messages"]]
    assert said == ["x", "hello there", "x"]


async def is_streamed_or_not(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    for stream, kind, lines in ((True, "application/x-ndjson", 3), (False, "application/json", 1)):
        answer = await opened.ask(path, {**base, "stream": stream})
        assert answer.headers["content-type"].startswith(kind)
        assert (len(answer.body.splitlines()) >= lines) and (stream or len(answer.body.splitlines()) == 1)


async def is_unloaded(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    """It stays without the field, and leaves when its time is over."""
    await told(opened, path, **base)
    assert base["model"] in opened.engine.attempts
    await told(opened, path, **base, keep_alive=0)
    await eventually(lambda: base["model"] not in opened.engine.attempts)


async def is_truncated(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    """The end of a text that is too long is left out, unless that is not wanted."""
    long = {**base, "input": "y" * 250}
    assert len((await told(opened, path, **long))["embeddings"]) == 1
    assert len(opened.peer.asked[-1].json["input"][0]) <= 100
    assert (await opened.ask(path, {**long, "truncate": False})).status == 400


async def is_made(opened: OpenGateway, path: str, base: dict[str, Any]) -> None:
    """A name with all that it is made of, which requests under it begin with and `show` tells."""
    parts = {
        "system": "be brief",
        "messages": [USER],
        "parameters": {"seed": 7},
        "license": "mine",
        "template": "T",
    }
    assert (await told(opened, path, **base, **parts))["status"] == "success"
    await told(opened, "/api/chat", model="made", messages=[{"role": "user", "content": "hi"}])
    asked = opened.peer.asked[-1].json
    assert holds({"seed": 7, "messages": [SYSTEM, USER, {"role": "user", "content": "hi"}]}, asked)
    shown = await told(opened, "/api/show", model="made")
    assert holds({"system": "be brief", "license": "mine", "template": "T"}, shown)


async def is_made_of_a_file(opened: OpenGateway, path: str, base: dict[str, Any], tmp_path: Path) -> None:
    """An uploaded GGUF file is a model."""
    make_chat_model(tmp_path / "small.gguf", 300_000)
    content = (tmp_path / "small.gguf").read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert (await opened.ask(f"/api/blobs/{digest}", content, method="POST")).status == 201
    assert (await told(opened, path, model="own", files={"small.gguf": digest}))["status"] == "success"
    assert "own:latest" in (await opened.ask("/api/tags")).body.decode()


Proof = Callable[[OpenGateway, str, dict[str, Any]], Awaitable[None]]
PROOFS: dict[str, dict[str, Proof]] = {
    "Fields of /api/generate": {
        "suffix": is_filled_in, "context": is_continued, "stream": is_streamed_or_not, "keep_alive": is_unloaded,
    },
    "Fields of /api/chat": {"stream": is_streamed_or_not, "keep_alive": is_unloaded},
    "Fields of /api/embed": {"truncate": is_truncated, "keep_alive": is_unloaded},
    "Fields of /api/create": {
        **dict.fromkeys(("model", "from", "system", "messages", "parameters", "license", "template"), is_made),
        "stream": is_streamed_or_not,
    },
}  # fmt: skip


async def able(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that also fills in, and embeds no text of more than 100 characters."""
    if asked.path == "/infill":
        counts = {"stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 9}
        body = sse({"content": "mid", "stop": False}, {"content": "dle", "stop": True, **counts})
        head = b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
    elif asked.path == "/v1/embeddings" and len(asked.json["input"][0]) > 100:
        error = {
            "message": "input (250 tokens) is too large to process (current batch size: 100)",
            "code": 500,
        }
        body = json.dumps({"error": error}).encode()
        writer.write(
            b"HTTP/1.1 500 -\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
    else:
        await answer(asked, writer)


@pytest.mark.parametrize("title", BASES)
async def test_every_row_that_works_has_its_effect(title: str, tmp_path: Path) -> None:
    """LANE-03: what is sent reaches the engine in its own words, and the answer tells it, row by row."""
    path, base = BASES[title]
    proofs = PROOFS[title]
    by_file = {"files"} if title == "Fields of /api/create" else set[str]()
    assert working(PAGE, title) == {*ROWS[title], *proofs, *by_file}
    filler = Model("filler", "peer", memory=LLAMACPP.models["smol"].memory)
    catalog = replace(LLAMACPP, models={**LLAMACPP.models, "filler": filler})
    async with open_gateway(able, catalog=catalog) as opened:
        for name, (body, engine, last) in ROWS[title].items():
            found = await told(opened, path, **{**base, **body})
            assert holds(engine, opened.peer.asked[-1].json), (name, opened.peer.asked[-1].json)
            assert holds(last, found), (name, found)
        for proof in dict.fromkeys(proofs.values()):
            await proof(opened, path, base)
        if by_file:
            await is_made_of_a_file(opened, path, base, tmp_path)


async def test_every_row_of_options_is_true() -> None:
    """LANE-03: what works reaches the engine under its name there, what is ignored does not."""
    async with open_gateway(answer, catalog=LLAMACPP) as opened:
        for name, (what, _) in rows_of(PAGE, "Options").items():
            body = {"model": "smol", "prompt": "x", "options": {name: SAMPLES.get(name, 1)}}
            assert (await opened.ask("/api/generate", body)).status == 200, name
            assert (EFFECTS.get(name, name) in opened.peer.asked[-1].json) is (what == "works"), name


def test_the_page_counts_the_requests_as_they_are() -> None:
    """LANE-03: figures of the page are those of the test."""
    text = " ".join((DOCS / PAGE).read_text().split())
    assert f"{len(REQUESTS)} requests to every address" in text
    assert f"{len(REQUESTS) - len(DIFFERS)} are the same, and the other five" in text and len(DIFFERS) == 5
