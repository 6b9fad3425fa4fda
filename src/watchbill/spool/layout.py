"""The folders of a spool: the four that are the state machine, and those beside them.

Makes the folders, durably, and checks that all of them are on one file system (a lease is a rename, and a
rename does not cross file systems). Holds open the folders that every operation needs.

Users of one group share a spool, and one of them may make a file that the others cannot read or move. Such a file must
not stop the rest, and must not be skipped silently: a process that meets one notes it as barred, and `drain --once` and
the daemon report it.

One of them may also put a link in place of a folder, to have others move files out of, or into, a folder of their own.
No link is followed: folders are opened one by one below the root, and a spool with a link in place of a folder is
refused, also while it is in use. The root itself is the operator's choice, and may be a link.

A spool on a network mount is shared with other hosts. There no lock and no inotify event crosses hosts, replies to
renames get lost, and changes of other hosts show up late: renames go through `lossy`, and a `Witness` says which
workers live.
"""

import contextlib
import errno
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from watchbill.files.atomic import make_folder, rename_noreplace
from watchbill.files.disk import mount_of
from watchbill.files.limits import SILENCE_S_MAX
from watchbill.files.lossy import move_away, move_here
from watchbill.files.witness import Witness
from watchbill.spool.faults import SpoolLayout, disk_fault
from watchbill.spool.limits import BARRED_MAX, FOLDER_DEPTH_MAX
from watchbill.spool.names import is_event, stem_of

__all__ = [
    "FOLDER",
    "Layout",
    "State",
    "events_inside",
    "known_stems",
    "reached",
    "storage_warnings",
    "unseen_warnings",
    "walk_events",
]

#: How a folder is opened: never through a link.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of a descriptor whose mount was taken away.
_MOUNT_GONE = frozenset({errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ENODEV})
_NO_FOLDER = (
    "{} is a link or a file in place of a folder of the spool, and nothing is read or written through it; "
    "find out who put it there, and put the folder back"
)


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
    witness: Witness | None = None  # of workers on other hosts; None where this host has the disk alone
    is_mounted: bool = False  # over the network, or by a program
    #: Whether the caller says that other hosts use it; None: the mount says it.
    asked_shared: bool | None = None

    @classmethod
    def open(cls, root: Path, *, shared: bool | None = None) -> "Layout":
        """Make the folders that are missing and open all. Raises SpoolLayout, SpoolFull or SpoolBroken.

        `shared` says whether other hosts use it, too; None: if it is on a network mount.
        """
        root = root.absolute()
        try:
            _make_folders(root)
            _check_one_filesystem(root, [root / state.value for state in State])
            is_mounted = mount_of(root).is_network
            root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            layout = cls(
                root, root_fd, os.open("queue", FOLDER, dir_fd=root_fd), is_mounted=is_mounted,
                asked_shared=shared,
            )  # fmt: skip
            layout.witness = Witness() if (is_mounted if shared is None else shared) else None
            return layout
        except (NotADirectoryError, FileExistsError) as error:
            raise SpoolLayout(f"{error.filename} is not a folder; a spool needs folders there") from error
        except OSError as error:
            raise disk_fault(error, f"open the spool {root}") from error

    @property
    def is_shared(self) -> bool:
        """Whether other hosts use it, too."""
        return self.witness is not None

    def take(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, new: bool = False) -> None:
        """Rename to a name that only we use; with `new` nothing is replaced. Raises OSError."""
        if self.is_shared:
            move_here(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, new=new)
        else:
            (rename_noreplace if new else os.rename)(
                source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd
            )

    def give(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, new: bool = False) -> None:
        """Rename a file of ours to a place where others may take it at once; with `new` nothing is replaced. Raises
        OSError, but none on a shared mount whose source is gone: its reply was lost."""
        if self.is_shared:
            move_away(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, new=new)
        else:
            (rename_noreplace if new else os.rename)(
                source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd
            )

    def check(self) -> None:
        """Raises SpoolLayout when a link is in place of a folder."""
        for folder in _folders(self.root):
            _refuse_link(folder)
        _refuse_link(self.signatures)

    @contextlib.contextmanager
    def entered(self, inside: str) -> Generator[int]:
        """A folder below the root, for what is moved into it or out of it. Raises OSError, and SpoolLayout for a link
        on the way."""
        with _entered(self.root_fd, inside.split("/"), self.root / inside) as fd:
            yield fd

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
        self._refuse_bare_mount_point()
        _make_folders(self.root)
        if not self.is_in_place:
            new = Layout.open(self.root, shared=self.asked_shared)
            self.root_fd, self.queue_fd = new.root_fd, new.queue_fd
            # What was opened below a bare mount point is on a mount now, and other hosts use it.
            self.is_mounted, self.witness = new.is_mounted, self.witness or new.witness

    @property
    def is_in_place(self) -> bool:
        """Whether our folders are those that the spool's path leads to: not removed, moved, or below a mount that came.
        Raises OSError."""
        try:
            return os.path.samestat(os.fstat(self.queue_fd), os.stat(self.root / "queue"))
        except OSError as error:
            if error.errno in _MOUNT_GONE:
                return False
            raise

    def _refuse_bare_mount_point(self) -> None:
        """Raises SpoolLayout if the mount is away: a spool that is made below it would take events in its place."""
        if not self.is_mounted:
            return
        found = self.root
        while not found.exists():
            found = found.parent
        if not mount_of(found).is_network:
            raise SpoolLayout(f"the mount of {self.root} is away; mount it again, and the spool goes on")

    def close(self) -> None:
        for fd in (self.queue_fd, self.root_fd):
            with contextlib.suppress(OSError):  # of a mount that is gone; the descriptor is free all the same
                os.close(fd)


@contextlib.contextmanager
def reached(folder: int, path: str) -> Generator[tuple[int, str]]:
    """The folder that a file is in, opened, and the file's name there. The path begins in a folder that is open. Raises
    OSError, and SpoolLayout for a link on the way."""
    *folders, name = path.split("/")
    with _entered(folder, folders, path) as fd:
        yield fd, name


@contextlib.contextmanager
def _entered(outer: int, names: Sequence[str], what: str | Path) -> Generator[int]:
    fd = os.dup(outer)
    try:
        for name in names:
            fd, outer = _enter(name, fd, what), fd
            os.close(outer)
        yield fd
    finally:
        os.close(fd)


def _enter(name: str, outer: int, what: str | Path) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=outer)
    except NotADirectoryError as error:
        raise SpoolLayout(_NO_FOLDER.format(what)) from error


def _folders(root: Path) -> tuple[Path, ...]:
    return (*(root / state.value for state in State), root / "queue" / ".tmp", root / "queue-wal")


def _make_folders(root: Path) -> None:
    for folder in _folders(root):
        _refuse_link(folder)
        make_folder(folder)


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise SpoolLayout(_NO_FOLDER.format(folder))


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
        found.append(
            f"{where} is mounted over the network or by a program: each event is synced by itself, and a worker "
            f"on another host is taken for dead after {SILENCE_S_MAX:.0f} s of silence"
        )
    if mount.is_read_only:
        found.append(f"{path}: the file system at {mount.point} is mounted read-only")
    if mount.lacks_journal:
        found.append(f"{path}: ext4 at {mount.point} has no journal: a power cut can damage its folders")
    return found


def unseen_warnings(queue: Path) -> list[str]:
    """Return what an operator should know about files that wait in vain: only names that end in .jsonl are events."""
    try:
        with os.scandir(queue) as entries:
            others = sorted(e.name for e in entries if _is_unseen(e))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    if not others:
        return []
    count = "1 file is" if len(others) == 1 else f"{len(others)} files are"
    return [
        f"{queue}: {count} no event, because the name does not end in .jsonl ({others[0]}); rename or remove it"
    ]


def _is_unseen(entry: os.DirEntry[str]) -> bool:
    """Whether it looks like an event with a wrong name: no event, no folder, and no temporary file."""
    is_temporary = entry.name.startswith(".") or entry.name.endswith((".tmp", ".part", "~"))
    return not is_event(entry.name) and not is_temporary and not entry.is_dir(follow_symlinks=False)


def walk_events(folder: Path, depth: int = FOLDER_DEPTH_MAX) -> Iterator[os.DirEntry[str]]:
    """Yield every event below a folder. Entries that vanish meanwhile and folders that this user may not list are left
    out; neither links nor hidden folders are entered."""
    if os.path.islink(folder):
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_event(entry.name) and not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif depth and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield from walk_events(Path(entry.path), depth - 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def known_stems(root: Path) -> set[str]:
    """The stems of all events that wait, are leased or were given up. A finished one may have been moved away."""
    states = (State.QUEUE, State.IN_FLIGHT, State.POISON)
    return {stem_of(entry.name) for state in states for entry in walk_events(root / state.value)}


def events_inside(folder: int, depth: int = FOLDER_DEPTH_MAX) -> Iterator[str]:
    """Yield every event below an open folder, by its path from there: as `walk_events`, and no link that appears
    meanwhile is followed either."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_event(entry.name) and not is_folder:
                yield entry.name
            elif depth and is_folder and not entry.name.startswith("."):
                try:
                    inner = os.open(entry.name, FOLDER, dir_fd=folder)
                except (FileNotFoundError, NotADirectoryError, PermissionError):
                    continue
                try:
                    yield from (f"{entry.name}/{path}" for path in events_inside(inner, depth - 1))
                finally:
                    os.close(inner)


def _check_one_filesystem(root: Path, folders: list[Path]) -> None:
    home = os.stat(folders[0]).st_dev
    for folder in folders[1:]:
        if os.stat(folder).st_dev != home:
            raise SpoolLayout(
                f"{folder} is on another file system than {folders[0]}; put all of {root} on one, "
                "because a lease is a rename"
            )
