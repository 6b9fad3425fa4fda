"""Foreign engines: models that another program hosts (Ollama, the host's systemd) and that we only ask for.

The counterpart of `owned`: a driver brings what it knows about the other program (`ForeignHost`); the races are here,
once for all of them. A load that fails, is cancelled or runs out of time is undone before its caller hears of it; a
stop never races a start; a model that leaves by itself is reported once, and one that is being stopped never. One task
per engine looks after everything that is warm, and there is none while nothing is.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from watchbill import limits
from watchbill.catalog import Model
from watchbill.engines.base import Capabilities, DeathCallback, LoadError, Warm
from watchbill.engines.warmup import Progress
from watchbill.processes import shielded
from watchbill.units import format_millis

__all__ = ["ForeignEngine", "ForeignHost", "Hold"]


class Hold:
    """One model that we asked for, from the first word to its end."""

    def __init__(self, model: Model, attempt: int) -> None:
        self.model = model
        self.attempt = attempt
        self.progress = Progress()
        self.progress.text = "it had not been asked for"
        self.bringing_up: asyncio.Task[Warm] | None = None
        self.is_ready = False
        self.stop_asked = False
        self.is_dead = False  # reported, but something of it may still be there
        self.memory: Mapping[str, int] = {}


class ForeignHost(Protocol):
    """What a driver knows about the program that hosts its models."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def look_ms(self) -> int:
        """The time between two looks at what is warm."""
        ...

    @property
    def leaves_remains(self) -> bool:
        """Whether a model that does not answer may still occupy memory, and must be taken down all the same."""
        ...

    async def bring_up(self, hold: Hold) -> Warm:
        """Returns when the model is warm. Raises LoadError. Leaves the clearing up to `undo`."""
        ...

    async def undo(self, hold: Hold) -> None:
        """Takes back whatever `bring_up` did, however far it came. Never raises for a host that is gone."""
        ...

    async def take_down(self, hold: Hold) -> None:
        """Returns when the model's memory is back. Raises EngineFailed when it does not come back."""
        ...

    async def look(self, holds: list[Hold]) -> Mapping[str, str]:
        """Which of these warm models are gone, and why. Never raises."""
        ...

    async def close(self) -> None:
        """Ends every connection."""
        ...


class ForeignEngine:
    """The engine protocol for anything that runs elsewhere."""

    def __init__(self, host: ForeignHost, on_death: DeathCallback) -> None:
        self._host = host
        self._on_death = on_death
        self._holds: dict[str, Hold] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do."""
        return self._host.capabilities

    async def load(self, model: Model, attempt: int) -> Warm:
        """Asks for the model. One that is there already, for whatever reason, is a success at once."""
        if self._is_closed or model.name in self._holds:
            raise LoadError(
                f"{model.name} is {'shut down' if self._is_closed else 'already up or still stopping'}"
            )
        hold = self._holds[model.name] = Hold(model, attempt)
        limit_ms = model.load_timeout_ms or limits.LOAD_MS_MAX
        hold.bringing_up = asyncio.create_task(self._bring_up(hold), name=f"load {model.name}")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                warm = await hold.bringing_up
        except TimeoutError:
            await self._drop(hold)
            what = f"was not warm after {format_millis(limit_ms)}: {hold.progress.text}"
            raise LoadError(f"{model.name} {what}") from None
        except asyncio.CancelledError:
            await self._drop(hold)
            if hold.stop_asked and not _is_being_cancelled():
                raise LoadError(f"{model.name} was stopped while it loaded") from None
            raise
        if hold.stop_asked:
            await self._drop(hold)
            raise LoadError(f"{model.name} was stopped while it loaded")
        self._watch()
        return warm

    async def stop(self, model: str, *, hard: bool = False) -> None:
        """Gives the model back, also one that is still coming up. There is no ladder: the host has its own."""
        hold = self._holds.get(model)
        if hold is None:
            return
        hold.stop_asked = True
        if not hold.is_ready and hold.bringing_up is not None:
            hold.bringing_up.cancel()
            await asyncio.wait([hold.bringing_up])
        if self._holds.get(model) is hold:
            await shielded(self._take_down(hold))

    def memory(self, model: str) -> Mapping[str, int]:
        """What the last look showed."""
        hold = self._holds.get(model)
        return hold.memory if hold is not None else {}

    async def close(self) -> None:
        """Gives everything back."""
        self._is_closed = True
        await asyncio.gather(*(self.stop(name) for name in list(self._holds)), return_exceptions=True)
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await self._host.close()

    # ------------------------------------------------------------------ up and down

    async def _bring_up(self, hold: Hold) -> Warm:
        """Leaves nothing behind when it fails or is cancelled."""
        try:
            warm = await self._host.bring_up(hold)
        except BaseException:
            try:
                await shielded(self._host.undo(hold))
            finally:
                self._forget(hold)
            raise
        hold.memory = warm.memory
        hold.is_ready = True
        return warm

    async def _drop(self, hold: Hold) -> None:
        """Gives back a model that became warm in the very moment in which its caller gave up."""
        if hold.is_ready and self._holds.get(hold.model.name) is hold:
            await shielded(self._host.undo(hold))
            self._forget(hold)

    async def _take_down(self, hold: Hold) -> None:
        await self._host.take_down(hold)  # a hold that does not go stays, so that it can be stopped again
        self._forget(hold)

    def _forget(self, hold: Hold) -> None:
        if self._holds.get(hold.model.name) is hold:
            del self._holds[hold.model.name]

    # ------------------------------------------------------------------ the watch

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._look_often(), name="foreign engine")

    async def _look_often(self) -> None:
        """Looks after what is warm, until nothing is."""
        while holds := [hold for hold in self._holds.values() if hold.is_ready and not hold.is_dead]:
            with contextlib.suppress(TimeoutError):
                # A host that hangs in its look must not end the watch; the next look counts it as missed.
                async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
                    for name, reason in (await self._host.look(holds)).items():
                        self._report(name, reason, holds)
            await asyncio.sleep(self._host.look_ms / 1000)

    def _report(self, name: str, reason: str, seen: list[Hold]) -> None:
        hold = self._holds.get(name)
        if hold is None or hold not in seen or hold.stop_asked:
            return  # it was stopped, or loaded anew, while we looked
        hold.is_dead = True
        if not self._host.leaves_remains:
            self._forget(hold)
        self._on_death(name, hold.attempt, reason)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
