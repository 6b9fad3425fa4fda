"""Events from a file or a pipe into a spool.

A file is read twice: nothing of it is stored if one of its lines is not an event. A pipe is stored as it arrives, so
that `producer | watchbill spool enqueue` loses nothing of a producer that keeps running; it ends at the first line that
is not an event.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from watchbill.cli.limits import CLI_ENQUEUE_BATCH_BYTES_MAX, CLI_ENQUEUE_BATCH_MAX
from watchbill.errors import TheirsError
from watchbill.files.given import open_given
from watchbill.spool import EventRefused
from watchbill.spool.backend import AnySpool
from watchbill.spool.events import encode, refuse_bundle
from watchbill.spool.limits import EVENT_BYTES_MAX

__all__ = ["STANDARD_INPUT", "feed"]

STANDARD_INPUT = "-"
_READ_BYTES = 2**20


class _Line(NamedTuple):
    number: int
    text: bytes


def feed(
    open_spool: Callable[[], AnySpool], source: str, *, bundle: bool, stored: Callable[[list[str]], None]
) -> None:
    """Stores the events of a source; `stored` gets their names once they are durable.

    The spool is opened for the first event, because that makes its folders: a source that is refused makes none.
    Without any event it is opened at the end, to report a spool that cannot be used. Raises TheirsError with the place
    of the first line that is not an event, or what the spool raises.
    """
    where = "standard input" if source == STANDARD_INPUT else source
    descriptor = sys.stdin.fileno() if source == STANDARD_INPUT else _open(source)
    opened = _Opened(open_spool)
    try:
        again = stat.S_ISREG(os.fstat(descriptor).st_mode)
        start = os.lseek(descriptor, 0, os.SEEK_CUR) if again else 0
        if bundle:
            lines = [line for batch in _batches(descriptor, where) for line in batch]
            _check(lines, where, "nothing was stored")
            opened.store(lines, stored, bundle=True)
            opened.open()
            return
        if again:
            for batch in _batches(descriptor, where):
                _check(batch, where, "nothing was stored")
            os.lseek(descriptor, start, os.SEEK_SET)
        for batch in _batches(descriptor, where):
            good = batch if again else _good_ones(batch)
            opened.store(good, stored)
            _check(batch[len(good) :], where, "what came before it is stored, it and the rest are not")
        opened.open()
    finally:
        opened.close()
        if source != STANDARD_INPUT:
            os.close(descriptor)


class _Opened:
    """A spool that is opened when there is something to store in it."""

    def __init__(self, open_spool: Callable[[], AnySpool]) -> None:
        self._open = open_spool
        self._spool: AnySpool | None = None

    def store(self, lines: list[_Line], stored: Callable[[list[str]], None], *, bundle: bool = False) -> None:
        texts = [line.text for line in lines]
        if bundle:
            refuse_bundle(texts)
        if texts:
            _tell(stored, self.open().enqueue_many(texts, bundle=bundle))

    def open(self) -> AnySpool:
        if self._spool is None:
            self._spool = self._open()
        return self._spool

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


def _tell(stored: Callable[[list[str]], None], names: list[str]) -> None:
    """Prints names; a reader that closes the pipe (`| head`) does not stop the events from being stored."""
    with contextlib.suppress(BrokenPipeError):
        stored(names)


def _open(source: str) -> int:
    try:
        return open_given(Path(source).expanduser())
    except (OSError, ValueError) as error:  # whichever errno: the operator named this file and is told why
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TheirsError(f"cannot read {source}: {(reason or str(error)).lower()}") from error


def _batches(descriptor: int, where: str) -> Iterator[list[_Line]]:
    """The lines in groups, as they arrive; empty ones are left out."""
    rest, number, batch, size = b"", 0, list[_Line](), 0
    while chunk := _read(descriptor, where):
        *lines, rest = (rest + chunk).split(b"\n")
        for text in lines:
            number += 1
            if text.strip():
                batch.append(_Line(number, text))
                size += len(text)
            if len(batch) >= CLI_ENQUEUE_BATCH_MAX or size >= CLI_ENQUEUE_BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
            batch, size = [], 0
        if len(rest) > EVENT_BYTES_MAX:
            yield [_Line(number + 1, rest)]  # too long already: it is refused, and nothing more is read
            return
    if rest.strip():
        yield [_Line(number + 1, rest)]


def _read(descriptor: int, where: str) -> bytes:
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError as error:  # a folder, a disk that fails
        raise TheirsError(f"cannot read {where}: {(error.strerror or str(error)).lower()}") from error


def _good_ones(batch: list[_Line]) -> list[_Line]:
    """The lines before the first that is not an event."""
    for place, line in enumerate(batch):
        if _complaint(line) is not None:
            return batch[:place]
    return batch


def _check(batch: list[_Line], where: str, outcome: str) -> None:
    for line in batch:
        complaint = _complaint(line)
        if complaint is not None:
            raise TheirsError(f"{where}:{line.number}: {complaint}; {outcome} (one JSON object on each line)")


def _complaint(line: _Line) -> str | None:
    try:
        encode(line.text)
    except EventRefused as error:
        return str(error)
    return None
