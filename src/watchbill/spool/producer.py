"""The producing half of a spool: takes events and returns names. When a name is returned, its event is durable.

Three modes with the same visible files. `wal` (default): one fdatasync of the writer's log, shared by all waiting
callers (group commit: the first one commits for the others), then the visible file without sync; large bundles as in
`event`. `event`: write, fsync, rename, fsync of the folder, per call; no log. `none`: no sync at all.

    commit ─▶ waits in line ─▶ leader: log.append(everyone's records) ─▶ hands the lead on ─▶ visible files ─▶ return

The next leader's fdatasync overlaps with this one's files. After a failed sync the producer is broken: its
log is left for replay, and the spool makes a new producer with a new log.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from watchbill.errors import TheirsError
from watchbill.files.atomic import sync_filesystem
from watchbill.files.disk import mount_id
from watchbill.files.host import boot_id
from watchbill.files.owner import Owner
from watchbill.spool.faults import SpoolBroken, SpoolFull, disk_fault
from watchbill.spool.layout import FOLDER, Layout
from watchbill.spool.limits import (
    CHECKPOINT_FILES_MAX,
    CLOSE_WAIT_S,
    DIRECT_BYTES_MIN,
    GROUP_BYTES_MAX,
    LOG_AGE_MAX_S,
    LOG_BYTES_MAX,
    UNSEEN_MAX,
)
from watchbill.spool.log import Log, Record
from watchbill.spool.names import Stamps, bundle_name, event_names, new_writer, stem_of
from watchbill.spool.publish import SIGNATURE_SUFFIX, Publisher

__all__ = ["Producer", "Signer"]

Sign = Callable[[bytes], bytes]

_REMOVED = "the spool's folder, or a part of it, was removed; nothing was acknowledged, try again"
#: Bytes that a record takes in the log besides its event: name, checksum, its share of a mark.
_RECORD_BYTES = 150


class Signer(Protocol):
    """Signs an event's bytes; `watchbill.spool.signing` has one."""

    def sign(self, line: bytes) -> bytes: ...


class _Ticket:
    """One caller's records on their way to the disk."""

    __slots__ = ("error", "leads", "names", "records", "settled", "size", "turn")

    def __init__(self, records: list[Record], names: list[str], size: int) -> None:
        self.records = records
        self.names = names
        self.size = size
        self.error: TheirsError | None = None
        self.settled = self.leads = False
        self.turn = threading.Lock()
        self.turn.acquire()


class Producer:
    """One writer of one spool. Thread-safe. Raises SpoolFull or SpoolBroken: then nothing is acknowledged."""

    def __init__(self, layout: Layout, durability: str, sign: Sign | None = None) -> None:
        self._layout = layout
        self._root_fd = layout.root_fd
        self._sign = sign
        self._stamps = Stamps()
        self._logged = durability == "wal"
        self.writer = new_writer()
        self._owner = Owner(layout.temporary, self.writer, beats=layout.is_shared)
        self._publisher = Publisher(layout, self._owner, self._stamps, sync=durability == "event")
        self._mutex = threading.Lock()
        self._quiet = threading.Condition(self._mutex)
        self._waiting: list[_Ticket] = []
        self._leading = False
        self._publishing = self._stillness_wanted = 0
        self._direct = 0  # callers that write without the log
        self._marks: list[tuple[str, str]] = []
        self._unseen: list[Record] = []
        self._recent: list[str] | None = []
        self._log: Log | None = None
        self._log_born_s = 0.0
        self.broken = False

    @property
    def is_in_place(self) -> bool:
        """False after the spool was found elsewhere: our folder and the queue are on two mounts then."""
        return self._root_fd == self._layout.root_fd

    @property
    def unseen(self) -> int:
        """Acknowledged events that are not visible yet because the disk is full; they are safe in the log."""
        return len(self._unseen)

    def commit(self, lines: Sequence[bytes], *, bundle: bool = False) -> list[str]:
        """Store these events and return the names of their files."""
        if not self._logged:
            return self._publish_directly(self._ticket(lines, bundle))
        if bundle and sum(map(len, lines)) >= DIRECT_BYTES_MIN:
            # A large bundle is written once, with file and folder synced, rather than to the log and to a file.
            return self._publish_directly(self._ticket(lines, bundle), sync=True)
        with self._mutex:
            ticket = self._ticket(lines, bundle)
            self._waiting.append(ticket)
            ticket.leads = not self._leading
            self._leading = True
        if not ticket.leads:
            self._await_turn(ticket)
        if not ticket.settled:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket.names

    def put(self, records: list[Record]) -> None:
        """Store events and signatures under names that were given before, each file synced."""
        self._publish_directly(_Ticket(records, [], 0), sync=True)

    def _await_turn(self, ticket: _Ticket) -> None:
        """Wait until the records are stored, or until it is our turn to lead."""
        try:
            ticket.turn.acquire()
        except BaseException:  # Ctrl-C: no other caller may wait for a leader that has left
            with self._mutex:
                if ticket in self._waiting and not ticket.leads:
                    self._waiting.remove(ticket)
            if ticket.leads and not ticket.settled:
                self._lead()
            raise

    def checkpoint(self) -> None:
        """Make all visible files durable and cut the log. Raises SpoolFull or SpoolBroken; the log then stays."""
        with self._mutex:
            self._await_stillness(lambda: not self._leading and not self._publishing)
            self._leading = True
        try:
            self._cut_log()
        except OSError as error:
            raise disk_fault(error, "cut the spool's log") from error
        finally:
            self._hand_over()

    def checkpoint_if_old(self) -> None:
        """Cut a log that is old enough, even if nothing is enqueued."""
        if self._log is not None and self._log_is_old():
            self.checkpoint()

    def close(self) -> None:
        """Cut the log and close. Records that cannot be made durable now stay in the log for replay."""
        try:
            if not self.broken and self._log is not None:
                self.checkpoint()
        except (SpoolFull, SpoolBroken):
            self.broken = True
        with self._mutex:
            # Other threads may still be using the descriptors of a broken writer.
            self._await_stillness(
                lambda: not (self._leading or self._publishing or self._direct), CLOSE_WAIT_S
            )
        if self._log is not None:
            self._log.close()
        if self.broken:
            self._owner.abandon()
        else:
            self._owner.close()

    def abandon(self) -> None:
        """Forget everything without touching the disk: for a forked child."""
        if self._log is not None:
            self._log.close()
        self._owner.abandon()

    def _ticket(self, lines: Sequence[bytes], bundle: bool) -> _Ticket:
        """Give names in the order of the log, so that a mark can name a range."""
        if bundle:
            names = [bundle_name(self._stamps.take(), self.writer, len(lines))]
            lines = [b"\n".join(lines)]
        else:
            names = event_names(self._stamps.take(len(lines)), self.writer, len(lines))
        records = list(map(Record, names, lines))
        if self._sign is not None:
            records = [each for record in records for each in (self._signature(self._sign, record), record)]
        return _Ticket(records, names, sum(map(len, lines)) + _RECORD_BYTES * len(records))

    @staticmethod
    def _signature(sign: Sign, record: Record) -> Record:
        return Record(stem_of(record.name) + SIGNATURE_SUFFIX, sign(record.content))

    def _publish_directly(self, ticket: _Ticket, *, sync: bool = False) -> list[str]:
        with self._mutex:
            self._direct += 1
        shown: list[str] = []
        try:
            self._publisher.publish(ticket.records, shown, sync=sync)
        except OSError as error:
            self._publisher.take_back(shown)
            is_ours = self._owner.is_ours
            self.broken = self.broken or not is_ours
            raise disk_fault(error, "store an event") if is_ours else SpoolBroken(_REMOVED) from error
        finally:
            with self._mutex:
                self._direct -= 1
                if self._stillness_wanted:
                    self._quiet.notify_all()
        return ticket.names

    def _lead(self) -> None:
        """Commit for all waiting callers, hand the lead on, then make the files visible and wake the callers."""
        group, marks = self._take_group()
        records = (
            group[0].records if len(group) == 1 else [each for ticket in group for each in ticket.records]
        )
        visible = False
        try:
            error = self._append(records, marks)
        except BaseException:  # Ctrl-C: the waiting callers must not wait without end
            self._hand_over(publishing=1)
            self._settle(group, SpoolBroken("interrupted; nothing was acknowledged"), None)
            raise
        self._hand_over(publishing=1)
        try:
            # A full disk does not undo the acknowledgement: the log has these events, and they are shown later.
            visible = error is None and self._publish(records) is None
            error = error or self._lost()  # checked last: the log may have been removed until now
        finally:
            self._settle(group, error, (records[0].name, records[-1].name) if visible else None)

    def _lost(self) -> TheirsError | None:
        """The error if the log that took the records was removed meanwhile."""
        try:
            if self._log is None or self._log.is_linked:
                return None
        except OSError as error:
            self.broken = True
            return disk_fault(error, "look at the spool's log")
        self.broken = True
        return SpoolBroken(_REMOVED)

    def _settle(
        self, group: Sequence[_Ticket], error: TheirsError | None, mark: tuple[str, str] | None
    ) -> None:
        with self._mutex:
            self._publishing -= 1
            if mark is not None:
                self._marks.append(mark)
            if self._stillness_wanted:
                self._quiet.notify_all()
        for ticket in group:
            ticket.error, ticket.settled = error, True
            ticket.turn.release()

    def _take_group(self) -> tuple[list[_Ticket], list[tuple[str, str]]]:
        with self._mutex:
            size = count = 0
            for ticket in self._waiting:
                size += ticket.size
                count += 1
                if size >= GROUP_BYTES_MAX:
                    break
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            marks, self._marks = self._marks, []
            return group, marks

    def _hand_over(self, *, publishing: int = 0) -> None:
        with self._mutex:
            self._publishing += publishing
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].turn.release()
            else:
                self._leading = False
                if self._stillness_wanted:
                    self._quiet.notify_all()

    def _await_stillness(self, is_still: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait until no other caller is writing. Under the mutex; only callers that wait here are notified."""
        self._stillness_wanted += 1
        try:
            self._quiet.wait_for(is_still, limit_s)
        finally:
            self._stillness_wanted -= 1

    def _append(self, records: Sequence[Record], marks: Sequence[tuple[str, str]]) -> TheirsError | None:
        if self._unseen and (fault := self._show_unseen()) is not None:
            return fault  # records in the log already wait for space: there is none for more
        try:
            self._log_with_room().append(records, marks)
        except OSError as error:
            folder_is_gone = self._log is None and isinstance(error, FileNotFoundError)
            if folder_is_gone or (self._log is not None and self._log.failed):
                self.broken = True  # the next writer makes the missing folders, and a new log
            return disk_fault(error, "write the spool's log")
        except (SpoolFull, SpoolBroken) as error:
            return error
        return None

    def _log_with_room(self) -> Log:
        if self.broken:
            raise SpoolBroken("this writer's log failed; nothing was acknowledged, try again")
        log = self._log
        if log is not None and (log.end >= LOG_BYTES_MAX or self._log_is_old()):
            with self._mutex:
                self._await_stillness(lambda: not self._publishing)
            self._cut_log()
        if self._log is None:
            fd, name = self._layout.root_fd, f"{self.writer}-{self._stamps.take():019d}.jsonl"
            self._log = Log(self._layout.logs, name, boot_id(), mount_id(fd))
            self._log_born_s = time.monotonic()
        return self._log

    def _log_is_old(self) -> bool:
        return time.monotonic() - self._log_born_s > LOG_AGE_MAX_S

    def _cut_log(self) -> None:
        """Checkpoint: make the files durable, then remove the log. Only while nothing is published."""
        self._show_unseen()
        if self._log is None or self.broken:
            return
        if self._unseen:
            if self._log.end >= 2 * LOG_BYTES_MAX:
                raise SpoolFull("the disk is full, and so is the spool's log; free some space")
            return
        try:
            if not self._sync_few():
                sync_filesystem(self._layout.root_fd)
        except OSError:
            self.broken = True
            self._log.mark_unsynced()
            raise
        self._log.discard()
        self._log, self._recent, self._marks = None, [], []

    def _sync_few(self) -> bool:
        """Sync a handful of files one by one. Return False if only a sync of the whole file system is safe."""
        if self._recent is None or self._sign is not None:
            return False
        queue = self._layout.queue_fd
        synced: dict[str, os.stat_result] = {}
        for path in self._recent:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=queue)
            except FileNotFoundError:
                return False  # leased meanwhile: it may be in any folder now
            try:
                synced[path] = os.fstat(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
        for folder in {os.path.dirname(path) or "." for path in self._recent} | {"."}:
            fd = os.open(folder, FOLDER, dir_fd=queue)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        # The name is there and was not renamed since, so the folder's fsync covered it. A release brings a name back.
        return all(self._stands(path, status) for path, status in synced.items())

    def _stands(self, path: str, before: os.stat_result) -> bool:
        try:
            now = os.stat(path, dir_fd=self._layout.queue_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(before, now) and before.st_ctime_ns == now.st_ctime_ns

    def _show_unseen(self) -> TheirsError | None:
        """Try again to make events visible that a full disk kept back; return the error if it still fails."""
        with self._mutex:
            unseen, self._unseen = self._unseen, []
        return self._publish(unseen) if unseen else None

    def _publish(self, records: Sequence[Record]) -> TheirsError | None:
        shown: list[str] = []
        fault: TheirsError | None = None
        try:
            self._publisher.publish(records, shown)
        except OSError as error:
            # Whatever it was (full, read-only, an I/O error): these events are acknowledged and in the log.
            fault = disk_fault(error, "show an event")
            self.broken = self.broken or not self._owner.is_ours
            self._keep_unseen(records, shown)
        if self._recent is not None:  # else there are too many already
            self._remember(shown)
        return fault

    def _remember(self, shown: Sequence[str]) -> None:
        """Note the files that a checkpoint may sync one by one, while they are few."""
        with self._mutex:
            if self._recent is not None:
                self._recent += shown
                if len(self._recent) > CHECKPOINT_FILES_MAX:
                    self._recent = None

    def _keep_unseen(self, records: Sequence[Record], shown: Sequence[str]) -> None:
        """Remember events that are not visible. Past the bound only the log holds them: replay reads it."""
        seen = {stem_of(os.path.basename(path)) for path in shown}
        with self._mutex:
            self._unseen += [record for record in records if _stem(record) not in seen]
            self._recent = None
            if len(self._unseen) > UNSEEN_MAX:
                self._unseen.clear()
                self.broken = True


def _stem(record: Record) -> str:
    return stem_of(record.name.removesuffix(SIGNATURE_SUFFIX))
