"""The trend of free memory: how fast a device runs out, by the last looks at it.

Owns a second or so of readings of one device. What counts is how much fell between two looks in most of them: one large
step is over when it is seen, and what a victim gave back in between must not hide that somebody goes on taking.
"""

from collections import deque
from itertools import pairwise
from statistics import median_low

__all__ = ["Trend"]

#: Readings older than this say nothing about now.
TREND_MS = 1_000
#: Two readings closer than this are one: the figures of the kernel are not that fine.
TREND_MS_MIN = 40
LOOKS_MIN = 3
LOOKS_MAX = 64


class Trend:
    """The readings of one device."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)  # when, and what was free

    def look(self, at: int, available: int) -> None:
        """Takes in one reading."""
        if self._looks and at - self._looks[-1][0] < TREND_MS_MIN:
            return
        self._looks.append((at, available))
        while at - self._looks[0][0] > TREND_MS:
            self._looks.popleft()

    @property
    def fall(self) -> float:
        """Bytes per millisecond that are taken; 0 while nothing falls."""
        if len(self._looks) < LOOKS_MIN:
            return 0.0
        falls = [(before[1] - after[1]) / (after[0] - before[0]) for before, after in pairwise(self._looks)]
        return max(0.0, median_low(falls))
