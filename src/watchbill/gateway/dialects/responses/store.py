"""Responses that are kept for a day: for the next turn of a conversation, and for callers who ask for them again.

    FOLDER/<the key's name>/resp_<token>.json      one response with its input, readable by its owner alone

Owns the folder. A response belongs to the key that asked for it; another key's is as unknown as one that never was.
Each key's responses have a bound of number and bytes, and so have all together: those that were not used for longest
leave. Answers never wait for the disk: a response is in memory until its file is written. What a full disk refuses is
written when there is room again, at the latest at the end of an orderly shutdown; an alert says that it waits, and
another one how many were lost where there was no room until then. So a response survives a restart and, once it is
written, a kill; a power cut may lose the last half minute. A file's time is that of its last use.
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from watchbill.errors import DiskFailed
from watchbill.files.atomic import NotAFile, make_folder, read_regular, replace_file
from watchbill.gateway.limits import (
    RESPONSE_BYTES_MAX,
    RESPONSES_AGAIN_MS,
    RESPONSES_BYTES_MAX,
    RESPONSES_DISK_MS,
    RESPONSES_KEPT_MS,
    RESPONSES_OF_KEY_BYTES_MAX,
    RESPONSES_OF_KEY_MAX,
    RESPONSES_STOP_MS,
    RESPONSES_SWEEP_MS,
    RESPONSES_UNWRITTEN_BYTES_MAX,
)
from watchbill.names import file_stem

__all__ = ["Bounds", "Store"]

T = TypeVar("T")
_log = logging.getLogger("watchbill.gateway")
_FILE = re.compile(r"(resp_[0-9a-f]{32})\.json")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept, and for how long."""

    kept_ms: int = RESPONSES_KEPT_MS
    of_key_max: int = RESPONSES_OF_KEY_MAX
    of_key_bytes_max: int = RESPONSES_OF_KEY_BYTES_MAX
    bytes_max: int = RESPONSES_BYTES_MAX


@dataclass(slots=True)
class _Entry:
    size: int
    used_s: float  # by the wall clock, as the file's time
    is_durable: bool = False  # its file is synced
    unwritten: bytes | None = None  # until the file is there
    settled: asyncio.Event | None = None  # of those who wait for that


@dataclass(slots=True)
class _Shelf:
    """The responses of one key, the one that was not used for longest first."""

    folder: Path
    entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    size: int = 0


class Store:
    """Every kept response. Without a folder nothing is kept."""

    def __init__(
        self,
        folder: Path | None,
        *,
        bounds: Bounds | None = None,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        """`tell` is given what a person has to know: that the disk refuses responses, and how many were lost."""
        self._folder = folder
        self._tell = tell
        self._owed: dict[str, tuple[Path, _Entry]] = {}  # by their ids: what the disk refused
        self._catching_up: asyncio.Task[None] | None = None
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}  # by the name of their folder
        self._unwritten = 0
        self._loop = asyncio.get_running_loop()
        self._is_read = asyncio.Lock()  # held while the folder is read for the first time
        self._has_read = False
        self._disk = ThreadPoolExecutor(1, "responses")  # one thread: what is written first is there first
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False
        if folder is not None and folder.is_dir():
            self._tend()  # what an earlier daemon kept leaves in time, too

    # ------------------------------------------------------------------ for handlers

    async def put(self, owner: str, id: str, pieces: list[bytes], *, durable: bool = False) -> bool:
        """Keeps a response, in place of an earlier state of it. False where it is too large, or nothing is kept.

        With `durable` it survives a power cut on return, unless the disk refuses it or takes too long.
        """
        size = sum(map(len, pieces))
        if self._folder is None or size > RESPONSE_BYTES_MAX:
            return False
        if self._unwritten + size > RESPONSES_UNWRITTEN_BYTES_MAX:
            _log.warning("response=%s is not kept: the disk is too slow or fails", id)
            return False
        shelf = await self._shelf(owner)
        entry = _Entry(size, self._clock(), durable, b"".join(pieces))
        self._drop(shelf, id)
        shelf.entries[id] = entry
        shelf.size += size
        self._unwritten += size
        self._make_room(shelf)
        self._tend()
        if durable:
            with contextlib.suppress(DiskFailed):  # it was logged; the response is in memory
                await self._ask(lambda: self._write(shelf.folder, id, entry))
        else:
            self._submit(lambda: self._write(shelf.folder, id, entry))
        return True

    async def is_written(self, owner: str, id: str) -> bool:
        """Whether a response that was put is on the disk as it is now, so that a kill does not lose it."""
        entry = (await self._shelf(owner)).entries.get(id)
        return entry is not None and entry.unwritten is None

    async def until_written(self, owner: str, id: str) -> None:
        """Returns when a response is on the disk, or is not kept any more."""
        shelf = await self._shelf(owner)
        while (entry := shelf.entries.get(id)) is not None and entry.unwritten is not None:
            entry.settled = entry.settled or asyncio.Event()
            await entry.settled.wait()

    async def get(self, owner: str, id: str) -> bytes | None:
        """A response and its input as they were put; None where this owner has none of that id. Raises DiskFailed."""
        shelf = await self._shelf(owner)
        entry = shelf.entries.get(id)
        if entry is None or entry.used_s < self._oldest_s():
            return None
        entry.used_s = self._clock()
        shelf.entries[id] = shelf.entries.pop(id)  # used last
        if entry.unwritten is not None:
            return entry.unwritten
        found = await self._ask(lambda: _read(_path(shelf.folder, id), entry.used_s))
        if found is None and shelf.entries.get(id) is entry:
            self._drop(shelf, id)  # its file was removed by hand
        return found

    async def delete(self, owner: str, id: str) -> bool:
        """Forgets a response. False where this owner has none of that id."""
        shelf = await self._shelf(owner)
        known = id in shelf.entries
        self._remove(shelf, id)
        return known

    async def close(self) -> None:
        """Writes the last files, for a bounded time. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._catching_up is not None:
            self._catching_up.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESPONSES_STOP_MS / 1000):
                await self._loop.run_in_executor(self._disk, int)  # behind everything that was to be written
                await self._write_owed()
        if lost := sum(entry.unwritten is not None for _, entry in self._owed.values()):
            self._tell(
                f"{lost} responses that were to be kept are lost: the disk of {self._folder} refused them"
            )
        self._disk.shutdown(wait=False)

    # ------------------------------------------------------------------ bounds

    def _oldest_s(self) -> float:
        return self._clock() - self._bounds.kept_ms / 1000

    def _make_room(self, shelf: _Shelf) -> None:
        bounds = self._bounds
        while len(shelf.entries) > bounds.of_key_max or shelf.size > bounds.of_key_bytes_max:
            self._remove(shelf, next(iter(shelf.entries)))
        while sum(each.size for each in self._shelves.values()) > bounds.bytes_max:
            largest = max(self._shelves.values(), key=lambda each: each.size)
            self._remove(largest, next(iter(largest.entries)))

    def _remove(self, shelf: _Shelf, id: str) -> None:
        if id in shelf.entries:
            self._drop(shelf, id)
            path = _path(shelf.folder, id)
            self._submit(lambda: path.unlink(missing_ok=True))

    def _drop(self, shelf: _Shelf, id: str) -> None:
        entry = shelf.entries.pop(id, None)
        if entry is not None:
            shelf.size -= entry.size
            self._settle(entry)

    def _settle(self, entry: _Entry) -> None:
        """The entry needs no memory any more."""
        if entry.unwritten is not None:
            self._unwritten -= entry.size
            entry.unwritten = None
        if entry.settled is not None:
            entry.settled.set()

    def _tend(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.create_task(self._sweep(), name="responses")

    async def _sweep(self) -> None:
        while True:
            with contextlib.suppress(DiskFailed):  # it was logged; the next round tries again
                await self._read_folder()
            for shelf in self._shelves.values():
                for id in [id for id, entry in shelf.entries.items() if entry.used_s < self._oldest_s()]:
                    self._remove(shelf, id)
            await asyncio.sleep(RESPONSES_SWEEP_MS / 1000)

    # ------------------------------------------------------------------ the disk

    async def _shelf(self, owner: str) -> _Shelf:
        await self._read_folder()
        name = file_stem(owner)
        if name not in self._shelves:
            self._shelves[name] = _Shelf((self._folder or Path()) / name)
        return self._shelves[name]

    async def _read_folder(self) -> None:
        """Finds what an earlier daemon kept, once."""
        async with self._is_read:
            if not self._has_read and self._folder is not None:
                folder = self._folder
                self._shelves = await self._ask(lambda: _found(folder))
            self._has_read = True

    async def _ask(self, work: "Callable[[], T]") -> "T":
        """Does something on the disk's thread. Raises DiskFailed when it fails or does not end in time."""
        if self._is_closed:
            raise DiskFailed("the kept responses cannot be read: the daemon is shutting down")
        try:
            async with asyncio.timeout(RESPONSES_DISK_MS / 1000):
                return await self._loop.run_in_executor(self._disk, work)
        except (OSError, TimeoutError) as error:
            _log.warning("kept responses cannot be read: %s", error)
            raise DiskFailed("the kept responses cannot be read: the disk is too slow or fails") from None

    def _submit(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except OSError as error:
                _log.warning("a kept response is not on the disk: %s", error)

        if not self._is_closed:
            self._disk.submit(guarded)

    def _write(self, folder: Path, id: str, entry: _Entry) -> None:
        """On the disk's thread. What the disk refuses stays in memory until it can be written."""
        try:
            self._write_now(folder, id, entry)
        except OSError as error:
            self._loop.call_soon_threadsafe(self._owe, folder, id, entry, error.strerror or str(error))

    def _owe(self, folder: Path, id: str, entry: _Entry, why: str) -> None:
        if not self._owed:
            self._tell(
                f"responses that are kept wait in memory: {folder} cannot be written: {why}; make room"
            )
        self._owed[id] = (folder, entry)
        if not self._is_closed and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = self._loop.create_task(self._catch_up(), name="responses that wait")

    async def _catch_up(self) -> None:
        while self._owed:
            await asyncio.sleep(RESPONSES_AGAIN_MS / 1000)
            await self._write_owed()
        _log.info("all kept responses are on the disk again")

    async def _write_owed(self) -> None:
        """Writes what the disk refused, as far as it can be written now."""
        for id, (folder, entry) in list(self._owed.items()):
            try:
                await self._loop.run_in_executor(self._disk, self._write_now, folder, id, entry)
            except OSError:
                return
            if self._owed.get(id) == (folder, entry):
                del self._owed[id]

    def _write_now(self, folder: Path, id: str, entry: _Entry) -> None:
        content = entry.unwritten
        if content is None:
            return  # it was replaced or left meanwhile
        make_folder(folder)
        path = _path(folder, id)
        replace_file(path, content, sync=entry.is_durable)
        os.utime(path, (entry.used_s, entry.used_s))
        self._loop.call_soon_threadsafe(self._settle, entry)


def _path(folder: Path, id: str) -> Path:
    """Where a response is. Only ids of our own making get here: those of callers are looked up first."""
    return folder / f"{id}.json"


def _read(path: Path, used_s: float) -> bytes | None:
    try:
        content = read_regular(os.fspath(path), bytes_max=RESPONSE_BYTES_MAX)
        os.utime(path, (used_s, used_s))
    except (FileNotFoundError, NotAFile):
        return None
    return content


def _found(folder: Path) -> dict[str, _Shelf]:
    """What is on the disk. Half a file of a daemon that was killed is removed."""
    shelves: dict[str, _Shelf] = {}
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not place.is_dir():
            continue
        shelf = shelves[place.name] = _Shelf(place)
        for id, entry in sorted(_entries(place), key=lambda each: each[1].used_s):
            shelf.entries[id] = entry
            shelf.size += entry.size
    return shelves


def _entries(place: Path) -> Iterator[tuple[str, _Entry]]:
    for file in place.iterdir():
        named = _FILE.fullmatch(file.name)
        if named is not None:
            status = file.stat(follow_symlinks=False)
            yield named[1], _Entry(status.st_size, status.st_mtime)
        elif file.name.endswith(".json.new"):
            file.unlink(missing_ok=True)
