"""Watching a daemon from outside: the memory of its engines while it runs, and its processes after it ended.

python bench/watching.py PID      prints the most PSS of everything below a process, when it is told to stop
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from playing import MARK

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

__all__ = ["Peak", "left_behind", "memory_below"]

SAMPLE_S = 0.1


@dataclass(slots=True)
class Peak:
    """The most memory that was seen; known when the watching has ended."""

    bytes: int = 0


@contextmanager
def memory_below(pid: int) -> Iterator[Peak]:
    """Another process adds up the PSS of everything below this one."""
    peak = Peak()
    watcher = subprocess.Popen([sys.executable, __file__, str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        yield peak
    finally:
        watcher.send_signal(signal.SIGTERM)
        peak.bytes = int(watcher.communicate(timeout=10)[0] or 0)


def left_behind(place: Path) -> list[int]:
    """The processes that live though the daemon in this folder has ended."""
    from e2e.place import marked

    return marked(f"{MARK}={place}")


def main() -> int:
    """Adds up until told to stop, then prints the most."""
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    process, most = psutil.Process(int(sys.argv[1])), 0
    while not stopping:
        try:
            most = max(most, sum(_pss(child.pid) for child in process.children(recursive=True)))
        except psutil.Error:
            break
        time.sleep(SAMPLE_S)
    print(most)
    return 0


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # gone between the list and the look
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    sys.exit(main())
