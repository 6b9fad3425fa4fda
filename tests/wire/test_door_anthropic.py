"""The Anthropic door, asked by Anthropic's own client: passed to engines that speak it, translated for the rest."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.open_gateway import CATALOG, LANES, OpenGateway, open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of, tool_events
from watchbill.catalog import ApiKey, Lane, Server
from watchbill.errors import EngineFailed
from watchbill.gateway import relay
from watchbill.gateway.dialects.anthropic.response import PING, Events, Gathering, Opening, message
from watchbill.gateway.wire import event
from watchbill.units import Millis

HERE = replace(
    CATALOG,
    lanes={
        **LANES,
        "kind": Lane("kind", fallback="I am busy."),
        "brief": Lane("brief", timeout_ms=Millis(200), fallback="Later."),
        "tiny": Lane("tiny", queue_max=1),
    },
)
ASK = {"model": "a", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}


def without_messages(talk: Talk) -> Talk:
    """An engine that has OpenAI's addresses only."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.startswith("/v1/messages"):
            talk_here = stream_of(b'{"error":{"message":"no"}}', content_type="application/json", status=404)
            await talk_here(asked, writer)
        else:
            await talk(asked, writer)

    return answer


HELLO = without_messages(stream_of(sse(*chat_events("hello there"))))


def native_events(text: str = "hello there") -> bytes:
    """What an engine that speaks Anthropic's protocol sends, with a field that nobody has heard of."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "engine-name"}
    head |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 0}}
    told = [
        {"type": "message_start", "message": {**head, "odd": 1}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in text
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return b"".join(event(each, each["type"]) for each in told)


@asynccontextmanager
async def served(
    talk: Talk, *, key: str = "x", server: Server | None = None
) -> AsyncIterator[tuple[OpenGateway, anthropic.AsyncAnthropic]]:
    async with (
        open_gateway(talk, catalog=HERE, server=server) as opened,
        anthropic.AsyncAnthropic(base_url=opened.url, api_key=key, max_retries=0) as client,
    ):
        yield opened, client


@pytest.mark.parametrize("talk", [HELLO, stream_of(native_events())], ids=["translated", "passed"])
async def test_the_anthropic_client_is_served(talk: Talk) -> None:
    """api.md: messages, whole and streamed, with counts and the reason of the end."""
    async with served(talk) as (opened, client):
        whole = await client.messages.create(**ASK)
        assert [block.text for block in whole.content] == ["hello there"]
        assert (whole.type, whole.role, whole.stop_reason) == ("message", "assistant", "end_turn")
        assert whole.usage.input_tokens > 0 and whole.usage.output_tokens == 2
        async with client.messages.stream(**ASK) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == "hello there" and final.stop_reason == "end_turn"
        assert final.usage.output_tokens == 2
        kinds = [told.type async for told in await client.messages.create(**ASK, stream=True)]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        assert opened.outcomes() == {"ok": 3}


@pytest.mark.parametrize("talk", [HELLO, stream_of(native_events())], ids=["translated", "passed"])
async def test_every_answer_names_its_request_as_anthropics_client_expects(talk: Talk) -> None:
    """api.md: in a whole answer, in a stream and in an error."""
    async with served(talk) as (_opened, client):
        whole = await client.messages.with_raw_response.create(**ASK)
        assert whole.headers["request-id"] == whole.headers["x-watchbill-request-id"]
        async with client.messages.stream(**ASK) as stream:
            assert stream.response.headers["request-id"]
        with pytest.raises(anthropic.NotFoundError) as lost:
            await client.messages.create(**{**ASK, "model": "nobody"})
        assert lost.value.request_id


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_refused_in_words_that_clients_know(stream: bool) -> None:
    """api.md: clients shorten their conversation when they read them."""
    said = {
        "code": 400,
        "message": "the request exceeds the context size",
        "type": "exceed_context_size_error",
    }
    refuse = stream_of(json.dumps({"error": said}).encode(), content_type="application/json", status=400)
    async with served(refuse) as (_opened, client):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: the request exceeds"):
            await client.messages.create(**ASK, stream=stream)


async def test_the_anthropic_client_lists_models() -> None:
    """api.md: at the same address as OpenAI's, page by page, of which there is one."""
    async with served(HELLO) as (opened, client):
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == list(opened.driver.catalog.models)
        one = await client.models.retrieve(listed[0].id)
        assert (one.type, one.display_name, one.created_at.year >= 2024) == ("model", listed[0].id, True)


async def test_an_engine_that_lacks_the_protocol_is_asked_for_it_once() -> None:
    """api.md: pass through where the engine has it, else translate; one turn, and it is remembered."""
    async with served(HELLO) as (opened, client):
        await client.messages.create(**ASK)
        await client.messages.create(**ASK)
        assert [asked.path for asked in opened.peer.asked] == [
            "/v1/messages", "/v1/chat/completions", "/v1/chat/completions",
        ]  # fmt: skip
        assert opened.outcomes() == {"ok": 2}


async def test_an_engines_own_events_pass_unchanged() -> None:
    """LANE-09"""
    body = native_events()
    for step in (1, 13, len(body)):
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        async with open_gateway(stream_of(*pieces), catalog=HERE) as opened:
            answer = await opened.ask("/v1/messages", {**ASK, "stream": True})
            assert answer.body == body
            assert answer.headers["content-type"] == "text/event-stream"


async def test_a_message_whose_beginning_the_engine_left_out_has_one() -> None:
    """api.md: llama.cpp sends no message_start when an answer begins with half an emoji, and clients break on that."""
    body = native_events("🌱 hello").partition(b"\n\n")[2]
    async with served(stream_of(PING, body)) as (_, client):
        whole = await client.messages.create(**ASK)
        assert (whole.type, whole.role, whole.model) == ("message", "assistant", "a") and whole.id
        assert [block.text for block in whole.content] == ["🌱 hello"]
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (0, 2)
        async with client.messages.stream(**ASK) as stream:
            final = await stream.get_final_message()
        assert (final.role, final.model, final.content[0].text) == ("assistant", "a", "🌱 hello")
        assert final.usage.output_tokens == 2


TOOLS = [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_are_translated_both_ways(stream: bool) -> None:
    """api.md: tool use."""
    async with served(without_messages(stream_of(sse(*tool_events("I look."))))) as (opened, client):
        if stream:
            async with client.messages.stream(**ASK, tools=TOOLS, tool_choice={"type": "any"}) as told:
                said = await told.get_final_message()
        else:
            said = await client.messages.create(**ASK, tools=TOOLS, tool_choice={"type": "any"})
        kinds = [block.type for block in said.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert [(block.name, block.input) for block in said.content[2:]] == [
            ("look", {"at": "x"}),
            ("go", {}),
        ]
        assert said.stop_reason == "tool_use"
        sent = opened.peer.asked[-1].json
        assert sent["tools"][0]["function"]["parameters"] == {"type": "object"}
        assert sent["tool_choice"] == "required"
        results = [
            {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "seen"}]},
            {"type": "tool_result", "tool_use_id": "call_1", "content": "wall", "is_error": True},
            {"type": "text", "text": "go on"},
        ]
        history = [*ASK["messages"], {"role": "assistant", "content": said.model_dump()["content"]}]
        await client.messages.create(**{**ASK, "messages": [*history, {"role": "user", "content": results}]})
        _, did, seen, wall, last = opened.peer.asked[-1].json["messages"]
        assert [call["id"] for call in did["tool_calls"]] == ["call_0", "call_1"]
        assert did["reasoning_content"] == "hm" and did["content"] == "I look."
        assert (seen["role"], seen["tool_call_id"], seen["content"]) == ("tool", "call_0", "seen")
        assert wall["content"] == "Error: wall" and last == {"role": "user", "content": "go on"}


async def test_system_texts_images_and_limits_reach_the_engine_in_its_own_words() -> None:
    """api.md"""
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    async with served(HELLO) as (opened, client):
        await client.messages.create(
            model="a",
            max_tokens=7,
            system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image", "source": image}, {"type": "text", "text": "?"}],
                }
            ],
            stop_sequences=["END"],
            metadata={"user_id": "u"},
            thinking={"type": "disabled"},
            extra_body={"grammar": "g", "temperature": 0.5},
        )
        sent = opened.peer.asked[-1].json
        assert sent["messages"][0] == {"role": "system", "content": "be brief"}
        assert sent["messages"][1]["content"][0]["image_url"]["url"] == "data:image/png;base64,aGk="
        assert (sent["max_tokens"], sent["stop"], sent["temperature"], sent["grammar"]) == (
            7,
            ["END"],
            0.5,
            "g",
        )
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert not {"system", "metadata", "thinking", "stop_sequences"} & sent.keys()


async def test_tokens_are_counted_by_the_engine_or_estimated() -> None:
    """api.md: /count_tokens."""
    counted = stream_of(b'{"input_tokens": 12}', content_type="application/json")
    async with served(counted) as (opened, client):
        assert (await client.messages.count_tokens(model="a", messages=ASK["messages"])).input_tokens == 12
        assert opened.peer.asked[0].path == "/v1/messages/count_tokens"
    async with served(HELLO) as (opened, client):
        assert (await client.messages.count_tokens(model="a", messages=ASK["messages"])).input_tokens > 0


async def test_a_stream_that_waits_carries_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-09: while a model loads, the stream is kept alive."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 20)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 20)
    async with served(HELLO) as (opened, client):
        opened.engine.gate.clear()
        reader, writer = await opened.connect()
        body = json.dumps({**ASK, "stream": True}).encode()
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        async with asyncio.timeout(5):
            await reader.readuntil(b'event: ping\ndata: {"type":"ping"}\n\n')
        waiting = asyncio.ensure_future(client.messages.create(**ASK, stream=True))
        await opened.until_waiting(2)
        opened.engine.gate.set()
        kinds = [told.type async for told in await waiting]
        assert kinds[0] == "message_start"
        async with asyncio.timeout(5):
            await reader.readuntil(b"event: message_stop")


# ------------------------------------------------------------------ failures


async def test_errors_have_anthropics_shape_and_class() -> None:
    """api.md: the error shape, and the status that the client's classes are made from."""
    keys = (ApiKey("me", "k" * 16),)
    async with served(HELLO, key="wrong", server=Server(keys=keys)) as (_, client):
        with pytest.raises(anthropic.AuthenticationError) as denied:
            await client.messages.create(**ASK)
        assert denied.value.body["type"] == "error"
    async with served(HELLO, key="k" * 16, server=Server(keys=keys)) as (opened, client):
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(**{**ASK, "model": "nope"})
        assert missing.value.body["error"]["type"] == "not_found_error"
        opened.engine.gate.clear()
        lane = {"X-Watchbill-Lane": "tiny"}
        first = asyncio.ensure_future(client.messages.create(**ASK, extra_headers=lane))
        await opened.until_waiting()
        with pytest.raises(anthropic.RateLimitError) as full:
            await client.messages.create(**ASK, extra_headers=lane)
        assert full.value.body["error"]["type"] == "rate_limit_error"
        assert 1 <= int(full.value.response.headers["retry-after"]) <= 60
        with pytest.raises(anthropic.APIStatusError) as late:
            await client.messages.create(**ASK, extra_headers={"X-Watchbill-Deadline-Ms": "1"})
        assert (late.value.status_code, late.value.body["error"]["type"]) == (503, "overloaded_error")
        opened.engine.gate.set()
        await first


@pytest.mark.parametrize("in_good_order", [True, False])
@pytest.mark.parametrize("native", [True, False], ids=["passed", "translated"])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(native: bool, in_good_order: bool) -> None:
    """R30: never a silent end, never half an event."""
    whole = native_events() if native else sse(*chat_events("one two three"))
    broken = stream_of(whole[: len(whole) * 2 // 3], end=in_good_order)
    async with served(broken if native else without_messages(broken)) as (_, client):
        stream = await client.messages.create(**ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError) as failed:
            [told async for told in stream]
        assert failed.value.body["error"]["type"] == "api_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_lane_with_a_fallback_answers_with_a_message(stream: bool) -> None:
    """LANE-04"""

    async def silent(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with served(silent) as (opened, client):
        lane = {"X-Watchbill-Lane": "brief"}
        answer = await opened.ask("/v1/messages", {**ASK, "stream": stream}, headers=lane)
        assert (answer.status, answer.headers["x-watchbill-fallback"]) == (200, "timeout")
        assert b'"watchbill":{"fallback":true,"error":"timeout"}' in answer.body
        if stream:
            async with client.messages.stream(**ASK, extra_headers=lane) as told:
                said = await told.get_final_message()
        else:
            said = await client.messages.create(**ASK, extra_headers=lane)
        assert said.content[0].text == "Later." and said.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None}, {"max_tokens": 0}, {"max_tokens": True}, {"max_tokens": 10**12}, {"messages": "hi"},
        {"messages": [7]}, {"messages": [{"role": "x", "content": "a"}]}, {"stream": "yes"}, {"system": 7},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]}, {"temperature": "hot"}, {"tools": [{}]},
        {"tools": [{"type": "web_search_20250305", "name": "w"}]}, {"model": ""},
        {"tools": TOOLS, "tool_choice": {"type": "odd"}},
    ],
    ids=str,
)  # fmt: skip
async def test_nonsense_is_refused(fields: dict[str, object]) -> None:
    """R42, R47: 400 in Anthropic's shape, and nothing reaches the engine."""
    async with open_gateway(HELLO, catalog=HERE) as opened:
        answer = await opened.ask("/v1/messages", {**ASK, **fields})
        assert answer.status == 400 and answer.json["error"]["type"] == "invalid_request_error"
        assert opened.peer.asked == []


# ------------------------------------------------------------------ without I/O


def test_events_and_messages_are_the_same_at_every_byte() -> None:
    """LANE-09"""
    text, native = sse(*tool_events("I look.")), native_events()
    whole = Events("1", "m")
    expected = whole.feed(text) + whole.end()
    for cut in range(len(text) + 1):
        events = Events("1", "m")
        assert events.feed(text[:cut]) + events.feed(text[cut:]) + events.end() == expected
    for cut in range(0, len(native) + 1, 3):
        gathering = Gathering()
        gathering.feed(native[:cut])
        gathering.feed(native[cut:])
        assert gathering.result()["content"] == [{"type": "text", "text": "hello there"}]
    headless = PING + native.partition(b"\n\n")[2]
    for body, added in ((native, 0), (headless, 1), (PING + native, 0)):
        for cut in range(0, len(body) + 1, 3):
            opening = Opening("1", "m")
            told = opening.feed(body[:cut]) + opening.feed(body[cut:]) + opening.end()
            assert (
                told.endswith(body) and told[: len(told) - len(body)].count(b"event: message_start") == added
            )


def test_what_came_out_of_a_cache_is_counted_once() -> None:
    """api.md: in Anthropic's words input_tokens are those that were read anew; clients add the cached ones."""
    usage = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 28}}
    told = message({"choices": [], "usage": usage}, "1", "m")["usage"]
    assert isinstance(told, dict) and (told["input_tokens"], told["cache_read_input_tokens"]) == (2, 28)


def test_events_that_never_begin_are_not_held_for_ever() -> None:
    """R30: what is held back of an engine has a bound."""
    opening = Opening("1", "m")
    assert opening.feed(b": hello\n") == b""
    assert len(opening.feed(b": hello\n" * 2**18)) == 8 * (2**18 + 1)
    assert opening.feed(b"data: {}\n\n") == b"data: {}\n\n"


@given(st.binary(max_size=200))
def test_garbage_of_an_engine_is_the_engines_failure(noise: bytes) -> None:
    """R30: whatever an engine sends, it never becomes a failure of ours."""
    for make in (lambda: Events("1", "m"), Gathering, lambda: Opening("1", "m")):
        try:
            told = make().feed(b"data: " + noise + b"\n\n" + native_events("x")[:-40])
        except EngineFailed:
            continue
        assert isinstance(told, bytes | None)
