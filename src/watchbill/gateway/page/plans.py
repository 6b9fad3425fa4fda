"""Plans over HTTP: the fleet of the config's folder, and how far each batch is, with the graph of its tasks.

Reads the shared folder, as any other machine would, in a thread; the coordinator is not asked. A journal is read once
and then followed. However many look, the folder is read once a second.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

from watchbill.catalog import FleetRules
from watchbill.errors import NotFound, OursError
from watchbill.fleet.command_lines import fleet_folder
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.reading import BatchPlace, batches_of
from watchbill.fleet.views.overview import BatchView, agents_of, coordinator_of, short_fields
from watchbill.fleet.views.progress import BatchProgress
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import PLAN_BATCHES_SHOWN, PLAN_LOOK_MS, PLAN_NODES_SHOWN
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services

__all__ = ["PlansApi", "has_plans"]


def has_plans(rules: FleetRules) -> bool:
    """Whether the config says anything about plans."""
    return rules.root is not None or rules.coordinator is not None or bool(rules.agents)


class PlansApi:
    """Serves /wb/v1/plans."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._looking = asyncio.Lock()
        self._views: dict[str, BatchView] = {}
        self._told: dict[str, object] = {}
        self._told_at = float("-inf")

    async def plans(self, context: RequestContext) -> Response:
        """GET /wb/v1/plans: coordinator, agents, and the last batches."""
        driver = self._services.driver
        rules = driver.catalog.fleet
        if not has_plans(rules):
            raise NotFound("the config has no [fleet], [coordinator] or [agents]")
        async with self._looking:
            if time.monotonic() - self._told_at > PLAN_LOOK_MS / 1000:
                disk = FolderDisk(fleet_folder(driver.root, rules))
                self._told = await asyncio.to_thread(self._look, disk)
                self._told_at = time.monotonic()
        return json_response(self._told, context.lines())

    def _look(self, disk: FolderDisk) -> dict[str, object]:
        found = batches_of(disk)[-PLAN_BATCHES_SHOWN:]
        self._views = {place.batch: self._views.get(place.batch) or BatchView(disk, place) for place in found}
        agents = agents_of(disk, Board(disk).look_around())
        return {
            "coordinator": coordinator_of(disk).fields(),
            "agents": {agent.name: agent.fields() for agent in agents},
            "batches": [_batch(self._views[place.batch], place) for place in reversed(found)],
        }


def _batch(view: BatchView, place: BatchPlace) -> dict[str, object]:
    try:
        progress = view.look()
    except OursError as error:
        return {
            "batch": place.batch,
            "plan": place.plan,
            "state": "unreadable",
            "why": str(error),
            "graph": [],
        }
    return {
        **short_fields(progress),
        "total": progress.total,
        "done": progress.done,
        "why": view.refusal,
        "graph": _graph(view.ledger, progress),
    }


def _graph(ledger: Ledger, progress: BatchProgress) -> list[dict[str, object]]:
    """Each task of the plan, a fan-out as one: what it waits for, how far it is, and its last error."""
    counts: dict[str, Counter[str]] = {}
    errors: dict[str, str] = {}
    waits: dict[str, tuple[str, ...]] = {}
    for task in progress.tasks:
        name = ledger.template_of(task.id)
        counts.setdefault(name, Counter())[task.state.value] += 1
        if name not in waits:
            node = ledger.spec(task.id).node
            waits[name] = tuple(_known([*node.depends_on, *node.items_of], ledger))
        if task.error:
            errors[name] = task.error
    return [
        {"task": name, "counts": dict(states), "after": list(waits[name]), "error": errors.get(name)}
        for name, states in list(counts.items())[:PLAN_NODES_SHOWN]
    ]


def _known(names: Iterable[str], ledger: Ledger) -> list[str]:
    return list(dict.fromkeys(ledger.template_of(name) for name in names))
