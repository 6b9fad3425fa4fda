"""Abilities: which tasks an agent could ever run, from its heartbeat. Pure.

`claiming` decides what an agent takes now. Here the question is whether there is any use in waiting: a plan that needs
a card, an amount of memory or a model that no agent has is refused when it is submitted, and a task that only dead
agents could run is told to people.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchbill.fleet.folder import places
from watchbill.fleet.folder.heartbeat import Heartbeat
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import model_of
from watchbill.plans.task import Sandbox, TaskClass

__all__ = ["Ability", "Lack", "Need", "ability_of", "can_be_spared", "lack_of", "need_of", "offered"]


class Lack(Enum):
    """What no agent has that a task needs."""

    AGENT = "agent"  # the one that runs such tasks at all
    SLOT = "slot"  # for class cpu
    CARD = "card"
    MEMORY = "memory"
    MODEL = "model"  # of its own
    OTHER_MODEL = "other_model"  # the one that the task names
    PAIR = "pair"  # of cards, with a model
    SANDBOX = "sandbox"  # as strict as the task demands


@dataclass(frozen=True, slots=True)
class Need:
    """A task as far as abilities matter."""

    task_class: TaskClass
    vram_mb: int = 0
    model: str = ""
    for_brain: bool = False
    needs_pair: bool = False
    agent: str = ""  # the only one that it is for
    sandbox: Sandbox = Sandbox.NONE


@dataclass(frozen=True, slots=True)
class Ability:
    """An agent as far as it matters what it could ever run."""

    agent: str
    cpu_slots: int
    has_card: bool = False
    is_pair: bool = False
    budget_mb: int = 0
    own_model: str = ""
    models: tuple[str, ...] = ()
    sandbox: Sandbox = Sandbox.STRICT  # the strictest that it can make

    def lack_for(self, need: Need) -> Lack | None:
        """What it lacks for a task; None where it could run it."""
        if need.agent and need.agent != self.agent:
            return Lack.AGENT
        lack = self._lack_of_class(need)
        if lack is None and need.sandbox.strength > self.sandbox.strength:
            return Lack.SANDBOX
        return lack

    def _lack_of_class(self, need: Need) -> Lack | None:
        match need.task_class:
            case TaskClass.CPU:
                return None if self.cpu_slots > 0 else Lack.SLOT
            case TaskClass.SCRIPT:
                return self._lack_of_memory(need)
            case TaskClass.LLM:
                return self._lack_of_model(need)
            case TaskClass.META:
                return None if self.own_model else Lack.MODEL

    def _lack_of_memory(self, need: Need) -> Lack | None:
        if not self.has_card:
            return Lack.CARD
        return Lack.MEMORY if need.vram_mb > self.budget_mb else None

    def _lack_of_model(self, need: Need) -> Lack | None:
        if not self.models:
            return Lack.MODEL
        if need.model and need.model not in self.models:
            return Lack.OTHER_MODEL
        if not need.model and not self.own_model:
            return Lack.MODEL
        return Lack.PAIR if need.needs_pair and not self.is_pair else None


def ability_of(agent: str, heartbeat: Heartbeat) -> Ability:
    """What an agent could run, by its last heartbeat."""
    report = heartbeat.report
    cpu_slots = 1 if report.cpu_slots is None else report.cpu_slots
    return Ability(
        agent,
        cpu_slots,
        bool(report.devices),
        len(report.devices) > 1,
        heartbeat.budget_mb,
        report.model,
        report.models,
        _sandbox_of(report.sandbox),
    )


def _sandbox_of(word: str) -> Sandbox:
    """The strictest sandbox that an agent can make; one that does not say it is believed to make every one."""
    return next((each for each in Sandbox if each.value == word), Sandbox.STRICT)


def need_of(ledger: Ledger, task: str) -> Need:
    """What a task of a batch needs."""
    spec, state = ledger.spec(task), ledger.state(task)
    words = spec.work.command.split() if spec.task_class is TaskClass.META else []
    return Need(
        spec.task_class, state.vram_mb or spec.vram_mb, model_of(ledger, task), spec.for_brain, spec.work.needs_pair,
        words[1] if len(words) > 1 else "", Sandbox.NONE if spec.work.is_question else spec.work.sandbox,
    )  # fmt: skip


def lack_of(need: Need, agents: Iterable[Ability]) -> Lack | None:
    """What no agent has that a task needs; None where one could run it. The nearest miss of all agents is told."""
    fit = [each for each in agents if (each.agent == places.BRAIN) is need.for_brain]
    lacks = [each.lack_for(need) for each in fit]
    if None in lacks:
        return None
    order = list(Lack)
    return max((each for each in lacks if each is not None), key=order.index, default=Lack.AGENT)


def can_be_spared(agent: Ability, others: Iterable[Ability]) -> bool:
    """Whether everything that an agent could run, one of the others could run as well."""
    rest = [each for each in others if each.agent not in (agent.agent, places.BRAIN)]
    needs = [Need(TaskClass.CPU, sandbox=agent.sandbox)] if agent.cpu_slots > 0 else []
    if agent.has_card:
        needs.append(Need(TaskClass.SCRIPT, agent.budget_mb, sandbox=agent.sandbox))
    needs += [Need(TaskClass.LLM, model=model, needs_pair=agent.is_pair) for model in agent.models]
    if agent.own_model:
        needs.append(Need(TaskClass.LLM, needs_pair=agent.is_pair))
    return all(lack_of(need, rest) is None for need in needs)


def offered(agents: Iterable[Ability]) -> str:
    """What there is, for people: each agent with its classes, memory and models."""
    return "; ".join(_told(each) for each in agents if each.agent != places.BRAIN)


def _told(agent: Ability) -> str:
    parts = [f"{agent.cpu_slots} cpu"] if agent.cpu_slots else []
    if agent.has_card:
        parts.append(f"{agent.budget_mb:,} MB for scripts")
    if agent.models:
        parts.append(f"models {', '.join(agent.models)}")
    if agent.sandbox is not Sandbox.STRICT:
        parts.append(f"sandbox {agent.sandbox.value}")
    return f"{agent.agent} ({', '.join(parts)})"
