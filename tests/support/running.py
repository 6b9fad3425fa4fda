"""A gateway with the real driver and real engine processes behind it, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from support.open_gateway import EmptyMachine
from watchbill.catalog import Catalog
from watchbill.engines.registry import make_engine
from watchbill.gateway.app import Gateway
from watchbill.gateway.server import Serving, serve
from watchbill.journal import Journal
from watchbill.probes.patient import PatientProbe
from watchbill.runtime.alerts import Alerts
from watchbill.runtime.driver import Driver, Parts
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.sizes import Sizes

__all__ = ["running"]


@asynccontextmanager
async def running(root: Path, catalog: Catalog) -> AsyncIterator[tuple[Serving, Driver]]:
    """Serves a catalog, and leaves no process behind."""
    journal = Journal(root, catalog.journal)
    parts = Parts(
        make_engine=lambda rules, on_death, on_host: make_engine(
            rules, root=root, on_death=on_death, on_host=on_host
        ),
        memories=LearnedSizes(catalog, Sizes(root)),
        journal=journal,
        alerts=Alerts(catalog.alerts, journal.write),
        make_lookout=partial(ProbeLoop, probes=[PatientProbe(EmptyMachine())]),
        root=root,
    )
    driver = Driver(catalog, parts)
    await driver.start()
    serving = await serve(Gateway(driver, catalog.server), "127.0.0.1", 0)
    try:
        yield serving, driver
    finally:
        await serving.close(grace_ms=200)
        await driver.close()
        journal.close()
