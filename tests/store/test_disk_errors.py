"""Disks that fail, fill up or turn read-only: refused with a reason, nothing half visible, and it recovers alone."""

import contextlib
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest

from support.eventually import wait_until
from watchbill.catalog import SpoolRules
from watchbill.cli import run
from watchbill.core.messages import Alert
from watchbill.runtime.capture import Captured, SpoolCapture
from watchbill.spool import Spool, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.inspect import State, entries, poison_named, show, stats

EVENT = {"kind": "note", "body": "x" * 4000}


@pytest.mark.parametrize(("durability", "call"), [("wal", "fdatasync"), ("event", "fsync")])
def test_a_failed_sync_is_no_acknowledgement(
    traced: Callable[..., Any], inventory: Any, tmp_path: Path, durability: str, call: str
) -> None:
    """SPOOL-02, R3: the event whose sync failed is refused, the ones before and after it are there, and the
    descriptor that failed is never synced again."""
    path, log = tmp_path / "spool", tmp_path / "calls"
    Spool(path).close()
    # In `event` mode the third fsync is the second event's file.
    options = ["-y", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when=3"]
    said = traced("enqueue.py", str(path), durability, "6", options=options).stdout.split("\n")[:-1]
    assert sum(line == "refused SpoolBroken" for line in said) == 1
    names = [line.split()[1] for line in said if line.startswith("enqueued")]
    assert len(names) == 5
    with Spool(path) as spool:
        spool.recover()
    found = inventory(path)
    assert (found.missing(names), found.twice(), found.torn()) == ([], [], [])
    if durability == "wal":
        synced = re.findall(r"fdatasync\(\d+<(.*?)>\) += (\S+)", log.read_text())
        failed = next(index for index, (_, result) in enumerate(synced) if result == "-1")
        assert synced[failed][0] not in [name for name, _ in synced[failed + 1 :]]


@pytest.mark.parametrize(
    "call", ["rename", "renameat", "renameat2", "mkdirat", "openat", "pwrite64", "flock"]
)
def test_no_room_at_any_call_is_refused_or_kept(
    traced: Callable[..., Any], inventory: Any, tmp_path: Path, call: str
) -> None:
    """SPOOL-02, R4: ENOSPC at each call of an enqueue: either refused, or acknowledged and there."""
    path = tmp_path / "spool"
    Spool(path).close()
    for number in (1, 2, 3, 4):
        options = ["-o", os.devnull, "-P", str(path), "-e", f"trace={call}"]
        options += ["-e", f"inject={call}:error=ENOSPC:when={number}"]
        said = traced("enqueue.py", str(path), "wal", "4", options=options).stdout.split("\n")[:-1]
        names = [line.split()[1] for line in said if line.startswith("enqueued")]
        with Spool(path) as spool:
            spool.recover()
        found = inventory(path)
        assert (call, number, found.missing(names), found.twice(), found.torn()) == (call, number, [], [], [])


@pytest.mark.parametrize("durability", ["wal", "event", "none"])
@pytest.mark.parametrize("options", ["size=1m", "size=16m,nr_inodes=64"])
def test_a_full_disk_refuses_and_recovers_alone(
    small_disk: Any, inventory: Any, options: str, durability: Any
) -> None:
    """SPOOL-02, R4: disk or inodes full is SpoolFull (507) before the acknowledgement; what was acknowledged is
    whole; with room again the same object works and what could not be shown appears."""
    path = small_disk(options) / "spool"
    ballast = [path.parent / f"ballast{number}" for number in range(6)]
    for file in ballast:
        file.write_bytes(b"x" * 40_000)
    names: list[str] = []
    with Spool(path, durability=durability) as spool:
        with pytest.raises(SpoolFull) as refused:  # noqa: PT012  until it is full
            for _ in range(10_000):
                names.append(spool.enqueue(EVENT))
        assert refused.value.status == 507
        assert inventory(path).torn() == []
        for file in ballast:
            file.unlink()
        for item in (spool.lease(), spool.lease(), spool.lease()):
            if item is not None:
                spool.done(item)
        for file in (path / "queue-done").rglob("*.jsonl"):
            file.unlink()
            names = [name for name in names if name[:36] != file.name[:36]]
        names.append(spool.enqueue({"id": "again"}))
    with Spool(path) as spool:
        spool.recover()
    found = inventory(path)
    assert (found.missing(names), found.twice(), found.torn()) == ([], [], [])


def test_a_short_write_leaves_nothing_half_visible(inventory: Any, child: Any, tmp_path: Path) -> None:
    """R4: a file size limit gives a short write first and an error second; no torn event appears."""
    path = tmp_path / "spool"

    def work(say: Callable[[object], None]) -> None:
        with Spool(path, durability="none") as spool:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            say(spool.enqueue({"id": "small"}))
            try:
                spool.enqueue(EVENT)
            except SpoolFull as error:
                say({"refused": str(error)})

    said = child(work).join()
    assert isinstance(said[0], str)
    assert "refused" in said[1]
    found = inventory(path)
    assert (len(found.where), found.torn()) == (1, [])


def test_a_writer_whose_log_failed_stays_broken_whatever_fails_after_it(child: Any, tmp_path: Path) -> None:
    """SPOOL-02, R3: a bundle that finds no room beside the log does not bring the log back whose sync failed."""

    def work(say: Callable[[object], None]) -> None:
        with Spool(tmp_path / "spool") as spool:
            spool.enqueue({"id": "in the log"})
            producer = spool._producer()
            producer.broken = True  # as its log's failed sync leaves it, in another thread
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
            try:
                producer.commit([b"x" * 3_000_000], bundle=True)
            except SpoolFull as error:
                say(str(error))
            say(producer.broken)

    said = child(work).join()
    assert said[1:] == [True]


def test_a_read_only_remount_refuses_and_recovers(disk: Any, inventory: Any) -> None:
    """R4: on a read-only disk enqueue and lease raise SpoolBroken, stats still answers; writable again, all works."""
    path = disk.path / "spool"
    with Spool(path) as spool:
        names = [spool.enqueue(EVENT)]
        spool.close()
    subprocess.run(["mount", "-o", "remount,ro", os.fspath(disk.path)], check=True)
    with Spool(path) as spool:
        with pytest.raises(SpoolBroken):
            spool.enqueue(EVENT)
        with pytest.raises(SpoolBroken):
            spool.lease()
        assert stats(spool).queue == 1
        subprocess.run(["mount", "-o", "remount,rw", os.fspath(disk.path)], check=True)
        names.append(spool.enqueue(EVENT))
        item = spool.lease()
        assert item is not None
        spool.done(item)
    found = inventory(path)
    assert (found.missing(names), found.twice(), found.torn()) == ([], [], [])


def test_a_dead_disk_is_said_to_be_dead(disk: Any) -> None:
    """R3: when the disk is gone every call raises SpoolBroken at once; none hangs, none acknowledges."""
    path = disk.path / "spool"
    spool = Spool(path)
    spool.enqueue(EVENT)
    disk.shut_down()
    for _ in range(3):
        with pytest.raises(SpoolBroken):
            spool.enqueue(EVENT)
    spool.close()
    disk.mount_again()
    with Spool(path) as spool:
        item = spool.lease()
        assert item is not None
        assert item.event == EVENT
        spool.done(item)


@pytest.mark.parametrize(("call", "count"), [("syncfs", 100), ("fsync", 5)])
def test_a_failed_checkpoint_keeps_its_log_and_believes_no_later_sync(
    traced: Callable[..., Any], inventory: Any, tmp_path: Path, call: str, count: int
) -> None:
    """SPOOL-02, R3: the kernel reports a failed write-back once and then says that all is well; so every file
    of that log is written anew before the log goes."""
    path = tmp_path / "spool"
    Spool(path).close()
    when = 1 if call == "syncfs" else 3  # the log's own two come first
    options = ["-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}"]
    said = traced("enqueue.py", str(path), "wal", str(count), options=options).stdout.split("\n")[:-1]
    names = [line.split()[1] for line in said if line.startswith("enqueued")]
    assert len(names) == count
    assert list((path / "queue-wal").glob("*.doubt.jsonl"))
    before = {name: (path / "queue" / name).stat().st_ino for name in names}
    with Spool(path) as spool:
        spool.recover()
    assert not list((path / "queue-wal").glob("*.jsonl"))
    assert all((path / "queue" / name).stat().st_ino != before[name] for name in names)
    found = inventory(path)
    assert (found.missing(names), found.twice(), found.torn()) == ([], [], [])


def test_the_logs_name_is_synced_before_anything_is_acknowledged(
    traced: Callable[..., Any], tmp_path: Path
) -> None:
    """SPOOL-02: ext4 and xfs keep a new file's name with its content; POSIX does not promise it, so the folder
    is synced, too, which no power cut here could show."""
    path, log = tmp_path / "spool", tmp_path / "calls"
    traced("enqueue.py", str(path), "wal", "1", options=["-y", "-o", str(log), "-e", "trace=fsync,fdatasync"])
    synced = re.findall(r"(fsync|fdatasync)\(\d+<(.*?)>", log.read_text())
    first = next(index for index, (call, _) in enumerate(synced) if call == "fdatasync")
    assert ("fsync", str(path / "queue-wal")) in synced[:first]
    assert ("fsync", str(path)) in synced[:first]
    assert ("fsync", str(path.parent)) in synced[:first]


def test_every_write_to_the_log_is_synced_before_it_is_acknowledged(
    traced: Callable[..., Any], tmp_path: Path
) -> None:
    """SPOOL-02: a direct write is on the disk, but perhaps in its cache only; our power cuts leave that cache
    alone, so they cannot show a sync that is missing after it."""
    path, log = tmp_path / "spool", tmp_path / "calls"
    traced(
        "enqueue.py",
        str(path),
        "wal",
        "5",
        options=["-y", "-o", str(log), "-e", "trace=pwrite64,fdatasync,write"],
    )
    dirty, acknowledged = True, 0
    for call, file, text in re.findall(r" (\w+)\(\d+<(.*?)>(.*)", log.read_text()):
        if "/queue-wal/" in file:
            dirty = call != "fdatasync"
        elif "enqueued" in text:
            acknowledged += 1
            assert not dirty
            dirty = True
    assert acknowledged == 5


def test_moving_by_hand_says_what_the_disk_refuses(tmp_path: Path) -> None:
    """SPOOL-06: a reason that cannot be written is our error, and the event stays where it was."""
    with Spool(tmp_path / "spool") as spool:
        name = spool.enqueue({"id": 1})
        (spool.layout.folder(State.POISON) / f"{name}.reason.json").mkdir()
        with pytest.raises(SpoolBroken, match="write the reason"):
            poison_named(spool, name, "no")
        assert stats(spool).queue == 1


def test_an_event_that_may_not_be_read_is_not_shown(tmp_path: Path) -> None:
    """SPOOL-06: another user's file is said to be unreadable, as a link or a FIFO is."""
    with Spool(tmp_path / "spool") as spool:
        spool.enqueue({"id": 1})
        (entry,) = entries(spool)
        entry.path.chmod(0)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            with pytest.raises(SpoolLayout, match=r"cannot be shown: Permission denied"):
                show(spool, entry)
        finally:
            if is_root:
                os.seteuid(0)


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of a user who may not read everything; the test is that user."""
    with TemporaryDirectory() as folder:
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if is_root:
                os.seteuid(0)


def test_a_file_that_cannot_be_read_rests_between_its_tries(nobodys_folder: Path) -> None:
    """SPOOL-06: as an event whose handler failed does. A user who may not read an event uses up none of its tries:
    after seven calls of another user the first failure of the owner was the last."""
    with Spool(nobodys_folder / "spool", durability="none") as spool:
        spool.enqueue_many([{"id": "locked"}, {"id": "free"}])
        locked, _ = sorted(entries(spool), key=lambda entry: entry.name)
        locked.path.chmod(0)
        items = spool.lease_many(9)
        assert [item.event["id"] for item in items] == ["free"]
        assert (spool.lease(), spool.given_up) == (None, 0)
        (waiting,) = entries(spool, State.QUEUE)
        assert (waiting.name.partition("~")[0], waiting.attempt) == (locked.name.partition("~")[0], 0)
        waiting.path.chmod(0o640)
        again = wait_until(spool.lease)
        assert (again.event["id"], again.attempt) == ("locked", 1)


def test_a_drain_says_what_waits_for_room(
    small_disk: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPOOL-01: events that only a log holds are not passed over in silence, and come when there is room."""
    disk = small_disk("size=4m,nr_inodes=60")
    with Spool(disk / "s") as spool:
        spool.enqueue_many([{"id": number, "kind": "note", "ts": 1} for number in range(100)])
    command = ["spool", "drain", "--once", "--spool", str(disk / "s"), "--corpus", str(tmp_path / "c.jsonl")]
    assert run(command) == 0
    said = capsys.readouterr()
    assert said.out.startswith("appended 0,")
    assert "100 more are safe in a dead writer's log" in said.err
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", os.fspath(disk)], check=True)
    assert run(command) == 0
    said = capsys.readouterr()
    assert said.out.startswith("appended 100,")
    assert "log" not in said.err


def test_captured_requests_wait_for_a_full_disk_and_are_stored_in_their_order(
    small_disk: Callable[[str], Path],
) -> None:
    """SPOOL-13, R4: while there is no room they wait, alerted; with room all are stored as they came."""
    disk = small_disk("size=2m")
    filler = disk / "filler"
    told: list[Alert] = []
    capture = SpoolCapture(disk, {"chats": SpoolRules("chats", "spool", MappingProxyType({}))}, told.append)

    def ask(number: int) -> bool:
        return capture.capture(
            "chats", Captured(f"{number}", 1.5, "chat", "m", "local", "why", "x" * 999, "ok")
        )

    assert ask(0)
    wait_until(lambda: capture.view()["chats"]["stored"] == 1)
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    assert all(ask(number) for number in range(1, 200))
    wait_until(lambda: bool(told))
    assert (told[0].kind, "No space left" in told[0].text) == ("capture", True)
    assert capture.view()["chats"]["waiting"] > 0
    filler.unlink()
    wait_until(lambda: capture.view()["chats"]["stored"] == 200)
    assert (capture.close(), len(told)) == ([], 1)
    with Spool(disk / "spool") as spool:
        assert [item.event["id"] for item in iter(spool.lease, None)] == [f"{n}" for n in range(200)]
