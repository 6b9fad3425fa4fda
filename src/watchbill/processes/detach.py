"""A daemon in the background: started in a session of its own, with its output in a file.

Nothing of the process is owned here afterwards: `ROOT/run/daemon.json` holds its pid. Never waits.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

__all__ = ["exit_code_of", "spawn_detached"]


def spawn_detached(argv: Sequence[str], log: Path) -> int:
    """Starts a command that outlives us and returns its pid. Its output is appended to `log`."""
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.posix_spawn(
        argv[0],
        list(argv),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,  # closing a terminal does not end it, and Ctrl-C here does not reach it
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    )


def exit_code_of(pid: int) -> int | None:
    """The exit code of a child that has ended; None while it runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another thread has already waited for it
        return 1
    return os.waitstatus_to_exitcode(status) if ended else None
