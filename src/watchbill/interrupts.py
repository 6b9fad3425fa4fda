"""Ctrl-C where there is nothing to clean up: the process ends with 130, without a word.

While modules are imported, and after a command has ended, a KeyboardInterrupt would come out as a traceback of Python's
own. `leave_at_once` ends the process there; `raise_again` makes Ctrl-C an exception for the time in which a command may
have something to clean up. A process that was started with Ctrl-C ignored, as a shell does in the background, keeps
ignoring it.
"""

import os
import signal

__all__ = ["STOPPED", "leave_at_once", "raise_again"]

#: The exit code of a command that was stopped with Ctrl-C.
STOPPED = 130


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process at once. For the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt; does nothing but after `leave_at_once`."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: object) -> None:
    os._exit(STOPPED)
