"""Probes: the machine's current report about its memory.

A probe answers one question, "how much is there and how much is free", for the devices it knows. It reads and never
decides: the core interprets the figures. Every reading carries the time it was taken, so that a value that is kept
because its probe fails can be told from a fresh one by its age.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from watchbill.core.messages import Constraint, DeviceReading
from watchbill.errors import TheirsError
from watchbill.units import Bytes, Millis

__all__ = ["CardHealth", "Cards", "Probe", "ProbeError", "Reading"]


class ProbeError(TheirsError):
    """A probe cannot read its device."""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """The health of one GPU. `None` means that the card does not report it."""

    temperature_c: float | None = None
    slowdown_c: float | None = None  # the card's own threshold
    shutdown_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()  # reasons that cost speed, without idling
    utilisation_percent: int | None = None  # of the last sample period in which it was busy


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine's report about one device."""

    capacity: Bytes
    available: Bytes
    taken_at: Millis  # monotonic
    #: GPUs only: pid -> memory of that process.
    processes: Mapping[int, Bytes] = field(default_factory=lambda: MappingProxyType({}))
    health: CardHealth | None = None  # GPUs only
    uuid: str = ""  # GPUs only: identifies the card, whatever its index; empty where it has none
    # GPUs only: the card's whole memory, including the driver's reserve; 0 where it is unknown.
    total: Bytes = Bytes(0)
    title: str = ""  # GPUs only: what its maker calls it

    def for_core(self, now: int, constrained: Constraint | None = None) -> DeviceReading:
        """The reading for the core, with its age at `now`, and why the device takes no loads."""
        health = self.health or CardHealth()
        age_ms = max(0, now - self.taken_at)
        return DeviceReading(
            self.capacity, self.available, age_ms, constrained, health.power_w, health.power_limit_w
        )


#: The readings of cards by the names of their devices.
Cards = Mapping[str, Reading]


class Probe(Protocol):
    """A source of readings for the devices it knows."""

    def read(self) -> Mapping[str, Reading]:
        """Device name -> the current reading. May block; raises ProbeError when it cannot read."""
        ...
