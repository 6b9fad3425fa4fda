"""Many workers, dead workers, stopped workers: one owner each, nothing skipped, nobody robbed."""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.stopping import stop
from watchbill.cli import run
from watchbill.spool import LeaseLost, Spool, SpoolBroken
from watchbill.spool.inspect import State, entries, stats
from watchbill.spool.queue import Durability

Say = Callable[[object], None]
CLAIMS = int(os.environ.get("WATCHBILL_CLAIMS", "3000"))


@pytest.mark.timeout(600)
def test_eight_claimers_own_every_event_exactly_once(tmp_path: Path, child: Callable[..., Any]) -> None:
    """SPOOL-03, R10: eight processes claim from one queue; each event has one owner and none is skipped."""
    path = tmp_path / "spool"
    with Spool(path, durability="none") as spool:
        for first in range(0, CLAIMS, 500):
            spool.enqueue_many([{"id": number} for number in range(first, min(first + 500, CLAIMS))])

    def work(say: Say) -> None:
        with Spool(path) as mine:
            say("ready")
            while (item := mine.lease()) is not None:
                mine.done(item)
                say(item.event["id"])

    claimers = [child(work) for _ in range(8)]
    owned = Counter(said for claimer in claimers for said in claimer.join() if isinstance(said, int))
    assert len(owned) == CLAIMS
    assert set(owned.values()) == {1}
    with Spool(path) as spool:
        assert stats(spool).as_dict() | {"oldest_ms": None} == {
            "queue": 0, "in_flight": 0, "done": CLAIMS, "poison": 0, "oldest_ms": None, "unreplayed": 0,
        }  # fmt: skip


def test_claimers_and_producers_at_once_lose_nothing(tmp_path: Path, child: Callable[..., Any]) -> None:
    """SPOOL-03, R10, R12: claims while events arrive, in all three modes at once."""
    path = tmp_path / "spool"

    def produce(mode: Any) -> Callable[[Say], None]:
        def work(say: Say) -> None:
            with Spool(path, durability=mode) as mine:
                for number in range(150):
                    mine.enqueue({"id": f"{mode}-{number}"})

        return work

    def consume(say: Say) -> None:
        with Spool(path) as mine:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                item = mine.lease()
                if item is None:
                    if (path / "over").exists():
                        return
                    mine.wait(0.05)
                    continue
                mine.done(item)
                say(item.event["id"])

    consumers = [child(consume) for _ in range(3)]
    for producer in [child(produce(mode)) for mode in ("wal", "event", "none")]:
        producer.join()
    (path / "over").touch()
    owned = Counter(said for consumer in consumers for said in consumer.join())
    assert len(owned) == 450
    assert set(owned.values()) == {1}


def test_a_killed_workers_events_come_back_and_a_living_ones_do_not(
    tmp_path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-05, R13: recovery takes from the dead; a worker that is alive, even stopped, is not robbed."""
    path = tmp_path / "spool"
    with Spool(path) as spool:
        for number in range(4):
            spool.enqueue({"id": number})

        def hold(say: Say) -> None:
            mine = Spool(path)
            item = mine.lease()
            assert item is not None
            say(item.event["id"])
            signal.pause()

        dead, living, stopped = child(hold), None, None
        dead_id = dead.first()
        living = child(hold)
        living.first()
        stopped = child(hold)
        stopped.first()
        stop(stopped.pid)
        assert spool.recover().returned == 0
        dead.kill()
        assert spool.recover().returned == 1
        item = spool.lease()
        assert item is not None
        assert (item.event["id"], item.attempt) == (dead_id, 2)
        assert stats(spool).in_flight == 3
        os.kill(stopped.pid, signal.SIGCONT)


def test_an_event_that_kills_its_workers_is_poisoned_after_three(
    tmp_path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-06, R9: three dead workers, then poison with a reason; the queue moves on."""
    path = tmp_path / "spool"
    with Spool(path) as spool:
        spool.enqueue({"id": "deadly"})
        spool.enqueue({"id": "harmless"})

        def work(say: Say) -> None:
            with Spool(path) as mine, mine.dequeue() as item:
                assert item is not None
                say(item.event["id"])
                if item.event["id"] == "deadly":
                    os.kill(os.getpid(), signal.SIGKILL)

        met = [child(work).join()[0] for _ in range(4)]
        assert met == ["deadly", "deadly", "deadly", "harmless"]
        (bad,) = entries(spool, State.POISON)
        assert "worker died" in bad.reason["reason"]


def test_files_that_a_foreign_worker_leased_flat_are_recovered(
    tmp_path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-03, SPOOL-05: flat in queue-in-flight/, in a folder of its own, under a foreign name, when their time is
    over; but not while their worker holds a lock on the file."""
    path = tmp_path / "spool"
    with Spool(path, durability="none", foreign_lease_s=0) as spool:
        name = spool.enqueue({"id": "flat"})
        in_flight = path / "queue-in-flight"
        os.rename(path / "queue" / name, in_flight / name)
        (in_flight / "theirs").mkdir()
        (in_flight / "theirs" / "foreign.jsonl").write_text('{"id": "foreign"}')
        (in_flight / "locked.jsonl").write_text('{"id": "locked"}')

        def hold(say: Say) -> None:
            import fcntl

            with open(in_flight / "locked.jsonl") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                say("locked")
                signal.pause()

        holder = child(hold)
        holder.first()
        assert spool.recover().returned == 2
        assert {item.event["id"] for item in iter(spool.lease, None)} == {"flat", "foreign"}
        holder.kill()
        assert spool.recover().returned == 1


def test_a_living_foreign_worker_is_not_robbed_by_a_starting_drain(tmp_path: Path) -> None:
    """SPOOL-03, SPOOL-05: what was leased by a rename a moment ago stays leased; the drain says that it is, and its
    worker finishes it by another rename."""
    path = tmp_path / "spool"
    with Spool(path, durability="none") as spool:
        theirs, _ = (spool.enqueue({"id": id, "kind": "note", "ts": 0}) for id in ("theirs", "ours"))
    leased = path / "queue-in-flight" / theirs
    (path / "queue" / theirs).rename(leased)
    corpus = tmp_path / "corpus.jsonl"
    drain = ["spool", "drain", "--spool", str(path), "--corpus", str(corpus), "--once"]
    assert run(drain) == 0
    assert leased.exists()
    assert '"ours"' in corpus.read_text()
    assert '"theirs"' not in corpus.read_text()
    leased.rename(path / "queue-done" / theirs)
    assert run(["spool", "stats", "--spool", str(path)]) == 0
    assert len(list((path / "queue-done").rglob("*.jsonl"))) == 2


def test_a_batch_finishes_only_what_belongs_to_it(tmp_path: Path) -> None:
    """SPOOL-03: two threads lease batches from one Spool; finishing one leaves the other's in flight, and what
    was released or poisoned out of a batch is not finished with it."""
    with Spool(tmp_path, durability="none") as spool:
        spool.enqueue_many([{"id": number} for number in range(9)])
        first, second = spool.lease_many(3), spool.lease_many(3)
        spool.done_many(first)
        assert (stats(spool).done, stats(spool).in_flight) == (3, 3)
        spool.release(second[0])
        spool.poison(second[1], "on purpose")
        spool.done_many(second[2:])
        assert (stats(spool).done, stats(spool).poison, stats(spool).queue) == (4, 1, 4)
        while third := spool.lease_many(9):
            spool.done_many(third)
        assert (stats(spool).done, stats(spool).queue, spool.in_flight_here) == (8, 0, 0)


def test_a_worker_whose_folder_was_removed_makes_a_new_one(tmp_path: Path) -> None:
    """SPOOL-03: an operator who cleans up too much does not stop the queue."""
    with Spool(tmp_path, durability="none") as spool:
        spool.enqueue({"id": 1})
        item = spool.lease()
        assert item is not None
        spool.done(item)
        (item.path.parent / ".lock").unlink()
        item.path.parent.rmdir()
        spool.enqueue({"id": 2})
        again = spool.lease()
        assert again is not None
        assert again.event["id"] == 2


@pytest.mark.timeout(20)
def test_a_worker_whose_batch_was_removed_makes_a_new_one(tmp_path: Path) -> None:
    """SPOOL-03: it does not look for ever at events that it has no folder for."""
    with Spool(tmp_path, durability="none") as spool:
        spool.enqueue_many([{"id": number} for number in range(5)])
        lost = spool.lease_many(2)
        shutil.rmtree(lost[0].path.parent)
        items = spool.lease_many(3)
        assert [item.event["id"] for item in items] == [2, 3, 4]
        with pytest.raises(LeaseLost):
            spool.done(lost[0])
        spool.done_many(items)
        assert [entry.state for entry in entries(spool)] == [State.DONE] * 3


@pytest.mark.timeout(20)
def test_a_worker_whose_folder_is_removed_while_it_leases_says_so(tmp_path: Path) -> None:
    """SPOOL-03: once; then it has a new one."""
    with Spool(tmp_path, durability="none") as spool:
        spool.enqueue({"id": 1})
        consumer = spool._consumer()  # after its look whether the folder is there
        shutil.rmtree(consumer.path)
        with pytest.raises(SpoolBroken, match="lease an event"):
            consumer.lease()
        again = spool.lease()
        assert again is not None
        assert again.event["id"] == 1


@pytest.mark.timeout(20)
def test_who_asks_while_everything_rests_is_told_at_once_that_nothing_is_there(tmp_path: Path) -> None:
    """SPOOL-06: an event that rests is passed over; nobody waits for it in a circle. What else waits is leased."""
    with Spool(tmp_path, durability="none") as spool, Spool(tmp_path, durability="none") as other:
        spool.enqueue({"id": "tired"})
        tired = spool.lease()
        assert tired is not None
        spool.release(tired, rest_s=3_600)
        assert spool.lease() is None
        assert spool.lease_many(9) == []
        spool.enqueue_many([{"id": "taken"}, {"id": "fresh"}])
        assert [item.event["id"] for item in spool.lease_many(1)] == ["taken"]
        while (item := other.lease()) is not None:  # our listing is old now: tired and fresh are gone
            other.done(item)
        other.enqueue({"id": "new"})
        assert [item.event["id"] for item in spool.lease_many(9)] == ["new"]


@pytest.mark.parametrize("folder", ["queue-done", "queue-poison"])
def test_a_worker_makes_the_folders_anew_that_somebody_removed(tmp_path: Path, folder: str) -> None:
    """SPOOL-03: who frees room by hand does not stop the queue."""
    with Spool(tmp_path, durability="none", attempts=1) as spool:
        spool.enqueue_many([{"id": number} for number in range(6)])
        for number in range(2):
            for item in spool.lease_many(2) if number else (spool.lease(),):
                assert item is not None
                spool.done(item) if folder == "queue-done" else spool.poison(item, "no")
            shutil.rmtree(tmp_path / folder)
        items = spool.lease_many(2)
        spool.done_many(items) if folder == "queue-done" else spool.fail(items[0], ValueError("no"))
        (there,) = {entry.state.value for entry in entries(spool, State.DONE, State.POISON)}
        assert there == folder


@pytest.mark.parametrize("durability", ["wal", "event", "none"])
def test_a_spool_that_was_removed_is_made_anew(tmp_path: Path, durability: Durability) -> None:
    """SPOOL-02, SPOOL-03: its workers do not go on where nobody looks: old and new ones meet in the new folders."""
    path = tmp_path / "spool"
    with Spool(path, durability=durability) as old:
        old.enqueue({"id": "before"})
        with old.dequeue() as item:
            assert item is not None
        shutil.rmtree(path)
        with pytest.raises(SpoolBroken, match=r"removed.*nothing was acknowledged"):
            old.enqueue({"id": "refused"})
        with Spool(path, durability=durability) as new:
            old.enqueue({"id": "after"})
            with new.dequeue() as item:
                assert item is not None
                assert item.event == {"id": "after"}
            new.enqueue({"id": "from the new one"})
            with old.dequeue() as item:
                assert item is not None
                assert item.event == {"id": "from the new one"}


def test_a_writer_whose_spool_was_moved_away_does_not_work_in_two_places(tmp_path: Path) -> None:
    """SPOOL-02, SPOOL-03: once it finds its folder gone it is in the new one whole: there others see its events."""
    path = tmp_path / "spool"
    with Spool(path) as old:
        old.enqueue({"id": "moved"})
        with old.dequeue() as item:
            assert item is not None
        old.checkpoint()
        path.rename(tmp_path / "aside")
        with pytest.raises(SpoolBroken, match="nothing was acknowledged"):
            old.enqueue({"id": "refused"})
        old.enqueue_many([{"id": "after"}, {"id": "then"}])
        with Spool(path) as new, new.dequeue() as item:
            assert item is not None
            assert item.event == {"id": "after"}
        with old.dequeue() as item:
            assert item is not None
            assert (item.event, item.path.is_relative_to(path), item.path.exists()) == (
                {"id": "then"},
                True,
                True,
            )
        shutil.rmtree(tmp_path / "aside")
        old.enqueue({"id": "last"})


@pytest.mark.parametrize(
    "folders", [["."], ["queue-wal"], ["queue-wal", "queue/.tmp"], ["queue"]], ids=",".join
)
@pytest.mark.parametrize("bundle", [False, True])
def test_nothing_is_acknowledged_that_went_with_a_removed_folder(
    tmp_path: Path, folders: list[str], bundle: bool
) -> None:
    """SPOOL-02: whatever somebody removes under a writer, what `enqueue` returns for is there; at worst it says why
    not, once, and works again."""
    path, acknowledged = tmp_path / "spool", list[str]()
    with Spool(path) as spool:
        spool.enqueue({"id": "before"})
        for folder in folders:
            shutil.rmtree(path / folder)
        for number in range(3):
            with contextlib.suppress(SpoolBroken):
                spool.enqueue_many([{"id": f"{number}", "x": "x" * 2_000_000 * bundle}], bundle=bundle)
                acknowledged.append(f"{number}")
        assert acknowledged[-2:] == ["1", "2"]
        with Spool(path) as other:
            stats(other)  # shows what logs of dead writers hold
            there = {item.events[0]["id"] for item in iter(other.lease, None)}
        assert there >= set(acknowledged)


def test_what_is_acknowledged_while_its_log_goes_is_durable_or_refused(tmp_path: Path) -> None:
    """SPOOL-02: without a log the visible file alone, unsynced, is no acknowledgement."""
    with Spool(tmp_path) as spool:
        spool.enqueue({"id": 1})
        for log in (tmp_path / "queue-wal").iterdir():
            log.unlink()
        with pytest.raises(SpoolBroken, match="removed"):
            spool.enqueue({"id": 2})
        spool.enqueue({"id": 3})
        assert {json.loads(entry.path.read_bytes())["id"] for entry in entries(spool)} >= {1, 3}


def test_a_writer_whose_temporary_folder_was_removed_loses_nothing(tmp_path: Path) -> None:
    """SPOOL-02: what was acknowledged meanwhile is shown from the log; the next enqueue works."""
    with Spool(tmp_path) as spool:
        spool.enqueue({"id": 1})
        for folder in (tmp_path / "queue" / ".tmp").iterdir():
            shutil.rmtree(folder)
        spool.enqueue({"id": 2})
        spool.enqueue({"id": 3})
        assert stats(spool).queue == 3


@pytest.mark.parametrize("durability", ["wal", "event", "none"])
def test_a_killed_writer_leaves_nothing_behind(
    tmp_path: Path, child: Callable[..., Any], durability: Any
) -> None:
    """SPOOL-02, SPOOL-05, R2: killed at any moment; its events are there once, its rubbish is swept away."""
    path = tmp_path / "spool"

    def work(say: Say) -> None:
        mine = Spool(path, durability=durability)
        for number in range(100_000):
            say(mine.enqueue({"id": number}))

    for trial in range(5):
        writer = child(work)
        writer.first()
        time.sleep(0.003 * trial)  # the moment of death is the experiment
        names = [name for name in writer.kill() if isinstance(name, str)]
        with Spool(path) as spool:
            found = stats(spool)
            assert found.queue in (len(names), len(names) + 1)
            assert not list((path / "queue-wal").glob("*.jsonl"))
            assert not list((path / "queue" / ".tmp").glob("[!.]*"))
            while (item := spool.lease()) is not None:
                spool.done(item)
        for file in (path / "queue-done").rglob("*.jsonl"):
            file.unlink()


def test_the_lock_file_says_who_it_is(tmp_path: Path) -> None:
    """SPOOL-01: a person who looks into a worker's folder learns host and pid."""
    with Spool(tmp_path, durability="none") as spool:
        spool.enqueue({"id": 1})
        item = spool.lease()
        assert item is not None
        who = json.loads((item.path.parent / ".lock").read_text())
        assert who["pid"] == os.getpid()
        assert set(who) == {"host", "pid", "boot"}


def test_writers_in_many_threads_whose_folder_is_removed_are_told_no_more(tmp_path: Path) -> None:
    """SPOOL-02: who replaces a broken writer waits for the others in it: its descriptors are still in their hands."""
    broken, is_over, said = list[OSError](), threading.Event(), Counter[str]()

    def write(spool: Spool) -> None:
        while not is_over.is_set():
            try:
                said[spool.enqueue({"id": "x"})[:0]] += 1
            except SpoolBroken:
                said["refused"] += 1
            except OSError as error:
                broken.append(error)

    with Spool(tmp_path, durability="none") as spool:
        threads = [threading.Thread(target=write, args=(spool,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20  # without a pause: a writer must meet the moment without the folder
        while said["refused"] < 60 and not broken and time.monotonic() < deadline:
            shutil.rmtree(tmp_path / "queue" / ".tmp", ignore_errors=True)
        is_over.set()
        for thread in threads:
            thread.join()
    assert not broken
    assert said["refused"]
