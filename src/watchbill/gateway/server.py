"""Puts the gateway on a socket, and takes it off again without losing an answer.

    serving = await serve(gateway, "127.0.0.1", 8470)
    ...
    await serving.close()

Shutdown order: the listening socket first, so that no new client comes in vain; then who waits gets 503 with
Retry-After; then who is served may finish, within a bound; then the rest is cut with an error event.
"""

import asyncio
from functools import partial

from watchbill.gateway.answers import as_response
from watchbill.gateway.app import Gateway
from watchbill.gateway.http.listener import Listener
from watchbill.gateway.limits import DRAIN_LAST_MS, DRAIN_MS

__all__ = ["Serving", "serve"]


class Serving:
    """A gateway that listens."""

    def __init__(self, gateway: Gateway, listener: Listener, host: str, port: int) -> None:
        self.gateway = gateway
        self._listener = listener
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        """The address to show to people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._listener.connections)

    async def listen_also(self, host: str, port: int) -> None:
        """Listens on a further address. Raises OSError when it is taken or not ours."""
        await self._listener.listen(host, port)

    async def close(self, *, grace_ms: int = DRAIN_MS) -> None:
        """Drains and closes. Takes at most `grace_ms` and a little."""
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_ms / 1000
        self._listener.stop_listening()
        await self.gateway.drain(grace_ms, DRAIN_LAST_MS)
        await self._listener.close(max(0.0, end - loop.time()))
        await self.gateway.close()


async def serve(gateway: Gateway, host: str, port: int) -> Serving:
    """Listens; port 0 picks one. Raises OSError when the address is taken or not ours."""
    listener = Listener(gateway.handle, as_response, lambda: gateway.server.connections_max)
    gateway.doors.listen = partial(listener.listen, host)
    return Serving(gateway, listener, *await listener.listen(host, port))
