"""The write-ahead log of one writer: what makes one fdatasync enough for an acknowledgement.

    # watchbill log 2 TAB boot TAB mount
    name TAB crc32 TAB event
    name TAB crc32 TAB =bytes        a bundle: that many raw bytes follow, lines of one file
    @visible TAB crc32 TAB first name TAB last name

Plain text, one record a line. The crc32 covers the name and the event: a damaged name would show an event that
was never stored, a damaged mark could hide one. `append` returns when the records are on stable storage
(`files/append_log.py` says how); then the caller makes the visible files, without sync. A mark says that the files from
one name to another are visible; it travels with the next records and is never synced by itself.
"""

import binascii
import bisect
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, starmap
from pathlib import Path
from typing import NamedTuple

from watchbill.files.append_log import AppendLog

__all__ = [
    "UNSYNCED_SUFFIX",
    "Log",
    "LogContents",
    "Record",
    "Torn",
    "mark_unsynced",
    "parse_log",
    "record_bytes",
]

#: Suffix of a log whose files failed to sync.
UNSYNCED_SUFFIX = ".doubt.jsonl"
_HEADER = "# watchbill log 2"
_MARK = b"@visible"
_BUNDLE = b"="
#: A file that a writer makes: an event, a bundle, or the signature of one.
_NAME = re.compile(
    rb"\d{19}-[0-9a-f]{16}(?:\.n\d{1,9})?(?:~\d{1,9}(?:\.bundle)?\.jsonl|\.sig\.json)", re.ASCII
)
#: Names in one damaged line that are tried as the beginning of a record.
_INSIDE_TRIES_MAX = 64


class Record(NamedTuple):
    """A file to be made visible: its name, and its content without the last newline."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes of a log that are no record: a write that was cut short, or damage."""

    offset: int
    data: bytes


@dataclass(slots=True)
class LogContents:
    boot: str = ""
    mount: str = ""
    records: list[Record] = field(default_factory=list[Record])
    visible: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    torn: list[Torn] = field(default_factory=list[Torn])

    def unmarked(self) -> list[Record]:
        """Return the records that no mark declares visible. Ranges of names do not overlap."""
        ranges = sorted(self.visible)
        firsts = [first for first, _ in ranges]
        return [
            r
            for r in self.records
            if not self._covers(ranges, bisect.bisect_right(firsts, r.name) - 1, r.name)
        ]

    @staticmethod
    def _covers(ranges: list[tuple[str, str]], index: int, name: str) -> bool:
        return index >= 0 and name <= ranges[index][1]


def record_bytes(record: Record) -> bytes:
    """Return a record as it is written in the log."""
    name, content = record.name.encode(), record.content
    size = b"=%d\n" % len(content) if b"\n" in content else b""
    return b"".join((name, b"\t%08x\t" % _crc(name, content), size, content, b"\n"))


class Log:
    """The open log of one writer. Not thread-safe: the group's leader alone calls it."""

    def __init__(self, folder: Path, name: str, boot: str, mount: str) -> None:
        """Create the file and make its name durable. Raises OSError and then leaves nothing behind."""
        self.path = folder / name
        self._file = AppendLog(self.path, f"{_HEADER}\t{boot}\t{mount}\n".encode())

    @property
    def failed(self) -> bool:
        """Whether a sync failed: this log accepts nothing more."""
        return self._file.failed

    @property
    def end(self) -> int:
        """How many bytes it holds."""
        return self._file.end

    @property
    def is_linked(self) -> bool:
        """False after the file was removed: what is written to it is lost."""
        return self._file.is_linked

    def append(self, records: Sequence[Record], marks: Sequence[tuple[str, str]] = ()) -> None:
        """Put records on stable storage with one fdatasync. Raises OSError: then none is acknowledged.

        `marks` name ranges of files that became visible since the last append.
        """
        self._file.append(b"".join((*starmap(_mark_bytes, marks), *map(record_bytes, records))))

    def close(self) -> None:
        """Close the file and keep it for replay."""
        self._file.close()

    def mark_unsynced(self) -> None:
        """Close the file and rename it to say that the files of its records failed to sync.

        The kernel reports a failed write-back once; the next sync reports success. So a replay must write every file
        of this log again before it trusts a sync.
        """
        self.close()
        mark_unsynced(self.path)

    def discard(self) -> None:
        """Close and remove the log. Only after everything in it is durable elsewhere."""
        self._file.discard()


def mark_unsynced(log: str | Path, *, dir_fd: int | None = None) -> None:
    """Rename a log so that replay trusts only its records. A disk that refuses even that is dead."""
    path = os.fspath(log)
    if not path.endswith(UNSYNCED_SUFFIX):
        with contextlib.suppress(OSError):
            doubted = path.removesuffix(".jsonl") + UNSYNCED_SUFFIX
            os.rename(path, doubted, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def _mark_bytes(first: str, last: str) -> bytes:
    names = f"{first}\t{last}".encode()
    return b"%s\t%08x\t%s\n" % (_MARK, _crc(_MARK, names), names)


def _crc(name: bytes, content: bytes) -> int:
    return binascii.crc32(content, binascii.crc32(name))


def parse_log(data: bytes) -> LogContents:
    """Read a log, keeping every good record and every bad piece with its offset."""
    contents = LogContents()
    header, _, _ = data.partition(b"\n")
    words = header.decode("utf-8", "replace").split("\t")
    start = 0
    if words[0] == _HEADER and len(words) == 3:
        contents.boot, contents.mount = words[1], words[2]
        start = len(header) + 1
    for piece in _pieces(data, start):
        if isinstance(piece, Record):
            contents.records.append(piece)
        elif isinstance(piece, Torn):
            contents.torn.append(piece)
        else:
            contents.visible.append(piece)
    return contents


def _pieces(data: bytes, start: int) -> Iterator[Record | Torn | tuple[str, str]]:
    end = len(data.rstrip(b"\n\0"))
    while start < end:
        stop = data.find(b"\n", start)
        stop = len(data) if stop < 0 else stop
        line = data[start:stop]
        if not line.strip(b"\0"):
            start = stop + 1
            continue
        fields = line.split(b"\t", 2)
        if len(fields) == 3 and fields[0] == _MARK and b"%08x" % _crc(_MARK, fields[2]) == fields[1]:
            first, _, last = fields[2].decode("ascii", "replace").partition("\t")
            yield first, last
            start = stop + 1
            continue
        record, after = _record(data, fields, stop)
        if record is None:
            begin, record, after = _record_inside(data, start, stop)
            yield Torn(start, data[start:begin])
        if record is not None:
            yield record
        start = after


def _record_inside(data: bytes, start: int, stop: int) -> tuple[int, Record | None, int]:
    """Find a whole record inside a damaged line: if the newline before it was damaged, it begins in the middle.

    Return where it begins, the record, and where to go on reading; without one, the line's end and None.
    """
    for begin in islice(_NAME.finditer(data, start + 1, stop), _INSIDE_TRIES_MAX):
        record, after = _record(data, data[begin.start() : stop].split(b"\t", 2), stop)
        if record is not None:
            return begin.start(), record, after
    return stop, None, stop + 1


def _record(data: bytes, fields: list[bytes], stop: int) -> tuple[Record | None, int]:
    """Return the record of a split line, or None, and where to go on reading."""
    if len(fields) != 3:
        return None, stop + 1
    name, crc, content = fields
    after = stop + 1
    if content.startswith(_BUNDLE) and content[1:].isdigit() and len(content) <= 12:
        size = int(content[1:])
        content, after = data[stop + 1 : stop + 1 + size], stop + 1 + size + 1
    if b"%08x" % _crc(name, content) != crc or not _NAME.fullmatch(name):
        return None, stop + 1
    return Record(name.decode(), content), after
