"""The consuming half of a spool: leases, and how they are settled.

A lease is a rename from queue/ into this worker's own folder; exactly one worker wins it. The attempt in the
name rises with every lease, so that the attempts of workers that die are counted; a release without a failure lowers it
again. Leases are not synced: after a power cut an event whose lease was lost is delivered again.

    lease    queue/X~0        ─▶ queue-in-flight/WORKER/X~1
    done     WORKER/X~1       ─▶ queue-done/DATE/X~1
             WORKER/BATCH/    ─▶ queue-done/DATE/BATCH/    a whole batch with one rename
    release  WORKER/X~1       ─▶ queue/X~0
    failed   WORKER/X~1       ─▶ queue/X~1
    poison   WORKER/X~1       ─▶ queue-poison/X~1, its reason written beside it before the move

A foreign file may have any name, so moving it never replaces a file; names made by Watchbill are unique.
"""

import contextlib
import datetime
import errno
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from watchbill.files.atomic import make_subfolder, write_file
from watchbill.files.host import host_name
from watchbill.files.owner import Owner
from watchbill.spool.faults import LeaseLost, SpoolBroken, SpoolFull, SpoolLayout, disk_fault
from watchbill.spool.layout import FOLDER, Layout, State
from watchbill.spool.limits import BACKOFF_FIRST_S, BACKOFF_LAST_S, RESTING_MAX
from watchbill.spool.names import attempt_of, next_attempt, safe_stem, stem_of, with_attempt
from watchbill.spool.scan import Candidates

__all__ = ["Consumer", "Lease", "done_folder", "move_unique", "reason_bytes", "rest_after"]

#: Errors that concern one file: it must not block the others.
_THIS_FILE_ONLY = frozenset(
    {errno.EXDEV, errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENOTDIR, errno.EISDIR}
)
_UNMOVABLE_REST_S = 60.0
#: After a disk error an event rests for this long, so that it does not delay the others.
_TROUBLE_REST_S = 5.0


@dataclass(slots=True)
class Lease:
    """A file that is ours until it is settled."""

    name: str
    attempt: int
    own: bool  # the name was made by a Watchbill writer, so it is unique
    batch: str  # the folder inside the worker's own, with its slash
    path: str  # where the file lies in its worker's folder
    settled: bool = field(default=False, compare=False)


class Consumer:
    """One worker of one spool. Thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        name = f"{host_name()}.{os.getpid()}.{os.urandom(4).hex()}"
        self._owner = Owner(layout.folder(State.IN_FLIGHT), name, beats=layout.is_shared)
        self.fd, self.path = self._owner.fd, self._owner.path
        self._root_fd = layout.root_fd
        self._candidates = Candidates(layout)
        self._lock = threading.Lock()
        self._resting: dict[str, float] = {}  # stem -> until when
        self._rest_ends_s = 0.0  # for the last of those that were put back
        self._orphans: list[Lease] = []
        self._done_day = -1
        self._done_fd = -1
        self._done_folder = ""
        self._batch = ""
        self._batch_fd = -1
        self._batch_leases = 0
        self.in_flight = 0

    @property
    def folders(self) -> list[str]:
        """Folders below queue/ in which an event may arrive."""
        return self._candidates.folders

    @property
    def rests_s(self) -> float:
        """Seconds until the last event that was put back may be leased here again."""
        return max(0.0, self._rest_ends_s - time.monotonic())

    def lease(
        self, *, rescan: bool = True, retries: bool = True, batch: bool = False, counts: bool = True
    ) -> Lease | None:
        """Lease the oldest event, or return None when nothing waits. Raises SpoolFull, SpoolBroken.

        Without `rescan` only events of the last listing are leased; without `retries` an event that was
        leased before is left for the next call. With `batch` it goes into the folder of the open batch. Without
        `counts` its name keeps the attempt: the death of this worker uses up none.
        """
        if self._orphans:
            self._return_orphans()
        asked_at_s = time.monotonic()
        try:
            with self._lock:
                while (path := self._candidates.pop(rescan=rescan)) is not None:
                    # Resting events stay in queue/: if each round read the folder again, this loop would never end.
                    rescan = rescan and not (self._resting and self._candidates.read_at_s >= asked_at_s)
                    if not retries and not path.endswith("~0.jsonl") and attempt_of(path) > 0:
                        self._candidates.push_back(path)
                        return None
                    lease = self._claim(path, batch, counts)
                    if lease is not None:
                        self.in_flight += 1
                        return lease
        except OSError as error:
            raise disk_fault(error, "lease an event") from error
        return None

    def done(self, lease: Lease) -> None:
        """Finish an event. Raises LeaseLost if it is no longer ours."""
        self._refuse_settled(lease)
        day = int(time.time()) // 86_400
        if day != self._done_day:
            self._open_done(day)
        if not lease.own or not self._finish(lease):
            self._open_done(day)  # gc may have removed the day's folder
            self._move(lease, self._done_folder, lease.name)
        self._settle(lease)

    def done_batch(self, leases: Sequence[Lease]) -> None:
        """Finish the rest of a batch, with one rename if `leases` is all of it."""
        self._open_done(int(time.time()) // 86_400)
        try:
            moved = self._move_batch(leases)
        except OSError as error:
            raise disk_fault(error, "finish a batch") from error
        if not moved:
            for lease in leases:
                self.done(lease)
            return
        for lease in leases:
            lease.settled = True
        with self._lock:
            self.in_flight -= len(leases)

    def _move_batch(self, leases: Sequence[Lease]) -> bool:
        """Move the open batch's folder. Under the lock: another thread may be leasing into the same batch."""
        with self._lock:
            batch = self._batch
            if not batch or len(leases) != self._batch_leases or any(each.batch != batch for each in leases):
                return False
            try:
                self._layout.take(batch[:-1], batch[:-1], src_dir_fd=self._owner.fd, dst_dir_fd=self._done_fd)
            except FileNotFoundError:
                return False
            finally:
                # Also after an error: it may be in queue-done all the same, and what is leased into it would be, too.
                self._leave_batch()
            return True

    def release(self, lease: Lease, rest_s: float = 0.0, *, failed: bool = False) -> None:
        """Put an event back. This process leaves it alone for `rest_s`; others may lease it at once. The attempt
        counts only if it `failed`."""
        self._refuse_settled(lease)
        if rest_s > 0:
            self._rest(stem_of(lease.name), rest_s)
            self._rest_ends_s = max(self._rest_ends_s, time.monotonic() + rest_s)
        name = lease.name if failed else with_attempt(lease.name, lease.attempt - 1)
        self._move(lease, State.QUEUE.value, name)
        self._settle(lease)

    def set_aside(self, lease: Lease, error: OSError) -> None:
        """Put back an event that this user may not read. Others may lease it at once; the attempt does not count."""
        self._rest(stem_of(lease.name), rest_after(lease.attempt))
        name = with_attempt(lease.name, lease.attempt - 1)
        self._move(lease, State.QUEUE.value, name)
        self._settle(lease)
        self._layout.barred.note(self._layout.folder(State.QUEUE) / name, error)

    def give_back(self, lease: Lease) -> None:
        """Release, now or later: an event that cannot be moved on a full disk is moved when there is room."""
        try:
            self.release(lease, _TROUBLE_REST_S)
        except LeaseLost:
            if not lease.settled:
                self._settle(lease)
        except (SpoolFull, SpoolBroken, SpoolLayout):
            self._orphans.append(lease)

    def poison(self, lease: Lease, reason: Mapping[str, object]) -> None:
        """Give an event up, with its reason beside it."""
        self._refuse_settled(lease)
        folder = State.POISON.value
        name = lease.name if lease.own else _free_name(lease.name, self._layout.folder(State.POISON))
        temporary = f".{os.urandom(4).hex()}.reason"
        try:
            self._make(folder)
            with self._layout.entered(folder) as target:
                write_file(temporary, reason_bytes(name, lease.attempt, reason), dir_fd=self._owner.fd)
                self._layout.give(
                    temporary, f"{name}.reason.json", src_dir_fd=self._owner.fd, dst_dir_fd=target
                )
        except OSError as error:
            raise disk_fault(error, f"write the reason of {name}") from error
        self._move(lease, folder, name)
        self._settle(lease)

    def charge(self, lease: Lease, *, counts: bool) -> None:
        """Let the death of this worker use up the attempt, or not. Raises LeaseLost if the event is no longer ours."""
        self._refuse_settled(lease)
        name = with_attempt(lease.name, lease.attempt if counts else lease.attempt - 1)
        if not lease.own or name == lease.name:
            return
        here, path = self._owner.fd, lease.path.removesuffix(lease.name) + name
        try:
            self._layout.take(lease.path, path, src_dir_fd=here, dst_dir_fd=here)
        except FileNotFoundError as error:
            raise LeaseLost(f"{lease.name} is no longer leased to {self._owner.name}") from error
        except OSError as error:
            raise disk_fault(error, f"rename {lease.name}") from error
        lease.name, lease.path = name, path

    def forget(self, lease: Lease) -> None:
        """Drop a lease whose file is gone."""
        self._settle(lease)

    def wake(self) -> None:
        """Read the folder at the next lease: something may have arrived."""
        with self._lock:
            self._candidates.forget()

    def close(self) -> None:
        self._close_batch()
        if self._done_fd >= 0:
            os.close(self._done_fd)
            self._done_fd = self._done_day = -1
        self._owner.close()

    def abandon(self) -> None:
        """Forget everything without touching the disk: for a forked child."""
        self._owner.abandon()

    @property
    def is_ours(self) -> bool:
        """False after its folder was removed, or its spool was moved."""
        return self._owner.is_ours and self._root_fd == self._layout.root_fd

    def _claim(self, path: str, batch: bool, counts: bool) -> Lease | None:
        name = path.rpartition("/")[2]
        if self._resting and not self._is_rested(stem_of(name)):
            return None
        target, folder = self._open_batch() if batch else (self._owner.fd, "")
        lease = self._own_lease(name, folder, counts)
        try:
            if lease is None:
                lease = self._claim_foreign(path, name, target, folder)
            else:
                self._layout.take(path, lease.name, src_dir_fd=self._layout.queue_fd, dst_dir_fd=target)
        except FileNotFoundError:
            if os.fstat(target).st_nlink:
                return None  # another worker was faster
            if not batch:
                raise  # our own folder was removed, and every later try would fail the same way
            self._close_batch()
            return self._claim(path, batch, counts)
        except OSError as error:
            if error.errno not in _THIS_FILE_ONLY:
                self._doubt(lease, folder)
                raise
            self._resting[stem_of(name)] = time.monotonic() + _UNMOVABLE_REST_S
            self._layout.barred.note(self._layout.folder(State.QUEUE) / path, error)
            return None
        self._batch_leases += batch
        return lease

    @staticmethod
    def _own_lease(name: str, folder: str, counts: bool) -> Lease | None:
        """The lease that a claim of this file gives; None for a foreign one, whose name is not ours to keep."""
        if (own := next_attempt(name)) is None:
            return None
        leased = own[0] if counts else name
        return Lease(leased, own[1], True, folder, folder + leased)

    def _doubt(self, lease: Lease | None, folder: str) -> None:
        """The rename of a claim may have been carried out: then nobody has the event. It is put back before
        the next lease, and the batch that may hold it is not finished as a whole."""
        if not self._layout.is_shared:
            return
        if folder:
            self._close_batch()
        if lease is not None:
            self._orphans.append(lease)
            self.in_flight += 1

    def _claim_foreign(self, path: str, name: str, target: int, folder: str) -> Lease:
        queue = self._layout.queue_fd
        mtime_ns = os.stat(path, dir_fd=queue, follow_symlinks=False).st_mtime_ns
        attempt = attempt_of(name) + 1
        leased = with_attempt(safe_stem(name, mtime_ns), attempt)
        moved = move_unique(self._layout.take, path, leased, src_dir_fd=queue, dst_dir_fd=target)
        return Lease(moved, attempt, False, folder, folder + moved)

    def _open_batch(self) -> tuple[int, str]:
        """Return the open batch's folder; a new one is made after the last one was finished or split."""
        if self._batch and self._batch_leases == 0 and os.fstat(self._batch_fd).st_nlink == 0:
            self._close_batch()
        if not self._batch:
            name = f"{time.time_ns():019d}-batch-{os.urandom(4).hex()}"
            make_subfolder(name, dir_fd=self._owner.fd, exist_ok=False)
            self._batch_fd = os.open(name, FOLDER, dir_fd=self._owner.fd)
            self._batch = name + "/"
        return self._batch_fd, self._batch

    def _close_batch(self) -> None:
        if self._batch:
            with contextlib.suppress(OSError):  # not empty: its events stay in flight for recovery
                os.rmdir(self._batch[:-1], dir_fd=self._owner.fd)
            self._leave_batch()

    def _leave_batch(self) -> None:
        os.close(self._batch_fd)
        self._batch, self._batch_fd, self._batch_leases = "", -1, 0

    def _refuse_settled(self, lease: Lease) -> None:
        """Raise for a lease that was settled. An event that was put back without a failure may be leased here again
        under the same name, and its former holder must not settle it."""
        if lease.settled:
            raise LeaseLost(f"{lease.name} was settled before")

    def _move(self, lease: Lease, folder: str, name: str) -> None:
        """Move a leased file; a foreign one finds another name rather than replace a file."""
        source = self._owner.fd
        rename = self._layout.give if folder == State.QUEUE.value else self._layout.take
        try:
            with self._layout.entered(folder) as target:
                if lease.own:
                    rename(lease.path, name, src_dir_fd=source, dst_dir_fd=target)
                else:
                    move_unique(rename, lease.path, name, src_dir_fd=source, dst_dir_fd=target)
        except FileNotFoundError as error:
            raise LeaseLost(f"{lease.name} is no longer leased to {self._owner.name}") from error
        except OSError as error:
            raise disk_fault(error, f"move {lease.name} to {folder}") from error

    def _return_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for lease in orphans:
            if self._is_question(lease):
                self._settle(lease)
            else:
                self.give_back(lease)

    def _is_question(self, lease: Lease) -> bool:
        """Whether the folder that asked for a claim is what lies there: then the claim was not carried out, and the
        folder, put back as an event, would be given up as one."""
        if not self._layout.is_shared:
            return False
        try:
            os.rmdir(lease.path, dir_fd=self._owner.fd)
        except (
            OSError
        ):  # the event, mostly; where it cannot be told now, it is asked again when it is put back
            return False
        return True

    def _settle(self, lease: Lease) -> None:
        lease.settled = True
        with self._lock:
            self.in_flight -= 1
            self._batch_leases -= bool(lease.batch) and lease.batch == self._batch

    def _finish(self, lease: Lease) -> bool:
        try:
            self._layout.take(lease.path, lease.name, src_dir_fd=self._owner.fd, dst_dir_fd=self._done_fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_fault(error, f"finish {lease.name}") from error
        return True

    def _open_done(self, day: int) -> None:
        """Open today's folder of finished events; days are UTC."""
        folder = done_folder(day)
        try:
            self._make(State.DONE.value)
            with self._layout.entered(State.DONE.value) as done:
                make_subfolder(os.path.basename(folder), dir_fd=done)
            with self._layout.entered(folder) as today:
                fd = os.dup(today)
        except OSError as error:
            raise disk_fault(error, f"open {folder}") from error
        if self._done_fd >= 0:
            os.close(self._done_fd)
        self._done_fd, self._done_day, self._done_folder = fd, day, folder

    def _make(self, folder: str) -> None:
        """Make a folder that is missing; people may have removed it to free space."""
        make_subfolder(folder, dir_fd=self._layout.root_fd)

    def _rest(self, stem: str, rest_s: float) -> None:
        with self._lock:
            self._resting[stem] = time.monotonic() + rest_s
            if len(self._resting) > RESTING_MAX:
                del self._resting[next(iter(self._resting))]

    def _is_rested(self, stem: str) -> bool:
        until = self._resting.get(stem)
        if until is None:
            return True
        if time.monotonic() < until:
            return False
        del self._resting[stem]
        return True


def done_folder(day: int) -> str:
    """Return the folder of the events that are finished on this day since 1970 (UTC), below the root."""
    date = datetime.datetime.fromtimestamp(day * 86_400, datetime.UTC).date().isoformat()
    return f"{State.DONE.value}/{date}"


def rest_after(attempt: int) -> float:
    """Seconds that an event rests after its first, second, ... failure."""
    return min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2 ** (attempt - 1))


class Rename(Protocol):
    """A rename of a `Layout`: `take` or `give`."""

    def __call__(
        self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, new: bool = False
    ) -> None: ...


def move_unique(rename: Rename, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> str:
    """Rename without ever replacing a file; return the new path."""
    path = target
    while True:
        try:
            rename(source, path, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, new=True)
            return path
        except FileExistsError:
            folder, slash, name = target.rpartition("/")
            path = folder + slash + _variant(name)


def _free_name(name: str, folder: Path) -> str:
    while os.path.lexists(folder / name):
        name = _variant(name)
    return name


def _variant(name: str) -> str:
    suffix = ".bundle.jsonl" if name.endswith(".bundle.jsonl") else ".jsonl"
    return with_attempt(f"{stem_of(name)}.{os.urandom(4).hex()}{suffix}", attempt_of(name))


def reason_bytes(name: str, attempt: int, reason: Mapping[str, object]) -> bytes:
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return (json.dumps({"name": name, "attempt": attempt, "at": at, **reason}, default=str) + "\n").encode()
