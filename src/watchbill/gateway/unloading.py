"""Unloads that clients asked for: `keep_alive: 0` on Ollama's door.

They go on in the background, as in Ollama. It is a hint: a permanent model stays, and so does one that somebody
else uses or waits for. Owns its tasks; `close` ends them.
"""

import asyncio
import logging
from typing import cast

from watchbill.catalog import Model
from watchbill.errors import TheirsError
from watchbill.gateway.surface import DriverSurface
from watchbill.limits import UNLOADS_MAX

__all__ = ["Unloading"]

_log = logging.getLogger("watchbill.gateway")


class Unloading:
    """Unloads under way, one per model."""

    def __init__(self, driver: DriverSurface) -> None:
        self._driver = driver
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, model: Model) -> bool:
        """Starts to unload a model; False when it stays."""
        if model.permanent or model.shared or model.name in self._tasks or len(self._tasks) >= UNLOADS_MAX:
            return False
        if self._is_used(model.name):
            return False
        task = asyncio.create_task(self._unload(model.name), name=f"unload {model.name}")
        self._tasks[model.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(model.name, None))
        return True

    async def close(self) -> None:
        """Waits for nothing more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_used(self, name: str) -> bool:
        models = cast("dict[str, dict[str, int]]", self._driver.status().get("models", {}))
        told = models.get(name, {})
        return bool(told.get("in_flight") or told.get("queued"))

    async def _unload(self, name: str) -> None:
        try:
            await self._driver.evict(name)
        except TheirsError as error:
            _log.info("model=%s was not unloaded: %s", name, error)
