"""A visitor: one agent at the door, with what the door remembers of it.

    the last answer of each of its sessions    a request that comes again gets the same answer and is not done again
    the record files that it has begun         one writer each; a door that is started anew has none, and says so
    the slips that it holds                    which files it may read and write (`scope`)

A request with an older number than the last one came late, and is dropped: its agent has gone on.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.door.files import Carrier
from watchbill.fleet.door.permits import Permits
from watchbill.fleet.door.wire import PROTOCOL, Message, Op, OtherVersion, answer_error, pack
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk, Log
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields

__all__ = ["Greeting", "Visitor"]


class Greeting(NamedTuple):
    """What a door says of itself."""

    fleet: str
    door: str  # of this start of the door

    def fields(self) -> dict[str, object]:
        return {"fleet": self.fleet, "door": self.door, "file_bytes_max": limits.MIRROR_FILE_BYTES_MAX}


class _Last(NamedTuple):
    number: int
    answer: bytes


_Act = Callable[[Fields, bytes], bytes]


class Visitor:
    """One agent. Used by one thread at a time."""

    def __init__(
        self, root: Path, agent: str, door: str, greet: Callable[[], Greeting], *, filled: bool = True
    ) -> None:
        self._permits = Permits(agent)
        self._root, self._held = root, places.processing_folder(agent)
        self._slips: OrderedDict[str, Slip] = OrderedDict()
        self._disk = FolderDisk(root, filled=filled)
        self._door, self._greet = door, greet
        self._sessions: OrderedDict[str, _Last] = OrderedDict()
        self._logs: OrderedDict[str, Log] = OrderedDict()
        self._carrier = carrier = Carrier(root, agent, self._held_slip)
        self._acts: Mapping[Op, _Act] = {
            Op.HELLO: self._hello, Op.NAMES: self._names, Op.READ: self._read, Op.PUT: self._put, Op.MOVE: self._move,
            Op.REMOVE: self._remove, Op.MAKE_FOLDER: self._make_folder, Op.CREATE_LOG: self._create_log,
            Op.APPEND_LOG: self._append_log, Op.CLOSE_LOG: self._close_log, Op.TREE: _carried(carrier.tree),
            Op.FETCH: _carried(carrier.fetch), Op.STORE: _carried(carrier.store),
            Op.APPEND: _carried(carrier.append), Op.DISCARD: _carried(carrier.discard),
        }  # fmt: skip

    def answer(self, request: Message) -> bytes | None:
        """The first part of the answer to a request; None for one that came too late."""
        fields = request.fields
        session, number = fields.text("session"), fields.whole("number")
        last = self._sessions.get(session, _Last(0, b""))
        if number < last.number:
            return None
        if fields.text("op") == Op.MORE.value:
            return self._part(last.answer, fields.whole("offset"))
        if number > last.number:
            last = self._sessions[session] = _Last(number, self._done(request))
            self._sessions.move_to_end(session)
            if len(self._sessions) > limits.DOOR_SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return self._part(last.answer, 0)

    def _part(self, answer: bytes, offset: int) -> bytes:
        """A part of an answer, and how long the whole is: longer ones come in several messages."""
        part = answer[offset : offset + limits.DOOR_PART_BYTES] if offset >= 0 else b""
        return pack({"size": len(answer), "door": self._door}, part)

    def close(self) -> None:
        """Close its record files and keep them."""
        while self._logs:
            self._logs.popitem()[1].close()

    def _done(self, request: Message) -> bytes:
        fields = request.fields
        try:
            if fields.text("session") not in self._sessions:
                self._carrier.sweep()
            if fields.whole("protocol") != PROTOCOL:
                spoken = f"the door speaks version {PROTOCOL} of its protocol, the agent {fields.whole('protocol')}"
                raise OtherVersion(spoken)
            return self._act_of(fields)(fields, request.body)
        except ValueError as error:  # a NUL character in a path, a line that is too long
            return answer_error(OSError(errno.EINVAL, str(error)))
        except (OSError, NotAFile, OursError) as error:
            return answer_error(error)

    def _act_of(self, fields: Fields) -> _Act:
        try:
            return self._acts[Op(fields.text("op"))]
        except (ValueError, KeyError):
            raise PermissionError(errno.EPERM, f"there is no operation {fields.text('op')!a}") from None

    # ------------------------------------------------------------ the board

    def _hello(self, _asked: Fields, _body: bytes) -> bytes:
        return pack(self._greet().fields())

    def _names(self, asked: Fields, _body: bytes) -> bytes:
        folder = asked.text("path")
        self._permits.shown(folder, [])
        self._greet()  # a folder that has gone is not an empty one
        return pack({"names": self._permits.shown(folder, self._disk.names(folder))})

    def _read(self, asked: Fields, _body: bytes) -> bytes:
        path = asked.text("path")
        self._permits.may_read(path)
        bytes_max = min(asked.whole("bytes_max"), limits.SLIP_BYTES_MAX)
        return pack({}, self._disk.read(path, bytes_max))

    def _put(self, asked: Fields, body: bytes) -> bytes:
        path = asked.text("path")
        self._permits.may_put(path)
        if len(body) > limits.FLEET_FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        self._disk.put(path, body)
        return pack({})

    def _move(self, asked: Fields, _body: bytes) -> bytes:
        source, target = asked.text("path"), asked.text("target")
        self._permits.may_move(source, target)
        self._disk.move(source, target)
        return pack({}, self._claimed(target))

    def _claimed(self, target: str) -> bytes:
        """The slip that was just claimed, so that it need not be asked for; empty where it was given back."""
        if not target.startswith(f"{self._held}/"):
            return b""
        try:
            return self._disk.read(target, limits.DOOR_PART_BYTES)
        except (OSError, NotAFile):  # it is large, or was taken back: the agent asks for it
            return b""

    def _remove(self, asked: Fields, _body: bytes) -> bytes:
        self._permits.may_remove(asked.text("path"))
        self._disk.remove(asked.text("path"))
        return pack({})

    def _make_folder(self, asked: Fields, _body: bytes) -> bytes:
        self._permits.may_make_folder(asked.text("path"))
        self._disk.make_folder(asked.text("path"))
        return pack({})

    def _held_slip(self, name: str) -> Slip:
        """A slip that the agent holds now. Raises _NotHeld for any other."""
        path = f"{self._held}/{name}"
        self._permits.may_read(path)
        try:
            os.stat(self._root / path, follow_symlinks=False)
            if name not in self._slips:
                self._slips[name] = Slip.decode(self._disk.read(path, limits.SLIP_BYTES_MAX))
                while len(self._slips) > limits.DOOR_SLIPS_MAX:
                    self._slips.popitem(last=False)
        except (FileNotFoundError, NotAFile, ValueError):
            raise _NotHeld(errno.EACCES, "the task is not in this agent's hands", name) from None
        except PermissionError as error:  # private for a while: whether the task was revoked is not known
            raise OSError(errno.EIO, f"{error.strerror} behind the door", path) from None
        return self._slips[name]

    # ------------------------------------------------------------ result logs

    def _create_log(self, asked: Fields, _body: bytes) -> bytes:
        path = asked.text("path")
        self._permits.may_log(path)
        self._logs[path] = self._disk.create_log(path)
        while len(self._logs) > limits.DOOR_LOGS_MAX:
            self._logs.popitem(last=False)[1].close()
        return pack({})

    def _append_log(self, asked: Fields, body: bytes) -> bytes:
        path = asked.text("path")
        self._permits.may_log(path)
        log = self._logs.get(path)
        if log is None or log.end != asked.whole("at"):
            raise OSError(errno.ESTALE, "the door was started anew: begin another record file", path)
        try:
            log.append(body.split(b"\n") if body else [])
        except OSError:
            self._logs.pop(path).close()
            raise
        return pack({"end": log.end})

    def _close_log(self, asked: Fields, _body: bytes) -> bytes:
        log = self._logs.pop(asked.text("path"), None)
        if log is not None:
            log.close()
        return pack({})


class _NotHeld(PermissionError):
    """A task is not in the agent's hands: it was revoked. What an agent hears is EACCES."""


def _carried(act: _Act) -> _Act:
    """An act on files of a task. What the door's own user may not touch is told apart from a task that was revoked:
    its result would not be read, so it would be run again at once, and again."""

    def acted(asked: Fields, body: bytes) -> bytes:
        try:
            return act(asked, body)
        except _NotHeld:
            raise
        except PermissionError as error:
            where = f" at {error.filename!r}" if error.filename else ""
            raise PermissionError(errno.EPERM, f"{error.strerror} behind the door{where}") from None

    return acted
