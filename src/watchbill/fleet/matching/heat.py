"""Heat: which agents should load a model, and which should give its memory back (FLEET-05). Pure.

A **hot** agent has its model loaded: the card is full, and it takes `meta`, `llm` and `cpu`. A **cold** one also takes
`script`. All start cold. The coordinator heats an agent when `llm` tasks wait and the hot ones cannot take them soon.
It cools one when only `script` tasks are left or its card is over a limit.

    1. a constrained hot agent without tasks is cooled: its memory and its heat come back
    2. while `llm` tasks wait: as many agents are hot as there are tasks for them, the healthy cold one with the fewest
       tasks first. Tasks that name a model need an agent that serves it. On one host agents load one after the other,
       because loads share its bus
    3. while no `llm` task waits or runs, and `script` tasks wait: every idle hot agent is cooled
    4. an agent that was told is left alone until its heartbeat shows the change, or the order is too old
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from watchbill.fleet.matching.claiming import Health
from watchbill.plans.task import MetaCommand

__all__ = ["Command", "Demand", "Temperature", "Told", "orders"]


class Command(NamedTuple):
    """An order and the model that it is about."""

    order: MetaCommand
    model: str


@dataclass(frozen=True, slots=True)
class Temperature:
    """An agent as far as its model matters, from its heartbeat."""

    agent: str
    own: str = ""  # the model of tasks that name none
    models: tuple[str, ...] = ()  # that it serves
    hot: tuple[str, ...] = ()  # of these, those in its memory
    health: Health = Health.HEALTHY
    tasks: int = 0  # that it runs on its card
    llm_slots: int = 1
    host: str = ""  # agents of one host share a bus

    def model_for(self, wanted: str) -> str:
        """The model by which it serves a task that names one, or none; empty where it cannot."""
        return self.own if not wanted else wanted if wanted in self.models else ""

    @property
    def is_hot(self) -> bool:
        """Whether its own model is in its memory."""
        return self.own in self.hot

    def is_hot_for(self, wanted: str) -> bool:
        """Whether the model that such a task asks for is in its memory."""
        return self.model_for(wanted) in self.hot


@dataclass(frozen=True, slots=True)
class Demand:
    """The tasks that wait, and those of class `llm` that run."""

    llm: Mapping[str, int] = field(default_factory=dict[str, int])  # by the model that they name, or ""
    script: int = 0
    llm_running: int = 0


class Told(NamedTuple):
    """The last command to an agent, as long as it has not shown its effect."""

    command: Command
    until_ms: int  # then it is given again

    def is_done_by(self, agent: Temperature) -> bool:
        """Whether the agent has obeyed."""
        return (self.command.model in agent.hot) is (self.command.order is MetaCommand.LOAD)


def orders(
    agents: Iterable[Temperature], demand: Demand, told: Mapping[str, Told], now_ms: int
) -> dict[str, Command]:
    """What to tell which agent now."""
    known = sorted(agents, key=lambda each: each.agent)
    waiting = {agent: each for agent, each in told.items() if now_ms < each.until_ms}
    idle_hot = [each for each in known if each.is_hot and not each.tasks and each.agent not in waiting]
    found = {each.agent: _cool(each) for each in idle_hot if each.health is Health.CONSTRAINED}
    if demand.llm:
        found |= _heat(known, waiting, demand)
    elif demand.script and not demand.llm_running:
        found |= {each.agent: _cool(each) for each in idle_hot}
    return found


def _cool(agent: Temperature) -> Command:
    return Command(MetaCommand.UNLOAD, agent.own)


def _heat(known: list[Temperature], waiting: Mapping[str, Told], demand: Demand) -> dict[str, Command]:
    """One agent per host at a time, until the hot ones have a slot for every task that waits or runs."""
    coming = {agent: each for agent, each in waiting.items() if each.command.order is MetaCommand.LOAD}
    busy = {each.host for each in known if each.agent in coming}
    cold = [each for each in known if each.agent not in waiting and each.health is Health.HEALTHY]
    cold.sort(key=lambda each: (each.tasks, each.agent))
    found: dict[str, Command] = {}
    for wanted, count in sorted(demand.llm.items(), reverse=True):  # those that name a model first
        missing = count + demand.llm_running - sum(
            each.llm_slots for each in known if _has_heat(each, wanted, coming.get(each.agent))
        )  # fmt: skip
        for each in cold:
            model = each.model_for(wanted)
            if missing > 0 and model and model not in each.hot and each.host not in busy:
                found[each.agent] = Command(MetaCommand.LOAD, model)
                busy.add(each.host)
                missing -= each.llm_slots
    return found


def _has_heat(agent: Temperature, wanted: str, coming: Told | None) -> bool:
    """Whether an agent serves such a task from memory, now or as soon as it has loaded."""
    if coming is not None and coming.command.model == agent.model_for(wanted):
        return True
    return agent.is_hot_for(wanted) and agent.health is Health.HEALTHY
