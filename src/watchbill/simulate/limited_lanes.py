"""Limited lanes: the invariants of a lane of which only so many requests may run at once, on all models together.

Its limit holds at every start, and among its requests the earlier one goes first, whichever model serves it. The order
is checked where the case is certain: the earlier one is as urgent in every respect, and its model is ready and idle.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from watchbill.catalog import Catalog
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.simulate.callers import Caller, CallerState

__all__ = ["LimitedLanes"]


class Seen(Protocol):
    """The part of the world that is checked."""

    catalog: Catalog
    open: dict[str, Caller]
    core: Machine


class LimitedLanes:
    """Looks at what started in a step."""

    def __init__(self, world: Seen, say: Callable[[str, str], None]) -> None:
        self._world, self.say = world, say

    def is_full(self, name: str) -> bool:
        """Whether no more of this lane may run now."""
        limit = self._limit(name)
        return limit is not None and self._running(name) >= limit

    def look(self, started: Iterable[m.Grant], may_start: Callable[[Caller], bool]) -> None:
        """Judges the grants of a step by what waits after it. `may_start` is whether nothing but its lane keeps a
        caller from its model, which is idle."""
        for grant in started:
            caller = self._world.open.get(grant.id)
            limit = None if caller is None else self._limit(caller.request.lane)
            if caller is None or limit is None:
                continue
            if self._running(caller.request.lane) > limit:
                self.say("more of a lane at once than it may run", caller.request.lane)
            if not self._world.core.policy.in_order:
                self._judge_order(caller, may_start)

    def _judge_order(self, started: Caller, may_start: Callable[[Caller], bool]) -> None:
        for other in self._world.open.values():
            if other.state is CallerState.WAITING and _is_before(other, started) and may_start(other):
                self.say(
                    "a later request of its lane went first", f"{started.request.id}, {other.request.id}"
                )

    def _limit(self, name: str) -> int | None:
        lane = self._world.catalog.lanes.get(name)
        return None if lane is None else lane.concurrency

    def _running(self, name: str) -> int:
        open_callers = self._world.open.values()
        return sum(c.state is CallerState.RUNNING and c.request.lane == name for c in open_callers)


def _is_before(other: Caller, started: Caller) -> bool:
    mine, its = started.request, other.request
    return (
        its.lane == mine.lane
        and its.arrived_at < mine.arrived_at
        and other.due <= started.due
        and (its.work_class, not its.operator, its.priority)
        <= (mine.work_class, not mine.operator, mine.priority)
    )
