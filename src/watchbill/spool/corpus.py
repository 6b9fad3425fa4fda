"""The corpus: one JSONL file that only ever grows, written by one appender at a time.

`append` takes the file's lock, cuts a torn tail (keeping the cut bytes), learns what others have appended,
leaves out ids it knows, writes the rest with one write and one fdatasync, and returns: everything it was
given is then on stable storage. Events are appended byte for byte. After a failed write no partial line
is left; after a failed sync the new bytes are taken back and the descriptor is never synced again.

The lock does not reach other hosts: on a network mount a corpus belongs to the host that first appended to it.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from watchbill.files.atomic import (
    fsync_folder,
    make_folder,
    open_folder,
    open_shared,
    put_file,
    pwrite_all,
    sync_data,
)
from watchbill.files.disk import DISK_FULL, mount_of
from watchbill.files.lock import try_lock
from watchbill.spool.events import Id, decode, event_id, id_digest
from watchbill.spool.faults import EventRefused, SpoolBroken, disk_fault
from watchbill.spool.host_mark import refuse_other_host
from watchbill.spool.ids import Ids
from watchbill.spool.limits import IDS_TAIL_BYTES_MAX

__all__ = ["Appended", "Corpus"]

#: How long an appender waits for another one's batch, in seconds.
_LOCK_WAIT_S = 30.0
_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did with its events."""

    appended: int
    duplicates: int


class Corpus:
    """The appender of one corpus file. Not thread-safe; any number of them may share a file."""

    def __init__(
        self, path: str | os.PathLike[str], *, id_key: str = "id", quarantine: Path | None = None
    ) -> None:
        """`quarantine` is the folder for cut bytes, by default one beside the corpus."""
        self.path = Path(path).absolute()
        self.id_key = id_key
        self._quarantine = quarantine or self.path.with_name(self.path.name + ".torn")
        self._ids = Ids(self.path)
        self._fd = -1
        self._is_mounted = False  # from the network, when it was opened first
        self._end = -1  # ids are known up to this offset; -1 before the first look

    def append(self, events: Sequence[tuple[Id, bytes]]) -> Appended:
        """Append (id, line) pairs durably, each id once. Raises SpoolFull or SpoolBroken: then none is there."""
        try:
            with self.locked():
                end = self._look()
                fresh = self._fresh(events)
                data = b"".join(line + b"\n" for _, line in fresh)
                self._write(data, end)
                self._remember([digest for digest, _ in fresh], end + len(data))
        except OSError as error:
            raise disk_fault(error, f"append to the corpus {self.path}") from error
        return Appended(len(fresh), len(events) - len(fresh))

    def known(self, ids: Sequence[Id]) -> list[bool]:
        """Return for each id whether `append` would find it in the corpus. Raises SpoolFull or SpoolBroken.

        A line that is known may not be synced yet: only `append` makes it durable.
        """
        if not ids or not self.path.exists():
            return [False] * len(ids)
        try:
            with self.locked():
                self._look()
                return [id_digest(each) in self._ids for each in ids]
        except OSError as error:
            raise disk_fault(error, f"look into the corpus {self.path}") from error

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):  # of a mount that is gone; what was appended is synced
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fresh(self, events: Sequence[tuple[Id, bytes]]) -> list[tuple[bytes, bytes]]:
        batch: dict[bytes, bytes] = {}
        for identifier, line in events:
            digest = id_digest(identifier)
            if digest not in self._ids and digest not in batch:
                batch[digest] = line
        return list(batch.items())

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock of the file that has this name now: a repair may have replaced the open one.

        Raises OSError, and SpoolBroken if another appender holds it too long."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            if self._fd < 0:
                self._open()
            if not try_lock(self._fd):
                if time.monotonic() > deadline:
                    raise SpoolBroken(f"the corpus {self.path} is locked by another program")
                time.sleep(0.002)
                continue
            if self._is_current():
                break
            self.close()
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _open(self) -> None:
        self._refuse_bare_mount_point()
        make_folder(self.path.parent)
        if mount_of(self.path.parent).is_network:
            self._is_mounted = True
            refuse_other_host(self.path.with_name(self.path.name + ".host"), f"the corpus {self.path}")
        self._fd = open_shared(self.path, os.O_RDWR | os.O_NOFOLLOW)
        fsync_folder(self.path.parent)
        self._end = -1

    def _refuse_bare_mount_point(self) -> None:
        """Raises SpoolBroken if the mount is away: what is appended below it is hidden when it is back."""
        if not self._is_mounted:
            return
        found = self.path.parent
        while not found.exists():
            found = found.parent
        if not mount_of(found).is_network:
            raise SpoolBroken(
                f"the mount of the corpus {self.path} is away; mount it again, and the drain goes on"
            )

    def _is_current(self) -> bool:
        try:
            held = os.fstat(self._fd)
        except OSError:  # of a mount that is gone, whichever errno
            return False
        try:
            return os.path.samestat(os.stat(self.path), held)
        except FileNotFoundError:
            return False

    def _look(self) -> int:
        """Mend the tail, learn the ids that came since the last look, and return the file's end."""
        size = os.fstat(self._fd).st_size
        if size == self._end:
            return size
        size = self._mend_tail(size)
        if self._end < 0 or size < self._end:
            self._end = max(self._ids.load(size), size - IDS_TAIL_BYTES_MAX, 0)
        else:
            self._end = max(self._ids.catch_up(size), self._end)
        self._learn(self._end, size)
        self._end = size
        return size

    def _learn(self, start: int, end: int) -> None:
        rest = b""
        while start < end:
            chunk = os.pread(self._fd, min(_CHUNK_BYTES, end - start), start)
            if not chunk:
                return
            start += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            self._ids.learn(digest for digest in map(self._digest, lines) if digest is not None)

    def _digest(self, line: bytes) -> bytes | None:
        try:
            return id_digest(event_id(decode(line), line, self.id_key)) if line else None
        except EventRefused:
            return None  # `corpus check` names it

    def _mend_tail(self, size: int) -> int:
        """Cut a last line without a newline. If it is a whole event, it gets its newline instead."""
        if size == 0 or os.pread(self._fd, 1, size - 1) == b"\n":
            return size
        start = self._last_newline(size) + 1
        tail = os.pread(self._fd, size - start, start)
        if self._digest(tail) is not None:
            pwrite_all(self._fd, b"\n", size)
            return size + 1
        self._keep(tail, start)
        os.ftruncate(self._fd, start)
        return start

    def _last_newline(self, size: int) -> int:
        """Return the offset of the last newline, or -1."""
        end = size
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found
            end = start
        return -1

    def _keep(self, tail: bytes, offset: int) -> None:
        make_folder(self._quarantine)
        name = f"{self.path.name}-{offset}-{time.time_ns()}.torn"
        reason = {
            "reason": "a line without its end: a write was cut short",
            "corpus": str(self.path),
            "offset": offset,
        }
        kept = {name: tail, f"{name}.reason.json": json.dumps(reason).encode() + b"\n"}
        with open_folder(self._quarantine, own=True) as folder:
            for each, content in kept.items():
                put_file(each, f".{each}.new", content, dir_fd=folder, sync=True)

    def _write(self, data: bytes, end: int) -> None:
        """Write and sync. The sync is needed even with nothing to write: what we take for a duplicate may be
        another appender's unsynced line, and its event is acknowledged because of ours."""
        try:
            if data:
                pwrite_all(self._fd, data, end)
        except OSError:
            os.ftruncate(self._fd, end)
            raise
        try:
            sync_data(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, end)
            self.close()
            raise

    def _remember(self, digests: list[bytes], end: int) -> None:
        self._end = end
        try:
            self._ids.write(digests, end)
        except OSError as error:
            # The corpus holds the events; what the day files lack is read there after a restart.
            if error.errno not in DISK_FULL:
                raise
