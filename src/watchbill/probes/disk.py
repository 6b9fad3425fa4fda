"""The disk probe: whether a small file can be written to a folder, checked regularly by a thread of its own.

A load writes below the root: a log, an entry in the registry. On a disk that refuses that every load fails, which is
better known before another model is unloaded for it. A disk that hangs blocks only this thread; the last result stays.
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
        """Starts the checks."""
        # A daemon thread: the interpreter must not wait at its end for a disk that hangs.
        threading.Thread(target=self._watch, name="watchbill-disk", daemon=True).start()

    def close(self) -> None:
        """Stops the checks."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(DISK_LOOK_MS / 1000):
            self.fault = fault_of(self.folder)
