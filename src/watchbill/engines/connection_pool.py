"""The way to one engine on loopback: its kept connections, and what is known of how it ends them.

Owns the idle connections to one address, and those whose engine has not let go of a cut request yet. A connection is
kept after a whole answer, within the pool's bound, for half a minute or so; one that the engine closed meanwhile is
never given out.
"""

import asyncio
import errno
import time

from watchbill.engines.connection import Connection, UpstreamFailed
from watchbill.limits import UPSTREAM_CLOSE_NOTICE_MS, UPSTREAM_IDLE_CONNECTIONS_MAX, UPSTREAM_IDLE_MS

__all__ = ["Address", "Way"]

Address = tuple[str, int]


class Way:
    """Connections to one address."""

    __slots__ = ("_address", "_idle", "_parting", "_sweeper", "closes")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._parting: set[Connection] = set()  # each leaves within `UPSTREAM_LET_GO_MS`
        self._sweeper: asyncio.TimerHandle | None = None
        #: The engine closes the connection after a streamed answer although it announced otherwise (llama.cpp does):
        #: it is asked with `Connection: close`, which spares every second request a retry.
        self.closes = False

    def take(self) -> Connection | None:
        """A kept connection that is still open, the youngest first."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_serve():
                return connection
        return None

    def keep(self, connection: Connection) -> None:
        """Takes a connection back after an answer, for the next request."""
        if not connection.keeps_alive or connection.failure is not None:
            if connection.keeps_alive and connection.streamed:
                self.closes = True
            connection.close()
        elif len(self._idle) >= UPSTREAM_IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            connection.is_kept = True
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._sweeper is None:
                self._sweep_later()

    def part(self, connection: Connection) -> None:
        """Cuts the request on a connection; the connection goes when its engine has let go."""
        self._parting.add(connection)
        connection.part()
        if not connection.can_part:
            self._parting.discard(connection)

    async def connect(self, connect_ms: int) -> Connection:
        """Opens a connection. Raises UpstreamFailed."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._lost), *self._address
                )
        except TimeoutError:
            raise UpstreamFailed("timeout", "the engine does not accept connections") from None
        except OSError as error:
            # Every errno means the same to the caller: the engine is not there. The text says which it was.
            # The only way to fail at several addresses of this machine (localhost has two) leaves no errno.
            refused = error.errno in (errno.ECONNREFUSED, None)
            text = f"the engine cannot be reached: {error.strerror or error}"
            raise UpstreamFailed("connect", text, refused=refused) from None
        return connection

    def close(self) -> None:
        """Ends every idle connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for connection in list(self._parting):
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._parting.discard(connection)
        if connection not in self._idle:
            return
        self._idle.remove(connection)
        idle_ms = (time.monotonic() - connection.idle_since) * 1000
        if connection.streamed and idle_ms < UPSTREAM_CLOSE_NOTICE_MS:
            self.closes = True

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = time.monotonic() - UPSTREAM_IDLE_MS / 1000
        stale = [connection for connection in self._idle if connection.idle_since <= oldest]
        self._idle = [connection for connection in self._idle if connection.idle_since > oldest]
        for connection in stale:
            connection.close()
        if self._idle:
            self._sweep_later()
