"""The tables of docs/ollama.md: complete by Ollama's own client, and true of a running gateway."""

from typing import Any

import ollama._types as client
import pytest

from support.documented import DOCS, rows_of
from support.open_gateway import open_gateway
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
