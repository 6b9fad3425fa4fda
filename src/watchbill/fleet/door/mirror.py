"""The mirror: a folder on an agent's own disk that stands in for the shared one, for the files of its tasks.

Before a task starts, what it may need is **brought** (`scope`): the plan and the batch are here as they are there. When
it has ended, what it has made or changed in the folder of its batch is **sent**, and only then is it reported. Both are
done in turns, a few seconds at a time and from where the last turn ended, because the same thread shows the heartbeat;
so a broker that is away in the middle costs nothing but time.

    not known here                              fetched
    as it was brought or sent                   fetched again when it has changed there, removed when it is gone there
    changed here, in the batch, by a task       left alone until that task is sent
    changed here, anywhere else                 fetched again: rules and scripts are what they are there

A file to which a task has only added is added to there, too: lines of other agents are kept, also where several have
begun it. Any other changed file replaces the one that is there. A task that runs while a file is fetched anew may still
write to the former one: what it adds there follows. The mirror is emptied when the agent starts: nothing of a former
life is believed.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from watchbill.errors import OursError
from watchbill.files.atomic import FILE_MODE, NotAFile, make_folder, rename_noreplace, write_all
from watchbill.files.beneath import Beneath, Entry
from watchbill.fleet import limits
from watchbill.fleet.door.files import entry_of
from watchbill.fleet.door.scope import RULES, Scope
from watchbill.fleet.door.session import Session
from watchbill.fleet.door.wire import Op
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields
from watchbill.units import format_bytes

__all__ = ["CannotCarry", "Mirror"]

#: Where files lie while they are fetched; no path of the shared folder begins so.
_INCOMING = ".incoming"
#: How often a file that changes on its way is carried from its beginning.
_TRIES_MAX = 3
#: Files that one request asks for.
_GROUP_MAX = 256
#: What says that one file cannot be stored, whenever it is tried again.
_NEVER = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EFBIG, errno.EPERM, errno.ELOOP})


class _Digest(Protocol):
    """What `hashlib.sha256` returns."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Seen(NamedTuple):
    """A file on this disk, as a look at it tells. `changed` differs whenever it was written to, also when a program has
    set its time back."""

    inode: int
    size: int
    written_ns: int
    changed_ns: int


class _Known(NamedTuple):
    """A file that is here and there: how it was in both places when they were the same."""

    here: _Seen
    there: tuple[int, int] | None  # size and time; None where it has to be fetched anew
    digest: bytes  # of what was here
    is_sent: bool = False  # by this agent


class _Former(NamedTuple):
    """A file that was fetched anew while tasks ran that may have it open."""

    path: str
    fd: int
    tasks: frozenset[str]  # that may


#: How a file begins.
_NOTHING = _Known(_Seen(0, 0, 0, 0), None, hashlib.sha256().digest())


@dataclass(slots=True)
class _Bringing:
    """A task whose files are on their way."""

    wanted: list[Entry]
    offset: int = 0  # of the first of these
    digest: "_Digest" = field(default_factory=hashlib.sha256)
    began_as: tuple[int, int] | None = None  # size and time of that file when its first part came
    tries: int = 0


@dataclass(slots=True)
class _Outgoing:
    """A file that is sent in parts."""

    upload: str
    seen: _Seen
    offset: int = 0
    digest: "_Digest" = field(default_factory=hashlib.sha256)


@dataclass(slots=True)
class _Sending:
    """A task whose files are on their way back."""

    wanted: list[Entry]
    gone: list[str]
    file: _Outgoing | None = None
    tries: int = 0
    notes: list[str] = field(default_factory=list[str])


class CannotCarry(OursError):
    """The files of a task cannot be carried to or from an agent without the shared folder."""


class Mirror:
    """The files of one agent's tasks. Belongs to the agent's file thread."""

    def __init__(self, root: Path, session: Session) -> None:
        """Empties the folder, or makes it."""
        shutil.rmtree(root, ignore_errors=True)
        make_folder(root / _INCOMING)
        self.root = root
        self._beneath, self._session = Beneath(root), session
        self._known: dict[str, _Known] = {}
        self._bringing: dict[str, _Bringing] = {}
        self._sending: dict[str, _Sending] = {}
        self._open: dict[str, Scope] = {}  # tasks whose files are here, until they are sent
        self._former: dict[_Former, int] = {}  # and how far each is known
        self._left_out: dict[str, str] = {}
        self._seen_batches: dict[str, str] = {}  # brought since the last claim, and what was left out of them
        self._folders: set[str] = set()  # that are there
        self._batches: OrderedDict[str, None] = OrderedDict()  # whose files are here, the last used one last

    # ------------------------------------------------------------ to this disk

    def bring(self, name: str, slip: Slip, until: float) -> bool:
        """Bring what a task may need; False when the time is over and there is more to fetch. Raises OSError."""
        scope = self._open.setdefault(name, Scope(slip))
        if name not in self._bringing:
            if scope.out_of_reach:
                raise CannotCarry(
                    f"it produces {scope.out_of_reach[0]}, outside of the folder of its batch",
                    hint="let it write below {BATCH_PATH}, or run an agent with the shared folder",
                )
            if self._is_here(name, slip, scope):
                return True
            self._bringing[name] = _Bringing(self._wanted(name, scope))
        coming = self._bringing[name]
        while coming.wanted:
            try:
                self._fetch(name, coming)
            except OSError as error:
                if error.errno == errno.ESTALE:  # another door: it has not shown us anything yet
                    del self._bringing[name]
                    return False
                raise
            if coming.wanted and time.monotonic() >= until:
                return False
        del self._bringing[name]
        self._seen_batches[scope.batch] = self._left_out.get(name, "")
        return True

    def _is_here(self, name: str, slip: Slip, scope: Scope) -> bool:
        """Whether another task that was claimed together with this one has brought all it needs: one look for both."""
        if scope.named or slip.attempt > 1 or scope.batch not in self._seen_batches:
            return False
        if left_out := self._seen_batches[scope.batch]:
            self._left_out[name] = left_out
        return True

    def look_again(self) -> None:
        """Tasks were claimed: the files of their batches may be others than those that were seen before."""
        self._seen_batches.clear()

    def left_out(self, name: str) -> str:
        """What a task did not get, in words; "" where it got everything."""
        return self._left_out.get(name, "")

    def _wanted(self, name: str, scope: Scope) -> list[Entry]:
        """Ask what there is, tidy up here, and return what has to be fetched."""
        try:
            told = self._session.call(Op.TREE, slip=name).fields
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise CannotCarry(str(error.strerror), hint="run an agent with the shared folder") from None
        shown = {each.path: each for each in map(entry_of, told.items("entries")) if each is not None}
        self._note_left_out(name, told.items("left_out"))
        self._tidy(scope, shown)
        self._make_folder(scope.batch)  # also where nothing is in it yet
        for entry in shown.values():
            if entry.is_folder:
                self._make_folder(entry.path)
                self._folders.add(entry.path)
        return [entry for entry in shown.values() if not entry.is_folder and self._has_to_come(scope, entry)]

    def _note_left_out(self, name: str, told: list[object]) -> None:
        large = [
            f"{each.path} ({format_bytes(each.size)})" for each in map(entry_of, told) if each is not None
        ]
        if large:
            self._left_out[name] = (
                f"not brought here, because `requires` does not name it: {', '.join(large)}"
            )

    def _has_to_come(self, scope: Scope, entry: Entry) -> bool:
        known, here = self._known.get(entry.path), self._look(entry.path)
        if here is None or known is None or here != known.here:
            return here is None or not self._is_of_a_task(scope, entry.path)
        return known.there != (entry.size, entry.changed_ns)

    def _is_of_a_task(self, scope: Scope, path: str) -> bool:
        """Whether a file that differs from the one there is what a task here is writing."""
        return scope.may_write(path) and sum(each.batch == scope.batch for each in self._open.values()) > 1

    def _tidy(self, scope: Scope, shown: dict[str, Entry]) -> None:
        """Remove what is not there any more, and what a task that was not sent has left here."""
        for entry in list(self._here(scope)):
            if entry.path in shown or entry.is_folder:
                continue
            known, here = self._known.get(entry.path), self._look(entry.path)
            is_clean = known is not None and known.here == here
            if is_clean or not self._is_of_a_task(scope, entry.path):
                self._beneath.remove(entry.path)
                self._known.pop(entry.path, None)
        if RULES not in shown:
            self._beneath.remove(RULES)

    def _here(self, scope: Scope) -> Iterator[Entry]:
        """The files of a plan and a batch on this disk, without those of other tasks."""
        yield from self._beneath.walk(scope.plan, without=frozenset({scope.history}))
        yield from self._beneath.walk(scope.batch, without=frozenset({scope.others}))
        yield from self._beneath.walk(scope.task)

    def _make_folder(self, path: str) -> None:
        """A folder, also where a task has put something else in its place."""
        try:
            with self._beneath.folder(path, make=True):
                return
        except (NotADirectoryError, FileExistsError):
            self._beneath.remove(path)
            with self._beneath.folder(path, make=True):
                return

    def _fetch(self, name: str, coming: _Bringing) -> None:
        """One request: many small files, or a part of a large one."""
        first = coming.wanted[0]
        if first.size - coming.offset > limits.DOOR_PART_BYTES or coming.offset:
            self._fetch_part(name, coming, first)
            return
        group = _fitting(coming.wanted)
        pieces = [{"path": each.path, "offset": 0, "bytes": limits.DOOR_PART_BYTES} for each in group]
        answer = self._session.call(Op.FETCH, slip=name, pieces=pieces)
        at = 0
        for wanted, told in zip(group, _told(answer.fields.items("pieces")), strict=True):
            content = answer.body[at : at + told.size]
            at += told.size
            if told.entry is not None and told.entry.size > len(content):
                break  # it has grown, or the answer is full: once more, by itself if need be
            coming.wanted.remove(wanted)
            if told.entry is not None:
                self._keep(name, told.entry, content)
        else:
            return
        coming.wanted = [told.entry if each is wanted and told.entry else each for each in coming.wanted]

    def _keep(self, name: str, entry: Entry, content: bytes) -> None:
        with self._incoming() as (fd, draft):
            write_all(fd, content)
            self._place(name, entry, fd, draft, hashlib.sha256(content).digest())

    def _fetch_part(self, name: str, coming: _Bringing, wanted: Entry) -> None:
        piece = {"path": wanted.path, "offset": coming.offset, "bytes": limits.DOOR_PART_BYTES}
        answer = self._session.call(Op.FETCH, slip=name, pieces=[piece])
        told = _told(answer.fields.items("pieces"))[0]
        if told.entry is None:  # it is gone
            coming.wanted.pop(0)
            self._start_over(coming)
            return
        as_it_is = (told.entry.size, told.entry.changed_ns)
        if coming.offset == 0:
            coming.began_as = as_it_is
        elif coming.began_as != as_it_is:
            coming.tries += 1
            if coming.tries > _TRIES_MAX:
                raise OSError(errno.EBUSY, "it keeps changing while it is fetched", wanted.path)
            self._start_over(coming)
            return
        with self._incoming(new=coming.offset == 0) as (fd, draft):
            write_all(fd, answer.body)
            coming.digest.update(answer.body)
            coming.offset += len(answer.body)
            if coming.offset >= told.entry.size:
                self._place(name, told.entry, fd, draft, coming.digest.digest())
                coming.wanted.pop(0)
                self._start_over(coming)

    @staticmethod
    def _start_over(coming: _Bringing) -> None:
        coming.offset, coming.digest, coming.began_as = 0, hashlib.sha256(), None

    @contextlib.contextmanager
    def _incoming(self, *, new: bool = True) -> Generator[tuple[int, str]]:
        draft = str(self.root / _INCOMING / "file")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if new else 0)
        fd = os.open(draft, flags, FILE_MODE)
        try:
            yield fd, draft
        finally:
            os.close(fd)

    def _place(self, name: str, entry: Entry, fd: int, draft: str, digest: bytes) -> None:
        """Give a fetched file its name, unless a task that runs has changed the one that is here since the look."""
        os.fchmod(fd, FILE_MODE | (0o110 if entry.is_executable else 0))
        os.utime(fd, ns=(entry.changed_ns, entry.changed_ns))
        placed = _seen(os.fstat(fd))
        parent, _, last = entry.path.rpartition("/")
        if parent:
            self._make_folder(parent)
        with self._beneath.folder(parent) as folder:
            try:
                self._rename(name, entry.path, draft, last, folder)
            except FileExistsError:
                return
            except IsADirectoryError:  # a task has made a folder of it
                shutil.rmtree(last, dir_fd=folder)
                os.rename(draft, last, dst_dir_fd=folder)
        here = self._look(entry.path)
        # The rename changes `changed`. A task that has written since is not what came: it is sent with that task.
        is_as_it_came = here is not None and here[:3] == placed[:3]
        seen = here if here is not None and is_as_it_came else placed
        self._known[entry.path] = _Known(seen, (entry.size, entry.changed_ns), digest)

    def _rename(self, name: str, path: str, draft: str, last: str, folder: int) -> None:
        """Raises FileExistsError where a task that runs has changed or made the file here."""
        tasks = frozenset(
            other for other, scope in self._open.items() if other != name and scope.may_write(path)
        )
        if tasks and path in self._known:
            self._set_aside(path, tasks)
        if tasks and path not in self._known:
            rename_noreplace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.rename(draft, last, dst_dir_fd=folder)

    def _set_aside(self, path: str, tasks: frozenset[str]) -> None:
        """Keep the file that is here open: tasks that run may have it open, too, and add to it."""
        try:
            fd = self._beneath.open(path)
        except (FileNotFoundError, NotAFile):
            return
        known = self._known[path].here
        if _seen(os.fstat(fd)) != known:
            os.close(fd)
            raise FileExistsError(errno.EEXIST, "a task has changed it", path)
        self._former[_Former(path, fd, tasks)] = known.size
        if len(self._former) > limits.MIRROR_FORMER_MAX:
            self._drop_former(next(iter(self._former)))

    def _follow_former(self) -> None:
        """Add what tasks have added to files that were fetched anew to the ones that took their place."""
        for former in self._former:
            while added := os.pread(former.fd, limits.DOOR_PART_BYTES, self._former[former]):
                self._add_here(former.path, added)
                self._former[former] += len(added)

    def _add_here(self, path: str, added: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._beneath.parent(path, make=True) as folder:
            fd = os.open(path.rpartition("/")[2], flags, FILE_MODE, dir_fd=folder)
        try:
            write_all(fd, added)
        finally:
            os.close(fd)

    def _drop_former(self, former: _Former) -> None:
        os.close(former.fd)
        del self._former[former]

    # ------------------------------------------------------------ from this disk

    def send(self, name: str, slip: Slip, until: float, *, durable: bool) -> list[str] | None:
        """Send what a task has left behind. None when the time is over and there is more; else what could not be
        stored, in words. Raises OSError, with EACCES when the task was revoked."""
        scope = self._open.setdefault(name, Scope(slip))
        if name not in self._sending:
            self._follow_former()
            self._sending[name] = self._changed(scope)
        going = self._sending[name]
        while going.gone:
            self._discard(name, going, going.gone[0])
            self._known.pop(going.gone.pop(0), None)
        while going.wanted:
            self._send_next(name, going, durable=durable)
            if going.wanted and time.monotonic() >= until:
                return None
        self.forget(name)
        return going.notes

    def _discard(self, name: str, going: _Sending, path: str) -> None:
        try:
            self._session.call(Op.DISCARD, slip=name, path=path)
        except OSError as error:
            if error.errno not in _NEVER:
                raise
            going.notes.append(f"{path} could not be removed: {error.strerror}")

    def show(self, name: str, path: str) -> None:
        """Send one small file of a task that still runs. Raises OSError."""
        entry = self._beneath.entry(path)
        going = _Sending([] if entry is None else [entry], [])
        while going.wanted:
            self._send_next(name, going, durable=False)

    def forget(self, name: str) -> None:
        """A task is over: nothing of it is sent any more."""
        scope = self._open.get(name)
        for kept in (self._bringing, self._sending, self._left_out, self._open):
            kept.pop(name, None)
        for former in [each for each in self._former if not each.tasks & self._open.keys()]:
            self._drop_former(former)
        if scope is not None:
            self._batches[scope.batch] = None
            self._batches.move_to_end(scope.batch)
            self._drop_old_batches()

    def _drop_old_batches(self) -> None:
        """Remove the files of batches that had no task here for the longest time."""
        in_use = {scope.batch for scope in self._open.values()}
        idle = [batch for batch in self._batches if batch not in in_use]
        for batch in idle[: -limits.MIRROR_BATCHES_KEPT]:
            del self._batches[batch]
            shutil.rmtree(self.root / batch, ignore_errors=True)
            self._known = {
                path: known for path, known in self._known.items() if not path.startswith(f"{batch}/")
            }
            self._folders = {path for path in self._folders if not path.startswith(f"{batch}/")}

    def _changed(self, scope: Scope) -> _Sending:
        """What a task has left behind here; and what this agent sent earlier and is gone, a temporary file perhaps."""
        found = [entry for entry in self._here(scope) if scope.may_write(entry.path)]
        here = {entry.path for entry in found}
        sent = [path for path, known in self._known.items() if known.is_sent and scope.may_write(path)]
        return _Sending(
            [each for each in found if self._has_to_go(each)], [each for each in sent if each not in here]
        )

    def _has_to_go(self, entry: Entry) -> bool:
        if entry.is_folder:
            return entry.path not in self._folders
        known = self._known.get(entry.path)
        return known is None or known.here != self._look(entry.path)

    def _send_next(self, name: str, going: _Sending, *, durable: bool) -> None:
        """One request, or none where a file has gone since."""
        entry = going.wanted[0]
        try:
            is_done = self._sent(name, going, entry, durable=durable)
        except (FileNotFoundError, NotADirectoryError, NotAFile):
            is_done = True
        except OSError as error:
            going.file = None
            if error.errno == errno.ESTALE:  # another door: it has none of the parts
                return
            if error.errno not in _NEVER:
                raise
            going.notes.append(f"{entry.path} could not be stored: {error.strerror}")
            is_done = True
        if is_done:
            going.wanted.pop(0)
            going.file, going.tries = None, 0

    def _sent(self, name: str, going: _Sending, entry: Entry, *, durable: bool) -> bool:
        """Send a folder, or the next part of a file. True when it is there."""
        if entry.is_folder:
            self._session.call(Op.STORE, slip=name, path=entry.path, is_folder=True)
            self._folders.add(entry.path)
            return True
        fd = self._beneath.open(entry.path)
        try:
            if going.file is None and self._add(name, entry.path, fd):
                return True
            return self._send_part(name, going, entry.path, fd, durable=durable)
        finally:
            os.close(fd)

    def _send_part(self, name: str, going: _Sending, path: str, fd: int, *, durable: bool) -> bool:
        status = os.fstat(fd)
        file = going.file = going.file or _Outgoing(os.urandom(8).hex(), _seen(status))
        if _seen(status) != file.seen:
            # It changes while it is sent. If other tasks of its batch run here, it is theirs, and is sent with them.
            going.file, going.tries = None, going.tries + 1
            return len(self._open) > 1 or going.tries > _TRIES_MAX
        # Not beyond the size that was seen: what was added since is sent as such.
        part = os.pread(fd, min(limits.DOOR_PART_BYTES, file.seen.size - file.offset), file.offset)
        is_last = file.offset + len(part) >= file.seen.size or not part
        told = self._session.call(
            Op.STORE, part, slip=name, path=path, upload=file.upload, offset=file.offset, is_last=is_last,
            is_executable=bool(status.st_mode & 0o100), durable=durable,
        ).fields  # fmt: skip
        file.digest.update(part)
        file.offset += len(part)
        if is_last:
            there = (told.whole("size"), told.whole("changed_ns"))
            self._known[path] = _Known(file.seen, there, file.digest.digest(), is_sent=True)
        return is_last

    def _add(self, name: str, path: str, fd: int) -> bool:
        """Send what a task has added to a file; False for one that it has changed in another way."""
        known, status = self._known.get(path), os.fstat(fd)
        seen = _seen(status)
        is_begun = known is None and self._adds_to(name, path)
        if is_begun:
            known = _NOTHING
        if known is None or not known.here.size <= seen.size <= known.here.size + limits.DOOR_PART_BYTES:
            return False
        if seen.size == known.here.size and status.st_mode & 0o100:
            return False  # that may be what has changed
        before = _digest_of(fd, known.here.size)
        if before is None or before.digest() != known.digest:
            return False
        added = os.pread(fd, seen.size - known.here.size, known.here.size)
        if not added and not is_begun:  # written as it was, or only its time has changed
            self._known[path] = known._replace(here=seen)
            return True
        try:
            self._session.call(Op.APPEND, added, slip=name, path=path, make=is_begun)
        except FileNotFoundError:
            return False
        before.update(added)
        # What is there now may have lines of others in it: it is fetched again before the next task.
        self._known[path] = _Known(seen, None, before.digest(), known.is_sent)
        return True

    def _adds_to(self, name: str, path: str) -> bool:
        """Whether a command only adds to this file. One without its scope is being shown, not sent."""
        scope = self._open.get(name)
        return scope is not None and scope.adds_to(path)

    # ------------------------------------------------------------ looks

    def _look(self, path: str) -> _Seen | None:
        status = self._beneath.status(path)
        return None if status is None else _seen(status)


def _seen(status: os.stat_result) -> _Seen:
    return _Seen(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _digest_of(fd: int, size: int) -> "_Digest | None":
    """The digest of the beginning of a file; None for one that is too long to read it again, or shorter."""
    if size > limits.MIRROR_UNNAMED_BYTES_MAX:
        return None
    digest, at = hashlib.sha256(), 0
    while at < size and (part := os.pread(fd, min(size - at, limits.DOOR_PART_BYTES), at)):
        digest.update(part)
        at += len(part)
    return digest if at == size else None


class _Told(NamedTuple):
    """What the door says of one piece: how many bytes of it came, and the file as it is."""

    size: int
    entry: Entry | None


def _told(pieces: list[object]) -> list[_Told]:
    found = [Fields({"it": piece}).fields("it") for piece in pieces]
    return [_Told(each.whole("bytes"), entry_of(each.all().get("entry"))) for each in found]


def _fitting(entries: list[Entry]) -> list[Entry]:
    """The first files that fit into one answer together; at least one."""
    found: list[Entry] = []
    size = 0
    for entry in entries[:_GROUP_MAX]:
        size += entry.size
        if found and size > limits.DOOR_PART_BYTES:
            break
        found.append(entry)
    return found
