"""Memory: the seam between an agent and the device that it owns.

An agent never decides what fits on its card: it asks for a loan before a GPU task starts and gives it back when no
process of the task is left. What it may claim at all it reads from `state`, which is the last known state and never
waits. An agent for cpu work has `NoDevice`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from watchbill.errors import OursError
from watchbill.fleet.matching.claiming import Health

__all__ = ["BUDGET_SHARE", "DeviceState", "Memory", "NoDevice"]

#: The part of a card that tasks may have (FLEET-02).
BUDGET_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device as its agent sees it now."""

    devices: tuple[str, ...] = ()  # their names on this host; none for an agent that has no device
    cards: tuple[str, ...] = ()  # UUIDs of its GPUs
    budget_mb: int = 0  # what all its tasks may have together
    health: Health = Health.HEALTHY
    constraints: tuple[str, ...] = ()  # what makes it constrained, for people
    is_open: bool = False  # whether the ledger of the device answers; never so for an agent without a device
    own_model: str = ""  # the one that tasks ask unless they name another
    hot: tuple[str, ...] = ()  # the models that are in its memory
    models: tuple[str, ...] = ()  # those that it can serve, its own first
    model_url: str = ""
    llm_slots: int = 0
    #: model -> its load time, where measured
    load_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    #: The card's keys of a heartbeat.
    readings: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def is_hot(self) -> bool:
        """Whether its own model fills the device; without an own model, whether any does."""
        return self.own_model in self.hot if self.own_model else bool(self.hot)


class Memory(Protocol):
    """Lends memory of one device to tasks."""

    @property
    def state(self) -> DeviceState:
        """The last known state."""
        ...

    async def borrow(self, loan: str, vram_mb: int) -> bool:
        """Ask for memory; False where there is none now. Bounded in time."""
        ...

    async def used_by(self, loan: str, pid: int) -> None:
        """Tell which process tree uses a loan, so that its peak is measured."""
        ...

    def peak_mb(self, loan: str) -> int:
        """The most that a running task was seen to use, in MiB; 0 where that is unknown."""
        ...

    async def give_back(self, loan: str) -> int:
        """Return memory; the answer is the peak that the task really used in MiB, 0 where that is unknown."""
        ...

    def miss(self) -> None:
        """Note that the device does not answer: nothing that needs it is claimed before it was looked at again."""
        ...

    async def load(self, model: str) -> None:
        """Bring a model into memory. Raises WatchbillError with the reason where that fails."""
        ...

    async def unload(self, model: str) -> None:
        """Take a model out of memory. Raises WatchbillError with the reason where that fails."""
        ...


class NoDevice:
    """An agent without a device: nothing is lent."""

    state = DeviceState()

    async def borrow(self, loan: str, vram_mb: int) -> bool:
        return False

    async def used_by(self, loan: str, pid: int) -> None:
        """Nothing is lent."""

    def peak_mb(self, loan: str) -> int:
        return 0

    async def give_back(self, loan: str) -> int:
        return 0

    def miss(self) -> None:
        """There is nothing to miss."""

    async def load(self, model: str) -> None:
        raise OursError("this agent has no device that a model could be loaded on")

    async def unload(self, model: str) -> None:
        raise OursError("this agent has no device that a model could be unloaded from")
