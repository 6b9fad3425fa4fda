"""Foreign engines: models that another program hosts (Ollama, the host's systemd) and that we only ask for.

The steps of `lifecycle` for such programs. A driver brings what it knows about the other program (`ForeignHost`).

One task per engine looks after everything that is warm, and after a host that does not answer; there is none while
there is nothing to look after. What is known of the host itself is reported when it changes. While the host is silent,
nothing is believed of its models but what was last seen: a program that was stopped for a minute still holds them all.

Models in another program outlive a daemon that is killed. `HeldRecord` names them in `ROOT/run` from before they are
asked for until they are given back, so that the next start can give back what its predecessor could not.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from watchbill.catalog import Model
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import (
    Capabilities,
    DeathCallback,
    Engine,
    HostCallback,
    HostState,
    LoadError,
    Warm,
)
from watchbill.engines.lifecycle import Hold, Lifecycle
from watchbill.engines.readiness import Progress
from watchbill.errors import EngineFailed
from watchbill.files.atomic import open_regular, replace_file

__all__ = [
    "ForeignEngine",
    "ForeignHold",
    "ForeignHost",
    "Gone",
    "HeldRecord",
    "KeyedHost",
    "RunFile",
    "SucceedingHost",
]

T = TypeVar("T")


class ForeignHold(Hold):
    """One model that we asked another program for."""

    def __init__(self, model: Model, attempt: int, expected_ms: int | None) -> None:
        super().__init__(model, attempt, Progress("it had not been asked for", expected_ms))
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

    async def bring_up(self, hold: ForeignHold) -> Warm:
        """Returns when the model is warm. Raises LoadError. Leaves the clearing up to `undo`."""
        ...

    async def blame_for_delay(self, hold: ForeignHold) -> Blame:
        """Whose fault it is that a model is not warm in time. Never raises."""
        ...

    async def undo(self, hold: ForeignHold) -> None:
        """Takes back whatever `bring_up` did, however far it came. Raises EngineFailed when something may be left."""
        ...

    async def take_down(self, hold: ForeignHold) -> None:
        """Returns when the model's memory is back. Raises EngineFailed when it does not come back."""
        ...

    async def look(self, holds: list[ForeignHold]) -> Mapping[str, Gone]:
        """Which of these warm models are gone, and why. Never raises."""
        ...

    async def close(self) -> None:
        """Ends every connection."""
        ...


@runtime_checkable
class SucceedingHost(Protocol):
    """A host that shares something with the host of a former config has this method, too."""

    def succeed(self, former: ForeignHost) -> None:
        """Takes its place, before anything is asked of it."""
        ...


@runtime_checkable
class KeyedHost(Protocol):
    """A host at which another key may be shown while its models are warm has this method, too."""

    def show_key(self, key: str) -> None:
        """Shows another key from the next question on."""
        ...


class ForeignEngine(Lifecycle[ForeignHold]):
    """The engine protocol for anything that runs elsewhere."""

    def __init__(self, host: ForeignHost, on_death: DeathCallback, on_host: HostCallback) -> None:
        super().__init__(on_death)
        self._host = host
        self._on_host = on_host
        self._watcher: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # the next look is not to wait
        self._looked = asyncio.Event()  # set when the next look is over and reported
        self._told = HostState()
        if host.is_awaited:
            self._keep_looking()

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do."""
        return self._host.capabilities

    def memory(self, model: str) -> Mapping[str, int]:
        """What the last look showed."""
        hold = self._holds.get(model)
        return hold.memory if hold is not None else {}

    async def close(self) -> None:
        """Gives everything back."""
        await super().close()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await self._host.close()

    def succeed(self, former: Engine) -> None:
        """Takes the place of the engine of a former config, whose models may still run."""
        if isinstance(former, ForeignEngine) and isinstance(self._host, SucceedingHost):
            self._host.succeed(former._host)

    @property
    def shows_keys(self) -> bool:
        """Whether its key may be changed while its models are warm."""
        return isinstance(self._host, KeyedHost)

    def show_key(self, key: str) -> None:
        """Shows another key from the next question on."""
        assert isinstance(self._host, KeyedHost)
        self._host.show_key(key)

    # ------------------------------------------------------------------ up and down

    def _new_hold(self, model: Model, attempt: int, expected_ms: int | None) -> ForeignHold:
        return ForeignHold(model, attempt, expected_ms)

    async def _bring_up(self, hold: ForeignHold) -> Warm:
        """A model that is there already, for whatever reason, is a success at once."""
        warm = await self._host.bring_up(hold)
        hold.memory = warm.memory
        return warm

    async def _too_slow(self, hold: ForeignHold, what: str) -> LoadError:
        return LoadError(what, blame=await self._host.blame_for_delay(hold))

    async def _undo(self, hold: ForeignHold) -> None:
        await self._host.undo(hold)

    async def _take_down(self, hold: ForeignHold, *, hard: bool) -> None:
        """Asks for it, hard or not: the host has its own ladder."""
        try:
            await self._host.take_down(hold)
        except EngineFailed:
            self._look_soon()
            raise
        if self._told.silence is not None:
            self._look_soon()  # it may have been the last one to look after

    def _load_failed(self) -> None:
        self._look_soon()

    # ------------------------------------------------------------------ the watch

    def _watch(self, hold: ForeignHold) -> None:
        """Every look includes it from now on. The first is soon: it may have taken another model's place."""
        self._look_soon()

    async def look_again(self) -> None:
        """Looks at the host at once, and returns when what that showed has been reported."""
        looked = self._looked
        self._look_soon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
                await looked.wait()

    def _look_soon(self) -> None:
        """Reports what is known of the host, and looks at it again at once: something may have changed there."""
        self._tell()
        if not self._is_closed:
            self._hurry.set()
            self._keep_looking()

    def _keep_looking(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._look_often(), name="foreign engine")

    async def _look_often(self) -> None:
        """Looks after what is warm and after a host that does not answer, until there is neither."""
        while (holds := self._warm()) or self._host.is_awaited:
            looked, self._looked = self._looked, asyncio.Event()
            with contextlib.suppress(TimeoutError):
                # A host that hangs in its look must not end the watch; the next look counts it as missed.
                async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
                    self._report_all(await self._host.look(holds), holds)
            looked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._host.look_ms / 1000):
                    await self._hurry.wait()
            self._hurry.clear()
        self._looked.set()
        self._looked = asyncio.Event()

    def _warm(self) -> list[ForeignHold]:
        return [hold for hold in self._holds.values() if hold.is_ready and not hold.is_dead]

    def _report_all(self, gone: Mapping[str, Gone], seen: list[ForeignHold]) -> None:
        """Tells what a look showed. A host that went silent is reported before its models, so that nothing is planned
        on it, and one that answers again after them, so that nothing is planned before it is known what it lost."""
        if self._host.state.silence is not None:
            self._tell()
        for name, why in gone.items():
            hold = self._holds.get(name)
            if hold is not None and hold in seen and not hold.stop_asked:
                self._report_gone(hold, why)
        self._tell()

    def _report_gone(self, hold: ForeignHold, gone: Gone) -> None:
        hold.is_dead = True
        if not self._host.leaves_remains:
            self._forget(hold)
        self._report(hold, gone.reason, gone.blame)

    def _tell(self) -> None:
        """Reports what is known of the host, if it is news."""
        state = self._host.state
        if state != self._told and not self._is_closed:
            self._told = state
            self._on_host(state)


class RunFile(Generic[T]):
    """One small file in `ROOT/run` about something that outlives a daemon that is killed."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path, self._kind = path, kind

    def read(self) -> T | None:
        """What was written last; None where there is no file."""
        try:
            descriptor = open_regular(self._path)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            try:
                return msgspec.json.decode(file.read(limits.RUN_FILE_BYTES_MAX), type=self._kind)
            except msgspec.DecodeError:
                return None  # torn by a power cut; `sync` is for what such a cut does not end as well

    def write(self, what: T | None, *, sync: bool = False) -> None:
        """Replaces the file; None removes it. Without `sync` it may be torn by a power cut."""
        if what is None:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, msgspec.json.encode(what), sync=sync)


class HeldRecord:
    """The names by which another program knows our models."""

    def __init__(self, path: Path) -> None:
        self._file = RunFile(path, list[str])

    def read(self) -> list[str]:
        """The names; none where nothing is held."""
        return self._file.read() or []

    def write(self, names: Iterable[str]) -> None:
        """Replaces the names; there is no file where there are none."""
        self._file.write(sorted(set(names)) or None)
