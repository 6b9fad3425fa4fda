"""The drain: from the queue into the corpus, each event once, whatever dies or fills up on the way."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.killing import CALLS, Traced, deadly, life, some
from watchbill.errors import ConfigError
from watchbill.spool import (
    AnyObject,
    Corpus,
    Drain,
    DrainReport,
    JsonSchema,
    PoisonEvent,
    Spool,
    SpoolBroken,
    drain_all,
    reader,
)
from watchbill.spool import consumer as consumer_module
from watchbill.spool import drain as drain_module
from watchbill.spool import queue as queue_module
from watchbill.spool.inspect import State, entries, stats

Say = Callable[[object], None]


def event(number: int | str, **rest: object) -> dict[str, object]:
    return {"id": str(number), "kind": "note", "ts": 1, **rest}


def ids(corpus: Path) -> list[str]:
    return [line.id for line in reader.read(corpus, unique=False)]


def test_events_reach_the_corpus_unchanged_and_in_order(path: Path, corpus: Path) -> None:
    """SPOOL-04, SPOOL-07: single events, batches, bundles and foreign bytes, in order of arrival."""
    odd = b'{"ts": 1.50,  "kind":"note","id":"odd", "text":"\\u00e4"}'
    with Spool(path) as spool:
        spool.enqueue(event(0))
        spool.enqueue(odd)
        spool.enqueue_many([event(number) for number in range(1, 60)])
        spool.enqueue_many([event(number) for number in range(60, 70)], bundle=True)
        seen: list[int] = []
        drain = Drain(spool, Corpus(corpus), progress=lambda report: seen.append(report.appended))
        report = drain.run_once()
        assert (report.appended, report.poisoned) == (71, 0)
        assert ids(corpus) == ["0", "odd", *(str(number) for number in range(1, 70))]
        assert corpus.read_bytes().split(b"\n")[1] == odd
        assert stats(spool).done == 71
        assert seen[-1] == 71


def test_invalid_events_go_to_poison_and_never_block(path: Path, corpus: Path) -> None:
    """SPOOL-06: the built-in schema wants id, kind and ts; a bundle loses only its bad line."""
    with Spool(path) as spool:
        bad = [
            {"kind": "k", "ts": 1},
            {"id": "1", "ts": 1},
            {"id": "1", "kind": "k"},
            {"id": True, "kind": "k", "ts": 1},
        ]
        for each in bad:
            spool.enqueue(each)
        spool.enqueue(event("good"))
        spool.enqueue_many([event("a"), {"id": "b"}, event("c")], bundle=True)
        report = Drain(spool, Corpus(corpus)).run_once()
        assert (report.appended, report.poisoned) == (3, 5)
        assert ids(corpus) == ["good", "a", "c"]
        reasons = sorted(entry.reason["reason"] for entry in entries(spool, State.POISON))
        assert reasons == [
            "schema: `id` is missing", "schema: `id` must be a text or an integer", "schema: `kind` is missing",
            "schema: `kind` is missing", "schema: `ts` is missing",
        ]  # fmt: skip


def test_what_is_no_event_at_all_is_counted_with_the_poisoned(path: Path, corpus: Path) -> None:
    """SPOOL-06: unreadable files, bad lines of a bundle and worn out leases: the count is what lies in poison."""
    with Spool(path, foreign_lease_s=0) as spool:
        queue = spool.layout.folder(State.QUEUE)
        (queue / "junk.jsonl").write_bytes(b"\xff\x00")
        (queue / "empty.jsonl").touch()
        (queue / "link.jsonl").symlink_to("/dev/null")
        (queue / "x.bundle.jsonl").write_text(json.dumps(event("a")) + "\nno\n")
        spool.enqueue({"id": "no kind"})
        worn_out = spool.layout.folder(State.IN_FLIGHT) / "gone~2.jsonl"
        worn_out.write_text(json.dumps(event("b")))
        report = Drain(spool, Corpus(corpus)).run_once()
        assert (report.appended, report.poisoned) == (1, 6)
        assert stats(spool).poison == 6
        assert Drain(spool, Corpus(corpus)).run_once().poisoned == 0


def test_a_json_schema_file_judges_events(path: Path, corpus: Path, tmp_path: Path) -> None:
    """SPOOL-04, SPOOL-06: with the path of what is wrong in the reason; a bad schema file is a config error."""
    pytest.importorskip("jsonschema_rs", reason="needs the extra watchbill[schema]")
    schema = tmp_path / "schema.json"
    schema.write_text(
        json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    )
    with Spool(path) as spool:
        spool.enqueue({"n": 1})
        spool.enqueue({"n": "one"})
        report = Drain(spool, Corpus(corpus), schema=JsonSchema.read(schema)).run_once()
        assert (report.appended, report.poisoned) == (1, 1)
        (bad,) = entries(spool, State.POISON)
        assert bad.reason["reason"].startswith("schema: n: ")
    schema.write_text("{")
    with pytest.raises(ConfigError):
        JsonSchema.read(schema)


def test_an_event_too_deep_for_the_validator_is_poisoned(path: Path, corpus: Path, tmp_path: Path) -> None:
    """SPOOL-06: what the spool accepts and the schema's engine cannot follow never ends the drain."""
    pytest.importorskip("jsonschema_rs", reason="needs the extra watchbill[schema]")
    schema = tmp_path / "schema.json"
    schema.write_text('{"required": ["n"]}')
    deep: list[object] = []
    for _ in range(254):
        deep = [deep]
    with Spool(path) as spool:
        spool.enqueue({"deep": deep})
        spool.enqueue({"n": 1})
        report = Drain(spool, Corpus(corpus), schema=JsonSchema.read(schema)).run_once()
        assert (report.appended, report.poisoned) == (1, 1)


def test_an_order_that_cannot_be_kept_is_the_disks_fault(path: Path, corpus: Path) -> None:
    """SPOOL-04: `ordered` without its lock drains nothing and says so; a running drain tries again."""
    with Spool(path) as spool:
        (path / ".ordered.lock").mkdir()
        spool.enqueue(event(1))
        with pytest.raises(SpoolBroken, match="keeps the order"):
            Drain(spool, Corpus(corpus), ordered=True).run_once()
        assert stats(spool).queue == 1


def test_events_without_an_id_are_known_by_their_bytes(path: Path, corpus: Path) -> None:
    """SPOOL-07: the same bytes are the same event; the key of the id can be another one."""
    with Spool(path) as spool:
        for each in ({"n": 1}, {"n": 2}, {"n": 1}):
            spool.enqueue(each)
        report = Drain(spool, Corpus(corpus), schema=AnyObject()).run_once()
        assert (report.appended, report.duplicates) == (2, 1)
        for each in ({"key": "x", "n": 3}, {"key": "x", "n": 4}):
            spool.enqueue(each)
        report = Drain(spool, Corpus(corpus, id_key="key"), schema=AnyObject()).run_once()
        assert (report.appended, report.duplicates) == (1, 1)


def test_a_number_and_its_text_are_drained_as_two_events(path: Path, corpus: Path) -> None:
    """SPOOL-07: `1` and `"1"` are different values of JSON, and so are the ids."""
    with Spool(path) as spool:
        for identifier in (1, "1", 1):
            spool.enqueue({"id": identifier, "kind": "note", "ts": 0})
        report = Drain(spool, Corpus(corpus)).run_once()
        assert (report.appended, report.duplicates) == (2, 1)


def test_kinds_may_have_a_corpus_of_their_own(path: Path, tmp_path: Path) -> None:
    """SPOOL-04: one spool, several corpora."""
    notes, rest = tmp_path / "notes.jsonl", tmp_path / "rest.jsonl"
    with Spool(path) as spool:
        spool.enqueue(event(1))
        spool.enqueue(event(2) | {"kind": "other"})
        Drain(spool, {"note": Corpus(notes), "*": Corpus(rest)}).run_once()
        spool.enqueue(event(3) | {"kind": "other"})
        Drain(spool, {"note": Corpus(notes)}).run_once()
        assert (ids(notes), ids(rest)) == (["1"], ["2"])
        assert "no corpus for kind 'other'" in next(entries(spool, State.POISON)).reason["reason"]


#: A drain changes a disk by these, too: its index of ids is written, not placed.
DRAIN_CALLS = CALLS + ",?write"


@pytest.mark.timeout(600)
def test_a_drain_killed_at_any_call_appends_everything_once(traced: Traced, tmp_path: Path) -> None:
    """SPOOL-04, SPOOL-05, SPOOL-07, R2: killed between append, index and done, the next drain knows the ids; and when
    all of them come once more, so does the one after it."""

    def fill(home: Path) -> tuple[str, str]:
        with Spool(home / "spool", durability="none") as spool:
            for number in range(12):
                spool.enqueue(event(number))
        return str(home / "spool"), str(home / "corpus.jsonl")

    calls = life(traced, tmp_path / "log", "drain.py", *fill(tmp_path / "clean"), calls=DRAIN_CALLS)
    for point in some(calls, 24):
        home = tmp_path / f"{point.call}-{point.number}"
        arguments = fill(home)
        assert traced("drain.py", *arguments, options=deadly(point)).returncode != 0, f"it survived {point}"
        with Spool(home / "spool", attempts=100) as spool:
            spool.enqueue(event(12))
            Drain(spool, Corpus(home / "corpus.jsonl")).run_once()
            assert (point, stats(spool).done, stats(spool).poison) == (point, 13, 0)
        with Spool(home / "spool", durability="none") as spool:
            for number in range(13):
                spool.enqueue(event(number))
            again = Drain(spool, Corpus(home / "corpus.jsonl")).run_once()
        assert (point, again.appended, again.duplicates) == (point, 0, 13)
        assert sorted(ids(home / "corpus.jsonl"), key=int) == [str(number) for number in range(13)]


def test_a_power_cut_during_a_drain_loses_nothing(path: Path, disk: Any, child: Callable[..., Any]) -> None:
    """SPOOL-04, R1: acknowledged events are in the corpus or in the queue; the corpus has whole lines, and
    after the next drain it has each id once."""
    for trial in range(4):
        home = disk.path / str(trial)

        def work(say: Say, home: Path = home) -> None:
            with Spool(home / "spool") as spool:
                drain = Drain(spool, Corpus(home / "corpus.jsonl"), batch=16)
                for number in range(100_000):
                    spool.enqueue(event(number))
                    say(number)
                    if number % 10 == 9:
                        drain.step()

        process = child(work)
        process.first()
        time.sleep(0.01 * (trial + 1))  # the moment of the cut is the experiment
        acknowledged = [number for number in process.said() if isinstance(number, int)]
        disk.shut_down()
        process.kill()
        disk.mount_again()
        with Spool(home / "spool") as spool:
            Drain(spool, Corpus(home / "corpus.jsonl")).run_once()
            found = ids(home / "corpus.jsonl")
            assert {str(number) for number in acknowledged} <= set(found)
            assert len(found) == len(set(found))
            assert reader.check(home / "corpus.jsonl").is_clean
            assert stats(spool).poison == 0


def test_a_full_corpus_disk_uses_up_no_attempts(
    path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-06, R4: the drain holds its batch and tries again; with room everything arrives on attempt one."""
    monkeypatch.setattr(drain_module, "BACKOFF_FIRST_S", 0.01)
    home = small_disk("size=128k")
    ballast = home / "ballast"
    ballast.write_bytes(b"x" * 120_000)
    failing = threading.Event()
    with Spool(path) as spool:
        for number in range(5):
            spool.enqueue(event(number, text="x" * 9000))

        def progress(report: DrainReport) -> None:
            if report.corpus_failures >= 3:
                failing.set()

        drain = Drain(spool, Corpus(home / "corpus.jsonl"), progress=progress)
        thread = threading.Thread(target=drain.run_once)
        thread.start()
        assert failing.wait(20)
        assert "No space left" in drain.last_error
        ballast.unlink()
        thread.join(20)
        assert ids(home / "corpus.jsonl") == ["0", "1", "2", "3", "4"]
        assert {entry.attempt for entry in entries(spool, State.DONE)} == {1}


def test_a_stopped_drain_gives_its_batch_back(path: Path, tmp_path: Path) -> None:
    """SPOOL-09: told to stop while the corpus cannot be written, it leaves nothing in flight."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    with Spool(path) as spool:
        spool.enqueue(event(1))
        drain = Drain(spool, Corpus(blocked / "corpus.jsonl"))
        thread = threading.Thread(target=drain.run)
        thread.start()
        wait_until(lambda: drain.report.corpus_failures)
        drain.stop()
        thread.join(20)
        assert (stats(spool).queue, stats(spool).in_flight, spool.in_flight_here) == (1, 0, 0)


def drain_until_refused(spool: Spool, corpus: Corpus) -> None:
    """Drain until the corpus has refused once."""
    drain = Drain(spool, corpus, progress=lambda _: drain.stop())
    drain.run()


def test_drains_that_are_stopped_on_a_full_disk_use_up_no_try(path: Path, tmp_path: Path) -> None:
    """SPOOL-06: however often a drain is started and stopped while its corpus cannot be written."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    with Spool(path) as spool:
        spool.enqueue_many([event(1), event(2)])
    for _ in range(4):
        with Spool(path) as spool:
            drain_until_refused(spool, Corpus(blocked / "corpus.jsonl"))
            assert (stats(spool).queue, {entry.attempt for entry in entries(spool)}) == (2, {0})
    blocked.unlink()
    with Spool(path) as spool:
        Drain(spool, Corpus(blocked / "corpus.jsonl")).run_once()
    assert ids(blocked / "corpus.jsonl") == ["1", "2"]


def test_a_handler_fails_with_back_off_and_poisons_after_three(
    path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-06, R9: retries rest; others pass meanwhile; after the last attempt the reason is the error."""
    monkeypatch.setattr(consumer_module, "BACKOFF_FIRST_S", 0.01)
    calls: list[str] = []

    def handle(each: dict[str, Any]) -> None:
        calls.append(each["id"])
        if each["id"] == "bad":
            raise RuntimeError("tier asleep")
        if each["id"] == "worse":
            raise PoisonEvent("cannot ever")

    with Spool(path) as spool:
        for name in ("bad", "worse", "good"):
            spool.enqueue(event(name))
        drain = Drain(spool, Corpus(corpus), handle=handle)

        def all_settled() -> bool:
            drain.step()
            return drain.report.settled == 3

        wait_until(all_settled)
        assert calls.count("bad") == 3
        assert ids(corpus) == ["good"]
        reasons = {entry.reason["reason"] for entry in entries(spool, State.POISON)}
        assert reasons == {"retries exhausted: RuntimeError: tier asleep", "cannot ever"}


def test_a_single_run_waits_for_what_rests_between_its_tries(
    path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-06: `--once` ends when nothing waits any more; an event that failed still does."""
    monkeypatch.setattr(consumer_module, "BACKOFF_FIRST_S", 0.01)
    calls: list[str] = []

    def handle(each: dict[str, Any]) -> None:
        calls.append(each["id"])
        if len(calls) < 3:
            raise RuntimeError("tier asleep")

    with Spool(path) as spool:
        spool.enqueue(event("slow"))
        report = Drain(spool, Corpus(corpus), handle=handle, poll_s=0.01).run_once()
        assert (calls, report.appended, stats(spool).queue) == (["slow"] * 3, 1, 0)


def test_a_worker_killer_does_not_drag_its_batch_into_poison(
    path: Path, corpus: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-06, R9: one event kills its drain three times; the nineteen leased with it all arrive."""
    with Spool(path) as spool:
        for number in range(20):
            spool.enqueue(event(number))

        def work(say: Say) -> None:
            def handle(each: dict[str, Any]) -> None:
                if each["id"] == "7":
                    os.kill(os.getpid(), signal.SIGKILL)

            with Spool(path) as mine:
                Drain(mine, Corpus(corpus), handle=handle).run_once()

        for _ in range(4):
            child(work).join()
        assert sorted(ids(corpus), key=int) == [str(number) for number in range(20) if number != 7]
        (bad,) = entries(spool, State.POISON)
        assert "worker died" in bad.reason["reason"]


def test_several_drains_share_the_work(path: Path, corpus: Path) -> None:
    """SPOOL-04: four at once on one spool and one corpus: each id once."""
    spools = [Spool(path, durability="none") for _ in range(4)]
    for first in range(0, 400, 50):
        spools[0].enqueue_many([event(number) for number in range(first, first + 50)])
    report = drain_all([Drain(spool, Corpus(corpus), batch=16) for spool in spools], once=True)
    assert report.appended == 400
    assert sorted(ids(corpus), key=int) == [str(number) for number in range(400)]
    for spool in spools:
        spool.close()


def test_ordered_drains_keep_the_order_of_arrival(path: Path, corpus: Path) -> None:
    """SPOOL-04: with `ordered` two drains take turns under a spool-wide lock."""
    spools = [Spool(path, durability="none") for _ in range(2)]
    for number in range(300):
        spools[0].enqueue(event(number))
    drain_all(
        [Drain(spool, Corpus(corpus), batch=7, ordered=True, poll_s=0.01) for spool in spools], once=True
    )
    assert ids(corpus) == [str(number) for number in range(300)]
    for spool in spools:
        spool.close()


def test_a_running_drain_wakes_on_arrival(path: Path, corpus: Path) -> None:
    """SPOOL-04: far sooner than its poll interval; `stop` ends it at once."""
    arrived = threading.Event()
    with Spool(path) as spool, Spool(path) as producer:
        drain = Drain(spool, Corpus(corpus), poll_s=30.0, progress=lambda _: arrived.set())
        thread = threading.Thread(target=drain.run)
        thread.start()
        for number in range(3):
            arrived.clear()
            producer.enqueue(event(number))
            assert arrived.wait(10)
        assert drain.idle_s < 10
        drain.stop()
        thread.join(10)
        assert not thread.is_alive()
    assert ids(corpus) == ["0", "1", "2"]


@pytest.mark.parametrize("ordered", [False, True])
def test_an_idle_worker_leaves_a_spool_that_was_moved_away(
    path: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """SPOOL-03, SPOOL-04: nothing of its own breaks, and it finds out all the same: it works where the spool is, it
    hears what arrives there, and it keeps the order together with those who came later."""
    monkeypatch.setattr(queue_module, "RECOVER_EVERY_S", 0.05)
    drained = threading.Semaphore(0)
    with Spool(path) as spool:
        drain = Drain(
            spool, Corpus(corpus), progress=lambda _: drained.release(), poll_s=0.05, ordered=ordered
        )
        thread = threading.Thread(target=drain.run)
        thread.start()
        try:
            spool.enqueue(event("before"))
            assert drained.acquire(timeout=10)
            path.rename(tmp_path / "aside")
            with Spool(path) as new:
                new.enqueue(event("after"))
                assert drained.acquire(timeout=10)
                if ordered:
                    assert not Drain(new, Corpus(corpus), ordered=True)._may_go()
        finally:
            drain.stop()
            thread.join()
    assert ids(corpus) == ["before", "after"]


def test_a_worker_hears_arrivals_in_the_folders_that_were_made_anew(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-04: after the spool was moved away or removed its ear is at the new folder, not at the old one."""
    monkeypatch.setattr(queue_module, "RECOVER_EVERY_S", 0.0)
    with Spool(path, durability="none") as spool:
        spool.wait(0)
        for number in range(2):
            path.rename(tmp_path / "aside") if number else shutil.rmtree(path)
            spool.wait(0)
            while spool.wait(0):
                pass
            with Spool(path, durability="none") as new:
                new.enqueue(event(number))
                assert spool.wait(10)


def test_a_lease_is_settled_where_it_was_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-03: who has an event in hand while the spool is moved away finishes it there, and goes only then."""
    monkeypatch.setattr(queue_module, "RECOVER_EVERY_S", 0.0)
    with Spool(path, durability="none") as spool:
        spool.enqueue(event(1))
        item = spool.lease()
        assert item is not None
        path.rename(tmp_path / "aside")
        with Spool(path):
            spool.wait(0)
        spool.done(item)
        with Spool(tmp_path / "aside") as aside:
            assert stats(aside).done == 1


def test_a_drain_may_be_stopped_after_its_spool_was_closed(path: Path, corpus: Path) -> None:
    """SPOOL-04: whoever ends things in another order than usual is not punished for it."""
    with Spool(path) as spool:
        drains = [Drain(spool, Corpus(corpus)) for _ in range(2)]
        drains[0].run_once()
        spool.wait(0)
    for drain in drains:
        drain.stop()
        assert drain.run() is drain.report  # it is over
