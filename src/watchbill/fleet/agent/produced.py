"""Files that a task produces, put on stable storage before the task counts as complete.

A report is synced, so without this a power cut could leave a complete task without its files. Only what the task
declares is known: `produces`. A large file takes its time, and the agent's heartbeats must go on meanwhile: so the
files of a task have a thread of their own, and the agent waits for one turn at most.
"""

import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from watchbill.files.atomic import fsync_folder, open_folder, sync_data, sync_filesystem
from watchbill.files.disk import DISK_FULL, mount_of
from watchbill.files.patterns import matches
from watchbill.fleet import limits

__all__ = ["Storing", "Unstored", "put_on_disk"]

#: A file system that cannot sync this: there is nothing more to be done for it.
_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS})


class Unstored(NamedTuple):
    """Something that a task has left behind and that is not in the shared folder, or not on its disk."""

    why: str
    is_disk_full: bool = False  # the task is not at fault, and may come again


class Storing:
    """The files of one task, on their way to the disk."""

    def __init__(self, patterns: Sequence[str], folder: Path, root: Path) -> None:
        self._failed: list[Unstored] = []
        self._thread = threading.Thread(
            target=self._run, args=(patterns, folder, root), name="watchbill-storing", daemon=True
        )
        self._thread.start()

    def wait(self, seconds: float) -> list[Unstored] | None:
        """What could not be stored; None while it is not done."""
        self._thread.join(seconds)
        return None if self._thread.is_alive() else self._failed

    def _run(self, patterns: Sequence[str], folder: Path, root: Path) -> None:
        try:
            put_on_disk(patterns, folder, root)
        except OSError as error:
            # A disk may take a file and find no room for it only now: blocks and quotas are looked for late.
            says = f"what it produced could not be stored: {error}"
            self._failed.append(Unstored(says, is_disk_full=error.errno in DISK_FULL))


def put_on_disk(patterns: Sequence[str], folder: Path, root: Path) -> None:
    """Sync what these patterns name, and the folders that lead there. Raises OSError.

    Whole folders, many files, and what this user may not open are left to a sync of their whole file system. On a
    network mount that reaches no further than the client, so there everything in the folders is synced one by one."""
    most = limits.PRODUCED_FILES_SYNCED_MAX
    found = list(itertools.islice(_named(patterns, folder), most + 1))
    if (len(found) > most or any(map(os.path.isdir, found))) and _is_on_network(found):
        most = limits.PRODUCED_FILES_WALKED_MAX
        found = list(itertools.islice(_with_contents(_named(patterns, folder)), most + 1))
    folders = {Path(path).parent for path in found}
    #: One folder of each file system that has to be synced as a whole.
    whole = {} if len(found) <= most else {os.stat(each).st_dev: each for each in folders}
    for path in found if not whole else ():
        with _left_to(whole, Path(path)):
            if _is_folder_once_synced(path):
                whole[os.stat(path).st_dev] = Path(path)
    for each in itertools.chain(
        folders, {up for leaf in folders for up in _made_above(leaf, root)} - folders
    ):
        with _left_to(whole, each):
            _sync_folder(each)
    for each in whole.values():
        with contextlib.suppress(PermissionError), open_folder(each) as opened:
            sync_filesystem(opened)


def _named(patterns: Iterable[str], folder: Path) -> Iterator[str]:
    """What the patterns name; of a link also what it leads to: that is what the task has made, in another folder."""
    for path in itertools.chain.from_iterable(matches(each, folder) for each in patterns):
        yield path
        if os.path.islink(path.rstrip("/")):
            yield os.path.realpath(path)


def _with_contents(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield path
        if os.path.isdir(path):
            yield from matches("**", path)


def _is_on_network(paths: Iterable[str]) -> bool:
    devices: dict[int, str] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the next task has taken it away
            devices[os.stat(path).st_dev] = path
    return any(mount_of(Path(each)).is_network for each in devices.values())


@contextlib.contextmanager
def _left_to(whole: dict[int, Path], path: Path) -> Generator[None]:
    """What this user may not open is synced with its file system, by way of the folder that it lies in."""
    try:
        yield
    except PermissionError:
        whole[os.stat(path.parent).st_dev] = path.parent


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


def _made_above(folder: Path, root: Path) -> Iterator[Path]:
    """The folders above this one that the task may have made: up to the root, elsewhere as far as this user may write
    on that file system."""
    for up in folder.parents:
        if up == root or os.path.ismount(folder) or not os.access(up, os.W_OK):
            return
        yield up
        folder = up


@contextlib.contextmanager
def _unless_it_cannot() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
