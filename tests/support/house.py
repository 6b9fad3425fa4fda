"""A whole gateway on a real socket, in front of an engine of raw sockets, for tests."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from support.peer import EnginePeer, Talk, chat_events, peer_listening, sse, stream_of
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, Server, WorkClass
from watchbill.core.messages import Ended, Event, Left, Request, Returned
from watchbill.engines.upstream import Deadlines, Upstream
from watchbill.errors import LaneFull, ModelNotFound
from watchbill.gateway.app import GATEWAY, Gateway, make_app
from watchbill.gateway.server import Serving, serve
from watchbill.runtime.ticket import Start, Ticket, Wish

__all__ = ["House", "RawAnswer", "StandIn", "eventually", "house", "raw"]

HELLO = stream_of(sse(*chat_events("hello there")))
MODELS = {
    "a": Model("a", "peer", aliases=("alias/of-a",), concurrency=8),
    "b/with:slash": Model("b/with:slash", "peer"),
}


class StandIn:
    """A scheduler that grants at once while there is room, first come, first served."""

    def __init__(self, peer: EnginePeer, server: Server) -> None:
        self._peer = peer
        lanes = {name: Lane(name, queue_max=16) for name in ("default", "batch")}
        self.catalog = Catalog(
            {"ram": Device("ram")}, {"peer": EngineRules("peer", "process")}, MODELS, lanes
        )
        self.open: dict[str, Ticket] = {}
        self.waiting: deque[Ticket] = deque()
        self.running: set[str] = set()
        self.slots = 8
        self.attempt = 1
        self.events: list[Event] = []
        self.wishes: list[Wish] = []
        self.ready = True
        self.journal: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self._ids = itertools.count(1)

    def submit(self, wish: Wish) -> Ticket:
        self.wishes.append(wish)
        model = self.catalog.find_model(wish.model)
        if model is None:
            raise ModelNotFound(f"no model {wish.model!r}; GET /v1/models lists those there are")
        lane = wish.lane or "default"
        if len(self.waiting) >= self.catalog.lanes[lane].queue_max:
            raise LaneFull(retry_after_ms=90_000)
        request = Request(f"r{next(self._ids)}", model.name, lane, WorkClass.INTERACTIVE, 0, 1, 1)
        ticket = Ticket(request, self._feed)
        self.open[ticket.id] = ticket
        self.waiting.append(ticket)
        self._turn()
        return ticket

    def _feed(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Ended | Left):
            ticket = self.open.pop(event.id)
            self.running.discard(event.id)
            if ticket in self.waiting:
                self.waiting.remove(ticket)
        elif isinstance(event, Returned):
            self.running.discard(event.id)
            self.waiting.appendleft(self.open[event.id])
        self._turn()

    def _turn(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            ticket = self.waiting.popleft()
            self.running.add(ticket.id)
            ticket.start(Start(ticket.request.model, self._peer.endpoint, self.attempt, 3, 2))

    def resume(self, slots: int) -> None:
        self.slots = slots
        self._turn()

    def status(self) -> dict[str, object]:
        return {"devices": {}, "models": {name: {"state": "ready"} for name in MODELS}, "lanes": {}}

    def requests(self) -> list[dict[str, object]]:
        return [{"id": id} for id in self.open]

    def request(self, id: str, /) -> dict[str, object] | None:
        return {"id": id} if id in self.open else None

    def cancel(self, id: str, /) -> bool:
        return self.open.get(id) is not None

    def explain(self, model: str, /) -> dict[str, object]:
        return {"model": model}

    async def load(self, model: str, /) -> str:
        return f"{model} is warm"

    async def evict(self, model: str, /, *, force: bool = False) -> str:
        return f"{model} left"

    def is_ready(self) -> bool:
        return self.ready

    async def subscribe(self) -> AsyncIterator[dict[str, object]]:
        while True:
            yield await self.journal.get()


class House:
    """What a test holds in its hands."""

    def __init__(self, serving: Serving, gateway: Gateway, driver: StandIn, peer: EnginePeer) -> None:
        self.serving = serving
        self.gateway = gateway
        self.driver = driver
        self.peer = peer
        self.log: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return self.serving.url

    @property
    def connections(self) -> int:
        """How many clients' connections are open at the server."""
        return self.serving.connections

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.serving.port, limit=2**20)
        self.writers.append(writer)
        return reader, writer

    async def until_idle(self) -> None:
        """Waits until no grant is out and the engine works on nothing."""
        await self.peer.until(lambda peer: peer.working == 0)
        await eventually(lambda: not self.driver.open)

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


async def eventually(happened: Callable[[], object]) -> None:
    """Waits for a condition, with a deadline."""
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110  the condition is somebody else's
            await asyncio.sleep(0.005)


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
async def house(
    talk: Talk = HELLO, *, server: Server | None = None, deadlines: Deadlines | None = None
) -> AsyncIterator[House]:
    """Opens a house, and closes it without a trace."""
    server = server or Server()
    async with peer_listening(talk) as peer:
        driver = StandIn(peer, server)
        upstream = Upstream(deadlines or Deadlines(first_byte_ms=20_000, silence_ms=20_000))
        log: list[str] = []
        app = make_app(driver, server, upstream=upstream, access_log=log.append)
        serving = await serve(app, "127.0.0.1", 0)
        opened = House(serving, app[GATEWAY], driver, peer)
        opened.log = log
        try:
            yield opened
        finally:
            for writer in opened.writers:
                writer.transport.abort()
            await serving.close(grace_ms=200)
            await upstream.close()
