"""Unloads that callers ask for: a `keep_alive` of 0, or nearly, in any dialect.

It is a hint. A permanent model stays, and so does one that another caller uses, waits for or used a short while ago:
that caller would only load it again. Unloads per caller are bounded, too, except for keys with admin rights. A hint
that is not followed changes nothing else about its request. Unloads without a request of their own go on in the
background, as in Ollama; `close` ends them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from watchbill.catalog import ApiKey, Model
from watchbill.core.messages import Cause
from watchbill.errors import TheirsError
from watchbill.gateway.limits import UNLOAD_RECENT_MS, UNLOADS_MAX, UNLOADS_PER_MINUTE_MAX
from watchbill.runtime.driver import Driver

__all__ = ["Kept", "Unloading"]

_log = logging.getLogger("watchbill.gateway")
MINUTE_S = 60.0


class Kept(StrEnum):
    """Why a model stays although a client asked for its unload."""

    PERMANENT = "permanent"
    SHARED = "shared"  # an engine that Watchbill does not manage
    USED = "used"  # others use it, wait for it, or did lately; or its caller has asked for this too often
    BUSY = "busy"  # too many unloads are under way


class Unloading:
    """Who used which model last, who asked for unloads, and those under way: one per model."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._used: dict[str, dict[str, float]] = {}  # model -> key -> when; both are names of the config
        self._granted: dict[str, deque[float]] = {}  # key -> when its last unloads were granted

    def note_use(self, model: str, key: ApiKey) -> None:
        """A caller's request was accepted for a model."""
        self._used.setdefault(model, {})[key.name] = self._clock()

    def grants(self, model: Model, key: ApiKey | None) -> bool:
        """Whether a caller may have a model unloaded; it counts then."""
        if key is not None and key.admin:
            return True
        caller, now = "" if key is None else key.name, self._clock()
        recently = now - UNLOAD_RECENT_MS / 1000
        others = (at for name, at in self._used.get(model.name, {}).items() if name != caller)
        granted = self._granted.setdefault(caller, deque(maxlen=UNLOADS_PER_MINUTE_MAX))
        is_spent = len(granted) == UNLOADS_PER_MINUTE_MAX and granted[0] > now - MINUTE_S
        if is_spent or any(at > recently for at in others):
            return False
        granted.append(now)
        return True

    def begin(self, model: Model, key: ApiKey | None) -> Kept | None:
        """Starts to unload a model. Says why, where it stays."""
        if (kept := self._why_it_stays(model)) is not None or model.name in self._tasks:
            return kept
        if not self.grants(model, key):
            return Kept.USED
        task = asyncio.create_task(self._unload(model.name), name=f"unload {model.name}")
        self._tasks[model.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(model.name, None))
        return None

    def _why_it_stays(self, model: Model) -> Kept | None:
        if model.permanent or model.shared:
            return Kept.PERMANENT if model.permanent else Kept.SHARED
        if self._driver.is_in_use(model.name):
            return Kept.USED
        return Kept.BUSY if len(self._tasks) >= UNLOADS_MAX and model.name not in self._tasks else None

    async def close(self) -> None:
        """Waits for nothing more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _unload(self, name: str) -> None:
        try:
            await self._driver.evict(name, cause=Cause.CALLER)
        except TheirsError as error:
            _log.info("model=%s was not unloaded: %s", name, error)
