"""The Responses door, asked by OpenAI's own client: made here out of chats, the same for every engine."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from support.eventually import eventually
from support.open_gateway import CATALOG, LANES, OpenGateway, RawAnswer, open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of, tool_events
from support.responses import until
from watchbill.catalog import ApiKey, EngineRules, Lane, Server
from watchbill.errors import EngineFailed, Preempted, RequestError, RunTimeout
from watchbill.gateway import relay
from watchbill.gateway.dialects.responses import request, store
from watchbill.gateway.dialects.responses.response import Making
from watchbill.gateway.dialects.thoughts import seal
from watchbill.units import Millis

HERE = replace(
    CATALOG,
    lanes={
        **LANES,
        "kind": Lane("kind", fallback="I am busy."),
        "brief": Lane("brief", timeout_ms=Millis(300)),
        "tiny": Lane("tiny", queue_max=1),
    },
)
HELLO = stream_of(sse(*chat_events("hello there")))
TOOL = {
    "type": "function", "name": "look", "description": "looks", "strict": True,
    "parameters": {
        "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False,
    },
}  # fmt: skip
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


@asynccontextmanager
async def served(
    talk: Talk = HELLO,
    *,
    key: str = "x",
    server: Server | None = None,
    catalog: Any = HERE,
    root: Path | None = None,
) -> AsyncIterator[tuple[OpenGateway, openai.AsyncOpenAI]]:
    async with (
        open_gateway(talk, catalog=catalog, server=server, root=root) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield opened, client


def events_of(answer: RawAnswer) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name."""
    told = []
    for block in answer.body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            told.append(event)
    return told


async def streamed(opened: OpenGateway, **body: object) -> list[dict[str, Any]]:
    answer = await opened.ask("/v1/responses", {"model": "a", "input": "hi", "stream": True, **body})
    assert answer.status == 200, answer.body
    return events_of(answer)


# ------------------------------------------------------------------ the client


async def test_the_openai_client_is_served() -> None:
    """LANE-01: a response, whole and streamed, with its counts; the engine is asked for a chat."""
    async with served() as (opened, client):
        whole = await client.responses.create(
            model="alias/of-a", input="hi", instructions="be kind", temperature=0.5
        )
        assert (whole.output_text, whole.status, whole.model) == ("hello there", "completed", "a")
        assert whole.usage is not None and (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 2)
        assert (whole.instructions, whole.temperature, whole.error) == ("be kind", 0.5, None)
        asked = opened.peer.asked[0]
        assert asked.path == "/v1/chat/completions"
        assert asked.json["messages"] == [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
        ]
        async with client.responses.stream(model="a", input="hi") as stream:
            text = "".join([told.delta async for told in stream if told.type == "response.output_text.delta"])
            final = await stream.get_final_response()
        assert text == final.output_text == "hello there"
        assert final.usage is not None and final.usage.total_tokens == 5
        await opened.until_idle()
        assert opened.outcomes() == {"ok": 2}


class Thing(BaseModel):
    """What a model is asked to write."""

    name: str
    size: int


async def test_the_client_parses_a_structured_answer() -> None:
    """LANE-01: text.format becomes the chat's schema, for parse and for a parsed stream."""
    talk = stream_of(sse(*chat_events('{"name": "cow", "size": 2}')))
    async with served(talk) as (opened, client):
        parsed = await client.responses.parse(model="a", input="hi", text_format=Thing)
        assert parsed.output_parsed == Thing(name="cow", size=2)
        shape = opened.peer.asked[0].json["response_format"]
        assert shape["type"] == "json_schema" and shape["json_schema"]["strict"] is True
        assert set(shape["json_schema"]["schema"]["properties"]) == {"name", "size"}
        async with client.responses.stream(model="a", input="hi", text_format=Thing) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == Thing(name="cow", size=2)
        await client.responses.create(model="a", input="JSON", text={"format": {"type": "json_object"}})
        assert opened.peer.asked[-1].json["response_format"] == {"type": "json_object"}


async def calls_once(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that calls tools until it is told what they returned."""
    messages = asked.json["messages"]
    told = [message["content"] for message in messages if message["role"] == "tool"]
    events = chat_events(f"it is {told[0]}") if told else tool_events("I look. ")
    await stream_of(sse(*events))(asked, writer)


@pytest.mark.parametrize("stored", [True, False])
async def test_the_loop_of_tools_comes_to_its_end(stored: bool) -> None:
    """LANE-01: calls out, results in, with the conversation kept here or by the client."""
    async with served(calls_once) as (opened, client):
        first = await client.responses.create(
            model="a", input="where?", tools=[TOOL], store=stored, include=["reasoning.encrypted_content"]
        )
        assert [item.type for item in first.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        calls = [item for item in first.output if item.type == "function_call"]
        assert [(call.name, call.arguments, call.call_id) for call in calls] == [
            ("look", '{"at": "x"}', "call_0"),
            ("go", "{}", "call_1"),
        ]
        results: list[Any] = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "here"} for call in calls
        ]
        before = [item.model_dump(exclude_none=True) for item in first.output]
        said = {"previous_response_id": first.id, "input": results}
        if not stored:
            said = {"input": [{"role": "user", "content": "where?"}, *before, *results], "store": False}
        last = await client.responses.create(model="a", tools=[TOOL], **said)
        assert last.output_text == "it is here"
        assert opened.peer.asked[1].json["messages"] == [
            {"role": "user", "content": "where?"},
            {
                "role": "assistant",
                "content": "I look. ",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "call_0",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "x"}'},
                    },
                    {"id": "call_1", "type": "function", "function": {"name": "go", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_0", "content": "here"},
            {"role": "tool", "tool_call_id": "call_1", "content": "here"},
        ]


async def test_a_custom_tool_gets_its_text() -> None:
    """LANE-01: the model calls a function of one argument, the client sees a text; and back."""
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "sql", "arguments": '{"input": "SEL'},
    }
    rest = {"index": 0, "function": {"arguments": 'ECT 1"}'}}
    talk = stream_of(
        sse(
            *({"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in (call, rest)), "[DONE]"
        )
    )
    async with served(talk) as (opened, client):
        events = await streamed(opened, tools=[{"type": "custom", "name": "sql"}])
        assert [told["type"] for told in events][3:5] == [
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
        ]
        item = events[-1]["response"]["output"][0]
        assert (item["type"], item["name"], item["input"], item["call_id"]) == (
            "custom_tool_call", "sql", "SELECT 1", "c1",
        )  # fmt: skip
        assert opened.peer.asked[0].json["tools"][0]["function"]["parameters"]["required"] == ["input"]
        result: Any = {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}
        await client.responses.create(
            model="a", previous_response_id=events[-1]["response"]["id"], input=[result]
        )
        assistant, tool = opened.peer.asked[1].json["messages"][1:]
        assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"input": "SELECT 1"}
        assert tool == {"role": "tool", "tool_call_id": "c1", "content": "1"}


async def test_kept_responses_are_there_again() -> None:
    """LANE-01: retrieve, input items page by page, delete; and what is not kept is a 404."""
    async with served() as (_opened, client):
        made = await client.responses.create(
            model="a", input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
            metadata={"run": "7"},
        )  # fmt: skip
        again = await client.responses.retrieve(made.id)
        assert again.model_dump() == made.model_dump() and again.metadata == {"run": "7"}
        items = [item async for item in client.responses.input_items.list(made.id, limit=1)]
        assert [item.content[0].text for item in items] == ["two", "one"]
        ordered = await client.responses.input_items.list(made.id, order="asc")
        assert [item.content[0].text for item in ordered.data] == ["one", "two"]
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.BadRequestError) as lost:
            await client.responses.create(model="a", input="on", previous_response_id=made.id)
        assert lost.value.code == "previous_response_not_found"
        hidden = await client.responses.create(model="a", input="hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(hidden.id)
        private = await client.responses.create(
            model="a", input="hi", extra_headers={"X-Watchbill-Private": "1"}
        )
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(private.id)


async def test_items_that_are_listed_are_whole() -> None:
    """LANE-01: as OpenAI lists them, for clients with types, whatever their sender left out."""
    image = {"type": "input_image", "image_url": PIXEL, "detail": None}
    items: Any = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image]},
        {"type": "custom_tool_call", "call_id": "d", "name": "run", "input": "z"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "r"},
        {"type": "reasoning", "summary": []},
    ]
    async with served() as (opened, client):
        made = await client.responses.create(model="a", input=items)
        told = (await opened.ask(f"/v1/responses/{made.id}/input_items")).json["data"]
    assert [item["type"] for item in told] == [item.get("type", "message") for item in reversed(items)]
    for item in told:
        TypeAdapter(openai.types.responses.ResponseItem).validate_python(item)


@pytest.mark.parametrize("left", [b"", b'{"response": {"id"', b"\0\0\0"])
async def test_a_response_whose_file_a_power_cut_has_emptied_is_not_kept(left: bytes, tmp_path: Path) -> None:
    """api.md, R1: it is unknown, as one that never was; no request about it fails inside."""
    async with served(root=tmp_path) as (_, client):
        made = await client.responses.create(model="a", input="hi")
        await eventually(lambda: [*tmp_path.rglob(f"{made.id}.json")])
        [file] = tmp_path.rglob(f"{made.id}.json")
        file.write_bytes(left)
        with pytest.raises(openai.BadRequestError) as lost:
            await client.responses.create(model="a", input="on", previous_response_id=made.id)
        assert lost.value.code == "previous_response_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        await eventually(lambda: not file.exists())


async def test_a_conversation_goes_on_turn_by_turn() -> None:
    """LANE-01: all earlier turns are asked again, the instructions of this one alone, and references are resolved."""
    async with served() as (opened, client):
        first = await client.responses.create(model="a", input="one", instructions="old")
        second = await client.responses.create(model="a", input="two", previous_response_id=first.id)
        await client.responses.create(
            model="a", input="three", previous_response_id=second.id, instructions="new"
        )
        asked = opened.peer.asked[-1].json["messages"]
        assert [(message["role"], message["content"]) for message in asked] == [
            ("system", "new"), ("user", "one"), ("assistant", "hello there"), ("user", "two"),
            ("assistant", "hello there"), ("user", "three"),
        ]  # fmt: skip
        reference: Any = {"type": "item_reference", "id": second.output[0].id}
        await client.responses.create(model="a", input=[reference, {"role": "user", "content": "go"}])
        assert opened.peer.asked[-1].json["messages"] == [
            {"role": "assistant", "content": "hello there"},
            {"role": "user", "content": "go"},
        ]
        with pytest.raises(openai.BadRequestError, match="is kept here"):
            await client.responses.create(model="a", input=[{"type": "item_reference", "id": "msg_7"}])


KEYS = Server(keys=(ApiKey("one", "k1"), ApiKey("two", "k2", admin=True)))


async def test_one_key_never_sees_anothers_response() -> None:
    """api.md: neither to read, nor to continue, nor to refer to; also not with admin rights."""
    async with served(server=KEYS, key="k1") as (opened, client):
        made = await client.responses.create(model="a", input="secret")
        other = client.with_options(api_key="k2")
        for ask in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="a", input="x", previous_response_id=made.id)
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(
                model="a", input=[{"type": "item_reference", "id": made.output[0].id}]
            )
        assert len(opened.peer.asked) == 1
        assert (await client.responses.retrieve(made.id)).id == made.id


# ------------------------------------------------------------------ in the background


async def test_a_response_is_made_in_the_background() -> None:
    """LANE-01: accepted at once, queued while its model loads, and there when it is asked for later."""
    async with served() as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
        assert (made.status, made.background, made.output) == ("queued", True, [])
        assert (await client.responses.retrieve(made.id)).status == "queued"
        with pytest.raises(openai.BadRequestError, match="still being made"):
            await client.responses.create(model="a", input="on", previous_response_id=made.id)
        opened.engine.gate.set()
        done = await until(client, made.id, "completed")
        assert done.output_text == "hello there"
        assert (await client.responses.cancel(made.id)).status == "completed"
        await opened.until_idle()
        assert not opened.gateway.is_busy


async def test_a_response_that_ends_while_it_is_looked_up_is_not_taken_for_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LANE-01: the file that is read says queued, and the response is done before it is read."""
    reading, release = threading.Event(), threading.Event()
    read_regular = store.read_regular

    def slowly(name: str, **how: Any) -> bytes:
        content = read_regular(name, **how)
        reading.set()
        release.wait(30)
        return content

    async with served() as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
        monkeypatch.setattr(store, "read_regular", slowly)
        looking: asyncio.Task[Any] | None = None

        async def is_read() -> bool:  # while the file is being written, the response comes from memory
            nonlocal looking
            if looking is None or looking.done():
                looking = asyncio.create_task(client.responses.retrieve(made.id))
            return reading.is_set()

        try:
            await eventually(is_read)
            opened.engine.gate.set()
            await opened.until_idle()
            await eventually(lambda: opened.gateway.frame.open_requests == 1)  # the one that looks
        finally:
            release.set()
        assert looking is not None and (await looking).status == "completed"


async def test_a_response_in_the_background_is_cancelled() -> None:
    """LANE-01, race 4: the engine stops, nothing leaks, and the response says so."""

    async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        await stream_of(sse(*chat_events("never ending")[:2]), end=True)(_asked, _Unended(writer))
        await asyncio.Event().wait()

    async with served(endless) as (opened, client):
        made = await client.responses.create(model="a", input="hi", background=True)
        await until(client, made.id, "in_progress")
        gone = await client.responses.cancel(made.id)
        assert gone.status == "cancelled"
        assert (await client.responses.retrieve(made.id)).status == "cancelled"
        await opened.until_idle()
        assert not opened.gateway.is_busy


class _Unended:
    """A writer that leaves out the end of an answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        if data != b"0\r\n\r\n":
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()


async def test_what_the_scheduler_refuses_is_refused_in_the_background_too() -> None:
    """api.md: an unknown model and a full lane are decided at once; a later failure is in the response."""
    broken = stream_of(b'{"error":{"message":"no"}}', content_type="application/json", status=500)
    async with served(broken) as (opened, client):
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nope", input="hi", background=True)
        for wrong in ({"store": False}, {"stream": True}):
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model="a", input="hi", background=True, **wrong)
        opened.engine.gate.clear()
        lane = {"X-Watchbill-Lane": "tiny"}
        made = await client.responses.create(model="a", input="hi", background=True, extra_headers=lane)
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="a", input="hi", background=True, extra_headers=lane)
        opened.engine.gate.set()
        failed = await until(client, made.id, "failed")
        assert failed.error.code == "engine_failed" and "no" in failed.error.message
        assert not opened.gateway.is_busy


# ------------------------------------------------------------------ events


async def test_every_event_has_its_place() -> None:
    """LANE-01: numbers without a gap, items in order, parts in items, full objects at both ends."""
    async with served(stream_of(sse(*tool_events("a", "b")))) as (opened, _client):
        events = await streamed(opened, tools=[TOOL], metadata={"k": "v"})
    assert [told["sequence_number"] for told in events] == list(range(len(events)))
    kinds = [told["type"].removeprefix("response.") for told in events]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    places = [told["output_index"] for told in events if "output_index" in told]
    assert places == sorted(places) and set(places) == {0, 1, 2, 3}
    created, final = events[0]["response"], events[-1]["response"]
    assert set(created) == set(final)
    assert (created["status"], created["metadata"], created["output"]) == ("in_progress", {"k": "v"}, [])
    assert [item["id"] for item in final["output"]] == [
        told["item"]["id"] for told in events if told["type"] == "response.output_item.done"
    ]
    openai.types.responses.Response.model_validate(final)


async def test_thoughts_come_as_a_summary_where_one_was_asked_for() -> None:
    """LANE-01: clients that show summaries showed nothing of a model that thinks; the thoughts go back all the same."""
    async with served(stream_of(sse(*tool_events("a", "b")))) as (opened, client):
        events = await streamed(opened, tools=[TOOL], reasoning={"summary": "auto"})
        made = await client.responses.create(
            model="a", input="hi", tools=[TOOL], reasoning={"generate_summary": "detailed"}
        )
        again = [
            *(each.model_dump(exclude_none=True) for each in made.output if each.type != "function_call")
        ]
        await client.responses.create(model="a", input=again)
        assert opened.peer.asked[-1].json["messages"][0]["reasoning_content"] == "hm"
    kinds = [told["type"].removeprefix("response.") for told in events if told.get("output_index") == 0]
    assert kinds == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    thought = events[-1]["response"]["output"][0]
    assert (thought["summary"], "content" in thought) == ([{"type": "summary_text", "text": "hm"}], False)
    for told in events:
        TypeAdapter(openai.types.responses.ResponseStreamEvent).validate_python(told)


def made(pieces: list[bytes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a stream that comes in these pieces, and the response; ids are always the same."""
    asked = request.read(
        {"model": "a", "input": "x", "tools": [TOOL], "include": ["message.output_text.logprobs"]}
    )
    asked = replace(asked, token="0" * 32)
    making, events = Making(asked, is_stored=True), []
    for piece in pieces:
        events += making.feed(piece, "a")
    assert making.is_done
    last, final = making.end("a")
    for told in (*events, *last):
        for field in ("created_at", "completed_at"):
            told.get("response", {}).pop(field, None)
    return [*events, *last], final


def check_texts(events: list[dict[str, Any]], final: dict[str, Any]) -> None:
    """The deltas of each item are its done text and its text in the response."""
    for index, item in enumerate(final["output"]):
        own = [told for told in events if told.get("output_index") == index]
        grown = "".join(told["delta"] for told in own if told["type"].endswith(".delta"))
        done = next(told for told in own if told["type"].endswith(".done") and "item" not in told)
        said = item.get("arguments", item.get("input"))
        if said is None:
            said = item["content"][0]["text"]
        assert grown == done.get("text", done.get("arguments", done.get("input"))) == said


WORDS = sse(*tool_events("naïve ", "wörld \u2028 😀")[:-1], *chat_events("and on\n\nso"))


def test_a_stream_means_the_same_however_its_bytes_are_split() -> None:
    """LANE-01: at every byte, also within a character of several bytes."""
    whole, final = made([WORDS])
    check_texts(whole, final)
    for at in range(len(WORDS)):
        assert made([WORDS[:at], WORDS[at:]])[0] == whole


@given(st.lists(st.integers(0, len(WORDS)), max_size=12))
def test_a_stream_in_many_pieces_means_the_same(cuts: list[int]) -> None:
    """LANE-01: no text is lost."""
    places = [0, *sorted(cuts), len(WORDS)]
    pieces = [WORDS[begin:end] for begin, end in pairwise(places)]
    events, final = made(pieces)
    assert events == made([WORDS])[0]
    check_texts(events, final)


@pytest.mark.parametrize(
    ("error", "status"),
    [(Preempted(), "incomplete"), (RunTimeout(), "incomplete"), (EngineFailed("x"), "failed")],
)
def test_an_answer_that_is_cut_anywhere_keeps_its_texts(error: Any, status: str) -> None:
    """LANE-08: whatever was said is in the last object, and every item that was begun is done."""
    pieces = WORDS.split(b"\n\n")
    for count in range(len(pieces)):
        making = Making(request.read({"model": "a", "input": "x"}), is_stored=False)
        events = [told for piece in pieces[:count] for told in making.feed(piece + b"\n\n", "a")]
        last, final = making.fail(error, "a")
        events += last
        check_texts(events, final)
        assert (final["status"], events[-1]["type"]) == (status, f"response.{status}")
        begun = [told["item"]["id"] for told in events if told["type"] == "response.output_item.added"]
        assert begun == [item["id"] for item in final["output"]]
        if status == "incomplete":
            assert final["incomplete_details"] == {"reason": error.code}
        else:
            assert final["error"]["code"] == error.code


async def test_a_stream_that_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-01: created and queued, then comments, then the rest under the same id."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 20)
    monkeypatch.setattr(relay, "KEEP_ALIVE_COMMENT_MS", 20)
    async with served() as (opened, client):
        opened.engine.gate.clear()
        stream = await client.responses.create(model="a", input="hi", stream=True)
        first = await anext(stream)
        second = await anext(stream)
        assert (first.type, second.type) == ("response.created", "response.queued")
        opened.engine.gate.set()
        rest = [told async for told in stream]
        assert rest[0].type == "response.in_progress" and rest[-1].type == "response.completed"
        assert first.response.id == rest[-1].response.id


async def test_an_answer_that_reaches_its_bound_is_incomplete() -> None:
    """LANE-01: whole and streamed; half of a call is marked as such."""
    cut = tool_events("so")[:4]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    async with served(stream_of(sse(*cut, end, "[DONE]"))) as (_opened, client):
        whole = await client.responses.create(model="a", input="hi", max_output_tokens=4)
        assert whole.status == "incomplete" and whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.output[-1].status == "incomplete" and whole.output[0].status == "completed"
        last = [told async for told in await client.responses.create(model="a", input="hi", stream=True)][-1]
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details.reason == "max_output_tokens"


async def hanging(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says a word, and no more."""
    await stream_of(sse(*chat_events("hello there")[:2]))(asked, _Unended(writer))
    await asyncio.Event().wait()


async def test_a_stream_that_is_cut_ends_as_incomplete() -> None:
    """LANE-08: the lane's timeout in the middle; the response is kept as far as it came."""
    async with served(hanging) as (_opened, client):
        stream = await client.responses.create(
            model="a", input="hi", stream=True, extra_headers={"X-Watchbill-Lane": "brief"}
        )
        last = [told async for told in stream][-1]
        assert last.type == "response.incomplete"
        assert (last.response.incomplete_details.reason, last.response.output_text) == (
            "run_timeout",
            "hello ",
        )
        kept = await client.responses.retrieve(last.response.id)
        assert (kept.status, kept.output_text) == ("incomplete", "hello ")


async def test_an_engine_that_breaks_off_is_told_as_a_failure() -> None:
    """LANE-08: in the stream with the documented error, whole as 502."""
    async with served(stream_of(sse(*chat_events("hello there")[:2]), end=False)) as (opened, client):
        last = (await streamed(opened))[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "engine_failed"
        assert last["response"]["error"]["source"] == "engine"
        with pytest.raises(openai.InternalServerError) as broken:
            await client.responses.create(model="a", input="hi")
        assert broken.value.status_code == 502


async def test_a_fallback_is_a_response() -> None:
    """LANE-03: whole and streamed."""
    broken = stream_of(b'{"error":{"message":"no"}}', content_type="application/json", status=500)
    async with served(broken) as (opened, client):
        lane = {"X-Watchbill-Lane": "kind"}
        whole = await client.responses.create(model="a", input="hi", extra_headers=lane)
        assert (whole.output_text, whole.status) == ("I am busy.", "completed")
        answer = await opened.ask("/v1/responses", {"model": "a", "input": "x", "stream": True}, headers=lane)
        final = events_of(answer)[-1]["response"]
        assert final["watchbill"] == {"fallback": True, "error": "engine_failed"}
        assert final["output"][0]["content"][0]["text"] == "I am busy."


async def test_a_client_that_leaves_ends_the_work() -> None:
    """Race 4: the engine's socket is closed and the grant comes back."""
    async with served(hanging) as (opened, _client):
        reader, writer = await opened.connect()
        body = json.dumps({"model": "a", "input": "x", "stream": True}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"output_text.delta")
        writer.close()
        await opened.peer.until(lambda peer: peer.left == 1)
        await eventually(lambda: not opened.driver.requests())


# ------------------------------------------------------------------ what is asked


async def test_images_reach_models_that_see_and_no_other() -> None:
    """LANE-01: in a message, in what a tool returned, and in an earlier turn; a blind model refuses them at once."""
    image = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
    said = [{"role": "user", "content": [{"type": "input_text", "text": "what?"}, image]}]
    async with served() as (opened, client):
        first = await client.responses.create(model="a", input=said)
        assert opened.peer.asked[0].json["messages"][0]["content"] == [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        ]
        result = {"type": "function_call_output", "call_id": "c", "output": [image]}
        await client.responses.create(model="a", input=[result], previous_response_id=first.id)
        assert opened.peer.asked[1].json["messages"][-1]["content"][0]["type"] == "image_url"
    blind = replace(HERE, engines={"peer": EngineRules("peer", "llamacpp")})
    async with served(catalog=blind) as (opened, client):
        for items in (said, [result]):
            with pytest.raises(openai.BadRequestError, match="cannot see"):
                await client.responses.create(model="a", input=items)
        assert not opened.peer.asked


async def test_thinking_is_asked_for_and_sent_back() -> None:
    """LANE-01: effort as templates know it; thoughts go back to the engine in the turn they belong to."""
    async with served() as (opened, client):
        await client.responses.create(
            model="a", input="hi", reasoning={"effort": "minimal", "summary": "auto"}
        )
        asked = opened.peer.asked[0].json
        assert asked["reasoning_effort"] == "low"
        assert asked["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "low"}
        await client.responses.create(model="a", input="hi", reasoning={"effort": "none"})
        assert opened.peer.asked[1].json["chat_template_kwargs"] == {"enable_thinking": False}


async def test_probabilities_come_with_the_text() -> None:
    """LANE-01: asked of the engine, in every delta, and in the part at the end."""
    log = {"content": [{"token": "hi", "bytes": [104, 105], "logprob": -0.5, "top_logprobs": []}]}
    told = {"choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": log}]}
    async with served(stream_of(sse(told, "[DONE]"))) as (opened, client):
        whole = await client.responses.create(
            model="a", input="hi", include=["message.output_text.logprobs"], top_logprobs=2
        )
        asked = opened.peer.asked[0].json
        assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)
        assert whole.output[0].content[0].logprobs[0].logprob == -0.5


async def test_a_long_conversation_is_shortened_when_that_is_asked() -> None:
    """LANE-01: truncation auto leaves out the oldest messages, and no result without its call."""
    small = replace(HERE, models={**HERE.models, "a": replace(HERE.models["a"], context=1024)})
    items: list[Any] = [
        {"role": "system", "content": "law"},
        {"role": "user", "content": "x" * 3000},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
        {"role": "user", "content": "last"},
    ]
    async with served(catalog=small) as (opened, client):
        await client.responses.create(model="a", input=items, truncation="auto")
        roles = [message["role"] for message in opened.peer.asked[0].json["messages"]]
        assert roles == ["system", "assistant", "tool", "user"]
        await client.responses.create(model="a", input=items, truncation="auto", max_output_tokens=960)
        messages = opened.peer.asked[1].json["messages"]
        assert [message["role"] for message in messages] == ["system", "user"]
        await client.responses.create(model="a", input=items)
        assert len(opened.peer.asked[2].json["messages"]) == 5


async def test_tokens_are_counted_by_the_engine_else_estimated() -> None:
    """LANE-01: with the conversation before; an estimate says that it is one."""
    lacks = stream_of(b'{"error":{"message":"no"}}', content_type="application/json", status=404)

    async def counts(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/v1/chat/completions/input_tokens":
            body = json.dumps({"input_tokens": len(asked.json["messages"])}).encode()
            await stream_of(body, content_type="application/json")(asked, writer)
        else:
            await HELLO(asked, writer)

    async with served(counts) as (_opened, client):
        first = await client.responses.create(model="a", input="one")
        counted = await client.responses.input_tokens.count(
            model="a", input="two", previous_response_id=first.id
        )
        assert (counted.input_tokens, counted.object) == (3, "response.input_tokens")
    async with served(lacks) as (opened, client):
        answer = await opened.ask("/v1/responses/input_tokens", {"model": "a", "input": "x" * 400})
        assert answer.json["watchbill"] == {"estimated": True} and answer.json["input_tokens"] > 100


async def test_our_own_fields_and_unknown_ones_go_their_way() -> None:
    """api.md: ours are taken out, the engine's are passed on, a lane is named by alias and path."""
    async with served() as (opened, _client):
        body = {
            "model": "a:batch",
            "input": "hi",
            "keep_alive": "5m",
            "top_k": 7,
            "user": "me",
            "truncation": None,
        }
        answer = await opened.ask("/v1/responses", body)
        assert (answer.status, answer.headers["x-watchbill-lane"]) == (200, "batch")
        asked = opened.peer.asked[0].json
        assert asked["top_k"] == 7 and not {"keep_alive", "user", "truncation", "input"} & set(asked)
        answer = await opened.ask("/lane/batch/v1/responses", {"model": "a", "input": "hi"})
        assert answer.headers["x-watchbill-lane"] == "batch"


async def test_a_large_input_is_kept_and_continued() -> None:
    """LANE-01: long texts are lifted out on the way to the engine, and are there again in the next turn."""
    text = 'grün \\ " ' * 40_000
    async with served() as (opened, client):
        first = await client.responses.create(model="a", input=text)
        assert opened.peer.asked[0].json["messages"][0]["content"] == text
        await client.responses.create(model="a", input="on", previous_response_id=first.id)
        assert opened.peer.asked[1].json["messages"][0]["content"] == text
        huge = await client.responses.create(model="a", input="x" * (5 * 2**20))
        assert huge.status == "completed" and huge.model_dump()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(huge.id)


async def test_a_large_request_is_repeated_as_it_was_written() -> None:
    """LANE-01: instructions, tools and thoughts of a body whose long texts are lifted out."""
    law, thought = "law " * 400, "hm " * 400
    tool = {**TOOL, "description": "d" * 600}
    items: list[Any] = [
        {"role": "user", "content": "x" * 200_000},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": seal(thought)},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "on"},
    ]
    async with served() as (opened, client):
        whole = await client.responses.create(model="a", input=items, instructions=law, tools=[tool])
        assert whole.instructions == law and whole.tools[0].description == "d" * 600
        asked = opened.peer.asked[0].json
        assert asked["messages"][0]["content"] == law
        assert asked["messages"][2] == {"role": "assistant", "content": "so", "reasoning_content": thought}
        kept = await client.responses.retrieve(whole.id)
        assert kept.instructions == law


WRONG = [
    {"input": 7}, {"input": [7]}, {"input": [{"role": "nobody", "content": "x"}]}, {"input": [{"type": "mystery"}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, {"input": [{"role": "user"}]},
    {"input": [{"type": "function_call", "name": "x"}]}, {"input": [{"type": "function_call_output", "output": "x"}]},
    {"max_output_tokens": 0}, {"max_output_tokens": "9"}, {"temperature": 1e9}, {"top_logprobs": 21}, {"top_p": 2},
    {"truncation": "some"}, {"stream": "yes"}, {"store": 1}, {"include": ["all"]}, {"include": [[]]},
    {"metadata": {"a": 1}}, {"metadata": {str(at): "x" for at in range(17)}}, {"metadata": {"a" * 65: "x"}},
    {"tools": 7}, {"tools": [{}]}, {"tools": [{"type": "function"}]}, {"tool_choice": "required"},
    {"tool_choice": {"type": "web_search"}}, {"tool_choice": {"type": "function", "name": "x"}}, {"tool_choice": 7},
    {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}},
    {"text": 7}, {"text": {"format": {"type": "odd"}}}, {"text": {"format": {"type": "json_schema"}}},
    {"reasoning": "much"}, {"reasoning": {"effort": "odd"}}, {"reasoning": {"summary": "odd"}},
    {"instructions": [1]}, {"parallel_tool_calls": 1},
    {"n": 2}, {"max_completion_tokens": 9}, {"messages": []}, {"previous_response_id": 7}, {"background": "x"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: json.dumps(wrong)[:60])
async def test_what_makes_no_sense_is_refused_before_any_engine_hears_of_it(wrong: dict[str, object]) -> None:
    """api.md: 400 with the documented shape."""
    async with served() as (opened, _client):
        answer = await opened.ask("/v1/responses", {"model": "a", "input": "hi", **wrong})
        assert (answer.status, answer.code) == (400, "invalid_request"), answer.body
        assert not opened.peer.asked


def test_a_grammar_that_cannot_be_kept_is_not_promised() -> None:
    """LANE-01: such a custom tool is not offered; a choice of it is refused."""
    tool = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    }
    assert request.read({"model": "a", "input": "x", "tools": [tool, TOOL]}).tools == [TOOL]
    chosen = {"type": "custom", "name": "patch"}
    with pytest.raises(RequestError):
        request.read({"model": "a", "input": "x", "tools": [tool], "tool_choice": chosen})


async def test_no_response_is_kept_where_the_config_says_so() -> None:
    """api.md: store_responses = false; every response says so, and nothing is found again."""
    async with served(HELLO, server=Server(store_responses=False)) as (opened, client):
        made = await client.responses.create(model="a", input="hi")
        assert made.status == "completed" and made.model_dump()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as lost:
            await client.responses.create(model="a", input="hi", previous_response_id=made.id)
        assert lost.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError, match="store_responses"):
            await client.responses.create(model="a", input="hi", background=True)
        assert len(opened.peer.asked) == 1
