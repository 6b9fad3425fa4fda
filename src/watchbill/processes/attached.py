"""A command in the foreground: it has our terminal, our signals and its own exit code.

For `maintenance start -- COMMAND`, which holds memory only as long as it lives. The command is killed when we are
killed; its own child processes are not our business.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from watchbill.processes.guard import PR_SET_PDEATHSIG, prctl

__all__ = ["run_attached"]

#: Signals that a terminal sends to both of us: the command decides what they mean.
_SHARED = (signal.SIGINT, signal.SIGQUIT)


def run_attached(argv: Sequence[str], *, meanwhile: Callable[[], None] | None = None) -> int:
    """Runs a command with our input and output, and returns its exit code: 128 + N when signal N ended it.

    `meanwhile` is called in a thread once the command runs. Raises OSError when it cannot be started.
    """
    before = {number: signal.getsignal(number) for number in (*_SHARED, signal.SIGTERM)}
    parent = os.getpid()

    def die_with_us() -> None:
        if sys.platform == "linux":
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:  # we died before the kernel knew about the signal
            os._exit(1)

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)

    process = subprocess.Popen(argv, preexec_fn=die_with_us)  # noqa: PLW1509  no thread of ours is running yet
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
