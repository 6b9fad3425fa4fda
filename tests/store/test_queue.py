"""The queue as a user sees it: four folders, exactly one owner, at least once, reasons beside poison."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from watchbill.cli import run
from watchbill.spool import EventRefused, Item, LeaseLost, PoisonEvent, Spool, SpoolLayout
from watchbill.spool import names as names_module
from watchbill.spool import publish as publish_module
from watchbill.spool.inspect import (
    State,
    entries,
    in_folders,
    oldest,
    poison_named,
    release_named,
    requeue,
    show,
    stats,
)

NAME = re.compile(r"\d{19}-[0-9a-f]{16}~0\.jsonl")
MODES = ["wal", "event", "none"]


def files(path: Path, state: str) -> list[str]:
    return sorted(file.name for file in (path / state).rglob("*.jsonl") if "/." not in str(file))


@pytest.mark.parametrize("durability", MODES)
def test_an_event_is_one_readable_file_in_one_folder_at_a_time(path: Path, durability: Any) -> None:
    """SPOOL-01, SPOOL-02, SPOOL-03: queue, in flight, done; the name is a time and 64 random bits."""
    event = {"id": "1", "kind": "note", "ts": 1, "text": "süß ✓"}
    with Spool(path, durability=durability) as spool:
        name = spool.enqueue(event)
        assert NAME.fullmatch(name)
        assert files(path, "queue") == [name]
        assert json.loads((path / "queue" / name).read_bytes()) == event
        with spool.dequeue() as item:
            assert item is not None
            assert (item.event, item.attempt, item.path.read_bytes()[-1:]) == (event, 1, b"\n")
            assert item.name == name.replace("~0", "~1")
            assert (files(path, "queue"), files(path, "queue-in-flight")) == ([], [item.name])
        assert files(path, "queue-done") == [item.name]
        with spool.dequeue() as nothing:
            assert nothing is None
    assert list((path / "queue-wal").glob("*.jsonl")) == []
    assert list((path / "queue-in-flight").iterdir()) == []


@pytest.mark.parametrize("line", [b'{"id": "1",  "a": 1.0}', '{"b":"\\u00fc", "a":1e2}'])
def test_enqueue_never_alters_an_event(path: Path, line: Any) -> None:
    """SPOOL-07: bytes and text go through byte for byte."""
    with Spool(path) as spool:
        name = spool.enqueue(line)
        wanted = line if isinstance(line, bytes) else line.encode()
        assert (path / "queue" / name).read_bytes() == wanted + b"\n"


def test_a_failing_consumer_gets_three_attempts_then_poison_with_a_reason(path: Path) -> None:
    """SPOOL-03, SPOOL-06, R9: an exception is a release, the third one poison; the exception propagates."""
    with Spool(path) as spool:
        name = spool.enqueue({"id": "bad"})
        spool.enqueue({"id": "good"})
        for attempt in (1, 2, 3):
            with pytest.raises(RuntimeError, match="boom"), spool.dequeue() as item:  # noqa: PT012
                assert item is not None
                assert (item.event["id"], item.attempt) == ("bad", attempt)
                raise RuntimeError("boom")
            spool.recover()  # reads the folder again: the released event is the oldest
        poisoned = name.replace("~0", "~3")
        assert files(path, "queue-poison") == [poisoned]
        reason = json.loads((path / "queue-poison" / f"{poisoned}.reason.json").read_bytes())
        assert reason["attempt"] == 3
        assert "RuntimeError: boom" in reason["reason"]
        with spool.dequeue() as item:
            assert item is not None
            assert item.event["id"] == "good"


def test_poison_event_poisons_at_once_and_ctrl_c_blames_nobody(path: Path) -> None:
    """SPOOL-03: PoisonEvent is poison on the first attempt; KeyboardInterrupt is a release, even on the last."""
    with Spool(path, attempts=1) as spool:
        spool.enqueue({"id": "1"})
        with pytest.raises(KeyboardInterrupt), spool.dequeue() as item:
            raise KeyboardInterrupt
        assert stats(spool).queue == 1
        spool.recover()
        with pytest.raises(PoisonEvent), spool.dequeue() as item:  # noqa: PT012
            assert item is not None
            raise PoisonEvent("never again")
        assert stats(spool).poison == 1
        assert next(entries(spool, State.POISON)).reason["reason"] == "never again"


def test_a_consumer_may_settle_by_hand_inside_the_block(path: Path) -> None:
    """SPOOL-03: release, poison and done inside the block are respected; a second settling is refused."""
    with Spool(path) as spool:
        spool.enqueue({"id": "1"})
        with spool.dequeue() as item:
            assert item is not None
            spool.release(item)
        assert stats(spool).queue == 1
        with pytest.raises(LeaseLost):
            spool.done(item)


def leased(spool: Spool) -> Item:
    item = spool.lease()
    assert item is not None
    return item


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("way", ["release", "give_back", "interrupted", "batch"])
def test_an_event_that_its_holder_puts_back_keeps_its_tries(path: Path, way: str, foreign: bool) -> None:
    """SPOOL-06: only a failure uses up a try; whoever cannot work on an event now says nothing about the event."""
    with Spool(path, attempts=2) as spool:
        if foreign:
            (path / "queue" / "theirs.jsonl").write_text('{"id": "1"}\n')
        else:
            spool.enqueue({"id": "1"})
        for _ in range(5):
            match way:
                case "release":
                    spool.release(leased(spool))
                case "give_back":
                    with Spool(path, attempts=2) as other:  # where it rests then; others take it at once
                        other.give_back(leased(other))
                case "interrupted":
                    with pytest.raises(KeyboardInterrupt), spool.dequeue():
                        raise KeyboardInterrupt
                case _:
                    for item in spool.lease_many(9):
                        spool.release(item)
            assert (stats(spool).queue, stats(spool).in_flight) == (1, 0)
        assert not spool.fail(leased(spool), RuntimeError("first"))
        last = leased(spool)
        assert (last.attempt, last.event) == (2, {"id": "1"})
        spool.release(last)
        assert spool.fail(leased(spool), RuntimeError("second"))
        (given_up,) = entries(spool, State.POISON)
        assert (given_up.attempt, given_up.reason["reason"]) == (2, "retries exhausted: RuntimeError: second")


@pytest.mark.parametrize("settle", ["done", "release", "poison", "fail", "give_back"])
def test_a_lease_that_was_settled_does_not_settle_the_one_that_came_after_it(path: Path, settle: str) -> None:
    """SPOOL-03: an event that was put back without a failure is leased under the same name again."""
    with Spool(path) as spool:
        spool.enqueue({"id": "1"})
        before = leased(spool)
        spool.release(before)
        now = leased(spool)
        assert now.path == before.path
        with contextlib.nullcontext() if settle == "give_back" else pytest.raises(LeaseLost):
            match settle:
                case "fail":
                    spool.fail(before, RuntimeError("late"))
                case "poison":
                    spool.poison(before, "late")
                case "done" | "release" | "give_back":
                    getattr(spool, settle)(before)
                case _:
                    raise AssertionError(settle)
        assert (stats(spool).in_flight, spool.in_flight_here) == (1, 1)
        spool.done(now)
        assert stats(spool).done == 1


def test_events_come_in_order_of_arrival_even_when_the_clock_steps_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-04, R16: names rise per writer whatever the clock does."""
    clock = iter([2_000_000_000_000_000_000, 1_000_000_000_000_000_000, 1_500_000_000_000_000_000] * 20)
    monkeypatch.setattr(names_module.time, "time_ns", lambda: next(clock))
    with Spool(path, durability="none") as spool:
        for number in range(20):
            spool.enqueue({"id": number})
        seen = [spool.lease() for _ in range(20)]
    assert [item.event["id"] for item in seen if item] == list(range(20))


def test_foreign_files_are_taken_in_order_and_temporary_ones_are_not(path: Path) -> None:
    """SPOOL-02, R12: any program enqueues by write and rename; hidden, temporary and foreign files stay."""
    with Spool(path) as spool:
        queue = path / "queue"
        for name, age_s in (("b.jsonl", 20), ("a.jsonl", 10), ("1000000000-x.jsonl", 0)):
            temporary = queue / f".{name}"
            temporary.write_text(json.dumps({"id": name}) + "\n")
            os.utime(temporary, (time.time() - age_s, time.time() - age_s))
            temporary.rename(queue / name)
        for ignored in (".hidden.jsonl", "half.jsonl.tmp", "README", "x.json"):
            (queue / ignored).write_text("not an event")
        spool.enqueue({"id": "ours"})
        (queue / "team").mkdir()
        (queue / "team" / "c.jsonl").write_text('{"id": "c.jsonl"}')
        seen: list[str] = []
        while (item := spool.lease()) is not None:
            seen.append(item.event["id"])
            spool.done(item)
    assert seen[0] == "1000000000-x.jsonl"
    assert [each for each in seen if each != "c.jsonl"] == [
        "1000000000-x.jsonl",
        "b.jsonl",
        "a.jsonl",
        "ours",
    ]
    assert len(seen) == 5
    assert (path / "queue" / ".hidden.jsonl").exists()
    assert (path / "queue" / "README").exists()


def test_a_foreign_name_used_twice_replaces_nothing(path: Path) -> None:
    """SPOOL-03: rename overwrites silently; a name that a foreign producer uses again must not lose a file."""
    with Spool(path) as spool:
        for number in range(3):
            (path / "queue" / "same.jsonl").write_text(json.dumps({"id": number}))
            item = spool.lease()
            assert item is not None
            assert item.event["id"] == number
        assert len(files(path, "queue-in-flight")) == 3
        spool.recover()
    with Spool(path) as other:
        other.recover()
        items = list(iter(other.lease, None))
        assert {item.event["id"] for item in items} == {0, 1, 2}
        for item in items:
            other.done(item)
    assert len(files(path, "queue-done")) == 3


def test_a_file_that_vanishes_between_listing_and_claim_is_a_lost_race(path: Path) -> None:
    """R12: the claim goes on with the next one."""
    with Spool(path) as spool:
        names = [spool.enqueue({"id": number}) for number in range(3)]
        assert spool.lease() is not None  # the listing is in memory now
        (path / "queue" / names[1]).unlink()
        item = spool.lease()
        assert item is not None
        assert item.event["id"] == 2


def test_many_waiting_files_go_into_buckets_and_come_out_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-01, R11: past the bound a writer fills folders; emptied ones go; nothing is skipped."""
    monkeypatch.setattr(publish_module, "FLAT_FILES_MAX", 40)
    monkeypatch.setattr(publish_module, "FLAT_LOOK_EVERY", 10)
    monkeypatch.setattr(publish_module, "BUCKET_FILES_MAX", 25)
    with Spool(path, durability="none") as spool:
        for number in range(300):
            spool.enqueue({"id": number})
        buckets = [
            name for name in os.listdir(path / "queue") if not name.startswith(".") and "~" not in name
        ]
        assert len(buckets) >= 8
        assert stats(spool).queue == 300
        seen = [item.event["id"] for item in iter(spool.lease, None)]
        assert seen == list(range(300))
        assert spool.lease() is None
        left = [name for name in os.listdir(path / "queue") if not name.startswith(".")]
        assert len(left) <= 1  # the bucket that the living writer may still fill
        spool.enqueue({"id": "last"})
        item = spool.lease()
        assert item is not None
        assert item.event["id"] == "last"


@pytest.mark.parametrize("waiting", [200, 2_000])
def test_a_claim_costs_the_same_however_many_files_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """R11: the queue is listed once for many claims, not for each."""
    listed: list[object] = []
    listing = os.listdir

    def counted(folder: int | str = ".") -> list[str]:
        listed.append(folder)
        return listing(folder)

    with Spool(path, durability="none") as spool:
        for number in range(waiting):
            spool.enqueue({"id": number})
        monkeypatch.setattr(os, "listdir", counted)
        seen = [item.event["id"] for item in itertools.islice(iter(spool.lease, None), 150)]
    assert seen == list(range(150))
    assert len(listed) <= 30  # a look now and then, never one for each claim


def test_a_few_thousand_waiting_events_all_lie_where_ls_shows_them(path: Path) -> None:
    """SPOOL-01: one by one and in batches, `ls queue/` counts what waits; what lies in folders is said."""
    with Spool(path, durability="none") as spool:
        for number in range(2_100):
            spool.enqueue({"id": number})
        for first in range(0, 4_000, 1_000):
            spool.enqueue_many([{"id": f"{first + number}"} for number in range(1_000)])
        assert sum(name.endswith(".jsonl") for name in os.listdir(path / "queue")) == 6_100
        assert in_folders(spool) == 0


@pytest.mark.parametrize("batch", [1, 30])
def test_a_writer_returns_to_flat_files_when_most_are_consumed(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    """SPOOL-01, R11: folders only while many wait; `spool list` says how many lie in them and how to see them."""
    monkeypatch.setattr(publish_module, "FLAT_FILES_MAX", 60)
    monkeypatch.setattr(publish_module, "FLAT_LOOK_EVERY", 30)

    def flat() -> int:
        return sum(name.endswith(".jsonl") for name in os.listdir(path / "queue"))

    with Spool(path, durability="none") as spool:
        for first in range(0, 300, batch):
            spool.enqueue_many([{"id": first + number} for number in range(batch)])
        assert flat() <= 90 + batch
        assert in_folders(spool) == 300 - flat() > 0
        assert run(["spool", "list", "--spool", str(path), "-n", "1"]) == 0
        said = capsys.readouterr().err
        assert f"{in_folders(spool)} of those that wait lie in sub-folders" in said
        assert f"find {path}/queue -name '*.jsonl'" in said
        assert [item.event["id"] for item in iter(spool.lease, None)] == list(range(300))
        for first in range(0, 120, batch):
            spool.enqueue_many([{"id": first + number} for number in range(batch)])
        assert flat() >= 30
        assert [item.event["id"] for item in iter(spool.lease, None)] == list(range(120))


@pytest.mark.parametrize("durability", MODES)
def test_enqueue_many_has_one_durability_point_and_keeps_order(path: Path, durability: Any) -> None:
    """SPOOL-02: a batch of any size; the visible files are single events all the same."""
    with Spool(path, durability=durability) as spool:
        for size in (1, 5, 100):
            assert len(spool.enqueue_many([{"id": f"{size}-{number}"} for number in range(size)])) == size
        assert stats(spool).queue == 106
        seen = [item.event["id"] for item in iter(spool.lease, None)]
    assert seen == [f"{size}-{number}" for size in (1, 5, 100) for number in range(size)]


def test_a_bundle_is_leased_as_one_and_a_bad_line_is_split_out(path: Path) -> None:
    """SPOOL-01, SPOOL-06: many lines in one file; the bad one goes to poison, the rest is delivered."""
    with Spool(path) as spool:
        (name,) = spool.enqueue_many([{"id": number} for number in range(3)], bundle=True)
        assert name.endswith(".n3~0.bundle.jsonl")
        assert stats(spool).queue == 3
        file = path / "queue" / name
        file.write_bytes(file.read_bytes().replace(b'{"id":1}', b'{"id":NaN}'))
        with spool.dequeue() as item:
            assert item is not None
            assert [event["id"] for event in item.events] == [0, 2]
            with pytest.raises(EventRefused, match="bundle"):
                _ = item.event
        bad = next(entries(spool, State.POISON))
        assert (bad.path.read_bytes(), bad.reason["line"]) == (b'{"id":NaN}\n', 2)


def test_a_batch_with_one_refused_event_stores_nothing(path: Path) -> None:
    """SPOOL-02: all or none."""
    with Spool(path) as spool:
        with pytest.raises(EventRefused):
            spool.enqueue_many([{"id": 1}, {"id": float("nan")}])
        assert stats(spool).queue == 0


def test_threads_share_syncs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-02: group commit: many producers at once need far fewer syncs than events, and all are there."""
    syncs = 0
    real = os.fdatasync

    def slow(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        time.sleep(0.002)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    names: list[str] = []
    with Spool(path) as spool:
        threads = [
            threading.Thread(target=lambda: names.extend(spool.enqueue({"id": n}) for n in range(20)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(names)) == 320
        assert stats(spool).queue == 320
    assert syncs < 160


def test_a_forked_child_starts_afresh_and_does_not_keep_its_parents_leases(
    path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-05: the child enqueues with a log of its own, and a parent that dies is seen as dead although the
    child that inherited its descriptors lives."""
    spool = Spool(path)
    spool.enqueue({"id": "parent"})
    assert child(lambda say: say(spool.enqueue({"id": "child"}))).join()[0] != ""

    def parent(say: Callable[[object], None]) -> None:
        mine = Spool(path)
        assert mine.lease() is not None
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(30)
            os._exit(0)
        say(grandchild)
        os._exit(0)

    grandchild = child(parent).first()
    assert isinstance(grandchild, int)
    try:
        wait_until(lambda: spool.recover(start=False).returned, 20)  # before the grandchild ends by itself
    finally:
        os.kill(grandchild, 9)
    assert stats(spool).queue == 2
    spool.close()


def test_spool_is_inspected_and_mended_by_hand_while_workers_run(path: Path) -> None:
    """SPOOL-06: poison is shown with its reason, edited, requeued with all its attempts; a living worker's
    lease is not taken away without force."""
    with Spool(path) as spool:
        spool.enqueue(b'{"id": "1", "n": 1}')
        item = spool.lease()
        assert item is not None
        with pytest.raises(SpoolLayout, match="alive"):
            release_named(spool, item.name)
        release_named(spool, item.name, force=True)
        poison_named(spool, item.name, "wrong number")
        entry, content = show(spool, item.name)
        assert (entry.state, entry.reason["reason"], content) == (
            State.POISON,
            "wrong number",
            b'{"id": "1", "n": 1}\n',
        )
        entry.path.write_bytes(b'{"id": "1", "n": 2}\n')
        name = requeue(spool, item.name)
        assert name.endswith("~0.jsonl")
        assert [file.name for file in (path / "queue-poison").iterdir()] == []
        spool.recover()
        with spool.dequeue() as again:
            assert again is not None
            assert (again.event["n"], again.attempt) == (2, 1)
        with pytest.raises(SpoolLayout, match="no event"):
            requeue(spool, "0000000000000000000-0000000000000000~0.jsonl")


def test_stats_has_the_keys_that_scripts_rely_on(path: Path) -> None:
    """SPOOL-01: queue, in_flight, done, poison, oldest_ms."""
    with Spool(path) as spool:
        assert stats(spool).as_dict() == {
            "queue": 0, "in_flight": 0, "done": 0, "poison": 0, "oldest_ms": None, "unreplayed": 0,
        }  # fmt: skip
        spool.enqueue({"id": 1})
        spool.enqueue({"id": 2})
        assert spool.lease() is not None
        found = stats(spool)
        assert (found.queue, found.in_flight) == (1, 1)
        assert found.oldest_ms is not None
        assert 0 <= found.oldest_ms < 60_000
        assert spool.in_flight_here == 1


def test_folders_on_two_file_systems_are_refused_at_start(
    small_disk: Callable[[str], Path], path: Path
) -> None:
    """SPOOL-01: a lease is a rename; two file systems are found at once, not at the first lease."""
    other = small_disk("size=1m")
    (path / "queue-done").mkdir(parents=True)
    subprocess.run(["mount", "--bind", other, path / "queue-done"], check=True)
    try:
        with pytest.raises(SpoolLayout, match="another file system"):
            Spool(path)
    finally:
        subprocess.run(["umount", "-l", path / "queue-done"], check=True)
    (path / "file").write_text("")
    with pytest.raises(SpoolLayout, match="not a folder"):
        Spool(path / "file")
    with Spool(other / "spool") as spool:
        assert "memory" in spool.warnings()[0]


def test_the_oldest_are_listed_first_and_all_are_counted(path: Path) -> None:
    """SPOOL-01, R11: a listing is bounded by its limit, whatever waits; foreign files stand by their time."""
    with Spool(path, durability="none") as spool:
        names = spool.enqueue_many([{"id": number} for number in range(200)])
        foreign = path / "queue" / "foreign.jsonl"
        foreign.write_bytes(b"{}\n")
        os.utime(foreign, (1, 1))
        found, total = oldest(spool, 3, State.QUEUE)
        assert ([entry.name for entry in found], total) == ([foreign.name, *names[:2]], 201)
        assert oldest(spool, 1000)[1] == 201
        assert oldest(spool, 1000, State.POISON) == ([], 0)


def test_a_name_that_others_made_says_nothing_about_the_number_of_events(path: Path) -> None:
    """SPOOL-03: one line is one event, whatever its file is called."""
    with Spool(path) as spool:
        for state in ("queue-done", "queue"):
            (path / state / "x.n100000.bundle.jsonl").write_bytes(b'{"id":"1","kind":"k","ts":0}\n')
        found = stats(spool)
        assert (found.queue, found.done) == (1, 1)


def test_files_that_are_no_events_are_warned_about(path: Path) -> None:
    """SPOOL-03: they would wait in vain; temporary and hidden ones are their producers' affair."""
    with Spool(path) as spool:
        before = spool.warnings()
        for name in ("a.json", "b.jsonl.gz", ".hidden", "c.tmp", "d.jsonl"):
            (path / "queue" / name).write_bytes(b"{}")
        [warning] = [each for each in spool.warnings() if each not in before]
        assert "2 files" in warning and "a.json" in warning
