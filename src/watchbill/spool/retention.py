"""Retention of finished events: the files of a day are merged into one or a few, and old days are removed.

Only whole UTC days before today are touched. A file whose event is still in a log stays: a replay after a
power cut would otherwise not find it and deliver it again. Poison is never touched; people decide about it.
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
    move_file,
    open_folder,
    open_regular,
    read_regular,
    rename_noreplace,
    writing,
)
from watchbill.spool.faults import disk_fault
from watchbill.spool.layout import Layout, State, walk_events
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
        for path in _days(layout):
            over = _age_s(path) > keep_done_s
            if path.is_dir() and not path.is_symlink() and (over or compact):
                _collect_folder(layout, path, held, result, over=over, archive=archive)
            elif over and is_event(path.name) and stem_of(path.name) not in held:
                _put_away(path, archive, result)
    except OSError as error:
        raise disk_fault(error, "collect finished events") from error
    return result


def _days(layout: Layout) -> list[Path]:
    """Return the folders and files of finished days, oldest first; files without a date count by their mtime."""
    done = layout.folder(State.DONE)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    names = sorted(name for name in os.listdir(done) if not name.startswith("."))
    return [done / name for name in names if not _DATE.fullmatch(name) or name[:10] < today]


def _age_s(path: Path) -> float:
    """Return the seconds since a day ended; for a file without a date in its name, since its mtime."""
    match = _DATE.fullmatch(path.name)
    try:
        if match is not None:
            day = datetime.datetime.fromisoformat(match[1]).replace(tzinfo=datetime.UTC)
            return time.time() - day.timestamp() - 86_400
        return time.time() - path.lstat().st_mtime
    except (ValueError, FileNotFoundError):
        return 0.0


def _collect_folder(
    layout: Layout, folder: Path, held: set[str], result: Collected, *, over: bool, archive: Path | None
) -> None:
    found = sorted((entry.name, os.path.relpath(entry.path, folder)) for entry in walk_events(folder))
    names = [path for name, path in found if stem_of(name) not in held]
    if over and archive is None:
        removed = sum(map(lines_of, names))
        _unlink(layout, folder, names)
        result.removed += removed
    else:
        for group in _groups(folder, names):
            bundle = _compact(folder, group)
            result.compacted += lines_of(bundle.name)
            _unlink(layout, folder, group)
            if over:
                _put_away(bundle, archive, result)
    for path in [*(folder / name for name in os.listdir(folder)), folder]:
        with contextlib.suppress(OSError):  # only empty folders are removed: of a batch, and of the day
            path.rmdir()


def _groups(folder: Path, names: list[str]) -> Iterator[list[str]]:
    """Yield a day's files in groups that fit into one bundle, so that it can be requeued. Other entries stay."""
    group: list[str] = []
    size = lines = 0
    for name in names:
        try:
            status = (folder / name).lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size > BUNDLE_BYTES_MAX:
            continue
        more, size_more = lines_of(name), status.st_size + 1
        if group and (size + size_more > BUNDLE_BYTES_MAX or lines + more > BUNDLE_LINES_MAX):
            yield group
            group, size, lines = [], 0, 0
        group.append(name)
        size, lines = size + size_more, lines + more
    if group:
        yield group


def _compact(folder: Path, names: list[str]) -> Path:
    """Write these events into one file, durably, and return it. Does not remove the single files."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    lines = 0
    with open_folder(folder) as source, writing(temporary) as target:
        for name in names:
            try:
                data = read_regular(name, dir_fd=source, bytes_max=BUNDLE_BYTES_MAX)
            except (NotAFile, FileNotFoundError):
                continue
            data = data if data.endswith(b"\n") else data + b"\n"
            target.write(data)
            lines += data.count(b"\n")
    bundle = _free(folder.with_name(f"{folder.name}.n{lines}.bundle.jsonl"))
    move_file(temporary, bundle)
    return bundle


def _free(wanted: Path) -> Path:
    """Return a name that no earlier collection of the same day, and no other spool, has used."""
    day, dot, rest = wanted.name.partition(".")
    path, number = wanted, 1
    while os.path.lexists(path):
        number += 1
        path = wanted.with_name(f"{day}.{number}{dot}{rest}")
    return path


def _unlink(layout: Layout, folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
        stem = stem_of(os.path.basename(name))
        (layout.signatures / f"{stem}{SIGNATURE_SUFFIX}").unlink(missing_ok=True)


def _place(temporary: Path, wanted: Path) -> None:
    """Give an archived file its name, durably. Another spool may archive a file of the same name at this moment."""
    with open_folder(wanted.parent) as folder:
        while True:
            if wanted.is_file() and filecmp.cmp(temporary, wanted, shallow=False):
                temporary.unlink()  # the same content: we were killed between this and the removal
                break
            with contextlib.suppress(FileExistsError):
                name = _free(wanted).name
                rename_noreplace(temporary.name, name, src_dir_fd=folder, dst_dir_fd=folder)
                break
        os.fsync(folder)


def _put_away(path: Path, archive: Path | None, result: Collected) -> None:
    if archive is None:
        path.unlink(missing_ok=True)
        result.removed += lines_of(path.name)
        return
    try:
        found = open_regular(path)
    except NotAFile:
        return  # a foreign entry: it stays, as it does in the folder of a day
    make_folder(archive)
    temporary = archive / f".{path.name}.{os.urandom(4).hex()}"
    with open(found, "rb") as source, writing(temporary) as target:
        shutil.copyfileobj(source, target)
    _place(temporary, archive / path.name)
    path.unlink()
    result.archived += lines_of(path.name)
