"""The systemd engine: models that the host's init system runs, one unit each.

We have no right to start or stop a unit, and need none: an intent file says what we want, the host's reactor
(`watchbill reactor`) checks it against its own list and does it. Warm means what it means everywhere: the unit is up,
its health address answers, and its probe, too. A unit whose address does not answer any more is dead.

Units outlive a daemon that is killed. Those that we asked for are written down in `ROOT/run`, and the next start has
them stopped, or takes one over that it is asked for first.
"""

import asyncio
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path

from watchbill.catalog import EngineRules, Model
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, Endpoint, HostState, LoadError, Warm, endpoint_of
from watchbill.engines.foreign import ForeignHold, Gone, HeldRecord
from watchbill.engines.readiness import check_health, warm_up
from watchbill.engines.upstream import FailureKind, Upstream, UpstreamFailed
from watchbill.errors import ConfigError, EngineFailed
from watchbill.names import file_stem
from watchbill.reactor import limits as reactor_limits
from watchbill.reactor.intents import Answer, Intent, Mailbox, Verb, unit_of
from watchbill.units import format_millis

__all__ = ["SystemdHost"]

_LOG = logging.getLogger("watchbill.engines")


class SystemdHost:
    """The host's units, as far as its reactor lets us touch them."""

    # A unit's memory is the host's affair: models of this driver declare theirs.
    capabilities = Capabilities(owned=True, measures_memory=False, stops_generation=False)
    leaves_remains = True  # a unit that hangs does not answer, and still has its memory

    def __init__(self, rules: EngineRules, root: Path) -> None:
        self._mailbox = Mailbox(root)
        self._record = HeldRecord(root / "run" / f"units-{file_stem(rules.name)}.json")
        self._owed = set(self._record.read())  # units that a killed daemon had started
        self._clearing = asyncio.Lock()
        self._upstream = Upstream()
        #: Units that the reactor was asked to start, and may have started.
        self._touched: set[ForeignHold] = set()
        self._misses: dict[ForeignHold, int] = {}
        #: Why a unit that must stop still runs. The core tells it to stop again and again, until a reactor answers.
        self._silence: str | None = None

    @property
    def state(self) -> HostState:
        """Nothing is known of the host but what its reactor answers. Without it units serve, and stay."""
        return HostState(self._silence, serves=self._silence is not None)

    @property
    def is_awaited(self) -> bool:
        """Whether units are still to be stopped: of a killed daemon, or because no reactor answered."""
        return bool(self._owed) or self._silence is not None

    @property
    def look_ms(self) -> int:
        """The time between two looks at what is warm."""
        return limits.UNIT_LOOK_MS

    async def bring_up(self, hold: ForeignHold) -> Warm:
        """Has the unit started and waits until it is warm. Raises LoadError; ConfigError without an address."""
        model, unit = hold.model, unit_of(hold.model)
        endpoint = _endpoint(model)
        self._owed.discard(unit)  # it is taken over
        await self._give_back()
        hold.progress.text = "the reactor had not answered"
        answer = await self._ask("start", hold, "the scheduler wants it in memory")
        if not answer.ok:
            tried = "was refused by the reactor" if answer.refused else f"is {answer.state or 'not up'}"
            raise LoadError(f"{unit} {tried}: {answer.text}", hopeless=answer.refused)
        hold.progress.text = f"{unit} was {answer.state}"
        probe = model.probe or "http"
        await warm_up(endpoint, model.health, probe, hold.progress)
        return Warm(endpoint, None, {}, probe, unit, model.health)

    async def blame_for_delay(self, hold: ForeignHold) -> Blame:
        """The unit's: its reactor has answered."""
        return Blame.MODEL

    async def undo(self, hold: ForeignHold) -> None:
        """Stops a unit that was, or may have been, started. Raises EngineFailed when it may still run."""
        if hold in self._touched:
            await self.take_down(hold)

    async def take_down(self, hold: ForeignHold) -> None:
        """Has the unit stopped. Raises EngineFailed when it is not."""
        answer = await self._ask("stop", hold, "the scheduler wants its memory")
        if not answer.ok:
            raise EngineFailed(f"{unit_of(hold.model)} does not stop: {answer.text or answer.state}")
        self._forget(hold)

    async def look(self, holds: list[ForeignHold]) -> Mapping[str, Gone]:
        """Asks every warm unit for its health."""
        try:
            await self._give_back()
        except (LoadError, EngineFailed) as error:
            _LOG.info("units of a killed daemon may still run: %s", error)
        reasons = await asyncio.gather(*map(self._trouble_of, holds))
        gone = {hold: reason for hold, reason in zip(holds, reasons, strict=True) if reason is not None}
        return {
            hold.model.name: Gone(f"{unit_of(hold.model)} is gone: {reason}") for hold, reason in gone.items()
        }

    async def close(self) -> None:
        """Ends every connection. What was not stopped is named, and stays written down for the next start."""
        left = sorted({*map(_unit_of, self._touched), *self._owed})
        if left:
            stop = f"systemctl stop {' '.join(left)}"
            _LOG.warning("units that were not stopped: stop them with: %s; the next start does so, too", stop)
        await self._upstream.close()

    async def _give_back(self) -> None:
        """Has the units of a killed daemon stopped. Raises LoadError when they may still run."""
        async with self._clearing:
            for unit in sorted(self._owed):
                left = Model(unit, "", unit=unit)
                answer = await self._post("stop", left, "a daemon that is gone had started it")
                if answer is None:
                    raise LoadError(f"{unit}: {self._no_reactor(left)}", blame=Blame.HOST)
                if not answer.ok and not answer.refused:
                    raise LoadError(f"{unit} does not stop: {answer.text or answer.state}", blame=Blame.HOST)
                _LOG.info("%s of a killed daemon was stopped", unit)
                self._owed.discard(unit)
            self._write_record()

    def _write_record(self) -> None:
        self._record.write([*map(_unit_of, self._touched), *self._owed])

    # ------------------------------------------------------------------ the reactor

    async def _ask(self, verb: Verb, hold: ForeignHold, reason: str) -> Answer:
        """Posts an intent and waits for its answer. Raises LoadError or EngineFailed when none comes."""
        self._touched.add(hold)
        self._write_record()
        intent = self._mailbox.post(verb, hold.model, reason)
        try:
            answer = await self._answer(intent)
        finally:
            if self._mailbox.withdraw(intent) and verb == "start":
                self._forget(hold)  # no reactor has taken it, and now none can
        if answer is not None:
            self._silence = None
            return answer
        text = self._no_reactor(hold.model)
        if verb == "start":
            raise LoadError(text, blame=Blame.HOST)
        self._silence = text
        raise EngineFailed(f"{hold.model.name}: {text}")

    async def _post(self, verb: Verb, model: Model, reason: str) -> Answer | None:
        intent = self._mailbox.post(verb, model, reason)
        try:
            return await self._answer(intent)
        finally:
            self._mailbox.withdraw(intent)

    def _no_reactor(self, model: Model) -> str:
        command = ["watchbill", "reactor", "--root", str(self._mailbox.root), "--allow", unit_of(model)]
        bound = format_millis(reactor_limits.REACTOR_ANSWER_MS)
        return f"no reactor answered within {bound}; run on the host: {shlex.join(command)}"

    async def _answer(self, intent: Intent) -> Answer | None:
        """The answer; None when no reactor takes the intent, or the reactor that took it does not answer."""
        clock = asyncio.get_running_loop().time
        unclaimed = clock() + reactor_limits.REACTOR_ANSWER_MS / 1000
        claimed = unclaimed + reactor_limits.SYSTEMCTL_MS_MAX / 1000
        pause_ms = float(reactor_limits.REACTOR_ANSWER_POLL_MS)
        while clock() < (unclaimed if self._mailbox.is_waiting(intent) else claimed):
            answer = self._mailbox.answer(intent)
            if answer is not None:
                return answer
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 1.2, limits.HEALTH_POLL_MS_MAX)
        return None

    # ------------------------------------------------------------------ the watch

    async def _trouble_of(self, hold: ForeignHold) -> str | None:
        """Why the unit counts as gone, or None."""
        try:
            status = await check_health(self._upstream, _endpoint(hold.model), hold.model.health)
            if status == 200:
                self._misses.pop(hold, None)
                return None
            trouble, is_certain = f"{hold.model.health} answered {status}", False
        except UpstreamFailed as failure:
            trouble, is_certain = str(failure), failure.kind is FailureKind.CONNECT
        self._misses[hold] = self._misses.get(hold, 0) + 1
        if is_certain or self._misses[hold] >= limits.FOREIGN_MISSES_MAX:
            self._misses.pop(hold, None)
            return trouble
        return None

    def _forget(self, hold: ForeignHold) -> None:
        self._touched.discard(hold)
        self._write_record()
        self._misses.pop(hold, None)


def _unit_of(hold: ForeignHold) -> str:
    return unit_of(hold.model)


def _endpoint(model: Model) -> Endpoint:
    if model.url is None:
        raise ConfigError(f"{model.name}: a model of the driver systemd needs its url")
    return endpoint_of(model.url, upstream_model=model.served_as or model.name)
