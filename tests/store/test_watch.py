"""Waking up on arrival, with inotify and without."""

import threading
import time
from pathlib import Path

import pytest

from watchbill.files.watch import Watch
from watchbill.spool import Spool
from watchbill.spool import publish as publish_module


def test_a_wait_hears_flat_files_and_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-04: also in a bucket that the writer goes on filling after the consumer has caught up."""
    monkeypatch.setattr(publish_module, "FLAT_FILES_MAX", 2)
    monkeypatch.setattr(publish_module, "FLAT_LOOK_EVERY", 1)
    with Spool(tmp_path, durability="none") as producer, Spool(tmp_path) as consumer:
        for number in range(12):
            producer.enqueue({"id": number})
        while consumer.lease() is not None:
            pass
        while consumer.wait(0.0):
            assert consumer.lease() is None
        timer = threading.Timer(0.05, lambda: producer.enqueue({"id": "late"}))
        timer.start()
        began = time.monotonic()
        while (item := consumer.lease()) is None:
            assert consumer.wait(20.0)
        timer.join()
        assert item.event["id"] == "late"
        assert time.monotonic() - began < 10


def test_without_inotify_only_the_clock_and_wake_end_a_wait(tmp_path: Path) -> None:
    """SPOOL-04: polling is the fallback."""
    watch = Watch(tmp_path, inotify=False)
    assert watch.is_blind
    assert watch.wait(0.01) is False
    threading.Timer(0.05, watch.wake).start()
    assert watch.wait(20.0) is True
    watch.close()


def test_a_folder_that_vanishes_is_forgotten(tmp_path: Path) -> None:
    """SPOOL-04: a removed bucket leaves room for the next; an unknown one is no error."""
    watch = Watch(tmp_path)
    (tmp_path / "bucket").mkdir()
    assert watch.wait(5.0)
    assert watch.follow(["bucket/", "nowhere/"]) is True
    assert watch.follow(["bucket/"]) is False
    (tmp_path / "bucket").rmdir()
    assert watch.wait(5.0)
    (tmp_path / "bucket").mkdir()
    assert watch.follow(["bucket/"]) is True
    watch.close()


def test_a_reader_is_told_in_which_folders_something_arrived(tmp_path: Path) -> None:
    """FLEET-03: an agent looks at its processes for a signal, and not for each slip; for one that is for another it
    does not even look at the queue."""
    for name in ("queue", "signals"):
        (tmp_path / name).mkdir()
    watch = Watch(tmp_path)
    if watch.is_blind:
        pytest.skip("needs inotify")
    watch.follow(("queue", "signals"))
    assert watch.arrivals() == {}
    for name in ("a", "an umlaut ü"):
        (tmp_path / "queue" / name).touch()
    assert watch.arrivals() == {"queue": {"a", "an umlaut ü"}}
    (tmp_path / "signals" / "a").touch()
    (tmp_path / "b").touch()
    assert watch.arrivals() == {"signals": {"a"}, "": {"b"}}
    watch.close()
    assert Watch(tmp_path, inotify=False).arrivals() == {}
