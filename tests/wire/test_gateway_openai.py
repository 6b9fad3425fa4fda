"""The OpenAI door: what a client sends, what an engine gets, and what comes back."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.open_gateway import CATALOG, HELLO, open_gateway, raw
from support.peer import Asked, chat_events, sse, stream_of
from watchbill.catalog import ApiKey
from watchbill.engines.base import Endpoint
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.options import CallerOptions
from watchbill.limits import DURATION_MS_MAX

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}


def chunk(
    delta: dict[str, object], index: int = 0, finish: str | None = None, **more: object
) -> dict[str, object]:
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [
        {"index": index, "delta": delta, "finish_reason": finish, **more}]}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", "/llm/v1/chat/completions"),
        ("/v1/completions", "/llm/v1/completions"),
        ("/v1/embeddings", "/llm/v1/embeddings"),
        ("/v1/rerank", "/llm/v1/rerank"),
        ("/v1/messages", "/llm/v1/chat/completions"),
        ("/v1/messages/count_tokens", "/llm/v1/chat/completions/input_tokens"),
        ("/api/chat", "/llm/v1/chat/completions"),
        ("/api/generate", "/llm/v1/chat/completions"),
        ("/api/embed", "/llm/v1/embeddings"),
    ],
)
async def test_every_door_asks_an_engine_below_the_path_of_its_address(path: str, asked: str) -> None:
    """LANE-01: a `url` with a path is joined in one place, once."""
    said = {"model": "a", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    async with open_gateway() as opened:
        opened.engine.endpoint = replace(opened.peer.endpoint, path_prefix="/llm")
        await opened.ask(path, {**said, "max_tokens": 1})
        assert {each.path for each in opened.peer.asked} == {asked}


async def test_a_whole_answer_is_put_together_from_a_stream() -> None:
    """LANE-07: the engine is always asked to stream, for only then it notices a caller who leaves."""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert answer.status == 200
        choice = answer.json["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "hello there"}
        assert choice["finish_reason"] == "stop"
        assert answer.json["object"] == "chat.completion"
        assert answer.json["usage"]["completion_tokens"] == 2
        sent = opened.peer.asked[0].json
        assert sent["stream"] is True and sent["stream_options"] == {"include_usage": True}


async def test_the_answer_names_request_model_lane_and_times() -> None:
    """LANE-01"""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT, headers={"X-Watchbill-Lane": "batch"})
        assert answer.headers["x-watchbill-request-id"].startswith("wb-")
        assert answer.headers["x-request-id"] == answer.headers["x-watchbill-request-id"]
        assert answer.headers["x-watchbill-model"] == "a"
        assert answer.headers["x-watchbill-lane"] == "batch"
        assert answer.headers["x-watchbill-wait-ms"].isdecimal()
        assert answer.headers["x-watchbill-load-ms"].isdecimal()


async def test_a_stream_passes_unchanged() -> None:
    """LANE-09: byte for byte, with whatever newlines and fields the engine uses."""
    bodies = [
        sse(*chat_events("one two three")),
        b': note\r\nid: 1\r\ndata: {"x":1}\r\n\r\ndata: [DONE]\r\n\r\n',
        b'data: {"a": "\xc3\xa9"}\n\ndata: [DONE]\n\n',
        b'event: odd\ndata: {"a":1}\ndata: {"b":2}\n\ndata: [DONE]\n',
    ]
    for body in bodies:
        for step in (1, 7, len(body)):
            pieces = [body[at : at + step] for at in range(0, len(body), step)]
            async with open_gateway(stream_of(*pieces)) as opened:
                answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
                assert answer.body == body
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.headers["cache-control"] == "no-cache"
                assert "stream_options" not in opened.peer.asked[0].json


async def test_pieces_are_not_held_back() -> None:
    """LANE-09: each event arrives while the engine still works on the next."""
    gate = asyncio.Event()

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        first = sse(chunk({"content": "a"}))
        writer.write(b"%x\r\n%b\r\n" % (len(first), first))
        await gate.wait()
        last = sse("[DONE]")
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))

    async with open_gateway(talk) as opened:
        client = openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0)
        stream = await client.chat.completions.create(model="a", messages=[], stream=True)
        first = await anext(stream)
        assert first.choices[0].delta.content == "a"
        gate.set()
        assert [event async for event in stream] == []
        await client.close()


async def test_the_openai_client_is_served() -> None:
    """LANE-09: chat, streamed and not, with usage only where it was asked for."""
    async with open_gateway() as opened:
        client = openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0)
        whole = await client.chat.completions.create(model="a", messages=[{"role": "user", "content": "hi"}])
        assert whole.choices[0].message.content == "hello there"
        assert whole.usage is not None and whole.usage.total_tokens == 5
        stream = await client.chat.completions.create(model="a", messages=[], stream=True)
        text = "".join([event.choices[0].delta.content or "" async for event in stream if event.choices])
        assert text == "hello there"
        models = [model.id async for model in client.models.list()]
        assert models == ["a", "b/with:slash"]
        assert (await client.models.retrieve("b/with:slash")).id == "b/with:slash"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="none", messages=[])
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="a", messages=[], temperature=1e9)
        await client.close()


async def test_plain_completions_are_put_together() -> None:
    """LANE-01"""
    events = [
        {
            "id": "c",
            "object": "text_completion",
            "model": "m",
            "choices": [{"index": 0, "text": text, "finish_reason": end}],
        }
        for text, end in (("a ", None), ("b", None), ("", "length"))
    ]
    async with open_gateway(stream_of(sse(*events, "[DONE]"))) as opened:
        answer = await opened.ask("/v1/completions", {"model": "a", "prompt": "x"})
        assert answer.json["object"] == "text_completion"
        assert answer.json["choices"][0]["text"] == "a b"
        assert answer.json["choices"][0]["finish_reason"] == "length"


async def test_embeddings_pass_whole() -> None:
    """LANE-01: no stream is asked for where there is none."""
    body = json.dumps({"object": "list", "data": [{"embedding": [0.1, 2]}], "odd": None}).encode()
    async with open_gateway(stream_of(body, content_type="application/json")) as opened:
        answer = await opened.ask("/v1/embeddings", {"model": "alias/of-a", "input": "x"})
        assert (answer.status, answer.body) == (200, body)
        assert "stream" not in opened.peer.asked[0].json


async def test_our_own_fields_are_honoured_and_taken_out() -> None:
    """LANE-06: engines answer 400 to strangers."""
    fields = {
        **CHAT,
        "priority": 2,
        "ttl": 60,
        "keep_alive": "10m",
        "grammar": "x",
        "tools": [{"a": {"b": 1.5}}],
    }
    async with open_gateway() as opened:
        await opened.ask("/v1/chat/completions", fields)
        sent = opened.peer.asked[0].json
        assert not {"priority", "ttl", "keep_alive"} & set(sent)
        assert sent["grammar"] == "x" and sent["tools"] == [{"a": {"b": 1.5}}]
    submission = CallerOptions().read({"x-watchbill-deadline-ms": "1500"}, dict(fields), CATALOG, None)
    assert (submission.priority, submission.deadline_ms, submission.keep_alive_ms) == (2, 1500, 600_000)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [(0, 0), (60, 60_000), (0.5, 500), ("1h30m", 5_400_000), (-1, DURATION_MS_MAX), ("-1m", DURATION_MS_MAX)],
)
def test_keep_alive_is_seconds_or_a_duration(asked: object, meant: int) -> None:
    """api.md: number of seconds, duration string, negative = long, 0 = leave now."""
    assert CallerOptions().read({}, {"model": "a", "keep_alive": asked}, CATALOG, None).keep_alive_ms == meant
    assert CallerOptions().read({}, {"model": "a", "ttl": asked}, CATALOG, None).keep_alive_ms == meant


def test_unknown_wishes_degrade_and_are_counted() -> None:
    """api.md: an unknown value degrades to the default and is counted."""
    headers = {"x-watchbill-lane": "nowhere", "x-watchbill-priority": "11", "x-watchbill-deadline-ms": "soon"}
    caller_options = CallerOptions()
    submission = caller_options.read(headers, {"model": "a", "keep_alive": "later"}, CATALOG, None)
    assert (submission.lane, submission.priority, submission.deadline_ms, submission.keep_alive_ms) == (
        None,
        None,
        None,
        None,
    )
    assert caller_options.degraded == 4


def test_a_key_has_its_lane_and_an_admin_goes_first() -> None:
    """api.md: callers who cannot send headers get their lane by API key; LANE-06: operators go first."""
    user, admin = ApiKey("user", "k", lane="batch"), ApiKey("root", "k", admin=True)
    read = CallerOptions().read
    assert read({}, {"model": "a"}, CATALOG, user).lane == "batch"
    assert read({"x-watchbill-lane": "brief"}, {"model": "a"}, CATALOG, user).lane == "brief"
    assert not read({}, {"model": "a"}, CATALOG, user).operator
    assert read({}, {"model": "a"}, CATALOG, admin).operator


async def test_an_engines_refusal_keeps_its_words() -> None:
    """api.md: say whether Watchbill or the engine failed."""
    said = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 512}}
    body = json.dumps(said).encode()
    for stream in (False, True):
        async with open_gateway(stream_of(body, content_type="application/json", status=400)) as opened:
            answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": stream})
            assert answer.status == 400
            error = answer.json["error"]
            assert error["message"].startswith("too long. ")
            assert (error["type"], error["source"]) == ("exceed_context_size_error", "engine")
            assert error["code"] == "context_length_exceeded"
            assert opened.driver.requests() == []


@pytest.mark.parametrize(
    ("status", "answered", "code"),
    [(500, 502, "engine_failed"), (503, 502, "engine_failed"), (501, 501, "engine_failed")],
)
async def test_an_engines_failure_is_the_engines(status: int, answered: int, code: str) -> None:
    """api.md: 5xx of an engine."""
    async with open_gateway(stream_of(b"oh no", content_type="text/plain", status=status)) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (answered, code)
        assert answer.json["error"]["message"] == "oh no"


async def test_a_redirect_of_an_engine_is_not_followed() -> None:
    """R34"""
    async with open_gateway(stream_of(b"", status=302)) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.code) == (502, "engine_failed")
        assert len(opened.peer.asked) == 1


async def test_an_error_event_becomes_a_status_for_who_wants_a_whole_answer() -> None:
    """api.md: llama.cpp reports failures inside its stream."""
    event = {"error": {"code": 400, "message": "bad grammar", "type": "invalid_request_error"}}
    async with open_gateway(stream_of(sse(event))) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.json["error"]["message"]) == (400, "bad grammar")
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
        assert (answer.status, answer.body) == (200, sse(event))


async def test_the_engines_own_name_for_a_model_is_used() -> None:
    """Endpoint.upstream_model"""
    async with open_gateway() as opened:
        opened.engine.endpoint = Endpoint("127.0.0.1", opened.peer.port, upstream_model="own:7b")
        await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
        assert opened.peer.asked[0].json["model"] == "own:7b"


async def test_a_kept_connection_serves_many_requests() -> None:
    """Keep-alive towards clients, whatever the outcome of each request."""
    async with open_gateway(HELLO) as opened:
        reader, writer = await opened.connect()
        for model, status in (("a", 200), ("none", 404), ("a", 200)):
            body = json.dumps({**CHAT, "model": model}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await raw(reader)).status == status
        writer.close()


# ------------------------------------------------------------------ assembly


def assemble(*events: object, chat: bool = True) -> dict[str, object]:
    assembly = Assembly(chat=chat)
    assembly.feed(sse(*events))
    return assembly.result()


def test_tool_calls_are_joined_by_index() -> None:
    """pitfalls.md: tool_calls by index, whatever order they come in."""

    def call(index: int, arguments: str, **more: object) -> dict[str, object]:
        name = more.pop("name", None)
        function = {"arguments": arguments, **({"name": name} if name else {})}
        return {"index": index, **more, "function": function}

    answer = assemble(
        chunk({"role": "assistant", "tool_calls": [call(0, "", id="x", type="function", name="f")]}),
        chunk({"tool_calls": [call(1, "{", id="y", type="function", name="g")]}),
        chunk({"tool_calls": [call(0, '{"a"')]}),
        chunk({"tool_calls": [call(1, "}"), call(0, ":1}")]}),
        chunk({}, finish="tool_calls"),
        "[DONE]",
    )
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_choices_reasoning_logprobs_usage_and_unknown_fields_are_kept() -> None:
    """pitfalls.md: reasoning_content, logprobs, n > 1, finish_reason, usage."""
    answer = assemble(
        chunk({"reasoning_content": "hm"}, logprobs={"content": [{"token": "a"}]}),
        chunk({"content": "x"}, index=1),
        chunk({"reasoning_content": "m"}, logprobs={"content": [{"token": "b"}]}),
        chunk({"content": "y", "odd": [1]}),
        chunk({"odd": [2]}, finish="stop", stop_reason="s"),
        chunk({}, index=1, finish="length"),
        {"choices": [], "usage": {"total_tokens": 9}, "timings": {"t": 1}, "system_fingerprint": "f"},
        "[DONE]",
    )
    first, second = answer["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": "y",
        "reasoning_content": "hmm",
        "odd": [1, 2],
    }
    assert first["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}
    assert (first["finish_reason"], first["stop_reason"]) == ("stop", "s")
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "x", "length")
    assert (answer["usage"], answer["timings"], answer["system_fingerprint"]) == (
        {"total_tokens": 9},
        {"t": 1},
        "f",
    )


@given(st.text(max_size=30), st.lists(st.integers(0, 2000), max_size=8))
def test_the_text_is_the_same_however_the_stream_was_split(text: str, places: list[int]) -> None:
    """R33: identical text at every split."""
    stream = sse(*[chunk({"content": letter}) for letter in text], chunk({}, finish="stop"), "[DONE]")
    assembly = Assembly(chat=True)
    at = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    for start, end in pairwise(at):
        assembly.feed(stream[start:end])
    assert assembly.result()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    "error",
    [
        {"code": 400, "message": "the request exceeds it", "type": "exceed_context_size_error"},
        {"message": "long", "type": "invalid_request_error", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 512 tokens. However, you requested 600 tokens"},
        {"message": "The input (600 tokens) is longer than the model's context length (512 tokens).", "code": 400},
    ],
    ids=["llama.cpp", "OpenAI", "vLLM", "SGLang"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_that_is_too_long_has_the_code_that_clients_match(
    error: dict[str, object], stream: bool
) -> None:
    """api.md: whichever engine said so, in its own words and in those of OpenAI that frameworks look for."""
    refuse = stream_of(json.dumps({"error": error}).encode(), content_type="application/json", status=400)
    async with open_gateway(refuse) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": stream})
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        message = answer.json["error"]["message"]
        assert message.startswith(str(error["message"]).rstrip("."))
        assert "Input tokens exceed the configured limit" in message
        assert "this model's maximum context length is" in message
        told = answer.json["error"].get("n_prompt_tokens"), answer.json["error"].get("n_ctx")
        assert told == ((600, 512) if "600" in message else (None, None))


@pytest.mark.parametrize(
    "message", ["n must be below 5 tokens", "the schema exceeds the limit", "no context"]
)
async def test_another_refusal_is_not_taken_for_a_prompt_that_is_too_long(message: str) -> None:
    """api.md: clients would shorten their conversation for nothing."""
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()
    async with open_gateway(stream_of(body, content_type="application/json", status=400)) as opened:
        assert (await opened.ask("/v1/chat/completions", CHAT)).code == "invalid_request_error"
