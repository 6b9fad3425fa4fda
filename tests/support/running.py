"""A gateway with the real driver and real engine processes behind it, for tests."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.open_gateway import EmptyMachine
from watchbill.catalog import Catalog
from watchbill.engines.registry import make_engine
from watchbill.gateway.app import Gateway
from watchbill.gateway.server import Serving, serve
from watchbill.journal import Journal
from watchbill.probes.patient import PatientProbe
from watchbill.probes.ram import RamProbe
from watchbill.runtime.alerts import Alerts
from watchbill.runtime.driver import Driver, Parts
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.sizes import Sizes

__all__ = ["answering", "chat", "driving", "running"]


@asynccontextmanager
async def driving(
    root: Path, catalog: Catalog, *probes: PatientProbe, ram: RamProbe | None = None
) -> AsyncIterator[Driver]:
    """The real driver with the real engines; it leaves no process behind."""
    journal = Journal(root, catalog.journal)
    parts = Parts(
        make_engine=lambda rules, on_death, on_host: make_engine(
            rules, root=root, on_death=on_death, on_host=on_host
        ),
        learned=LearnedSizes(catalog, Sizes(root)),
        root=root,
        journal=journal,
        alerts=Alerts(catalog.alerts, journal.write),
        make_probe_loop=partial(ProbeLoop, probes=[*probes] or [PatientProbe(EmptyMachine())], ram=ram),
    )
    driver = Driver(catalog, parts)
    await driver.start()
    try:
        yield driver
    finally:
        await driver.close()
        journal.close()


@asynccontextmanager
async def running(
    root: Path,
    catalog: Catalog,
    *probes: PatientProbe,
    ram: RamProbe | None = None,
    responses: Path | None = None,
) -> AsyncIterator[tuple[Serving, Driver]]:
    """A driver and a gateway that serves it. `responses` are kept there, and those of an earlier gateway go on."""
    async with driving(root, catalog, *probes, ram=ram) as driver, _serving(driver, responses) as serving:
        yield serving, driver


@asynccontextmanager
async def answering(driver: Driver) -> AsyncIterator[str]:
    """The address at which a driver is served."""
    async with _serving(driver) as serving:
        yield serving.url


@asynccontextmanager
async def _serving(driver: Driver, responses: Path | None = None) -> AsyncIterator[Serving]:
    gateway = Gateway(driver, driver.catalog.server, metrics=driver.metrics, responses=responses)
    serving = await serve(gateway, "127.0.0.1", 0)
    await gateway.resume_responses()
    try:
        yield serving
    finally:
        await serving.close(grace_ms=200)


async def chat(url: str, model: str = "talker") -> tuple[int, dict[str, Any]]:
    """Asks for three tokens and gives the status and the answer."""
    return await asyncio.to_thread(_chat, url, model)


def _chat(url: str, model: str) -> tuple[int, dict[str, Any]]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    question = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(question, timeout=10) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
