"""Holding: agents on which tasks fail that run elsewhere (`bad_agents`) are told to claim nothing for a while.

The hold is a signal with its time in it: the agent counts the time and goes on by itself, also without a coordinator.
It is lifted before that when others fail the same tasks. The last free agent for a class, an amount of memory or a
model is never held: a fleet that does its work badly is better than one that does nothing.
"""

from collections.abc import Mapping

from watchbill.fleet import limits
from watchbill.fleet.coordinator.acts import Acts
from watchbill.fleet.folder.agent_report import HeldWhy
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.heartbeat import Heartbeat
from watchbill.fleet.folder.results import Result
from watchbill.fleet.folder.signals import Order, send
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.abilities import Ability, ability_of, can_be_spared
from watchbill.fleet.matching.bad_agents import BadAgents, Failure
from watchbill.fleet.state.ledger import Ledger

__all__ = ["Holding"]

_LOG = Part.COORDINATOR.logger


class Holding:
    """The holds of one epoch."""

    def __init__(self, disk: Disk, acts: Acts) -> None:
        self._disk = disk
        self._acts = acts
        self._bad_agents = BadAgents()
        self._holds: dict[str, int] = {}  # agents that were told to hold -> until when

    def hear(self, ledger: Ledger, task: str, result: Result) -> None:
        """An attempt ended."""
        failure = Failure(ledger.plan, ledger.template_of(task), ledger.batch, task)
        self._bad_agents.hear(result.agent, failure, result.end)

    def free_of(self, living: Mapping[str, Heartbeat]) -> tuple[Ability, ...]:
        """The agents that claim tasks: neither on hold, nor told to hold."""
        return tuple(
            ability_of(name, beat)
            for name, beat in living.items()
            if beat.may_live and beat.report.hold is None and name not in self._holds
        )

    def look(self, living: Mapping[str, Heartbeat], now_ms: int) -> None:
        """Hold the agents that are bad, as far as others can do their work, and lift the holds without a reason."""
        for agent in self._bad_agents.due():
            free = self.free_of(living)
            able = next((each for each in free if each.agent == agent), None)
            if able is not None and can_be_spared(able, free):
                self._hold(agent, now_ms)
        for agent, until_ms in list(self._holds.items()):
            is_bad = self._bad_agents.is_bad(agent)
            if not is_bad:
                _LOG.info("action=resume agent=%s why=no longer accused", agent)
                self._signal(agent, Order.RESUME)
            if not is_bad or now_ms >= until_ms:
                del self._holds[agent]

    def _hold(self, agent: str, now_ms: int) -> None:
        _LOG.warning("action=hold agent=%s for_ms=%d why=tasks failed on it that did not fail elsewhere", agent,
                     limits.AGENT_HOLD_MS)  # fmt: skip
        self._bad_agents.held(agent)
        self._holds[agent] = now_ms + limits.AGENT_HOLD_MS
        self._signal(agent, Order.HOLD, limits.AGENT_HOLD_MS)

    def _signal(self, agent: str, order: Order, for_ms: int = 0) -> None:
        self._acts.later(lambda: send(self._disk, agent, order, why=HeldWhy.FAILURES, for_ms=for_ms))
