"""Power cuts on real file systems: what was acknowledged is there, once, and whole."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchbill.files import uncached
from watchbill.spool import Spool
from watchbill.spool import producer as producer_module

Say = Callable[[object], None]
TRIALS = int(os.environ.get("WATCHBILL_POWER_CUTS", "12"))
EVENT = {"kind": "note", "body": "x" * 300}


def enqueue_one_by_one(spool: Spool, say: Say) -> None:
    for number in range(100_000):
        say(spool.enqueue({"id": f"{number}", **EVENT}))


def enqueue_from_threads(spool: Spool, say: Say) -> None:
    lock = threading.Lock()

    def work(thread: int) -> None:
        for number in range(100_000):
            name = spool.enqueue({"id": f"{thread}-{number}", **EVENT})
            with lock:
                say(name)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def enqueue_batches(spool: Spool, say: Say) -> None:
    for number in range(100_000):
        names = spool.enqueue_many([{"id": f"{number}-{i}", **EVENT} for i in range(40)])
        for name in names:
            say(name)


def enqueue_bundles(spool: Spool, say: Say) -> None:
    """Small ones go through the log, large ones straight into their file."""
    for number in range(100_000):
        pad = "x" * (2_000 if number % 2 else 0)
        lines = [{"id": f"{number}-{i}", **EVENT, "pad": pad} for i in range(20)]
        for name in spool.enqueue_many(lines, bundle=True):
            say(name)


def enqueue_and_consume(spool: Spool, say: Say) -> None:
    for number in range(100_000):
        say(spool.enqueue({"id": f"{number}", **EVENT}))
        if number % 3:
            item = spool.lease()
            assert item is not None
            if number % 7 == 1:
                spool.release(item)
            elif number % 11 == 1:
                spool.poison(item, "on purpose")
            else:
                spool.done(item)


SCENES = [enqueue_one_by_one, enqueue_from_threads, enqueue_batches, enqueue_bundles, enqueue_and_consume]


def cut_during(work: Callable[[Say], None], disk: Any, child: Any, chance: random.Random) -> list[str]:
    """Run `work` in a child, cut the power at a random moment, return what it had acknowledged."""
    process = child(work)
    process.first()
    time.sleep(chance.uniform(0.0, 0.04))  # the moment of the cut is the experiment
    said = process.said()
    disk.shut_down()
    process.kill()
    disk.mount_again()
    return [name for name in said if isinstance(name, str)]


@pytest.mark.parametrize("durability", ["wal", "event"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_acknowledged_events_survive_a_power_cut(
    disk: Any, child: Any, inventory: Any, scene: Callable[[Spool, Say], None], durability: Any
) -> None:
    """SPOOL-02, R1: at a random moment of enqueue, claim and finish the power fails; every acknowledged event
    is afterwards in exactly one of the four folders, readable; every other one is absent or whole."""
    chance = random.Random(f"{scene.__name__}{durability}{disk.kind}")
    acknowledged = 0
    for trial in range(max(1, TRIALS // 4)):
        path = disk.path / f"spool{trial}"
        small_logs, cached = trial % 2 == 0, trial % 4 < 2

        def work(say: Say, path: Path = path, small_logs: bool = small_logs, cached: bool = cached) -> None:
            if small_logs:  # so that checkpoints, too, are cut through
                producer_module.LOG_BYTES_MAX = 16 * 1024
            if cached:  # as where direct writes are refused: without its sync such a log is lost
                uncached.O_DIRECT = 0
            scene(Spool(path, durability=durability), say)

        names = cut_during(work, disk, child, chance)
        with Spool(path) as spool:
            spool.recover()
        found = inventory(path)
        assert found.missing(names) == []
        assert found.twice() == []
        assert found.torn() == []
        acknowledged += len(names)
        shutil.rmtree(path)  # a disk that is full keeps events in the log, which is another test's subject
    assert acknowledged > 0
    print(f"counts: cuts={max(1, TRIALS // 4)} acknowledged={acknowledged}")  # `make torture` adds them up


@pytest.mark.parametrize("omission", ["fdatasync", "folder fsync"])
def test_the_harness_sees_a_loss(disk: Any, child: Any, inventory: Any, omission: str) -> None:
    """SPOOL-02: without its sync the same code loses acknowledged events, so the trials above can fail."""
    chance = random.Random(7)
    lost = 0
    for trial in range(3):
        path = disk.path / f"spool{trial}"

        def work(say: Say, path: Path = path) -> None:
            spool = Spool(path, durability="wal" if omission == "fdatasync" else "event")
            real = os.fsync
            if omission == "fdatasync":
                # Only what is in the page cache is lost here: the disk's own cache stays.
                uncached.O_DIRECT = 0
                os.fdatasync = lambda fd: None
            else:
                os.fsync = lambda fd: None if os.path.isdir(f"/proc/self/fd/{fd}") else real(fd)
            say(spool.enqueue({"id": "1", **EVENT}))
            signal.pause()  # the next event's fsync would save this one's name along with its own

        names = cut_during(work, disk, child, chance)
        with Spool(path) as spool:
            spool.recover()
        lost += len(inventory(path).missing(names))
    assert lost > 0


def test_a_power_cut_during_recovery_loses_nothing(disk: Any, child: Any, inventory: Any) -> None:
    """SPOOL-05, R1: the replay of a log is itself cut, twice, and still every event is there once."""
    chance = random.Random(3)
    path = disk.path / "spool"
    names = cut_during(lambda say: enqueue_batches(Spool(path), say), disk, child, chance)
    for _ in range(2):

        def work(say: Say) -> None:
            say("begun")
            Spool(path).recover()

        cut_during(work, disk, child, chance)
    with Spool(path) as spool:
        spool.recover()
    found = inventory(path)
    assert (found.missing(names), found.twice(), found.torn()) == ([], [], [])
