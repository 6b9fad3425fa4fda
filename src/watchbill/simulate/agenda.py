"""The agenda: virtual time. Everything that happens in a simulated world happens in the order of its time.

Two acts of the same time happen in the order in which they were put down, so a run can be repeated exactly.
"""

from collections.abc import Callable
from heapq import heappop, heappush

__all__ = ["Agenda"]


class Agenda:
    """What is still to happen, and what time it is."""

    def __init__(self) -> None:
        self.now = 0.0  # ms
        self._acts: list[tuple[float, int, Callable[[], None]]] = []
        self._counted = 0

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Put an act down. One whose time is over happens now."""
        self._counted += 1
        heappush(self._acts, (max(when, self.now), self._counted, act))

    def has_before(self, until_ms: float) -> bool:
        """Whether anything happens until this time."""
        return bool(self._acts) and self._acts[0][0] <= until_ms

    def step(self) -> None:
        """Go on to the next act. There has to be one."""
        self.now, _, act = heappop(self._acts)
        act()
