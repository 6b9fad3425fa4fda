"""Done files: compacted by day, removed or archived by age, and never too early."""

import datetime
import json
import os
from pathlib import Path

import pytest

from watchbill.spool import Spool, gc, reader, retention
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


def test_a_busy_day_becomes_bundles_that_can_be_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-06, SPOOL-12: none has more lines or bytes than a bundle may have; what is no file stays."""
    monkeypatch.setattr(retention, "BUNDLE_LINES_MAX", 4)
    monkeypatch.setattr(retention, "BUNDLE_BYTES_MAX", 100)
    with Spool(tmp_path, durability="none") as spool:
        finish(spool, *(str(number) for number in range(10)), "x" * 60, "y" * 60)
        day = age(tmp_path, 1)
        os.mkfifo(tmp_path / "queue-done" / day / "pipe.jsonl")
        assert gc(spool).compacted == 12
        files = sorted((tmp_path / "queue-done").glob("*.bundle.jsonl"))
        assert all(file.stat().st_size <= 100 and file.read_bytes().count(b"\n") <= 4 for file in files)
        assert len(files) == 4
        assert (tmp_path / "queue-done" / day / "pipe.jsonl").is_fifo()


def test_an_archive_never_replaces_what_it_holds(tmp_path: Path) -> None:
    """SPOOL-12: two spools share an archive, and a day comes in two parts: every event is there afterwards."""
    archive = tmp_path / "archive"
    for name, part in (("one", "a"), ("one", "b"), ("two", "c")):
        with Spool(tmp_path / name, durability="none") as spool:
            finish(spool, part)
            age(tmp_path / name, 9)
            assert gc(spool, archive=archive).archived == 1
    kept = [json.loads(file.read_text())["id"] for file in archive.iterdir()]
    assert sorted(kept) == ["a", "b", "c"]


def test_a_foreign_entry_among_finished_events_is_not_archived_and_stops_nothing(tmp_path: Path) -> None:
    """SPOOL-12: a pipe is never waited on, and the events after it are archived all the same."""
    path, archive = tmp_path / "spool", tmp_path / "archive"
    with Spool(path, durability="none") as spool:
        finish(spool, "a")
        age(path, 9)
        pipe = path / "queue-done" / "2000-01-01.pipe.jsonl"
        os.mkfifo(pipe)
        assert gc(spool, archive=archive).archived == 1
        assert pipe.is_fifo()
        assert len(os.listdir(archive)) == 1
