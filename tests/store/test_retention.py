"""Done files: compacted by day, removed or archived by age, and never too early."""

import datetime
import json
import os
from pathlib import Path

from watchbill.spool import Spool, gc, reader
from watchbill.spool.inspect import stats

DAY_S = 86_400


def finish(spool: Spool, *ids: str) -> None:
    for each in ids:
        spool.enqueue({"id": each})
        item = spool.lease()
        assert item is not None
        spool.done(item)


def age(path: Path, days: int) -> str:
    """Make today's finished events look `days` old."""
    done = path / "queue-done"
    (today,) = (
        name for name in os.listdir(done) if name == datetime.datetime.now(datetime.UTC).date().isoformat()
    )
    date = (datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=days)).isoformat()
    (done / today).rename(done / date)
    return date


def test_finished_days_are_compacted_then_removed(tmp_path: Path) -> None:
    """SPOOL-12: today stays; yesterday becomes one file; after seven days it goes."""
    path = tmp_path / "spool"
    with Spool(path, durability="none") as spool:
        finish(spool, "old")
        age(path, 9)
    with Spool(path, durability="none") as spool:
        finish(spool, "a", "b")
        yesterday = age(path, 1)
    with Spool(path, durability="none") as spool:
        finish(spool, "today")
        result = gc(spool)
        assert (result.compacted, result.removed) == (2, 1)
        bundle = path / "queue-done" / f"{yesterday}.n2.bundle.jsonl"
        assert [json.loads(line)["id"] for line in bundle.read_bytes().splitlines()] == ["a", "b"]
        assert stats(spool).done == 3
        assert gc(spool).removed == 0
        assert gc(spool, keep_done_s=0).removed == 2
        assert stats(spool).done == 1


def test_old_days_are_archived(tmp_path: Path) -> None:
    """SPOOL-12: moved away, whole, readable as a corpus."""
    path, archive = tmp_path / "spool", tmp_path / "archive"
    with Spool(path, durability="none") as spool:
        finish(spool, "a", "b")
        date = age(path, 9)
    with Spool(path, durability="none") as spool:
        assert gc(spool, archive=archive).archived == 2
        assert stats(spool).done == 0
        assert [line.id for line in reader.read(archive / f"{date}.n2.bundle.jsonl")] == ["a", "b"]


def test_an_event_that_a_log_still_holds_is_not_removed(tmp_path: Path) -> None:
    """SPOOL-12: a replay after a power cut looks for it; without the file it would be delivered again."""
    path = tmp_path / "spool"
    with Spool(path) as writer:
        writer.enqueue({"id": "a"})
        with Spool(path) as spool:
            item = spool.lease()
            assert item is not None
            spool.done(item)
            age(path, 9)
            assert gc(spool).removed == 0
            writer.checkpoint()
            assert gc(spool).removed == 1
