"""Translations between protocols: whatever clients and engines send, they give an answer or a refusal, never a bug."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from support.peer import chat_events, sse
from watchbill.errors import EngineFailed, RequestError
from watchbill.gateway.dialects.anthropic import request as anthropic_request
from watchbill.gateway.dialects.anthropic.response import Making
from watchbill.gateway.dialects.ollama import request as ollama_request
from watchbill.gateway.dialects.ollama import response as ollama_response
from watchbill.gateway.dialects.ollama.response import Passed, Telling, Translated
from watchbill.gateway.fallback import summarize
from watchbill.gateway.limits import SUMMARY_CHARS_MAX

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
NAMES = st.sampled_from([
    "role", "content", "text", "type", "images", "tool_calls", "function", "arguments", "name", "id", "tool_name",
    "source", "data", "input", "tool_use_id", "input_schema", "format", "schema", "summary", "entities", "events",
])  # fmt: skip
WORDS = st.sampled_from(
    ["user", "assistant", "tool", "system", "text", "image", "tool_use", "tool_result", "json"]
)
VALUES = st.recursive(
    LEAVES | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=16,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": WORDS | LEAVES, "content": VALUES}, optional={"tool_calls": VALUES, "images": VALUES}
    )
)
ASKED = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "messages": MESSAGES | VALUES, "prompt": VALUES, "system": VALUES, "images": VALUES, "suffix": VALUES,
        "options": st.dictionaries(st.sampled_from(["num_ctx", "num_predict", "seed", "stop", "odd"]), VALUES) | VALUES,
        "format": VALUES, "think": VALUES, "tools": VALUES, "stream": VALUES, "max_tokens": VALUES,
        "tool_choice": VALUES, "thinking": VALUES, "output_format": VALUES, "stop_sequences": VALUES, "raw": VALUES,
    },
)  # fmt: skip


@settings(max_examples=100)
@given(ASKED)
def test_whatever_an_ollama_client_asks_is_translated_or_refused(body: dict[str, object]) -> None:
    """R42, R47"""
    try:
        ollama_request.check(body, is_native=False)
        asked = [
            ollama_request.as_chat(body),
            ollama_request.as_completion(body),
            ollama_request.for_ollama(body, stream=True),
        ]
    except RequestError:
        return
    assert all(each["model"] == "m" and each["stream"] is True for each in asked)
    assert not any({"num_ctx", "keep_alive"} & each.keys() for each in asked)


@settings(max_examples=100)
@given(ASKED)
def test_whatever_an_anthropic_client_asks_is_translated_or_refused(body: dict[str, object]) -> None:
    """R42, R47"""
    try:
        asked = anthropic_request.as_chat(anthropic_request.read(body), body)
    except RequestError:
        return
    assert asked["stream"] is True and isinstance(asked["messages"], list)


def making() -> Making:
    asked = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "stop_sequences": ["x"],
    }
    return Making(anthropic_request.read(asked), "1")


@settings(max_examples=100)
@given(VALUES, VALUES, VALUES)
def test_whatever_an_engine_answers_is_told_or_is_its_failure(
    said: object, reason: object, usage: object
) -> None:
    """R30: an engine's nonsense is never our bug."""
    fields = {
        "choices": [{"index": 0, "delta": said, "message": said, "finish_reason": reason}],
        "usage": usage,
    }
    text = b"data: " + json.dumps(fields).encode() + b"\n\ndata: [DONE]\n\n"
    telling = Telling("m", chat=True)
    for tell in (
        lambda: list(Translated(telling).feed(text)),
        lambda: list(making().feed(text, "m")),
        lambda: ollama_response.whole(json.loads(json.dumps(fields)), telling),
        lambda: making().take_whole(json.loads(json.dumps(fields)), "m"),
    ):
        try:
            told = tell()
        except EngineFailed:
            continue
        assert isinstance(told, dict | list)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_a_summary_is_always_one_short_line(payload: dict[str, object]) -> None:
    """LANE-05"""
    line = summarize(payload)
    assert line and len(line) <= SUMMARY_CHARS_MAX and line.isprintable()


def lines_without_times(text: bytes) -> list[object]:
    kept = []
    for each in text.splitlines():
        told = json.loads(each)
        kept.append(
            {key: value for key, value in told.items() if key != "created_at" and "duration" not in key}
        )
    return kept


def test_lines_are_the_same_at_every_byte() -> None:
    """LANE-09: translated or passed."""
    chunks = sse(*chat_events("one tw\u00f6 three"))
    translated = Translated(Telling("m", chat=True))
    lines = b"".join([*translated.feed(chunks), translated.end()])
    expected = lines_without_times(lines)
    assert expected[-1]["done"] is True and expected[-1]["eval_count"] == 3
    for cut in range(len(chunks) + 1):
        each = Translated(Telling("m", chat=True))
        told = b"".join([*each.feed(chunks[:cut]), *each.feed(chunks[cut:])])
        assert each.is_done
        assert lines_without_times(told + each.end()) == expected
    for cut in range(len(lines) + 1):
        passed = Passed(Telling("m", chat=True))
        assert b"".join([*passed.feed(lines[:cut]), *passed.feed(lines[cut:]), passed.end()]) == lines
        assert passed.is_done
