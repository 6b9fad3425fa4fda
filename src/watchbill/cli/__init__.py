"""The command line. Sub-commands are imported lazily, so that `watchbill status` starts in a blink.

This module owns the way in and the way out: every error that Watchbill raises on purpose becomes one line on
standard error and an exit code that scripts can rely on.

    0 done   1 failed   2 wrong use or config   3 no daemon   130 stopped with Ctrl-C
"""

import io
import os
import sys
from collections.abc import Sequence

from watchbill.cli.quick import lead_with_command, run_quickly, understand
from watchbill.errors import IllegalTransition, NotReachable, OursError, WatchbillError

__all__ = ["DONE", "FAILED", "NO_DAEMON", "STOPPED", "WRONG_USE", "main", "run"]

DONE, FAILED, WRONG_USE, NO_DAEMON, STOPPED = 0, 1, 2, 3, 130


def main() -> None:
    """Runs the `watchbill` command and leaves with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # an answer in Greek must not end in an error on an ASCII terminal
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    if sys.platform == "win32":
        return _complain(
            "Watchbill runs on Linux, and its command line on macOS; use WSL on Windows", WRONG_USE
        )
    try:
        code = _dispatch(lead_with_command(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:  # the reader (`head`, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except WatchbillError as error:
        return _complain(str(error), _exit_code(error))
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    asked = understand(arguments)
    if asked is not None:
        run_quickly(asked)
        return DONE
    from watchbill.cli.app import run_app

    return run_app(arguments)


def _exit_code(error: WatchbillError) -> int:
    if isinstance(error, NotReachable):
        return NO_DAEMON
    if isinstance(error, OursError) and not isinstance(error, IllegalTransition):
        return WRONG_USE
    return FAILED


def _complain(text: str, code: int) -> int:
    from watchbill.cli.terminal import plain

    print(f"watchbill: {plain(text)}", file=sys.stderr, flush=True)
    return code
