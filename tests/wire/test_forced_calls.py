"""Tools are honest: a call that is demanded is made, or the request is refused with the reason."""

import json
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

from gguf_models import GgufFiles
from support.open_gateway import CATALOG, MIB, open_gateway
from support.peer import chat_events, sse, stream_of
from support.running import running
from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.config import parse
from watchbill.errors import EngineFailed, RequestError
from watchbill.gateway.abilities import Able
from watchbill.gateway.forced_calls import ForcedCall, with_calls_in_words
from watchbill.units import Bytes

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": SCHEMA}}
GO = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
CHAT: dict[str, Any] = {
    "model": "plain",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [TOOL, GO],
}
CALL = '{"name": "look", "arguments": {"at": "x \\u00e9"}}'
#: One whose template surely knows no tools, and two of which the config says what they can.
HERE = Catalog(
    CATALOG.devices,
    {"peer": EngineRules("peer", "llamacpp"), "other": EngineRules("other", "process")},
    {
        "plain": Model("plain", "peer", memory=MIB),
        "without": Model("without", "other", memory=MIB, abilities=frozenset({"thinking"})),
        "with": Model("with", "other", memory=MIB, abilities=frozenset({"tools", "audio"})),
    },
    CATALOG.lanes,
)
SOUND = [
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]}
]


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of `plain` has a template that knows no tools."""

    def able(model: Model, driver: str, header: object) -> Able:
        tools = model.abilities is not None and "tools" in model.abilities
        return Able(
            completion=True, embedding=None, vision=None, tools=tools, is_llamacpp=driver == "llamacpp"
        )

    monkeypatch.setattr("watchbill.gateway.abilities._able", able)


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=str)
async def test_a_demanded_call_is_made_by_a_model_whose_template_knows_no_tools(
    choice: object, stream: bool
) -> None:
    """LANE-01: the engine would leave the tools out without a word."""
    async with (
        open_gateway(stream_of(sse(*chat_events(CALL))), catalog=HERE) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0) as client,
    ):
        asked = {**CHAT, "tool_choice": choice}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
            calls = [
                call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or []
            ]
            assert not any(each.delta.content for chunk in chunks for each in chunk.choices)
            reason = [each.finish_reason for chunk in chunks for each in chunk.choices][-1]
        else:
            [said] = (await client.chat.completions.create(**asked)).choices
            calls, reason = said.message.tool_calls, said.finish_reason
        [call] = calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "x \u00e9"})
        assert call.id and reason == "tool_calls"
        sent = opened.peer.asked[0].json
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & sent.keys()
        schema = sent["response_format"]["json_schema"]["schema"]
        assert len(schema.get("anyOf", [schema])) == (2 if choice == "required" else 1)
        assert sent["messages"][0]["role"] == "system" and '"look"' in sent["messages"][0]["content"]


@pytest.mark.usefixtures("no_tools")
async def test_the_other_doors_make_the_call_as_well() -> None:
    """LANE-01: responses and messages are made of the same chats."""
    async with open_gateway(stream_of(sse(*chat_events(CALL))), catalog=HERE) as opened:
        tools = [{"name": "look", "input_schema": SCHEMA}]
        async with anthropic.AsyncAnthropic(base_url=opened.url, api_key="x", max_retries=0) as client:
            said = await client.messages.create(
                model="plain",
                max_tokens=50,
                messages=CHAT["messages"],
                tools=tools,
                tool_choice={"type": "any"},
            )
            assert (said.stop_reason, said.content[0].input) == ("tool_use", {"at": "x \u00e9"})
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0) as client:
            made = await client.responses.create(
                model="plain",
                input="hi",
                tools=[{"type": "function", **TOOL["function"]}],
                tool_choice="required",
            )
            assert [item.type for item in made.output] == ["function_call"]


@pytest.mark.usefixtures("no_tools")
async def test_a_demanded_call_that_was_cut_is_none() -> None:
    """LANE-01: half of a call must not be run."""
    cut = chat_events(CALL[:20])
    cut[-3]["choices"][0]["finish_reason"] = "length"  # type: ignore[index]
    async with open_gateway(stream_of(sse(*cut)), catalog=HERE) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "tool_choice": "required"})
        [choice] = answer.json["choices"]
        assert choice["finish_reason"] == "length" and not choice["message"].get("tool_calls")


@pytest.mark.usefixtures("no_tools")
async def test_tools_that_need_not_be_called_leave_the_chat_as_it_is() -> None:
    """LANE-01: `auto` allows an answer without a call; earlier calls and results reach the model as texts."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        *CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]  # fmt: skip
    async with open_gateway(catalog=HERE) as opened:
        assert (await opened.ask("/v1/chat/completions", CHAT)).status == 200
        assert opened.peer.asked[0].json["messages"] == CHAT["messages"]
        assert (await opened.ask("/v1/chat/completions", {**CHAT, "messages": said})).status == 200
        sent = opened.peer.asked[1].json["messages"]
        assert [each["role"] for each in sent] == ["user", "assistant", "user"]
        assert "look" in sent[1]["content"] and "seen" in sent[2]["content"]


RESULT = {"role": "tool", "tool_call_id": "c", "content": "seen"}


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize(
    "body",
    [
        {"messages": None, "tool_choice": "required"},
        {"messages": 5, "tool_choice": "required"},
        {"messages": ["hi", *CHAT["messages"]], "tool_choice": "required"},
        {"tools": [5, TOOL], "tool_choice": "required"},
        {"messages": ["hi", RESULT]},
    ],
    ids=str,
)
async def test_what_is_no_message_is_refused_and_not_left_out(body: dict[str, object]) -> None:
    """LANE-01: the model would answer a conversation that nobody had."""
    async with open_gateway(catalog=HERE) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, **body})
        assert answer.status == 400 and "must be a list of objects" in answer.json["error"]["message"]
        assert not opened.peer.asked


@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("without", {"tools": [TOOL]}, 400),
        ("without", {"tools": [TOOL], "tool_choice": "required"}, 400),
        ("without", {"tools": [TOOL], "tool_choice": "none"}, 200),
        ("without", {"tools": []}, 200),
        ("without", {"messages": SOUND}, 400),
        ("with", {"tools": [TOOL], "tool_choice": "required"}, 200),
        ("with", {"messages": SOUND}, 200),
        ("with", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400),
        ("plain", {"messages": SOUND}, 400),
    ],
)  # fmt: skip
async def test_what_the_config_says_that_a_model_lacks_is_refused(
    model: str, body: dict[str, object], status: int
) -> None:
    """LANE-01: with the model's name and what to do, before any load."""
    async with open_gateway(catalog=HERE) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "tools": [], "model": model, **body})
        assert answer.status == status, answer.body
        if status == 400:
            assert model in answer.json["error"]["message"] and not opened.peer.asked


async def test_declared_abilities_are_shown() -> None:
    """LANE-01: in the list of models, to Ollama's clients, and in the status."""
    async with open_gateway(catalog=HERE) as opened:
        listed = (await opened.ask("/v1/models/with")).json["capabilities"]
        assert listed == ["completion", "audio", "tools"]
        assert (await opened.ask("/api/show", {"model": "with"})).json["capabilities"] == listed
        assert (await opened.ask("/wb/v1/status")).json["models"]["with"]["abilities"] == listed


async def test_llamacpp_makes_a_demanded_call_without_a_template_for_it(
    tmp_path: Any, gguf_files: GgufFiles
) -> None:
    """LANE-01: with the real engine, whose grammar is made of the tools."""
    source = gguf_files.chat("5MB")
    told = parse(
        f'[models.a]\nengine = "llamacpp"\nsource = "{source}"\nthreads = 1\ncontext = 1024\n', base=tmp_path
    )
    catalog = replace(told, devices={"ram": replace(told.devices["ram"], reserve=Bytes(0))})
    shape = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    tool = {
        "type": "function",
        "function": {"name": "switch", "parameters": {**shape, "additionalProperties": False}},
    }
    async with (
        running(tmp_path, catalog) as (serving, _driver),
        openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="x", max_retries=0) as client,
    ):
        for stream in (False, True):
            asked = {**CHAT, "model": "a", "tools": [tool], "tool_choice": "required", "max_tokens": 200}
            if stream:
                chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
                calls = [
                    call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or []
                ]
            else:
                calls = (await client.chat.completions.create(**asked)).choices[0].message.tool_calls
            [call] = calls
            assert call.function.name == "switch"
            assert json.loads(call.function.arguments).keys() == {"on"}


# ------------------------------------------------------------------ without I/O


def test_the_events_of_a_call_are_the_same_at_every_byte() -> None:
    """LANE-09"""
    text = sse(*chat_events(CALL))
    for cut in range(len(text) + 1):
        forced = ForcedCall({**CHAT, "tool_choice": "required"})
        told = forced.hear(text[:cut]) + forced.hear(text[cut:])
        events = [json.loads(line[6:]) for line in told.decode().splitlines() if line.startswith("data: {")]
        calls = [
            call
            for event in events
            for each in event["choices"]
            for call in each["delta"].get("tool_calls", [])
        ]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"at": "x \u00e9"}]
        assert [event["usage"] for event in events if event.get("usage")] and told.endswith(
            b"data: [DONE]\n\n"
        )


@pytest.mark.parametrize("written", ["no JSON", '{"name": "other", "arguments": {}}', "[]"])
def test_what_is_no_call_is_the_engines_failure(written: str) -> None:
    """R30"""
    with pytest.raises(EngineFailed):
        ForcedCall({**CHAT, "tool_choice": "required"}).hear(sse(*chat_events(written)))


def test_definitions_within_tools_are_found_and_must_not_differ() -> None:
    """LANE-01: a grammar looks for them at the top of its schema."""

    def tool(name: str, inner: object) -> dict[str, object]:
        return {
            "type": "function",
            "function": {"name": name, "parameters": {"$ref": "#/$defs/X", "$defs": {"X": inner}}},
        }

    chat = {**CHAT, "tool_choice": "required", "tools": [tool("a", SCHEMA), tool("b", SCHEMA)]}
    schema: Any = ForcedCall(chat).ask()["response_format"]
    assert schema["json_schema"]["schema"]["$defs"] == {"X": SCHEMA}
    with pytest.raises(RequestError, match="rename"):
        ForcedCall({**chat, "tools": [tool("a", SCHEMA), tool("b", {"type": "string"})]}).ask()


def test_messages_without_calls_stay_as_they_are() -> None:
    """LANE-09"""
    said: list[dict[str, object]] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert with_calls_in_words(said) == said
