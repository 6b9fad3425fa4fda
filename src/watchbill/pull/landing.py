"""Landing: the last stretch of every fetched file, from bytes that arrive to a file that is whole.

    FOLDER/NAME                   a whole file whose hash was compared, on stable storage
    FOLDER/.pull/NAME.part        what has arrived so far; locked by the one who writes it
    FOLDER/.pull/NAME.part.json   where the part comes from, and the server's mark of that version
    FOLDER/.pull/NAME.json        where the whole file came from, its hash, size and time

The record is written before the rename: after a crash between the two the part is continued, whereas a file
without a record could not be told from a stranger's.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from watchbill.errors import NameRefused, NoRoomToPull, PullFailed
from watchbill.files.atomic import PRIVATE_MODE, make_private_folder, move_file, replace_file, write_all
from watchbill.files.disk import DISK_FULL
from watchbill.files.lock import try_lock
from watchbill.names import header_text, inside
from watchbill.pull import limits

__all__ = ["Landing", "Part", "Progress", "Pulled", "Wanted", "check_room"]

R = TypeVar("R", bound=msgspec.Struct)
#: A model file is as readable as the umask allows, unless it is private. What lies in `.pull` is the owner's alone.
_FILE_MODE = 0o666
#: Bytes done, bytes in all; None while that is unknown.
Progress = Callable[[int, int | None], None]


class Pulled(NamedTuple):
    """What a pull left behind."""

    path: Path | None  #: None where the engine keeps its models itself
    size_bytes: int
    fetched: bool  #: False: it was there already


class Wanted(NamedTuple):
    """The file that is asked for."""

    name: str
    source: str
    sha256: str | None = None  #: None: unknown; the hash is recorded when the file arrives
    origin: Path | None = None  #: the file on this machine that it is copied from
    size_bytes: int | None = None  #: None: as large as the source says; else never a byte more or less
    is_private: bool = False  #: for this user alone


class Record(msgspec.Struct, frozen=True):
    """What is remembered of a whole file."""

    source: str
    sha256: str
    size_bytes: int
    mtime_ns: int

    def describes(self, status: os.stat_result) -> bool:
        """Whether the file is unchanged since."""
        return (self.size_bytes, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


class PartRecord(msgspec.Struct, frozen=True):
    """What is remembered of a part, to continue it another day."""

    source: str
    validator: str


class Landing:
    """The place in a folder where one wanted file lands."""

    def __init__(self, folder: Path, wanted: Wanted, progress: Progress) -> None:
        if wanted.name.startswith("."):
            raise NameRefused(f"{header_text(wanted.name)!r} cannot be a model file: it begins with a dot")
        if "/" in wanted.name:
            raise NameRefused(f"{header_text(wanted.name)!r} cannot be a model file: it has a slash")
        self.path = inside(folder, wanted.name)
        self.wanted = wanted
        self.progress = progress
        self.side = folder / ".pull"
        self._record_path = self.side / f"{wanted.name}.json"

    def found(self) -> Pulled | None:
        """The file, where it lies there already. Raises PullFailed when a different file has its name.

        A file that is untouched since it was recorded is believed; otherwise its hash is computed.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        if self.wanted.origin is not None and os.path.samestat(status, self.wanted.origin.stat()):
            return Pulled(self.path, status.st_size, fetched=False)
        record = _read(self._record_path, Record)
        expected = self.wanted.sha256
        if record is not None and expected is None and record.source == self.wanted.source:
            expected = record.sha256
        untouched = record is not None and record.describes(status)
        known = record.sha256 if record is not None and untouched else None
        if expected is None or (known or self._hash_of(self.path)) != expected:
            raise PullFailed(f"{self.path} is there already and is another file; move it away")
        if not untouched:
            self._remember(self.path, expected)
        return Pulled(self.path, status.st_size, fetched=False)

    @contextmanager
    def receive(self) -> Generator["Part"]:
        """The part, locked, with what arrived on earlier days. Left without `finish`, it is kept for another."""
        self._make_side()
        place = self.side / f"{self.wanted.name}.part"
        mode = PRIVATE_MODE if self.wanted.is_private else _FILE_MODE
        with open(place, "a+b", buffering=0, opener=lambda path, flags: os.open(path, flags, mode)) as file:
            try:
                ours = try_lock(file.fileno()) and os.path.samestat(os.fstat(file.fileno()), os.stat(place))
            except FileNotFoundError:
                ours = False
            # Another pull may have finished between our open and our lock: its part is now the whole file.
            if not ours:
                raise PullFailed(f"another pull of {self.wanted.name} is under way; wait for it")
            part = Part(self, file, place)
            try:
                yield part
            except BaseException:
                if not part.size_bytes:
                    part.discard()
                raise

    def check_room(self, needed_bytes: int) -> None:
        """Refuses a file that the disk cannot hold, before an hour was spent on it."""
        check_room(self.side.parent, self.wanted.name, needed_bytes)

    def land(self, part: Path, sha256: str) -> None:
        """Makes a synced part the file."""
        self._remember(part, sha256)
        move_file(part, self.path)

    def _remember(self, file: Path, sha256: str) -> None:
        status = file.stat()
        self._make_side()
        _write(self._record_path, Record(self.wanted.source, sha256, status.st_size, status.st_mtime_ns))

    def _make_side(self) -> None:
        make_private_folder(self.side)

    def _hash_of(self, path: Path) -> str:
        total = path.stat().st_size
        hashed, done = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while chunk := file.read(limits.PULL_CHUNK_BYTES):
                hashed.update(chunk)
                done += len(chunk)
                self.progress(done, total)
        return hashed.hexdigest()


class Part:
    """A file that is arriving. Hashed as it comes: the end of a long download needs no second reading."""

    def __init__(self, landing: Landing, file: FileIO, path: Path) -> None:
        self.wanted = landing.wanted
        self._landing = landing
        self._file = file
        self._path = path
        self._notes = path.with_name(path.name + ".json")
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        notes = _read(self._notes, PartRecord)
        #: The server's mark of the version we have a part of; empty when there is none.
        self.validator = notes.validator if notes is not None else ""
        if notes is not None and notes.source == self.wanted.source:
            self._rehash()
        else:
            self.restart()
        if self.size_bytes > self.bound_bytes:
            self.restart()  # a part of something else

    @property
    def bound_bytes(self) -> int:
        """How large it may get."""
        declared = self.wanted.size_bytes
        return limits.PULL_FILE_BYTES_MAX if declared is None else declared

    def restart(self, validator: str = "") -> None:
        """Throws away what has arrived. `validator` marks the version that comes now."""
        self._file.truncate(0)
        self._hash, self.size_bytes, self.validator = hashlib.sha256(), 0, validator
        _write(self._notes, PartRecord(self.wanted.source, validator))

    def discard(self) -> None:
        """Removes what has arrived: nothing, or not what was asked for."""
        self._path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def write(self, chunk: bytes, total: int | None, *, done_before: int = 0) -> None:
        """Takes the next bytes. `done_before` is work that `total` counts and that lies behind us."""
        if self.size_bytes + len(chunk) > self.bound_bytes:
            self.discard()
            declared = self.wanted.size_bytes
            if declared is not None:
                raise PullFailed(
                    f"{self.wanted.name} is larger than the {declared:,} bytes that were declared"
                )
            raise PullFailed(f"{self.wanted.name} is larger than any model file; is the address right?")
        self._write_all(chunk)
        self._hash.update(chunk)
        self.size_bytes += len(chunk)
        self._landing.progress(done_before + self.size_bytes, total)

    def finish(self, sha256: str | None = None) -> None:
        """Compares the hash (the caller's, else the source's own) and puts the file in its place, synced."""
        expected, actual = self.wanted.sha256 or sha256, self._hash.hexdigest()
        if expected is not None and actual != expected:
            self.discard()
            what = f"its sha256 is {actual}, wanted is {expected}"
            raise PullFailed(f"{self.wanted.name} is damaged or another file: {what}")
        os.fsync(self._file.fileno())
        self._landing.land(self._path, actual)
        self._notes.unlink(missing_ok=True)

    def _write_all(self, chunk: bytes) -> None:
        try:
            write_all(self._file.fileno(), chunk)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            raise NoRoomToPull(f"no room for {self.wanted.name} in {self._path.parent.parent}") from error

    def _rehash(self) -> None:
        self._file.seek(0)
        while chunk := self._file.read(limits.PULL_CHUNK_BYTES):
            self._hash.update(chunk)
            self.size_bytes += len(chunk)


def check_room(folder: Path, what: str, needed_bytes: int) -> None:
    """Raises NoRoomToPull when the disk of a folder cannot hold so many more bytes."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        missing = needed_bytes - free
        raise NoRoomToPull(
            f"{what} needs {needed_bytes:,} bytes, and the disk of {folder} has {free:,}: {missing:,} are missing"
        )


def _read(path: Path, kind: type[R]) -> R | None:
    """A record, or None where there is none that can be read: then the file is judged by its hash."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(limits.PULL_RECORD_BYTES_MAX), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, record: msgspec.Struct) -> None:
    replace_file(path, msgspec.json.encode(record), mode=PRIVATE_MODE)
