"""Retention of finished events: the files of a day are merged into one or a few, and old days are removed.

Only whole UTC days before today are touched. A file whose event is still in a log stays: a replay after a
power cut would otherwise not find it and deliver it again. Poison is never touched; people decide about it.
Folders are held open while files in them are read or removed: no link that appears meanwhile is followed.
"""

import contextlib
import datetime
import filecmp
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from watchbill.files.atomic import (
    NotAFile,
    make_folder,
    open_folder,
    open_regular,
    read_regular,
    rename_noreplace,
    writing,
)
from watchbill.spool.faults import disk_fault
from watchbill.spool.layout import Layout, State, events_inside, reached
from watchbill.spool.limits import BUNDLE_BYTES_MAX, BUNDLE_LINES_MAX, KEEP_DONE_S
from watchbill.spool.names import is_event, lines_of, stem_of
from watchbill.spool.publish import SIGNATURE_SUFFIX
from watchbill.spool.queue import Spool
from watchbill.spool.replay import log_names, replay_dead

__all__ = ["Collected", "gc"]

_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[.].*)?", re.ASCII)


@dataclass(slots=True)
class Collected:
    """What a collection did; counts are of events."""

    compacted: int = 0
    removed: int = 0
    archived: int = 0


def gc(
    spool: Spool, *, keep_done_s: float = KEEP_DONE_S, compact: bool = True, archive: Path | None = None
) -> Collected:
    """Compact finished days, then remove (or move to `archive`) what is older than `keep_done_s`.

    Safe while workers run, and when it is killed at any moment. Raises SpoolFull or SpoolBroken.
    """
    result = Collected()
    layout = spool.layout
    try:
        layout.check()
        replay_dead(layout)
        held = log_names(layout)
        with layout.entered(State.DONE.value) as done:
            for name in _days(done):
                over = _age_s(done, name) > keep_done_s
                if _is_folder(done, name):
                    if over or compact:
                        _collect_day(layout, done, name, held, result, archive=archive, over=over)
                elif over and is_event(name) and stem_of(name) not in held:
                    _put_away(done, name, archive, result)
    except OSError as error:
        raise disk_fault(error, "collect finished events") from error
    return result


def _days(done: int) -> list[str]:
    """Return the folders and files of finished days, oldest first; files without a date count by their mtime."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    names = sorted(name for name in os.listdir(done) if not name.startswith("."))
    return [name for name in names if not _DATE.fullmatch(name) or name[:10] < today]


def _age_s(done: int, name: str) -> float:
    """Return the seconds since a day ended; for a file without a date in its name, since its mtime."""
    match = _DATE.fullmatch(name)
    try:
        if match is not None:
            day = datetime.datetime.fromisoformat(match[1]).replace(tzinfo=datetime.UTC)
            return time.time() - day.timestamp() - 86_400
        return time.time() - os.stat(name, dir_fd=done, follow_symlinks=False).st_mtime
    except (ValueError, FileNotFoundError):
        return 0.0


def _is_folder(done: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=done, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _collect_day(
    layout: Layout,
    done: int,
    name: str,
    held: set[str],
    result: Collected,
    *,
    over: bool,
    archive: Path | None,
) -> None:
    with reached(done, f"{name}/") as (day, _):
        found = sorted((os.path.basename(path), path) for path in events_inside(day))
        paths = [path for event, path in found if stem_of(event) not in held]
        if over and archive is None:
            removed = sum(map(lines_of, paths))
            _unlink(layout, day, paths)
            result.removed += removed
        else:
            for group in _groups(day, paths):
                bundle = _compact(done, name, day, group)
                result.compacted += lines_of(bundle)
                _unlink(layout, day, group)
                if over:
                    _put_away(done, bundle, archive, result)
        for batch in os.listdir(day):
            with contextlib.suppress(OSError):  # only empty folders are removed: of a batch, and of the day
                os.rmdir(batch, dir_fd=day)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=done)


def _groups(day: int, paths: list[str]) -> Iterator[list[str]]:
    """Yield a day's files in groups that fit into one bundle, so that it can be requeued. Other entries stay."""
    group: list[str] = []
    size = lines = 0
    for path in paths:
        try:
            with reached(day, path) as (folder, name):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size > BUNDLE_BYTES_MAX:
            continue
        more, size_more = lines_of(path), status.st_size + 1
        if group and (size + size_more > BUNDLE_BYTES_MAX or lines + more > BUNDLE_LINES_MAX):
            yield group
            group, size, lines = [], 0, 0
        group.append(path)
        size, lines = size + size_more, lines + more
    if group:
        yield group


def _compact(done: int, date: str, day: int, paths: list[str]) -> str:
    """Write these events into one file, durably, and return its name. Does not remove the single files."""
    temporary = f".{date}.{os.getpid()}"
    lines = 0
    with writing(temporary, dir_fd=done) as target:
        for path in paths:
            try:
                with reached(day, path) as (folder, name):
                    data = read_regular(name, dir_fd=folder, bytes_max=BUNDLE_BYTES_MAX)
            except (NotAFile, FileNotFoundError):
                continue
            data = data if data.endswith(b"\n") else data + b"\n"
            target.write(data)
            lines += data.count(b"\n")
    bundle = _free(done, f"{date}.n{lines}.bundle.jsonl")
    os.rename(temporary, bundle, src_dir_fd=done, dst_dir_fd=done)
    os.fsync(done)
    return bundle


def _free(folder: int, wanted: str) -> str:
    """Return a name that no earlier collection of the same day, and no other spool, has used."""
    day, dot, rest = wanted.partition(".")
    name, number = wanted, 1
    while _is_taken(folder, name):
        number += 1
        name = f"{day}.{number}{dot}{rest}"
    return name


def _is_taken(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlink(layout: Layout, day: int, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError), reached(day, path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    with contextlib.suppress(FileNotFoundError), layout.entered(layout.signatures.name) as signatures:
        for path in paths:
            stem = stem_of(os.path.basename(path))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{stem}{SIGNATURE_SUFFIX}", dir_fd=signatures)


def _place(temporary: Path, wanted: Path) -> None:
    """Give an archived file its name, durably. Another spool may archive a file of the same name at this moment."""
    with open_folder(wanted.parent) as folder:
        while True:
            if wanted.is_file() and filecmp.cmp(temporary, wanted, shallow=False):
                temporary.unlink()  # the same content: we were killed between this and the removal
                break
            with contextlib.suppress(FileExistsError):
                name = _free(folder, wanted.name)
                rename_noreplace(temporary.name, name, src_dir_fd=folder, dst_dir_fd=folder)
                break
        os.fsync(folder)


def _put_away(done: int, name: str, archive: Path | None, result: Collected) -> None:
    if archive is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=done)
        result.removed += lines_of(name)
        return
    try:
        found = open_regular(name, dir_fd=done)
    except NotAFile:
        return  # a foreign entry: it stays, as it does in the folder of a day
    make_folder(archive)
    temporary = archive / f".{name}.{os.urandom(4).hex()}"
    with open(found, "rb") as source, writing(temporary) as target:
        shutil.copyfileobj(source, target)
    _place(temporary, archive / name)
    os.unlink(name, dir_fd=done)
    result.archived += lines_of(name)
