"""The command line. Sub-commands are imported lazily, so that `watchbill status` starts quickly.

Runs a command and turns errors into exit codes: every error that Watchbill raises on purpose, and every error of the
operating system, becomes one line on standard error and an exit code that scripts can rely on.

    0 done   1 failed   2 wrong use or config   3 no daemon   130 stopped with Ctrl-C
"""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import TextIO

from watchbill.cli.quick import lead_with_command, run_quickly, understand
from watchbill.errors import IllegalTransition, NotReachable, OursError, WatchbillError
from watchbill.interrupts import STOPPED, keep_exit_code, leave_at_once

__all__ = ["DONE", "FAILED", "NO_DAEMON", "STOPPED", "WRONG_USE", "main", "run"]

DONE, FAILED, WRONG_USE, NO_DAEMON = 0, 1, 2, 3

#: Error handlers for characters that the encoding of a stream cannot represent, for results and for messages.
_EXACT, _READABLE = "watchbill-exact", "watchbill-readable"


def main() -> None:
    """Runs the `watchbill` command and exits with its exit code."""
    keep_exit_code()
    _stand_in_for_closed_streams()
    codecs.register_error(_EXACT, partial(_spell, is_exact=True))
    codecs.register_error(_READABLE, partial(_spell, is_exact=False))
    for stream, errors in ((sys.stdout, _EXACT), (sys.stderr, _READABLE)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, while the first was handled
        code = STOPPED
    leave_at_once()  # a Ctrl-C during Python's own shutdown must not show a traceback
    sys.exit(code)


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
    except BrokenPipeError:  # the reader (`head`, a pager) has closed the pipe
        _drop(sys.stdout)
        return DONE
    except SystemExit as leaving:
        # The library that shows the help does the same.
        if isinstance(leaving.__context__, BrokenPipeError):
            return DONE
        raise
    except WatchbillError as error:
        return _complain(str(error), _exit_code(error))
    except OSError as error:
        if error.filename is None:
            # The output itself may have failed, and Python would write to it once more at exit.
            _drop(sys.stdout)
        what = "cannot read or write" if error.filename is None else os.fsdecode(error.filename)
        return _complain(f"{what}: {(error.strerror or str(error)).lower()}", FAILED)
    return code


def _spell(error: UnicodeError, *, is_exact: bool) -> tuple[str | bytes, int]:
    """Sets how a stream writes what its encoding cannot represent: Greek on an ASCII terminal must not be an error.

    A path that Python could not decode is written byte for byte: in a result always, because a script works with it; in
    a message where its bytes are UTF-8, because a message is text.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    rest = error.object[error.start : error.end]
    undecoded = "".join(takewhile(lambda letter: "\udc80" <= letter <= "\udcff", rest))
    if not undecoded:
        return "?", error.start + 1
    content = undecoded.encode("utf-8", "surrogateescape")
    if not is_exact and not _is_utf8(content):
        return "?" * len(undecoded), error.start + len(undecoded)
    return content, error.start + len(undecoded)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _dispatch(arguments: Sequence[str]) -> int:
    asked = understand(arguments)
    if asked is not None:
        return run_quickly(asked)
    if arguments and arguments[0] in {"plan", "gpus", "signal", "approve"}:
        from watchbill.cli.plan_quick import run_plan, understand_plan

        about_plans = understand_plan(arguments)
        if about_plans is not None:
            return run_plan(about_plans)
    try:
        from watchbill.cli.app import run_app
    except ModuleNotFoundError as error:
        from watchbill.cli.plan_quick import mistake_in, usage_of

        usage = usage_of(arguments)
        if usage and (not arguments or {"--help", "-h"} & set(arguments)):
            sys.stdout.write(usage)
            return DONE
        if usage and arguments[0] in {"plan", "gpus", "signal", "approve"}:
            # Only mistakes of these come here: what is right needs no package.
            raise OursError(
                mistake_in(arguments), hint=usage.splitlines()[0].replace("Usage: ", "write: ")
            ) from None
        raise OursError(
            f"this needs the package {error.name}, and it is not installed",
            hint="install Watchbill with its packages; plan, status, gpus, signal and approve work without",
        ) from error
    return run_app(arguments)


def _stand_in_for_closed_streams() -> None:
    """Opens /dev/null for streams that a script has closed (`>&-`), for which Python has no object at all."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end


def _drop(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code(error: WatchbillError) -> int:
    if isinstance(error, NotReachable):
        return NO_DAEMON
    if isinstance(error, OursError) and not isinstance(error, IllegalTransition):
        return WRONG_USE
    return FAILED


def _complain(text: str, code: int) -> int:
    from watchbill.cli.terminal import plain

    try:
        print(f"watchbill: {plain(text)}", file=sys.stderr, flush=True)
    except OSError:  # a full disk, or a closed pipe: the exit code has to suffice
        _drop(sys.stderr)
    return code
