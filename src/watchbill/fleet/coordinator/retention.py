"""Retention: old slips and old batches leave the shared folder; never a batch that runs or in which a task waits for a
person, never a file of an author.

    keep_complete    slips of complete, failed and expired tasks, and result logs of former lives
    keep_history     journals, attempts and logs of batches that ended; their summary, inputs, results and output stay

What a process that was killed in the middle of a write left under a hidden name leaves after an hour, whatever is kept.

Run by the coordinator now and then. Ages are of the folder's own times and dates: nothing that counts depends on them.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from watchbill.files.atomic import is_left_draft
from watchbill.fleet.folder import places
from watchbill.fleet.folder.values import fields_of

__all__ = ["Keeping", "clean"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_SUMMARY = "RUN_SUMMARY.json"
#: What of an ended batch is removed when its time is over.
_RECORD = re.compile(r"journal\.\d+\.jsonl")
_FOLDERS = ("tasks", "logs")


#: Moved meanwhile, no folder, or another user's own.
_NOT_OURS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long things are kept; None: for good."""

    complete_ms: int | None = 7 * DAY_MS
    history_ms: int | None = None


def clean(root: Path, keeping: Keeping, wall_ms: int) -> int:
    """Remove what is older than it has to be kept. Returns how many files and folders left. Raises OSError."""
    removed = sum(map(_remove, _left_drafts(root, wall_ms - HOUR_MS, wall_ms - DAY_MS)))
    if keeping.complete_ms is not None:
        before_ms = wall_ms - keeping.complete_ms
        for path in (*_old_slips(root, before_ms), *_old_result_logs(root, before_ms)):
            removed += _remove(path)
    if keeping.history_ms is not None:
        for path in _old_history(root, wall_ms - keeping.history_ms):
            removed += _remove(path)
    return removed


def _left_drafts(root: Path, before_ms: int, since_ms: int) -> Iterator[Path]:
    """Drafts that have lost their writers: where the fleet writes, and in batches that run or ended lately."""
    folders = [root, root / places.BRAIN, *_entries(root / places.BRAIN), *_entries(root / places.GPUS)]
    for plan in _entries(root / "plans"):
        for batch in _entries(plan / "history"):
            if os.path.isdir(batch) and _age_of(batch / _SUMMARY) >= since_ms:
                folders += [
                    batch,
                    *(path for path in _entries(batch) if path.name != "tasks" and os.path.isdir(path)),
                ]
    for folder in folders:
        for path in _hidden(folder):
            if is_left_draft(path.name) and _age_of(path) < before_ms:
                yield path


def _old_slips(root: Path, before_ms: int) -> Iterator[Path]:
    for day in _entries(root / places.COMPLETE):
        if _DATE.fullmatch(day.name) and _age_of(day) < before_ms:
            yield day
    for folder in (places.FAILED, places.EXPIRED):
        for slip in _entries(root / folder):
            if _age_of(slip) < before_ms:
                yield slip


def _old_result_logs(root: Path, before_ms: int) -> Iterator[Path]:
    """Never the last life of an agent: its number would be given again."""
    logs = [
        (found, path)
        for path in _entries(root / places.RESULTS)
        if (found := places.whose_result_log(path.name))
    ]
    last = {agent: max(life for (name, life), _ in logs if name == agent) for (agent, _), _ in logs}
    for (agent, life), path in logs:
        if life < last[agent] and _age_of(path) < before_ms and not _has_active(root):
            yield path


def _has_active(root: Path) -> bool:
    """Whether a batch has not ended: then a result of a former life may still be read by the next coordinator."""
    return any(_entries(root / places.ACTIVE)) or any(_entries(root / places.INBOX))


def _old_history(root: Path, before_ms: int) -> Iterator[Path]:
    active = places.batches_shown(path.name for path in _entries(root / places.ACTIVE))
    asked = {path.name.partition(".")[0] for path in _entries(root / places.INBOX)}
    for plan in _entries(root / "plans"):
        for batch in _entries(plan / "history"):
            summary = batch / _SUMMARY
            if (
                batch.name in active
                or batch.name in asked
                or not os.path.isfile(summary)
                or _age_of(summary) >= before_ms
                or _waits_for_a_person(summary)
            ):
                continue
            yield from (
                path for path in _entries(batch) if _RECORD.fullmatch(path.name) or path.name in _FOLDERS
            )


def _waits_for_a_person(summary: Path) -> bool:
    """Whether tasks of an ended batch are still to be approved or denied, which its journal is needed for."""
    try:
        return fields_of(summary.read_bytes()).fields("counts").whole("manual") > 0
    except (FileNotFoundError, PermissionError):  # moved meanwhile, or another user's own
        return True
    except ValueError:  # not one that a coordinator wrote
        return False


def _entries(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if not path.name.startswith(".")]


def _hidden(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.name.startswith(".")]


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        return []


def _age_of(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns // 1_000_000
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        return 2**63


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        # Another user's file: it stays, and the coordinator goes on.
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTEMPTY):
            raise
        return False
    return True
