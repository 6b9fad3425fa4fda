"""Links in place of a spool's folders: a member of a shared spool's group can make one; nobody follows it."""

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.eventually import wait_until
from watchbill.files.atomic import make_subfolder
from watchbill.files.owner import remove_folder, take_dead
from watchbill.spool import Drain, Spool, SpoolBroken, SpoolLayout, gc
from watchbill.spool.corpus import Corpus
from watchbill.spool.ids import Ids
from watchbill.spool.layout import Layout
from watchbill.spool.log import Record, record_bytes
from watchbill.spool.recovery import Rules, recover
from watchbill.spool.replay import replay_dead

OWN = ["queue", "queue-in-flight", "queue-done", "queue-poison", "queue-wal", "queue/.tmp"]
DIARY = b'{"id":"DIARY","kind":"note","ts":0}\n'
EVENT = {"id": "1", "kind": "note", "ts": 0}
LINE = ("1", b'{"id":"1"}')


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that is none of the spool's business."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "diary.jsonl").write_bytes(DIARY)
    os.utime(folder / "diary.jsonl", (1, 1))
    return folder


def is_untouched(private: Path) -> bool:
    return os.listdir(private) == ["diary.jsonl"] and (private / "diary.jsonl").read_bytes() == DIARY


def swap(folder: Path, private: Path) -> None:
    """Puts a link where a folder was."""
    folder.rename(folder.with_name(f"{folder.name.lstrip('.')}-before"))
    folder.symlink_to(private)


@pytest.mark.parametrize("name", OWN)
def test_a_spool_with_a_link_in_place_of_a_folder_is_refused(
    name: str, tmp_path: Path, private: Path
) -> None:
    """R50: with the path, and what to do; nothing is read or written behind it."""
    root = tmp_path / "spool"
    Spool(root).close()
    swap(root / name, private)
    with pytest.raises(SpoolLayout, match="link") as refused:
        Spool(root)
    assert str(root / name) in str(refused.value)
    assert is_untouched(private)


@pytest.mark.parametrize("name", OWN)
def test_a_link_that_appears_while_a_spool_is_drained_is_not_followed(
    name: str, tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: good events and bad ones stay where they are, or go where they would have gone."""
    root = tmp_path / "spool"
    with Spool(root) as spool:
        drain = Drain(spool, Corpus(tmp_path / "corpus.jsonl"))
        spool.enqueue({**EVENT, "id": "before"})
        drain.run_once()
        (root / "queue" / "bad.jsonl").write_bytes(b"no JSON\n")
        spool.enqueue(EVENT)
        swap(root / name, private)
        monkeypatch.setattr("watchbill.spool.queue.RECOVER_EVERY_S", -1.0)
        for act in (
            drain.step,
            spool.recover,
            lambda: spool.enqueue(EVENT),
            lambda: gc(spool, keep_done_s=0),
        ):
            try_to(act)
        assert is_untouched(private)
    assert is_untouched(private)
    assert b"DIARY" not in (tmp_path / "corpus.jsonl").read_bytes()


def try_to(act: Callable[[], object]) -> None:
    """Whether it is refused or done elsewhere is not asked here."""
    with contextlib.suppress(SpoolLayout, SpoolBroken):
        act()


def test_a_drain_says_so_and_goes_on_when_the_folder_is_back(tmp_path: Path, private: Path) -> None:
    """R50, P7: its complaint names the link."""
    root = tmp_path / "spool"
    with Spool(root) as spool:
        drain = Drain(spool, Corpus(tmp_path / "corpus.jsonl"), poll_s=0.05)
        swap(root / "queue-poison", private)
        (root / "queue" / "bad.jsonl").write_bytes(b"no JSON\n")
        thread = threading.Thread(target=drain.run)
        thread.start()
        try:
            wait_until(lambda: "queue-poison" in drain.last_error)
            (root / "queue-poison").unlink()
            (root / "queue-poison-before").rename(root / "queue-poison")
            wait_until(lambda: any(n.endswith(".reason.json") for n in os.listdir(root / "queue-poison")))
        finally:
            drain.stop()
            thread.join(30)
    assert is_untouched(private)


def test_folders_of_workers_writers_and_days_are_no_links(tmp_path: Path, private: Path) -> None:
    """R50: recovery, replay and collection leave a link below the spool's folders alone."""
    root = tmp_path / "spool"
    with Spool(root) as spool:
        (root / "queue-in-flight" / "host.1.0123abcd").symlink_to(private)
        (root / "queue-in-flight" / "foreign").symlink_to(private)
        (root / "queue" / ".tmp" / "0123456789abcdef").symlink_to(private)
        (root / "queue-done" / "2020-01-01").symlink_to(private)
        (root / "queue" / "bucket").symlink_to(private)
        recover(spool.layout, Rules(1, foreign_lease_s=0.0))
        replay_dead(spool.layout)
        gc(spool, keep_done_s=0.0)
        assert spool.recover() is not None and spool.lease() is None
        today = time.strftime("%Y-%m-%d", time.gmtime())
        (root / "queue-done" / today).symlink_to(private)
        spool.enqueue(EVENT)
        item = spool.lease()
        assert item is not None
        with pytest.raises(SpoolLayout, match="link"):
            spool.done(item)
    assert is_untouched(private)


def test_a_dead_owners_folder_is_no_link(tmp_path: Path, private: Path) -> None:
    """R50: no lock is made behind it."""
    (tmp_path / "owner").symlink_to(private)
    assert take_dead(tmp_path / "owner") is None
    assert is_untouched(private)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.ids"])
def test_a_corpus_is_not_written_through_a_link(name: str, tmp_path: Path, private: Path) -> None:
    """R50: neither the file nor the folder of its ids."""
    target = private / "diary.jsonl" if name.endswith("jsonl") else private
    (tmp_path / name).symlink_to(target)
    with Spool(tmp_path / "spool") as spool:
        spool.enqueue(EVENT)
        drain = Drain(spool, Corpus(tmp_path / "corpus.jsonl"))
        try_to_append(drain)
    assert is_untouched(private)


def try_to_append(drain: Drain) -> None:
    thread = threading.Thread(target=drain.run)
    thread.start()
    wait_until(
        lambda: bool(drain.last_error) or drain.report.corpus_failures > 0 or drain.report.appended > 0
    )
    drain.stop()
    thread.join(30)


# ------------------------------------------------------------------ links that appear between a look and the deed


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that a group shares: what is made in it gets the group's permissions."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


def swap_after_mkdir(folder: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member of the group acts once, right after a system call of ours: no timing brings this about."""
    mkdir = os.mkdir

    def then_swap(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        if Path(path) == folder:
            monkeypatch.setattr(os, "mkdir", mkdir)
            swap(folder, private)

    monkeypatch.setattr(os, "mkdir", then_swap)


def test_a_link_put_in_place_of_a_new_folder_gets_nobody_its_permissions(
    shared: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: a private folder of the daemon's user was opened to the group."""
    swap_after_mkdir(shared / "new", private, monkeypatch)
    with pytest.raises(NotADirectoryError):
        make_subfolder(shared / "new")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_link_put_in_place_of_the_ids_of_a_corpus_is_not_followed(
    shared: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: neither are ids written behind it, nor old files of days removed there."""
    days = [private / f"2020-01-{day:02}.txt" for day in range(1, 30)]
    for day in days:
        day.write_text("mine")
    ids = Ids(shared / "corpus.jsonl")
    swap_after_mkdir(shared / "corpus.jsonl.ids", private, monkeypatch)
    with contextlib.suppress(OSError):
        ids.write([b"x" * 16], 10)
    with contextlib.suppress(OSError):
        ids.write([b"y" * 16], 20)
    ids.forget()
    assert [day.read_text() for day in days] == ["mine"] * len(days)
    assert len(os.listdir(private)) == len(days) + 1


def test_a_link_put_in_place_of_torn_lines_is_not_written_through(
    shared: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50"""
    path = shared / "corpus.jsonl"
    path.write_bytes(b'{"id":"half')
    swap_after_mkdir(shared / "corpus.jsonl.torn", private, monkeypatch)
    with contextlib.suppress(OSError, SpoolBroken), Corpus(path) as corpus:
        corpus.append([LINE])
    assert is_untouched(private)


def test_a_link_put_in_place_of_a_dead_workers_folder_loses_no_lock_behind_it(
    tmp_path: Path, private: Path
) -> None:
    """R50: another spool's lock is none of this one's."""
    (private / ".lock").write_text("mine")
    worker = tmp_path / "worker"
    worker.symlink_to(private)
    assert take_dead(worker) is None and not remove_folder(worker)
    assert (private / ".lock").read_text() == "mine"


def test_a_pipe_in_place_of_the_ids_of_a_day_blocks_nobody(tmp_path: Path) -> None:
    """R50: opening one to write waits for a reader, for good; the fault names it, and ends with it."""
    path = tmp_path / "corpus.jsonl"
    with Corpus(path) as corpus:
        corpus.append([LINE])
    (day,) = (tmp_path / "corpus.jsonl.ids").iterdir()
    day.unlink()
    os.mkfifo(day)
    with Corpus(path) as corpus:
        with pytest.raises(SpoolBroken, match=day.name):
            corpus.append([("2", b'{"id":"2"}')])
        day.unlink()
        assert corpus.append([LINE, ("2", b'{"id":"2"}'), ("3", b'{"id":"3"}')]).appended == 1
    assert path.read_bytes().count(b"\n") == 3


def before(monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], None]) -> None:
    """Another member of the group acts once, between a listing of ours and what is done with it."""
    module, _, name = function.rpartition(".")
    original = getattr(sys.modules[module], name)

    def acting(*given: object) -> object:
        monkeypatch.setattr(function, original)
        act()
        return original(*given)

    monkeypatch.setattr(function, acting)


@pytest.mark.parametrize("swapped", ["queue-done", "queue-done/2020-01-01", "queue-done/2020-01-01/batch"])
@pytest.mark.parametrize("keep_done_s", [0.0, 1e12], ids=["removed", "compacted"])
def test_a_link_that_appears_while_finished_days_are_collected_loses_nothing_behind_it(
    swapped: str, keep_done_s: float, tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: files of the same names in a private folder were removed, or copied to where the group can read them."""
    root, day = tmp_path / "spool", Path("queue-done", "2020-01-01")
    inside = (day / "batch" / "diary.jsonl").relative_to(swapped)
    with Spool(root) as spool:
        (root / day / "batch").mkdir(parents=True)
        (root / day / "batch" / "diary.jsonl").write_bytes(b'{"id":"1"}\n')
        (private / inside).parent.mkdir(parents=True, exist_ok=True)
        (private / inside).write_bytes(DIARY)
        before(monkeypatch, "watchbill.spool.retention.lines_of", lambda: swap(root / swapped, private))
        try_to(lambda: gc(spool, keep_done_s=keep_done_s))
    assert (private / inside).read_bytes() == DIARY
    shown = [path for path in root.rglob("*.jsonl") if private not in path.resolve().parents]
    assert not any(b"DIARY" in path.read_bytes() for path in shown)


def test_a_link_that_appears_while_logs_are_replayed_loses_no_log_behind_it(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: the log of another spool was shown to the group, and removed."""
    root = tmp_path / "spool"
    Spool(root).close()
    log = root / "queue-wal" / f"0123456789abcdef-{1:019d}.jsonl"
    log.write_bytes(record_bytes(Record(f"{1:019d}-0123456789abcdef~0.jsonl", b'{"id":"1"}')))
    (private / log.name).write_bytes(log.read_bytes())
    before(monkeypatch, "watchbill.spool.replay.parse_log", lambda: swap(root / "queue-wal", private))
    with contextlib.closing(Layout.open(root)) as layout:
        try_to(lambda: replay_dead(layout))
    assert (private / log.name).exists()
