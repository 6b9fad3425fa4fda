"""Protected processes: services for which memory is reserved (RES-05). A missing one raises an alert.

The alert is raised once per loss, and a note is written when the process is back. /proc is searched in a thread.
"""

import asyncio
import logging
from collections.abc import Callable

from watchbill.catalog import Catalog
from watchbill.core.messages import Alert, AlertKind, JournalEvent, Note
from watchbill.probes.trees import find_processes
from watchbill.runtime.limits import PROTECTED_LOOK_MS

__all__ = ["Protected"]

_LOG = logging.getLogger("watchbill.protected")


class Protected:
    """Watches the processes that the devices' `protect` names."""

    def __init__(
        self, catalog: Catalog, alert: Callable[[Alert], None], journal: Callable[[Note], None]
    ) -> None:
        self._alert, self._journal = alert, journal
        self._missing: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.reconfigure(catalog)

    def reconfigure(self, catalog: Catalog) -> None:
        """Watches the new list."""
        self._names = {name: d.name for d in catalog.devices.values() for name in d.protect}
        self._missing &= self._names.keys()

    def start(self) -> None:
        """Starts watching."""
        self._task = asyncio.create_task(self._watch(), name="protected")

    async def close(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            if self._names:
                await self.look()
            await asyncio.sleep(PROTECTED_LOOK_MS / 1000)

    async def look(self) -> None:
        """Looks once."""
        names = dict(self._names)
        try:
            alive = await asyncio.to_thread(lambda: {name for name in names if find_processes(name)})
        # Any errno: /proc cannot be read now, which says nothing about the processes.
        except OSError as error:
            _LOG.warning("protected processes could not be searched: %s", error)
            return
        for name, device in names.items():
            if name in alive and name in self._missing:
                self._missing.discard(name)
                self._journal(Note(JournalEvent.PROTECTED, f"{name} is back", device=device))
            elif name not in alive and name not in self._missing:
                self._missing.add(name)
                self._alert(
                    Alert(AlertKind.PROTECTED, f"the protected process {name} is not running", device=device)
                )
