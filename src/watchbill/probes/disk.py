"""The disk probe: whether the disk of a folder takes a small file, looked at all the time by a thread of its own.

A load writes below the root: a log, an entry in the registry. Where the disk refuses that, a load must fail, and that
is better known before another model leaves for it. A disk that hangs holds up this thread only; the last answer stays.
"""

import threading
from pathlib import Path

from watchbill.files.disk import fault_of
from watchbill.limits import DISK_LOOK_MS

__all__ = ["DiskProbe"]


class DiskProbe:
    """One per daemon. `fault` may be read from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: OSError | None = fault_of(folder)
        self._closed = threading.Event()

    def start(self) -> None:
        """Starts looking."""
        # A daemon thread: the interpreter must not wait at its end for a disk that hangs.
        threading.Thread(target=self._watch, name="watchbill-disk", daemon=True).start()

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(DISK_LOOK_MS / 1000):
            self.fault = fault_of(self.folder)
