"""The record of an open batch: its events on the disk, each durable before it is told.

    ROOT/batches/<key>/<batch>/<number>.log     checked lines, each an event; a daemon begins a log of its own
    ROOT/batches/<key>/<batch>.json             what is kept of a batch that has ended; its folder is gone then

The logs are those that the spool's writers and the fleet's results have (`files.checked_log`): one fdatasync for all
events that come together, a torn line ends its log, and a log that failed to sync takes nothing more.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from watchbill.batches.batch import (
    AllAnswered,
    Answered,
    Batch,
    CancelAsked,
    Created,
    EndedBatch,
    Event,
    Rejected,
    TimeUp,
    Validated,
    Written,
)
from watchbill.batches.limits import BATCH_RECORD_BYTES_MAX
from watchbill.files.atomic import PRIVATE_MODE, NotAFile, make_folder, read_regular, replace_file
from watchbill.files.checked_log import CheckedLog, LineReader
from watchbill.files.limits import LINES_READ_BYTES

__all__ = ["AnswerPlaces", "BatchRecord", "found_batches", "read_ended", "write_ended"]

_Known = Created | Validated | Rejected | Answered | AllAnswered | TimeUp | CancelAsked | Written
_decode = msgspec.json.Decoder(_Known).decode
_decode_answer = msgspec.json.Decoder(Answered).decode
_decode_ended = msgspec.json.Decoder(EndedBatch).decode
_encode = msgspec.json.Encoder().encode
_LOG = re.compile(r"(\d{6})\.log")
_ID = re.compile(r"(?:batch|msgbatch)_[0-9a-f]{32}")
_log = logging.getLogger("watchbill.batches")
#: Checksum and space before a payload, a newline behind it.
_BEFORE, _AROUND = 9, 10


class BatchRecord:
    """The logs of one batch. Not thread-safe; blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size = 0  # bytes of events
        self._log: CheckedLog | None = None

    def append(self, events: Sequence[Event]) -> None:
        """Makes events durable, all or none of them. Raises OSError."""
        if self._log is not None and (self._log.failed or not self._log.is_linked):
            self.close()
        if self._log is None:
            make_folder(self.folder)
            numbers = [number for number, _ in self._logs()]
            name = f"{max(numbers, default=0) + 1:06}.log"
            self._log = CheckedLog(self.folder / name, mode=PRIVATE_MODE)
        before = self._log.end
        self._log.append(map(_encode, events))
        self.size += self._log.end - before

    def read(self) -> Batch | None:
        """The batch as its events made it; None where it was never acknowledged. Raises OSError."""
        batch: Batch | None = None
        for payload, _, _ in self._payloads():
            event = _decode(payload)
            if isinstance(event, Created):
                batch = batch or Batch(event)
            elif batch is not None and batch.takes(event):
                batch.apply(event)
            self.size += len(payload)
        return batch

    def is_blank(self) -> bool:
        """Whether nothing was ever written to it."""
        return all(_is_blank(path) for _, path in self._logs())

    def answers(self) -> "AnswerPlaces":
        """Where the answer to each line is. Raises OSError."""
        places: dict[int, tuple[Path, int, int]] = {}
        for payload, path, offset in self._payloads():
            if payload.startswith(b'{"event":"answered"'):
                places.setdefault(_decode_answer(payload).line, (path, offset, len(payload)))
        return AnswerPlaces(places)

    def close(self) -> None:
        """Closes the log; the next event begins another."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def remove(self) -> None:
        """Removes the logs. Only after what they say is durable elsewhere."""
        self.close()
        for _, path in self._logs():
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.folder.rmdir()

    def _logs(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        named = ((_LOG.fullmatch(name), name) for name in os.listdir(self.folder))
        return sorted((int(found[1]), self.folder / name) for found, name in named if found is not None)

    def _payloads(self) -> Iterator[tuple[bytes, Path, int]]:
        """Every event, with the log it is in and its offset there."""
        for _, path in self._logs():
            reader = LineReader(path)
            while True:
                at = reader.offset
                payloads = reader.read()
                if not payloads:
                    break
                for payload in payloads:
                    yield payload, path, at + _BEFORE
                    at += len(payload) + _AROUND


def _is_blank(path: Path) -> bool:
    with open(path, "rb") as file:
        while piece := file.read(LINES_READ_BYTES):
            if piece.strip(b"\n"):
                return False
    return True


class AnswerPlaces:
    """Reads answers back, one at a time."""

    def __init__(self, places: dict[int, tuple[Path, int, int]]) -> None:
        self._places = places
        self._open: dict[Path, int] = {}

    def get(self, line: int) -> Answered | None:
        """The answer to a line; None where it has none. Raises OSError."""
        place = self._places.get(line)
        if place is None:
            return None
        path, offset, size = place
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return _decode_answer(os.pread(self._open[path], size, offset))

    def close(self) -> None:
        """Closes the logs."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


def write_ended(path: Path, ended: EndedBatch) -> None:
    """Keeps what is left of a batch. Raises OSError."""
    replace_file(path, _encode(ended))


def read_ended(path: Path) -> EndedBatch:
    """What was kept of a batch. Raises OSError, NotAFile, msgspec.DecodeError."""
    return _decode_ended(read_regular(os.fspath(path), bytes_max=BATCH_RECORD_BYTES_MAX))


def found_batches(folder: Path) -> list[tuple[Batch, BatchRecord | None]]:
    """The batches on the disk, the oldest first, with the record of those that are open."""
    found: list[tuple[Batch, BatchRecord | None]] = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            stem = path.name.removesuffix(".json")
            if not _ID.fullmatch(stem):
                continue
            if path.is_dir():
                found += _opened(path)
            elif path.name.endswith(".json"):
                found += _read_account(path)
    return sorted(found, key=lambda each: (each[0].created.at, each[0].id))


def _opened(folder: Path) -> list[tuple[Batch, BatchRecord | None]]:
    record = BatchRecord(folder)
    if folder.with_name(folder.name + ".json").exists():  # it ended, and its record was being removed
        record.remove()
        return []
    if record.is_blank():  # it was never acknowledged
        record.remove()
        return []
    batch = record.read()
    if batch is None:
        # It was never acknowledged, or is damaged; which of both is not known, so it stays for a person.
        _log.warning("%s holds no batch and is put aside", folder)
        target = folder.with_name(f"{folder.name}.damaged")
        if not target.exists():
            folder.rename(target)
        return []
    return [(batch, record)]


def _read_account(path: Path) -> list[tuple[Batch, BatchRecord | None]]:
    try:
        return [(Batch.restored(read_ended(path)), None)]
    except (msgspec.DecodeError, UnicodeDecodeError, NotAFile):
        _log.warning("%s is damaged; its batch is not shown", path)
        return []
