"""A simulated engine: the true state of one model's process, which the core knows only from events.

Answers share the processor: with n at once each runs at 1 / (1 + slowdown x (n - 1)) of its speed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Power", "SimEngine", "TrueModel"]


class Power(Enum):
    """The state of the process."""

    OFF = "off"
    LOADING = "loading"
    WARM = "warm"
    DEAD = "dead"  # crashed; its memory is held until it is stopped
    STOPPING = "stopping"
    ASLEEP = "asleep"


@dataclass(frozen=True, slots=True)
class TrueModel:
    """The true figures of a model, whatever the core was told."""

    name: str
    load_ms: float
    memory: Mapping[str, int]
    slowdown: float = 0.3
    stop_ms: tuple[float, float] = (100.0, 400.0)  # from the stop until its memory is back
    asleep: Mapping[str, int] = field(default_factory=dict[str, int])  # the memory it keeps asleep
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
    at: float = 0.0  # the time at which `done` was computed
    generation: int = 0  # of the schedule of the next end
    used_at: float = 0.0  # when it last had work
    frozen_at: float | None = None  # since when it does not answer
    stalls: bool = False  # its answers stop after the first token
    lingering: set[str] = field(default_factory=set[str])  # cut requests that it still works on

    def speed(self) -> float:
        """Work per millisecond that each of the running answers gets."""
        return 1 / (1 + self.model.slowdown * (len(self.jobs) - 1)) if self.jobs else 0.0

    def advance(self, now: float) -> None:
        """Updates the work done until now."""
        self.used_at = now
        self.done += (now - self.at) * self.speed()
        self.at = now

    def take(self, request: str, work_ms: float, now: float) -> None:
        """Starts an answer."""
        self.advance(now)
        self.jobs[request] = self.done + work_ms
        self.generation += 1

    def drop(self, request: str, now: float) -> float:
        """Ends an answer and returns the work that was left."""
        self.advance(now)
        self.generation += 1
        return max(0.0, self.jobs.pop(request) - self.done)

    def next_end(self, now: float) -> tuple[float, str] | None:
        """When the next answer ends, and its request."""
        if not self.jobs or self.stalls or self.frozen_at is not None:
            return None
        request = min(self.jobs, key=lambda r: (self.jobs[r], r))
        return now + max(0.0, (self.jobs[request] - self.done) / self.speed()), request

    def sleep(self) -> None:
        """Unloads its weights."""
        self.power, self.held = Power.ASLEEP, dict(self.model.asleep)

    def freeze(self, now: float) -> None:
        """Hangs: it stops working without ending."""
        self.advance(now)
        self.frozen_at = now
        self.generation += 1

    def silent_since(self, granted_at: float, begun_at: float | None) -> float | None:
        """Since when an answer has sent nothing; None for one that still sends tokens."""
        if begun_at is None:
            return granted_at
        return begun_at if self.stalls else self.frozen_at

    def power_off(self) -> None:
        """Ends the process and frees its memory."""
        self.power, self.held, self.jobs = Power.OFF, {}, {}
        self.frozen_at, self.stalls, self.lingering = None, False, set()
        self.generation += 1
