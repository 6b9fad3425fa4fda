"""Processes that are stopped as a debugger stops them."""

import os
import signal
from pathlib import Path

from support.eventually import wait_until

__all__ = ["stop"]


def stop(pid: int) -> None:
    """Stops a process (SIGSTOP) and returns when it stands still.

    The signal waits for one thread of the process, and until that one gets a processor the others go on: on a busy
    machine a server answered several requests in that time."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(_stands_still(thread) for thread in Path(f"/proc/{pid}/task").iterdir()))


def _stands_still(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return True
