"""A simulated engine: the truth about one model's process, which the core only hears about.

Answers share the processor: with n at once each runs at 1 / (1 + slowdown x (n - 1)) of its speed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Power", "SimEngine", "TrueModel"]


class Power(Enum):
    """What the process is doing."""

    OFF = "off"
    LOADING = "loading"
    WARM = "warm"
    DEAD = "dead"  # crashed; its memory is held until it is stopped
    STOPPING = "stopping"
    ASLEEP = "asleep"


@dataclass(frozen=True, slots=True)
class TrueModel:
    """What is true about a model, whatever the core was told."""

    name: str
    load_ms: float
    memory: Mapping[str, int]
    slowdown: float = 0.3
    stop_ms: tuple[float, float] = (100.0, 400.0)  # from being told to go until its memory is back
    asleep: Mapping[str, int] = field(default_factory=dict[str, int])  # what it keeps when it sleeps
    wake_ms: float = 0.0


@dataclass(slots=True)
class SimEngine:
    """One process."""

    model: TrueModel
    power: Power = Power.OFF
    attempt: int = 0
    held: dict[str, int] = field(default_factory=dict[str, int])
    jobs: dict[str, float] = field(default_factory=dict[str, float])  # request -> work done when it ends
    done: float = 0.0  # work done for each job since the engine came up
    at: float = 0.0  # when `done` was true
    generation: int = 0  # of the schedule of the next end
    used_at: float = 0.0  # when it last had work
    frozen_at: float | None = None  # since when it says nothing
    lingering: set[str] = field(default_factory=set[str])  # what was cut and it still works on

    def speed(self) -> float:
        """Work per millisecond that each of the running answers gets."""
        return 1 / (1 + self.model.slowdown * (len(self.jobs) - 1)) if self.jobs else 0.0

    def advance(self, now: float) -> None:
        """Brings the work done up to now."""
        self.used_at = now
        self.done += (now - self.at) * self.speed()
        self.at = now

    def take(self, request: str, work_ms: float, now: float) -> None:
        """Starts an answer."""
        self.advance(now)
        self.jobs[request] = self.done + work_ms
        self.generation += 1

    def drop(self, request: str, now: float) -> float:
        """Ends an answer and says how much of its work was left."""
        self.advance(now)
        self.generation += 1
        return max(0.0, self.jobs.pop(request) - self.done)

    def next_end(self, now: float) -> tuple[float, str] | None:
        """When the next answer ends, and whose it is."""
        if not self.jobs or self.frozen_at is not None:
            return None
        request = min(self.jobs, key=lambda r: (self.jobs[r], r))
        return now + max(0.0, (self.jobs[request] - self.done) / self.speed()), request

    def sleep(self) -> None:
        """Gives its weights back."""
        self.power, self.held = Power.ASLEEP, dict(self.model.asleep)

    def freeze(self, now: float) -> None:
        """Stops without ending."""
        self.advance(now)
        self.frozen_at = now
        self.generation += 1

    def silent_since(self, granted_at: float, *, begun: bool) -> float | None:
        """Since when an answer has brought nothing; None for one that comes word by word."""
        return self.frozen_at if begun else granted_at

    def power_off(self) -> None:
        """The process is gone and its memory is back."""
        self.power, self.held, self.jobs = Power.OFF, {}, {}
        self.frozen_at, self.lingering = None, set()
        self.generation += 1
