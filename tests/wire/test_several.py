"""One answer of several runs: more prompts than one, more choices than slots."""

import asyncio
import json
from dataclasses import replace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.open_gateway import CATALOG, open_gateway
from support.peer import Asked, sse, stream_of
from watchbill.catalog import ApiKey, EngineRules, Model, Server
from watchbill.errors import RequestError
from watchbill.gateway.dialects.several import runs_of
from watchbill.units import Bytes

TWO_SLOTS = replace(
    CATALOG,
    models={"a": Model("a", "peer", concurrency=2, memory={"ram": Bytes(2**20)})},
    engines={"peer": EngineRules("peer", "llamacpp")},
)


async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says its prompt, once for each choice; refuses more choices than slots, as llama.cpp does."""
    body, count = asked.json, int(str(asked.json.get("n") or 1))
    if count > 2 or body.get("prompt") == "break":
        told = json.dumps(
            {"error": {"code": 400, "message": "n_cmpl cannot be greater than the number of slots"}}
        )
        writer.write(b"HTTP/1.1 400 -\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(told) + told.encode())
        return
    chat = "messages" in body
    base = {"id": f"run-{body.get('prompt')}", "object": "o", "created": 1, "model": "m"}
    said = json.dumps(body.get("prompt", "chat"))
    events: list[dict[str, object]] = []
    for index in range(count):
        words = {"delta": {"content": said}} if chat else {"text": said}
        events.append({**base, "choices": [{"index": index, **words, "finish_reason": None}]})
        events.append(
            {
                **base,
                "choices": [
                    {"index": index, **({"delta": {}} if chat else {"text": ""}), "finish_reason": "stop"}
                ],
            }
        )
        if body.get("stream_options"):  # llama.cpp tells the tokens of each choice at its end
            used = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
            used |= {"prompt_tokens_details": {"cached_tokens": 1}}
            if chat:
                events.append({**base, "choices": [], "usage": used})
            else:
                events[-1] |= {"usage": used}
    content = sse(*events, "[DONE]")
    writer.write(b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)


async def test_several_prompts_are_one_answer() -> None:
    """LANE-01: as OpenAI numbers them, with the tokens of all."""
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        answer = (await opened.ask("/v1/completions", {"model": "a", "prompt": ["x", "y", "z"], "n": 2})).json
        assert [(each["index"], each["text"]) for each in answer["choices"]] == [
            (0, '"x"'), (1, '"x"'), (2, '"y"'), (3, '"y"'), (4, '"z"'), (5, '"z"'),
        ]  # fmt: skip
        used = {"prompt_tokens": 15, "completion_tokens": 18, "total_tokens": 33}
        assert answer["usage"] == used | {"prompt_tokens_details": {"cached_tokens": 3}}
        tokens = (await opened.ask("/v1/completions", {"model": "a", "prompt": [[1, 2], [3]]})).json
        assert [each["text"] for each in tokens["choices"]] == ["[1, 2]", "[3]"]
        one = (await opened.ask("/v1/completions", {"model": "a", "prompt": [1, 2]})).json
        assert [each["text"] for each in one["choices"]] == ["[1, 2]"]
        await opened.until_idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_more_choices_than_slots_take_several_runs(path: str) -> None:
    """LANE-01: and the prompt counts once."""
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        body = (
            {"model": "a", "prompt": "x", "n": 5}
            if path == "/v1/completions"
            else {"model": "a", "messages": [{"role": "user", "content": "x"}], "n": 5}
        )
        answer = (await opened.ask(path, body)).json
        assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3, 4]
        assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 15
        assert [asked.json["n"] for asked in opened.peer.asked] == [2, 2, 1]


async def test_choices_that_are_made_at_once_are_counted_together() -> None:
    """LANE-01: llama.cpp tells the tokens of each choice by themselves; whole, streamed, and with a call forced."""
    body: dict[str, object] = {"model": "a", "messages": [{"role": "user", "content": "x"}], "n": 2}
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        usage = (await opened.ask("/v1/chat/completions", body)).json["usage"]
        used = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        assert usage == used | {"prompt_tokens_details": {"cached_tokens": 1}}
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        told = (await opened.ask("/v1/chat/completions", asked)).body
        events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: {")]
        assert [event["usage"] for event in events if event.get("usage")] == [usage]
        assert events[-1]["choices"] == [] and told.endswith(b"data: [DONE]\n\n")
        assert [asked.json["n"] for asked in opened.peer.asked] == [2, 2]
        await opened.until_idle()


async def test_every_choice_counts_against_a_keys_tokens() -> None:
    """LANE-08: or `n` would be a way around `tokens_per_minute`."""
    key = ApiKey("bot", "k", tokens_per_minute=1_000_000)
    body: dict[str, object] = {"model": "a", "messages": [{"role": "user", "content": "x"}], "n": 2}
    async with open_gateway(echo, catalog=TWO_SLOTS, server=Server(keys=(key,))) as opened:
        await opened.ask("/v1/chat/completions", body, headers={"Authorization": "Bearer k"})
        assert opened.gateway.meters.tokens(key) == 5 + 2 * 3


async def test_their_stream_is_one_stream_to_a_real_client() -> None:
    """LANE-01: one id, one end, tokens once, for OpenAI's own client."""
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x") as client:
            stream = await client.completions.create(
                model="a", prompt=["x", "y"], n=3, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        texts: dict[int, str] = {}
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        assert texts == {0: '"x"', 1: '"x"', 2: '"x"', 3: '"y"', 4: '"y"', 5: '"y"'}
        assert len({chunk.id for chunk in chunks}) == 1
        assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [28]
        await opened.until_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_completion_have_its_shape(stream: bool) -> None:
    """LANE-01: llama.cpp tells them as those of a chat; clients of the older API look for lists."""
    words = [("One", -0.5), (" two", -1.5)]
    events: list[object] = [
        {"choices": [{"index": 0, "text": word, "finish_reason": None, "logprobs": {"content": [
            {"token": word, "logprob": value, "top_logprobs": [{"token": "x", "logprob": -2}]}]}}]}
        for word, value in words
    ]  # fmt: skip
    ended = {"choices": [{"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}]}
    async with (
        open_gateway(stream_of(sse(*events, ended, "[DONE]")), catalog=TWO_SLOTS) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x") as client,
    ):
        if stream:
            asked = await client.completions.create(model="a", prompt="x", logprobs=1, stream=True)
            found = [each.choices[0].logprobs async for each in asked if each.choices[0].logprobs]
        else:
            found = [(await client.completions.create(model="a", prompt="x", logprobs=1)).choices[0].logprobs]
        assert [token for each in found for token in each.tokens or []] == ["One", " two"]
        assert [value for each in found for value in each.token_logprobs or []] == [-0.5, -1.5]
        assert [at for each in found for at in each.text_offset or []] == [0, 3]
        assert [best for each in found for best in each.top_logprobs or []] == [{"x": -2}, {"x": -2}]


async def test_a_run_that_fails_ends_the_answer() -> None:
    """LANE-01: before the first byte as a refusal, after it as an event; no further run is made."""
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        assert (
            await opened.ask("/v1/completions", {"model": "a", "prompt": ["x", "break", "y"]})
        ).status == 400
        body = {"model": "a", "prompt": ["x", "break", "y"], "stream": True}
        answer = await opened.ask("/v1/completions", body)
        assert (
            answer.status == 200
            and b'"error"' in answer.body.splitlines()[-2]
            and b"[DONE]" not in answer.body
        )
        assert [asked.json["prompt"] for asked in opened.peer.asked[-2:]] == ["x", "break"]
        await opened.until_idle()


async def test_null_fields_do_not_reach_the_engine() -> None:
    """LANE-01: engines refuse what OpenAI takes for left out."""
    async with open_gateway(echo, catalog=TWO_SLOTS) as opened:
        body = {"model": "a", "prompt": "x", "stop": None, "logprobs": None, "n": None}
        assert (await opened.ask("/v1/completions", body)).status == 200
        assert not {"stop", "logprobs", "n"} & opened.peer.asked[-1].json.keys()


@given(st.integers(1, 32), st.integers(1, 8), st.integers(0, 5))
def test_every_choice_is_asked_for_once(count: int, places: int, prompts: int) -> None:
    """LANE-01"""
    prompt: object = [f"p{place}" for place in range(prompts)] if prompts else "x"
    try:
        runs = runs_of({"prompt": prompt, "n": count}, places)
    except RequestError:
        return
    indexes = [run.first_index + at for run in runs for at in range(int(str(run.body["n"])))]
    assert indexes == list(range(count * max(1, prompts)))
    assert all(int(str(run.body["n"])) <= places for run in runs) or len(runs) == 1
