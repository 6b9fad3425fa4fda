"""Files through the door: what an agent fetches for a task that it holds, and what the task leaves behind.

Every request names the slip. The door reads it in the agent's own folder, so that a revoked task can neither read nor
write any more: what an agent sends too late does not exist. Paths are walked without following links (`beneath`), so
that no link in a batch leads to files of this machine. A file that is sent becomes visible when it is whole.
"""

import contextlib
import errno
import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from watchbill.errors import OursError
from watchbill.files.atomic import FILE_MODE, NotAFile, pwrite_all, sync_filesystem, write_all
from watchbill.files.beneath import Beneath, Entry
from watchbill.files.patterns import matches
from watchbill.fleet import limits
from watchbill.fleet.door.scope import RULES, Scope
from watchbill.fleet.door.wire import pack
from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields
from watchbill.units import format_bytes

__all__ = ["DRAFT", "Carrier", "entry_of"]

#: How drafts of files that are being sent begin, in the folder of all drafts.
DRAFT = ".door-"
_UPLOAD = re.compile(r"[0-9a-f]{16}")
_EXECUTABLE = 0o110
#: Trees of an agent that are remembered: it fetches what it was shown, one task after the other.
_TREES_KEPT = 2


class Carrier:
    """The files of one agent's tasks. `held` reads a slip that the agent holds, or raises."""

    def __init__(self, root: Path, agent: str, held: Callable[[str], Slip]) -> None:
        self._beneath, self._agent, self._held = Beneath(root), agent, held
        self._scopes: OrderedDict[str, Scope] = OrderedDict()
        self._shown: OrderedDict[str, frozenset[str]] = OrderedDict()

    # ------------------------------------------------------------ to the agent

    def tree(self, asked: Fields, _body: bytes) -> bytes:
        """What comes with a task, and what is too large to come unless the task names it."""
        name = asked.text("slip")
        scope = self._scope(name)
        named = {entry.path: entry for entry in self._named(scope)}
        found: dict[str, Entry] = {}
        left_out: list[list[object]] = []
        for entry in itertools.chain(self._own(scope), named.values()):
            if entry.size > limits.MIRROR_UNNAMED_BYTES_MAX and entry.path not in named:
                left_out.append(list(entry))
                continue
            found[entry.path] = entry
            _refuse_too_much(found, entry)
        self._shown[name] = frozenset(found)
        while len(self._shown) > _TREES_KEPT:
            self._shown.popitem(last=False)
        return pack({"entries": [list(entry) for entry in found.values()], "left_out": left_out})

    def fetch(self, asked: Fields, _body: bytes) -> bytes:
        """Parts of files, one behind the other; of each how many bytes, and the file as it is now."""
        name = asked.text("slip")
        self._scope(name)
        shown = self._shown.get(name, frozenset())
        told: list[object] = []
        parts: list[bytes] = []
        room = limits.DOOR_PART_BYTES
        for piece in map(_fields, asked.items("pieces")):
            if piece.text("path") not in shown:
                raise OSError(errno.ESTALE, "not among the files that the door has shown", piece.text("path"))
            part, entry = self._piece(piece, room)
            room -= len(part)
            parts.append(part)
            told.append({"bytes": len(part), "entry": None if entry is None else list(entry)})
        return pack({"pieces": told}, b"".join(parts))

    def _piece(self, piece: Fields, room: int) -> tuple[bytes, Entry | None]:
        path = piece.text("path")
        try:
            fd = self._beneath.open(path)
        except (FileNotFoundError, NotADirectoryError, NotAFile):
            return b"", None
        try:
            status, offset = os.fstat(fd), max(0, piece.whole("offset"))
            # Not beyond the size of that moment: a file that grows is then whole, and is fetched again later.
            wanted = min(max(0, piece.whole("bytes")), room, max(0, status.st_size - offset))
            part = os.pread(fd, wanted, offset)
        finally:
            os.close(fd)
        is_executable = bool(status.st_mode & 0o100)
        return part, Entry(path, False, status.st_size, status.st_mtime_ns, is_executable)

    def _own(self, scope: Scope) -> Iterator[Entry]:
        """The rules, the plan and the batch."""
        rules = self._beneath.entry(RULES)
        found = itertools.chain(
            (rules,) if rules is not None and not rules.is_folder else (),
            self._beneath.walk(scope.plan, without=frozenset({scope.history})),
            self._beneath.walk(scope.batch, without=frozenset({scope.others})),
            self._beneath.walk(scope.task),
        )
        return (entry for entry in found if scope.is_shown(entry.path))

    def _named(self, scope: Scope) -> Iterator[Entry]:
        """What `requires` and inputs name; of a folder everything in it."""
        for pattern in scope.named:
            for path in itertools.islice(matches(pattern, self._beneath.root), limits.MIRROR_FILES_MAX):
                with contextlib.suppress(PermissionError):  # a pattern that leads out and in again
                    yield from self._whole(path.removeprefix(f"{self._beneath.root}/").rstrip("/"), scope)

    def _whole(self, path: str, scope: Scope) -> Iterator[Entry]:
        entry = self._beneath.entry(path)
        if entry is None or not scope.is_shown(path):
            return
        yield entry
        if entry.is_folder:
            yield from (each for each in self._beneath.walk(path) if scope.is_shown(each.path))

    # ------------------------------------------------------------ from the agent

    def store(self, asked: Fields, body: bytes) -> bytes:
        """Part of a file; with the last one the file is there. Or a folder."""
        path = self._writable(asked)
        durable = self._is_kept(asked)
        if asked.flag("is_folder"):
            with self._beneath.folder(path, make=True) as made:
                if durable:
                    sync_filesystem(made)
                return pack({})
        draft, offset = self._draft(asked), max(0, asked.whole("offset"))
        with self._beneath.folder(places.DRAFTS) as drafts:
            fd = os.open(
                draft, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=drafts
            )
            try:
                self._write(fd, path, offset, body)
            except OSError:  # the beginning is sent again, and must not fill the disk meanwhile
                os.unlink(draft, dir_fd=drafts)
                os.close(fd)
                raise
            try:
                if not asked.flag("is_last"):
                    return pack({})
                if asked.flag("is_executable"):
                    os.fchmod(fd, FILE_MODE | _EXECUTABLE)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            return self._publish(path, draft, drafts, durable=durable)

    def sweep(self) -> None:
        """Remove what a former start of the agent has sent in part."""
        with self._beneath.folder(places.DRAFTS) as drafts:
            for name in os.listdir(drafts):
                own = name.removeprefix(f"{DRAFT}{self._agent}-")
                if own != name and _UPLOAD.fullmatch(own):
                    os.unlink(name, dir_fd=drafts)

    @staticmethod
    def _write(fd: int, path: str, offset: int, body: bytes) -> None:
        if offset == 0:
            os.ftruncate(fd, 0)
        elif os.fstat(fd).st_size != offset:
            raise OSError(
                errno.ESTALE, "the beginning of the file is not there any more: send it again", path
            )
        if offset + len(body) > limits.MIRROR_FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, _too_large(offset + len(body)), path)
        if body:
            pwrite_all(fd, body, offset)

    def _publish(self, path: str, draft: str, drafts: int, *, durable: bool) -> bytes:
        parent, _, name = path.rpartition("/")
        has_parent = self._beneath.entry(parent) is not None
        with self._beneath.parent(path, make=True) as folder:
            os.rename(draft, name, src_dir_fd=drafts, dst_dir_fd=folder)
            if durable:
                os.fsync(folder) if has_parent else sync_filesystem(folder)
        return self._now(path)

    def append(self, asked: Fields, body: bytes) -> bytes:
        """Bytes behind the end of a file that several tasks add to; with `make` the first of them makes it."""
        path, make = self._writable(asked), asked.flag("make")
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._beneath.parent(path, make=make) as folder:
            is_new = make and self._beneath.entry(path) is None
            fd = os.open(
                path.rpartition("/")[2], flags | (os.O_CREAT if make else 0), FILE_MODE, dir_fd=folder
            )
            try:
                write_all(fd, body)
                if self._is_kept(asked):
                    sync_filesystem(fd) if is_new else os.fsync(fd)
            finally:
                os.close(fd)
        return pack({})

    def discard(self, asked: Fields, _body: bytes) -> bytes:
        """Remove a file."""
        self._beneath.remove(self._writable(asked))
        return pack({})

    def _writable(self, asked: Fields) -> str:
        path = asked.text("path")
        if not self._scope(asked.text("slip")).may_write(path):
            raise PermissionError(errno.EPERM, "a task may not write this", path)
        return path

    def _is_kept(self, asked: Fields) -> bool:
        """Whether a power cut must not take it once the agent knows that it is here: all but what a task printed."""
        logs = f"{self._scope(asked.text('slip')).others}/"
        return asked.flag("durable") or not asked.text("path").startswith(logs)

    def _draft(self, asked: Fields) -> str:
        upload = asked.text("upload")
        if not _UPLOAD.fullmatch(upload):
            raise PermissionError(errno.EPERM, "the upload has no number")
        return f"{DRAFT}{self._agent}-{upload}"

    def _now(self, path: str) -> bytes:
        entry = self._beneath.entry(path)
        return pack(
            {
                "size": 0 if entry is None else entry.size,
                "changed_ns": 0 if entry is None else entry.changed_ns,
            }
        )

    # ------------------------------------------------------------ slips

    def _scope(self, name: str) -> Scope:
        """What a slip in the agent's hands gives it. Raises PermissionError where it is not there any more."""
        slip = self._held(name)
        if name not in self._scopes:
            try:
                self._scopes[name] = Scope(slip)
            except OursError as error:
                raise PermissionError(errno.EPERM, f"the slip gives no files: {error}", name) from None
            while len(self._scopes) > limits.DOOR_SLIPS_MAX:
                self._scopes.popitem(last=False)
        return self._scopes[name]


def entry_of(value: object) -> Entry | None:
    """An entry from a message; None for anything else."""
    match value:
        case [str(path), bool(is_folder), int(size), int(changed_ns), bool(is_executable)]:
            return Entry(path, is_folder, size, changed_ns, is_executable)
        case _:
            return None


def _fields(value: object) -> Fields:
    return Fields({"it": value}).fields("it")


def _refuse_too_much(found: dict[str, Entry], entry: Entry) -> None:
    if len(found) > limits.MIRROR_FILES_MAX:
        raise OSError(errno.EFBIG, f"the plan and its batch have more than {limits.MIRROR_FILES_MAX} files")
    if entry.size > limits.MIRROR_FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, _too_large(entry.size), entry.path)


def _too_large(size: int) -> str:
    return f"{format_bytes(size)} are more than the {format_bytes(limits.MIRROR_FILE_BYTES_MAX)} that are carried"
