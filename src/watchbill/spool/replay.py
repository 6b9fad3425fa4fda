"""Replay: makes events visible that a writer acknowledged before it died.

Reads the logs of writers that hold no lock any more, finds which of their events are in none of the four
folders, makes those visible, makes everything durable, and only then removes the log. After a power cut a
file may have its name but not its content; it is written again in place. Pieces that are no
record are kept in queue-poison/ as `.torn` files with their offset. One replayer at a time; a living
writer's log is never touched. A log that cannot be finished now (disk full) stays for the next time. One scan
of the folders serves all logs, however many writers died.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from watchbill.files.atomic import fsync_folder, open_shared, sync_filesystem, write_file, write_file_durable
from watchbill.files.disk import DISK_FAULTS, mount_id
from watchbill.files.host import boot_id
from watchbill.files.owner import Owner, remove_folder, sweep_newborns, take_dead
from watchbill.spool.layout import Layout, State, walk_events
from watchbill.spool.limits import BUCKET_FILES_MAX, REPLAY_LOGS_MAX, REPLAY_NAMES_MAX, REPLAY_WAIT_S
from watchbill.spool.log import UNSYNCED_SUFFIX, LogContents, Record, Torn, mark_unsynced, parse_log
from watchbill.spool.names import Stamps, new_writer, stem_of
from watchbill.spool.publish import SIGNATURE_SUFFIX, Publisher

__all__ = ["log_names", "replay_dead", "unreplayed"]

_LOG_NAME = re.compile(r"([0-9a-f]{16})-\d{19}(?:\.doubt)?\.jsonl", re.ASCII)
_WRITER = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LOCK = ".replay.lock"
_CANNOT_WRITE = DISK_FAULTS | {errno.EACCES}


def replay_dead(layout: Layout, *, wait: bool = False) -> int:
    """Replay every dead writer's log and return how many events became visible.

    Returns 0 on a disk that cannot be written now. While another process replays it returns 0 or, with `wait`,
    waits: a consumer that starts must not lease a file whose content is about to be restored.
    """
    layout.check()
    if not _has_work(layout):
        return 0
    try:
        lock = open_shared(layout.logs / _LOCK, os.O_RDWR)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            layout.barred.note(layout.logs / _LOCK, error)
            return 0
        raise
    try:
        return _replay_all(layout) if _take(lock, REPLAY_WAIT_S if wait else 0.0) else 0
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return 0
        raise
    finally:
        os.close(lock)


def _take(lock: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def unreplayed(layout: Layout) -> int:
    """Count the acknowledged events of dead writers that only their logs hold. Changes nothing."""
    names = [name for name in _logs(layout) if not _is_alive(layout, name)]
    return sum(
        len(missing)
        for group in _groups(layout, [layout.logs / name for name in names])
        for _, missing, _ in _surveys(layout, group)
    )


def log_names(layout: Layout) -> set[str]:
    """Return the stems of all events that some log still holds: their files must not be removed yet."""
    stems: set[str] = set()
    for name in _logs(layout):
        stems.update(stem_of(record.name) for record in parse_log(_read(layout.logs / name)).records)
    return stems


def _has_work(layout: Layout) -> bool:
    """Whether any writer has left a folder or a log: the common case costs two listings."""
    return bool(_logs(layout)) or bool(os.listdir(layout.temporary))


def _logs(layout: Layout) -> list[str]:
    return sorted(name for name in os.listdir(layout.logs) if _LOG_NAME.fullmatch(name))


def _is_alive(layout: Layout, log_name: str) -> bool:
    folder = layout.temporary / log_name[:16]
    try:
        fd = take_dead(folder, make_lock=False)
    except PermissionError as error:
        layout.barred.note(folder, error)
        return True
    if fd is not None:
        os.close(fd)
        return False
    return (folder / ".lock").exists()


def _replay_all(layout: Layout) -> int:
    shown = 0
    logs = _logs(layout)
    for first in range(0, len(logs), REPLAY_LOGS_MAX):
        with _dead(layout, logs[first : first + REPLAY_LOGS_MAX]) as dead:
            for group in _groups(layout, dead):
                shown += _replay_group(layout, group)
    _sweep_writers(layout)
    return shown


@contextlib.contextmanager
def _dead(layout: Layout, logs: Sequence[str]) -> Generator[list[Path]]:
    """Yield the logs whose writers are dead, each locked against other replays."""
    locks: dict[str, int] = {}  # by writer; one may have left several logs
    try:
        for name in logs:
            folder = layout.temporary / name[:16]
            if (
                folder.name not in locks
                and folder.is_dir()
                and (fd := _take_writer(layout, folder)) is not None
            ):
                locks[folder.name] = fd
        yield [
            layout.logs / name
            for name in logs
            if name[:16] in locks or not (layout.temporary / name[:16]).is_dir()
        ]
    finally:
        for fd in locks.values():
            os.close(fd)


def _take_writer(layout: Layout, folder: Path) -> int | None:
    """Lock a dead writer's folder; None while it lives, and if only another user may open it."""
    try:
        return take_dead(folder)
    except PermissionError as error:
        layout.barred.note(folder, error)
        return None


class _Log(NamedTuple):
    """A dead writer's log, and the names to look for in the folders."""

    path: Path
    trusted: bool
    wanted: frozenset[str]  # stems


def _groups(layout: Layout, logs: Sequence[Path]) -> Iterator[list[_Log]]:
    """Yield groups of logs that share a scan of the folders, each with a bounded number of names.

    One scan per log would cost logs times waiting files: 50 logs and 200,000 files took 48 s.
    """
    group: list[_Log] = []
    names = 0
    for path in logs:
        try:
            contents = parse_log(_read(path))
        except PermissionError as error:
            layout.barred.note(path, error)
            continue
        trusted = _is_trusted(layout, contents, path)
        wanted = frozenset(
            stem_of(record.name) for record in _records(contents, trusted) if not _is_signature(record)
        )
        if group and names + len(wanted) > REPLAY_NAMES_MAX:
            yield group
            group, names = [], 0
        group.append(_Log(path, trusted, wanted))
        names += len(wanted)
    if group:
        yield group


def _replay_group(layout: Layout, group: Sequence[_Log]) -> int:
    """Show the events that are in these logs and in no folder, make all of them durable, then remove the logs."""
    shown = 0
    holds_records = False
    for log, missing, damaged in _surveys(layout, group):
        contents = parse_log(_read(log.path))
        for torn in contents.torn:
            _quarantine(layout, log.path, torn)
        if missing or damaged:
            _show(layout, missing, damaged)
        holds_records = holds_records or bool(contents.records)
        shown += len(missing)
    if holds_records:
        try:
            sync_filesystem(layout.root_fd)
        except OSError:
            for log in group:
                mark_unsynced(log.path)
            raise
    for log in group:
        log.path.unlink(missing_ok=True)
    fsync_folder(layout.logs)
    return shown


def _is_trusted(layout: Layout, contents: LogContents, path: Path) -> bool:
    """Whether a log's marks are true.

    On the same boot and the same mount they are: what was visible is still there or was consumed. After a power cut
    nothing is certain. If a sync of these files has failed, the content of the page cache proves nothing.
    """
    here = (boot_id(), mount_id(layout.root_fd))
    return bool(contents.mount) and (contents.boot, contents.mount) == here and not _is_doubtful(path)


def _is_doubtful(path: Path) -> bool:
    return path.name.endswith(UNSYNCED_SUFFIX)


def _is_signature(record: Record) -> bool:
    return record.name.endswith(SIGNATURE_SUFFIX)


def _records(contents: LogContents, trusted: bool) -> list[Record]:
    """Return the records to look for: all of a log that is not trusted, else the unmarked ones, because the writer may
    have died between the rename and the mark."""
    return contents.unmarked() if trusted else contents.records


def _surveys(
    layout: Layout, group: Sequence[_Log]
) -> Iterator[tuple[_Log, list[Record], list[tuple[Path, Record]]]]:
    """Yield each log with its records that are in no folder, and those whose file has lost its content.

    One scan of the four folders serves all logs. Only one log's records are in memory at a time.
    """
    found = _found(layout, set[str]().union(*(log.wanted for log in group)))
    for log in group:
        records = _records(parse_log(_read(log.path)), log.trusted)
        places = {record.name: _place(layout, record, found) for record in records}
        missing = [record for record in records if places[record.name] is None]
        present = [(path, record) for record in records if (path := places[record.name]) is not None]
        yield log, missing, [] if log.trusted else _damaged(layout, present, doubtful=_is_doubtful(log.path))


def _place(layout: Layout, record: Record, found: Mapping[str, Path]) -> Path | None:
    if _is_signature(record):
        signature = layout.signatures / record.name
        return signature if signature.exists() else None
    return found.get(stem_of(record.name))


def _damaged(
    layout: Layout, present: Sequence[tuple[Path, Record]], *, doubtful: bool
) -> list[tuple[Path, Record]]:
    """Return the files that do not hold the acknowledged content, with their present paths.

    A file that a living worker has moved since the scan is looked for once more. Restored at its old place it
    would be there twice.
    """
    damaged: list[tuple[Path, Record]] = []
    moved: dict[str, Record] = {}
    for path, record in present:
        if not path.exists():
            moved[stem_of(record.name)] = record
        elif doubtful or _read(path) != record.content + b"\n":
            damaged.append((path, record))
    again = _found(layout, set(moved)) if moved else {}
    damaged += [
        (path, moved[stem])
        for stem, path in again.items()
        if path.exists() and (doubtful or _read(path) != moved[stem].content + b"\n")
    ]
    return damaged


def _found(layout: Layout, wanted: set[str]) -> dict[str, Path]:
    """Return the paths of the stems that are in one of the four folders.

    Folders are read in the direction in which events move, and the first ones once more at the end, so that
    an event that moves meanwhile is not missed. An event that is missed all the same is delivered twice, not lost.
    """
    found: dict[str, Path] = {}
    if not wanted:
        return found
    for state in (State.QUEUE, State.IN_FLIGHT, State.DONE, State.POISON, State.IN_FLIGHT, State.QUEUE):
        for entry in walk_events(layout.folder(state)):
            stem = stem_of(entry.name)
            if stem in wanted:
                found[stem] = Path(entry.path)
        if len(found) == len(wanted):
            break
    return found


def _show(layout: Layout, missing: Sequence[Record], damaged: Sequence[tuple[Path, Record]]) -> None:
    """Make missing files and restore damaged ones. Raises OSError: then the log stays."""
    owner = Owner(layout.temporary, new_writer())
    try:
        for path, record in damaged:
            write_file("restored", record.content + b"\n", dir_fd=owner.fd)
            os.rename("restored", path, src_dir_fd=owner.fd)
        publisher = Publisher(layout, owner, Stamps(), sync=False)
        for first in range(0, len(missing), BUCKET_FILES_MAX):
            publisher.publish(missing[first : first + BUCKET_FILES_MAX], [])
    finally:
        owner.close()


def _quarantine(layout: Layout, log: Path, torn: Torn) -> None:
    """Keep a piece that is no record, not under the name of an event: it was never acknowledged as one."""
    path = layout.folder(State.POISON) / f"{log.stem}-{torn.offset}.torn"
    reason = {
        "reason": "no whole record: a write was cut short, or damage",
        "log": log.name,
        "offset": torn.offset,
    }
    write_file_durable(path, torn.data + b"\n")
    write_file_durable(path.with_name(path.name + ".reason.json"), json.dumps(reason).encode() + b"\n")


def _sweep_writers(layout: Layout) -> None:
    """Remove half-written files of dead writers, whose logs have been replayed before."""
    sweep_newborns(layout.temporary)
    living_logs = {name[:16] for name in _logs(layout)}
    for name in os.listdir(layout.temporary):
        folder = layout.temporary / name
        if not _WRITER.fullmatch(name) or name in living_logs:
            continue  # a foreign producer may keep its own temporary files here
        fd = _take_writer(layout, folder)
        if fd is not None:
            _empty(folder)
            remove_folder(folder)
            os.close(fd)


def _empty(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            _empty(Path(entry.path))
            os.rmdir(entry.path)
        elif entry.name != ".lock":
            os.unlink(entry.path)


def _read(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read()
