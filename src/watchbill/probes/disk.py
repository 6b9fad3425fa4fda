"""The disk probe: whether a small file can be written to a folder, checked regularly by a thread of its own.

A load writes below the root: a log, an entry in the registry. On a disk that refuses that every load fails, which is
better known before another model is unloaded for it. So it is also checked on request. A disk that hangs blocks
only this thread; the last result stays.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from watchbill.files.disk import fault_of
from watchbill.probes.limits import DISK_LOOK_MS

__all__ = ["DiskProbe"]


class DiskProbe:
    """One per daemon. `fault` may be read from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: OSError | None = fault_of(folder)
        self._woken = threading.Event()
        self._is_closed = False
        self._then: Callable[[], None] | None = None

    def start(self) -> None:
        """Starts the checks."""
        # A daemon thread: the interpreter must not wait at its end for a disk that hangs.
        threading.Thread(target=self._watch, name="watchbill-disk", daemon=True).start()

    def look_now(self, then: Callable[[], None]) -> None:
        """Checks at once. `then` is called by the thread of the checks; of several that wait only the last one is."""
        self._then = then
        self._woken.set()

    def close(self) -> None:
        """Stops the checks."""
        self._is_closed = True
        self._woken.set()

    def _watch(self) -> None:
        while True:
            self._woken.wait(DISK_LOOK_MS / 1000)
            self._woken.clear()
            if self._is_closed:
                return
            then, self._then = self._then, None  # before the check: who asks during it gets the next one
            self.fault = fault_of(self.folder)
            if then is not None:
                then()
