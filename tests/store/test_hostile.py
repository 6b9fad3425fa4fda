"""Hostile files and hostile JSON: refused or quarantined with a reason, never a hang, never a block."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchbill.spool import EventRefused, Spool
from watchbill.spool.events import decode, encode
from watchbill.spool.inspect import State, entries, stats
from watchbill.spool.names import attempt_of, is_event, safe_stem, stem_of, with_attempt

BAD_JSON = {
    "empty": b"",
    "blank": b"   \n",
    "binary": bytes(range(256)),
    "truncated": b'{"id": "1", "te',
    "two lines": b'{"id": 1}\n{"id": 2}\n',
    "array": b"[1, 2]",
    "number": b"1",
    "NaN": b'{"id": NaN}',
    "infinity": b'{"id": -Infinity}',
    "duplicate key": b'{"id": 1, "id": 2}',
    "inner duplicate": b'{"id": 1, "x": {"a": 1, "a": 1}}',
    "lone surrogate": b'{"id": "\\ud800"}',
    "raw surrogate": b'{"id": "\xed\xa0\x80"}',
    "deep list": b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "long integer": b'{"id": ' + b"9" * 100_000 + b"}",
    "byte order mark": b'\xef\xbb\xbf{"id": 1}',
    "nul": b'{"id": "\x00"}',
}


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_unparsable_files_go_to_poison_with_their_bytes_and_a_reason(tmp_path: Path, content: bytes) -> None:
    """SPOOL-06, R42: each kind of bad JSON is quarantined unchanged and the next event is delivered."""
    with Spool(tmp_path, durability="none") as spool:
        (tmp_path / "queue" / "0000000001-bad.jsonl").write_bytes(content)
        spool.enqueue({"id": "next"})
        item = spool.lease()
        assert item is not None
        assert item.event == {"id": "next"}
        (bad,) = entries(spool, State.POISON)
        assert bad.path.read_bytes() == content
        assert bad.reason["reason"]


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_the_same_is_refused_at_the_door(tmp_path: Path, content: bytes) -> None:
    """SPOOL-02: enqueue refuses what a drain would have to poison."""
    with Spool(tmp_path, durability="none") as spool, pytest.raises(EventRefused):
        spool.enqueue(content)


@pytest.mark.parametrize(
    "event",
    [{"x": float("inf")}, {"x": "\ud800"}, {"x": {1, 2}}, {"x": b"bytes"}, [1], None, 7],
    ids=repr,
)
def test_python_values_that_are_no_json_are_refused(tmp_path: Path, event: object) -> None:
    """SPOOL-02: with EventRefused (400), not with a TypeError from within."""
    with Spool(tmp_path, durability="none") as spool, pytest.raises(EventRefused):
        spool.enqueue(event)  # type: ignore[arg-type]


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    """SPOOL-02: neither a hang nor a crash."""
    knot: dict[str, object] = {}
    knot["self"] = knot
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(5_000):
        inner["a"] = inner = {}
    with Spool(tmp_path, durability="none") as spool:
        for event in (knot, deep):
            with pytest.raises(EventRefused):
                spool.enqueue(event)


def test_special_files_are_never_opened_and_never_block(tmp_path: Path) -> None:
    """SPOOL-06, R50: symlink, dangling link, FIFO, folder, sparse giant, devices; all end in poison, and the
    file that a link points to is not read."""
    secret = tmp_path / "secret"
    secret.write_text('{"id": "secret"}')
    path = tmp_path / "spool"
    with Spool(path, durability="none") as spool:
        queue = path / "queue"
        (queue / "link.jsonl").symlink_to(secret)
        (queue / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
        os.mkfifo(queue / "fifo.jsonl")
        with open(queue / "giant.jsonl", "wb") as file:
            file.truncate(10 * 1024**3)
        expected = 4
        if os.geteuid() == 0:
            os.mknod(queue / "zero.jsonl", 0o20666, os.makedev(1, 5))
            os.mknod(queue / "1000000000000000000-0123456789abcdef~0.jsonl", 0o20666, os.makedev(1, 5))
            expected = 6
        (queue / "folder.jsonl").mkdir()
        (queue / "folder.jsonl" / "inside.jsonl").write_text('{"id": "inside"}')
        spool.enqueue({"id": "next"})
        seen = [item.event["id"] for item in iter(spool.lease, None)]
        assert sorted(seen) == ["inside", "next"]
        poisoned = list(entries(spool, State.POISON))
        assert len(poisoned) == expected
        for entry in poisoned:
            wanted = "larger than" if entry.name.startswith("giant") else "not a regular file but a "
            assert wanted in entry.reason["reason"]
        assert secret.read_text() == '{"id": "secret"}'


def test_hostile_names_stay_inside_the_spool(tmp_path: Path) -> None:
    """SPOOL-03, R49: names of 250 bytes, with newlines, quotes, bytes that are no text."""
    path = tmp_path / "spool"
    hostile = [
        "a" * 249,
        "new\nline",
        "-rf",
        "~",
        "~~3",
        "a~b",
        "*",
        "$(id)",
        "\udcff\udcfe",
        "..x",
        "ü" * 100,
        "\t",
    ]
    with Spool(path, durability="none") as spool:
        for number, stem in enumerate(hostile):
            if not stem.startswith("."):
                Path(path, "queue", stem + ".jsonl").write_text(json.dumps({"id": number}))
        seen = {item.event["id"] for item in iter(spool.lease, None)}
        assert seen == {number for number, stem in enumerate(hostile) if not stem.startswith(".")}
        for item_path in (path / "queue-in-flight").rglob("*.jsonl"):
            assert item_path.name.isprintable()
    assert sorted(os.listdir(tmp_path)) == ["spool"]


def test_an_event_that_is_too_large_is_refused_and_a_large_one_is_not(tmp_path: Path) -> None:
    """SPOOL-06: the size limit has two sides."""
    with Spool(tmp_path, event_bytes_max=1000) as spool:
        spool.enqueue({"t": "x" * 990})
        with pytest.raises(EventRefused, match="limit"):
            spool.enqueue({"t": "x" * 1000})
        (tmp_path / "queue" / "big.jsonl").write_text(json.dumps({"t": "x" * 1000}))
        assert len(list(iter(spool.lease, None))) == 1
        assert stats(spool).poison == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5))
@settings(max_examples=150, deadline=None)
def test_every_event_comes_back_as_it_went_in(event: dict[str, object]) -> None:
    """SPOOL-07: encode and decode are each other's inverse."""
    assert decode(encode(event)) == event


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """SPOOL-06: decode raises EventRefused or returns an object; nothing else ever."""
    try:
        assert isinstance(decode(data), dict)
    except EventRefused:
        return


@given(
    st.text(min_size=1, max_size=80).filter(lambda name: "/" not in name and "\0" not in name),
    st.integers(0, 9),
)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_foreign_name_keeps_one_stem_through_all_attempts(name: str, attempt: int) -> None:
    """SPOOL-03: whatever a foreign producer calls its file, attempts can be told from the rest of the name."""
    safe = safe_stem(name + ".jsonl", 1)
    leased = with_attempt(safe, attempt)
    assert attempt_of(leased) == attempt
    assert stem_of(leased) == stem_of(with_attempt(leased, attempt + 1))
    assert is_event(leased)
    assert "/" not in leased
    assert leased.isprintable()


def test_text_that_cannot_be_encoded_is_refused(tmp_path: Path) -> None:
    """SPOOL-06: a lone surrogate in an event given as text is the event's fault, said in our words."""
    with Spool(tmp_path) as spool, pytest.raises(EventRefused, match="lone surrogate"):
        spool.enqueue('{"id": "\ud800"}')


def test_a_mark_that_cannot_be_seen_is_named() -> None:
    """SPOOL-06: the reason says what to do; editors of another system write such marks."""
    with pytest.raises(EventRefused, match="byte order mark"):
        decode(b'\xef\xbb\xbf{"id": "1"}')
