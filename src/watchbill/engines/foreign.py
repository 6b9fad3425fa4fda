"""Foreign engines: models that another program hosts (Ollama, the host's systemd) and that we only ask for.

The counterpart of `owned`: a driver brings what it knows about the other program (`ForeignHost`); the races are here,
once for all of them. A load that fails, is cancelled or runs out of time is undone before its caller hears of it; where
the host does not answer and so nothing can be undone, the caller is told that something may be left, and stops it
later. A stop never races a start; a model that leaves by itself is reported once, and one that is being stopped never.

One task per engine looks after everything that is warm, and after a host that does not answer; there is none while
there is nothing to look after. What is known of the host itself is reported when it changes. In its silence nothing is
believed of its models but what was last seen: a program that was stopped for a minute still holds them all.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from watchbill import limits
from watchbill.catalog import Model
from watchbill.core.messages import Blame
from watchbill.engines.base import Capabilities, DeathCallback, HostCallback, HostState, LoadError, Warm
from watchbill.engines.warmup import Progress
from watchbill.errors import EngineFailed
from watchbill.processes import shielded
from watchbill.units import format_millis

__all__ = ["ForeignEngine", "ForeignHost", "Gone", "Hold"]


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


@dataclass(frozen=True, slots=True)
class Gone:
    """Why a warm model is not there any more, and whose fault that is."""

    reason: str
    blame: Blame = Blame.MODEL


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

    @property
    def state(self) -> HostState:
        """What is known of the host now."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether there is something to look after although nothing is warm."""
        ...

    async def bring_up(self, hold: Hold) -> Warm:
        """Returns when the model is warm. Raises LoadError. Leaves the clearing up to `undo`."""
        ...

    async def blame_for_delay(self, hold: Hold) -> Blame:
        """Whose fault it is that a model is not warm in time. Never raises."""
        ...

    async def undo(self, hold: Hold) -> None:
        """Takes back whatever `bring_up` did, however far it came. Raises EngineFailed when nobody knows whether
        something of it is left."""
        ...

    async def take_down(self, hold: Hold) -> None:
        """Returns when the model's memory is back. Raises EngineFailed when it does not come back."""
        ...

    async def look(self, holds: list[Hold]) -> Mapping[str, Gone]:
        """Which of these warm models are gone, and why. Never raises."""
        ...

    async def close(self) -> None:
        """Ends every connection."""
        ...


class ForeignEngine:
    """The engine protocol for anything that runs elsewhere."""

    def __init__(self, host: ForeignHost, on_death: DeathCallback, on_host: HostCallback) -> None:
        self._host = host
        self._on_death, self._on_host = on_death, on_host
        self._holds: dict[str, Hold] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # the next look is not to wait
        self._told = HostState()
        self._is_closed = False
        if host.is_awaited:
            self._watch()

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do."""
        return self._host.capabilities

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        """Asks for the model. One that is there already, for whatever reason, is a success at once."""
        if self._is_closed or model.name in self._holds:
            raise LoadError(
                f"{model.name} is {'shut down' if self._is_closed else 'already up or still stopping'}"
            )
        hold = self._holds[model.name] = Hold(model, attempt)
        hold.progress.expected_ms = expected_ms
        limit_ms = model.load_timeout_ms or limits.LOAD_MS_MAX
        hold.bringing_up = asyncio.create_task(self._bring_up(hold), name=f"load {model.name}")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                warm = await hold.bringing_up
        except TimeoutError:
            await self._drop(hold)
            what = f"was not warm after {format_millis(limit_ms)}: {hold.progress.text}"
            blame = await self._host.blame_for_delay(hold)
            self._look_soon()
            raise LoadError(f"{model.name} {what}", blame=blame, remains=self._is_held(hold)) from None
        except asyncio.CancelledError:
            await self._drop(hold)
            if hold.stop_asked and not _is_being_cancelled():
                raise LoadError(f"{model.name} was stopped while it loaded") from None
            raise
        except LoadError as error:
            self._look_soon()
            error.remains = self._is_held(hold)
            raise
        if hold.stop_asked:
            await self._drop(hold)
            raise LoadError(f"{model.name} was stopped while it loaded", remains=self._is_held(hold))
        self._look_soon()  # it may have taken another one's place
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
        if self._is_held(hold):
            try:
                await shielded(self._take_down(hold))
            except EngineFailed:
                self._look_soon()
                raise

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
        """Leaves nothing behind when it fails or is cancelled, unless that cannot be known."""
        try:
            warm = await self._host.bring_up(hold)
        except BaseException:
            await self._undo(hold)
            raise
        hold.memory = warm.memory
        hold.is_ready = True
        return warm

    async def _drop(self, hold: Hold) -> None:
        """Gives back a model that became warm in the very moment in which its caller gave up."""
        if hold.is_ready and self._is_held(hold):
            await self._undo(hold)

    async def _undo(self, hold: Hold) -> None:
        """A hold that cannot be undone stays, so that it can be stopped later."""
        await shielded(self._undo_and_forget(hold))

    async def _undo_and_forget(self, hold: Hold) -> None:
        with contextlib.suppress(EngineFailed):
            await self._host.undo(hold)
            self._forget(hold)

    async def _take_down(self, hold: Hold) -> None:
        await self._host.take_down(hold)  # a hold that does not go stays, so that it can be stopped again
        self._forget(hold)

    def _is_held(self, hold: Hold) -> bool:
        return self._holds.get(hold.model.name) is hold

    def _forget(self, hold: Hold) -> None:
        if self._is_held(hold):
            del self._holds[hold.model.name]

    # ------------------------------------------------------------------ the watch

    def _watch(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._look_often(), name="foreign engine")

    async def _look_often(self) -> None:
        """Looks after what is warm and after a host that does not answer, until there is neither."""
        while (holds := self._warm()) or self._host.is_awaited:
            with contextlib.suppress(TimeoutError):
                # A host that hangs in its look must not end the watch; the next look counts it as missed.
                async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
                    self._report(await self._host.look(holds), holds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._host.look_ms / 1000):
                    await self._hurry.wait()
            self._hurry.clear()

    def _warm(self) -> list[Hold]:
        return [hold for hold in self._holds.values() if hold.is_ready and not hold.is_dead]

    def _report(self, gone: Mapping[str, Gone], seen: list[Hold]) -> None:
        """Tells what a look showed. In this order: nothing is planned on a host that answers again before it is known
        what it lost, and nothing on one that went before it is known that it did."""
        if self._host.state.silence is not None:
            self._tell()
        for name, why in gone.items():
            self._report_one(name, why, seen)
        self._tell()

    def _report_one(self, name: str, gone: Gone, seen: list[Hold]) -> None:
        hold = self._holds.get(name)
        if hold is None or hold not in seen or hold.stop_asked:
            return  # it was stopped, or loaded anew, while we looked
        hold.is_dead = True
        if not self._host.leaves_remains:
            self._forget(hold)
        self._on_death(name, hold.attempt, gone.reason, gone.blame)

    def _tell(self) -> None:
        """Reports what is known of the host, if it is news."""
        state = self._host.state
        if state != self._told and not self._is_closed:
            self._told = state
            self._on_host(state)

    def _look_soon(self) -> None:
        """Reports what is known of the host, and looks at it again at once: something may have changed there."""
        self._tell()
        if not self._is_closed:
            self._hurry.set()
            self._watch()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
