"""What OpenAI, Anthropic and Azure document beside the main addresses: answered so, or refused with a reason."""

import json
from dataclasses import replace
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncAzureOpenAI, AsyncOpenAI, InternalServerError

from support.open_gateway import CATALOG, MIB, open_gateway
from watchbill.catalog import Catalog, EngineRules, Model

SAID: Any = [{"role": "user", "content": "x"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "go")
]
LLAMACPP = Catalog(
    CATALOG.devices,
    {"peer": EngineRules("peer", "llamacpp")},
    {"text": Model("text", "peer", memory=MIB)},
    CATALOG.lanes,
)


async def test_a_conversation_is_not_compacted_and_the_answer_says_so() -> None:
    """LANE-01: 405 said that another method would do it."""
    async with open_gateway() as opened, AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x") as client:
        with pytest.raises(InternalServerError, match="not compacted") as refused:
            await client.responses.compact(model="a", input="x")
        assert refused.value.status_code == 501


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_message_needs_messages(path: str) -> None:
    """LANE-01: as Anthropic refuses it."""
    async with open_gateway() as opened:
        answer = await opened.ask(path, {"model": "a", "max_tokens": 5, "messages": []})
        assert answer.status == 400 and b"at least one message is required" in answer.body
        assert not opened.peer.asked


async def test_anthropics_clients_get_anthropics_models() -> None:
    """LANE-01: by page, and with capabilities that are an object there."""
    names = [f"m{number}" for number in range(5)]
    models = {name: replace(CATALOG.models["a"], name=name) for name in names}
    catalog = replace(CATALOG, models=models)
    async with (
        open_gateway(catalog=catalog) as opened,
        AsyncAnthropic(base_url=opened.url, api_key="x", max_retries=0) as client,
    ):
        page = await client.models.list(limit=2)
        assert (page.has_more, page.first_id, page.last_id) == (True, "m0", "m1")
        assert [model.id async for model in client.models.list(limit=2)] == names
        assert [model.id for model in (await client.models.list(limit=2, before_id="m4")).data] == [
            "m2",
            "m3",
        ]
        one = await client.models.retrieve("m3")
        assert one.capabilities is not None and one.capabilities.image_input.supported is False
        assert one.capabilities.thinking.types.enabled.supported and one.max_input_tokens
        listed = (await opened.ask("/v1/models/m3")).json  # others get what they got
        assert listed["capabilities"] == ["completion"] and listed["object"] == "model"


async def test_azures_clients_find_all_of_their_addresses() -> None:
    """LANE-01: responses, models, files and batches have no deployment in their address."""
    async with open_gateway() as opened:
        for prefix in ("/openai", "/openai/v1"):
            answer = await opened.ask(f"{prefix}/responses?api-version=1", {"model": "a", "input": "x"})
            kept = f"{prefix}/responses/{answer.json['id']}"
            assert answer.status == 200 and (await opened.ask(kept)).status in (200, 404)
            assert (await opened.ask(f"{prefix}/models/a")).json["id"] == "a"
        client = AsyncAzureOpenAI(azure_endpoint=opened.url, api_key="x", api_version="1", max_retries=0)
        async with client:
            assert (await client.responses.create(model="a", input="x")).status == "completed"
            assert [model.id async for model in client.models.list()] == list(opened.driver.catalog.models)


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_choice_among_some_tools_reaches_every_engine(mode: str) -> None:
    """LANE-01: engines know no such choice; those of llama.cpp said that it named nothing."""
    some = {"mode": mode, "tools": [{"type": "function", "function": {"name": "go"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": some}
    async with open_gateway() as opened:
        body = {"model": "a", "messages": SAID, "tools": TOOLS, "tool_choice": choice}
        assert (await opened.ask("/v1/chat/completions", body)).status == 200
        asked = opened.peer.asked[-1].json
        assert (asked["tool_choice"], asked["tools"]) == (mode, TOOLS[1:])
        some["tools"] = [{"type": "function", "function": {"name": "fly"}}]
        refused = await opened.ask("/v1/chat/completions", body)
        assert refused.status == 400 and "'fly'" in json.loads(refused.body)["error"]["message"]


async def test_functions_are_not_passed_over_in_silence() -> None:
    """LANE-01: llama.cpp answered in words where a call was demanded."""
    async with open_gateway(catalog=LLAMACPP) as opened:
        functions = [TOOLS[0]["function"]]
        body = {"model": "text", "messages": SAID, "functions": functions, "function_call": {"name": "look"}}
        answer = await opened.ask("/v1/chat/completions", body)
        assert answer.status == 400 and b"send tools and tool_choice" in answer.body
