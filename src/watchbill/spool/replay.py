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
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from watchbill.files.atomic import open_folder, open_shared, put_file, sync_filesystem, write_file
from watchbill.files.disk import DISK_FAULTS, mount_id
from watchbill.files.host import boot_id
from watchbill.files.limits import WRITER_SILENCE_S_MAX
from watchbill.files.lock import lock_within
from watchbill.files.owner import LOCK_NAME, Owner, remove_folder, sweep_newborns, take_dead
from watchbill.spool.faults import SpoolLayout
from watchbill.spool.layout import Layout, State, events_inside, reached
from watchbill.spool.limits import BUCKET_FILES_MAX, REPLAY_LOGS_MAX, REPLAY_NAMES_MAX, REPLAY_WAIT_S
from watchbill.spool.log import UNSYNCED_SUFFIX, LogContents, Record, Torn, mark_unsynced, parse_log
from watchbill.spool.names import Stamps, new_writer, stem_of
from watchbill.spool.publish import SIGNATURE_SUFFIX, Publisher

__all__ = ["log_names", "replay_dead", "unreplayed"]

_LOG_NAME = re.compile(r"([0-9a-f]{16})-\d{19}(?:\.doubt)?\.jsonl", re.ASCII)
_WRITER = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LOCK = ".replay.lock"
_TEMPORARY = "queue/.tmp"
_CANNOT_WRITE = DISK_FAULTS | {errno.EACCES}


def replay_dead(layout: Layout, *, wait: bool = False) -> int:
    """Replay every dead writer's log and return how many events became visible.

    Returns 0 on a disk that cannot be written now. While another process replays it returns 0 or, with `wait`,
    waits: a consumer that starts must not lease a file whose content is about to be restored.
    """
    layout.check()
    with layout.entered(layout.logs.name) as logs, layout.entered(_TEMPORARY) as temporary:
        folders = _Folders(layout, logs, temporary)
        # Whether any writer has left a folder or a log: the common case costs two listings.
        return _replay_locked(folders, wait=wait) if _logs(logs) or os.listdir(temporary) else 0


class _Folders(NamedTuple):
    """A spool whose logs and folders of writers are held open: no link that appears meanwhile is followed."""

    layout: Layout
    logs: int
    temporary: int


def _replay_locked(folders: _Folders, *, wait: bool) -> int:
    layout = folders.layout
    try:
        lock = open_shared(_LOCK, os.O_RDWR, dir_fd=folders.logs)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            layout.barred.note(layout.logs / _LOCK, error)
            return 0
        raise
    try:
        return _replay_all(folders) if lock_within(lock, REPLAY_WAIT_S if wait else 0.0) else 0
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return 0
        raise
    finally:
        os.close(lock)


def unreplayed(layout: Layout) -> int:
    """Count the acknowledged events of dead writers that only their logs hold. Changes nothing."""
    with layout.entered(layout.logs.name) as logs, layout.entered(_TEMPORARY) as temporary:
        folders = _Folders(layout, logs, temporary)
        names = [name for name in _logs(logs) if not _is_alive(folders, name)]
        return sum(
            len(missing) for group in _groups(folders, names) for _, missing, _ in _surveys(folders, group)
        )


def log_names(layout: Layout) -> set[str]:
    """Return the stems of all events that some log still holds: their files must not be removed yet."""
    stems: set[str] = set()
    with layout.entered(layout.logs.name) as logs:
        for name in _logs(logs):
            stems.update(stem_of(record.name) for record in parse_log(_read(logs, name)).records)
    return stems


def _logs(logs: int) -> list[str]:
    return sorted(name for name in os.listdir(logs) if _LOG_NAME.fullmatch(name))


def _is_alive(folders: _Folders, log_name: str) -> bool:
    writer = log_name[:16]
    try:
        fd = _taken(folders, writer, make_lock=False)
    except PermissionError as error:
        folders.layout.barred.note(folders.layout.temporary / writer, error)
        return True
    if fd is not None:
        os.close(fd)
        return False
    return _is_there(folders.temporary, f"{writer}/{LOCK_NAME}")


def _replay_all(folders: _Folders) -> int:
    shown = 0
    logs = _logs(folders.logs)
    for first in range(0, len(logs), REPLAY_LOGS_MAX):
        with _dead(folders, logs[first : first + REPLAY_LOGS_MAX]) as dead:
            for group in _groups(folders, dead):
                shown += _replay_group(folders, group)
    _sweep_writers(folders)
    return shown


@contextlib.contextmanager
def _dead(folders: _Folders, logs: Sequence[str]) -> Generator[list[str]]:
    """Yield the logs whose writers are dead, each locked against other replays."""
    locks: dict[str, int] = {}  # by writer; one may have left several logs
    try:
        for name in logs:
            writer = name[:16]
            if (
                writer not in locks
                and _is_there(folders.temporary, writer)
                and (fd := _take_writer(folders, writer)) is not None
            ):
                locks[writer] = fd
        yield [name for name in logs if name[:16] in locks or not _is_there(folders.temporary, name[:16])]
    finally:
        for fd in locks.values():
            os.close(fd)


def _take_writer(folders: _Folders, writer: str) -> int | None:
    """Lock a dead writer's folder; None while it lives, and if only another user may open it."""
    try:
        return _taken(folders, writer)
    except PermissionError as error:
        folders.layout.barred.note(folders.layout.temporary / writer, error)
        return None


def _taken(folders: _Folders, writer: str, *, make_lock: bool = True) -> int | None:
    witness = folders.layout.witness
    return take_dead(
        writer, make_lock=make_lock, dir_fd=folders.temporary, witness=witness, silence_s=WRITER_SILENCE_S_MAX
    )


def _is_there(folder: int, path: str) -> bool:
    try:
        with reached(folder, path) as (inside, name):
            os.stat(name, dir_fd=inside, follow_symlinks=False)
    except (FileNotFoundError, SpoolLayout):
        return False
    return True


class _Log(NamedTuple):
    """A dead writer's log, and the names to look for in the folders."""

    name: str
    trusted: bool
    wanted: frozenset[str]  # stems


def _groups(folders: _Folders, logs: Sequence[str]) -> Iterator[list[_Log]]:
    """Yield groups of logs that share a scan of the folders, each with a bounded number of names.

    One scan per log would cost logs times waiting files: 50 logs and 200,000 files took 48 s.
    """
    group: list[_Log] = []
    names = 0
    for name in logs:
        try:
            contents = parse_log(_read(folders.logs, name))
        except PermissionError as error:
            folders.layout.barred.note(folders.layout.logs / name, error)
            continue
        trusted = _is_trusted(folders.layout, contents, name)
        wanted = frozenset(
            stem_of(record.name) for record in _records(contents, trusted) if not _is_signature(record)
        )
        if group and names + len(wanted) > REPLAY_NAMES_MAX:
            yield group
            group, names = [], 0
        group.append(_Log(name, trusted, wanted))
        names += len(wanted)
    if group:
        yield group


def _replay_group(folders: _Folders, group: Sequence[_Log]) -> int:
    """Show the events that are in these logs and in no folder, make all of them durable, then remove the logs."""
    shown = 0
    holds_records = False
    layout, logs = folders.layout, folders.logs
    for log, missing, damaged in _surveys(folders, group):
        contents = parse_log(_read(logs, log.name))
        for torn in contents.torn:
            _quarantine(layout, log.name, torn)
        if missing or damaged:
            _show(layout, missing, damaged)
        holds_records = holds_records or bool(contents.records)
        shown += len(missing)
    if holds_records:
        try:
            sync_filesystem(layout.root_fd)
        except OSError:
            for log in group:
                mark_unsynced(log.name, dir_fd=logs)
            raise
    for log in group:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(log.name, dir_fd=logs)
    os.fsync(logs)
    return shown


def _is_trusted(layout: Layout, contents: LogContents, log: str) -> bool:
    """Whether a log's marks are true.

    On the same boot and the same mount they are: what was visible is still there or was consumed. After a power cut
    nothing is certain. If a sync of these files has failed, the content of the page cache proves nothing.
    """
    here = (boot_id(), mount_id(layout.root_fd))
    return bool(contents.mount) and (contents.boot, contents.mount) == here and not _is_doubtful(log)


def _is_doubtful(log: str) -> bool:
    return log.endswith(UNSYNCED_SUFFIX)


def _is_signature(record: Record) -> bool:
    return record.name.endswith(SIGNATURE_SUFFIX)


def _records(contents: LogContents, trusted: bool) -> list[Record]:
    """Return the records to look for: all of a log that is not trusted, else the unmarked ones, because the writer may
    have died between the rename and the mark."""
    return contents.unmarked() if trusted else contents.records


def _surveys(
    folders: _Folders, group: Sequence[_Log]
) -> Iterator[tuple[_Log, list[Record], list[tuple[str, Record]]]]:
    """Yield each log with its records that are in no folder, and those whose file has lost its content.

    One scan of the four folders serves all logs. Only one log's records are in memory at a time.
    """
    layout = folders.layout
    found = _found(layout, set[str]().union(*(log.wanted for log in group)))
    for log in group:
        records = _records(parse_log(_read(folders.logs, log.name)), log.trusted)
        places = {record.name: _place(layout, record, found) for record in records}
        missing = [record for record in records if places[record.name] is None]
        present = [(path, record) for record in records if (path := places[record.name]) is not None]
        yield log, missing, [] if log.trusted else _damaged(layout, present, doubtful=_is_doubtful(log.name))


def _place(layout: Layout, record: Record, found: Mapping[str, str]) -> str | None:
    """Where the file of a record is, from the root of the spool on."""
    if _is_signature(record):
        signature = f"{layout.signatures.name}/{record.name}"
        return signature if _is_there(layout.root_fd, signature) else None
    return found.get(stem_of(record.name))


def _damaged(
    layout: Layout, present: Sequence[tuple[str, Record]], *, doubtful: bool
) -> list[tuple[str, Record]]:
    """Return the files that do not hold the acknowledged content, with their present paths.

    A file that a living worker has moved since the scan is looked for once more. Restored at its old place it
    would be there twice.
    """
    damaged: list[tuple[str, Record]] = []
    moved: dict[str, Record] = {}
    for path, record in present:
        if not _is_there(layout.root_fd, path):
            moved[stem_of(record.name)] = record
        elif doubtful or _read(layout.root_fd, path) != record.content + b"\n":
            damaged.append((path, record))
    again = _found(layout, set(moved)) if moved else {}
    damaged += [
        (path, moved[stem])
        for stem, path in again.items()
        if _is_there(layout.root_fd, path)
        and (doubtful or _read(layout.root_fd, path) != moved[stem].content + b"\n")
    ]
    return damaged


def _found(layout: Layout, wanted: set[str]) -> dict[str, str]:
    """Return the paths, from the root on, of the stems that are in one of the four folders.

    Folders are read in the direction in which events move, and the first ones once more at the end, so that
    an event that moves meanwhile is not missed. An event that is missed all the same is delivered twice, not lost.
    """
    found: dict[str, str] = {}
    if not wanted:
        return found
    for state in (State.QUEUE, State.IN_FLIGHT, State.DONE, State.POISON, State.IN_FLIGHT, State.QUEUE):
        with contextlib.suppress(FileNotFoundError, PermissionError), layout.entered(state.value) as folder:
            for path in events_inside(folder):
                stem = stem_of(os.path.basename(path))
                if stem in wanted:
                    found[stem] = f"{state.value}/{path}"
        if len(found) == len(wanted):
            break
    return found


def _show(layout: Layout, missing: Sequence[Record], damaged: Sequence[tuple[str, Record]]) -> None:
    """Make missing files and restore damaged ones. Raises OSError: then the log stays."""
    owner = Owner(layout.temporary, new_writer(), beats=layout.is_shared)
    try:
        for path, record in damaged:
            write_file("restored", record.content + b"\n", dir_fd=owner.fd)
            with reached(layout.root_fd, path) as (folder, name):
                os.rename("restored", name, src_dir_fd=owner.fd, dst_dir_fd=folder)
        publisher = Publisher(layout, owner, Stamps(), sync=False)
        for first in range(0, len(missing), BUCKET_FILES_MAX):
            publisher.publish(missing[first : first + BUCKET_FILES_MAX], [])
    finally:
        owner.close()


def _quarantine(layout: Layout, log: str, torn: Torn) -> None:
    """Keep a piece that is no record, not under the name of an event: it was never acknowledged as one."""
    name = f"{log.removesuffix('.jsonl')}-{torn.offset}.torn"
    reason = {
        "reason": "no whole record: a write was cut short, or damage",
        "log": log,
        "offset": torn.offset,
    }
    with layout.entered(State.POISON.value) as poison:
        for each, data in ((name, torn.data), (f"{name}.reason.json", json.dumps(reason).encode())):
            put_file(
                each, f".{each}.{os.getpid()}.{os.urandom(4).hex()}", data + b"\n", dir_fd=poison, sync=True
            )


def _sweep_writers(folders: _Folders) -> None:
    """Remove half-written files of dead writers, whose logs have been replayed before."""
    sweep_newborns(folders.temporary, shared=folders.layout.is_shared)
    living_logs = {name[:16] for name in _logs(folders.logs)}
    for name in os.listdir(folders.temporary):
        if not _WRITER.fullmatch(name) or name in living_logs:
            continue  # a foreign producer may keep its own temporary files here
        fd = _take_writer(folders, name)
        if fd is not None:
            with open_folder(name, own=True, dir_fd=folders.temporary) as folder:
                _empty(folder)
            remove_folder(name, dir_fd=folders.temporary)
            os.close(fd)


def _empty(folder: int) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                with open_folder(entry.name, own=True, dir_fd=folder) as inner:
                    _empty(inner)
                os.rmdir(entry.name, dir_fd=folder)
            elif entry.name != LOCK_NAME:
                os.unlink(entry.name, dir_fd=folder)


def _read(folder: int, path: str) -> bytes:
    try:
        with reached(folder, path) as (inside, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
    except FileNotFoundError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read()
