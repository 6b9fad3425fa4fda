"""A whole answer from a stream is the same whichever way its events are read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.peer import sse
from watchbill.errors import EngineFailed
from watchbill.gateway.answers import EngineRefused
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.limits import ASSEMBLY_HELD_BYTES

Fields = dict[str, object]

#: The word "error" has what is held read at once, and so ends a batch.
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | st.text(max_size=5) | st.just("error"),
        "role": st.just("assistant"),
    },
)
CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from([0, 0, 0, 1, 2]), "delta": DELTAS},
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
    return put_together(sse(*events, "[DONE]"))


def put_together(*pieces: bytes) -> Fields:
    assembly = Assembly(chat=True)
    for piece in pieces:
        assembly.feed(piece)
    return assembly.result()


@given(st.lists(EVENTS, min_size=1, max_size=6))
def test_plain_events_are_read_as_any_others(events: list[Fields]) -> None:
    """LANE-07: a field that nobody has heard of sends every event the long way; the answer is the same."""
    answer = assemble(*({**event, "unheard": 1} for event in events))
    assert answer.pop("unheard", 1) == 1
    assert assemble(*events) == answer


@given(st.lists(st.tuples(EVENTS, st.booleans()), min_size=1, max_size=12))
def test_plain_events_and_others_take_turns(events: list[tuple[Fields, bool]]) -> None:
    """LANE-07: what plain events said goes before what a later event says, in any mixture of them."""
    mixed, general = Assembly(chat=True), Assembly(chat=True)
    for event, is_plain in events:
        mixed.feed(sse(event if is_plain else {**event, "unheard": 1}))
        general.feed(sse({**event, "unheard": 1}))
    mixed.feed(sse("[DONE]"))
    general.feed(sse("[DONE]"))
    answer, expected = mixed.result(), general.result()
    answer.pop("unheard", None)
    expected.pop("unheard", None)
    assert answer == expected


def test_words_of_an_event_without_names_are_kept() -> None:
    """LANE-07: an event may carry nothing but its choices, and plain ones may follow."""
    end = {"id": "1", "object": "o", "created": 1, "model": "m", "choices": [{"delta": {"content": "!"}}]}
    answer = put_together(sse({"choices": [{"delta": {"content": "error"}}]}), sse(end, "[DONE]"))
    choices = answer["choices"]
    assert isinstance(choices, list)
    assert choices[0]["message"]["content"] == "error!"


def test_the_fields_of_an_answer_come_in_the_order_that_engines_write() -> None:
    """LANE-07: the same text whichever way the events were read."""
    names = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    word = {"index": 0, "delta": {"role": "assistant", "content": "w"}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events = [
        {**names, "system_fingerprint": "b1", "choices": [word]},
        {**names, "system_fingerprint": "b1", "choices": [end]},
        {**names, "usage": {"completion_tokens": 1}, "timings": {"predicted_ms": 1.5}, "choices": []},
    ]
    plain = msgspec.json.encode(assemble(*events))
    assert plain == (
        b'{"id":"1","object":"chat.completion","created":1,"model":"m","system_fingerprint":"b1",'
        b'"usage":{"completion_tokens":1},"timings":{"predicted_ms":1.5},"choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"w"},"logprobs":null,"finish_reason":"stop"}]}'
    )
    general = assemble(*({**event, "service_tier": None} for event in events))
    assert msgspec.json.encode(general) == plain


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_that_ends_before_its_answer_is_an_error(chat: bool) -> None:
    """LANE-07: neither the end of a choice nor [DONE] came."""
    event = {"id": "1", "object": "o", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "w"}} if chat else {"index": 0, "text": "w"}
    for events in ([], [{**event, "choices": []}], [{**event, "choices": [choice]}]):
        assembly = Assembly(chat=chat)
        assembly.feed(sse(*events))
        with pytest.raises(EngineFailed):
            assembly.result()


def test_an_error_is_told_however_its_event_is_split() -> None:
    """LANE-07: the word alone, without an event that is complete, is no error yet."""
    event = sse({"error": {"message": "no", "code": 400}})
    for cut in range(len(event)):
        with pytest.raises(EngineRefused, match="no"):
            put_together(event[:cut], event[cut:])


@pytest.mark.parametrize("before", [b"", sse({"id": "1", "choices": [{"delta": {"content": "w"}}]})])
def test_an_error_is_told_as_soon_as_its_event_is_whole(before: bytes) -> None:
    """R31: an engine that falls silent, or breaks off, behind its error is not waited for, and not asked again."""
    event = sse({"error": {"message": "no", "code": 400}})
    for cut in range(event.index(b"error") + 6, len(event)):
        assembly = Assembly(chat=True)
        assembly.feed(before + event[:cut])
        with pytest.raises(EngineRefused, match="no"):
            assembly.feed(event[cut:])


def test_an_event_after_the_end_of_a_batch_continues_the_same_text() -> None:
    event = {"id": "1", "object": "o", "created": 1, "model": "m"}
    words = [
        {**event, "choices": [{"delta": {"content": f"{n} "}}]} for n in range(ASSEMBLY_HELD_BYTES // 30)
    ]
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
