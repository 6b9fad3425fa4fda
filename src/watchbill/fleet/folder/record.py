"""Records: append-only lines of JSON, each with its checksum, in files that have one writer each.

What is true in a fleet is in two kinds of record: the coordinator's journal of a batch and the agents' result logs.
`commit` puts everything of a turn on stable storage with one sync. A `Tail` follows a record that another process
writes: it returns whole lines with a right checksum and stops at the first that is not, so what it has returned is
always the beginning of what was written.
"""

from collections.abc import Iterable, Iterator, Mapping

from watchbill.fleet.folder.disk import Disk, Log
from watchbill.fleet.folder.values import Fields, encode, fields_of

__all__ = ["Recorder", "Tail", "read_whole"]


class Recorder:
    """The one writer of a record file, which it begins."""

    def __init__(self, disk: Disk, path: str, *, goes_on_at: int | None = None) -> None:
        """Begin the file. Raises FileExistsError for a name that is taken.

        With `goes_on_at` go on with one that this process began and closed, and whose lines end there.
        """
        self.path = path
        self._log: Log = disk.create_log(path) if goes_on_at is None else disk.reopen_log(path, goes_on_at)

    def commit(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Put these lines on stable storage with one sync. Raises OSError: then begin another file."""
        payloads = [encode(line) for line in lines]
        if payloads:
            self._log.append(payloads)

    def close(self) -> None:
        """Close the file and keep it."""
        self._log.close()


class Tail:
    """Follows a record file that grows."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.offset = 0

    def read(self) -> Iterator[Fields]:
        """The lines that came since the last time. What is no JSON object, of another version perhaps, is left out."""
        while True:
            payloads, self.offset = self._disk.lines(self.path, self.offset)
            if not payloads:
                return
            yield from _objects(payloads)


def read_whole(disk: Disk, path: str, until: int | None = None) -> tuple[list[Fields], int]:
    """All believable lines of a record file, and how many bytes they are; bytes from `until` on do not exist."""
    found: list[Fields] = []
    offset = 0
    while True:
        payloads, offset = disk.lines(path, offset, until)
        if not payloads:
            return found, offset
        found += _objects(payloads)


def _objects(payloads: Iterable[bytes]) -> Iterator[Fields]:
    for payload in payloads:
        try:
            yield fields_of(payload)
        except ValueError:  # the checksum is right, so it was meant, and it is none of ours
            continue
