"""Requests for a model with `set_fields`, `drop_fields` and `set_fields_by_name`, as llama-swap's filters do it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from support.open_gateway import CATALOG, open_gateway
from watchbill.catalog import Catalog, RequestRules
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX

MESSAGES = [{"role": "user", "content": "Hi"}]
SET = {"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": True}}
RULES = RequestRules(SET, frozenset({"top_k", "temperature"}), {"alias/of-a": {"reasoning_effort": "high"}})
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "openai": ("/v1/chat/completions", {"messages": MESSAGES}),
    "openai streamed": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    "ollama": (
        "/api/chat",
        {"messages": MESSAGES, "stream": False, "options": {"top_k": 7, "temperature": 1}},
    ),
}


def with_rules(rules: RequestRules | None) -> Catalog:
    models = {**CATALOG.models, "a": replace(CATALOG.models["a"], requests=rules)}
    return replace(CATALOG, models=models)


async def asked_of_engine(
    call: str, more: Mapping[str, object], rules: RequestRules | None = RULES
) -> dict[str, object]:
    path, body = CALLS[call]
    async with open_gateway(catalog=with_rules(rules)) as opened:
        answer = await opened.ask(path, {"model": "a", **body, **more})
        assert answer.status == 200, answer.body
        return opened.peer.asked[-1].json


@pytest.mark.parametrize("call", CALLS)
async def test_fields_are_dropped_and_set_at_every_door(call: str) -> None:
    """LANE-01: whatever the caller sends; the model, the messages and the stream stay its own."""
    own = {} if call in ("ollama", "anthropic", "responses") else {"top_k": 7}
    asked = await asked_of_engine(call, {"temperature": 1.0, **own} if call != "ollama" else {})
    plain = await asked_of_engine(call, {}, None)
    assert (asked["temperature"], asked["chat_template_kwargs"]) == (0.6, SET["chat_template_kwargs"])
    assert "top_k" not in asked and "reasoning_effort" not in asked
    for name in ("model", "messages", "prompt", "stream"):
        assert asked.get(name) == plain.get(name)


async def test_a_name_may_set_fields_of_its_own() -> None:
    """LANE-01: the same process under two names, one of which thinks harder."""
    asked = await asked_of_engine("openai", {"model": "alias/of-a", "reasoning_effort": "low"})
    assert (asked["reasoning_effort"], asked["temperature"]) == ("high", 0.6)
    asked = await asked_of_engine("openai", {"reasoning_effort": "low"})
    assert asked["reasoning_effort"] == "low"


async def test_a_large_body_is_changed_in_the_same_way() -> None:
    """LANE-01: its long texts are lifted out of it."""
    long = "word " * (JSON_AT_ONCE_BYTES_MAX // 2)
    asked = await asked_of_engine("openai", {"messages": [{"role": "user", "content": long}], "top_k": 3})
    assert "top_k" not in asked and asked["temperature"] == 0.6
    assert asked["messages"] == [{"role": "user", "content": long}]
