"""What the page shows of a fleet: coordinator, agents and the last batches, each with the graph of its tasks.

Reads the shared folder, as any other machine would; the coordinator is not asked. A journal is read once and then
followed.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from watchbill.catalog import FleetRules
from watchbill.errors import OursError
from watchbill.fleet.command_lines import fleet_folder
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.reading import BatchPlace, batches_of
from watchbill.fleet.views.overview import BatchView, agents_of, coordinator_of, short_fields
from watchbill.fleet.views.progress import BatchProgress
from watchbill.gateway.limits import PLAN_BATCHES_SHOWN, PLAN_NODES_SHOWN

__all__ = ["FleetView"]


class FleetView:
    """Remembers how far each journal was read."""

    def __init__(self) -> None:
        self._views: dict[str, BatchView] = {}

    def look(self, root: Path, rules: FleetRules) -> dict[str, object]:
        """The fleet as it is now. Does I/O."""
        disk = FolderDisk(fleet_folder(root, rules))
        found = batches_of(disk)[-PLAN_BATCHES_SHOWN:]
        self._views = {place.batch: self._views.get(place.batch) or BatchView(disk, place) for place in found}
        agents = agents_of(disk)
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
