"""Readers and writers of streams give the same whatever the network does to the bytes between."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.peer import chat_events, sse
from watchbill.engines.sse import EventReader, EventTooLarge
from watchbill.errors import EngineFailed
from watchbill.gateway import wire
from watchbill.gateway.wire import ChunkReader, LineReader, event, line

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n"), inner, max_size=3),
    max_leaves=8,
)


def pieces_of(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(
    st.lists(VALUES, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=20),
    st.sampled_from(["\n", "\r\n"]),
)
def test_lines_are_the_same_however_they_were_split(
    values: list[object], cuts: list[int], newline: str
) -> None:
    """LANE-09"""
    text = b"".join(line(value) for value in values).replace(b"\n", newline.encode())
    reader = LineReader()
    found = [each for piece in pieces_of(text, cuts) for each in reader.feed(piece)] + reader.end()
    assert [json.loads(each) for each in found] == values


def test_lines_at_every_byte() -> None:
    """LANE-09"""
    text = b'{"a":1}\n\r\n{"b":"\xc3\xa9"}\r\n{"c":3}'
    for cut in range(len(text) + 1):
        reader = LineReader()
        found = reader.feed(text[:cut]) + reader.feed(text[cut:]) + reader.end()
        assert found == [b'{"a":1}', b'{"b":"\xc3\xa9"}', b'{"c":3}'], cut


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """R40: an engine that never ends a line cannot fill the memory."""
    monkeypatch.setattr(wire, "JSON_DECODED_BYTES_MAX", 100)
    reader = LineReader()
    reader.feed(b"x" * 100)
    with pytest.raises(EventTooLarge):
        reader.feed(b"x")
    with pytest.raises(EventTooLarge):
        LineReader().feed(b"y" * 101 + b"\n")


@given(
    st.lists(VALUES, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=20),
    st.sampled_from([None, "ping"]),
)
def test_an_event_that_was_written_is_read_however_it_was_split(
    values: list[object], cuts: list[int], name: str | None
) -> None:
    """LANE-09"""
    text = b"".join(event(value, name) for value in values)
    reader = EventReader()
    found = [each for piece in pieces_of(text, cuts) for each in reader.feed(piece)] + reader.end()
    assert [json.loads(each) for each in found] == values


def test_chunks_at_every_byte() -> None:
    """LANE-09: text, end and usage of a chat come out the same wherever the bytes are cut."""
    text = sse(*chat_events("one tw\u00f6 three"))
    for cut in range(len(text) + 1):
        reader = ChunkReader()
        chunks = [*reader.feed(text[:cut]), *reader.feed(text[cut:])]
        assert "".join(chunk.text for chunk in chunks) == "one tw\u00f6 three"
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        assert [chunk.usage for chunk in chunks if chunk.usage] == [
            {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        ]
        assert reader.is_done


@pytest.mark.parametrize("payload", [b"[1]", b"nonsense", b'{"error": {"message": "it broke"}}', b"\xff"])
def test_what_is_no_chunk_is_the_engines_failure(payload: bytes) -> None:
    with pytest.raises(EngineFailed):
        list(ChunkReader().feed(b"data: " + payload + b"\n\n"))
