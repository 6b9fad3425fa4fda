"""The shared folder as an agent without it touches it: each operation of `Disk` is a request to the door.

Claims, tokens, result logs, heartbeats and signals are therefore the same as on a mount, and so is what they survive: a
request without an answer raises OSError, and whether it was carried out is found out the way it is after a mount has
lost a reply. Only what agents do is there; the door refuses the rest.
"""

import errno
from collections.abc import Iterable

from watchbill.fleet import limits
from watchbill.fleet.door.session import Session
from watchbill.fleet.door.wire import Op
from watchbill.fleet.folder.disk import Log

__all__ = ["DoorDisk"]


class DoorDisk:
    """A `Disk` behind the door."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._claimed: dict[str, bytes] = {}  # slips that came with the answer to their claim

    def names(self, folder: str) -> list[str]:
        return list(self._session.call(Op.NAMES, path=folder).fields.texts("names"))

    def read(self, path: str, bytes_max: int) -> bytes:
        if path in self._claimed:
            return self._claimed.pop(path)
        return self._session.call(Op.READ, path=path, bytes_max=bytes_max).body

    def put(self, path: str, data: bytes, *, draft: str = "", durable: bool = False) -> None:
        if draft or durable:
            raise _not_an_agents(path)
        if len(data) > limits.DOOR_PART_BYTES:
            raise OSError(errno.EMSGSIZE, f"{len(data)} bytes do not fit into one message", path)
        self._session.call(Op.PUT, data, path=path)

    def move(self, source: str, target: str) -> None:
        self._claimed.clear()
        content = self._session.call(Op.MOVE, path=source, target=target).body
        if content:
            self._claimed[target] = content

    def remove(self, path: str) -> None:
        self._session.call(Op.REMOVE, path=path)

    def make_folder(self, path: str) -> None:
        self._session.call(Op.MAKE_FOLDER, path=path)

    def create_log(self, path: str) -> Log:
        self._session.call(Op.CREATE_LOG, path=path)
        return _DoorLog(self._session, path)

    def reopen_log(self, path: str, end: int) -> Log:
        raise _not_an_agents(path)

    def has(self, pattern: str) -> bool:
        raise _not_an_agents(pattern)

    def take(self, path: str) -> None:
        raise _not_an_agents(path)

    def sync(self, path: str) -> None:
        raise _not_an_agents(path)

    def lines(self, path: str, offset: int, until: int | None = None) -> tuple[list[bytes], int]:
        raise _not_an_agents(path)


def _not_an_agents(path: str) -> OSError:
    return PermissionError(errno.EPERM, "only the coordinator does this", path)


class _DoorLog:
    """A record file that the door has open for this agent."""

    def __init__(self, session: Session, path: str) -> None:
        self._session, self._path = session, path
        self.end = 0

    def append(self, payloads: Iterable[bytes]) -> None:
        for part in _parts(payloads):
            self._append(part)

    def _append(self, payloads: list[bytes]) -> None:
        body = b"\n".join(payloads)
        self.end = self._session.call(Op.APPEND_LOG, body, path=self._path, at=self.end).fields.whole("end")

    def close(self) -> None:
        try:
            self._session.call(Op.CLOSE_LOG, path=self._path)
        except OSError:  # the door closes it by itself
            return


def _parts(payloads: Iterable[bytes]) -> Iterable[list[bytes]]:
    """Lines in groups that fit into one message each."""
    part: list[bytes] = []
    size = 0
    for payload in payloads:
        if b"\n" in payload or len(payload) >= limits.DOOR_PART_BYTES:
            raise ValueError(f"a line of {len(payload)} bytes cannot be reported")
        if size + len(payload) >= limits.DOOR_PART_BYTES:
            yield part
            part, size = [], 0
        part.append(payload)
        size += len(payload) + 1
    if part:
        yield part
