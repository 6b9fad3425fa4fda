"""The tables of docs/messages.md: complete by Anthropic's own client, and true of a running gateway."""

import re
import typing
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent, tool_result_block_param
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaRawContentBlockDelta,
    BetaStopReason,
    BetaToolUnionParam,
    beta_image_block_param,
    beta_request_document_block_param,
    message_create_params,
)

from support.documented import assert_documented, holds, literals, rows_of, working
from support.open_gateway import open_gateway
from support.peer import chat_events, sse, stream_of, tool_events
from watchbill.gateway.dialects.anthropic.treatment import (
    BLOCKS,
    DELTAS,
    EVENTS,
    FIELDS,
    SOURCES,
    STOP_REASONS,
    TOOLS,
)

PAGE = "messages.md"
TABLES: dict[str, typing.Mapping[str, str]] = {
    "Fields of a request": FIELDS,
    "Blocks of a message or a result": BLOCKS,
    "Sources of images and documents": SOURCES,
    "Tools": TOOLS,
    "Events of a stream": EVENTS,
    "Deltas of a block": DELTAS,
    "Reasons of the end": STOP_REASONS,
}
#: Sampling, which the client has no types for any more and its users send all the same; a name of an earlier beta; and
#: what the types have elsewhere.
BESIDE = {"temperature", "top_k", "top_p", "output_format", "stream"}


def types_of(union: Any) -> set[str]:
    """The values of `type` of a union of typed dicts, or of models."""
    if typing.get_origin(union) is typing.Annotated:
        union = typing.get_args(union)[0]
    found: set[str] = set()
    for each in typing.get_args(union):
        if typing.get_args(each):
            found |= types_of(each)
        elif hasattr(each, "model_fields"):
            found |= literals(each.model_fields["type"].annotation)
        else:
            found |= literals(typing.get_type_hints(each)["type"])
    return found


@pytest.mark.parametrize("title", TABLES)
def test_the_page_says_what_the_code_does_with_each(title: str) -> None:
    """LANE-01: nothing is silently ignored; the table is in the docs. What does not work has its reason."""
    assert_documented(PAGE, title, TABLES[title])


def test_the_tables_have_everything_that_the_client_knows() -> None:
    """Compared with the types of Anthropic's own client, those of its betas included."""
    fields = typing.get_type_hints(message_create_params.MessageCreateParamsBase)
    assert set(FIELDS) == {*fields, *BESIDE}
    assert set(BLOCKS) == types_of(BetaContentBlockParam) | types_of(tool_result_block_param.Content)
    assert set(TOOLS) == types_of(BetaToolUnionParam)
    assert set(SOURCES) == {
        *(f"image.{kind}" for kind in types_of(beta_image_block_param.Source)),
        *(f"document.{kind}" for kind in types_of(beta_request_document_block_param.Source)),
    }
    assert set(EVENTS) == types_of(RawMessageStreamEvent) | {"ping", "error"}
    assert set(DELTAS) == types_of(BetaRawContentBlockDelta)
    assert set(STOP_REASONS) == literals(BetaStopReason)


#: A value of each field, and what the engine is asked with where it works; None: see what is told, below.
SAMPLES: dict[str, tuple[object, str | None]] = {
    "max_tokens": (7, "max_tokens"), "messages": ([{"role": "user", "content": "x"}], "messages"),
    "model": ("a", None), "output_config": ({"effort": "low"}, "reasoning_effort"), "stream": (True, None),
    "output_format": ({"type": "json_schema", "schema": {"type": "object"}}, "response_format"),
    "stop_sequences": (["there"], None), "system": ("be brief", "messages"), "temperature": (0.5, "temperature"),
    "thinking": ({"type": "adaptive"}, "chat_template_kwargs"), "top_k": (3, "top_k"), "top_p": (0.5, "top_p"),
    "tool_choice": ({"type": "none"}, None), "tools": ([{"name": "t", "input_schema": {}}], "tools"),
    "betas": (["x"], None), "cache_control": ({"type": "ephemeral"}, None),
    "context_management": ({"edits": []}, None), "diagnostics": ({"previous_message_id": "msg_1"}, None),
    "inference_geo": ("us", None), "metadata": ({"user_id": "u"}, None), "service_tier": ("auto", None),
    "speed": ("fast", None), "user_profile_id": ("u", None), "workspace_id": ("w", None),
    "compaction": ({"type": "x"}, None), "container": ("c", None), "fallback_credit_token": ("t", None),
    "fallbacks": ([{"model": "b"}], None), "mcp_servers": ([{"url": "http://x"}], None),
    "thread": ({"type": "create"}, None),
}  # fmt: skip
TEXT: dict[str, object] = {"type": "text", "text": "x"}
#: The parts that a block or a tool must have.
PARTS: dict[str, dict[str, object]] = {
    "text": {"text": "x"}, "image": {"source": {"type": "url", "url": "http://x/a.png"}},
    "document": {"source": {"type": "text", "data": "x"}},
    "search_result": {"title": "t", "source": "s", "content": [TEXT]}, "thinking": {"thinking": "x"},
    "redacted_thinking": {"data": "x"}, "tool_use": {"id": "t", "name": "n", "input": {}},
    "tool_result": {"tool_use_id": "t", "content": "x"}, "image.base64": {"media_type": "image/png", "data": "aGk="},
    "image.url": {"url": "http://x/a.png"}, "document.text": {"data": "x"}, "document.content": {"content": [TEXT]},
    "document.base64": {"media_type": "text/plain", "data": "aGk="},
}  # fmt: skip
USER = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "a", "max_tokens": 9, "messages": [USER]}
OF_ASSISTANT = ("thinking", "redacted_thinking", "tool_use")


async def test_each_row_of_what_may_be_asked_is_true() -> None:
    """Each field, block, source and tool, in a request of its own."""
    async with open_gateway() as opened:

        async def check(what: str, name: str, body: dict[str, Any], sent: str | None, plain: Any) -> None:
            before = len(opened.peer.asked)
            answer = await opened.ask("/v1/messages", {**BODY, **body})
            if what == "refused":
                assert (answer.status, len(opened.peer.asked)) == (400, before), name
                assert name in answer.body.decode()
                return
            assert answer.status == 200, (name, answer.body)
            asked = opened.peer.asked[-1].json
            if what == "ignored":
                assert asked == plain, name
            elif sent is not None:
                assert asked.get(sent) != plain.get(sent), name

        await opened.ask("/v1/messages", BODY)
        plain = opened.peer.asked[-1].json
        for name, (what, _) in rows_of(PAGE, "Fields of a request").items():
            value, sent = SAMPLES[name]
            await check(what, name, {name: value}, sent, plain)
        for name, (what, _) in rows_of(PAGE, "Tools").items():
            await check(what, name, {"tools": [{"type": name, "name": "x"}]}, "tools", plain)

        def saying(block: dict[str, object]) -> dict[str, Any]:
            if block["type"] in OF_ASSISTANT:
                said = [{"role": "assistant", "content": [TEXT, block]}, {"role": "user", "content": "go"}]
                return {"messages": [*BODY["messages"], *said]}
            return {"messages": [{"role": "user", "content": [TEXT, block]}]}

        for name, (what, _) in rows_of(PAGE, "Blocks of a message or a result").items():
            block = {"type": name, **PARTS.get(name, {})}
            await opened.ask("/v1/messages", {**BODY, **saying({**TEXT, "text": ""})})
            if name in OF_ASSISTANT:
                said = [{"role": "assistant", "content": [TEXT]}, {"role": "user", "content": "go"}]
                await opened.ask("/v1/messages", {**BODY, "messages": [*BODY["messages"], *said]})
            await check(what, name, saying(block), "messages", opened.peer.asked[-1].json)
        for name, (what, _) in rows_of(PAGE, "Sources of images and documents").items():
            kind, _, source = name.partition(".")
            block = {"type": kind, "source": {"type": source, **PARTS.get(name, {})}}
            await check(what, name, saying(block), "messages", plain)


#: What the answer tells of the fields of which the engine hears nothing, or only together with others.
TOOL = {"name": "t", "input_schema": {"type": "object"}}
TOLD: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "model": ({"model": "alias/of-a"}, {}, {"model": "a"}),
    "stop_sequences": (
        {"stop_sequences": ["there"]}, {},
        {"stop_reason": "stop_sequence", "stop_sequence": "there", "content": [{"type": "text", "text": "hello "}]},
    ),
    "tool_choice": ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "required"}, {}),
    "max_tokens": ({"max_tokens": 7}, {"max_tokens": 7}, {}),
    "system": ({"system": "be brief"}, {"messages": [{"role": "system", "content": "be brief"}, USER]}, {}),
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}, {}),
    "top_k": ({"top_k": 3}, {"top_k": 3}, {}), "top_p": ({"top_p": 0.5}, {"top_p": 0.5}, {}),
    "tools": ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": {"name": "t"}}]}, {}),
    "messages": (
        {"messages": [USER, {"role": "assistant", "content": "so"}, USER]},
        {"messages": [USER, {"role": "assistant", "content": "so"}, USER]}, {},
    ),
    "thinking": (
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096},
        {"chat_template_kwargs": {"enable_thinking": True}}, {},
    ),
    "output_config": ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}, {}),
    "output_format": (
        {"output_format": {"type": "json_schema", "schema": {"type": "object"}}},
        {"response_format": {"type": "json_schema"}}, {},
    ),
}  # fmt: skip


async def test_every_field_that_works_has_its_effect() -> None:
    """LANE-01: what is asked reaches the engine in its own words, and the message tells it, row by row."""
    assert working(PAGE, "Fields of a request") == {*TOLD, "stream"}
    async with open_gateway() as opened:
        for name, (body, engine, told) in TOLD.items():
            answer = await opened.ask("/v1/messages", {**BODY, **body})
            assert answer.status == 200 and holds(told, answer.json), (name, answer.body)
            assert holds(engine, opened.peer.asked[-1].json), (name, opened.peer.asked[-1].json)
        answer = await opened.ask("/v1/messages", {**BODY, "stream": True})
        assert answer.headers["content-type"] == "text/event-stream" and b"event: message_stop" in answer.body


async def test_every_event_and_delta_that_works_is_sent_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits, thinks, talks and calls, and one that breaks."""
    monkeypatch.setattr("watchbill.gateway.relay.HEADERS_HELD_MS", 20)
    events: set[str] = set()
    deltas: set[str] = set()
    for said in (tool_events("so"), tool_events("so")[:2]):
        async with open_gateway(stream_of(sse(*said))) as opened:
            opened.engine.gate.clear()
            reader, writer = await opened.connect()
            body = b'{"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": true}'
            head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            text = await reader.readuntil(b"event: ping\n")
            opened.engine.gate.set()
            text += await reader.readuntil(b"0\r\n\r\n")
            events |= set(re.findall(r"^event: (.+)$", text.decode(), re.MULTILINE))
            deltas |= set(re.findall(r'"delta":\{"type":"(\w+)"', text.decode()))
    assert events == {
        name for name, (what, _) in rows_of(PAGE, "Events of a stream").items() if what == "works"
    }
    assert deltas == {
        name for name, (what, _) in rows_of(PAGE, "Deltas of a block").items() if what == "works"
    }


async def test_every_reason_that_works_is_told() -> None:
    """One answer each; the rest belongs to what does not exist here."""

    def ending(finish: str, tokens: int) -> bytes:
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": finish}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        return sse({"choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]")

    reasons: set[str] = set()
    for said in (
        ending("stop", 1), ending("length", 9), ending("length", 3), ending("content_filter", 1),
        sse(*tool_events("so")), sse(*chat_events("and STOP here")),
    ):  # fmt: skip
        async with open_gateway(stream_of(said)) as opened:
            answer = await opened.ask("/v1/messages", {**BODY, "stop_sequences": ["STOP"]})
            reasons.add(str(answer.json["stop_reason"]))
    assert reasons == {
        name for name, (what, _) in rows_of(PAGE, "Reasons of the end").items() if what == "works"
    }
