"""A batch as a state machine, and the order in which the lines of models are asked."""

import itertools
import json

import msgspec
import pytest

from watchbill.batches import batch as b
from watchbill.batches.limits import BATCH_TURN_MS
from watchbill.batches.order import choose
from watchbill.batches.usage import Tokens, tokens_of
from watchbill.errors import IllegalTransition

CREATED = b.Created(
    1000, "batch_1", "", b.Dialect.OPENAI, "/v1/chat/completions", "file-1", "24h", 86_400_000
)


def answer(line: int, status: int = 200) -> b.Answered:
    return b.Answered(2000, line, status, "r", msgspec.Raw(b"{}"))


EVENTS: dict[type[b.Event], b.Event] = {
    b.Validated: b.Validated(2000, 2),
    b.Rejected: b.Rejected(2000, [b.Fault("empty_file", "nothing")]),
    b.Answered: answer(0),
    b.AllAnswered: b.AllAnswered(2000),
    b.TimeUp: b.TimeUp(2000),
    b.CancelAsked: b.CancelAsked(2000),
    b.Written: b.Written(2000, "file-2", None),
}
#: The way to each stage.
WAYS: dict[b.Stage, list[b.Event]] = {
    b.Stage.VALIDATING: [],
    b.Stage.IN_PROGRESS: [EVENTS[b.Validated]],
    b.Stage.FINALIZING: [EVENTS[b.Validated], answer(0), answer(1, 400), EVENTS[b.AllAnswered]],
    b.Stage.EXPIRING: [EVENTS[b.Validated], EVENTS[b.TimeUp]],
    b.Stage.CANCELLING: [EVENTS[b.Validated], EVENTS[b.CancelAsked]],
    b.Stage.FAILED: [EVENTS[b.Rejected]],
}
WAYS |= {
    b.Stage.COMPLETED: [*WAYS[b.Stage.FINALIZING], EVENTS[b.Written]],
    b.Stage.EXPIRED: [*WAYS[b.Stage.EXPIRING], EVENTS[b.Written]],
    b.Stage.CANCELLED: [*WAYS[b.Stage.CANCELLING], EVENTS[b.Written]],
}


def at(stage: b.Stage) -> b.Batch:
    batch = b.Batch(CREATED)
    for event in WAYS[stage]:
        batch.apply(event)
    assert batch.stage is stage
    return batch


@pytest.mark.parametrize(("stage", "kind"), list(itertools.product(b.Stage, EVENTS)))
def test_an_event_does_what_the_table_says_or_nothing_at_all(stage: b.Stage, kind: type[b.Event]) -> None:
    """R57: an event that cannot happen leaves the batch as it was."""
    batch, event = at(stage), EVENTS[kind]
    before = batch.ended()
    if batch.takes(event):
        batch.apply(event)
        assert batch.stage is b.NEXT[stage, kind]
        return
    with pytest.raises(IllegalTransition):
        batch.apply(event)
    assert batch.ended() == before
    is_early = (stage, kind) == (b.Stage.IN_PROGRESS, b.AllAnswered)
    assert (stage, kind) not in b.NEXT or is_early


def test_a_line_is_answered_once() -> None:
    """P2: a second answer, and one to a line that is not there, change nothing; failures are counted apart."""
    batch = at(b.Stage.IN_PROGRESS)
    batch.apply(answer(1, 404))
    assert [batch.takes(answer(line)) for line in (-1, 0, 1, 2)] == [False, True, False, False]
    assert (batch.completed, batch.failed, batch.remaining, list(batch.unanswered())) == (0, 1, 1, [0])


def test_what_is_kept_of_a_batch_makes_the_same_batch() -> None:
    """R57: a batch that ended is the same after a restart."""
    ended = at(b.Stage.COMPLETED).ended()
    kept = msgspec.json.decode(msgspec.json.encode(ended), type=b.EndedBatch)
    assert kept == ended
    assert b.Batch.restored(kept).ended() == ended


def test_models_in_memory_are_asked_first_and_one_other_at_a_time() -> None:
    """RES-11: loads stay few."""
    waiting = {"b": 10, "a": 10, "c": 5}
    assert choose({}, {"a"}, 20) == []
    assert choose(waiting, set(), 20) == ["c"]
    assert choose(waiting, {"a", "b", "other"}, 20) == ["b", "a"]
    assert choose({"b": 10, "a": 10}, set(), 20) == choose({"a": 10, "b": 10}, set(), 20) == ["a"]


def test_a_model_whose_lines_waited_for_a_turn_goes_before_those_in_memory() -> None:
    """R22: an endless supply of lines for one model does not hold up another."""
    assert choose({"warm": 0, "cold": 0}, {"warm"}, BATCH_TURN_MS - 1) == ["warm"]
    assert choose({"warm": BATCH_TURN_MS, "cold": 0}, {"warm"}, BATCH_TURN_MS) == ["cold"]
    assert choose({"warm": 0, "cold": 5}, {"warm"}, BATCH_TURN_MS) == ["warm"]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, Tokens(3, 2)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}, Tokens(3, 0, 1)),
        (
            {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2,
             "output_tokens_details": {"reasoning_tokens": 1}}, Tokens(3, 2, 1, 1),
        ),
        (None, Tokens()), ({"prompt_tokens": -3, "completion_tokens": 2}, Tokens(0, 2)), ("many", Tokens()),
        ({"prompt_tokens": 10**30}, Tokens()), ({"prompt_tokens": 2**63}, Tokens()), ({"prompt_tokens": 1.5}, Tokens()),
        ({"prompt_tokens": None, "completion_tokens": None}, Tokens()),
    ],
)  # fmt: skip
def test_tokens_are_those_that_an_answer_tells(usage: object, tokens: Tokens) -> None:
    """LANE-08: in the words of every endpoint; what makes no sense counts as none."""
    assert tokens_of(msgspec.Raw(json.dumps({"odd": [1], "usage": usage}).encode())) == tokens


def test_a_batch_that_an_earlier_version_ended_is_read() -> None:
    """R57: it tells neither tokens nor a model."""
    fields = msgspec.json.decode(msgspec.json.encode(at(b.Stage.COMPLETED).ended()))
    del fields["tokens"], fields["model"]
    kept = msgspec.json.decode(msgspec.json.encode(fields), type=b.EndedBatch)
    assert (b.Batch.restored(kept).tokens, kept.stage) == (None, b.Stage.COMPLETED)
