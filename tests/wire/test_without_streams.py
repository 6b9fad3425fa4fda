"""Engines that answer whole whatever they are asked: every door streams their answers all the same."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from support.open_gateway import OpenGateway, open_gateway
from support.peer import stream_of
from watchbill.engines.base import Endpoint
from watchbill.engines.engine_calls import ask_text
from watchbill.engines.upstream import Upstream
from watchbill.errors import EngineFailed, TheirsError

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}


def whole(kind: str, **choice: object) -> bytes:
    choices = [{"index": 0, "finish_reason": "stop", **choice}]
    told = {"id": "x", "object": kind, "created": 1, "model": "m", "choices": choices, "usage": USAGE}
    return json.dumps(told).encode()


CHAT = whole("chat.completion", message={"role": "assistant", "content": "aye aye"})
ASKED: Any = [{"role": "user", "content": "Ready?"}]


def openai(opened: OpenGateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="none", max_retries=0)


async def by_openai(opened: OpenGateway) -> str:
    async with openai(opened) as client, client.chat.completions.stream(model="a", messages=ASKED) as stream:
        return (await stream.get_final_completion()).choices[0].message.content or ""


async def by_responses(opened: OpenGateway) -> str:
    async with openai(opened) as client, client.responses.stream(model="a", input="Ready?") as stream:
        return (await stream.get_final_response()).output_text


async def by_anthropic(opened: OpenGateway) -> str:
    async with (
        AsyncAnthropic(base_url=opened.url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="a", max_tokens=5, messages=ASKED) as stream,
    ):
        return await stream.get_final_text()


async def by_ollama(opened: OpenGateway) -> str:
    answer = await opened.ask("/api/chat", {"model": "a", "messages": ASKED, "stream": True})
    return "".join(json.loads(line)["message"]["content"] for line in answer.body.splitlines())


@pytest.mark.parametrize("ask", [by_openai, by_responses, by_anthropic, by_ollama])
async def test_every_client_that_streams_gets_the_answer(
    ask: Callable[[OpenGateway], Awaitable[str]],
) -> None:
    """LANE-01: OpenAI's own client found nothing in an answer that was passed on as it came."""
    async with open_gateway(stream_of(CHAT, content_type="application/json")) as opened:
        assert await ask(opened) == "aye aye"
        assert opened.peer.asked[-1].json["stream"] is True


async def test_tool_calls_are_streamed_too() -> None:
    """LANE-01: with the numbers that only deltas have."""
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = whole("chat.completion", message=message, finish_reason="tool_calls")
    async with (
        open_gateway(stream_of(told, content_type="application/json")) as opened,
        openai(opened) as client,
        client.chat.completions.stream(model="a", messages=ASKED) as stream,
    ):
        (choice,) = (await stream.get_final_completion()).choices
        (call,) = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls"
        assert (call.id, call.function.name, call.function.arguments) == ("c1", "look", '{"at": "sea"}')


async def test_completions_are_streamed_too() -> None:
    """LANE-01: with what was used in the last event."""
    text = whole("text_completion", text="aye aye")
    async with (
        open_gateway(stream_of(text, content_type="application/json")) as opened,
        openai(opened) as client,
    ):
        stream = await client.completions.create(model="a", prompt="Ready?", stream=True)
        events = [event async for event in stream]
        assert "".join(event.choices[0].text for event in events) == "aye aye"
        assert events[-1].usage is not None and events[-1].usage.total_tokens == 9


@pytest.mark.parametrize(
    "said", [b"{}", b'{"choices": []}', b'{"choices": [7]}', b'{"choices": {"message": {}}}', b"[]"]
)
async def test_what_is_no_answer_is_an_error(said: bytes) -> None:
    """LANE-01: and not a stream of nothing."""
    async with open_gateway(stream_of(said, content_type="application/json")) as opened:
        answer = await opened.ask("/v1/chat/completions", {"model": "a", "messages": ASKED, "stream": True})
        assert (answer.status, answer.code) == (502, "engine_failed")


async def test_the_daemon_itself_takes_a_whole_answer() -> None:
    """RES-20: the watchdog's question would have reset every engine that has no streams."""
    async with open_gateway(stream_of(CHAT, content_type="application/json")) as opened:
        client, endpoint = Upstream(), Endpoint("127.0.0.1", opened.peer.port)
        try:
            assert await ask_text(client, endpoint, "a", "Ready?", tokens_max=5, chars_max=7) == "aye aye"
            with pytest.raises(TheirsError, match="more than 6 characters"):
                await ask_text(client, endpoint, "a", "Ready?", tokens_max=5, chars_max=6)
        finally:
            await client.close()
    async with open_gateway(stream_of(b'{"error": "no"}', content_type="application/json")) as opened:
        client, endpoint = Upstream(), Endpoint("127.0.0.1", opened.peer.port)
        try:
            with pytest.raises(EngineFailed, match="broke off: no"):
                await ask_text(client, endpoint, "a", "Ready?", tokens_max=5, chars_max=7)
        finally:
            await client.close()
