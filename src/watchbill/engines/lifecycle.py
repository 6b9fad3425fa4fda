"""The life of a model at an engine, from the first step of its load to its end. The same for every driver.

    load ──▶ coming up ──▶ ready ──▶ taken down
                 │           │
                 └──▶ undone ◀── the load failed, was cancelled or took too long

Owns which models are held, and the races between loads, stops and deaths:

- A load that fails, is cancelled or takes too long is undone before its caller hears of it. Where that is not
  possible (processes that survive SIGKILL, another program that does not answer) the error says that something may be
  left, and the model stays held, so that it can be stopped later.
- A stop never races a start: it cancels a load that is under way, and waits for its end.
- A model that leaves by itself is reported once. A model that is being stopped is never reported.

The steps differ: `owned` starts and stops processes, `foreign` asks the program that hosts the models.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from watchbill.catalog import Model
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, DeathCallback, LoadError, Warm
from watchbill.engines.readiness import Progress
from watchbill.errors import EngineFailed
from watchbill.processes import shielded
from watchbill.units import format_millis

__all__ = ["Hold", "Lifecycle"]


class Hold:
    """One model that an engine holds, or is loading."""

    def __init__(self, model: Model, attempt: int, progress: Progress) -> None:
        self.model = model
        self.attempt = attempt
        self.progress = progress
        self.coming_up: asyncio.Task[Warm] | None = None
        self.is_ready = False
        self.stop_asked = False


AnyHold = TypeVar("AnyHold", bound=Hold)


class Lifecycle(ABC, Generic[AnyHold]):
    """The engine protocol, for engines that bring models up and take them down."""

    def __init__(self, on_death: DeathCallback) -> None:
        self._on_death = on_death
        self._holds: dict[str, AnyHold] = {}
        self._is_closed = False

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        """Brings the model up. Raises LoadError."""
        if self._is_closed or model.name in self._holds:
            raise LoadError("is shut down" if self._is_closed else "is already up or still stopping")
        hold = self._holds[model.name] = self._new_hold(model, attempt, expected_ms)
        hold.coming_up = asyncio.create_task(self._come_up(hold), name=f"load {model.name}")
        try:
            return await self._until_ready(hold, hold.coming_up)
        except LoadError as error:
            error.remains = self._is_held(hold)
            self._load_failed()
            raise

    async def _until_ready(self, hold: AnyHold, coming_up: asyncio.Task[Warm]) -> Warm:
        limit_ms = hold.model.load_timeout_ms or limits.LOAD_MS_MAX
        try:
            async with asyncio.timeout(limit_ms / 1000):
                warm = await coming_up
        except TimeoutError:
            await self._drop(hold)
            what = f"was not warm after {format_millis(limit_ms)}: {hold.progress.text}"
            raise await self._too_slow(hold, what) from None
        except asyncio.CancelledError:
            await self._drop(hold)
            if hold.stop_asked and not _is_being_cancelled():
                raise LoadError("was stopped while it loaded") from None
            raise
        if hold.stop_asked:
            await self._drop(hold)
            raise LoadError("was stopped while it loaded")
        self._watch(hold)
        return warm

    async def stop(self, model: str, *, hard: bool = False) -> None:
        """Takes the model down, also one that is still coming up."""
        hold = self._holds.get(model)
        if hold is None:
            return
        hold.stop_asked = True
        if not hold.is_ready and hold.coming_up is not None:
            hold.coming_up.cancel()
            await asyncio.wait([hold.coming_up])
        if self._is_held(hold):
            await shielded(self._stop(hold, hard=hard))

    async def close(self) -> None:
        """Stops everything at once. What cannot be stopped is left to the next start."""
        self._is_closed = True
        await asyncio.gather(*(self.stop(name) for name in list(self._holds)), return_exceptions=True)

    # ------------------------------------------------------------------ the steps, which a kind of engine brings

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this driver can do."""

    @abstractmethod
    def memory(self, model: str) -> Mapping[str, int]:
        """What the model occupies now, per device."""

    @abstractmethod
    def _new_hold(self, model: Model, attempt: int, expected_ms: int | None) -> AnyHold: ...

    @abstractmethod
    async def _bring_up(self, hold: AnyHold) -> Warm:
        """Returns when the model is warm. Raises LoadError, and leaves the clearing up to `_undo`."""

    @abstractmethod
    async def _too_slow(self, hold: AnyHold, what: str) -> LoadError:
        """The error of a load that took too long. Never raises."""

    @abstractmethod
    async def _undo(self, hold: AnyHold) -> None:
        """Takes back whatever `_bring_up` did, however far it came. Raises EngineFailed when something may be left."""

    @abstractmethod
    async def _take_down(self, hold: AnyHold, *, hard: bool) -> None:
        """Returns when the model's memory is back. Raises EngineFailed when it does not come back."""

    @abstractmethod
    def _watch(self, hold: AnyHold) -> None:
        """From now on a model that leaves by itself is reported."""

    def _load_failed(self) -> None:
        """A load has ended with an error; for engines that look at their host then."""

    # ------------------------------------------------------------------ up and down

    async def _come_up(self, hold: AnyHold) -> Warm:
        """Leaves nothing behind when it fails or is cancelled, unless that cannot be known."""
        try:
            warm = await self._bring_up(hold)
        except BaseException:
            await shielded(self._undo_and_forget(hold))
            raise
        hold.is_ready = True
        return warm

    async def _drop(self, hold: AnyHold) -> None:
        """Gives back a model that became warm in the very moment in which its caller gave up."""
        if hold.is_ready and self._is_held(hold):
            await shielded(self._undo_and_forget(hold))

    async def _undo_and_forget(self, hold: AnyHold) -> None:
        with contextlib.suppress(EngineFailed):  # it stays held, and can be stopped later
            await self._undo(hold)
            self._forget(hold)

    async def _stop(self, hold: AnyHold, *, hard: bool) -> None:
        # A model that does not go stays held, and can be stopped again.
        await self._take_down(hold, hard=hard)
        self._forget(hold)

    def _report(self, hold: AnyHold, reason: str, blame: Blame = Blame.MODEL) -> None:
        """Tells that a model left by itself."""
        if not hold.stop_asked:
            self._on_death(hold.model.name, hold.attempt, reason, blame)

    def _is_held(self, hold: AnyHold) -> bool:
        return self._holds.get(hold.model.name) is hold

    def _forget(self, hold: AnyHold) -> None:
        if self._is_held(hold):
            del self._holds[hold.model.name]


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
