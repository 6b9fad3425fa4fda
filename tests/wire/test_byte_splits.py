"""Streams of every dialect: the answer is the same wherever the engine's bytes were cut."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.peer import sse
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.dialects.anthropic import request as anthropic_request
from watchbill.gateway.dialects.anthropic.response import Making as Message
from watchbill.gateway.dialects.ollama.response import (
    InfillCollector,
    InfillReader,
    Passed,
    Telling,
    Translated,
)
from watchbill.gateway.dialects.responses import request as responses_request
from watchbill.gateway.dialects.responses.response import Making as Response

Tell = Callable[[Iterable[bytes]], object]
BASE = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def delta(**fields: object) -> dict[str, object]:
    return {**BASE, "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(**fields: object) -> dict[str, object]:
    return delta(tool_calls=[{"index": 0, **fields}])


END = {**BASE, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
USED = {**BASE, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}
#: Thoughts, words of several bytes a letter, a call in pieces, signs of life, tokens, the end.
CHAT = b": a sign\n" + sse(
    delta(role="assistant", content=""), delta(reasoning_content="hm\u2026"), delta(content="h\u00e9 "),
    delta(content="\U0001f600\n\n"),
    call(id="x", type="function", function={"name": "look", "arguments": ""}),
    call(function={"arguments": '{"a": "\u00fc'}), call(function={"arguments": '"}'}), END, USED, "[DONE]",
)  # fmt: skip
TEXT = sse(
    *(
        {**BASE, "choices": [{"index": at, "text": text, "finish_reason": end}]}
        for at, text, end in ((0, "\u00e9", None), (1, "b", "stop"), (0, "", "stop"))
    ),
    "[DONE]",
)  # fmt: skip
FILLED = sse(
    {"content": "\u00fcber", "stop": False},
    {"content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 2, "tokens_evaluated": 3},
)
LINES = b"".join(
    json.dumps(each).encode() + b"\n"
    for each in (
        {"model": "n", "message": {"role": "assistant", "content": "h\u00e9"}, "done": False},
        {"model": "n", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"},
    )
)
_CLOCKS = re.compile(r'"(?:created_at|completed_at|[a-z_]*duration)": [^,}]*')
_IDS = re.compile(r"\b(?:resp|msg|rs|fc|call)_[0-9a-zA-Z]+")


def told(value: object) -> str:
    """A value without its times and ids."""
    return _IDS.sub("id", _CLOCKS.sub("", json.dumps(value)))


def lines_of(text: bytes) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]


def translated(pieces: Iterable[bytes], reader: InfillReader | None = None) -> object:
    making = Translated(Telling("m", chat=reader is None, turns=None if reader is None else []), reader)
    said = b"".join(line for piece in pieces for line in making.feed(piece))
    return lines_of(said + making.end()), making.is_done


def passed(pieces: Iterable[bytes]) -> object:
    making = Passed(Telling("m", chat=True))
    said = b"".join(line for piece in pieces for line in making.feed(piece))
    return lines_of(said + making.end()), making.is_done


def assembled(pieces: Iterable[bytes], *, chat: bool) -> object:
    assembly = Assembly(chat=chat)
    for piece in pieces:
        assembly.feed(piece)
    return assembly.result()


def filled(pieces: Iterable[bytes]) -> object:
    collector = InfillCollector()
    for piece in pieces:
        collector.feed(piece)
    return collector.result()


def message(pieces: Iterable[bytes]) -> object:
    body: dict[str, object] = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "stop_sequences": ["zzz"],
    }
    making = Message(anthropic_request.read(body), "id")
    events = [event for piece in pieces for event in making.feed(piece, "m")]
    return [*events, *making.end("m")], making.is_done


def response(pieces: Iterable[bytes]) -> object:
    making = Response(responses_request.read({"model": "m", "input": "x"}), is_stored=False)
    events = [event for piece in pieces for event in making.feed(piece, "m")]
    return [*events, making.end("m")], making.is_done


DIALECTS: dict[str, tuple[Tell, bytes]] = {
    "OpenAI's chat, put together": (lambda pieces: assembled(pieces, chat=True), CHAT),
    "OpenAI's completion, put together": (lambda pieces: assembled(pieces, chat=False), TEXT),
    "Ollama's lines of a chat": (translated, CHAT),
    "Ollama's lines of a text filled in": (lambda pieces: translated(pieces, InfillReader()), FILLED),
    "a text filled in, put together": (filled, FILLED),
    "lines of an Ollama": (passed, LINES),
    "Anthropic's events": (message, CHAT),
    "events of a response": (response, CHAT),
}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_answer_is_the_same_at_every_byte(dialect: str, newline: bytes) -> None:
    """LANE-01: cut in two at each byte, and into single bytes."""
    tell, stream = DIALECTS[dialect]
    stream = stream.replace(b"\n", newline)
    whole = told(tell([stream]))
    for place in range(1, len(stream)):
        assert told(tell([stream[:place], stream[place:]])) == whole, place
    assert told(tell([stream[at : at + 1] for at in range(len(stream))])) == whole


@pytest.mark.parametrize("dialect", DIALECTS)
@given(places=st.lists(st.integers(0, 2000), max_size=12))
def test_the_answer_is_the_same_in_any_pieces(dialect: str, places: list[int]) -> None:
    """LANE-01"""
    tell, stream = DIALECTS[dialect]
    cuts = sorted({0, len(stream), *(place for place in places if place < len(stream))})
    pieces = [stream[begin:end] for begin, end in pairwise(cuts)]
    assert told(tell(pieces)) == told(tell([stream]))
