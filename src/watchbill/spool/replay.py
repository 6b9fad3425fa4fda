"""Replay: what dead writers acknowledged and did not live to show.

Reads the logs of writers that hold no lock any more, finds which of their events are in none of the four
folders, makes those visible, makes everything durable, and only then removes the log. Pieces that are no
record are kept in queue-poison/ as `.torn` files with their offset. One replayer at a time; a living
writer's log is never touched. A log that cannot be finished now (disk full) stays for the next time.
"""

import errno
import fcntl
import json
import os
import re
from pathlib import Path

from watchbill.spool.atomic import fsync_folder, sync_filesystem, write_file_durable
from watchbill.spool.host import boot_id, mount_id
from watchbill.spool.layout import Layout, State, walk_events
from watchbill.spool.limits import BUCKET_FILES_MAX
from watchbill.spool.log import LogContents, Record, Torn, parse_log
from watchbill.spool.names import Stamps, is_own, new_writer, stem_of
from watchbill.spool.owner import Owner, remove_folder, sweep_newborns, take_dead
from watchbill.spool.publish import SIGNATURE_SUFFIX, Publisher

__all__ = ["log_names", "replay_dead", "unreplayed"]

_LOG_NAME = re.compile(r"([0-9a-f]{16})-\d{19}\.jsonl", re.ASCII)
_WRITER = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LOCK = ".replay.lock"
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES})


def replay_dead(layout: Layout) -> int:
    """Replay every dead writer's log and return how many events became visible.

    Returns 0 while somebody else replays, and on a disk that cannot be written now.
    """
    if not _has_work(layout):
        return 0
    try:
        lock = os.open(layout.logs / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return 0
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _replay_all(layout)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return 0
        raise
    finally:
        os.close(lock)


def unreplayed(layout: Layout) -> int:
    """Count the acknowledged events of dead writers that only their logs hold. Changes nothing."""
    count = 0
    for name in _logs(layout):
        if not _is_alive(layout, name):
            contents = parse_log(_read(layout.logs / name))
            count += len(_missing(layout, contents))
    return count


def log_names(layout: Layout) -> set[str]:
    """Return the stems of all events that some log still holds: their files must not be removed yet."""
    stems: set[str] = set()
    for name in _logs(layout):
        stems.update(stem_of(record.name) for record in parse_log(_read(layout.logs / name)).records)
    return stems


def _has_work(layout: Layout) -> bool:
    """Whether there is any writer's trace at all: the common case costs two listings."""
    return bool(_logs(layout)) or bool(os.listdir(layout.temporary))


def _logs(layout: Layout) -> list[str]:
    return sorted(name for name in os.listdir(layout.logs) if _LOG_NAME.fullmatch(name))


def _is_alive(layout: Layout, log_name: str) -> bool:
    folder = layout.temporary / log_name[:16]
    fd = take_dead(folder, make_lock=False)
    if fd is not None:
        os.close(fd)
        return False
    return (folder / ".lock").exists()


def _replay_all(layout: Layout) -> int:
    shown = 0
    for name in _logs(layout):
        folder = layout.temporary / name[:16]
        fd = take_dead(folder) if folder.is_dir() else -1
        if fd is None:
            continue
        try:
            shown += _replay_one(layout, layout.logs / name)
        finally:
            if fd >= 0:
                os.close(fd)
    _sweep_writers(layout)
    return shown


def _replay_one(layout: Layout, path: Path) -> int:
    contents = parse_log(_read(path))
    for torn in contents.torn:
        _quarantine(layout, path, torn)
    missing = _missing(layout, contents)
    if missing:
        _show(layout, missing)
    if contents.records:
        sync_filesystem(layout.root_fd)
    path.unlink(missing_ok=True)
    fsync_folder(layout.logs)
    return len(missing)


def _missing(layout: Layout, contents: LogContents) -> list[Record]:
    """Return the records whose files have to be made.

    On the same boot and the same mount marks are true: what was visible is still there or was consumed.
    After a power cut nothing is certain, so all records are looked for in all four folders. The unmarked
    ones always are: the writer may have died between the rename and the mark.
    """
    trusted = bool(contents.mount) and (contents.boot, contents.mount) == (
        boot_id(),
        mount_id(layout.root_fd),
    )
    doubtful = contents.unmarked() if trusted else contents.records
    records = [record for record in doubtful if _is_ours(record.name)]
    events = [record for record in records if not record.name.endswith(SIGNATURE_SUFFIX)]
    signatures = [record for record in records if record.name.endswith(SIGNATURE_SUFFIX)]
    found = _found(layout, {stem_of(record.name) for record in events}) if events else set[str]()
    missing = [record for record in signatures if not (layout.signatures / record.name).exists()]
    return missing + [record for record in events if stem_of(record.name) not in found]


def _is_ours(name: str) -> bool:
    return is_own(name) or is_own(name.removesuffix(SIGNATURE_SUFFIX) + "~0.jsonl")


def _found(layout: Layout, wanted: set[str]) -> set[str]:
    """Return which of these stems are in any of the four folders.

    Folders are read in the direction in which events move, and the first ones once more at the end, so that
    an event that moves meanwhile is not missed. One missed all the same would only be delivered twice.
    """
    found: set[str] = set()
    for state in (State.QUEUE, State.IN_FLIGHT, State.DONE, State.POISON, State.IN_FLIGHT, State.QUEUE):
        found.update(stem_of(entry.name) for entry in walk_events(layout.folder(state)))
        if found >= wanted:
            break
    return found & wanted


def _show(layout: Layout, records: list[Record]) -> None:
    stamps = Stamps()
    owner = Owner(layout.temporary, new_writer())
    try:
        publisher = Publisher(layout, owner, stamps, sync=False)
        for first in range(0, len(records), BUCKET_FILES_MAX):
            publisher.publish(records[first : first + BUCKET_FILES_MAX], [])
    finally:
        owner.close()


def _quarantine(layout: Layout, log: Path, torn: Torn) -> None:
    """Keep a piece that is no record, without the name of an event: it never was acknowledged as one."""
    path = layout.folder(State.POISON) / f"{log.stem}-{torn.offset}.torn"
    reason = {
        "reason": "no whole record: a write cut short, or damage",
        "log": log.name,
        "offset": torn.offset,
    }
    write_file_durable(path, torn.data + b"\n")
    write_file_durable(path.with_name(path.name + ".reason.json"), json.dumps(reason).encode() + b"\n")


def _sweep_writers(layout: Layout) -> None:
    """Remove what dead writers left half-written; the log, if there was one, has been replayed before."""
    sweep_newborns(layout.temporary)
    living_logs = {name[:16] for name in _logs(layout)}
    for name in os.listdir(layout.temporary):
        folder = layout.temporary / name
        if not _WRITER.fullmatch(name) or name in living_logs:
            continue  # a foreign producer may keep its own temporary files here
        fd = take_dead(folder)
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
