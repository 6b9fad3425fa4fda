"""Wishes that an engine would pass over without a word: refused, or fulfilled here."""

import asyncio
import base64
import json
import math
import struct
from dataclasses import replace

import openai
import pytest

from support.open_gateway import CATALOG, HELLO, MIB, open_gateway
from support.peer import Asked, chat_events, sse, stream_of
from watchbill.catalog import EngineRules, Model

USER: dict[str, object] = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, object] = {"model": "a", "prompt": "x"}
LLAMACPP = replace(
    CATALOG, models={"a": Model("a", "peer", memory=MIB)}, engines={"peer": EngineRules("peer", "llamacpp")}
)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"stop": 5}, "stop must be"),
        ({"stop": ["a", None]}, "stop must be"),
        ({"response_format": "json"}, "response_format must be an object"),
        ({"response_format": {"type": "json_schema"}}, "has no schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "has no schema"),
        ({"tool_choice": "required"}, "has no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []}, "has no tools"),
        ({"logit_bias": [1]}, "logit_bias must be"),
        ({"logit_bias": {"x": "y"}}, "logit_bias must be"),
        ({"stream": True, "stream_options": "usage"}, "stream_options must be"),
    ],
)
async def test_a_wish_of_the_wrong_shape_is_refused(wish: dict[str, object], why: str) -> None:
    """LANE-01: llama.cpp answers as if it had not been asked for."""
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask("/v1/chat/completions", {**USER, **wish})
        assert answer.status == 400 and why in answer.json["error"]["message"]
        assert opened.peer.asked == []


@pytest.mark.parametrize(
    "wish",
    [
        {"stop": "x"},
        {"response_format": {"type": "json_object", "schema": {}}},
        {"response_format": {"type": "json_schema", "schema": {}}},
        {"tool_choice": "auto"},
        {"tool_choice": "none", "tools": []},
        {"logit_bias": [[15, -1], ["word", False]]},
        {"logit_bias": {"15": -100}},
    ],
)
async def test_a_wish_of_the_right_shape_passes_unchanged(wish: dict[str, object]) -> None:
    """LANE-01"""
    async with open_gateway(HELLO) as opened:
        assert (await opened.ask("/v1/chat/completions", {**USER, **wish})).status == 200
        assert wish.items() <= opened.peer.asked[0].json.items()


async def test_an_empty_stop_is_none() -> None:
    """LANE-01: llama.cpp would end the answer before its first word."""
    async with open_gateway(HELLO) as opened:
        for stop, kept in (("", None), ([], None), ([""], None), (["", "x"], ["x"])):
            assert (await opened.ask("/v1/chat/completions", {**USER, "stop": stop})).status == 200
            assert opened.peer.asked[-1].json.get("stop") == kept


async def test_what_llamacpp_passes_over_is_refused_for_its_models_alone() -> None:
    """LANE-01: and what says nothing is no wish."""
    wishes = ({"echo": True}, {"suffix": "end"}, {"best_of": 2}, {"audio": {"voice": "x"}})
    async with open_gateway(HELLO, catalog=LLAMACPP) as opened:
        for wish in (*wishes, {"modalities": ["text", "audio"]}):
            assert (await opened.ask("/v1/completions", {**TEXT, **wish})).status == 400
        idle = {"echo": False, "suffix": "", "best_of": 1, "modalities": ["text"], "audio": None}
        assert (await opened.ask("/v1/chat/completions", {**USER, **idle})).status == 200
    async with open_gateway(HELLO) as opened:
        for wish in wishes:
            assert (await opened.ask("/v1/chat/completions", {**USER, **wish})).status == 200


async def embed(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Vectors of four dimensions, whatever is asked for, as llama.cpp answers."""
    assert asked.json["encoding_format"] == "float"
    rows = [
        {"object": "embedding", "index": at, "embedding": [3, 4, at, 1e-3]}
        for at in range(len(asked.json["input"]))
    ]
    told = json.dumps({"object": "list", "data": rows, "usage": {"prompt_tokens": 2, "total_tokens": 2}})
    writer.write(b"HTTP/1.1 200 -\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(told) + told.encode())


async def test_fewer_dimensions_are_cut_here_for_a_real_client() -> None:
    """LANE-01: of length one again, as numbers and as OpenAI's client asks for them by itself."""
    async with (
        open_gateway(embed) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0) as client,
    ):
        for more in ({}, {"encoding_format": "float"}):
            answer = await client.embeddings.create(model="a", input=["x", "y"], dimensions=2, **more)
            assert [row.index for row in answer.data] == [0, 1] and answer.usage.prompt_tokens == 2
            for row in answer.data:
                assert math.dist(row.embedding, [0.6, 0.8]) < 1e-6
        whole = await client.embeddings.create(model="a", input=["x"], dimensions=4)
        assert math.dist(whole.data[0].embedding, [3, 4, 0, 1e-3]) < 1e-6
        with pytest.raises(openai.BadRequestError, match="makes 4 dimensions"):
            await client.embeddings.create(model="a", input=["x"], dimensions=5)
        with pytest.raises(openai.BadRequestError, match="encoding_format"):
            await client.embeddings.create(model="a", input=["x"], dimensions=2, encoding_format="int8")


async def numbers(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Vectors in numbers, in whichever form they are asked for."""
    rows = [{"embedding": [0.5, at, 2], "object": "embedding"} for at in range(len(asked.json["input"]))]
    told = json.dumps({"object": "list", "data": rows, "usage": {"prompt_tokens": 2, "total_tokens": 2}})
    writer.write(b"HTTP/1.1 200 -\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(told) + told.encode())


async def test_vectors_are_in_the_form_that_is_asked_for_whatever_the_engine_knows() -> None:
    """LANE-01: OpenAI's client for Node always asks for base64, and takes a list of numbers for an empty vector."""
    asks = {"model": "a", "input": ["x", "y"], "encoding_format": "base64"}
    async with open_gateway(numbers) as opened:
        answer = (await opened.ask("/v1/embeddings", asks)).json
        told = [struct.unpack("<3f", base64.b64decode(row["embedding"])) for row in answer["data"]]
        assert told == [(0.5, 0, 2), (0.5, 1, 2)]
        assert [row["index"] for row in answer["data"]] == [0, 1] and answer["usage"]["total_tokens"] == 2
        plain = await opened.ask("/v1/embeddings", {**asks, "encoding_format": "float"})
        assert plain.json["data"][1]["embedding"] == [0.5, 1, 2]
    coded = b'{"data": [{"object": "embedding", "embedding": "AAAA"}], "odd": 1}'
    async with open_gateway(stream_of(coded, content_type="application/json")) as opened:
        assert (await opened.ask("/v1/embeddings", asks)).body == coded


OLLAMA = replace(LLAMACPP, engines={"peer": EngineRules("peer", "ollama")})
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
GO = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
TOOLS: dict[str, object] = {**USER, "tools": [LOOK, GO]}


def one(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("choice", [one("gone"), {"type": "function"}, {"type": "auto"}], ids=str)
async def test_a_choice_of_a_tool_that_is_not_there_is_refused(choice: object) -> None:
    """LANE-01: llama.cpp answers as if no tool had been chosen."""
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask("/v1/chat/completions", {**TOOLS, "tool_choice": choice})
        assert answer.status == 400 and "is not among the tools" in answer.json["error"]["message"]
        assert opened.peer.asked == []


async def test_llamacpp_is_asked_for_a_call_of_one_tool_in_words_that_it_knows() -> None:
    """LANE-01: "Wrong type supplied for parameter 'tool_choice', using default value", says its log."""
    async with open_gateway(HELLO, catalog=LLAMACPP) as opened:
        asked = {**TOOLS, "tool_choice": one("go"), "parallel_tool_calls": True}
        assert (await opened.ask("/v1/chat/completions", asked)).status == 200
        sent = opened.peer.asked[-1].json
        assert (sent["tools"], sent["tool_choice"], sent["parallel_tool_calls"]) == ([GO], "required", False)
        assert (await opened.ask("/v1/chat/completions", {**TOOLS, "tool_choice": "auto"})).status == 200
        assert opened.peer.asked[-1].json["tools"] == [LOOK, GO]


async def test_every_door_asks_llamacpp_for_one_tool_alone() -> None:
    """LANE-01: Anthropic's and OpenAI's newer API say it in their own ways."""
    responses = {"tools": [{"type": "function", **LOOK["function"]}, {"type": "function", **GO["function"]}]}  # type: ignore[dict-item]
    messages = [{"name": name, "input_schema": {"type": "object"}} for name in ("look", "go")]
    named = {"type": "tool", "name": "go"}
    asked = {
        "/v1/responses": {"input": "x", **responses, "tool_choice": {"type": "function", "name": "go"}},
        "/v1/messages": {
            "max_tokens": 9, "messages": USER["messages"], "tools": messages, "tool_choice": named,
        },
    }  # fmt: skip
    async with open_gateway(HELLO, catalog=LLAMACPP) as opened:
        for path, body in asked.items():
            assert (await opened.ask(path, {"model": "a", **body})).status == 200
            sent = opened.peer.asked[-1].json
            assert [tool["function"]["name"] for tool in sent["tools"]] == ["go"]
            assert sent["tool_choice"] == "required"


async def test_what_ollama_passes_over_is_said_in_its_words_or_refused() -> None:
    """LANE-01: it has no field for the newer limit, for `n`, and for a choice among tools."""
    async with open_gateway(HELLO, catalog=OLLAMA) as opened:
        asked = {**TOOLS, "max_completion_tokens": 7, "max_tokens": 9, "tool_choice": "none"}
        assert (await opened.ask("/v1/chat/completions", asked)).status == 200
        sent = opened.peer.asked[-1].json
        assert sent["max_tokens"] == 7
        assert not {"max_completion_tokens", "tools", "tool_choice"} & sent.keys()
        two = {**TEXT, "prompt": ["x", "y"], "max_completion_tokens": 7, "stream": True}
        assert (await opened.ask("/v1/completions", two)).status == 200
        assert [each.json["max_tokens"] for each in opened.peer.asked[-2:]] == [7, 7]
        answer = await opened.ask("/v1/chat/completions", {**USER, "n": 3})
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]
        functions = {"functions": [LOOK["function"]]}
        for wish in (
            {"logit_bias": {"5": 1}},
            functions,
            {"audio": {"voice": "x"}},
            {"web_search_options": {}},
        ):
            assert (await opened.ask("/v1/chat/completions", {**USER, **wish})).status == 400
        idle: dict[str, object] = {"logit_bias": {}, "modalities": ["text"], "tool_choice": "auto"}
        assert (await opened.ask("/v1/chat/completions", {**TOOLS, **idle})).status == 200


async def test_another_engine_gets_the_limit_under_the_name_that_its_caller_gave_it() -> None:
    """LANE-01: some of OpenAI's models refuse the older one."""
    for catalog in (CATALOG, LLAMACPP):
        async with open_gateway(HELLO, catalog=catalog) as opened:
            assert (
                await opened.ask("/v1/chat/completions", {**USER, "max_completion_tokens": 7})
            ).status == 200
            sent = opened.peer.asked[-1].json
            assert sent["max_completion_tokens"] == 7 and "max_tokens" not in sent


@pytest.mark.parametrize("choice", ["required", one("go")], ids=str)
async def test_a_demanded_call_is_made_by_a_model_of_ollama(choice: object) -> None:
    """LANE-01: Ollama offers tools, and takes a demand for one without a word."""
    said = stream_of(sse(*chat_events('{"name": "go", "arguments": {}}')))
    async with open_gateway(said, catalog=OLLAMA) as opened:
        answer = await opened.ask("/v1/chat/completions", {**TOOLS, "tool_choice": choice})
        [call] = answer.json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "go"
        assert "response_format" in opened.peer.asked[-1].json
