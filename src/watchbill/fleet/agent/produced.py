"""Files that a task produces, put on stable storage before the task counts as complete.

A report is synced, so without this a power cut could leave a complete task without its files. Only what the task
declares is known: `produces`. A large file takes its time, and the agent's heartbeats must go on meanwhile: so the
files of a task have a thread of their own, and the agent waits for one turn at most.
"""

import contextlib
import errno
import glob
import itertools
import os
import stat
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from watchbill.files.atomic import fsync_folder, open_folder, sync_data, sync_filesystem
from watchbill.fleet import limits

__all__ = ["Storing", "matches", "put_on_disk"]

#: A file system that cannot sync this: there is nothing more to be done for it.
_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS})


class Storing:
    """The files of one task, on their way to the disk."""

    def __init__(self, patterns: Sequence[str], folder: Path, root: Path) -> None:
        self._failed: list[str] = []
        self._thread = threading.Thread(
            target=self._run, args=(patterns, folder, root), name="watchbill-storing", daemon=True
        )
        self._thread.start()

    def wait(self, seconds: float) -> list[str] | None:
        """What could not be stored, in words; None while it is not done."""
        self._thread.join(seconds)
        return None if self._thread.is_alive() else self._failed

    def _run(self, patterns: Sequence[str], folder: Path, root: Path) -> None:
        try:
            put_on_disk(patterns, folder, root)
        except OSError as error:
            self._failed.append(f"what it produced could not be stored: {error}")


def put_on_disk(patterns: Iterable[str], folder: Path, root: Path) -> None:
    """Sync what these patterns name, and the folders up to `root` that lead there. Raises OSError.

    Whole folders, many files, and what this user may not open are left to a sync of their whole file system."""
    most = limits.PRODUCED_FILES_SYNCED_MAX
    found = [path for each in patterns for path in itertools.islice(matches(each, folder), most + 1)]
    folders = {Path(path).parent for path in found}
    try:
        are_single = len(found) <= most and not any(map(_is_folder_once_synced, found))
        for each in itertools.chain(folders, {up for leaf in folders for up in _up_to(root, leaf)} - folders):
            _sync_folder(each)
    except PermissionError:
        are_single = False
    if not are_single:
        for each in {os.stat(each).st_dev: each for each in folders}.values():
            with contextlib.suppress(PermissionError), open_folder(each) as opened:
                sync_filesystem(opened)


def matches(pattern: str, folder: Path) -> Iterator[str]:
    """What a path that may be a pattern names."""
    whole = os.path.join(glob.escape(str(folder)), pattern)
    try:
        yield from glob.iglob(whole, recursive=True, include_hidden=True)
    except ValueError:  # no name of a file: a NUL character, half of a surrogate pair
        return


def _is_folder_once_synced(path: str) -> bool:
    """Sync a file; True for a folder. Whatever else a task has put there holds nothing that could be lost."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # a link to nothing, or the next task has taken it away
        return False
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENODEV, errno.ELOOP}:
            return False
        raise
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            with _unless_it_cannot():
                sync_data(fd)
        return stat.S_ISDIR(mode)
    finally:
        os.close(fd)


def _sync_folder(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), _unless_it_cannot():
        fsync_folder(path)


def _up_to(root: Path, folder: Path) -> Iterable[Path]:
    """The folders between the root and this one, which the task may have made."""
    return itertools.takewhile(lambda up: up != root, folder.parents) if root in folder.parents else ()


@contextlib.contextmanager
def _unless_it_cannot() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
