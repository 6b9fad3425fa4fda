"""Owned engines: one process per model, brought up, watched and taken down the same way for every driver.

A driver brings a recipe: the command line, and what its log means when it fails. Everything that must never
differ between drivers is here: ports, guard, health and probe, what a cancelled load leaves behind
(nothing), who hears of a death (the caller of a load that is under way, else `on_death`, never both), and
the stop ladder.
"""

import asyncio
import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from watchbill import limits
from watchbill.catalog import RAM, Model
from watchbill.core.messages import Blame
from watchbill.engines.base import Capabilities, DeathCallback, Endpoint, LoadError, Warm
from watchbill.engines.sleep import Sleep, is_sleeping, tell
from watchbill.engines.warmup import Progress, warm_up
from watchbill.errors import ConfigError
from watchbill.files.disk import DISK_FAULTS, fault_of
from watchbill.probes.trees import pss_of_tree
from watchbill.processes import (
    LOOPBACK,
    Ending,
    Keeper,
    OwnedProcess,
    Withheld,
    engine_log,
    is_taken,
    shielded,
)
from watchbill.units import format_millis

__all__ = ["Diagnosis", "Launch", "OwnedEngine", "Recipe"]

#: A command that cannot be started for one of these reasons cannot be started the next time either.
HOPELESS_ERRNO = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG}
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one model on one port, and how to ask it to stop."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # the model's own included
    stop_signal: int = signal.SIGTERM
    stop_argv: tuple[str, ...] = ()  # run before the signal; ${PID} is the engine's first process
    key: str = field(default="", repr=False)  # what the engine asks of its callers; empty: it asks nobody


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the lines of a log mean."""

    reason: str
    hopeless: bool


class Recipe(Protocol):
    """What a driver knows about its engine."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def sleep(self) -> Sleep | None:
        """How its models sleep, if they can."""
        ...

    def probe_for(self, model: Model) -> str:
        """What proves this model warm when its table does not say."""
        ...

    async def launch(self, model: Model, port: int, keeper: Keeper) -> Launch:
        """How to start the model. Raises LoadError or ConfigError when it is plain that it cannot work."""
        ...

    def diagnose(self, lines: list[str]) -> Diagnosis | None:
        """What the last lines of the log say about a failure, if they say anything."""
        ...


class Host:
    """One model's process, from the choice of its port to its end."""

    def __init__(self, model: Model, attempt: int, expected_ms: int | None) -> None:
        self.model = model
        self.attempt = attempt
        self.progress = Progress(expected_ms)
        self.port = 0
        self.launch: Launch | None = None
        self.process: OwnedProcess | None = None
        self.bringing_up: asyncio.Task[Warm] | None = None
        self.is_ready = False
        self.stop_asked = False

    @property
    def endpoint(self) -> Endpoint:
        """Where its engine listens, and the key that it asks for."""
        return Endpoint(LOOPBACK, self.port, key=self.launch.key if self.launch else "")


class OwnedEngine:
    """The engine protocol for anything that runs as a process of ours."""

    def __init__(
        self, recipe: Recipe, root: Path, on_death: DeathCallback, withheld: Withheld | None = None
    ) -> None:
        self._recipe = recipe
        self._root = root
        self._keeper = Keeper(root, withheld=withheld)
        self._on_death = on_death
        self._hosts: dict[str, Host] = {}
        self._is_closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do."""
        return self._recipe.capabilities

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        """Brings the model up. A process that ends meanwhile fails the load at once."""
        if self._is_closed or model.name in self._hosts:
            raise LoadError(
                f"{model.name} is {'shut down' if self._is_closed else 'already up or still stopping'}"
            )
        host = self._hosts[model.name] = Host(model, attempt, expected_ms)
        limit_ms = model.load_timeout_ms or limits.LOAD_MS_MAX
        host.bringing_up = asyncio.create_task(self._bring_up(host))
        try:
            async with asyncio.timeout(limit_ms / 1000):
                warm = await host.bringing_up
        except TimeoutError:
            await self._drop(host)
            what = f"was not warm after {format_millis(limit_ms)}: {host.progress.text}"
            raise self._failure(host, what) from None
        except asyncio.CancelledError:
            await self._drop(host)
            if host.stop_asked and not _is_being_cancelled():
                raise LoadError(f"{model.name} was stopped while it loaded") from None
            raise
        if host.stop_asked:
            await self._drop(host)
            raise LoadError(f"{model.name} was stopped while it loaded")
        self._watch(host)
        return warm

    async def stop(self, model: str, *, hard: bool = False) -> None:
        """Takes the model down, also one that is still coming up."""
        host = self._hosts.get(model)
        if host is None:
            return
        host.stop_asked = True
        if not host.is_ready and host.bringing_up is not None:
            host.bringing_up.cancel()
            await asyncio.wait([host.bringing_up])
        if host.process is not None and not host.process.has_ended:
            await shielded(self._take_down(host, hard=hard))

    async def sleep(self, model: str, attempt: int) -> Mapping[str, int]:
        """Puts a warm model to sleep. A death from now on belongs to this attempt."""
        host, sleep = self._hosts.get(model), self._recipe.sleep
        if host is None or not host.is_ready or sleep is None or sleep.sleep is None:
            raise LoadError(f"{model} cannot be put to sleep")
        host.attempt = attempt
        await tell(host.endpoint, sleep.sleep)
        return await asyncio.to_thread(self.memory, model)

    async def wake(self, model: Model, attempt: int) -> Warm:
        """Wakes a model: tells it where that is possible, and asks it something in any case."""
        host, sleep = self._hosts.get(model.name), self._recipe.sleep
        if host is None or host.process is None or sleep is None:
            raise LoadError(f"{model.name} is not asleep")
        host.attempt = attempt
        limit_ms = model.load_timeout_ms or limits.LOAD_MS_MAX
        try:
            async with asyncio.timeout(limit_ms / 1000):
                if sleep.wake is not None:
                    await tell(host.endpoint, sleep.wake, limit_ms)
                warm = await self._warm_or_ended(host, host.process)
        except (LoadError, TimeoutError) as error:
            await shielded(self._take_down(host, hard=True))
            raise self._failure(host, f"did not wake: {error}") from error
        if not isinstance(warm, Warm):
            raise self._failure(host, f"{warm.describe()} while it woke")
        return warm

    def is_asleep(self, model: str) -> bool | None:
        """Whether the model's engine says that it sleeps."""
        host, sleep = self._hosts.get(model), self._recipe.sleep
        if host is None or not host.is_ready or sleep is None or host.model.sleep_ms is None:
            return None
        return is_sleeping(host.endpoint, sleep)

    def memory(self, model: str) -> Mapping[str, int]:
        """PSS of the whole tree, its guard included: all that goes when the model goes."""
        host = self._hosts.get(model)
        if host is None or host.process is None or RAM not in host.model.devices:
            return {}
        return {RAM: pss_of_tree(host.process.guard_pid).pss}

    async def close(self) -> None:
        """Stops everything at once."""
        self._is_closed = True
        await asyncio.gather(*(self.stop(name) for name in list(self._hosts)))

    # ------------------------------------------------------------------ up

    async def _bring_up(self, host: Host) -> Warm:
        """Tries ports until one works. Leaves nothing behind when it fails or is cancelled."""
        try:
            for _ in range(limits.PORT_ATTEMPTS_MAX):
                if warm := await self._try_port(host):
                    host.is_ready = True
                    return warm
            raise LoadError(f"{host.model.name}: somebody else took each of {limits.PORT_ATTEMPTS_MAX} ports")
        except OSError as error:  # any errno: which of them is whose fault is told here
            raise self._cannot_start(host.model.name, error, host.launch) from error
        finally:
            if not host.is_ready:
                del self._hosts[host.model.name]

    async def _try_port(self, host: Host) -> Warm | None:
        """One start. None when the engine ended because somebody else has its port."""
        host.port = self._keeper.claim_port()
        try:
            host.launch = await self._launch(host)
            host.process = await self._start(host, host.launch)
            warm = await self._warm_or_ended(host, host.process)
        except BaseException:
            await shielded(self._clear(host))
            raise
        if isinstance(warm, Warm):
            return warm
        await self._clear(host)
        if is_taken(host.port):
            return None
        raise self._failure(host, f"{warm.describe()} while it loaded")

    async def _launch(self, host: Host) -> Launch:
        try:
            return await self._recipe.launch(host.model, host.port, self._keeper)
        except ConfigError as error:
            raise LoadError(f"{host.model.name}: {error}", hopeless=True) from error

    async def _start(self, host: Host, launch: Launch) -> OwnedProcess:
        name = host.model.name
        return await self._keeper.start(
            name,
            launch.argv,
            log=engine_log(self._root, name),
            env={**visible_cards(host.model), **launch.env},
        )

    def _cannot_start(self, name: str, error: OSError, launch: Launch | None) -> LoadError:
        why = error.strerror or str(error)
        if error.errno in DISK_FAULTS:
            return LoadError(_disk_failed(name, self._root, error), blame=Blame.DISK)
        what = launch.argv[0] if launch is not None else "its process"
        return LoadError(f"{name}: cannot start {what}: {why}", hopeless=error.errno in HOPELESS_ERRNO)

    async def _warm_or_ended(self, host: Host, process: OwnedProcess) -> Warm | Ending:
        """Whichever comes first."""
        endpoint = replace(
            host.endpoint, upstream_model=host.model.name, continues=self.capabilities.continues
        )
        probe = host.model.probe or self._recipe.probe_for(host.model)
        warming = asyncio.create_task(warm_up(endpoint, host.model.health, probe, host.progress))
        ending = asyncio.create_task(process.ended())
        try:
            await asyncio.wait([warming, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            warming.cancel()
            ending.cancel()
            await asyncio.wait([warming, ending])
        if not ending.cancelled():
            return ending.result()
        try:
            warming.result()
        except LoadError as error:
            raise self._failure(host, str(error), hopeless=error.hopeless) from error
        memory = await asyncio.to_thread(self.memory, host.model.name)
        if process.has_ended:
            return await process.ended()
        return Warm(endpoint, process.pid, memory, probe, health=host.model.health)

    def _failure(self, host: Host, what: str, *, hopeless: bool = False) -> LoadError:
        """The error of a load that failed: what happened, why if the log tells, and the log's last lines."""
        lines = host.process.log.read_tail(limits.LOG_TAIL_LINES_MAX) if host.process else []
        diagnosis = self._recipe.diagnose(lines)
        if (fault := fault_of(self._root)) is not None:
            return LoadError(f"{_disk_failed(host.model.name, self._root, fault)} ({what})", blame=Blame.DISK)
        if diagnosis is not None and diagnosis.hopeless:
            return LoadError(f"{host.model.name}: {diagnosis.reason}", hopeless=True)
        why = f": {diagnosis.reason}" if diagnosis else ""
        tail = "".join(f"\n  {line}" for line in lines)
        return LoadError(f"{host.model.name} {what}{why}{tail}", hopeless=hopeless)

    # ------------------------------------------------------------------ down

    def _watch(self, host: Host) -> None:
        """From now on a death is reported through the callback."""
        if host.process is not None:
            host.process.on_end(lambda ending: self._on_end(host, ending))

    async def _drop(self, host: Host) -> None:
        """Takes down a model that became warm in the very moment in which its caller gave up."""
        if host.is_ready:
            try:
                await shielded(self._clear(host))
            finally:  # a second cancellation would leave a model that is gone and can never be loaded again
                self._forget(host)

    def _on_end(self, host: Host, ending: Ending) -> None:
        self._forget(host)
        if not ending.was_asked:
            self._on_death(host.model.name, host.attempt, ending.describe())

    async def _take_down(self, host: Host, *, hard: bool) -> None:
        process, launch = host.process, host.launch
        if process is None or launch is None:
            return

        async def ask() -> None:
            words = tuple(word.replace("${PID}", str(process.pid)) for word in launch.stop_argv)
            await self._keeper.run(f"stop of {host.model.name}", words)

        await process.stop(hard=hard, number=launch.stop_signal, ask=ask if launch.stop_argv else None)

    async def _clear(self, host: Host) -> None:
        """Removes what a start left behind."""
        if host.process is not None:
            await host.process.stop(hard=True)
        self._keeper.release_port(host.port)

    def _forget(self, host: Host) -> None:
        self._keeper.release_port(host.port)
        if self._hosts.get(host.model.name) is host:
            del self._hosts[host.model.name]


def _disk_failed(name: str, root: Path, error: OSError) -> str:
    """A message that does not blame the model."""
    return f"{name}: the disk of {root} failed: {error.strerror or error}; make room there, and it loads by itself"


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def visible_cards(model: Model) -> dict[str, str]:
    """A model sees its own cards only; one without cards sees none, which spares a CUDA context of 600 MiB."""
    cards = [device.removeprefix("gpu:") for device in model.devices if device.startswith("gpu:")]
    return {"CUDA_VISIBLE_DEVICES": ",".join(cards), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
