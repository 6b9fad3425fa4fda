"""An engine's answer that breaks: what was said before reaches the client, at every door, and then the error."""

import json

import pytest

from support.open_gateway import open_gateway
from support.peer import sse, stream_of

WORDS = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("one ", "two ")]
BROKEN = {"an error": {"error": {"message": "it broke"}}, "garbage": [1]}
MESSAGES = [{"role": "user", "content": "x"}]
DOORS: dict[str, dict[str, object]] = {
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "x"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9, "stream": True},
    "/v1/responses": {"input": "x", "stream": True},
    "/v1/completions": {"prompt": ["x", "y"], "stream": True},
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("path", DOORS)
async def test_what_came_before_an_error_is_told_before_it(path: str, broken: str) -> None:
    """LANE-01: also where both came from the engine at once."""
    async with open_gateway(stream_of(sse(*WORDS, BROKEN[broken]))) as opened:
        told = (await opened.ask(path, {"model": "a", **DOORS[path]})).body
        assert told.count(b"one ") >= 1 and told.count(b"two ") >= 1
        assert told.rindex(b"error") > told.index(b"two ")
        await opened.until_idle()


async def test_a_response_that_breaks_at_once_has_its_beginning() -> None:
    """LANE-01: OpenAI's clients know no `response.failed` of a response that was never created."""
    async with open_gateway(stream_of(sse(*WORDS, BROKEN["an error"]))) as opened:
        told = (await opened.ask("/v1/responses", {"model": "a", **DOORS["/v1/responses"]})).body
        events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.failed")
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "one two "


@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages", "/v1/responses"])
async def test_a_refusal_is_told_as_a_text(path: str) -> None:
    """LANE-01: an engine that refuses in a field of its own has not said nothing."""
    refused = {"choices": [{"index": 0, "delta": {"refusal": "I may not."}, "finish_reason": "stop"}]}
    async with open_gateway(stream_of(sse(refused, "[DONE]"))) as opened:
        answer = await opened.ask(path, {"model": "a", **DOORS[path], "stream": False})
        assert answer.status == 200 and b"I may not." in answer.body
