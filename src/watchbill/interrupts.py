"""Ctrl-C where there is nothing to clean up: the process ends with 130, without a word.

While modules are imported, and after a command has ended, a KeyboardInterrupt would come out as a traceback of Python's
own. `leave_at_once` ends the process there; `raise_again` makes Ctrl-C an exception for the time in which a command may
have something to clean up. Python drops an exception that is raised in a callback of its import machinery or in a
`__del__`: an interrupt that was dropped there is delivered again. A process that was started with Ctrl-C ignored, as a
shell does in the background, keeps ignoring it.
"""

import atexit
import os
import signal
import sys

__all__ = ["STOPPED", "keep_exit_code", "leave_at_once", "raise_again"]

#: The exit code of a command that was stopped with Ctrl-C.
STOPPED = 130
#: Seconds until an interrupt that Python dropped is delivered again.
_AGAIN = 0.01


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process at once. For the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt; does nothing but after `leave_at_once`."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, _interrupt)
        sys.unraisablehook = _deliver_again


def _deliver_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Has an interrupt come once more, because the place at which it arrived cannot pass it on to the command."""
    if dropped.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    else:
        sys.__unraisablehook__(dropped)


def keep_exit_code() -> None:
    """Has a Ctrl-C ignored at the very end of the process. Call it before anything else is registered with `atexit`.

    Python takes its handlers away before the process has ended; a Ctrl-C after that would replace the exit code by the
    signal. All threads have ended by then, so nothing is left that could hang.
    """
    atexit.register(_ignore)


def _ignore() -> None:
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


def _leave(_number: int, _frame: object) -> None:
    os._exit(STOPPED)
