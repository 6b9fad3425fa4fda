"""The probe of the device `ram`: the memory that the machine and its control groups leave us.

Capacity is the smaller of the machine's memory and the tightest limit above us, available the smaller of MemAvailable
and what that limit leaves. A reading costs 30-100 us and never waits, so it may be taken on the event loop. The memory
of engines is in `trees`, re-exported here for callers that need both.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from watchbill.catalog import RAM
from watchbill.probes import ProbeError, Reading
from watchbill.probes.cgroups import MemoryGroups
from watchbill.probes.kernel_files import read_small, table_of
from watchbill.probes.limits import LOOK_MS_MAX, LOOK_MS_MIN
from watchbill.probes.trees import TreeMemory, find_processes, major_faults_of_tree, pids_of_tree, pss_of_tree
from watchbill.units import Bytes, Millis

__all__ = [
    "RamProbe", "TreeMemory", "find_processes", "major_faults_of_tree", "next_look_ms", "pids_of_tree",
    "pss_of_tree",
]  # fmt: skip

#: How quickly a program can take memory: touching fresh pages reaches 1-2 GB/s on one core.
GRAB_BYTES_PER_MS = 4_000_000


class RamProbe:
    """Reads host memory. `root` is the root of the machine's /proc and /sys; tests pass a recorded tree."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._base = str(root).rstrip("/")
        self._clock = clock
        self.groups = MemoryGroups(root)

    def read(self) -> Mapping[str, Reading]:
        """The reading of `ram`. Raises ProbeError when /proc/meminfo lacks the figures."""
        kib = table_of(read_small(f"{self._base}/proc/meminfo") or b"")
        if b"MemTotal" not in kib or b"MemAvailable" not in kib:
            raise ProbeError(f"{self._base}/proc/meminfo names neither MemTotal nor MemAvailable")
        capacity, available = kib[b"MemTotal"] * 1024, kib[b"MemAvailable"] * 1024
        if room := self.groups.headroom():
            capacity, available = min(capacity, room.limit), min(available, room.available)
        return {RAM: Reading(Bytes(capacity), Bytes(available), Millis(round(self._clock() * 1000)))}

    def stall_percent(self) -> float:
        """PSI `some avg10`: the share of the last ten seconds in which work waited for memory.

        It is the largest of the machine's and, in version 2, our groups' figures; 0 on kernels without PSI.
        """
        paths = [f"{self._base}/proc/pressure/memory"]
        if self.groups.version == 2:
            paths += [f"{folder}/memory.pressure" for folder in self.groups.levels()]
        return max(_some_avg10(read_small(path) or b"") for path in paths)


def next_look_ms(available: int, reserve: int) -> Millis:
    """When to read again so that no program can use up the memory above the reserve unseen in between."""
    return Millis(min(LOOK_MS_MAX, max(LOOK_MS_MIN, (available - reserve) // GRAB_BYTES_PER_MS)))


def _some_avg10(text: bytes) -> float:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [b"some"] and len(words) > 1 and words[1].startswith(b"avg10="):
            return float(words[1].removeprefix(b"avg10="))
    return 0.0
