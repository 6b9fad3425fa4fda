"""The burst engine: a machine or container that a command starts on demand and another one stops (SPOOL-09).

One machine serves all models of its tier. It is started for the first of them, counts as warm when its health address
answers 200, and is stopped when the last of them has left, which the core decides after its idle time and never while
a request runs there. A machine that vanishes (it was preempted) is reported for every model that it served, and is
started again for the next one; the stop command is run before, because something of it may be left and cost money.

A machine outlives a daemon that is killed, and so does its start command. It is written down in `ROOT/run` before its
start, and the next daemon has it stopped, or takes it over when a model of it is asked for first. One that had not
answered yet may come up after that: it is stopped again and again for a while, until it was seen there and stopped. A
stop that fails is repeated. The commands are written down with it, so that the machine of a tier which was taken out of
the config meanwhile, or which has another machine there, is stopped as well: a machine is told from others by its tier,
its address and its stop command. A changed tier that still means the same machine shares it with its former self.
"""

import asyncio
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from watchbill.catalog import EngineRules
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, HostState, LoadError, Warm, endpoint_of
from watchbill.engines.foreign import ForeignHold, ForeignHost, Gone, RunFile
from watchbill.engines.readiness import check_health, warm_up
from watchbill.engines.upstream import FailureKind, Outgoing, Upstream, UpstreamFailed
from watchbill.errors import ConfigError, EngineFailed
from watchbill.names import file_stem
from watchbill.processes import Withheld
from watchbill.processes.command import run_to_end
from watchbill.units import format_millis

__all__ = ["BurstHost", "left_behind"]

_LOG = logging.getLogger("watchbill.engines")
#: The files of machines in `ROOT/run` begin so.
_PREFIX = "burst-"
#: Who owns the models of llama.cpp's own server.
_LLAMA_CPP = "llamacpp"


class _Started(msgspec.Struct, frozen=True):
    """A machine as it is written down: enough to stop it when its tier is no longer in the config."""

    engine: str
    url: str
    start: str
    stop: str
    has_answered: bool = True  # since its start


class _Served(msgspec.Struct):
    """A model that a machine has, as it lists it."""

    id: str = ""
    owned_by: str = ""
    meta: Mapping[str, object] | None = None


class _Listed(msgspec.Struct):
    """The models of a machine."""

    data: list[_Served] = []


class _Machine:
    """What is known of a machine, by all hosts that mean it."""

    def __init__(self, held: _Started | None) -> None:
        self.is_started = held is not None  # by us, or by a daemon that was killed
        is_coming = held is not None and not held.has_answered
        self.may_come_until = time.monotonic() + (limits.BURST_STRAY_MS / 1000 if is_coming else 0.0)
        self.stopped_at = -float("inf")  # when a machine that no model needs was last told to stop
        self.holds: set[ForeignHold] = set()  # models that need the machine
        self.turn = asyncio.Lock()  # one start or stop at a time


class BurstHost:
    """The machine of one burst tier."""

    capabilities = Capabilities(owned=True, measures_memory=False, stops_generation=False)
    leaves_remains = True  # a machine that does not answer may still run

    def __init__(self, rules: EngineRules, root: Path, withheld: Withheld) -> None:
        if rules.url is None or rules.start is None or rules.stop is None:
            raise ConfigError(f"engine {rules.name!r}: a burst tier needs url, start and stop")
        self._name = rules.name.removeprefix("@")
        self._endpoint = replace(endpoint_of(rules.url), key=rules.key)
        self._start, self._stop = rules.start, rules.stop
        self._started = _Started(rules.name, rules.url, rules.start, rules.stop)
        self._withheld = withheld
        self._logs = root / "logs"
        self._identity = _identity_of(rules)
        self._record = RunFile(root / "run" / f"{_PREFIX}{file_stem(self._identity)}.json", _Started)
        self._machine = _Machine(self._record.read())
        self._upstream = Upstream()
        self._misses = 0

    def succeed(self, former: ForeignHost) -> None:
        """Takes the place of the host of a former config, whose models may still run. The machine is shared where both
        mean the same: neither of them stops it while the other needs it."""
        if isinstance(former, BurstHost) and former._identity == self._identity:
            self._machine = former._machine

    @property
    def state(self) -> HostState:
        """Nothing is known of the machine but whether its models answer."""
        return HostState()

    @property
    def is_awaited(self) -> bool:
        """Whether a machine may run, whether or not a model needs it: it may not stop when it is told to."""
        return self._machine.is_started

    @property
    def look_ms(self) -> int:
        """The time between two looks at what is warm."""
        return limits.BURST_LOOK_MS

    async def bring_up(self, hold: ForeignHold) -> Warm:
        """Starts the machine unless it runs, and waits until it answers. Raises LoadError."""
        self._machine.holds.add(hold)
        endpoint = replace(self._endpoint, upstream_model=hold.model.source or hold.model.name)
        async with self._machine.turn:
            if not (self._machine.is_started and await self._is_well(hold.model.health)):
                await self._run_start(hold)
            hold.progress.text = f"the burst tier {self._name} was started and did not answer yet"
            await warm_up(endpoint, hold.model.health, "http", hold.progress)
            self._misses, self._machine.may_come_until = 0, 0.0
            await self._note(is_started=True)
        endpoint = replace(endpoint, continues=await self._continues(endpoint.upstream_model))
        return Warm(endpoint, None, {}, "none", health=hold.model.health)

    async def blame_for_delay(self, hold: ForeignHold) -> Blame:
        """The tier's: three failed starts in a row put it into quarantine."""
        return Blame.MODEL

    async def undo(self, hold: ForeignHold) -> None:
        """Stops a machine that no other model needs."""
        await self.take_down(hold)

    async def take_down(self, hold: ForeignHold) -> None:
        """Stops the machine with the last of its models. One that could not be stopped is stopped again later."""
        async with self._machine.turn:
            self._machine.holds.discard(hold)
            if not self._machine.holds and self._machine.is_started:
                await self._try_stop()

    async def look(self, holds: list[ForeignHold]) -> Mapping[str, Gone]:
        """Asks the machine for its health. Stops one that no model needs: a killed daemon had started it, or it could
        not be stopped before."""
        if not self._machine.holds:
            await self._stop_unneeded()
            return {}
        if not holds or self._machine.turn.locked() or await self._is_well(holds[0].model.health):
            return {}
        reason = f"the burst tier {self._name} does not answer any more"
        return {hold.model.name: Gone(reason, Blame.HOST) for hold in holds}

    async def close(self) -> None:
        """Ends every connection. A machine that could not be stopped is named, and stays written down."""
        if self._machine.is_started:
            _LOG.warning("the burst tier %s may still run; stop it with: %s", self._name, self._stop)
        await self._upstream.close()

    # ------------------------------------------------------------------ the commands

    async def _run_start(self, hold: ForeignHold) -> None:
        if self._machine.is_started:  # it vanished: what is left of it is stopped first
            with_reason = f"the rest of the burst tier {self._name} could not be stopped"
            try:
                await self._run_stop()
            except EngineFailed as error:
                raise LoadError(f"{with_reason}: {error}", blame=Blame.HOST) from error
        await self._note(is_started=True, has_answered=False)
        hold.progress.text = f"the start command of the burst tier {self._name} had not returned"
        trouble = await self._run("start", self._start, limits.BURST_START_MS_MAX)
        if trouble is not None:
            raise LoadError(f"the burst tier {self._name} was not started: {trouble}")

    async def _run_stop(self) -> None:
        """Stops the machine. A command that fails because the machine is gone is no failure."""
        trouble = await self._run("stop", self._stop, limits.BURST_STOP_MS_MAX)
        if trouble is not None and not await self._is_gone():
            raise EngineFailed(f"the burst tier {self._name} was not stopped: {trouble}")
        if trouble is not None:
            _LOG.warning("the burst tier %s is gone, and its stop command failed: %s", self._name, trouble)
        await self._note(is_started=False)

    async def _is_gone(self) -> bool:
        """Whether no program listens at its address."""
        try:
            await check_health(self._upstream, self._endpoint, "/")
        except UpstreamFailed as failure:
            return failure.refused
        return False

    async def _run(self, verb: str, command: str, timeout_ms: int) -> str | None:
        """Runs a command; returns what went wrong, in words.

        It runs without a guard: what a start command leaves running is the machine itself."""
        words, given_up = tuple(shlex.split(command)), threading.Event()
        log = self._logs / f"burst-{file_stem(self._name)}-{verb}.log"
        env = self._withheld.rest_of(os.environ) | {"WATCHBILL_TIER": self._name}
        work = partial(
            run_to_end,
            words,
            log=log,
            env=env,
            seconds_max=timeout_ms / 1000,
            on_tick=partial(_raise_if_set, given_up),
            tick_s=limits.BURST_TICK_MS / 1000,
        )
        try:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            code = await asyncio.to_thread(work)
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
        finally:
            given_up.set()
        if code == 0:
            return None
        ended = f"was not done after {format_millis(timeout_ms)}" if code is None else f"ended with {code}"
        return f"{words[0]} {ended}; its output is in {log}"

    async def _stop_unneeded(self) -> None:
        if time.monotonic() < self._machine.stopped_at + limits.BURST_STOP_AGAIN_MS / 1000:
            return
        async with self._machine.turn:
            if not self._machine.is_started or self._machine.holds:
                return
            may_come = time.monotonic() < self._machine.may_come_until and await self._is_gone()
            await self._try_stop()
            if may_come:
                await self._note(is_started=True, has_answered=False)

    async def _try_stop(self) -> None:
        """Stops the machine. One that could not be stopped stays written down, and the next look tries it again."""
        self._machine.stopped_at = time.monotonic()
        try:
            await self._run_stop()
        except EngineFailed as error:
            _LOG.warning("%s; it is tried again in %s", error, format_millis(limits.BURST_STOP_AGAIN_MS))

    async def _note(self, *, is_started: bool, has_answered: bool = True) -> None:
        """Writes down that the machine runs, before it does, and that it does not, after. A power cut here does not end
        it, so what is written outlives one."""
        self._machine.is_started = is_started
        started = msgspec.structs.replace(self._started, has_answered=has_answered)
        await asyncio.to_thread(self._record.write, started if is_started else None, sync=True)

    async def _continues(self, model: str) -> bool:
        """Whether the machine continues an answer that broke off: a Watchbill says so, llama.cpp does."""
        asked = Outgoing(self._endpoint, "GET", "/v1/models")
        try:
            reply = await self._upstream.fetch(
                asked, timeout_ms=limits.PROBE_MS_MAX, limit_bytes=limits.PROBE_ANSWER_BYTES_MAX
            )
            listed = msgspec.json.decode(reply.body, type=_Listed).data if reply.status == 200 else []
        except (UpstreamFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return any(
            each.owned_by == _LLAMA_CPP or (each.id == model and (each.meta or {}).get("continues") is True)
            for each in listed
        )

    async def _is_well(self, health: str) -> bool:
        """Whether the machine counts as there: it answers, or has not been silent for long."""
        try:
            if await check_health(self._upstream, self._endpoint, health) == 200:
                self._misses = 0
                return True
            is_certain = False
        except UpstreamFailed as failure:
            is_certain = failure.kind is FailureKind.CONNECT
        self._misses += 1
        return not is_certain and self._misses < limits.FOREIGN_MISSES_MAX


def left_behind(root: Path, known: Iterable[EngineRules]) -> list[EngineRules]:
    """The engines of the machines that a former daemon had started and not stopped, and that none of the known engines
    means: those stop theirs."""
    files = sorted((root / "run").glob(f"{_PREFIX}*.json"))
    found = [started for path in files if (started := RunFile(path, _Started).read()) is not None]
    engines = [
        EngineRules(each.engine, "burst", url=each.url, start=each.start, stop=each.stop) for each in found
    ]
    meant = set(map(_identity_of, known))
    return [rules for rules in engines if _identity_of(rules) not in meant]


def _identity_of(rules: EngineRules) -> str:
    """What tells a machine from others: its tier, its address and its stop command."""
    return f"{rules.name} {rules.url} {rules.stop}"


def _raise_if_set(given_up: threading.Event) -> None:
    """Ends a command whose load was given up."""
    if given_up.is_set():
        raise InterruptedError
