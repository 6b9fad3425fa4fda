"""Which ids a corpus already holds, as far as that can be found out cheaply.

Remembers a 16-byte digest per id, for the last million ids. Day files beside the corpus keep them across restarts
(`corpus.jsonl.ids/2026-11-15.txt`):

    # 0 4096 2                        a block: the corpus from one offset to another, and how many ids follow
    5f2a...                           a digest
    81c0...

They are written after the corpus was synced, never before, so they never claim an id that a power cut removed.

Each block begins where the one before it ended. A kill may cut a block short, or come between the corpus and its block:
then a part of the corpus is in no block. From there the corpus itself is read, and the next block begins there.

A corpus that is shorter than the day files say is a different corpus. Then the day files are dropped: once that corpus
has grown past the same length, they would make new events look known. A duplicate is allowed, a loss is not.
"""

import contextlib
import datetime
import os
import re
from collections.abc import Generator, Iterable
from pathlib import Path

from watchbill.files.atomic import NotAFile, make_subfolder, open_folder, open_regular, open_shared, write_all
from watchbill.spool.limits import IDS_DAYS, IDS_MAX

__all__ = ["Ids"]

_HEADER = re.compile(rb"# (\d{1,19}) (\d{1,19}) (\d{1,9})")
_DIGEST = re.compile(rb"[0-9a-f]{32}")


class Ids:
    """The known ids of one corpus. The caller holds the corpus's lock."""

    def __init__(self, corpus: Path) -> None:
        self._folder = corpus.with_name(corpus.name + ".ids")
        self._known: dict[bytes, None] = {}
        self._read_to: dict[str, int] = {}  # of each day file
        self._covered = 0  # the day files cover the corpus without a gap up to here
        self._unwritten: list[bytes] = []  # ids after that, for the next block

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def __len__(self) -> int:
        return len(self._known)

    def load(self, corpus_bytes: int) -> int:
        """Read the day files and return the offset up to which they cover the corpus; 0 if they do not."""
        self._reset()
        with self._entered() as folder:
            if len(_days(folder)) > IDS_DAYS:
                self._covered = -1  # older days are not read: the first block read may begin anywhere
        return self.catch_up(corpus_bytes)

    def catch_up(self, corpus_bytes: int) -> int:
        """Read the new blocks of other appenders, and return the offset up to which the day files cover the corpus."""
        furthest = 0
        with self._entered() as folder:
            for name in _days(folder)[-IDS_DAYS:]:
                furthest = max(furthest, self._read(name, folder))
        if max(furthest, self._covered) > corpus_bytes:
            self.forget()
        self._covered = max(0, self._covered)
        return self._covered

    def learn(self, digests: Iterable[bytes]) -> None:
        """Add ids that were read from the corpus itself."""
        new = list(digests)
        self._add(new)
        self._unwritten += new

    def write(self, digests: list[bytes], end: int) -> None:
        """Note new ids, and those that were learned, in a corpus that is durable up to `end`. Raises OSError: then they
        are noted by the next write."""
        self.learn(digests)
        if not self._unwritten and self._covered == end:
            return
        if len(self._unwritten) > IDS_MAX:
            self._unwritten, self._covered = [], end  # after a restart the gap is read from the corpus
            return
        # The newline ends what a killed writer left of its last line.
        lines = [
            f"\n# {self._covered} {end} {len(self._unwritten)}",
            *(each.hex() for each in self._unwritten),
            "",
        ]
        make_subfolder(self._folder)
        today = f"{datetime.datetime.now(datetime.UTC).date().isoformat()}.txt"
        with open_folder(self._folder, own=True) as folder:
            fd = open_shared(today, os.O_WRONLY | os.O_APPEND, dir_fd=folder)
            try:
                write_all(fd, "\n".join(lines).encode())
                self._read_to[today] = os.fstat(fd).st_size
            finally:
                os.close(fd)
            self._unwritten, self._covered = [], end
            _remove(_days(folder)[: -(IDS_DAYS + 1)], folder)

    def forget(self) -> None:
        """Drop the day files: the corpus was changed by hand. Raises OSError."""
        self._reset()
        with self._entered() as folder:
            _remove(_days(folder), folder)

    def _reset(self) -> None:
        self._known.clear()
        self._read_to.clear()
        self._unwritten.clear()
        self._covered = 0

    @contextlib.contextmanager
    def _entered(self) -> Generator[int | None]:
        """The folder of the day files, held open: a link put in its place later changes nothing. None if missing."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(open_folder(self._folder, own=True))
            except (FileNotFoundError, NotADirectoryError):
                folder = None
            yield folder

    def _add(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._known[digest] = None
        while len(self._known) > IDS_MAX:
            del self._known[next(iter(self._known))]

    def _read(self, name: str, folder: int | None) -> int:
        """Read the new blocks of a day file and return the furthest offset that any of them names."""
        try:
            found = open_regular(name, dir_fd=folder)
        except NotAFile:
            return 0  # what is no file says nothing; the corpus is read instead
        with open(found, "rb") as file:
            file.seek(self._read_to.get(name, 0))
            lines = file.read().split(b"\n")
            self._read_to[name] = file.tell()
        at = furthest = 0
        while at < len(lines):
            header = _HEADER.fullmatch(lines[at])
            at += 1
            if header is None:
                continue
            start, end, count = map(int, header.groups())
            digests = lines[at : at + count]
            if len(digests) == count and all(map(_DIGEST.fullmatch, digests)):
                self._take_block(start, end, digests)
                furthest = max(furthest, end)
                at += count
        return furthest

    def _take_block(self, start: int, end: int, digests: list[bytes]) -> None:
        self._add(bytes.fromhex(each.decode("ascii")) for each in digests)
        if self._covered < 0 or start <= self._covered < end:
            self._covered = end
            self._unwritten.clear()


def _days(folder: int | None) -> list[str]:
    """The day files, oldest first."""
    return [] if folder is None else sorted(name for name in os.listdir(folder) if name.endswith(".txt"))


def _remove(names: list[str], folder: int | None) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
