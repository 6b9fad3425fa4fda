"""Prompts that are far too long: refused by their bytes before an engine reads them, or cut where the protocol cuts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gguf_models import GgufFiles
from support.open_gateway import CATALOG, MIB, OpenGateway, open_gateway
from support.peer import Asked, Talk, stream_of
from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.gateway.body import parse_large
from watchbill.gguf import read_header
from watchbill.limits import JSON_LIFTED_BYTES_MIN

#: Of a vocabulary whose longest token has 13 bytes.
CONTEXT, TOKEN_BYTES = 64, 13
FITS, LONG, LARGE = "x" * (CONTEXT * TOKEN_BYTES), "x" * (CONTEXT * TOKEN_BYTES + 1), "y" * 200_000
DOORS: dict[str, str] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    "/v1/embeddings": "input",
    "/api/chat": "messages",
    "/api/generate": "prompt",
}


def asked(path: str, text: str) -> dict[str, object]:
    field = DOORS[path]
    said: object = [{"role": "user", "content": text}] if field == "messages" else text
    needed = {"max_tokens": 5} if path == "/v1/messages" else {}
    return {"model": "vectors" if "embed" in path else "text", "stream": False, field: said, **needed}


@asynccontextmanager
async def opened_on(files: GgufFiles, talk: Talk | None = None) -> AsyncIterator[OpenGateway]:
    source = str(files.chat("5MB"))
    models = {
        "text": Model("text", "peer", source=source, memory=MIB, context=CONTEXT),
        "vectors": Model("vectors", "peer", source=source, memory=MIB, context=CONTEXT, embedding=True),
        "shifts": Model(
            "shifts", "peer", source=source, memory=MIB, context=CONTEXT, arguments=("--context-shift",)
        ),
    }
    catalog = Catalog(CATALOG.devices, {"peer": EngineRules("peer", "llamacpp")}, models, CATALOG.lanes)
    async with open_gateway(*([] if talk is None else [talk]), catalog=catalog) as opened:
        yield opened


def test_the_longest_token_of_a_file_is_known(gguf_files: GgufFiles) -> None:
    """MEM-01: read with the header, at no cost; not where texts may become fewer tokens than their bytes tell."""
    assert read_header(gguf_files.chat("5MB")).token_bytes == TOKEN_BYTES
    assert read_header(gguf_files.embedding()).token_bytes == 0


@pytest.mark.parametrize("text", [LONG, LARGE])
@pytest.mark.parametrize("path", DOORS)
async def test_what_surely_does_not_fit_is_refused_before_an_engine_reads_it(
    path: str, text: str, gguf_files: GgufFiles
) -> None:
    """LANE-01: a prompt of a megabyte held llama.cpp for many seconds, and cost its model its place."""
    async with opened_on(gguf_files) as opened:
        answer = await opened.ask(path, asked(path, text))
        assert answer.status == 400, answer.body
        error = json.loads(answer.body)["error"]
        if not path.startswith("/api"):
            assert error["code"] == "context_length_exceeded"
        assert str(CONTEXT) in str(error) and not opened.peer.asked
        await opened.until_idle()


@pytest.mark.parametrize("path", DOORS)
async def test_what_may_fit_is_left_to_the_engine(path: str, gguf_files: GgufFiles) -> None:
    """LANE-01: nothing that an engine could take is refused; what templates leave out does not count."""
    async with opened_on(gguf_files) as opened:
        await opened.ask(path, asked(path, FITS))
        assert len(opened.peer.asked) == 1
        turns = [{"role": "assistant", "content": LONG}, {"role": "user", "content": "x"}]
        await opened.ask("/v1/chat/completions", {"model": "text", "messages": turns})
        await opened.ask("/v1/chat/completions", {**asked("/v1/chat/completions", LONG), "model": "shifts"})
        assert len(opened.peer.asked) == 3


async def test_a_chat_of_ollama_loses_its_oldest_turns_for_what_does_not_fit(gguf_files: GgufFiles) -> None:
    """LANE-01: as it does when an engine says so, by the true size of long texts."""
    turns = [{"role": "user", "content": text} for text in (LARGE, "short", LARGE, "last")]
    async with opened_on(gguf_files) as opened:
        answer = await opened.ask("/api/chat", {"model": "text", "stream": False, "messages": turns})
        assert answer.status == 200, answer.body
        assert [turn["content"] for turn in opened.peer.asked[-1].json["messages"]] == ["last"]


@pytest.mark.parametrize(("text", "is_ascii"), [("tä\n" * 60_000, False), ("🙂" * 20_000, True)])
async def test_a_text_to_embed_is_cut_and_not_what_stands_for_it(
    text: str, is_ascii: bool, gguf_files: GgufFiles
) -> None:
    """LANE-01: long texts of a large body are lifted out; a stand-in was cut, and the vector was that of one token."""
    seen: list[str] = []

    async def embed(request: Asked, writer: asyncio.StreamWriter) -> None:
        seen.append(cast("list[str]", request.json["input"])[1])
        refusal = {"type": "exceed_context_size_error", "n_prompt_tokens": 200, "n_ctx": 100, "message": "no"}
        rows = {"data": [{"index": at, "embedding": [1.0]} for at in range(2)]}
        is_long = len(seen[-1]) > 50
        told = json.dumps({"error": refusal} if is_long else rows).encode()
        await stream_of(told, content_type="application/json", status=400 if is_long else 200)(
            request, writer
        )

    async with opened_on(gguf_files, embed) as opened:
        body = json.dumps({"model": "vectors", "input": ["a", text]}, ensure_ascii=is_ascii).encode()
        answer = await opened.ask("/api/embed", body)
        assert answer.status == 200, answer.body
        assert all(text.startswith(each) for each in seen) and 10 < len(seen[-1]) <= 50


LONG_TEXTS = st.builds(
    lambda text: text * (JSON_LIFTED_BYTES_MIN // len(text) + 1),
    st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["Cs"])),
)


@settings(max_examples=300, deadline=None)
@given(text=LONG_TEXTS, most=st.integers(0, 1500), is_ascii=st.booleans())
@example(text="\\" * 600, most=301, is_ascii=False)
@example(text="\\ud83d" * 200, most=307, is_ascii=False)
@example(text="🙂" * 200, most=306, is_ascii=True)
def test_a_lifted_text_is_cut_within_no_character(text: str, most: int, is_ascii: bool) -> None:
    """LANE-01: what is left is a beginning of the text, nearly as long as allowed, and its size was told truly."""
    body = json.dumps({"a": text}, ensure_ascii=is_ascii).encode()
    found, lifted = asyncio.run(parse_large(body))
    mark = str(found["a"])
    raw = len(body) - len(b'{"a": ""}')
    assert lifted.size_of(mark) == raw and lifted.bytes_of(mark, 10**9) <= len(text.encode())
    (left,) = json.loads(b"".join(lifted.written([lifted.cut(mark, most)])))
    assert text.startswith(left)
    assert min(most, raw) - 12 <= len(json.dumps(left, ensure_ascii=is_ascii).encode()) - 2 <= max(most, 0)
