"""Replay: what dead writers acknowledged and did not live to show.

Reads the logs of writers that hold no lock any more, finds which of their events are in none of the four
folders, makes those visible, makes everything durable, and only then removes the log. After a power cut a
file may be there by name with its content gone; it is written again where it lies. Pieces that are no
record are kept in queue-poison/ as `.torn` files with their offset. One replayer at a time; a living
writer's log is never touched. A log that cannot be finished now (disk full) stays for the next time.
"""

import errno
import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from watchbill.spool.atomic import fsync_folder, sync_filesystem, write_file, write_file_durable
from watchbill.spool.host import boot_id, mount_id
from watchbill.spool.layout import Layout, State, walk_events
from watchbill.spool.limits import BUCKET_FILES_MAX, REPLAY_WAIT_S
from watchbill.spool.log import DOUBT_SUFFIX, LogContents, Record, Torn, doubt, parse_log
from watchbill.spool.names import Stamps, new_writer, stem_of
from watchbill.spool.owner import Owner, remove_folder, sweep_newborns, take_dead
from watchbill.spool.publish import SIGNATURE_SUFFIX, Publisher

__all__ = ["log_names", "replay_dead", "unreplayed"]

_LOG_NAME = re.compile(r"([0-9a-f]{16})-\d{19}(?:\.doubt)?\.jsonl", re.ASCII)
_WRITER = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LOCK = ".replay.lock"
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES})


def replay_dead(layout: Layout, *, wait: bool = False) -> int:
    """Replay every dead writer's log and return how many events became visible.

    Returns 0 on a disk that cannot be written now. While somebody else replays it returns 0 or, with `wait`,
    waits: a consumer that starts must not lease a file whose content is about to be restored.
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
    count = 0
    for name in _logs(layout):
        if not _is_alive(layout, name):
            contents = parse_log(_read(layout.logs / name))
            count += len(_survey(layout, contents, doubtful=False).missing)
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
    survey = _survey(layout, contents, doubtful=path.name.endswith(DOUBT_SUFFIX))
    if survey.missing or survey.damaged:
        _show(layout, survey)
    if contents.records:
        try:
            sync_filesystem(layout.root_fd)
        except OSError:
            doubt(path)
            raise
    path.unlink(missing_ok=True)
    fsync_folder(layout.logs)
    return len(survey.missing)


@dataclass(slots=True)
class _Survey:
    """What a log holds that the folders do not."""

    missing: list[Record]
    damaged: list[tuple[Path, Record]]


def _survey(layout: Layout, contents: LogContents, *, doubtful: bool) -> _Survey:
    """Compare a log with the folders.

    On the same boot and the same mount marks are true: what was visible is still there or was consumed.
    After a power cut nothing is certain, so all records are looked for in all four folders, and so is their
    content. The unmarked ones always are: the writer may have died between the rename and the mark. If a
    sync of these files has failed (`doubtful`), what the page cache shows proves nothing: all are damaged.
    """
    here = (boot_id(), mount_id(layout.root_fd))
    trusted = bool(contents.mount) and (contents.boot, contents.mount) == here and not doubtful
    records = contents.unmarked() if trusted else contents.records
    events = [record for record in records if not record.name.endswith(SIGNATURE_SUFFIX)]
    found = _found(layout, {stem_of(record.name) for record in events}) if events else {}
    for record in records:
        signature = layout.signatures / record.name
        if record.name.endswith(SIGNATURE_SUFFIX) and signature.exists():
            found[record.name] = signature
    survey = _Survey([record for record in records if stem_of(record.name) not in found], [])
    if not trusted:
        present = [
            (found[stem_of(record.name)], record) for record in records if stem_of(record.name) in found
        ]
        survey.damaged = [each for each in present if doubtful or _read(each[0]) != each[1].content + b"\n"]
    return survey


def _found(layout: Layout, wanted: set[str]) -> dict[str, Path]:
    """Return where those of these stems lie that are in any of the four folders.

    Folders are read in the direction in which events move, and the first ones once more at the end, so that
    an event that moves meanwhile is not missed. One missed all the same would only be delivered twice.
    """
    found: dict[str, Path] = {}
    for state in (State.QUEUE, State.IN_FLIGHT, State.DONE, State.POISON, State.IN_FLIGHT, State.QUEUE):
        for entry in walk_events(layout.folder(state)):
            stem = stem_of(entry.name)
            if stem in wanted:
                found[stem] = Path(entry.path)
        if len(found) == len(wanted):
            break
    return found


def _show(layout: Layout, survey: _Survey) -> None:
    """Make missing files and restore damaged ones. Raises OSError: then the log stays."""
    owner = Owner(layout.temporary, new_writer())
    try:
        for path, record in survey.damaged:
            write_file("restored", record.content + b"\n", dir_fd=owner.fd)
            os.rename("restored", path, src_dir_fd=owner.fd)
        publisher = Publisher(layout, owner, Stamps(), sync=False)
        for first in range(0, len(survey.missing), BUCKET_FILES_MAX):
            publisher.publish(survey.missing[first : first + BUCKET_FILES_MAX], [])
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
