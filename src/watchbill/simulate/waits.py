"""Waits: the invariants about the order of waiting, for worlds without faults.

A place is a device on which no two models fit beside each other: there it is certain which model keeps another waiting.
Where engines fail, other programs take memory or an operator interferes, a wait may have causes that the check cannot
see.

- **class**: a model that waits for a higher class than its place is used for gets the place after a bounded time,
  however fast the lower class is served.
- **priority**: of the models of one class that wait for a place, a better priority is loaded first, unless the other
  model's request would run out of patience, or all places of the lanes are taken that the better one is needed for. One
  that was asked for with a better priority and has less patience left may pass one that is better by its age.
- **idle memory**: a model that is needed, and for which there is room, is loaded at once, unless one on several devices
  waits for this place, too, and for no lower class: the place may be kept until the others are free.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from watchbill.catalog import Catalog, WorkClass
from watchbill.core import messages as m
from watchbill.core.candidate import AGING_STEPS
from watchbill.core.line import HEAD_START_MS
from watchbill.core.machine import Machine
from watchbill.core.policy import Rate
from watchbill.core.turns import SOFT_TURN_LOWER
from watchbill.simulate.callers import Caller, CallerState, Faults
from watchbill.simulate.engine import Power, SimEngine, TrueModel

__all__ = ["Waits"]

#: Learned load times vary and running answers drain: a wait behind a lower class is judged with this factor and slack.
CLASS_FACTOR = 2.0
CLASS_SLACK_MS = 12_000.0
#: How long a needed model may stay out of free memory: a reading of the machine may have to come first.
IDLE_SLACK_MS = 2_500.0


class Seen(Protocol):
    """The part of the world that is checked."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    capacity: dict[str, int]
    engines: dict[str, SimEngine]
    truth: dict[str, TrueModel]
    open: dict[str, Caller]
    told_load_ms: dict[str, float]
    faults: Faults
    core: Machine


class Waits:
    """Follows every wait for a place."""

    def __init__(
        self, world: Seen, say: Callable[[str, str], None], is_lane_full: Callable[[str], bool]
    ) -> None:
        self._world, self.say = world, say
        self._is_lane_full = is_lane_full
        self._behind: dict[
            str, tuple[int, float]
        ] = {}  # waiting model -> attempt of the occupant, since when
        self._free: dict[str, float] = {}  # waiting model -> since when there is room for it
        self._places = _places(world.catalog, world.capacity)
        ours = isinstance(world.core.policy, Rate)
        self._is_calm = ours and not world.faults.any and bool(self._places)

    def planned(self, name: str, kind: m.PlanKind) -> None:
        """Checks a model that is about to be loaded."""
        if not self._is_calm or kind not in (m.PlanKind.TURN, m.PlanKind.RATE) or name not in self._places:
            return
        if self._world.engines[name].power in (Power.WARM, Power.LOADING):
            return  # it serves a set whose other members are loaded, elsewhere
        mine = self._rank(name)
        for other in self._waiting():
            rank = self._rank(other)
            is_rival = self._places.get(other) == self._places[name] and not self._finds_lanes_full(other)
            if is_rival and rank[0] == mine[0] and rank < mine and not self._would_miss(name, other):
                self.say("a worse priority was loaded first", f"{name} {mine} before {other} {rank}")

    def _would_miss(self, name: str, other: str) -> bool:
        """Whether a model was asked for with a better priority, and has less patience left than one that has aged."""
        callers = [c for c in self._world.open.values() if c.state is CallerState.WAITING]
        mine, its = ([c for c in callers if c.served_by == each] for each in (name, other))
        if not mine:
            return False
        asked = [min((c.request.work_class, c.request.priority) for c in each) for each in (mine, its)]
        return asked[0] < asked[1] and min(c.due for c in mine) < min(c.due for c in its)

    def _finds_lanes_full(self, name: str) -> bool:
        """Whether none of those that wait for it could start, however fast it came."""
        callers = self._world.open.values()
        lanes = {c.request.lane for c in callers if c.state is CallerState.WAITING and c.served_by == name}
        return all(map(self._is_lane_full, lanes))

    def look(self, closed: set[str], planned: set[str]) -> None:
        """Checks every waiting model, after a step."""
        if not self._is_calm:
            return
        waiting = [name for name in self._waiting() if name not in planned and not self._rests(name)]
        for name in {*self._behind, *self._free} - set(waiting):
            self._behind.pop(name, None)
            self._free.pop(name, None)
        for name in waiting:
            self._look_behind(name, closed)
            self._look_free(name, planned)

    def _rests(self, name: str) -> bool:
        """RES-23: whether only leased work waits for it while a person works at this machine."""
        state = self._world.core.state
        return state.leases_held_back and self._rank(name)[0] >= WorkClass.LEASED

    def _look_behind(self, name: str, closed: set[str]) -> None:
        world = self._world
        there = self._occupant(self._places[name])
        lower = there is not None and there.model.name not in closed and there.power is Power.WARM
        if there is None or not lower or self._class_at(there.model.name) <= self._rank(name)[0]:
            self._behind.pop(name, None)
            return
        attempt, since = self._behind.get(name, (there.attempt, world.now))
        if attempt != there.attempt:
            since = world.now
        self._behind[name] = (there.attempt, since)
        quantum = world.catalog.policy.alpha * self._set_load_ms(there.model.name)
        bound = SOFT_TURN_LOWER * self._load_ms(name) + quantum
        if world.now - since > CLASS_FACTOR * bound + CLASS_SLACK_MS:
            self.say("a higher class waits for a lower one", f"{name} behind {there.model.name}")
            self._behind[name] = (there.attempt, world.now)

    def _look_free(self, name: str, planned: set[str]) -> None:
        world, place = self._world, self._places[name]
        promised = any(world.catalog.models[other].memory.get(place) for other in planned)
        promised |= any(caller.beside for caller in world.open.values())  # its place may be kept for a set
        promised |= any(self._rank(other)[0] <= self._rank(name)[0] for other in self._on_several(place))
        if promised or self._occupant(place) is not None:
            self._free.pop(name, None)
        elif world.now - self._free.setdefault(name, world.now) > IDLE_SLACK_MS:
            self.say("a model waits though its memory is free", name)
            self._free[name] = world.now

    def _waiting(self) -> list[str]:
        """The models of these places that are needed and not in memory."""
        return sorted(name for name in self._needed() if name in self._places)

    def _on_several(self, place: str) -> list[str]:
        """The models on this and other devices that are needed and not in memory."""
        truth = self._world.truth
        return [n for n in self._needed() if n not in self._places and truth[n].memory.get(place)]

    def _needed(self) -> set[str]:
        """The models that requests wait for and that are not in memory."""
        callers = self._world.open.values()
        names = {c.served_by for c in callers if c.state is CallerState.WAITING and not c.beside}
        return {name for name in names if self._world.engines[name].power is Power.OFF}

    def _rank(self, name: str) -> tuple[WorkClass, int]:
        """The class and the aged priority of the request that a model would serve first."""
        first = min(
            (
                c.request
                for c in self._world.open.values()
                if c.state is CallerState.WAITING and c.served_by == name
            ),
            key=lambda r: (r.work_class, r.arrived_at - (5 - r.priority) * HEAD_START_MS, r.id),
            default=None,
        )
        if first is None:
            return WorkClass.ROTATION, 5
        aged = AGING_STEPS * (int(self._world.now) - first.arrived_at) // first.max_wait_ms
        return first.work_class, first.priority - aged

    def _class_at(self, name: str) -> WorkClass:
        """The highest class that a model serves or that waits for it."""
        callers = self._world.open.values()
        classes = (c.request.work_class for c in callers if c.served_by == name or name in c.beside)
        return min(classes, default=WorkClass.ROTATION)

    def _load_ms(self, name: str) -> float:
        return max(self._world.truth[name].load_ms, self._world.told_load_ms.get(name, 0.0))

    def _set_load_ms(self, name: str) -> float:
        """What it takes to load a model and those that its callers need beside it: a set has one turn."""
        callers = [c for c in self._world.open.values() if name in (c.served_by, *c.beside)]
        members = {name}.union(*((c.served_by, *c.beside) for c in callers if c.served_by))
        return sum(self._load_ms(member) for member in members)

    def _occupant(self, place: str) -> SimEngine | None:
        return next((e for e in self._world.engines.values() if e.held.get(place)), None)


def _places(catalog: Catalog, capacity: Mapping[str, int]) -> dict[str, str]:
    """The models that need one device alone, on which no two of its models fit beside each other: model -> device."""
    found: dict[str, str] = {}
    for device, rules in catalog.devices.items():
        on = [model for model in catalog.models.values() if model.memory.get(device)]
        smallest = sorted(model.memory[device] for model in on)[:2]
        if len(smallest) == 2 and sum(smallest) > capacity[device] * rules.share - rules.reserve:
            found |= {model.name: device for model in on if len(model.memory) == 1}
    return found
