"""Bad agents: on which agents tasks fail that run elsewhere. Pure.

A failure says nothing about who is to blame: a wrong command fails on every agent. So failures become accusations of
an agent, and only these count:

    - a task that failed here and ran on another agent: each for itself
    - tasks that failed here and were tried nowhere else yet: one for each plan, however many tasks it has
    - a task of a plan that failed on two agents accuses the plan, and none of them

An agent with several accusations and no success between them is **bad**. It is told to hold for some time, because an
agent that pulls its tasks cannot be kept from claiming otherwise. After the hold it is on probation: one more
accusation is enough, and a success clears it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from watchbill.fleet import limits
from watchbill.fleet.folder.results import End

__all__ = ["BadAgents", "Failure"]

_ACCUSING = (End.FAILED, End.NOT_RUNNABLE)


class Failure(NamedTuple):
    """The task that failed, and the task of the plan that it comes from."""

    plan: str
    template: str
    batch: str
    task: str


@dataclass(slots=True)
class _Row:
    """The accusations of an agent since its last success."""

    accusations: dict[Failure, bool] = field(default_factory=dict[Failure, bool])  # -> it ran elsewhere
    has_changed: bool = False  # since the agent was last held

    @property
    def count(self) -> int:
        return len(
            {failure if is_proven else failure.plan for failure, is_proven in self.accusations.items()}
        )

    @property
    def is_bad(self) -> bool:
        return self.count >= limits.FAILURES_IN_A_ROW_MAX


class BadAgents:
    """What one coordinator heard about failures. A new coordinator begins without accusations."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._failed_on: dict[
            tuple[str, str], set[str]
        ] = {}  # plan, its task -> agents; the oldest is forgotten

    def hear(self, agent: str, failure: Failure, end: End) -> None:
        """An attempt ended on an agent."""
        if end is End.DONE:
            self._rows.pop(agent, None)
            self._prove(failure)
        elif end in _ACCUSING:
            self._accuse(agent, failure)

    def due(self) -> list[str]:
        """The agents that are bad, and were not held for it yet."""
        return [agent for agent, row in self._rows.items() if row.is_bad and row.has_changed]

    def is_bad(self, agent: str) -> bool:
        """Whether an agent is accused often enough."""
        return agent in self._rows and self._rows[agent].is_bad

    def held(self, agent: str) -> None:
        """The agent was told to hold: the next one takes another accusation."""
        self._rows[agent].has_changed = False

    def size(self) -> int:
        """How much is remembered."""
        return len(self._failed_on) + sum(len(row.accusations) for row in self._rows.values())

    def _prove(self, failure: Failure) -> None:
        for row in self._rows.values():
            if row.accusations.get(failure) is False:
                row.accusations[failure] = row.has_changed = True

    def _accuse(self, agent: str, failure: Failure) -> None:
        plan_task = (failure.plan, failure.template)
        agents = self._failed_on.pop(plan_task, set())
        self._failed_on[plan_task] = agents | {agent}
        _forget_oldest(self._failed_on)
        if agents - {agent}:
            self._acquit(plan_task)
            return
        row = self._rows.setdefault(agent, _Row())
        row.accusations[failure] = False
        row.has_changed = True
        _forget_oldest(row.accusations)

    def _acquit(self, plan_task: tuple[str, str]) -> None:
        """Others fail it, too: only tasks that ran elsewhere still accuse an agent."""
        for row in self._rows.values():
            row.accusations = {
                failure: is_proven
                for failure, is_proven in row.accusations.items()
                if is_proven or failure[:2] != plan_task
            }


def _forget_oldest(known: dict[Failure, bool] | dict[tuple[str, str], set[str]]) -> None:
    if len(known) > limits.ACCUSATIONS_MAX:
        known.pop(next(iter(known)))  # pyright: ignore[reportArgumentType]  its own first key
