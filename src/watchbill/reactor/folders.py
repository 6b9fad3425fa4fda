"""The reactor's side of the folders, opened once and never looked up again.

The reactor may run as root while the folders belong to the daemon's user, who must not be able to turn its writes
elsewhere (`files/mailbox.py` says how that is prevented). Its log is a plain file with one name, or it is not written.
"""

import errno
import os
import stat
from pathlib import Path

from watchbill.errors import ConfigError
from watchbill.files.mailbox import Box
from watchbill.files.rotate import rotate
from watchbill.reactor import limits
from watchbill.reactor.intents import DONE_FOLDER, INTENTS_FOLDER, REACTOR_FOLDER

__all__ = ["Folders"]

LOG_FILE = "reactor.jsonl"
#: Answers are readable by every user of the folder.
_ANSWER_MODE = 0o644


class Folders:
    """ROOT/reactor and what is in it. Held by one reactor at a time."""

    def __init__(self, root: Path) -> None:
        self.path = root / REACTOR_FOLDER
        self._open: list[Box] = []
        try:
            top = self._keep(Box(Path(os.path.realpath(root))))  # the operator's own word: may be a link
            self._folder = self._keep(Box(Path(REACTOR_FOLDER), within=top))
            self.intents = self._keep(Box(Path(INTENTS_FOLDER), within=self._folder))
            self.done = self._keep(Box(Path(DONE_FOLDER), within=self._folder))
            self.intents.lock()
        except OSError as error:
            self.close()
            if error.errno == errno.EWOULDBLOCK:
                raise ConfigError(f"another reactor serves {self.path} already") from error
            if error.errno == errno.ENOENT and not root.exists():
                advice = "the first `watchbill up` on this root makes it; is --root right?"
                raise ConfigError(f"{root} does not exist: {advice}") from error
            raise ConfigError(f"cannot use {self.path}: {error.strerror}; is --root right?") from error

    def _keep(self, box: Box) -> Box:
        self._open.append(box)
        return box

    def close(self) -> None:
        """Lets go of everything."""
        for box in self._open:
            box.close()
        self._open.clear()

    def names(self) -> list[str]:
        """The first intents in the order of their names."""
        return self.intents.names(limits.REACTOR_INTENTS_MAX)

    def read(self, name: str) -> bytes:
        """An intent's text. Raises NotAFile, and FileNotFoundError when it was withdrawn."""
        return self.intents.read(name, limits.INTENT_BYTES_MAX)

    def answer(self, name: str, text: bytes) -> None:
        """Writes an answer whole. A name is answered once: see first whether `done` holds one."""
        self.done.put(name, text, mode=_ANSWER_MODE)

    def clean(self) -> None:
        """Removes answers, drafts and whatever else is old in both folders."""
        for box in (self.intents, self.done):
            box.clean(limits.REACTOR_KEEP_MS / 1000)

    def log(self, line: bytes) -> None:
        """Appends to the reactor's own log, which keeps one predecessor."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        strange = ConfigError(f"{self.path / LOG_FILE} is not a plain file of its own; remove it")
        try:
            descriptor = os.open(LOG_FILE, flags, 0o644, dir_fd=self._folder.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise strange from error
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise strange
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)
        if found.st_size > limits.REACTOR_LOG_BYTES_MAX:
            rotate(LOG_FILE, 2, dir_fd=self._folder.fd)
