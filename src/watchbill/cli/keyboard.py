"""The keyboard and the whole screen of a terminal, for commands that are used with single keys.

Promises that the terminal is as it was when the block is left, however it is left. Ctrl-C stays a Ctrl-C; Ctrl-Z is
ignored, because a shell would be left on a screen that is not its own.
"""

import contextlib
import os
import re
import select
import termios
from collections.abc import Generator
from typing import TextIO

__all__ = ["Keyboard", "cut", "whole_screen"]

#: What terminals send for keys without a letter.
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[1~": "home", "\x1b[F": "end",
    "\x1b[4~": "end", "\x1b[Z": "back tab", "\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\b": "backspace", "\x1b": "escape",
}  # fmt: skip
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_STYLED = re.compile(r"(\x1b\[[0-9;]*m)")
#: A burst of keys, as a held arrow sends it.
_READ_BYTES = 256


class Keyboard:
    """Keys as they are pressed, and a way to wake who waits for them from another thread."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._heard, self._said = os.pipe()
        for end in (self._heard, self._said):
            os.set_blocking(end, False)

    @property
    def waker(self) -> int:
        """A descriptor: a byte written to it ends the waiting. For signals, too."""
        return self._said

    def wake(self) -> None:
        """Ends the waiting. From any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it is awake
            os.write(self._said, b"\0")

    def keys(self, within_s: float) -> list[str]:
        """The keys that were pressed, by name or letter; none when it was woken, or the time has passed.

        Raises EOFError when the terminal is gone."""
        ready, _, _ = select.select([self._source, self._heard], [], [], within_s)
        if self._heard in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._heard, _READ_BYTES)
        if self._source not in ready:
            return []
        try:
            content = os.read(self._source, _READ_BYTES)
        except OSError as error:  # EIO: its window was closed
            raise EOFError from error
        if not content:
            raise EOFError
        found: list[str] = _KEY.findall(content.decode("utf-8", "replace"))
        return [_NAMES.get(key, key) for key in found]

    def close(self) -> None:
        """Gives the descriptors back."""
        os.close(self._heard)
        os.close(self._said)


@contextlib.contextmanager
def whole_screen(source: int, out: TextIO) -> Generator[None]:
    """Single keys without echo, on a screen of its own."""
    before = termios.tcgetattr(source)
    changed = termios.tcgetattr(source)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    changed[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(source, termios.TCSADRAIN, changed)
    try:
        out.write("\x1b[?1049h\x1b[?25l")
        out.flush()
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):  # the window was closed
            out.write("\x1b[?25h\x1b[?1049l")
            out.flush()
            termios.tcsetattr(source, termios.TCSADRAIN, before)


def cut(line: str, width: int) -> str:
    """A line with colours in at most `width` columns; a break inside it would move all lines below."""
    shown, room = list[str](), width
    for part in _STYLED.split(" ".join(line.splitlines()).replace("\t", " ")):
        if part.startswith("\x1b["):
            shown.append(part)
        elif room > 0:
            shown.append(part[:room])
            room -= len(part[:room])
    return "".join(shown)
