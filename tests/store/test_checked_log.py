"""The checked log: what was acknowledged is read, in order, by whoever follows it; nothing else is ever believed."""

import contextlib
import errno
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.files import uncached
from watchbill.files.atomic import NotAFile
from watchbill.files.checked_log import CheckedLog, LineReader, checked_line, whole_lines
from watchbill.files.limits import LINE_BYTES_MAX, LINES_READ_BYTES, LOG_DIRECT_BYTES_MIN

#: Small ones, one that extends the file by itself, one that is longer than one look.
SIZES = st.integers(0, 5_000) | st.sampled_from([LOG_DIRECT_BYTES_MIN + 7, LINES_READ_BYTES + 7])


def all_of(reader: LineReader, until: int | None = None) -> list[bytes]:
    """Everything that can be believed now."""
    found: list[bytes] = []
    while lines := reader.read(until):
        found += lines
    return found


@pytest.mark.parametrize("closes", [True, False], ids=["closed between", "open"])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("filled", [True, False])
@given(batches=st.lists(st.lists(SIZES, max_size=4), max_size=6))
@settings(max_examples=10, deadline=None)
def test_a_follower_reads_every_line_once_and_in_order(
    filled: bool, direct: bool, closes: bool, batches: list[list[int]]
) -> None:
    """FLEET-09: also of a writer that closes its file between appends, and goes on with it."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if not direct:
            patch.setattr(uncached, "O_DIRECT", 0)
        path = Path(folder, "log")
        log, reader, seen = CheckedLog(path, filled=filled), LineReader(path), list[bytes]()
        for number, batch in enumerate(batches):
            log.append(b"%d " % number + b"x" * size for size in batch)
            seen += all_of(reader)
            if closes:
                log.close()
                log = CheckedLog(path, filled=filled, goes_on_at=log.end)
        log.close()
        expected = [b"%d " % number + b"x" * size for number, batch in enumerate(batches) for size in batch]
        assert seen == expected == all_of(LineReader(path))
        assert reader.offset == log.end == sum(map(len, map(checked_line, expected)))
        assert filled or path.stat().st_size == log.end


@given(
    payloads=st.lists(st.binary(max_size=30).filter(lambda each: b"\n" not in each), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_a_reader_stops_at_the_first_damage_and_never_skips(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """Whatever one byte becomes: the lines before it are read, those behind it are not."""
    lines = [checked_line(each) for each in payloads]
    text = b"".join(lines)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[at]))
    before = next(n for n in range(len(lines)) if at < len(b"".join(lines[: n + 1])))
    found, size = whole_lines(text[:at] + bytes([other]) + text[at + 1 :])
    assert (found, size) == (payloads[:before], len(b"".join(lines[:before])))


@pytest.mark.parametrize("rest", [b"", b"\n" * 50, b"\0" * 50], ids=["nothing", "newlines", "zeros"])
def test_a_line_that_has_come_in_part_is_read_when_it_is_whole(tmp_path: Path, rest: bytes) -> None:
    """What follows the part may be nothing, newlines filled ahead, or what a power cut left."""
    path = tmp_path / "log"
    first, second = checked_line(b"first"), checked_line(b"second")
    text = first + second
    for cut in range(len(text)):
        path.write_bytes(text[:cut] + rest)
        reader = LineReader(path)
        early = all_of(reader)
        # Where newlines are filled ahead, a line's own is there before it.
        come = cut + rest.startswith(b"\n")
        assert early == [b"first", b"second"][: (come >= len(first)) + (come >= len(text))]
        path.write_bytes(text)
        assert early + all_of(reader) == [b"first", b"second"]


def test_a_reader_believes_no_byte_beyond_the_one_it_is_told(tmp_path: Path) -> None:
    """What a fenced writer appends later does not exist."""
    path = tmp_path / "log"
    log = CheckedLog(path)
    log.append([b"one", b"two"])
    believed = log.end
    log.append([b"late"])
    log.close()
    assert all_of(LineReader(path), believed) == [b"one", b"two"]
    assert all_of(LineReader(path), believed + 3) == [b"one", b"two"]
    assert all_of(LineReader(path), believed - 1) == [b"one"]
    assert all_of(LineReader(path), 0) == []


@pytest.mark.parametrize("payload", [b"two\nlines", b"x" * (LINE_BYTES_MAX + 1)], ids=["newline", "too long"])
def test_what_cannot_be_a_line_is_refused_before_anything_is_written(tmp_path: Path, payload: bytes) -> None:
    log = CheckedLog(tmp_path / "log")
    with pytest.raises(ValueError, match="line of"):
        log.append([b"good", payload])
    log.append([b"x" * LINE_BYTES_MAX])
    log.close()
    assert [len(each) for each in all_of(LineReader(tmp_path / "log"))] == [LINE_BYTES_MAX]


def test_a_name_is_used_by_one_writer_only(tmp_path: Path) -> None:
    """One writer per file: a second one, even after the first has ended, begins a file of its own."""
    log = CheckedLog(tmp_path / "log")
    log.append([b"mine"])
    log.close()
    with pytest.raises(FileExistsError):
        CheckedLog(tmp_path / "log")
    assert all_of(LineReader(tmp_path / "log")) == [b"mine"]


def test_nothing_but_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(checked_line(b"secret"))
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(NotAFile):
            LineReader(tmp_path / name).read()
    with pytest.raises(FileNotFoundError):
        LineReader(tmp_path / "absent").read()


def fail_syncs(patch: pytest.MonkeyPatch) -> list[int]:
    """Let every sync of data fail, and count them."""
    failed: list[int] = []

    def fdatasync(fd: int) -> None:
        failed.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    patch.setattr(os, "fdatasync", fdatasync)
    return failed


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("size", [10, LOG_DIRECT_BYTES_MIN])
def test_after_a_failed_sync_the_log_takes_nothing_and_is_never_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, filled: bool
) -> None:
    """R3: asked a second time, a disk that has lost the bytes says that all is well."""
    path = tmp_path / "log"
    log = CheckedLog(path, filled=filled)
    log.append([b"safe"])
    failed = fail_syncs(monkeypatch)
    for _ in range(2):
        with pytest.raises(OSError, match=r"Input/output|accepts nothing more"):
            log.append([b"x" * size])
    assert (log.failed, len(failed)) == (True, 1)
    log.close()
    assert all_of(LineReader(path)) == [b"safe"]


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 40, LOG_DIRECT_BYTES_MIN])
def test_a_follower_never_sees_part_of_what_a_full_disk_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: bool, taken: int
) -> None:
    """R4: several lines at once, of which the disk takes some bytes and then no more. A line that was seen and taken
    back would leave the follower in the middle of what is written over it."""
    path = tmp_path / "log"
    log, reader = CheckedLog(path, filled=filled), LineReader(path)
    log.append([b"before"])
    seen = all_of(reader)
    real, room = os.pwrite, taken

    def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        nonlocal room
        if bytes(data).strip(b"\n") and offset + len(data) > log.end:  # not what is filled in or taken back
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[:room]
            room -= len(data)
        written = real(fd, data, offset)
        seen.extend(all_of(reader))
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(OSError, match="No space"):
            log.append([b"a" * 20, b"b" * LOG_DIRECT_BYTES_MIN, b"c" * 20])
    assert not log.failed
    log.append([b"after", b"the end"])
    log.close()
    assert seen + all_of(reader) == [b"before", b"after", b"the end"]


def test_a_log_on_a_full_disk_refuses_and_goes_on_when_there_is_room(
    small_disk: Callable[[str], Path],
) -> None:
    """R4: on a real disk that is full."""
    folder = small_disk("size=1m")
    log, reader = CheckedLog(folder / "log"), LineReader(folder / "log")
    log.append([b"before"])
    ballast = folder / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(b"x" * 2**20)
    with pytest.raises(OSError, match="No space"):
        log.append([b"y" * 1000] * 300)
    ballast.unlink()
    log.append([b"after"])
    log.close()
    assert all_of(reader) == [b"before", b"after"]


def append_for_ever(path: Path, filled: bool, say: Callable[[object], None]) -> None:
    log = CheckedLog(path, filled=filled)
    for number in range(100_000):
        log.append(b"%d of %d %s" % (part, number, b"x" * 200) for part in range(number % 5 + 1))
        say(number)


def is_gapless(lines: list[bytes]) -> bool:
    """Whether these are the first lines that `append_for_ever` writes."""
    wanted = (
        b"%d of %d %s" % (part, number, b"x" * 200)
        for number in range(100_000)
        for part in range(number % 5 + 1)
    )
    return all(line == each for line, each in zip(lines, wanted, strict=False))


@pytest.mark.parametrize("filled", [True, False])
def test_acknowledged_lines_survive_a_kill(tmp_path: Path, child: Any, filled: bool) -> None:
    path = tmp_path / "log"
    process = child(lambda say: append_for_ever(path, filled, say))
    process.first()
    acknowledged = len(process.kill())
    lines = all_of(LineReader(path))
    assert is_gapless(lines)
    assert len(lines) >= sum(number % 5 + 1 for number in range(acknowledged))


@pytest.mark.parametrize("filled", [True, False])
def test_acknowledged_lines_survive_a_power_cut(disk: Any, child: Any, filled: bool) -> None:
    """R1: at a random moment the power fails; every acknowledged line is there, and what else is there has no gap."""
    chance = random.Random(f"{disk.kind}{filled}")
    for trial in range(4):
        path = disk.path / f"log{trial}"
        process = child(lambda say, path=path: append_for_ever(path, filled, say))
        process.first()
        time.sleep(chance.uniform(0.0, 0.04))  # the moment of the cut is the experiment
        acknowledged = len(process.said())
        disk.shut_down()
        process.kill()
        disk.mount_again()
        lines = all_of(LineReader(path))
        assert is_gapless(lines)
        assert len(lines) >= sum(number % 5 + 1 for number in range(acknowledged))
