"""Signals: received in a thread of their own, so that they work whatever the event loop waits for.

Python runs signal handlers in its main thread only, which may hang in a system call: a dead mount, a driver. The number
of a signal is therefore read here from a pipe that the interpreter writes at once, and passed to the event loop as a
call. It promises that a process that was told to stop does so: this thread ends the process at its deadline. The
guards then end the engines.

    first TERM or INT    on_stop is called on the loop; the process may take LEAVE_MS_MAX
    a second one         on_stop again; LEAVE_NOW_MS_MAX from here
    leaving(code)        all work is done: LEAVE_LAST_MS_MAX for the interpreter's own end
"""

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from watchbill.processes.limits import LEAVE_LAST_MS_MAX, LEAVE_MS_MAX, LEAVE_NOW_MS_MAX

__all__ = ["Signals"]

_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}
#: A byte that is no signal: check the deadline again.
_LOOK = b"\0"


class Signals:
    """Receives TERM, INT and HUP for one event loop. Create it on the main thread, inside that loop."""

    def __init__(
        self, on_stop: Callable[[int], None], on_reload: Callable[[], None], *, now_ms: int = LEAVE_NOW_MS_MAX
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_stop, self._on_reload = on_stop, on_reload
        self._now_ms = now_ms
        self._exit_code = 0
        self._times = 0  # number of times it was told to stop
        self._deadline: float | None = None  # on the monotonic clock
        self._heard, self._said = os.pipe()
        for end in (self._heard, self._said):
            os.set_blocking(end, False)
        # The pipe before the handlers: a signal between the two would go to the pipe of the event loop, where nothing
        # waits for it, and to a handler that does nothing. The daemon then went on after a Ctrl-C during its start.
        signal.set_wakeup_fd(self._said, warn_on_full_buffer=False)
        for number in (*_EXIT_CODES, signal.SIGHUP):
            signal.signal(number, _on_nothing)
        threading.Thread(target=self._listen, name="watchbill-signals", daemon=True).start()

    def leaving(self, exit_code: int) -> None:
        """Notes that all work is done; anything that still hangs is not waited for."""
        self._exit_code = exit_code
        self._leave_within(LEAVE_LAST_MS_MAX)
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the thread as well
            os.write(self._said, _LOOK)

    def _listen(self) -> None:
        """The thread. It ends with the process."""
        while True:
            ready, _, _ = select.select([self._heard], [], [], self._patience_s())
            if not ready:
                self._end()
            for number in os.read(self._heard, 256):
                self._take(number)

    def _patience_s(self) -> float | None:
        deadline = self._deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _take(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._call(self._on_reload)
        elif number in _EXIT_CODES:
            exit_code = _EXIT_CODES[signal.Signals(number)]
            self._times += 1
            if self._times == 1:
                self._exit_code = exit_code
            self._leave_within(LEAVE_MS_MAX if self._times == 1 else self._now_ms)
            self._call(self._on_stop, exit_code)

    def _leave_within(self, millis: int) -> None:
        """Sets the deadline; it only ever moves nearer."""
        deadline = time.monotonic() + millis / 1000
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _call(self, act: Callable[..., None], *words: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending already
            self._loop.call_soon_threadsafe(act, *words)

    def _end(self) -> None:
        """Ends the process without waiting for what hangs, and shows where it hangs."""
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            print("warning: exiting although something still hangs:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        os._exit(self._exit_code)


def _on_nothing(*_: object) -> None:
    """Does nothing. Python writes a signal to the pipe only where it has a handler."""
