"""The config file on the disk: read and looked at without ever waiting longer than a deadline.

A config may be replaced by a pipe, or lie on a mount that hangs: neither may hold up the daemon. Only regular files are
read, and every look happens in a thread of its own. A look that hangs keeps that one thread until it returns; no second
one is started beside it.
"""

import errno
import os
import shlex
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from watchbill.config.limits import CONFIG_READ_MS
from watchbill.errors import ConfigError, Problem
from watchbill.limits import CONFIG_FILE_BYTES_MAX

__all__ = ["ConfigFile", "Stamp", "read_config", "read_once"]

_T = TypeVar("_T")

#: Modification time, size and inode: a file that has the same three was not changed.
Stamp = tuple[int, int, int]


class ConfigFile:
    """One path, looked at by one thread at a time. Callers wait for their turn; no call blocks beyond two deadlines."""

    def __init__(self, path: Path, *, deadline_ms: int = CONFIG_READ_MS) -> None:
        self.path = path
        self._deadline_s = deadline_ms / 1000
        self._turn = threading.Lock()
        self._looking: threading.Thread | None = None

    def read(self) -> bytes:
        """The content, at most one byte more than a config may have. Raises OSError; TimeoutError when it hangs."""
        return self._within_deadline(lambda: _read_regular(self.path))

    def stamp(self) -> Stamp:
        """What changes when the file does. Raises OSError; TimeoutError when it hangs."""
        return self._within_deadline(lambda: _stamp(self.path))

    def _within_deadline(self, look: Callable[[], _T]) -> _T:
        if not self._turn.acquire(timeout=self._deadline_s):
            raise self._late()
        try:
            return self._start(look)
        finally:
            self._turn.release()

    def _start(self, look: Callable[[], _T]) -> _T:
        if self._looking is not None and self._looking.is_alive():
            raise self._late()
        answers: list[_T] = []
        failures: list[OSError] = []
        # A daemon thread: the interpreter waits for any other at its end, and this one may hang for good.
        self._looking = threading.Thread(
            target=_look, args=(look, answers, failures), name="watchbill-config", daemon=True
        )
        self._looking.start()
        self._looking.join(self._deadline_s)
        for failure in failures:
            raise failure
        if not answers:
            raise self._late()
        return answers[0]

    def _late(self) -> TimeoutError:
        text = f"no answer within {self._deadline_s:g} s; does the mount it lies on hang?"
        return TimeoutError(errno.ETIMEDOUT, text, str(self.path))


def read_once(path: Path) -> bytes:
    """The content of a config, for a caller who reads it only once."""
    return ConfigFile(path).read()


def read_config(path: Path, source: Callable[[Path], bytes] = read_once) -> str:
    """The text of a config, read by `source`, which raises OSError. Raises ConfigError with what is wrong."""
    try:
        content = source(path)
    except OSError as error:  # any errno: the operator named this file and must see why it is not read
        reason = (error.strerror or str(error)).lower()
        hint = (
            f"watchbill config init {shlex.quote(str(path))} writes one"
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise ConfigError(
            problems=[Problem(str(path), None, "", f"cannot be read: {reason}", hint)]
        ) from error
    if len(content) > CONFIG_FILE_BYTES_MAX:
        size = f"larger than {CONFIG_FILE_BYTES_MAX // 1024} KiB"
        raise ConfigError(problems=[Problem(str(path), None, "", size, "is this the right file?")])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            problems=[Problem(str(path), line, "", "is not UTF-8 text", "save the file as UTF-8")]
        ) from error


def _look(look: Callable[[], _T], answers: list[_T], failures: list[OSError]) -> None:
    try:
        answers.append(look())
    except OSError as error:  # any errno: the thread that waits raises it
        failures.append(error)


def _read_regular(path: Path) -> bytes:
    # Without O_NONBLOCK the open itself waits for a writer, if this is a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(CONFIG_FILE_BYTES_MAX + 1)


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino
