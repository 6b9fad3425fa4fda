"""The tables of docs/responses.md: complete by OpenAI's own client, and true of a running gateway."""

import re
import typing
from typing import Any

import pytest
from openai.types.responses import (
    ResponseIncludable,
    ResponseInputItemParam,
    ResponseStreamEvent,
    ToolParam,
    response_create_params,
)

from support.documented import literals, rows_of
from support.open_gateway import open_gateway
from support.peer import sse, stream_of, tool_events
from watchbill.gateway.dialects.responses.treatment import EVENTS, FIELDS, INCLUDES, ITEMS, PARTS, TOOLS

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
    rows = rows_of(PAGE, title)
    assert {name: what for name, (what, _) in rows.items()} == {
        name: str(what) for name, what in TABLES[title].items()
    }
    assert all(why.strip() for what, why in rows.values() if what != "works")


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
    """A stream that waits, thinks, talks and calls; one that is cut, and one that breaks."""
    monkeypatch.setattr("watchbill.gateway.relay.HEADERS_HELD_MS", 20)
    length = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    whole = tool_events("so")
    seen: set[str] = set()
    for events in (whole, [*whole[:-2], length, "[DONE]"], whole[:2]):
        async with open_gateway(stream_of(sse(*events))) as opened:
            opened.engine.gate.clear()
            reader, writer = await opened.connect()
            body = (
                b'{"model": "a", "input": "hi", "stream": true, "tools": [{"type": "custom", "name": "go"}]}'
            )
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
