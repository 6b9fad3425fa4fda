"""Reloading: a running daemon takes over a changed config, or refuses it as a whole.

The file is looked at by the clock, on SIGHUP, and when an operator asks over HTTP. A config that is wrong changes
nothing, and the next change is still noticed.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from watchbill import config
from watchbill.batches.service import Batches
from watchbill.daemon.cards import Cards
from watchbill.daemon.notices import failures_of
from watchbill.daemon.setting import Setting, with_address
from watchbill.daemon.spools import Spools
from watchbill.errors import ConfigError, WatchbillError
from watchbill.gateway.server import Serving
from watchbill.limits import CONFIG_LOOK_MS
from watchbill.runtime.changes import awaiting_restart
from watchbill.runtime.driver import Driver

__all__ = ["Reconfigured", "Reloading"]

_LOG = logging.getLogger("watchbill.daemon")


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """All parts that take over a changed config."""

    driver: Driver
    spools: Spools
    serving: Serving
    cards: Cards
    batches: Batches


class Reloading:
    """Takes over a changed config while the daemon runs, or refuses it as a whole."""

    def __init__(self, parts: Reconfigured, setting: Setting, asked: asyncio.Event) -> None:
        self._parts, self._asked = parts, asked
        self._options, self._screen, self._withheld = setting.options, setting.screen, setting.withheld
        self._notifier, self._library = setting.notifier, setting.library
        # The file of the start, not the one that would be found now: without it that would be the embedded default.
        self._file = None if setting.file is None else config.ConfigFile(setting.file)
        self._seen: config.Stamp | None = None
        self._started = parts.driver.catalog  # what is only read at the start is compared with this
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # an older config must not overtake a newer one

    async def begin(self) -> None:
        """Starts watching the file."""
        if self._file is None:
            return
        self._seen = await self._stamp(self._file)
        self._parts.serving.gateway.reload = self.reload
        self._task = asyncio.create_task(self._watch(self._file), name="config")

    async def _stamp(self, file: config.ConfigFile) -> config.Stamp | None:
        try:
            return await asyncio.to_thread(file.stamp)
        except OSError:
            return None  # an editor is replacing it, its folder is missing for a while, or its mount hangs

    async def _watch(self, file: config.ConfigFile) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIG_LOOK_MS / 1000):
                    await self._asked.wait()
            stamp = await self._stamp(file)
            changed = stamp is not None and stamp != self._seen
            if changed or self._asked.is_set():
                self._asked.clear()
                self._seen = stamp
                await self._try()

    async def _try(self) -> None:
        """Reloads the config. After a failure the next change is still noticed."""
        self._notifier.reloading()
        gateway = self._parts.serving.gateway
        told = gateway.awaiting_restart
        try:
            await self.reload()
            for text in gateway.awaiting_restart:
                if text not in told:
                    self._screen.warn(text)
        except (WatchbillError, OSError) as error:
            self._screen.warn(f"the changed config was refused, the old one stays:\n{error}")
        except Exception:  # noqa: BLE001  a fault of ours in one config must not end the watch for the next
            _LOG.exception("the changed config could not be taken over")
            self._screen.warn("the changed config was refused, the old one stays: Watchbill failed on it")
        finally:
            count = len(self._parts.driver.catalog.models)
            self._notifier.ready(f"serving {count} models at {self._parts.serving.url}")

    async def reload(self) -> list[str]:
        """Reads the config again and takes it over. Raises ConfigError and changes nothing when it is wrong."""
        if self._file is None:
            return []
        async with self._turn:
            return await self._reload(self._file)

    async def _reload(self, file: config.ConfigFile) -> list[str]:
        loaded = await asyncio.to_thread(
            config.read, file.path, root=self._options.root, source=lambda _: file.read()
        )
        if not loaded.catalog.models:  # more likely an editor that has not written yet than an empty config
            raise ConfigError(problems=[loaded.problem(("models",), "there is no model")])
        catalog = with_address(loaded.catalog, self._options)
        await self._parts.cards.own(catalog)
        self._withheld.key_variables = catalog.server.key_variables
        driver = self._parts.driver
        before = failures_of(driver)
        changes = await self._library.declare(driver, catalog)
        changes += await asyncio.to_thread(self._parts.spools.reconfigure, catalog.spools)
        changes += [text for name, text in failures_of(driver).items() if before.get(name) != text]
        changes += self._parts.batches.reconfigure(catalog.batches)
        gateway = self._parts.serving.gateway
        gateway.reconfigure(catalog.server)
        if changes:
            gateway.config_since = time.time()
        gateway.awaiting_restart = awaiting_restart(self._started, driver.catalog)
        _LOG.info("config reloaded: %s", "; ".join(changes) or "nothing changed")
        return changes

    async def close(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
