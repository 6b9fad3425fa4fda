"""The spools of a daemon: captured events, drains, and the broker of this root where one was asked for.

Their order matters. The broker runs before the drains start and ends after them, and captures end before the drains, so
that the last captured events are still drained.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from watchbill.catalog import Catalog, SpoolRules
from watchbill.daemon.setting import Setting
from watchbill.gateway.server import Serving
from watchbill.runtime.broker import prepare, wait_until_up
from watchbill.runtime.broker_health import BrokerHealth
from watchbill.runtime.capture import SpoolCapture
from watchbill.runtime.children import Children
from watchbill.runtime.drains import Drains

__all__ = ["Spools", "close_spools", "start_spools"]

_NONE_CAPTURED = {"stored": 0, "waiting": 0, "dropped": 0}


@dataclass(frozen=True, slots=True)
class Spools:
    """The drains and captures of all spools."""

    drains: Drains
    captures: SpoolCapture

    def reconfigure(self, spools: Mapping[str, SpoolRules]) -> list[str]:
        """Takes over new tables; returns the changes as sentences. Blocks."""
        self.captures.reconfigure(spools)
        return self.drains.reconfigure(spools)

    def view(self) -> dict[str, object]:
        """The part of `status` about each spool."""
        captured = self.captures.view()
        return {
            name: told
            | {f"capture_{key}": count for key, count in captured.get(name, _NONE_CAPTURED).items()}
            for name, told in self.drains.view().items()
        }

    def close(self) -> list[str]:
        """Ends both. Blocks. Returns a text for each spool that lost captured events."""
        lost = self.captures.close()  # first: the last captured events may still go through the drains
        self.drains.close()
        return lost


async def start_spools(
    spools: Spools, brokers: Children, serving: Serving, catalog: Catalog, setting: Setting
) -> None:
    """Captures and drains from now on, once the broker of this root runs where it was asked for."""
    if setting.options.with_nats:
        await _start_broker(brokers, setting)
    serving.gateway.capturing.sink = spools.captures
    await asyncio.to_thread(spools.drains.reconfigure, catalog.spools)


async def close_spools(spools: Spools, brokers: Children, setting: Setting) -> None:
    """Ends the drains, tells of events that were lost, and ends the broker that they used."""
    for lost in await asyncio.to_thread(spools.close):
        setting.screen.warn(lost)
    await brokers.close()


async def _start_broker(brokers: Children, setting: Setting) -> None:
    """Runs the NATS server of this root, and waits until it answers. Raises ConfigError where there is none."""
    path = setting.root.path
    command = await asyncio.to_thread(prepare, path)
    brokers.start("nats-server", command, watch=BrokerHealth(path))
    if not await asyncio.to_thread(wait_until_up, path):
        log = setting.root.logs / "nats-server.log"
        setting.screen.warn(f"the NATS server does not answer yet; its log is {log}")
