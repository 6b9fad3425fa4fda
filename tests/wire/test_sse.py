"""The reader of server-sent events: the same payloads however the bytes were split (R33)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchbill.engines.sse import DONE, EventReader, EventTooLarge
from watchbill.limits import JSON_DECODED_BYTES_MAX

NEWLINES = st.sampled_from([b"\n", b"\r\n", b"\r"])
PAYLOADS = st.lists(
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")), max_size=6
)


def read(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [payload for piece in pieces for payload in reader.feed(piece)] + reader.end()


def feed_all(reader: EventReader, pieces: list[bytes]) -> None:
    for piece in pieces:
        reader.feed(piece)


def cut(text: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(at)]


@given(PAYLOADS, NEWLINES, st.lists(st.integers(0, 10_000), max_size=12))
def test_every_split_gives_the_same_payloads(
    payloads: list[bytes], newline: bytes, places: list[int]
) -> None:
    """R33: any newline, any split."""
    text = b"".join(b"data: " + payload + newline + newline for payload in payloads)
    assert read(cut(text, places)) == payloads


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_bytes_at_all_read_the_same_in_any_split(text: bytes, places: list[int]) -> None:
    """R33: garbage is garbage, however it is cut, and never raises."""
    assert read(cut(text, places)) == read([text])


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_fields_comments_and_several_lines_follow_the_standard(newline: bytes) -> None:
    """R33"""
    text = b"\xef\xbb\xbf: hello\nid: 7\nevent: x\ndata: one\ndata:two\ndata\n\nretry: 5\n\ndata:  [DONE]\n\n"
    text = text.replace(b"\n", newline)
    assert read([text]) == [b"one\ntwo\n", b" " + DONE]
    assert read([text[at : at + 1] for at in range(len(text))]) == [b"one\ntwo\n", b" " + DONE]


def test_an_event_without_its_end_is_not_given_out() -> None:
    """R33: half an event is a cut, and is seen as one."""
    reader = EventReader()
    assert reader.feed(b"data: a\n\ndata: b\n") == [b"a"]
    assert not reader.is_between_events
    assert reader.end() == []


@pytest.mark.parametrize("line", [b"data: ", b": ", b""], ids=["data", "comment", "nothing"])
def test_a_line_that_never_ends_is_refused(line: bytes) -> None:
    """R33: a huge frame is an error, not memory."""
    reader = EventReader()
    block = b"x" * (1 << 20)
    with pytest.raises(EventTooLarge):
        feed_all(reader, [line, *[block] * (JSON_DECODED_BYTES_MAX // len(block) + 2)])


def test_an_event_of_endless_lines_is_refused() -> None:
    """R33: many small lines without a blank one are a huge frame, too."""
    reader = EventReader()
    block = b"data: x\n" * (1 << 12)
    with pytest.raises(EventTooLarge):
        feed_all(reader, [block] * (JSON_DECODED_BYTES_MAX // len(block) * 8))
