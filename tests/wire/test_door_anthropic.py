"""The Anthropic door, asked by Anthropic's own client: made here out of chats, the same for every engine."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from support.open_gateway import CATALOG, LANES, OpenGateway, open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of, tool_events
from watchbill.catalog import ApiKey, Lane, Server
from watchbill.errors import EngineFailed
from watchbill.gateway import relay
from watchbill.gateway.dialects.anthropic.request import read
from watchbill.gateway.dialects.anthropic.response import Collecting, Making
from watchbill.gateway.dialects.anthropic.stops import StopSequences
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


HELLO = stream_of(sse(*chat_events("hello there")))


def made(asked: dict[str, object] | None = None) -> Making:
    return Making(read({**ASK, **(asked or {})}), "1")


@asynccontextmanager
async def served(
    talk: Talk, *, key: str = "x", server: Server | None = None
) -> AsyncIterator[tuple[OpenGateway, anthropic.AsyncAnthropic]]:
    async with (
        open_gateway(talk, catalog=HERE, server=server) as opened,
        anthropic.AsyncAnthropic(base_url=opened.url, api_key=key, max_retries=0) as client,
    ):
        yield opened, client


async def test_the_anthropic_client_is_served() -> None:
    """api.md: messages, whole and streamed, with counts and the reason of the end."""
    async with served(HELLO) as (opened, client):
        whole = await client.messages.create(**ASK)
        assert whole.id.startswith("msg_")
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


async def test_every_answer_names_its_request_as_anthropics_client_expects() -> None:
    """api.md: in a whole answer, in a stream and in an error."""
    async with served(HELLO) as (_opened, client):
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


async def test_what_else_anthropics_client_asks_for_is_refused_in_its_own_shape() -> None:
    """LANE-01: at addresses that OpenAI's clients have as well, and at those that nobody serves."""
    server = Server(keys=(ApiKey("user", "sesame"),))
    async with open_gateway(server=server) as opened:
        for key, ask, kind in (
            ("sesame", lambda client: client.models.retrieve("none"), "not_found_error"),
            ("sesame", lambda client: client.get("/v1/nowhere", cast_to=object), "not_found_error"),
            ("wrong", lambda client: client.models.list(), "authentication_error"),
        ):
            async with anthropic.AsyncAnthropic(base_url=opened.url, api_key=key, max_retries=0) as client:
                with pytest.raises(anthropic.APIStatusError) as refused:
                    await ask(client)
            body: Any = refused.value.body
            assert (body["type"], body["error"]["type"]) == ("error", kind)
            assert refused.value.request_id


async def test_no_engine_is_asked_in_its_own_anthropic_words() -> None:
    """api.md: the answer is made here for every engine; an engine's own address leaves out blocks without a word."""
    async with served(HELLO) as (opened, client):
        await client.messages.create(**ASK)
        assert [asked.path for asked in opened.peer.asked] == ["/v1/chat/completions"]


TOOLS = [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_are_translated_both_ways(stream: bool) -> None:
    """api.md: tool use."""
    async with served(stream_of(sse(*tool_events("I look.")))) as (opened, client):
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
        assert (sent["max_tokens"], sent["temperature"], sent["grammar"]) == (7, 0.5, "g")
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert not {"system", "metadata", "thinking", "stop_sequences"} & sent.keys()


async def test_tokens_are_counted_by_the_engine_or_estimated() -> None:
    """api.md: /count_tokens."""
    counted = stream_of(b'{"input_tokens": 12}', content_type="application/json")
    async with served(counted) as (opened, client):
        assert (await client.messages.count_tokens(model="a", messages=ASK["messages"])).input_tokens == 12
        assert opened.peer.asked[0].path == "/v1/chat/completions/input_tokens"
    lacking = stream_of(b'{"error":{"message":"no"}}', content_type="application/json", status=404)
    async with served(lacking) as (opened, client):
        counted = await client.messages.count_tokens(model="a", messages=ASK["messages"])
        assert counted.input_tokens > 0 and counted.model_dump()["watchbill"] == {"estimated": True}


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
async def test_a_stream_that_breaks_off_ends_with_an_error_event(in_good_order: bool) -> None:
    """R30: never a silent end, never half an event."""
    whole = sse(*chat_events("one two three"))
    async with served(stream_of(whole[: len(whole) // 2], end=in_good_order)) as (_, client):
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
        {"tools": TOOLS, "tool_choice": {"type": "odd"}}, {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        {"tool_choice": {"type": "any"}}, {"tools": [*TOOLS, *TOOLS]}, {"stop_sequences": [""]}, {"stop_sequences": 7},
        {"stop_sequences": ["x"] * 65}, {"n": 2}, {"stop": ["x"]}, {"output_config": {"format": {"type": "text"}}},
        {"output_config": {"odd": 1}}, {"thinking": {"type": "odd"}}, {"thinking": 7},
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
    text = sse(*tool_events("I lo\u00f6k.", " Then STO", "P and more"))
    for asked in ({}, {"stop_sequences": ["STOP"]}, {"thinking": {"type": "adaptive", "display": "omitted"}}):
        whole = made(asked)
        expected = gathered([*whole.feed(text, "m"), *whole.end("m")])
        for cut in range(len(text) + 1):
            making = made(asked)
            events = [*making.feed(text[:cut], "m"), *making.feed(text[cut:], "m"), *making.end("m")]
            assert gathered(events) == expected
            collecting = Collecting(lambda asked=asked: made(asked), lambda: "m").begin()
            collecting.feed(text[:cut])
            collecting.feed(text[cut:])
            assert collecting.result()["content"] == expected[0]


def gathered(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The blocks and the last delta, as a client puts them together."""
    blocks: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for told in events:
        if told["type"] == "content_block_start":
            assert told["index"] == len(blocks)
            blocks.append({**told["content_block"]})
        elif told["type"] == "content_block_delta":
            assert told["index"] == len(blocks) - 1
            delta = dict(told["delta"])
            kind = delta.pop("type")
            [(name, text)] = delta.items()
            name = "input" if kind == "input_json_delta" else name
            blocks[-1][name] = (blocks[-1][name] or "") + text
        elif told["type"] == "message_delta":
            last = told
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    return blocks, last


def test_what_came_out_of_a_cache_is_counted_once() -> None:
    """api.md: in Anthropic's words input_tokens are those that were read anew; clients add the cached ones."""
    usage = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 28}}
    making = made()
    making.take_whole({"choices": [], "usage": usage}, "m")
    told = making.end("m")[-2]["usage"]
    assert isinstance(told, dict) and (told["input_tokens"], told["cache_read_input_tokens"]) == (2, 28)


@given(st.binary(max_size=200))
@example(b"[DONE]")
def test_garbage_of_an_engine_is_the_engines_failure(noise: bytes) -> None:
    """R30: whatever an engine sends, it never becomes a failure of ours."""
    making = made()
    with contextlib.suppress(EngineFailed):
        events = list(making.feed(b"data: " + noise + b"\n\n" + sse(*chat_events("x")), "m"))
        assert events or making.is_done  # the noise may be the end of a stream


# ------------------------------------------------------------------ stop sequences

LETTERS = st.text("ab.", max_size=40)


@given(LETTERS, st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4), st.data())
def test_the_first_stop_sequence_ends_the_text_wherever_it_is_split(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    """api.md: `stop_sequence` names the one that was complete first; nothing of it is in the text."""
    ends = [(at, stop) for at in range(len(text) + 1) for stop in stops if text[:at].endswith(stop)]
    first = min(ends, key=lambda end: (end[0], -len(end[1])), default=None)
    looking, said, at = StopSequences(tuple(stops)), "", 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        said += looking.feed(text[at : at + size])
        at += size
    said += looking.end()
    assert looking.found == (None if first is None else first[1])
    assert said == (text if first is None else text[: first[0] - len(first[1])])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_sequence_ends_the_answer_and_the_engines_work(stream: bool) -> None:
    """api.md: `stop_reason` and `stop_sequence` are true with engines that do not tell, or do not stop."""

    async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(
            sse(*chat_events("one two E", usage=False)[:-2], *chat_events("ND three", usage=False)[:-2])
        )
        await asyncio.Event().wait()

    async with served(endless) as (opened, client):
        asked = {**ASK, "stop_sequences": ["stop", "END"]}
        if stream:
            async with client.messages.stream(**asked) as told:
                said = await told.get_final_message()
        else:
            said = await client.messages.create(**asked)
        assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "END")
        assert [block.text for block in said.content] == ["one two "]
        # Counted here: the engine told nothing.
        assert said.usage.output_tokens == 4 and said.usage.input_tokens > 0
        await opened.until_idle()
        assert opened.peer.left == 1 and opened.outcomes() == {"ok": 1}
        assert "stop" not in opened.peer.asked[0].json


async def test_an_answer_that_meets_no_stop_sequence_is_whole() -> None:
    """api.md: also where it ends with the beginning of one."""
    async with served(stream_of(sse(*chat_events("the EN")))) as (_, client):
        said = await client.messages.create(**ASK, stop_sequences=["END"])
        assert (said.stop_reason, said.stop_sequence, said.content[0].text) == ("end_turn", None, "the EN")


@pytest.mark.parametrize(
    ("finish", "made_tokens", "reason"),
    [("stop", 2, "end_turn"), ("length", 16, "max_tokens"), ("length", 2, "model_context_window_exceeded"),
     ("content_filter", 2, "refusal"), ("tool_calls", 2, "tool_use"), ("odd", 2, "end_turn")],
)  # fmt: skip
async def test_the_reason_of_the_end_is_the_true_one(finish: str, made_tokens: int, reason: str) -> None:
    """api.md: an answer that ends below its limit was ended by the context."""
    end = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": finish}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": made_tokens}}
    async with served(stream_of(sse(end, usage, "[DONE]"))) as (_, client):
        assert (await client.messages.create(**ASK)).stop_reason == reason


async def test_calls_are_the_reason_of_the_end_also_where_the_engine_says_stop() -> None:
    """api.md: clients run tools by the reason."""
    events = [
        *tool_events()[:-2],
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    ]
    async with served(stream_of(sse(*events))) as (_, client):
        assert (await client.messages.create(**ASK, tools=[*TOOLS, GO])).stop_reason == "tool_use"


async def test_half_of_a_call_is_never_run() -> None:
    """api.md: an answer that its limit cut within a call has no such call."""
    events = [
        *tool_events()[:3],
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
        "[DONE]",
    ]
    async with served(stream_of(sse(*events))) as (_, client):
        said = await client.messages.create(**ASK, tools=TOOLS)
        assert (said.stop_reason, [block.type for block in said.content]) == ("max_tokens", ["thinking"])


# ------------------------------------------------------------------ blocks


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_documents_and_search_results_reach_the_model_as_texts() -> None:
    """api.md: none of their parts is lost; large ones go the same way."""
    long = "Once upon a time. " * 20_000
    blocks = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "plain"}},
        {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": encoded("code\u00f6d")}},
        {"type": "document", "source": {"type": "base64", "media_type": "text/csv", "data": encoded(long)}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
        {"type": "search_result", "title": "Found", "source": "http://x", "content": [{"type": "text", "text": "hit"}]},
        {"type": "text", "text": "What is it?"},
    ]  # fmt: skip
    async with served(HELLO) as (opened, client):
        await client.messages.create(**{**ASK, "messages": [{"role": "user", "content": blocks}]})
        [said] = opened.peer.asked[-1].json["messages"]
        assert said["content"] == (
            f"Title: T\nContext: C\nplain\ncode\u00f6d\n{long}\ninner\nTitle: Found\nSource: http://x\nhit\nWhat is it?"
        )


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}, "pdf"),
        ({"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "/w=="}}, "UTF-8"),
        ({"type": "document", "source": {"type": "url", "url": "http://x/a.pdf"}}, "not fetched"),
        ({"type": "document", "source": {"type": "file", "file_id": "f"}}, "send its text"),
        ({"type": "document", "citations": {"enabled": True}, "source": {"type": "text", "data": "x"}}, "citations"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "not kept"),
        ({"type": "image", "source": {"type": "base64", "data": "aGk="}}, "media_type"),
        ({"type": "image", "source": {"type": "base64", "media_type": "text/html", "data": "aGk="}}, "media_type"),
        ({"type": "container_upload", "file_id": "f"}, "container_upload"),
        ({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference"}]}, "tool_reference"),
        ({"type": "tool_result", "content": "x"}, "tool_use_id"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_block_that_cannot_be_passed_on_is_refused_with_the_reason(
    block: dict[str, object], reason: str
) -> None:
    """api.md: never a block silently dropped."""
    async with open_gateway(HELLO, catalog=HERE) as opened:
        answer = await opened.ask("/v1/messages", {**ASK, "messages": [{"role": "user", "content": [block]}]})
        assert answer.status == 400 and reason in answer.json["error"]["message"]
        assert opened.peer.asked == []


async def test_system_messages_within_a_conversation_stay_where_they_are() -> None:
    """api.md: at its beginning they are one with the system text, which chat templates take once."""
    said = [
        {"role": "system", "content": "two"}, {"role": "user", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "three"}]}, {"role": "user", "content": "go"},
    ]  # fmt: skip
    async with open_gateway(HELLO, catalog=HERE) as opened:
        await opened.ask("/v1/messages", {**ASK, "system": "one", "messages": said})
        sent = opened.peer.asked[0].json["messages"]
        assert [(each["role"], each["content"]) for each in sent] == [
            ("system", "one\n\ntwo"), ("user", "hi"), ("system", "three"), ("user", "go"),
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
async def test_thoughts_that_are_not_shown_come_back_in_their_signature(stream: bool) -> None:
    """api.md: `display: omitted`; the next turn has them all the same."""
    async with served(stream_of(sse(*tool_events("so")))) as (opened, client):
        asked = {**ASK, "thinking": {"type": "adaptive", "display": "omitted"}}
        if stream:
            async with client.messages.stream(**asked) as told:
                said = await told.get_final_message()
        else:
            said = await client.messages.create(**asked)
        assert said.content[0].thinking == "" and said.content[0].signature
        history = [*ASK["messages"], {"role": "assistant", "content": said.model_dump()["content"][:2]}]
        await client.messages.create(**{**ASK, "messages": [*history, {"role": "user", "content": "go on"}]})
        assert opened.peer.asked[-1].json["messages"][1]["reasoning_content"] == "hm"


# ------------------------------------------------------------------ tools and formats

GO = {"name": "go", "input_schema": {"type": "object"}}


async def test_anthropics_own_tools_that_callers_run_are_offered_as_functions() -> None:
    """api.md: with the arguments that their callers know, under their names."""
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 900},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 800, "display_height_px": 600},
    ]
    async with served(HELLO) as (opened, client):
        await client.messages.create(**ASK, tools=tools, tool_choice={"type": "tool", "name": "bash"})
        sent = opened.peer.asked[-1].json
        offered = {tool["function"]["name"]: tool["function"] for tool in sent["tools"]}
        assert list(offered) == [tool["name"] for tool in tools]
        assert offered["bash"]["parameters"]["properties"].keys() == {"command", "restart"}
        editor = offered["str_replace_based_edit_tool"]
        assert "900" in editor["description"] and "insert_text" in editor["parameters"]["properties"]
        assert "undo_edit" in offered["str_replace_editor"]["parameters"]["properties"]["command"]["enum"]
        assert "800 x 600" in offered["computer"]["description"]
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "bash"}}


async def test_the_anthropic_client_runs_its_loop_of_tools() -> None:
    """api.md: the client's own runner calls the tools and goes on with their results."""
    calls: list[str] = []

    @anthropic.beta_async_tool
    async def look(at: str) -> str:
        """Looks."""
        calls.append(at)
        return f"seen {at}"

    @anthropic.beta_async_tool
    async def go() -> str:
        """Goes."""
        calls.append("go")
        return "gone"

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        is_second = asked.json["messages"][-1]["role"] == "tool"
        events = chat_events("all seen") if is_second else tool_events("I look.")
        await stream_of(sse(*events))(asked, writer)

    async with served(talk) as (opened, client):
        runner = client.beta.messages.tool_runner(**ASK, tools=[look, go])  # tries a thread first
        final = await runner.until_done()
        assert calls == ["x", "go"] and final.content[0].text == "all seen"
        results = [each for each in opened.peer.asked[-1].json["messages"] if each["role"] == "tool"]
        assert [each["content"] for each in results] == ["seen x", "gone"]


class City(BaseModel):
    name: str
    people: int


async def test_the_anthropic_client_parses_a_structured_answer() -> None:
    """api.md: output_config, and its older name output_format."""
    text = '{"name": "Rome", "people": 3}'
    async with served(stream_of(sse(*chat_events(text)))) as (opened, client):
        said = await client.messages.parse(**ASK, output_format=City)
        assert said.parsed_output == City(name="Rome", people=3)
        sent = opened.peer.asked[-1].json["response_format"]
        assert sent["type"] == "json_schema" and "people" in sent["json_schema"]["schema"]["properties"]
        schema = {"type": "json_schema", "schema": {"type": "object"}}
        await client.messages.create(**ASK, extra_body={"output_format": schema})
        assert opened.peer.asked[-1].json["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("thinking", "effort", "told"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, None, {"enable_thinking": True}),
        ({"type": "disabled"}, None, {"enable_thinking": False}),
        ({"type": "adaptive"}, "max", {"enable_thinking": True, "reasoning_effort": "high"}),
        (None, "low", {"enable_thinking": True, "reasoning_effort": "low"}),
        (None, None, None),
    ],
)
async def test_thinking_and_effort_reach_the_chat_template(
    thinking: dict[str, object] | None, effort: str | None, told: object
) -> None:
    """api.md"""
    asked = {**ASK, "thinking": thinking, "output_config": None if effort is None else {"effort": effort}}
    async with open_gateway(HELLO, catalog=HERE) as opened:
        assert (await opened.ask("/v1/messages", asked)).status == 200
        assert opened.peer.asked[0].json.get("chat_template_kwargs") == told
