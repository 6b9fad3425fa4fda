"""Commands that end with us: one in the foreground, with our terminal and our signals, and one in the background.

`maintenance start -- COMMAND` holds memory only as long as its command lives, and the private daemon of an agent is
there for that agent alone. Both are told to end when we are killed, whatever kills us; their own child processes are
their business.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from watchbill.processes.guard import PR_SET_PDEATHSIG, prctl

__all__ = ["Bound", "run_attached", "spawn_bound"]

#: A command in the background that ends with us.
Bound = subprocess.Popen[bytes]

#: Signals that a terminal sends to both of us: the command decides what they mean.
_SHARED = (signal.SIGINT, signal.SIGQUIT)


def run_attached(argv: Sequence[str], *, meanwhile: Callable[[], None] | None = None) -> int:
    """Runs a command with our input and output, and returns its exit code: 128 + N when signal N ended it.

    `meanwhile` is called in a thread once the command runs. Raises OSError when it cannot be started.
    """
    before = {number: signal.getsignal(number) for number in (*_SHARED, signal.SIGTERM)}

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)

    process = subprocess.Popen(argv, preexec_fn=_dying_with(os.getpid()))  # noqa: PLW1509  no thread of ours is running yet
    if meanwhile is not None:
        threading.Thread(target=meanwhile, daemon=True).start()
    try:
        for number in _SHARED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, pass_on)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def spawn_bound(argv: Sequence[str], log: Path) -> Bound:
    """Starts a command in a session of its own that gets SIGTERM when we die. Its output is appended to `log`."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True,
            preexec_fn=_dying_with(os.getpid()),  # noqa: PLW1509  called before there are threads
        )  # fmt: skip
    finally:
        os.close(fd)


def _dying_with(parent: int) -> Callable[[], None]:
    """What a fresh child does to be told of the end of its parent."""

    def prepare() -> None:
        if sys.platform == "linux":
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in (*_SHARED, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:  # we died before the kernel knew about the signal
            os._exit(1)

    return prepare
