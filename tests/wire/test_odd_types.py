"""Odd types: a value of another type, at every place of a typical body, at every door (R42).

Each body is sent once for each place in it and each odd value. A list or an object in place of a text cannot be looked
up in a table, null is no object, and true is a number to Python: none of them may be a bug of ours.
"""

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gguf_models import GgufFiles
from support.open_gateway import CATALOG, MIB, open_gateway
from support.peer import chat_events, sse, stream_of
from watchbill.catalog import Catalog, EngineRules, Model, ProcessType

ODD: tuple[Any, ...] = ([], {}, 1, None, True, "")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
FUNCTION = {"name": "look", "description": "looks", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
CHAT = {
    "model": "a", "stream": False, "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "n": 1, "logprobs": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "stream_options": {"include_usage": True}, "keep_alive": "5m", "metadata": {"a": "b"}, "priority": 3,
    "messages": [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "seen"},
    ],
}  # fmt: skip
FORCED = {
    "model": "plain", "tools": [TOOL], "parallel_tool_calls": True,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "messages": [*CHAT["messages"][2:], {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
}  # fmt: skip
RESPONSE = {
    "model": "a", "instructions": "be", "max_output_tokens": 5, "store": False,
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, "reasoning": {"effort": "low"},
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "write", "format": {"type": "text"}}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "truncation": "auto", "metadata": {"a": "b"}, "top_logprobs": 1,
    "input": [
        {"role": "user", "content": [
            {"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "seen"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "so"}]},
    ],
}  # fmt: skip
MESSAGE = {
    "model": "a", "max_tokens": 5, "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024},
    "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}], "metadata": {"user_id": "x"},
    "tools": [{"name": "look", "input_schema": SCHEMA}, {"type": "bash_20250124", "name": "bash"}],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "hi", "citations": []},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "x"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "is_error": False,
             "content": [{"type": "text", "text": "x"}]}]},
    ],
}  # fmt: skip
OLLAMA_CHAT = {
    "model": "a", "stream": False, "think": "low", "format": SCHEMA, "tools": [TOOL], "keep_alive": "5m",
    "logprobs": True, "options": {"num_ctx": 100, "temperature": 0.5, "stop": ["x"]},
    "messages": [
        {"role": "user", "content": "hi", "images": ["AAAA"]},
        {"role": "assistant", "content": "", "thinking": "hm",
         "tool_calls": [{"function": {"name": "look", "arguments": {"at": "x"}}}]},
        {"role": "tool", "tool_name": "look", "content": "seen"},
    ],
}  # fmt: skip
BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (CHAT, FORCED, {**FORCED, "tool_choice": "required"}),
    "/v1/completions": (
        {"model": "a", "prompt": ["a", "b"], "n": 2, "suffix": "x", "logprobs": 1, "echo": True, "stop": "x"},
        {"model": "plain", "prompt": [[1, 2], [3]], "max_tokens": 5, "stream": True},
    ),
    "/v1/embeddings": ({"model": "a", "input": ["a", [1]], "encoding_format": "float", "dimensions": 4},),
    "/v1/responses": (RESPONSE,),
    "/v1/responses/input_tokens": (
        {"model": "a", "input": "x", "tools": RESPONSE["tools"], "previous_response_id": "x"},
    ),
    "/v1/messages": (MESSAGE,),
    "/v1/messages/count_tokens": ({"model": "plain", "messages": MESSAGE["messages"]},),
    "/v1/messages/batches": ({"requests": [{"custom_id": "a", "params": {"model": "a", "max_tokens": 1}}]},),
    "/v1/batches": (
        {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h", "metadata": {"a": "b"},
         "output_expires_after": {"anchor": "created_at", "seconds": 3600}},
    ),
    "/v1/rerank": ({"model": "a", "query": "x", "documents": ["a"], "top_n": 1, "stream": False},),
    "/tokenize": ({"model": "a", "content": "x"},),
    "/process": (
        {"type": "seen", "id": "1", "payload": {"summary": "x", "entities": [{"name": "cow"}], "events": ["x"]}},
    ),
    "/api/chat": (OLLAMA_CHAT,),
    "/api/generate": (
        {"model": "a", "prompt": "x", "suffix": "y", "system": "be", "images": ["AAAA"], "context": [1], "raw": False,
         "template": "", "options": {"seed": 1}, "stream": False, "keep_alive": 5},
    ),
    "/api/embed": ({"model": "a", "input": ["x"], "truncate": True, "dimensions": 4, "options": {"num_ctx": 9}},),
    "/api/embeddings": ({"model": "a", "prompt": "x", "keep_alive": "1m"},),
    "/api/show": ({"model": "a", "verbose": True},),
    "/api/create": (
        {"model": "new", "from": "a", "system": "be", "parameters": {"stop": ["x"]}, "license": ["x"], "stream": False,
         "messages": [{"role": "user", "content": "x"}], "files": {"a.gguf": "sha256:1"}, "template": "x"},
    ),
    "/api/copy": ({"source": "a", "destination": "b"},),
    "/api/pull": ({"model": "127.0.0.1:9/a/b", "insecure": True, "stream": False},),
    "/wb/v1/models/a/load": ({"wait": True},),
    "/wb/v1/models/a/evict": ({"force": True},),
    "/wb/v1/models/a/pin": ({"pinned": False},),
    "/wb/v1/doors": ({"name": "d", "model": "a", "lane": "default", "port": 0},),
    "/wb/v1/loans": ({"memory": "1KiB", "device": "none", "for": "x", "pid": 1, "hours": 1, "evict_idle": False},),
    "/wb/v1/loans/none/renew": ({"user": 1},),
    "/wb/v1/maintenance": ({"device": "none", "for": "x", "pid": 1, "hours": 1},),
    "/wb/v1/maintenance/renew": ({"device": "none"},),
}  # fmt: skip


def changed(value: Any, odd: object) -> Iterator[Any]:
    """The same value with something odd in one place, for every place below it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            for other in (odd, *changed(inner, odd)):
                yield {**value, name: other}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            for other in (odd, *changed(inner, odd)):
                yield [*value[:at], other, *value[at + 1 :]]


def catalog(gguf_files: GgufFiles) -> Catalog:
    """A model of an engine of which nothing is known, and one of llama.cpp whose template has no tools."""
    return Catalog(
        CATALOG.devices,
        {"peer": EngineRules("peer", "process"), "llama": EngineRules("llama", "llamacpp")},
        {
            "a": Model("a", "peer", concurrency=8, memory=MIB),
            "plain": Model("plain", "llama", concurrency=8, memory=MIB, source=str(gguf_files.chat("1MB"))),
        },
        CATALOG.lanes,
        process={"seen": ProcessType("seen", "a", prompt="{payload.summary} {summary}")},
    )


@pytest.mark.parametrize("path", BODIES)
async def test_an_odd_type_is_no_bug(
    path: str, gguf_files: GgufFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """R42: 4xx or an answer, never 500, wherever the odd value stands."""
    talk = stream_of(sse(*chat_events('{"name": "look", "arguments": {}}')))
    async with open_gateway(talk, catalog=catalog(gguf_files)) as opened:
        odd = [each for body in BODIES[path] for value in ODD for each in changed(body, value)]
        bugs = [body for body in odd if b"Watchbill failed" in (await opened.ask(path, body)).body]
        await opened.until_idle()
    assert not bugs, caplog.text[-3000:]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text


USED = {"prompt_tokens": -100, "completion_tokens": -5, "total_tokens": True}
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": -7},
    "completion_tokens_details": {"reasoning_tokens": -9},
}


async def test_what_an_engine_counts_below_zero_is_no_count() -> None:
    """R34: clients add these figures up."""
    *said, end = chat_events("hi")
    talk = stream_of(sse(*said, {"choices": [], "usage": USED | DETAILS}, end))
    said_once = {
        "model": "a",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": False,
    }
    async with open_gateway(talk) as opened:
        answers = [
            await opened.ask("/v1/responses", {"model": "a", "input": "hi"}),
            *[await opened.ask(path, said_once) for path in ("/v1/messages", "/api/chat")],
        ]
        for answer in answers:
            assert answer.status == 200 and not re.search(rb"(count|tokens)\":(-|true)", answer.body), (
                answer.body
            )


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/messages/count_tokens"])
async def test_a_count_below_zero_is_estimated_instead(path: str) -> None:
    """R34"""
    talk = stream_of(b'{"input_tokens": -3}', content_type="application/json")
    async with open_gateway(talk) as opened:
        told = (
            await opened.ask(path, {"model": "a", "input": "hi"} if "responses" in path else MESSAGE)
        ).json
        assert told["input_tokens"] > 0 and told["watchbill"] == {"estimated": True}


@pytest.mark.parametrize(
    "prompt", [[], [[]], [[], "b"], ["a", []], [None], [[1], 2], [[1, [2]]], [-1], [True], [0.5]], ids=str
)
async def test_a_list_that_is_no_prompt_is_refused(prompt: object) -> None:
    """R42: llama.cpp fails at some of these, and that would look like a fault of the engine."""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/completions", {"model": "a", "prompt": prompt})
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert not opened.peer.asked


@pytest.mark.parametrize(
    "prompt", ["", [1, 2], ["a", 1], [[1], "b"], [[1, "b"], [2]], ["a"], [{"prompt_string": "x"}]], ids=str
)
async def test_a_list_that_is_a_prompt_is_passed_on(prompt: object) -> None:
    """LANE-01"""
    async with open_gateway() as opened:
        assert (await opened.ask("/v1/completions", {"model": "a", "prompt": prompt})).status != 400
        assert opened.peer.asked
