"""Plans over HTTP: the fleet of the config's folder, and how far each batch is, with the graph of its tasks.

The folder is read in a thread, once a second however many look. What reads it is imported with the first question:
a daemon without plans never needs it, and it is a tenth of all modules.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from watchbill.catalog import FleetRules
from watchbill.errors import NotFound
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import PLAN_LOOK_MS
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services

if TYPE_CHECKING:
    from watchbill.gateway.page.fleet_view import FleetView

__all__ = ["PlansApi", "has_plans"]


def has_plans(rules: FleetRules) -> bool:
    """Whether the config says anything about plans."""
    return rules.root is not None or rules.coordinator is not None or bool(rules.agents)


class PlansApi:
    """Serves /wb/v1/plans."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._looking = asyncio.Lock()
        self._view: FleetView | None = None
        self._told: dict[str, object] = {}
        self._told_at = float("-inf")

    async def plans(self, context: RequestContext) -> Response:
        """GET /wb/v1/plans: coordinator, agents, and the last batches."""
        rules = self._services.driver.catalog.fleet
        if not has_plans(rules):
            raise NotFound("the config has no [fleet], [coordinator] or [agents]")
        async with self._looking:
            if time.monotonic() - self._told_at > PLAN_LOOK_MS / 1000:
                self._told = await asyncio.to_thread(self._look, rules)
                self._told_at = time.monotonic()
        return json_response(self._told, context.lines())

    def _look(self, rules: FleetRules) -> dict[str, object]:
        from watchbill.gateway.page.fleet_view import FleetView

        self._view = self._view or FleetView()
        return self._view.look(self._services.driver.root, rules)
