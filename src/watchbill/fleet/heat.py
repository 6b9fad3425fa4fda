"""Heat: which agents should load their model, and which should give its memory back (FLEET-05). Pure.

A **hot** agent has its model loaded: the card is full, and it takes `meta`, `llm` and `cpu`. A **cold** one also takes
`script`. All start cold. The coordinator heats an agent when `llm` tasks wait and the hot ones cannot take them soon.
It cools one when only `script` tasks are left or its card is over a limit.

    1. a constrained hot agent without tasks is cooled: its memory and its heat come back
    2. while `llm` tasks wait: as many agents are hot as there are tasks for them, the healthy cold one with the fewest
       tasks first. On one host they load one after the other, because loads share its bus
    3. while no `llm` task waits or runs, and `script` tasks wait: every idle hot agent is cooled
    4. an agent that was told is left alone until its heartbeat shows the change, or the order is too old
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from watchbill import limits
from watchbill.fleet.claiming import Health

__all__ = ["Demand", "Order", "Temperature", "orders"]


class Order(Enum):
    """What an agent is told, as a `meta` task."""

    LOAD = "load_llm"
    UNLOAD = "unload_llm"


@dataclass(frozen=True, slots=True)
class Temperature:
    """An agent as far as its model matters, from its heartbeat."""

    agent: str
    is_hot: bool
    health: Health = Health.HEALTHY
    tasks: int = 0  # that it runs on its card
    llm_slots: int = 1
    host: str = ""  # agents of one host share a bus
    can_load: bool = True  # it has a model


@dataclass(frozen=True, slots=True)
class Demand:
    """The tasks that are ready or queued, by class, and those of class `llm` that run."""

    llm: int = 0
    script: int = 0
    llm_running: int = 0


def orders(
    agents: Iterable[Temperature], demand: Demand, told_at_ms: Mapping[str, int], now_ms: int
) -> dict[str, Order]:
    """What to tell which agent now. `told_at_ms`: when each was last told something that it has not shown yet."""
    known = sorted(agents, key=lambda each: each.agent)
    waiting = {agent for agent, at in told_at_ms.items() if now_ms - at < limits.HEAT_ORDER_MS_MAX}
    free = [each for each in known if each.agent not in waiting]
    found = {
        each.agent: Order.UNLOAD
        for each in free
        if each.is_hot and not each.tasks and each.health is Health.CONSTRAINED
    }
    if demand.llm:
        found |= _heat(known, free, waiting, demand)
    elif demand.script and not demand.llm_running:
        found |= {each.agent: Order.UNLOAD for each in free if each.is_hot and not each.tasks}
    return found


def _heat(
    known: list[Temperature], free: list[Temperature], waiting: set[str], demand: Demand
) -> dict[str, Order]:
    """One agent per host at a time, until the hot ones have a slot for every task that waits or runs."""
    coming = [each for each in known if each.agent in waiting and not each.is_hot]
    hot = [each for each in known if each.is_hot and each.health is Health.HEALTHY]
    slots = sum(each.llm_slots for each in (*hot, *coming)) - demand.llm_running
    busy = {each.host for each in coming}
    found: dict[str, Order] = {}
    cold = [each for each in free if not each.is_hot and each.can_load and each.health is Health.HEALTHY]
    for each in sorted(cold, key=lambda each: (each.tasks, each.agent)):
        if slots < demand.llm and each.host not in busy:
            found[each.agent] = Order.LOAD
            busy.add(each.host)
            slots += each.llm_slots
    return found
