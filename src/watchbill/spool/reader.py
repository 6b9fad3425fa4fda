"""Reading a corpus: each id once, checked, repaired, counted, followed.

Reads lines in one pass, whatever their number. Never writes, except `repair`, which makes a
new file beside the old one and swaps them under the appender's lock; every byte it leaves out is kept.
"""

import json
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from watchbill.files.atomic import fsync_folder, make_folder, move_file, writing
from watchbill.files.given import open_given
from watchbill.spool.corpus import Corpus
from watchbill.spool.events import Event, Id, decode, event_id, id_digest
from watchbill.spool.faults import EventRefused, disk_fault
from watchbill.spool.ids import Ids
from watchbill.spool.limits import BUNDLE_BYTES_MAX

__all__ = [
    "BadRecord", "CorpusLine", "Report", "check", "count", "follow", "read", "repair", "tail", "whole_lines_end",
]  # fmt: skip

#: Bad lines that a report names one by one; it counts all.
_NAMED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CorpusLine:
    """One good line: where it begins, its id, the event and its bytes."""

    offset: int
    id: Id
    event: Event
    line: bytes


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A line that is no event. `line` holds its bytes; of a line that is too long, only the first."""

    offset: int
    reason: str
    line: bytes
    size: int


@dataclass(slots=True)
class Report:
    """What is in a corpus."""

    lines: int = 0
    events: int = 0
    duplicates: int = 0
    bad: int = 0
    torn_tail: bool = False
    records: list[BadRecord] = field(default_factory=list[BadRecord])

    @property
    def is_clean(self) -> bool:
        return self.bad == 0 and not self.torn_tail


def read(path: Path, *, id_key: str = "id", unique: bool = True) -> Iterator[CorpusLine]:
    """Yield the good lines in order; with `unique` each id once, the first one. Bad lines are skipped."""
    seen: set[bytes] = set()
    for found in _lines(path, id_key):
        if isinstance(found, BadRecord):
            continue
        if unique:
            digest = id_digest(found.id)
            if digest in seen:
                continue
            seen.add(digest)
        yield found


def check(path: Path, *, id_key: str = "id") -> Report:
    """Read everything and report it."""
    report = Report()
    seen: set[bytes] = set()
    for found in _lines(path, id_key):
        report.lines += 1
        if isinstance(found, BadRecord):
            report.bad += 1
            report.torn_tail = report.torn_tail or found.reason == _TORN
            if len(report.records) < _NAMED_MAX:
                report.records.append(found)
        elif (digest := id_digest(found.id)) in seen:
            report.duplicates += 1
        else:
            seen.add(digest)
            report.events += 1
    return report


def count(path: Path, *, id_key: str = "id", unique: bool = True) -> int:
    return sum(1 for _ in read(path, id_key=id_key, unique=unique))


def whole_lines_end(path: Path) -> int:
    """Return the offset after the last whole line: bytes after it may belong to a write in progress."""
    with open(open_given(path), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 64 * 1024)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def tail(path: Path, lines: int = 10, *, end: int | None = None) -> list[bytes]:
    """Return the last lines (before the offset `end`), unparsed, reading only the end of the file."""
    with open(open_given(path), "rb") as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        data = b""
        while end > 0 and data.count(b"\n") <= lines:
            start = max(0, end - 64 * 1024)
            file.seek(start)
            data = file.read(end - start) + data
            end = start
    return data.removesuffix(b"\n").split(b"\n")[-lines:] if data and lines > 0 else []


def follow(path: Path, *, start: int | None = None, poll_s: float = 0.2) -> Iterator[bytes]:
    """Yield lines that are appended after the offset `start` (by default from now on), without end. Only whole lines.

    After a repair it continues after the last line that was seen.
    """
    file = open(open_given(path), "rb")  # noqa: SIM115  replaced below
    try:
        file.seek(*((0, os.SEEK_END) if start is None else (start, os.SEEK_SET)))
        rest, seen = b"", deque[bytes](maxlen=100)
        while True:
            chunk = file.read(1024 * 1024)
            if chunk:
                *lines, rest = (rest + chunk).split(b"\n")
                seen.extend(lines)
                yield from lines
            elif _is_replaced(path, file):
                file.close()
                file, rest = open(open_given(path), "rb"), b""  # noqa: SIM115
                _seek_after(file, seen)
            else:
                time.sleep(poll_s)
    finally:
        file.close()


def repair(path: Path, *, id_key: str = "id", quarantine: Path | None = None, unique: bool = False) -> Report:
    """Move bad lines (and, with `unique`, repeated ids) from a corpus to the quarantine file.

    Returns what was found. A clean corpus is not touched. Raises SpoolFull or SpoolBroken: then it is as it was;
    ValueError for a link or a pipe, which a new file must not replace.
    """
    if stat.S_IFMT(path.lstat().st_mode) not in (
        stat.S_IFREG,
        stat.S_IFDIR,
    ):  # opening a folder raises a clear error
        raise ValueError("only a regular file can be repaired; name the file itself, not a link to it")
    report = check(path, id_key=id_key)
    if report.is_clean and not (unique and report.duplicates):
        return report
    folder = quarantine or path.with_name(path.name + ".torn")
    try:
        with Corpus(path) as corpus, corpus.locked():
            _rewrite(path, folder, id_key, unique)
            Ids(path).forget()  # offsets have changed
    except OSError as error:
        raise disk_fault(error, f"repair {path}") from error
    return report


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _seek_after(file: BinaryIO, seen: Sequence[bytes]) -> None:
    """Seek to the end of the last of these lines that is still near the end; to the end if none is."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - 4 * 1024 * 1024)
    file.seek(start)
    data = file.read(end - start)
    for line in reversed(seen):
        found = data.rfind(line + b"\n")
        if found >= 0:
            file.seek(start + found + len(line) + 1)
            return


def _rewrite(path: Path, folder: Path, id_key: str, unique: bool) -> None:
    make_folder(folder)
    removed = folder / f"{path.name}-{time.time_ns()}.removed.jsonl"
    new = path.with_name(f".{path.name}.repair")
    seen: set[bytes] = set()
    with writing(new) as good, writing(removed) as bad:
        for found in _lines(path, id_key):
            digest = b"" if isinstance(found, BadRecord) else id_digest(found.id)
            if isinstance(found, BadRecord) or (unique and digest in seen):
                reason = found.reason if isinstance(found, BadRecord) else "duplicate id"
                note = {"offset": found.offset, "reason": reason, "hex": found.line.hex()}
                bad.write(json.dumps(note).encode() + b"\n")
                if isinstance(found, BadRecord) and found.size > len(found.line):
                    _copy(path, found, removed.with_name(f"{removed.stem}-{found.offset}.torn"))
                continue
            seen.add(digest)
            good.write(found.line + b"\n")
    os.chmod(new, path.stat().st_mode & 0o777)
    fsync_folder(folder)
    move_file(new, path)


def _copy(path: Path, record: BadRecord, target: Path) -> None:
    """Copy a line that is too long for memory."""
    with open(open_given(path), "rb") as source, writing(target) as file:
        source.seek(record.offset)
        left = record.size
        while left > 0 and (part := source.read(min(left, 1024 * 1024))):
            file.write(part)
            left -= len(part)


_TORN = "no newline at its end: a write was cut short"


def _lines(path: Path, id_key: str) -> Iterator[CorpusLine | BadRecord]:
    offset = 0
    with open(open_given(path), "rb") as file:
        while raw := file.readline(BUNDLE_BYTES_MAX):
            start, offset = offset, offset + len(raw)
            if raw.endswith(b"\n"):
                if raw != b"\n":
                    yield _judge(raw[:-1], start, id_key)
                continue
            if len(raw) == BUNDLE_BYTES_MAX:
                offset += _skip_line(file)
                yield BadRecord(start, f"longer than {BUNDLE_BYTES_MAX} bytes", raw[:1024], offset - start)
            else:
                # A whole event only lacks its newline: the next append adds it.
                found = _judge(raw, start, id_key)
                yield found if isinstance(found, CorpusLine) else BadRecord(start, _TORN, raw, len(raw))


def _judge(line: bytes, offset: int, id_key: str) -> CorpusLine | BadRecord:
    try:
        event = decode(line)
    except EventRefused as error:
        return BadRecord(offset, str(error), line, len(line))
    return CorpusLine(offset, event_id(event, line, id_key), event, line)


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while part := file.readline(1024 * 1024):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped
