"""The timeline of a simulated run: which model was in memory when, how full each device was, and how many waited.

Sees the world after each of its steps and notes what changed. A run without a timeline pays nothing for it.
"""

from dataclasses import dataclass, field

from watchbill.simulate.engine import Power
from watchbill.simulate.limits import TIMELINE_POINTS_MAX, TIMELINE_SPANS_MAX
from watchbill.simulate.world import World

__all__ = ["Span", "Timeline"]


@dataclass(frozen=True, slots=True)
class Span:
    """A model in one state, from a time to another."""

    model: str
    power: Power
    start: float
    end: float


@dataclass(slots=True)
class Timeline:
    """One run, as it happened. Beyond its bounds it keeps the beginning."""

    spans: list[Span] = field(default_factory=list[Span])
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict[str, list[tuple[float, int]]])
    waiting: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    capacity: dict[str, int] = field(default_factory=dict[str, int])
    end: float = 0.0
    _since: dict[str, tuple[Power, float]] = field(default_factory=dict[str, tuple[Power, float]])

    def see(self, world: World) -> None:
        """Notes what has changed since the last step."""
        self.end, self.capacity = world.now, dict(world.capacity)
        has_moved = False
        for name, engine in world.engines.items():
            power, since = self._since.get(name, (Power.OFF, 0.0))
            if power is not engine.power:
                self._keep(name, power, since)
                self._since[name] = engine.power, world.now
                has_moved = True
        if has_moved:
            for device in world.capacity:
                held = sum(engine.held.get(device, 0) for engine in world.engines.values())
                _add(self.memory.setdefault(device, []), world.now, held)
        _add(self.waiting, world.now, sum(caller.started_at is None for caller in world.open.values()))

    def close(self) -> None:
        """Ends what is still in memory."""
        for name, (power, since) in self._since.items():
            self._keep(name, power, since)
        self._since.clear()

    def _keep(self, name: str, power: Power, since: float) -> None:
        if power is not Power.OFF and self.end > since and len(self.spans) < TIMELINE_SPANS_MAX:
            self.spans.append(Span(name, power, since, self.end))


def _add(points: list[tuple[float, int]], at: float, value: int) -> None:
    if (not points or points[-1][1] != value) and len(points) < TIMELINE_POINTS_MAX:
        points.append((at, value))
