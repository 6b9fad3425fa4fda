"""The tables of docs/responses.md: complete by OpenAI's own client, and true of a running gateway."""

import asyncio
import json
import re
import typing
from dataclasses import replace
from typing import Any

import pytest
from openai.types.responses import (
    ResponseIncludable,
    ResponseInputItemParam,
    ResponseStreamEvent,
    ToolParam,
    response_create_params,
)

from support.documented import assert_documented, holds, literals, rows_of, working
from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from support.peer import sse, stream_of, tool_events
from watchbill.gateway.dialects.responses.treatment import EVENTS, FIELDS, INCLUDES, ITEMS, PARTS, TOOLS
from watchbill.gateway.dialects.thoughts import seal

PAGE = "responses.md"
TABLES: dict[str, typing.Mapping[str, str]] = {
    "Fields of a request": FIELDS,
    "Items of an input": ITEMS,
    "Parts of a message or a result": PARTS,
    "Tools": TOOLS,
    "Values of include": INCLUDES,
    "Events of a stream": EVENTS,
}


def types_of(union: Any) -> set[str]:
    """The values of `type` of a union of typed dicts."""
    return {text for each in typing.get_args(union) for text in literals(typing.get_type_hints(each)["type"])}


@pytest.mark.parametrize("title", TABLES)
def test_the_page_says_what_the_code_does_with_each(title: str) -> None:
    """LANE-01: nothing is silently ignored; the table is in the docs. What does not work has its reason."""
    assert_documented(PAGE, title, TABLES[title])


def test_the_tables_have_everything_that_the_client_knows() -> None:
    """Compared with the types of OpenAI's own client."""
    fields = typing.get_type_hints(response_create_params.ResponseCreateParamsBase)
    assert set(FIELDS) == {*fields, "stream"}
    assert set(ITEMS) == types_of(ResponseInputItemParam)
    assert set(TOOLS) == types_of(ToolParam)
    assert set(INCLUDES) == literals(ResponseIncludable)
    [events, _] = typing.get_args(ResponseStreamEvent)
    kinds = {
        text for each in typing.get_args(events) for text in literals(each.model_fields["type"].annotation)
    }
    assert set(EVENTS) == kinds


#: A value of each field that the engine is not asked with.
SAMPLES: dict[str, object] = {
    "access_programs": {"cyber": "standard"}, "image": {"context_compression": "auto"}, "max_tool_calls": 3,
    "prompt_cache_key": "k", "prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h",
    "safety_identifier": "s", "service_tier": "flex", "stream_options": {"include_obfuscation": False}, "user": "u",
    "context_management": [{"type": "compaction"}], "conversation": "conv_1", "moderation": {"model": "m"},
    "prompt": {"id": "pmpt_1"},
}  # fmt: skip
BODY: dict[str, Any] = {"model": "a", "input": "hi"}


async def test_what_is_ignored_never_reaches_an_engine_and_what_is_refused_says_why() -> None:
    """Each of those fields, items, parts, tools and values, in a request of its own."""
    async with open_gateway() as opened:
        await opened.ask("/v1/responses", BODY)
        plain = opened.peer.asked[0].json

        async def check(what: str, name: str, body: dict[str, Any]) -> None:
            before = len(opened.peer.asked)
            answer = await opened.ask("/v1/responses", {**BODY, **body})
            if what == "refused":
                assert (answer.status, len(opened.peer.asked)) == (400, before), name
                assert name in answer.body.decode()
            elif what == "ignored":
                assert answer.status == 200, answer.body
                assert opened.peer.asked[-1].json == plain, name

        for name, (what, _) in rows_of(PAGE, "Fields of a request").items():
            if what != "works":
                await check(what, name, {name: SAMPLES[name]})
        for name, (what, _) in rows_of(PAGE, "Items of an input").items():
            await check(what, name, {"input": [{"type": name, "id": "x", "call_id": "c"}]})
        for name, (what, _) in rows_of(PAGE, "Parts of a message or a result").items():
            await check(what, name, {"input": [{"role": "user", "content": [{"type": name}]}]})
        for name, (what, _) in rows_of(PAGE, "Tools").items():
            await check(what, name, {"tools": [{"type": name, "name": "x"}]})
        for name, (what, _) in rows_of(PAGE, "Values of include").items():
            await check(what, name, {"include": [name]})


async def test_every_event_that_works_is_sent_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits, thinks, talks and calls; one that is cut, one that breaks, and one with a summary."""
    monkeypatch.setattr("watchbill.gateway.relay.HEADERS_HELD_MS", 20)
    length = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    whole = tool_events("so")
    seen: set[str] = set()
    asked = {"model": "a", "input": "hi", "stream": True, "tools": [{"type": "custom", "name": "go"}]}
    summarized = {"reasoning": {"summary": "auto"}}
    for events, more in (
        (whole, {}),
        ([*whole[:-2], length, "[DONE]"], {}),
        (whole[:2], {}),
        (whole, summarized),
    ):
        async with open_gateway(stream_of(sse(*events))) as opened:
            opened.engine.gate.clear()
            reader, writer = await opened.connect()
            body = json.dumps({**asked, **more}).encode()
            head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await reader.readuntil(b"response.queued")
            opened.engine.gate.set()
            rest = await reader.readuntil(b"0\r\n\r\n")
            seen |= set(re.findall(r"^event: (.+)$", rest.decode(), re.MULTILINE))
    seen |= {"response.created", "response.queued"}  # before what was read above
    assert seen == {
        name for name, (what, _) in rows_of(PAGE, "Events of a stream").items() if what == "works"
    }


# ------------------------------------------------------------------ what works

LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}},
}
TOOLED = {"tools": [LOOK]}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
SOUND = {"data": "UklGRg==", "format": "wav"}
USER = {"role": "user", "content": "hi"}
CALLED = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
SAID: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "so"}],
}


def item(kind: str, **fields: object) -> dict[str, Any]:
    return {"type": kind, "id": "x", **fields}


def part(kind: str, role: str = "user", **fields: object) -> dict[str, Any]:
    return {"input": [{"role": role, "content": [{"type": kind, **fields}]}]}


#: Of each row: what is asked, what the engine is then asked with, and what the answer has. Rows whose proof takes more
#: than one request are below, by their name.
ROWS: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "Fields of a request": {
        "include": (
            {"include": ["reasoning.encrypted_content"]}, {},
            {"output": [{"encrypted_content": seal("hm")}, {}, {}, {}]},
        ),
        "input": ({"input": "ahoy"}, {"messages": [{"role": "user", "content": "ahoy"}]}, {}),
        "instructions": (
            {"instructions": "be brief"}, {"messages": [{"role": "system", "content": "be brief"}, USER]},
            {"instructions": "be brief"},
        ),
        "max_output_tokens": ({"max_output_tokens": 7}, {"max_tokens": 7}, {"max_output_tokens": 7}),
        "metadata": ({"metadata": {"a": "b"}}, {}, {"metadata": {"a": "b"}}),
        "model": ({"model": "alias/of-a"}, {}, {"model": "a"}),
        "parallel_tool_calls": (
            {"parallel_tool_calls": False, **TOOLED}, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}
        ),
        "reasoning": (
            {"reasoning": {"effort": "high"}},
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning": {"effort": "high"}},
        ),
        "temperature": ({"temperature": 0.5}, {"temperature": 0.5}, {"temperature": 0.5}),
        "text": (
            {"text": {"format": SCHEMA}}, {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            {"text": {"format": {"name": "n"}}},
        ),
        "tool_choice": (
            {"tool_choice": "required", **TOOLED}, {"tool_choice": "required"}, {"tool_choice": "required"}
        ),
        "tools": (TOOLED, {"tools": [{"function": {"name": "look"}}]}, {"tools": [LOOK]}),
        "top_logprobs": ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 3}),
        "top_p": ({"top_p": 0.5}, {"top_p": 0.5}, {"top_p": 0.5}),
    },
    "Items of an input": {
        "message": ({"input": [{"type": "message", **USER}]}, {"messages": [USER]}, {}),
        "function_call": (
            {"input": [item("function_call", call_id="c", name="look", arguments="{}")]},
            {"messages": [{"role": "assistant", "tool_calls": CALLED}]}, {},
        ),
        "function_call_output": (
            {"input": [item("function_call_output", call_id="c", output="cow")]},
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": "cow"}]}, {},
        ),
        "reasoning": (
            {"input": [item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "hm"}]), SAID]},
            {"messages": [{"role": "assistant", "content": "so", "reasoning_content": "hm"}]}, {},
        ),
        "custom_tool_call": (
            {"input": [item("custom_tool_call", call_id="c", name="look", input="x")]},
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}]}, {},
        ),
        "custom_tool_call_output": (
            {"input": [item("custom_tool_call_output", call_id="c", output="cow")]},
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": "cow"}]}, {},
        ),
    },
    "Parts of a message or a result": {
        "input_text": (part("input_text", text="x"), {"messages": [{"role": "user", "content": "x"}]}, {}),
        "output_text": (
            part("output_text", "assistant", text="x"), {"messages": [{"role": "assistant", "content": "x"}]}, {}
        ),
        "refusal": (
            part("refusal", "assistant", refusal="no"), {"messages": [{"role": "assistant", "content": "no"}]}, {}
        ),
        "input_image": (
            part("input_image", image_url=PIXEL),
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]}, {},
        ),
        "input_audio": (
            part("input_audio", input_audio=SOUND),
            {"messages": [{"content": [{"type": "input_audio", "input_audio": SOUND}]}]}, {},
        ),
    },
    "Tools": {
        "function": (TOOLED, {"tools": [{"function": {"name": "look"}}]}, {"tools": [LOOK]}),
        "custom": (
            {"tools": [{"type": "custom", "name": "go"}]}, {"tools": [{"function": {"name": "go"}}]},
            {"tools": [{"type": "custom", "name": "go"}]},
        ),
    },
    "Values of include": {
        "message.output_text.logprobs": (
            {"include": ["message.output_text.logprobs"]}, {"logprobs": True},
            {"output": [{}, {"content": [{"logprobs": [{"logprob": -0.5}]}]}, {}, {}]},
        ),
        "reasoning.encrypted_content": (
            {"include": ["reasoning.encrypted_content"]}, {},
            {"output": [{"encrypted_content": seal("hm")}, {}, {}, {}]},
        ),
    },
}  # fmt: skip


def spoken() -> list[object]:
    """A chat that thinks, talks with probabilities, and calls."""
    log = {"content": [{"token": "so", "bytes": None, "logprob": -0.5, "top_logprobs": []}]}
    said = {"choices": [{"index": 0, "delta": {"content": "so"}, "logprobs": log}]}
    first, *rest = tool_events()
    return [first, said, *rest]


async def new_response(opened: OpenGateway, **body: object) -> dict[str, Any]:
    answer = await opened.ask("/v1/responses", {**BODY, **body})
    assert answer.status == 200, answer.body
    return answer.json


async def is_background(opened: OpenGateway) -> None:
    """Answered before the model is there, and found by its id when it is."""
    opened.engine.gate.clear()
    made = await new_response(opened, background=True, model="b/with:slash")
    assert made["status"] in ("queued", "in_progress") and made["background"] is True
    opened.engine.gate.set()
    async with asyncio.timeout(20):
        while (found := (await opened.ask(f"/v1/responses/{made['id']}")).json)["status"] != "completed":
            await eventually(lambda: not opened.driver.requests())
    assert found["output"]


async def is_stored(opened: OpenGateway) -> None:
    kept, unkept = await new_response(opened, store=True), await new_response(opened, store=False)
    assert (kept["store"], unkept["store"]) == (True, False)
    assert (await opened.ask(f"/v1/responses/{kept['id']}")).status == 200
    assert (await opened.ask(f"/v1/responses/{unkept['id']}")).status == 404


async def is_next_turn(opened: OpenGateway) -> None:
    first = await new_response(opened, input="one")
    second = await new_response(opened, input="two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    said = [message.get("content") for message in opened.peer.asked[-1].json["messages"]]
    assert said == ["one", "so", "two"]


async def is_streamed(opened: OpenGateway) -> None:
    answer = await opened.ask("/v1/responses", {**BODY, "stream": True})
    assert (
        answer.headers["content-type"] == "text/event-stream" and b"event: response.completed" in answer.body
    )


async def is_truncated(opened: OpenGateway) -> None:
    long = [{"role": "user", "content": "x" * 9_000}, {"role": "user", "content": "last"}]
    for truncation, left in (("auto", 1), ("disabled", 2)):
        told = await new_response(opened, input=long, truncation=truncation)
        assert told["truncation"] == truncation and len(opened.peer.asked[-1].json["messages"]) == left


async def is_referred_to(opened: OpenGateway) -> None:
    first = await new_response(opened)
    [said] = [each for each in first["output"] if each["type"] == "message"]
    await new_response(opened, input=[{"type": "item_reference", "id": said["id"]}, USER])
    assert opened.peer.asked[-1].json["messages"] == [{"role": "assistant", "content": "so"}, USER]


async def is_image_told(opened: OpenGateway) -> None:
    made = await new_response(
        opened, include=["message.input_image.image_url"], **part("input_image", image_url=PIXEL)
    )
    listed = (await opened.ask(f"/v1/responses/{made['id']}/input_items")).json
    assert holds([{"content": [{"image_url": PIXEL}]}], listed["data"])


PROOFS: dict[str, dict[str, typing.Callable[[OpenGateway], typing.Awaitable[None]]]] = {
    "Fields of a request": {
        "background": is_background, "store": is_stored, "previous_response_id": is_next_turn, "stream": is_streamed,
        "truncation": is_truncated,
    },
    "Items of an input": {"item_reference": is_referred_to},
    "Values of include": {"message.input_image.image_url": is_image_told},
}  # fmt: skip


@pytest.mark.parametrize("title", ROWS)
async def test_every_row_that_works_does(title: str) -> None:
    """LANE-01: what is asked reaches the engine in its own words, and the answer tells it, row by row."""
    proofs = PROOFS.get(title, {})
    assert working(PAGE, title) == {*ROWS[title], *proofs}
    models = {**CATALOG.models, "a": replace(CATALOG.models["a"], context=2048)}
    async with open_gateway(stream_of(sse(*spoken())), catalog=replace(CATALOG, models=models)) as opened:
        for name, (body, engine, told) in ROWS[title].items():
            answer = await new_response(opened, **body)
            asked = opened.peer.asked[-1].json
            assert holds(engine, asked), (name, asked)
            assert holds(told, answer), (name, answer)
        for proof in proofs.values():
            await proof(opened)
