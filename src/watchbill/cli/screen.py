"""What a person sees of `up`: a bar for the download, warnings, and the last words of the start.

`ready http://HOST:PORT` is the last line on standard output, for scripts; what to try next goes before it.
"""

import contextlib
import logging
import os
import sys
from contextlib import AbstractContextManager

from watchbill.cli.progress import Report, byte_bar
from watchbill.cli.terminal import Terminal, plain
from watchbill.cli.welcome import next_steps

__all__ = ["UpScreen"]

LOG_LEVEL_VARIABLE = "WATCHBILL_LOG_LEVEL"


class UpScreen:
    """The daemon's way to speak to whoever started it."""

    def __init__(self, terminal: Terminal, command: str) -> None:
        self._terminal = terminal
        self._command = command  # by which the daemon is found from another terminal
        _set_up_log()

    def pulling(self, text: str) -> AbstractContextManager[Report]:
        """A bar for a download; one line where nobody watches."""
        if not self._terminal.is_live:
            self._terminal.note(text)
        return byte_bar(self._terminal, text)

    def warn(self, text: str) -> None:
        """Something is wrong, and Watchbill goes on, also when nobody is there any more to be told."""
        with contextlib.suppress(OSError):  # the terminal was closed, or the reader of the pipe has left
            print(f"warning: {plain(text)}", file=sys.stderr, flush=True)

    def ready(self, url: str, model: str, *, newcomer: bool) -> None:
        """Says what to try next, then that the daemon answers."""
        if newcomer or self._terminal.is_live:
            self._terminal.note("try next:")
            for step in next_steps(url, model, self._command):
                self._terminal.note(f"  {step}")
        print(f"ready {url}", flush=True)


def _set_up_log() -> None:
    """One line per decision on standard error; warnings only unless more is asked for."""
    level = os.environ.get(LOG_LEVEL_VARIABLE, "WARNING").upper()
    known = level if level in logging.getLevelNamesMapping() else "WARNING"
    logging.basicConfig(
        level=known, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
