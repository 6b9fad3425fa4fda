"""Late loads: the invariant that a load which hangs does not keep the room that another model waits for.

It holds where the case is certain: a single model waits for that device, and it would fit if the load were given up.
Peers' work that rests while a person works here waits for the person.
Engines hang at random, so it is checked in worlds with faults, too.
"""

from collections.abc import Callable
from typing import Protocol

from watchbill.catalog import Catalog, Model, WorkClass
from watchbill.core.machine import Machine
from watchbill.core.policy import Rate
from watchbill.simulate.borrowers import Borrowers
from watchbill.simulate.callers import Caller, CallerState
from watchbill.simulate.engine import Power, SimEngine, TrueModel
from watchbill.simulate.hosts import Hosts
from watchbill.simulate.tenants import Tenants

__all__ = ["LateLoads"]

#: A load is late after this many times the longest that is known, and this; each failed load doubles it.
LATE_FACTOR = 2.0
LATE_EXTRA_MS = 2_000.0
LATE_MS_MIN = 30_000.0
DOUBLINGS_MAX = 4
#: What a load is expected to take before anything is known about it.
GUESS_FLOOR_MS = 1_000.0
GUESS_BYTES_PER_MS = 200_000
#: How long a model may wait for the room of a late load: readings of the machine may be stuck for some time.
SLACK_MS = 15_000.0


class Seen(Protocol):
    """The part of the world that is checked."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    declared: dict[str, Model]
    capacity: dict[str, int]
    engines: dict[str, SimEngine]
    truth: dict[str, TrueModel]
    open: dict[str, Caller]
    borrowers: Borrowers
    hosts: Hosts
    tenants: Tenants
    told_load_ms: dict[str, float]
    core: Machine


class LateLoads:
    """Follows every load, and the models that wait for its room."""

    def __init__(self, world: Seen, say: Callable[[str, str], None]) -> None:
        self._world, self._say = world, say
        self._began: dict[tuple[str, int], float] = {}  # model and attempt of a load -> since when it is seen
        self._waits: dict[
            tuple[str, int, str], float
        ] = {}  # the same, and who waits for its room -> since when
        self._longest: dict[str, float] = {}  # model -> its longest load that succeeded
        self._is_ours = isinstance(world.core.policy, Rate)

    def loaded(self, name: str, took_ms: float) -> None:
        """Notes a load that succeeded."""
        self._longest[name] = max(took_ms, self._longest.get(name, 0.0))

    def look(self) -> None:
        """Checks every load under way."""
        if not self._is_ours:
            return
        world = self._world
        loading = {(e.model.name, e.attempt): e for e in world.engines.values() if e.power is Power.LOADING}
        self._began = {which: self._began.get(which, world.now) for which in loading}
        late = [e for which, e in loading.items() if world.now - self._began[which] > self._late_ms(which[0])]
        waits = {(e.model.name, e.attempt, name) for e in late for name in self._kept_out(e)}
        self._waits = {each: self._waits.get(each, world.now) for each in waits}
        for (name, _, other), since in self._waits.items():
            if world.now - since > SLACK_MS:
                self._say("a load that hangs keeps the room of others", f"{other} waits for {name}")

    def _late_ms(self, name: str) -> float:
        world = self._world
        size = sum(world.truth[name].memory.values())
        known = max(self._longest.get(name, 0.0), world.told_load_ms.get(name, 0.0))
        usual = max(known, GUESS_FLOOR_MS + size / GUESS_BYTES_PER_MS)
        model = world.core.state.models.get(name)
        failures = DOUBLINGS_MAX if model is None else min(model.failures, DOUBLINGS_MAX)
        return max(LATE_FACTOR * usual + LATE_EXTRA_MS, LATE_MS_MIN) * 2**failures

    def _kept_out(self, late: SimEngine) -> list[str]:
        """The model that waits for the room of a late load: the only one on its device, and it would fit."""
        world, state, now = self._world, self._world.core.state, int(self._world.now)
        name = late.model.name
        spec = world.declared[name]
        if spec.permanent or spec.load_timeout_ms is not None or len(late.held) != 1:
            return []
        (device,) = late.held
        waiting = {
            c.served_by: c
            for c in world.open.values()
            if c.state is CallerState.WAITING
            and c.served_by != name
            and device in world.truth[c.served_by].memory
            and not (world.tenants.is_paused and c.request.work_class is WorkClass.LEASED)
        }
        if len(waiting) != 1:
            return []
        ((other, caller),) = waiting.items()
        if world.hosts.is_silent(name) or world.hosts.is_silent(other):
            return []
        model = state.models.get(other)
        is_plain = not caller.beside and caller.request.work_class is not WorkClass.ROTATION
        if model is None or not is_plain or world.engines[other].power is not Power.OFF:
            return []
        if now < model.retry_at or not state.may_load(model, now) or len(world.truth[other].memory) != 1:
            return []
        return [other] if self._fits_without(late, other, device) else []

    def _fits_without(self, late: SimEngine, other: str, device: str) -> bool:
        world, rules = self._world, self._world.catalog.devices[device]
        beside = [e for e in world.engines.values() if e is not late and e.held.get(device)]
        group = world.declared[other].group
        if group is not None and any(world.declared[e.model.name].group == group for e in beside):
            return False
        held = sum(e.held[device] for e in beside) + world.borrowers.lent(device)
        room = (
            min(world.capacity[device], rules.capacity or world.capacity[device]) * rules.share
            - rules.reserve
        )
        return held + world.truth[other].memory[device] <= room
