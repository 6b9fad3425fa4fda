"""A command that is run to its end while the caller waits: `pip download` of `pull`.

For the command line and the daemon's start, where nothing else happens meanwhile, and in threads. The process never
outlives the call: when the bound passes, or the caller is interrupted, it is killed with what it has started. What a
command leaves behind when it ends by itself is left alone. Engines go through the Keeper.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["run_to_end"]


def run_to_end(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    seconds_max: float,
    on_tick: Callable[[], None],
    tick_s: float,
) -> int | None:
    """Runs a command with its output in `log` and calls `on_tick` meanwhile.

    Returns its exit code, or None when it was killed because its time was up.
    """
    deadline = time.monotonic() + seconds_max
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            start_new_session=True,  # a group of its own, which can be killed as a whole
        )
    try:
        while time.monotonic() < deadline:
            try:
                return process.wait(tick_s)
            except subprocess.TimeoutExpired:
                on_tick()
        return None
    finally:
        if process.returncode is None:  # not waited for, so the group has its number still
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
