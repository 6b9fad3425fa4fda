"""Arrivals: what a `Watch` is for an agent without the shared folder. The door tells that something has come."""

import contextlib
import os
from collections.abc import Mapping, Set
from typing import Protocol

from watchbill.fleet.folder import places
from watchbill.spool.faults import SpoolBroken
from watchbill.spool.jetstream.link import Link, Received

__all__ = ["Arrivals", "Heard"]

_FOLDERS = {folder.rpartition("/")[2]: folder for folder in (places.QUEUE, places.SIGNALS)}


class Arrivals(Protocol):
    """Wakes an agent when slips or signals may have arrived; `files.watch.Watch` is one."""

    @property
    def is_blind(self) -> bool: ...

    def fileno(self) -> int: ...

    def arrivals(self) -> Mapping[str, Set[str]]:
        """The folders in which something may have arrived, and the names there; without names it may be anything."""
        ...

    def close(self) -> None: ...


class Heard:
    """Arrivals that the door tells over a broker. While it says nothing the agent looks by itself."""

    def __init__(self, link: Link, subject: str) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._folders: set[str] = set()
        with contextlib.suppress(SpoolBroken):
            link.call(lambda: link.listen(f"{subject}.news.*", self._hear), "listen to the door")

    @property
    def is_blind(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._read

    def arrivals(self) -> Mapping[str, Set[str]]:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        found, self._folders = self._folders, set()
        return dict.fromkeys(found, frozenset())

    def close(self) -> None:
        read, write, self._read, self._write = self._read, self._write, -1, -1
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)

    def _hear(self, news: Received) -> None:
        folder = _FOLDERS.get(news.subject.rpartition(".")[2])
        if folder is not None and self._write >= 0:
            self._folders = self._folders | {folder}
            with contextlib.suppress(BlockingIOError, OSError):  # a full pipe wakes as well
                os.write(self._write, b"!")
