"""A whole answer from a stream is the same whichever way its events are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.peer import sse
from watchbill.errors import EngineFailed
from watchbill.gateway.assemble import Assembly
from watchbill.limits import ASSEMBLY_EVENTS_HELD

Fields = dict[str, object]

DELTAS = st.fixed_dictionaries(
    {}, optional={"content": st.none() | st.text(max_size=5), "role": st.just("assistant")}
)
CHOICES = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "delta": DELTAS},
    optional={"finish_reason": st.sampled_from([None, "stop", "length"]), "logprobs": st.none()},
)
EVENTS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["1", "2"]),
        "object": st.just("chat.completion.chunk"),
        "created": st.just(1),
        "model": st.just("m"),
        "choices": st.lists(CHOICES, max_size=3),
    },
    optional={
        "usage": st.sampled_from([None, {"completion_tokens": 3}]),
        "system_fingerprint": st.sampled_from([None, "b1"]),
        "timings": st.just({"predicted_ms": 1.5}),
    },
)


def assemble(*events: object) -> Fields:
    assembly = Assembly(chat=True)
    assembly.feed(sse(*events, "[DONE]"))
    return assembly.result()


@given(st.lists(EVENTS, max_size=6))
def test_plain_events_are_read_as_any_others(events: list[Fields]) -> None:
    """LANE-07: a field that nobody has heard of sends every event the long way; the answer is the same."""
    answer = assemble(*({**event, "unheard": 1} for event in events))
    assert answer.pop("unheard", 1) == 1
    assert assemble(*events) == answer


def test_an_event_after_the_end_of_a_batch_continues_the_same_text() -> None:
    event = {"id": "1", "object": "o", "created": 1, "model": "m"}
    words = [{**event, "choices": [{"delta": {"content": f"{n} "}}]} for n in range(3 * ASSEMBLY_EVENTS_HELD)]
    assembly = Assembly(chat=True)
    for word in words:
        assembly.feed(sse(word))
    assembly.feed(sse("[DONE]"))
    choices = assembly.result()["choices"]
    assert isinstance(choices, list)
    assert choices[0]["message"]["content"].split() == [str(n) for n in range(len(words))]


def test_two_objects_in_one_event_are_garbage() -> None:
    """Read at once, they would look like two events."""
    event = b'{"id":"1","object":"o","created":1,"model":"m","choices":[]}'
    assembly = Assembly(chat=True)
    assembly.feed(b"data: " + event + b"," + event + b"\n\ndata: [DONE]\n\n")
    with pytest.raises(EngineFailed):
        assembly.result()
