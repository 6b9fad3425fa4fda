"""Heating: the coordinator's orders to load and to unload models, from heartbeats and the tasks that wait (`heat`).

An order is a slip of class `meta` for one agent. It belongs to no batch and stands in no journal: a successor decides
anew from what it sees, and puts away what it finds on the board. Times are of the coordinator's monotonic clock.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from watchbill.fleet import limits
from watchbill.fleet.folder.heartbeat import Heartbeat
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.folder.slips import Headline, Slip, slip_name
from watchbill.fleet.folder.work import Work
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.abilities import Need
from watchbill.fleet.matching.claiming import Health
from watchbill.fleet.matching.heat import Command, Demand, Temperature, Told, orders
from watchbill.plans.task import TaskClass

__all__ = ["Heating"]

_LOG = Part.COORDINATOR.logger
#: The first: a load is done before the tasks that need it.
_PRIORITY = 1


class _Given(NamedTuple):
    agent: str
    command: Command


class Heating:
    """The orders of one coordinator."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}
        self._given: dict[str, _Given] = {}  # slip -> the order that it is
        self._numbers = 0

    def look(
        self, living: Mapping[str, Heartbeat], waiting: Iterable[Need], epoch: int, now_ms: int
    ) -> dict[str, Slip]:
        """The orders to give now, as slips by their names."""
        agents = {name: _temperature(name, beat) for name, beat in living.items()}
        self._told = {
            name: told
            for name, told in self._told.items()
            if name in agents and now_ms < told.until_ms and not told.is_done_by(agents[name])
        }
        found: dict[str, Slip] = {}
        for agent, command in orders(agents.values(), _demand(waiting, living), self._told, now_ms).items():
            _LOG.info("action=%s agent=%s model=%s", command.order.value, agent, command.model)
            self._told[agent] = Told(command, now_ms + limits.HEAT_ORDER_MS_MAX)
            name, slip = self._slip(agent, command, epoch)
            self._given[name] = _Given(agent, command)
            found[name] = slip
        return found

    def hear(self, result: Result, now_ms: int) -> bool:
        """Whether a result is of an order of ours. An order that failed is given again after a while."""
        given = self._given.pop(result.name, None)
        if given is None:
            return False
        if result.end is not End.DONE:
            _LOG.warning("action=%s agent=%s model=%s failed: %s", given.command.order.value, given.agent,
                         given.command.model, result.tail)  # fmt: skip
            self._told[given.agent] = Told(given.command, now_ms + limits.HEAT_AGAIN_MS)
        return True

    def _slip(self, agent: str, command: Command, epoch: int) -> tuple[str, Slip]:
        self._numbers += 1
        # The epoch is in the name: a result of a former coordinator's order is none of this one's.
        task = f"{command.order.value}-{epoch}-{self._numbers}"
        headline = Headline(_PRIORITY, self._numbers, TaskClass.META, 0, 1, agent)
        work = Work(task_class=TaskClass.META, command=command.order.value, model=command.model)
        return (
            slip_name(headline, model="", batch="heat", task=task),
            Slip(task, "", "", 1, epoch, 0, (), {}, (), work),
        )


def _temperature(name: str, heartbeat: Heartbeat) -> Temperature:
    report = heartbeat.report
    return Temperature(
        name, report.model, report.models, report.hot_models,
        Health.CONSTRAINED if heartbeat.is_constrained else Health.HEALTHY,
        sum(each.task_class in _ON_GPU for each in report.tasks), report.llm_slots, report.host,
    )  # fmt: skip


_ON_GPU = (TaskClass.LLM, TaskClass.SCRIPT)


def _demand(waiting: Iterable[Need], living: Mapping[str, Heartbeat]) -> Demand:
    llm: dict[str, int] = {}
    script = 0
    pairs = (beat.report.model for beat in living.values() if len(beat.report.devices) > 1)
    of_pair = next((model for model in pairs if model), "")
    for each in waiting:
        if each.task_class is TaskClass.LLM:
            model = each.model or (of_pair if each.needs_pair else "")
            llm[model] = llm.get(model, 0) + 1
        script += each.task_class is TaskClass.SCRIPT
    running = sum(each.task_class is TaskClass.LLM for beat in living.values() for each in beat.report.tasks)
    return Demand(llm, script, running)
