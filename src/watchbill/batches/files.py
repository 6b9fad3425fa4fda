"""Files that callers upload and that batches write: on the disk, per key, within bounds, for a time.

    ROOT/batches/<key>/files/<id>.data      the content
    ROOT/batches/<key>/files/<id>.json      what is known of it; written last, so a file is there whole or not at all
    ROOT/batches/<key>/files/.<id>.part     a content that is being received

A file belongs to the key that uploaded it; another key's is as unknown as one that never was. A file that was
acknowledged survives a power cut. A draft that a dead daemon left is removed at the next start.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchbill.batches.disk import DiskThread
from watchbill.batches.limits import BATCH_RECORD_BYTES_MAX, UPLOAD_WRITE_BYTES, UPLOADS_MAX
from watchbill.catalog import BatchRules, Reach
from watchbill.errors import DiskFailed, NotFound, Overloaded, RequestError, TooLarge
from watchbill.files.atomic import (
    PRIVATE_MODE,
    NotAFile,
    make_folder,
    move_file,
    open_regular,
    read_regular,
    replace_file,
)
from watchbill.names import file_stem
from watchbill.quoting import quoted
from watchbill.units import format_bytes

__all__ = ["Draft", "FileStore", "Purpose", "StoredFile"]

_log = logging.getLogger("watchbill.batches")
_ID = re.compile(r"file-[0-9a-f]{32}")
Purpose = str
#: What a caller may upload, and what batches write. Requests of Anthropic's batches are no files of their caller.
BATCH_INPUT, BATCH_OUTPUT, HIDDEN = "batch", "batch_output", "hidden"


class StoredFile(msgspec.Struct, frozen=True):
    """What is known of a file."""

    id: str
    owner: str
    filename: str
    purpose: Purpose
    size: int
    created_s: int
    expires_s: int
    reach: Reach = Reach.ANYWHERE  # how far from this machine its caller lets it be used


_decode = msgspec.json.Decoder(StoredFile).decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Shelf:
    """The files of one key, the oldest first."""

    files: dict[str, StoredFile] = field(default_factory=dict[str, StoredFile])
    size: int = 0  # with drafts


class FileStore:
    """Every file of every key. `in_use` names the batch that needs a file."""

    def __init__(
        self,
        folder: Path,
        rules: BatchRules,
        disk: DiskThread,
        *,
        in_use: Callable[[str], str | None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self.rules, self._disk, self._clock = folder, rules, disk, clock
        self._in_use = in_use
        self._shelves: dict[str, _Shelf] = {}
        self._drafts = 0
        self.size = 0  # of all files and drafts

    async def open(self) -> None:
        """Reads what an earlier daemon kept, and removes its drafts."""
        for file in await self._disk.do(lambda: list(_found(self._folder))):
            self._add(file)

    # ------------------------------------------------------------------ questions

    @property
    def count(self) -> int:
        """How many files there are."""
        return sum(len(shelf.files) for shelf in self._shelves.values())

    def get(self, owner: str, id: str, *, is_needed: bool = False) -> StoredFile:
        """A file of this owner; one that a batch needs may have exceeded its time. Raises NotFound."""
        file = self._shelf(owner).files.get(id)
        if file is None or (file.expires_s <= self._clock() and not is_needed):
            raise NotFound(
                f"no file {quoted(id)} is kept here for this key; GET /v1/files lists those there are"
            )
        return file

    def find(self, owners: tuple[str, ...], id: str) -> StoredFile:
        """A file of one of these owners. Raises NotFound."""
        owner = next((each for each in owners if id in self._shelf(each).files), owners[0])
        return self.get(owner, id)

    def listed(self, *owners: str) -> list[StoredFile]:
        """The files of these owners, the oldest first; hidden ones are not among them."""
        now = self._clock()
        every = (file for owner in owners for file in self._shelf(owner).files.values())
        found = [file for file in every if file.purpose != HIDDEN and file.expires_s > now]
        return found if len(owners) == 1 else sorted(found, key=lambda file: file.created_s)

    def path(self, file: StoredFile) -> Path:
        """Where the content is."""
        return self._place(file.owner) / f"{file.id}.data"

    # ------------------------------------------------------------------ acts

    async def begin(self, owner: str) -> "Draft":
        """A new file. Raises Overloaded, TooLarge, DiskFailed."""
        if self._drafts >= UPLOADS_MAX:
            raise Overloaded(f"{UPLOADS_MAX} files are being uploaded at once; try again later")
        if len(self._shelf(owner).files) >= self.rules.files_max:
            raise TooLarge(
                f"this key has {self.rules.files_max} files (batches.files_max); delete some of them"
            )
        id, place = f"file-{os.urandom(16).hex()}", self._place(owner)
        self._drafts += 1
        try:
            file = await self._disk.do(lambda: _open_draft(place, id))
        except BaseException:
            self._drafts -= 1
            raise
        return Draft(self, self._disk, owner, id, file)

    def reserve(self, owner: str, size: int) -> None:
        """Counts bytes of a draft. Raises TooLarge or DiskFailed, and counts nothing then."""
        shelf, rules = self._shelf(owner), self.rules
        if shelf.size + size > rules.storage_max:
            bound = format_bytes(rules.storage_max)
            raise TooLarge(
                f"the files of this key would exceed batches.storage_max of {bound}; delete some of them"
            )
        if self.size + size > rules.disk_max:
            bound = format_bytes(rules.disk_max)
            raise DiskFailed(
                f"all files would exceed batches.disk_max of {bound}; delete some, or raise the bound"
            )
        self._count(shelf, size)

    def release(self, owner: str, size: int) -> None:
        """The draft is over: its bytes are not counted any more, or as those of a file."""
        self._drafts -= 1
        self._count(self._shelf(owner), -size)

    async def keep(self, file: StoredFile, draft: Path) -> None:
        """Makes a draft, whose content is durable, a file. Replaces one of the same id. Raises DiskFailed."""
        place = self._place(file.owner)

        def commit() -> None:
            move_file(draft, place / f"{file.id}.data")
            replace_file(place / f"{file.id}.json", _encode(file))

        await self._disk.do(commit)
        self._forget(file.owner, file.id)
        self._add(file)

    async def delete(self, owner: str, id: str) -> None:
        """Removes a file. Raises NotFound, RequestError while a batch needs it, DiskFailed."""
        file = self.get(owner, id)
        if (batch := self._in_use(id)) is not None:
            raise RequestError(f"{id} is the input of {batch}, which has not ended; cancel that first")
        await self.remove(file)

    async def remove(self, file: StoredFile) -> None:
        """Removes a file, of any key."""
        self._forget(file.owner, file.id)
        place = self._place(file.owner)
        await self._disk.do(lambda: _unlink(place, file.id))

    async def sweep(self) -> None:
        """Removes the files whose time is over and that no batch needs."""
        now = self._clock()
        gone = [
            file
            for shelf in self._shelves.values()
            for file in shelf.files.values()
            if file.expires_s <= now and self._in_use(file.id) is None
        ]
        for file in gone:
            await self.remove(file)

    def expiry(self, kept_ms: int | None = None) -> int:
        """When a file of now has to go."""
        return int(self._clock() + min(kept_ms or self.rules.keep_ms, self.rules.keep_ms) / 1000)

    def now_s(self) -> int:
        """By the wall clock."""
        return int(self._clock())

    def draft_path(self, owner: str, id: str) -> Path:
        """Where a content is written before it is a file."""
        return self._place(owner) / f".{id}.part"

    def _shelf(self, owner: str) -> _Shelf:
        return self._shelves.setdefault(owner, _Shelf())

    def _place(self, owner: str) -> Path:
        return self._folder / file_stem(owner) / "files"

    def _add(self, file: StoredFile) -> None:
        shelf = self._shelf(file.owner)
        shelf.files[file.id] = file
        self._count(shelf, file.size)

    def _forget(self, owner: str, id: str) -> None:
        shelf = self._shelf(owner)
        if (file := shelf.files.pop(id, None)) is not None:
            self._count(shelf, -file.size)

    def _count(self, shelf: _Shelf, size: int) -> None:
        shelf.size += size
        self.size += size


class Draft:
    """A file that is being received. `keep` or `discard` ends it."""

    def __init__(self, store: FileStore, disk: DiskThread, owner: str, id: str, file: BinaryIO) -> None:
        self.id = id
        self._store, self._disk, self._owner, self._file = store, disk, owner, file
        self._size = 0
        self._pieces: list[bytes] = []
        self._collected = 0
        self._has_ended = False

    async def write(self, piece: bytes) -> None:
        """Takes a piece of the content. Raises TooLarge, DiskFailed."""
        if self._size + len(piece) > self._store.rules.file_max:
            raise TooLarge(f"the file exceeds batches.file_max of {format_bytes(self._store.rules.file_max)}")
        self._store.reserve(self._owner, len(piece))
        self._size += len(piece)
        self._pieces.append(piece)
        self._collected += len(piece)
        if self._collected >= UPLOAD_WRITE_BYTES:
            await self._flush()

    async def keep(
        self,
        filename: str,
        purpose: Purpose,
        kept_ms: int | None = None,
        *,
        reach: Reach = Reach.ANYWHERE,
    ) -> StoredFile:
        """Makes it a file: on return it survives a power cut. Raises DiskFailed."""
        await self._flush()
        await self._disk.do(lambda: _finish(self._file))
        store, owner = self._store, self._owner
        expires_s = store.expiry(kept_ms)
        file = StoredFile(self.id, owner, filename, purpose, self._size, store.now_s(), expires_s, reach)
        self._has_ended = True
        store.release(owner, self._size)
        await store.keep(file, store.draft_path(owner, self.id))
        return file

    def discard(self) -> None:
        """Removes it, unless it has become a file."""
        if self._has_ended:
            return
        self._has_ended = True
        self._store.release(self._owner, self._size)
        path, file = self._store.draft_path(self._owner, self.id), self._file

        def remove() -> None:
            with contextlib.suppress(OSError):  # what was not written is not needed
                file.close()
            path.unlink(missing_ok=True)

        self._disk.later(remove)

    async def _flush(self) -> None:
        pieces, self._pieces, self._collected = self._pieces, [], 0
        if pieces:
            await self._disk.do(lambda: _write(self._file, pieces))


def _open_draft(place: Path, id: str) -> BinaryIO:
    make_folder(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(place / f".{id}.part", flags, PRIVATE_MODE), "wb", buffering=0)


def _write(file: BinaryIO, pieces: list[bytes]) -> None:
    data = memoryview(b"".join(pieces))
    while data:
        data = data[file.write(data) :]


def _finish(file: BinaryIO) -> None:
    os.fsync(file.fileno())
    file.close()


def _unlink(place: Path, id: str) -> None:
    (place / f"{id}.json").unlink(missing_ok=True)
    (place / f"{id}.data").unlink(missing_ok=True)


def _found(folder: Path) -> Iterable[StoredFile]:
    """The files on the disk, the oldest first. What was never acknowledged, or is half removed, goes."""
    found: list[StoredFile] = []
    for place in sorted(folder.glob("*/files")) if folder.is_dir() else []:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(place) if entry.is_file()}
        kept = [file for name in sizes if (file := _known(place, name, sizes)) is not None]
        for name in sizes:
            is_orphan = name.endswith(".data") and name.removesuffix(".data") + ".json" not in sizes
            if is_orphan or name.endswith((".part", ".new")):
                (place / name).unlink(missing_ok=True)
        found += kept
    return sorted(found, key=lambda file: (file.created_s, file.id))


def _known(place: Path, name: str, sizes: Mapping[str, int]) -> StoredFile | None:
    stem, _, ending = name.rpartition(".")
    if ending != "json" or not _ID.fullmatch(stem) or f"{stem}.data" not in sizes:
        return None
    try:
        file = _decode(read_regular(os.fspath(place / name), bytes_max=BATCH_RECORD_BYTES_MAX))
    except (msgspec.DecodeError, UnicodeDecodeError, NotAFile):
        _log.warning("%s is damaged; its file is not served", place / name)
        return None
    return file if file.id == stem and file.size == sizes[f"{stem}.data"] else None


def open_content(path: Path) -> BinaryIO:
    """The content of a file, to be read in pieces. Raises FileNotFoundError."""
    return open(open_regular(path), "rb", buffering=0)
