"""Engines that speak OpenAI's dialect in their own way: nothing that they say is lost, and no door tells an untruth."""

import json
from typing import Any

import pytest

from support.open_gateway import open_gateway
from support.peer import sse, stream_of

MESSAGES = [{"role": "user", "content": "x"}]
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
NAMES = ("look", "listen")
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
DOORS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "tools": FUNCTIONS},
    "/v1/responses": {
        "input": "x",
        "tools": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES],
    },
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 9,
        "tools": [{"name": name, "input_schema": PARAMETERS} for name in NAMES],
    },
    "/api/chat": {"messages": MESSAGES, "tools": FUNCTIONS},
}
STREAMS = [False, True]


def piece(delta: dict[str, object], reason: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def call(index: int | None, id: str | None, name: str, arguments: object) -> dict[str, object]:
    number = {} if index is None else {"index": index}
    told = {**number, **({} if id is None else {"id": id, "type": "function"})}
    return piece({"tool_calls": [{**told, "function": {"name": name, "arguments": arguments}}]})


async def ask(content: bytes, path: str, *, stream: bool = False, kind: str = "text/event-stream") -> Any:
    async with open_gateway(stream_of(content, content_type=kind)) as opened:
        answer = await opened.ask(path, {"model": "a", **DOORS[path], "stream": stream})
        await opened.until_idle()
        return answer


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("path", DOORS)
async def test_calls_under_one_number_are_told_apart_by_their_ids(path: str, stream: bool) -> None:
    """LANE-01: Ollama numbered every call 0; two calls became one, whose arguments no client could read."""
    calls = [call(0, "c1", "look", '{"at": "sea"}'), call(0, "c2", "listen", '{"at": "port"}')]
    answer = await ask(sse(*calls, piece({}, "tool_calls"), "[DONE]"), path, stream=stream)
    assert answer.status == 200
    assert b"look" in answer.body and b"listen" in answer.body and b"engine_failed" not in answer.body
    assert b'sea\\"}{' not in answer.body and b'"}{' not in answer.body


async def test_pieces_with_ids_of_their_own_are_one_call() -> None:
    """LANE-01: some engines give each piece of a call another id; only its first has a name."""
    rest = {"index": 0, "id": "other", "function": {"arguments": '"sea"}'}}
    stream = sse(call(0, "c1", "look", '{"at": '), piece({"tool_calls": [rest]}, "tool_calls"), "[DONE]")
    (told,) = json.loads((await ask(stream, "/v1/chat/completions")).body)["choices"][0]["message"][
        "tool_calls"
    ]
    assert (told["id"], told["function"]) == ("c1", {"name": "look", "arguments": '{"at": "sea"}'})


@pytest.mark.parametrize("arguments", ['{"at": "sea"}', {"at": "sea"}])
async def test_a_whole_chat_has_calls_that_clients_can_answer(arguments: object) -> None:
    """LANE-01: with an id, arguments as a text, and the reason that clients look at."""
    stream = sse(call(None, None, "look", arguments), piece({}, "stop"), "[DONE]")
    (choice,) = json.loads((await ask(stream, "/v1/chat/completions")).body)["choices"]
    (told,) = choice["message"]["tool_calls"]
    assert told["id"] and told["type"] == "function" and choice["finish_reason"] == "tool_calls"
    assert json.loads(told["function"]["arguments"]) == {"at": "sea"}


@pytest.mark.parametrize("events", [[piece({"content": "aye"})], [piece({"content": "aye", "odd": 1})]])
async def test_an_end_without_a_reason_is_one(events: list[dict[str, object]]) -> None:
    """LANE-01: clients take a choice without a reason for one that goes on."""
    answer = json.loads((await ask(sse(*events, "[DONE]"), "/v1/chat/completions")).body)
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("path", DOORS)
async def test_texts_in_parts_are_texts(path: str, stream: bool) -> None:
    """LANE-01: Mistral's engines send a list of parts, thoughts among them; they were lost in silence."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}
    parts = [thought, {"type": "text", "text": "aye "}, {"type": "text", "text": "aye"}]
    answer = await ask(sse(piece({"content": parts}), piece({}, "stop"), "[DONE]"), path, stream=stream)
    assert answer.status == 200 and b"hmm" in answer.body
    if not (stream and path == "/v1/chat/completions"):  # which passes unchanged
        assert b"aye aye" in answer.body


@pytest.mark.parametrize("path", DOORS)
async def test_half_a_character_breaks_no_answer(path: str) -> None:
    """LANE-01: its other half is in the next event."""
    stream = sse(piece({"content": "\ud83d"}), piece({"content": "\ude42 aye"}), piece({}, "stop"), "[DONE]")
    answer = await ask(stream, path)
    assert answer.status == 200 and b" aye" in answer.body


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("path", DOORS)
async def test_an_error_that_is_called_a_success_is_an_error(path: str, stream: bool) -> None:
    """LANE-01: some engines answer 200 with an error in it. It became an empty answer."""
    error = json.dumps({"error": {"message": "no room at the inn", "code": 503}}).encode()
    answer = await ask(error, path, stream=stream, kind="application/json")
    assert answer.status == 502 and b"no room at the inn" in answer.body


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("path", DOORS)
async def test_a_stream_that_says_why_it_ended_has_ended(path: str, is_counted: bool) -> None:
    """LANE-01: some engines leave the last word out; streams of theirs ended with an error."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    last = [{**piece({}), "choices": [], "usage": usage}] if is_counted else []
    answer = await ask(sse(piece({"content": "aye"}), piece({}, "stop"), *last), path, stream=True)
    assert b"aye" in answer.body and b'"error":{' not in answer.body and b"ended before" not in answer.body
    if path == "/v1/chat/completions":
        assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", DOORS)
async def test_nothing_belongs_to_an_answer_that_is_over(path: str) -> None:
    """LANE-01: what an engine sends behind its last word is not told."""
    stream = sse(piece({"content": "aye"}), piece({}, "stop"), "[DONE]", piece({"content": "ghost"}))
    answer = await ask(stream, path)
    assert b"aye" in answer.body and b"ghost" not in answer.body


async def test_a_filtered_response_without_a_word_is_incomplete_in_every_part() -> None:
    """LANE-01: its only item said that it was completed."""
    told = json.loads((await ask(sse(piece({}, "content_filter"), "[DONE]"), "/v1/responses")).body)
    assert (told["status"], told["output"][0]["status"]) == ("incomplete", "incomplete")
