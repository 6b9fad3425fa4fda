"""Tasks that an agent claims ahead: before one of its slots is free, and only while its tasks end within milliseconds.

A claim costs a listing of the queue and two changes of thread. For tasks that take a millisecond that is more than the
task itself, so several are claimed at once, and the next one starts in the moment in which a slot becomes free.

Nothing waits here for long: what has not started in time goes back to the queue under the same token, and nothing is
claimed ahead again until tasks are quick again. So an agent whose tasks turn out to take hours keeps none from others.
"""

import time
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass

from watchbill.fleet import limits
from watchbill.fleet.agent.work import Prepared

__all__ = ["ClaimedAhead"]

#: The weight of the last task in the mean.
_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class _Waiting:
    prepared: Prepared
    until: float  # by the monotonic clock


class ClaimedAhead:
    """The tasks of one agent that are claimed and have not started."""

    def __init__(self, slots: int) -> None:
        """`slots`: how many tasks run at a time."""
        self._slots = slots
        self._waiting: deque[_Waiting] = deque()
        self._mean_ms = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Prepared]:
        return iter([each.prepared for each in self._waiting])

    @property
    def names(self) -> frozenset[str]:
        """The slips of the tasks."""
        return frozenset(each.prepared.name for each in self._waiting)

    def ended(self, ms: int) -> None:
        """A task took this long."""
        is_first = self._mean_ms == float("inf")
        self._mean_ms = ms if is_first else self._mean_ms + _WEIGHT * (ms - self._mean_ms)

    def room(self) -> int:
        """How many may be claimed ahead now. None while there are enough: a claim is then made for several at once."""
        if self._mean_ms > limits.AHEAD_TASK_MS_MAX:
            return 0
        most = min(limits.AHEAD_PER_SLOT * self._slots, limits.AHEAD_MAX)
        return most - len(self._waiting) if len(self._waiting) * 2 <= most else 0

    def put(self, prepared: Prepared) -> None:
        """Keep a claimed task until a slot is free."""
        self._waiting.append(_Waiting(prepared, time.monotonic() + limits.AHEAD_MS_MAX / 1000))

    def take(self) -> Prepared | None:
        """The task that starts next."""
        return self._waiting.popleft().prepared if self._waiting else None

    def drop(self, names: Set[str]) -> None:
        """Forget the tasks with these slips: they were taken back."""
        self._waiting = deque(each for each in self._waiting if each.prepared.name not in names)

    def overdue(self) -> list[Prepared]:
        """The tasks that waited for too long; they are not kept here any more."""
        now = time.monotonic()
        if not self._waiting or now < self._waiting[0].until:
            return []
        return self.clear()

    def left_s(self) -> float | None:
        """How long the first of them may still wait; None while none waits."""
        return max(0.0, self._waiting[0].until - time.monotonic()) if self._waiting else None

    def clear(self) -> list[Prepared]:
        """Everything that waits, for the queue; nothing is claimed ahead until another task was quick."""
        found = [each.prepared for each in self._waiting]
        self._waiting.clear()
        self._mean_ms = float("inf")
        return found
