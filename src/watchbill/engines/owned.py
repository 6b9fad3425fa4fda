"""Owned engines: one process of ours per model.

The steps of `lifecycle` for processes: choose a port, start the program behind its guard, wait for health and probe,
and stop it by the ladder of its `processes.owned`. A driver brings a recipe: the command line, and what its log means
when it fails. The end of a process is told to the caller of a load that is under way, else reported, never both.
"""

import asyncio
import errno
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from watchbill.catalog import RAM, Model
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, DeathCallback, Endpoint, LoadError, Warm
from watchbill.engines.lifecycle import Hold, Lifecycle
from watchbill.engines.readiness import Progress, warm_up
from watchbill.engines.sleep import Sleep, is_sleeping, tell
from watchbill.errors import ConfigError
from watchbill.files.disk import DISK_FAULTS, disk_failure, fault_of
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
from watchbill.processes import limits as processes_limits

__all__ = ["Diagnosis", "Launch", "OwnedEngine", "Recipe", "visible_cards"]

#: A command that cannot be started for one of these reasons cannot be started the next time either.
HOPELESS_ERRNO = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG}
)
#: How PyTorch and CUDA itself say that they see no card.
_NO_CARD = re.compile("No CUDA GPUs are available|no CUDA-capable device is detected")


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one model on one port, and how to ask it to stop."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # the model's own included
    stop_signal: int = signal.SIGTERM
    stop_argv: tuple[str, ...] = ()  # run before the signal; ${PID} is the engine's first process
    key: str = field(default="", repr=False)  # the key that the engine asks for; empty: none
    if_silent: str = ""  # what to look at when its process runs and nothing answers on the port


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


class ProcessHold(Hold):
    """One model's process, from the choice of its port to its end."""

    def __init__(self, model: Model, attempt: int, expected_ms: int | None) -> None:
        super().__init__(model, attempt, Progress("its process was starting", expected_ms))
        self.port = 0
        self.launch: Launch | None = None
        self.process: OwnedProcess | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where its engine listens, and the key that it asks for."""
        return Endpoint(LOOPBACK, self.port, key=self.launch.key if self.launch else "")


class OwnedEngine(Lifecycle[ProcessHold]):
    """The engine protocol for anything that runs as a process of ours."""

    def __init__(
        self,
        recipe: Recipe,
        root: Path,
        on_death: DeathCallback,
        withheld: Withheld | None = None,
        uuids: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(on_death)
        self._uuids = uuids
        self._recipe = recipe
        self._root = root
        self._keeper = Keeper(root, withheld=withheld)

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do."""
        return self._recipe.capabilities

    def memory(self, model: str) -> Mapping[str, int]:
        """PSS of the whole tree, its guard included: all that goes when the model goes."""
        hold = self._holds.get(model)
        if hold is None or hold.process is None or RAM not in hold.model.devices:
            return {}
        return {RAM: pss_of_tree(hold.process.guard_pid).pss}

    # ------------------------------------------------------------------ sleep

    async def sleep(self, model: str, attempt: int) -> Mapping[str, int]:
        """Puts a warm model to sleep. A death from now on belongs to this attempt."""
        hold, sleep = self._holds.get(model), self._recipe.sleep
        if hold is None or not hold.is_ready or sleep is None or sleep.sleep is None:
            raise LoadError("cannot be put to sleep")
        hold.attempt = attempt
        await tell(hold.endpoint, sleep.sleep)
        return await asyncio.to_thread(self.memory, model)

    async def wake(self, model: Model, attempt: int) -> Warm:
        """Wakes a model: tells it where that is possible, and asks it something in any case."""
        hold, sleep = self._holds.get(model.name), self._recipe.sleep
        if hold is None or hold.process is None or sleep is None:
            raise LoadError("is not asleep")
        hold.attempt = attempt
        limit_ms = model.load_timeout_ms or limits.LOAD_MS_MAX
        try:
            async with asyncio.timeout(limit_ms / 1000):
                if sleep.wake is not None:
                    await tell(hold.endpoint, sleep.wake, limit_ms)
                warm = await self._warm_or_ended(hold, hold.process)
        except (LoadError, TimeoutError) as error:
            await shielded(self._take_down(hold, hard=True))
            raise self._failure(hold, f"did not wake: {error}") from error
        if not isinstance(warm, Warm):
            raise self._failure(hold, f"{warm.describe()} while it woke")
        return warm

    async def is_asleep(self, model: str) -> bool | None:
        """Whether the model's engine says that it sleeps."""
        hold, sleep = self._holds.get(model), self._recipe.sleep
        if hold is None or not hold.is_ready or sleep is None or hold.model.sleep_ms is None:
            return None
        return await is_sleeping(hold.endpoint, sleep)

    # ------------------------------------------------------------------ up

    def _new_hold(self, model: Model, attempt: int, expected_ms: int | None) -> ProcessHold:
        return ProcessHold(model, attempt, expected_ms)

    async def _bring_up(self, hold: ProcessHold) -> Warm:
        """Tries ports until one works. A process that ends meanwhile fails the load at once."""
        try:
            for _ in range(processes_limits.PORT_ATTEMPTS_MAX):
                if warm := await self._try_port(hold):
                    return warm
        except OSError as error:  # any errno: which of them is whose fault is told here
            raise self._cannot_start(error, hold.launch) from error
        attempts = processes_limits.PORT_ATTEMPTS_MAX
        raise LoadError(f"another program took each of {attempts} ports")

    async def _try_port(self, hold: ProcessHold) -> Warm | None:
        """One start. None when the engine ended because another program has its port."""
        hold.port = self._keeper.claim_port()
        hold.launch = await self._launch(hold)
        hold.process = await self._start(hold, hold.launch)
        warm = await self._warm_or_ended(hold, hold.process)
        if isinstance(warm, Warm):
            return warm
        port = hold.port
        await self._undo(hold)
        if is_taken(port):
            return None
        raise self._failure(hold, f"{warm.describe()} while it loaded")

    async def _launch(self, hold: ProcessHold) -> Launch:
        try:
            return await self._recipe.launch(hold.model, hold.port, self._keeper)
        except ConfigError as error:
            raise LoadError(str(error), hopeless=True) from error

    async def _start(self, hold: ProcessHold, launch: Launch) -> OwnedProcess:
        name = hold.model.name
        return await self._keeper.start(
            name,
            launch.argv,
            log=engine_log(self._root, name),
            env={**visible_cards(hold.model, self._uuids()), **launch.env},
        )

    def _cannot_start(self, error: OSError, launch: Launch | None) -> LoadError:
        why = error.strerror or str(error)
        if error.errno in DISK_FAULTS:
            return LoadError(disk_failure(self._root, error), blame=Blame.DISK)
        what = launch.argv[0] if launch is not None else "its process"
        return LoadError(f"cannot start {what}: {why}", hopeless=error.errno in HOPELESS_ERRNO)

    async def _warm_or_ended(self, hold: ProcessHold, process: OwnedProcess) -> Warm | Ending:
        """Whichever comes first."""
        endpoint = replace(
            hold.endpoint,
            upstream_model=hold.model.served_as or hold.model.name,
            continues=self.capabilities.continues,
        )
        probe = hold.model.probe or self._recipe.probe_for(hold.model)
        warming = asyncio.create_task(warm_up(endpoint, hold.model.health, probe, hold.progress))
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
            raise self._failure(hold, str(error), hopeless=error.hopeless) from error
        memory = await asyncio.to_thread(self.memory, hold.model.name)
        if process.has_ended:
            return await process.ended()
        return Warm(endpoint, process.pid, memory, probe, health=hold.model.health)

    async def _too_slow(self, hold: ProcessHold, what: str) -> LoadError:
        advice = hold.launch.if_silent if hold.launch is not None and hold.progress.is_silent else ""
        return self._failure(hold, f"{what}; {advice}" if advice else what)

    def _failure(self, hold: ProcessHold, what: str, *, hopeless: bool = False) -> LoadError:
        """The error of a load that failed: what happened, why if the log tells, and the log's last lines."""
        lines = hold.process.log.read_tail(processes_limits.LOG_TAIL_LINES_MAX) if hold.process else []
        diagnosis = self._recipe.diagnose(lines) or _found_no_card(hold.model, lines)
        if (fault := fault_of(self._root)) is not None:
            why = f"{disk_failure(self._root, fault)} ({what})"
            return LoadError(why, blame=Blame.DISK)
        if diagnosis is not None and diagnosis.hopeless:
            return LoadError(diagnosis.reason, hopeless=True)
        why = f": {diagnosis.reason}" if diagnosis else ""
        tail = "".join(f"\n  {line}" for line in lines)
        return LoadError(f"{what}{why}{tail}", hopeless=hopeless)

    # ------------------------------------------------------------------ down

    def _watch(self, hold: ProcessHold) -> None:
        """From now on the end of the process is reported through the callback."""
        if hold.process is not None:
            hold.process.on_end(lambda ending: self._on_end(hold, ending))

    def _on_end(self, hold: ProcessHold, ending: Ending) -> None:
        self._release_port(hold)
        self._forget(hold)
        if not ending.was_asked:
            self._report(hold, ending.describe())

    async def _undo(self, hold: ProcessHold) -> None:
        if hold.process is not None:
            await hold.process.stop(hard=True)
        self._release_port(hold)

    async def _take_down(self, hold: ProcessHold, *, hard: bool) -> None:
        process, launch = hold.process, hold.launch
        if process is None or launch is None:
            return

        async def ask() -> None:
            words = tuple(word.replace("${PID}", str(process.pid)) for word in launch.stop_argv)
            await self._keeper.run(f"stop of {hold.model.name}", words)

        if not process.has_ended:
            await process.stop(hard=hard, number=launch.stop_signal, ask=ask if launch.stop_argv else None)
        self._release_port(hold)

    def _release_port(self, hold: ProcessHold) -> None:
        """Gives the port back once: another model may have it the next moment."""
        port, hold.port = hold.port, 0
        if port:
            self._keeper.release_port(port)


def _found_no_card(model: Model, lines: list[str]) -> Diagnosis | None:
    """A program that needs a card, of a model that names none and therefore sees none."""
    if any(device.startswith("gpu:") for device in model.devices) or not any(map(_NO_CARD.search, lines)):
        return None
    why = "its program needs a card and sees none, because the model names none"
    return Diagnosis(f'{why}; write devices = ["gpu:0"] in its table', hopeless=True)


def visible_cards(model: Model, uuids: Mapping[str, str]) -> dict[str, str]:
    """A model sees its own cards only; one without cards sees none, which spares a CUDA context of 600 MiB.

    Cards are named by their UUIDs: a number means another card where CUDA does not count as the driver does.
    """
    cards = [device for device in model.devices if device.startswith("gpu:")]
    if all(card in uuids for card in cards):  # CUDA takes numbers or UUIDs, not both
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids[card] for card in cards)}
    cards = [card.removeprefix("gpu:") for card in cards]
    return {"CUDA_VISIBLE_DEVICES": ",".join(cards), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
