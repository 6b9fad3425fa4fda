"""A whole gateway on a real socket, in front of an engine of raw sockets, for tests."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from support.eventually import eventually
from support.peer import EnginePeer, Talk, chat_events, peer_listening, sse, stream_of
from watchbill.batches.service import Batches
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, Server
from watchbill.engines.base import Capabilities, DeathCallback, Endpoint, HostCallback, Warm
from watchbill.engines.upstream import Deadlines, Upstream
from watchbill.gateway.app import Gateway
from watchbill.gateway.server import Serving, serve
from watchbill.journal import Journal
from watchbill.probes import Reading
from watchbill.probes.patient import PatientProbe
from watchbill.runtime.alerts import Alerts
from watchbill.runtime.driver import Driver, Parts
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.library import Library
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.sizes import Sizes
from watchbill.units import Bytes, Millis

__all__ = [
    "CATALOG",
    "HELLO",
    "GatewayClient",
    "OpenGateway",
    "PeerEngine",
    "RawAnswer",
    "open_gateway",
    "raw",
]

HELLO = stream_of(sse(*chat_events("hello there")))
MIB = {"ram": Bytes(2**20)}
MODELS = {
    "a": Model("a", "peer", aliases=("alias/of-a",), concurrency=8, memory=MIB),
    "b/with:slash": Model("b/with:slash", "peer", memory=MIB),
}
LANES = {
    "default": Lane("default", queue_max=16),
    "batch": Lane("batch", queue_max=16),
    "brief": Lane("brief", timeout_ms=Millis(200)),
}
#: Longer than any test waits: what a test sees come about is not the work of a deadline.
PATIENT = Deadlines(first_byte_ms=60_000, silence_ms=60_000)
#: Where no registry of models listens.
NO_REGISTRY = "http://127.0.0.1:9"
CATALOG = Catalog({"ram": Device("ram")}, {"peer": EngineRules("peer", "process")}, MODELS, LANES)


class PeerEngine:
    """An engine whose every model is the peer. A load waits while `gate` is closed."""

    capabilities = Capabilities(owned=True, measures_memory=False, stops_generation=True)

    def __init__(self, peer: EnginePeer, on_death: DeathCallback) -> None:
        self._peer = peer
        self._on_death = on_death
        self.gate = asyncio.Event()
        self.gate.set()
        self.attempts: dict[str, int] = {}
        self.endpoint: Endpoint | None = None

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        await self.gate.wait()
        self.attempts[model.name] = attempt
        return Warm(self.endpoint or self._peer.endpoint, None, {})

    async def stop(self, model: str, *, hard: bool = False) -> None:
        self.attempts.pop(model, None)

    def memory(self, model: str) -> dict[str, int]:
        return {}

    async def close(self) -> None:
        self.attempts.clear()

    def die(self, model: str) -> None:
        """The engine of a model is gone without being asked."""
        self._on_death(model, self.attempts.pop(model), "it was shot")


class EmptyMachine:
    """A machine on which nothing else runs."""

    def read(self) -> dict[str, Reading]:
        return {"ram": Reading(Bytes(2**30), Bytes(2**30), Millis(time.monotonic_ns() // 1_000_000))}


class GatewayClient:
    """Asks a gateway that serves, on connections of its own."""

    def __init__(self, serving: Serving, port: int | None = None) -> None:
        """`port`: that of another door than the main one."""
        self.serving, self.door = serving, port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self.door or self.serving.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        self.writers.append(writer)
        return reader, writer

    async def send(self, request: bytes) -> "RawAnswer":
        """Sends raw bytes on a connection of their own and reads to the end of the first answer."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await raw(reader)
        finally:
            writer.close()

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> "RawAnswer":
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        every = {
            "Host": f"127.0.0.1:{self.serving.port}",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }
        if body is not None and "Content-Type" not in every:
            every["Content-Type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in every.items() if value is not None)
        head = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1\r\n{lines}\r\n"
        return await self.send(head.encode("utf-8") + content)


class OpenGateway(GatewayClient):
    """A gateway that serves, its client, and the driver and the engine behind it."""

    def __init__(
        self, serving: Serving, driver: Driver, peer: EnginePeer, engine: PeerEngine, log: list[str]
    ) -> None:
        super().__init__(serving)
        self.gateway = serving.gateway
        self.driver = driver
        self.peer = peer
        self.engine = engine
        self.log = log
        assert serving.gateway.batches is not None
        self.batches = serving.gateway.batches
        self.library = serving.gateway.library

    @property
    def url(self) -> str:
        return self.serving.url

    @property
    def connections(self) -> int:
        """How many clients' connections are open at the server."""
        return self.serving.connections

    async def until_idle(self) -> None:
        """Waits until no request waits or runs and the engine works on nothing."""
        await self.peer.until(lambda peer: peer.working == 0)
        await eventually(lambda: not self.driver.requests())

    async def until_waiting(self, count: int = 1) -> None:
        """Waits until so many requests wait for their turn."""
        await eventually(lambda: self.count("waiting") == count)

    def count(self, state: str) -> int:
        """How many requests wait, or run."""
        return sum(request["state"] == state for request in self.driver.requests())

    def outcomes(self) -> dict[str, int]:
        """How the requests ended, as /metrics counts them."""
        found: dict[str, int] = {}
        for line in self.driver.metrics.render().decode().splitlines():
            if line.startswith("watchbill_requests_total{"):
                outcome = line.split('outcome="')[1].split('"')[0]
                found[outcome] = found.get(outcome, 0) + int(float(line.split(" ")[-1]))
        return found


class RawAnswer:
    """An answer as bytes, taken apart."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    @property
    def code(self) -> object:
        return json.loads(self.body)["error"]["code"]


async def raw(reader: asyncio.StreamReader) -> RawAnswer:
    """Reads one answer."""
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return RawAnswer(status, headers, body)


@asynccontextmanager
async def open_gateway(
    talk: Talk = HELLO,
    *,
    server: Server | None = None,
    deadlines: Deadlines | None = None,
    catalog: Catalog = CATALOG,
    root: Path | None = None,
    registry: str = NO_REGISTRY,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[OpenGateway]:
    """Opens a gateway with the real driver behind it, and closes both without a trace. A `root` that is given stays. By
    the `clock` files and batches are kept."""
    with TemporaryDirectory() as folder:
        async with (
            peer_listening(talk) as peer,
            _opened(
                root or Path(folder),
                peer,
                server or Server(),
                deadlines,
                catalog,
                registry=registry,
                clock=clock,
            ) as opened,
        ):
            yield opened


@asynccontextmanager
async def _opened(
    root: Path,
    peer: EnginePeer,
    server: Server,
    deadlines: Deadlines | None,
    catalog: Catalog,
    *,
    registry: str,
    clock: Callable[[], float],
) -> AsyncIterator[OpenGateway]:
    engines: list[PeerEngine] = []

    def make_engine(_rules: EngineRules, on_death: DeathCallback, _: HostCallback) -> PeerEngine:
        engines.append(PeerEngine(peer, on_death))
        return engines[-1]

    journal = Journal(root, catalog.journal)
    alerts = Alerts(catalog.alerts, journal.write)
    batches = Batches(root / "batches", catalog.batches, note=journal.write, tell=alerts.raise_, clock=clock)
    parts = Parts(
        make_engine=make_engine,
        learned=LearnedSizes(catalog, Sizes(root)),
        root=root,
        journal=journal,
        alerts=alerts,
        batches=batches.view,
        make_probe_loop=partial(ProbeLoop, probes=[PatientProbe(EmptyMachine())]),
    )
    library = Library.of(root / "models", catalog, registry)
    driver = Driver(library.catalog, parts)
    upstream = Upstream(deadlines or PATIENT)
    log: list[str] = []
    await driver.start()
    gateway = Gateway(
        driver,
        server,
        upstream=upstream,
        access_log=log.append,
        metrics=driver.metrics,
        responses=root / "responses",
        batches=batches,
        library=library,
    )
    await gateway.start_batches()
    await gateway.resume_responses()
    opened = OpenGateway(await serve(gateway, "127.0.0.1", 0), driver, peer, engines[0], log)
    try:
        yield opened
    finally:
        for writer in opened.writers:
            writer.transport.abort()
        await opened.serving.close(grace_ms=200)
        await batches.close()
        await driver.close()
        await upstream.close()
        journal.close()
