"""The log: replay shows what is missing, never what is there, and keeps what it cannot read."""

import binascii
import errno
import itertools
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.files import uncached
from watchbill.files.disk import mount_id
from watchbill.files.host import boot_id
from watchbill.files.limits import LOG_DIRECT_BYTES_MIN
from watchbill.spool import Spool, SpoolLayout
from watchbill.spool.inspect import State, stats
from watchbill.spool.log import Log, Record, parse_log, record_bytes
from watchbill.spool.replay import replay_dead, unreplayed

WRITER = "0123456789abcdef"
MUTATIONS = int(os.environ.get("WATCHBILL_MUTATIONS", "300"))


def record(number: int) -> Record:
    return Record(f"{number:019d}-{WRITER}~0.jsonl", b'{"id":"%d"}' % number)


def write_log(
    path: Path,
    records: list[Record],
    marks: Sequence[tuple[str, str]] = (),
    *,
    boot: str | None = None,
    writer: str = WRITER,
) -> Path:
    """Leave a log as a writer does that was killed."""
    fd = os.open(path, os.O_RDONLY)
    log = Log(
        path / "queue-wal", f"{writer}-{1:019d}.jsonl", boot_id() if boot is None else boot, mount_id(fd)
    )
    os.close(fd)
    log.append(records, marks)
    log.close()
    return log.path


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, durability="none")


def test_only_what_is_missing_is_shown(spool: Spool) -> None:
    """SPOOL-02: three logged, one of them in done already, one in the queue: one appears."""
    records = [record(number) for number in range(1, 4)]
    write_log(spool.path, records)
    (spool.path / "queue" / records[0].name).write_bytes(records[0].content + b"\n")
    (spool.path / "queue-done" / "2026-01-01").mkdir()
    (spool.path / "queue-done" / "2026-01-01" / records[1].name.replace("~0", "~2")).write_bytes(b"{}\n")
    assert replay_dead(spool.layout) == 1
    assert stats(spool).queue == 2
    assert not list((spool.path / "queue-wal").glob("*.jsonl"))
    spool.close()


def test_marks_are_believed_on_the_same_boot_only(spool: Spool) -> None:
    """SPOOL-02: a visible event that was consumed and removed is not delivered again after a mere crash; after
    a restart of the machine it is, because then nobody knows."""
    records = [record(number) for number in range(1, 4)]
    marks = [(records[0].name, records[1].name)]
    write_log(spool.path, records, marks)
    assert replay_dead(spool.layout) == 1
    write_log(spool.path, records[:2], marks, boot="another boot")
    assert replay_dead(spool.layout) == 2
    spool.close()


def test_after_a_restart_a_file_without_its_content_is_restored_where_it_lies(spool: Spool) -> None:
    """SPOOL-02, R1: the name survived the power cut, the content did not."""
    records = [record(1), record(2)]
    write_log(spool.path, records, boot="another boot")
    (spool.path / "queue" / records[0].name).write_bytes(b"")
    poisoned = spool.path / "queue-poison" / records[1].name.replace("~0", "~1")
    poisoned.write_bytes(b"\0" * 11)
    assert replay_dead(spool.layout) == 0
    assert (spool.path / "queue" / records[0].name).read_bytes() == b'{"id":"1"}\n'
    assert poisoned.read_bytes() == b'{"id":"2"}\n'
    spool.close()


def test_a_living_writers_log_is_left_alone(spool: Spool) -> None:
    """SPOOL-05: replay does not touch what its owner holds."""
    with Spool(spool.path) as writer:
        writer.enqueue({"id": 1})
        (log,) = (spool.path / "queue-wal").glob("*.jsonl")
        before = log.read_bytes()
        assert replay_dead(spool.layout) == 0
        assert log.read_bytes() == before
    spool.close()


def test_a_full_disk_after_the_acknowledgement_is_retried_from_the_log(spool: Spool) -> None:
    """SPOOL-02, R4: `stats` says how many events only a log holds while they cannot be shown."""
    write_log(spool.path, [record(1), record(2)])
    temporary = spool.path / "queue" / ".tmp"
    os.rename(temporary, spool.path / "aside")
    temporary.touch()  # no folder, no temporary file: as good as a full disk
    with pytest.raises(SpoolLayout, match=r"queue/.tmp"):
        replay_dead(spool.layout)
    temporary.unlink()
    os.rename(spool.path / "aside", temporary)
    assert stats(spool).queue == 2
    spool.close()


def test_damage_costs_only_what_it_hits_and_is_kept(tmp_path: Path) -> None:
    """R8: random bytes over a log: every record that was not hit is shown, every bad piece is in poison with
    its offset, nothing is made up."""
    chance = random.Random(20)
    for trial in range(MUTATIONS // 10):
        spool = Spool(tmp_path / str(trial), durability="none")
        records = [record(number) for number in range(1, 30)]
        log = write_log(spool.path, records)
        data = bytearray(log.read_bytes())
        used = len(bytes(data).rstrip(b"\n"))
        first = bytes(data).index(b"\n") + 1
        start = chance.randrange(first, used)
        length = chance.randrange(1, 80)
        hit = {
            rec.name
            for rec in records
            if (at := bytes(data).find(record_bytes(rec))) < start + length
            and at + len(record_bytes(rec)) > start
        }
        harm = chance.randbytes(length)
        if data[start : start + length] == harm:
            spool.close()
            continue
        data[start : start + length] = harm
        log.write_bytes(data)
        replay_dead(spool.layout)
        shown = {path.name for path in (spool.path / "queue").rglob("*.jsonl")}
        assert {rec.name for rec in records} - hit <= shown <= {rec.name for rec in records}
        assert list((spool.path / "queue-poison").glob("*.torn.reason.json"))
        spool.close()


def test_a_hit_newline_costs_the_record_before_it_only(spool: Spool) -> None:
    """R8: two records run together when the newline between them is hit; the second one is whole."""
    records = [record(1), record(2), record(3)]
    log = write_log(spool.path, records)
    data = log.read_bytes()
    log.write_bytes(data.replace(record_bytes(records[0]), record_bytes(records[0])[:-1] + b"x"))
    assert replay_dead(spool.layout) == 2
    assert list((spool.path / "queue-poison").glob("*.torn"))
    spool.close()


@pytest.mark.parametrize("name", [b"0000000000000000002-0123\x07567", b"0000000000000000009-01234567"])
def test_a_damaged_name_is_kept_and_shows_no_stranger(spool: Spool, name: bytes) -> None:
    """R8: the checksum is of the name, too: such a record is neither dropped in silence nor shown as another."""
    records = [record(1), record(2), record(3)]
    log = write_log(spool.path, records)
    log.write_bytes(log.read_bytes().replace(b"0000000000000000002-01234567", name))
    assert replay_dead(spool.layout) == 2
    shown = {path.name for path in (spool.path / "queue").rglob("*.jsonl")}
    assert shown == {records[0].name, records[2].name}
    assert len(list((spool.path / "queue-poison").glob("*.torn"))) == 1
    spool.close()


def test_a_damaged_mark_hides_nothing(spool: Spool) -> None:
    """R8: "visible up to 1", damaged into "visible up to 9", must not keep 2 and 3 from being shown."""
    records = [record(1), record(2), record(3)]
    log = write_log(spool.path, records, [(records[0].name, records[0].name)])
    damaged = log.read_bytes().replace(
        b"\t" + records[0].name.encode() + b"\n", b"\t" + record(9).name.encode() + b"\n"
    )
    log.write_bytes(damaged)
    assert replay_dead(spool.layout) == 3
    spool.close()


SIZES = st.lists(st.integers(1, 9_000) | st.just(LOG_DIRECT_BYTES_MIN + 77), min_size=1, max_size=12)


@pytest.mark.parametrize("refusal", ["none", "at open", "at write"])
@given(sizes=SIZES)
@settings(max_examples=MUTATIONS // 20, deadline=None)
def test_what_is_logged_small_and_large_stands_in_order(refusal: str, sizes: list[int]) -> None:
    """SPOOL-02: what goes past the page cache in whole blocks, what goes through it, and what a file system
    makes us write the old way: the same bytes, nothing overwritten, the rest newlines."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if refusal == "at open":
            patch.setattr(uncached, "O_DIRECT", 0)
        log = Log(Path(folder), "log.jsonl", "boot", "mount")
        if refusal == "at write":
            refuse_direct_writes(patch, errno.EINVAL, after=len(sizes) // 2)
        written = b"# watchbill log 2\tboot\tmount\n"
        for number, size in enumerate(sizes):
            each = Record(record(number).name, b"x" * size)
            log.append([each], [(each.name, each.name)])
            mark = f"{each.name}\t{each.name}".encode()
            written += b"@visible\t%08x\t%s\n" % (binascii.crc32(b"@visible" + mark), mark) + record_bytes(
                each
            )
            data = log.path.read_bytes()
            assert (data[: len(written)], data[len(written) :].strip(b"\n")) == (written, b"")
        log.close()


def refuse_direct_writes(patch: pytest.MonkeyPatch, number: int, after: int = 0) -> None:
    """Let direct writes fail, as on a file system that takes O_DIRECT and then finds our blocks too small."""
    real, seen = os.pwrite, itertools.count()

    def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        if isinstance(data, memoryview) and next(seen) >= after:
            raise OSError(number, os.strerror(number))
        return real(fd, data, offset)

    patch.setattr(os, "pwrite", pwrite)


def test_a_block_that_the_disk_refuses_ends_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-02, R3: acknowledged records are in the same block; nothing more is written into it."""
    log = Log(tmp_path, "log.jsonl", "boot", "mount")
    log.append([record(1)])
    refuse_direct_writes(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.append([record(2)])
    assert log.failed
    log.close()
    assert parse_log(log.path.read_bytes()).records == [record(1)]


@given(st.binary(max_size=400))
@settings(max_examples=MUTATIONS, deadline=None)
def test_any_bytes_are_a_log_or_pieces_of_one(data: bytes) -> None:
    """R8: parsing never fails, and a piece that is kept is really in the file at its offset."""
    for torn in parse_log(data).torn:
        assert data[torn.offset :].startswith(torn.data)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8))
@settings(max_examples=MUTATIONS, deadline=None)
def test_what_is_logged_is_read_back(contents: list[bytes]) -> None:
    """SPOOL-02: single lines and bundles of lines, whatever is in them."""
    records = [
        Record(f"{n:019d}-{WRITER}~0.jsonl", c) for n, c in enumerate(contents) if not c.startswith(b"=")
    ]
    records = [r for r in records if b"\0" not in r.content]
    parsed = parse_log(
        b"# watchbill log 2\tboot\tmount\n" + b"".join(map(record_bytes, records)) + b"\n" * 50
    )
    assert parsed.records == records
    assert (parsed.boot, parsed.mount, parsed.torn) == ("boot", "mount", [])


def test_the_folders_are_scanned_once_however_many_writers_died(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-05, R11: replay and its count cost the waiting files and the dead logs, not one times the other."""
    spool.enqueue_many([{"id": f"waits-{number}"} for number in range(50)])
    listed: list[object] = []
    scandir = os.scandir

    def counted(path: Any) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    scans: list[tuple[int, int]] = []
    for dead in (1, 40):
        for number in range(dead):
            write_log(spool.path, [record(100 * dead + number)], boot="another", writer=f"{number:016x}")
        listed.clear()
        assert unreplayed(spool.layout) == dead
        counting = len(listed)
        assert replay_dead(spool.layout) == dead
        scans.append((counting, len(listed) - counting))
    (count_one, replay_one), (count_many, replay_many) = scans
    assert count_many <= count_one + 10
    assert replay_many <= replay_one + 40 * 2 + 10  # each writer's own folder is swept
    assert not list(spool.layout.logs.glob("*.jsonl"))


def test_a_file_that_moves_while_a_log_is_compared_is_not_made_twice(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-03, R1: a worker leases an event between the scan and the look at its content."""
    name = spool.enqueue({"id": "1"})
    write_log(spool.path, [Record(name, b'{"id":"1"}')], boot="another")
    queued = spool.layout.root / "queue" / name
    leased = spool.layout.folder(State.IN_FLIGHT) / name
    look = os.stat

    def overtaken(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if path == name and dir_fd is not None:
            monkeypatch.setattr(os, "stat", look)
            queued.rename(leased)
        return look(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", overtaken)
    assert replay_dead(spool.layout) == 0
    assert leased.exists()
    assert not queued.exists()
