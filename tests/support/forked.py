"""Forked children that do something until they are killed, and whose last words can be read."""

import contextlib
import json
import os
import signal
from collections.abc import Callable

__all__ = ["Child"]


class Child:
    """A forked child that does `work(say)`; what it said before it died can be read."""

    def __init__(self, work: Callable[[Callable[[object], None]], None]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(read)
                with contextlib.suppress(BrokenPipeError):
                    work(lambda said: _say(write, said))
                status = 0
            except BaseException as error:  # noqa: BLE001  the child's last word
                _say(write, {"error": f"{type(error).__name__}: {error}"})
            finally:
                os._exit(status)
        os.close(write)
        self._read = read
        self._text = b""
        self._over = False

    def first(self) -> object:
        """Wait for the child's first word."""
        while b"\n" not in self._text:
            part = os.read(self._read, 65536)
            if not part:
                raise AssertionError("the child died without a word")
            self._text += part
        return json.loads(self._text.split(b"\n", 1)[0])

    def said(self) -> list[object]:
        """Return what it has said until now, without waiting.

        What a power cut may not take away is what was acknowledged before it: once the file system is going
        down, xfs lets an fsync return without error although its log was dropped. A machine without power
        could not say anything either.
        """
        os.set_blocking(self._read, False)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._read, 1 << 20):
                self._text += part
        os.set_blocking(self._read, True)
        return self._words()

    def _words(self) -> list[object]:
        whole, _, _ = self._text.rpartition(b"\n")
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def kill(self, number: int = signal.SIGKILL) -> list[object]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return self.join()

    def join(self) -> list[object]:
        """Wait for its end and return all it said."""
        if not self._over:
            while part := os.read(self._read, 1 << 20):
                self._text += part
            os.close(self._read)
            os.waitpid(self.pid, 0)
            self._over = True
        return self._words()


def _say(fd: int, said: object) -> None:
    os.write(fd, json.dumps(said).encode() + b"\n")
