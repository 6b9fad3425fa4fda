"""The listener: sockets, all connections of clients, and the periodic check of their deadlines."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from watchbill.errors import Overloaded
from watchbill.gateway.http.connection import ClientConnection, Handle, Refuse
from watchbill.gateway.http.messages import Answer, Door, Request
from watchbill.gateway.limits import CONNECTION_LOOK_MS, HEADER_RECEIPT_MS, KEEP_ALIVE_MS, READER_STALL_MS

__all__ = ["Listener"]

_BACKLOG = 4096
#: How long the end of a cut connection may take.
_LAST_S = 1.0


class Listener:
    """Accepts connections, and passes their requests to `handle`. Needs a running event loop."""

    header_s = HEADER_RECEIPT_MS / 1000
    stall_s = READER_STALL_MS / 1000
    idle_s = KEEP_ALIVE_MS / 1000

    def __init__(self, handle: Handle, refuse: Refuse, connections_max: Callable[[], int]) -> None:
        self._connections_max = connections_max
        self._handle = handle
        self._refuse = refuse
        self.connections: set[ClientConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._watcher: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, door: Callable[[], Door] | None = None) -> tuple[str, int]:
        """Listens on an address; port 0 picks one. Raises OSError when it is taken or not ours.

        `door` returns the defaults for requests to this address; it is called for each request.
        """
        connect = self._connect if door is None else partial(self._connect, self._at(door))
        server = await self._loop.create_server(connect, host, port, backlog=_BACKLOG)
        self._servers.append(server)
        if self._watcher is None:
            self._look()
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def _at(self, door: Callable[[], Door]) -> Handle:
        """Handles the requests of a door."""

        def handle(request: Request) -> Awaitable[Answer]:
            request.door = door()
            return self._handle(request)

        return handle

    def _connect(self, handle: Handle | None = None) -> ClientConnection:
        bound, refusal = self._connections_max(), None
        if len(self.connections) >= bound:
            refusal = Overloaded(f"{bound} connections are open, as many as server.connections_max allows")
        handle = handle or self._handle
        return ClientConnection(self._loop, handle, self._refuse, self.connections, refusal=refusal)

    def _look(self) -> None:
        now = self._loop.time()
        for connection in list(self.connections):
            connection.look(now, self)
        self._watcher = self._loop.call_later(CONNECTION_LOOK_MS / 1000, self._look)

    def stop_listening(self) -> None:
        """Accepts no new connections and receives no more of a request. Complete requests are still answered."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in self.connections:
            connection.stop_receiving()

    async def close(self, grace_s: float = 0.0) -> None:
        """Ends every connection. Unfinished answers are cut; clients may take `grace_s` to read complete ones."""
        self.stop_listening()
        ends = [end for connection in list(self.connections) for end in connection.close()]
        if ends:
            await asyncio.wait(ends, timeout=grace_s + _LAST_S)
        if self._watcher is not None:
            self._watcher.cancel()
        for connection in list(self.connections):
            connection.abort()
