"""The folders of a spool: the four that are the state machine, and those beside them.

Makes the folders, durably, and checks that all of them are on one file system (a lease is a rename, and a
rename does not cross file systems). Holds open the folders that every operation needs.

Users of one group share a spool, and one of them may make a file that the others cannot read or move. Such a file must
not stop the rest, and must not be skipped silently: a process that meets one notes it as barred, and `drain --once` and
the daemon report it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from watchbill.files.atomic import make_folder
from watchbill.files.disk import mount_of
from watchbill.spool.faults import SpoolLayout, disk_fault
from watchbill.spool.limits import BARRED_MAX, FOLDER_DEPTH_MAX
from watchbill.spool.names import is_event

__all__ = ["Layout", "State", "storage_warnings", "walk_events"]


class State(Enum):
    """Where an event is; the value is the folder's name."""

    QUEUE = "queue"  # waits
    IN_FLIGHT = "queue-in-flight"  # leased by a worker
    DONE = "queue-done"  # finished; kept until gc
    POISON = "queue-poison"  # given up; its reason is beside it


class Barred:
    """Paths that this process may not use, and why. Any thread may note; the oldest note is forgotten first."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def note(self, path: str | Path, error: OSError) -> None:
        self._why[os.fspath(path)] = error.strerror or str(error)
        while len(self._why) > BARRED_MAX:
            self._why.pop(next(iter(list(self._why))), None)

    def forget(self, path: str | Path) -> None:
        """Remove a path that can be used after all."""
        self._why.pop(os.fspath(path), None)

    def standing(self) -> dict[str, str]:
        """Return the paths that are still there, each with its reason."""
        for path in list(self._why):
            try:
                os.lstat(path)
            except FileNotFoundError:
                self._why.pop(path, None)  # moved by a user who may
            except OSError:
                continue  # its status cannot be read either
        return dict(self._why)


@dataclass(slots=True)
class Layout:
    """One spool's folders."""

    root: Path
    root_fd: int
    queue_fd: int
    barred: Barred = field(default_factory=Barred)  # entries that this process may not touch

    @classmethod
    def open(cls, root: Path) -> "Layout":
        """Make the folders that are missing and open all. Raises SpoolLayout, SpoolFull or SpoolBroken."""
        root = root.absolute()
        try:
            _make_folders(root)
            _check_one_filesystem(root, [root / state.value for state in State])
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            return cls(root, os.open(root, flags), os.open(root / "queue", flags))
        except (NotADirectoryError, FileExistsError) as error:
            raise SpoolLayout(f"{error.filename} is not a folder; a spool needs folders there") from error
        except OSError as error:
            raise disk_fault(error, f"open the spool {root}") from error

    def folder(self, state: State) -> Path:
        return self.root / state.value

    @property
    def temporary(self) -> Path:
        """Folders of writers: half-written files, each folder locked by its owner."""
        return self.root / "queue" / ".tmp"

    @property
    def logs(self) -> Path:
        return self.root / "queue-wal"

    @property
    def signatures(self) -> Path:
        """Signatures, which stay in place while an event moves."""
        return self.root / "queue-signatures"

    def renew(self) -> None:
        """Make the folders again after they were removed or moved; otherwise we would work in folders without a name.

        Raises OSError, and what `open` raises.
        The old descriptors stay open: another thread may be using them, and their numbers must not be reused.
        """
        _make_folders(self.root)
        if not os.path.samestat(os.fstat(self.queue_fd), os.stat(self.root / "queue")):
            new = Layout.open(self.root)
            self.root_fd, self.queue_fd = new.root_fd, new.queue_fd

    def close(self) -> None:
        os.close(self.queue_fd)
        os.close(self.root_fd)


def _make_folders(root: Path) -> None:
    for folder in (*(root / state.value for state in State), root / "queue" / ".tmp", root / "queue-wal"):
        make_folder(folder)


def storage_warnings(path: Path) -> list[str]:
    """Return what an operator should know about the disk under this spool."""
    mount = mount_of(path)
    where = f"{path}: the file system ({mount.kind} at {mount.point})"
    found: list[str] = []
    if mount.is_in_memory:
        found.append(f"{where} is in memory: nothing survives a restart")
    if mount.kind == "overlay":
        found.append(f"{where} is a container layer: it goes with the container")
    if mount.is_network:
        found.append(f"{where} is mounted over the network or by a program: use durability='event'")
    if mount.is_read_only:
        found.append(f"{path}: the file system at {mount.point} is mounted read-only")
    if mount.lacks_journal:
        found.append(f"{path}: ext4 at {mount.point} has no journal: a power cut can damage its folders")
    return found


def walk_events(folder: Path, depth: int = FOLDER_DEPTH_MAX) -> Iterator[os.DirEntry[str]]:
    """Yield every event below a folder. Entries that vanish meanwhile and folders that this user may not list are left
    out; hidden folders are not entered."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_event(entry.name) and not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif depth and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield from walk_events(Path(entry.path), depth - 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def _check_one_filesystem(root: Path, folders: list[Path]) -> None:
    home = os.stat(folders[0]).st_dev
    for folder in folders[1:]:
        if os.stat(folder).st_dev != home:
            raise SpoolLayout(
                f"{folder} is on another file system than {folders[0]}; put all of {root} on one, "
                "because a lease is a rename"
            )
