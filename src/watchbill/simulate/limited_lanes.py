"""Limited lanes: the invariants of a lane of which only so many requests may run at once, on all models together.

Its limit holds at every start, and among its requests the earlier one goes first, whichever model serves it. The order
is checked where the case is certain: the earlier one is as urgent in every respect, and its model is ready and idle.

A free place may be kept for an earlier one whose model comes into memory or has no free slot, but not for longer than
the answer takes that could have had it, and not while that model waits for its turn. A slot may be kept as long for
an earlier one whose lane has no free place.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from watchbill.catalog import Catalog, WorkClass
from watchbill.core.line import HEAD_START_MS
from watchbill.core.machine import Machine
from watchbill.core.stages import LEAVING, Stage
from watchbill.simulate.callers import Caller, CallerState
from watchbill.simulate.engine import Power, SimEngine

__all__ = ["LimitedLanes"]

#: A place is kept for no longer than an answer usually takes, by figures that change meanwhile.
KEPT_FACTOR = 2.0
KEPT_SLACK_MS = 2_000.0
#: What gives way is weighed together with what comes and leaves meanwhile, and a plan may wait for the disk's answer.
STILL_SLACK_MS = 1_000.0


class Seen(Protocol):
    """The part of the world that is checked."""

    catalog: Catalog
    open: dict[str, Caller]
    engines: dict[str, SimEngine]
    core: Machine

    @property
    def now(self) -> float: ...


class LimitedLanes:
    """Looks at what started in a step."""

    def __init__(self, world: Seen, say: Callable[[str, str], None]) -> None:
        self._world, self.say = world, say
        self._kept: dict[str, tuple[str, float]] = {}  # who gives way -> to whom, and since when
        self._still: dict[str, float] = {}  # who gives way while none of those before it loads -> since when
        #: Requests that start in this step, each with one before it in its lane that could start at that moment.
        self._passed: list[tuple[Caller, Caller]] = []

    def is_full(self, name: str) -> bool:
        """Whether no more of this lane may run now."""
        limit = self._limit(name)
        return limit is not None and self._running(name) >= limit

    def granting(self, started: Caller, may_start: Callable[[Caller], bool]) -> None:
        """Notes what a request that starts leaves behind: later in the step others may be moved to an idle model.
        `may_start` is whether nothing but its lane keeps a caller from its model, which is idle."""
        if self._limit(started.request.lane) is None or self._world.core.policy.in_order:
            return
        models = self._world.core.state.models
        for other in self._world.open.values():
            if other.state is not CallerState.WAITING or not _is_before(other, started):
                continue
            # A run that was cut is not over for the core before its engine has reported it.
            if (
                may_start(other)
                and not models[other.served_by].in_use
                and not self._kept_for(other)
                and not self._slot_kept_for(other)
                and not self._is_hurried(started, other)
            ):
                self._passed.append((started, other))

    def look(self, may_start: Callable[[Caller], bool]) -> None:
        """Judges what started in a step by what waits after it."""
        passed, self._passed = self._passed, []
        for started, other in passed:
            if other.state is CallerState.WAITING and may_start(other):
                self.say(
                    "a later request of its lane went first", f"{started.request.id}, {other.request.id}"
                )

    def is_open_to(self, caller: Caller) -> bool:
        """Whether its lane has a place, and its model a slot, that is not kept for an earlier one."""
        lane = caller.request.lane
        has_place = self._limit(lane) is None or not (self.is_full(lane) or self._kept_for(caller))
        return has_place and not self._slot_kept_for(caller)

    def judge_places(self, idle: Iterable[Caller]) -> None:
        """Judges how long places are kept, by those whose models are ready and idle."""
        before, self._kept = self._kept, {}
        still, self._still = self._still, {}
        for caller in idle:
            lane = caller.request.lane
            is_limited = self._limit(lane) is not None
            if is_limited and self.is_full(lane):
                continue
            place_for = self._kept_for(caller) if is_limited else ""
            slot_for = self._slot_kept_for(caller)
            if not (first := place_for or slot_for):
                continue
            if not slot_for and not self._is_coming(caller):
                at = self._still[caller.request.id] = still.get(caller.request.id, self._world.now)
                if self._world.now - at > STILL_SLACK_MS:
                    self.say(
                        "a place of a lane is kept for a model that does not load",
                        f"{caller.request.id} gives way to {first}",
                    )
            kept_for, since = before.get(caller.request.id, (first, self._world.now))
            since = since if kept_for == first else self._world.now
            self._kept[caller.request.id] = (first, since)
            answer_ms = self._world.core.state.models[caller.served_by].service.ms
            if self._world.now - since > KEPT_FACTOR * answer_ms + KEPT_SLACK_MS:
                self.say(
                    "a place of a lane is kept for too long", f"{caller.request.id} gives way to {first}"
                )

    def _kept_for(self, caller: Caller) -> str:
        """An earlier one of its lane whose model is not warm, or has no free slot; empty if there is none."""
        absent = [(_key(other), other.request.id) for other in self._absent_before(caller)]
        return min(absent)[1] if absent else ""

    def _slot_kept_for(self, caller: Caller) -> str:
        """An earlier one for its model whose lane is full; empty if there is none."""
        held = [
            (_key(other), other.request.id)
            for other in self._world.open.values()
            if other.served_by == caller.served_by
            and other.state is CallerState.WAITING
            and _key(other) < _key(caller)
            and self.is_full(other.request.lane)
        ]
        return min(held)[1] if held else ""

    def _absent_before(self, caller: Caller) -> Iterator[Caller]:
        for other in self._world.open.values():
            if (
                other.request.lane == caller.request.lane
                and other.state is CallerState.WAITING
                and self._is_away(other)
                and (_key(other) < _key(caller) or other.due < caller.due or self._is_hurried(other, caller))
            ):
                yield other

    def _is_coming(self, caller: Caller) -> bool:
        """Whether the model of one before it is on its way into memory, or answers others."""
        models = self._world.core.state.models
        before = list(self._absent_before(caller))
        names = (name for other in before for name in (other.served_by, *other.beside))
        on_the_way = (Stage.PLANNED, Stage.LOADING)
        return any(models[name].stage in on_the_way for name in names) or any(
            map(self._finds_no_slot, before)
        )

    def _is_away(self, caller: Caller) -> bool:
        names = (caller.served_by, *caller.beside)
        is_absent = any(self._world.engines[name].power is not Power.WARM for name in names)
        return is_absent or self._finds_no_slot(caller)

    def _finds_no_slot(self, caller: Caller) -> bool:
        model = self._world.core.state.models[caller.served_by]
        has_slot = model.has_slot_for(caller.request.work_class, int(self._world.now))
        # One that leaves in this step was there when the step decided what starts.
        return model.stage in (Stage.READY, *LEAVING) and (not has_slot or bool(self._slot_kept_for(caller)))

    def _is_hurried(self, later: Caller, other: Caller) -> bool:
        """Whether a request is within one service time of its due, and the one before it is not."""
        now, models = self._world.now, self._world.core.state.models
        left_ms = [_due(caller) - now - models[caller.served_by].service.ms for caller in (later, other)]
        return left_ms[0] <= 0 < left_ms[1]

    def judge_limit(self, started: Caller) -> None:
        """Judges a request that has started by the limit of its lane."""
        limit = self._limit(started.request.lane)
        if limit is not None and self._running(started.request.lane) > limit:
            self.say("more of a lane at once than it may run", started.request.lane)

    def _limit(self, name: str) -> int | None:
        lane = self._world.catalog.lanes.get(name)
        return None if lane is None else lane.concurrency

    def _running(self, name: str) -> int:
        open_callers = self._world.open.values()
        return sum(c.state is CallerState.RUNNING and c.request.lane == name for c in open_callers)


def _due(caller: Caller) -> float:
    """When its patience is over: where it has run before, also by its wait and time limit together."""
    request = caller.request
    bound = request.arrived_at + request.max_wait_ms + request.timeout_ms
    return min(caller.due, bound) if caller.turns else caller.due


def _key(caller: Caller) -> tuple[WorkClass, bool, int, str]:
    """Its place in its lane, as `core.line` has it."""
    request = caller.request
    head_start = (5 - request.priority) * HEAD_START_MS
    return (request.work_class, not request.operator, request.arrived_at - head_start, request.id)


def _is_before(other: Caller, started: Caller) -> bool:
    mine, its = started.request, other.request
    return (
        its.lane == mine.lane
        and its.arrived_at < mine.arrived_at
        and other.due <= started.due
        and (its.work_class, not its.operator, its.priority)
        <= (mine.work_class, not mine.operator, mine.priority)
    )
