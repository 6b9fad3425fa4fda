"""Puts the gateway on a socket, and takes it off again without losing an answer.

    serving = await serve(app, "127.0.0.1", 8470)
    ...
    await serving.close()

Shutdown order: the listening socket first, so that no new client comes in vain; then who waits gets 503 with
Retry-After; then who is served may finish, within a bound; then the rest is cut with an error event.
"""

from aiohttp import web

from watchbill.gateway.app import GATEWAY
from watchbill.gateway.direct import shortcut
from watchbill.gateway.punctual import PunctualServer
from watchbill.limits import (
    DRAIN_LAST_MS,
    DRAIN_MS,
    KEEP_ALIVE_MS,
    LINGER_MS,
    REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADERS_MAX,
    REQUEST_LINE_BYTES_MAX,
)

__all__ = ["Serving", "serve"]

_BACKLOG = 4096


class _Runner(web.AppRunner):
    """aiohttp's runner, with our server in place of its own."""

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return PunctualServer(
            shortcut(self.app, plain.request_handler),
            request_factory=plain.request_factory,
            # Without this a client that leaves before its first token is noticed only when we write to it.
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_MS / 1000,
            lingering_time=LINGER_MS / 1000,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=REQUEST_HEADER_BYTES_MAX,
            max_headers=REQUEST_HEADERS_MAX,
            auto_decompress=False,
        )


class Serving:
    """A gateway that listens."""

    def __init__(self, app: web.Application, runner: _Runner, server: PunctualServer) -> None:
        self.gateway = app[GATEWAY]
        self._runner = runner
        self._server = server
        address = runner.addresses[0]
        self.host = str(address[0])
        self.port = int(address[1])

    @property
    def url(self) -> str:
        """The address to show to people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._server.connections)

    async def listen_also(self, host: str, port: int) -> None:
        """Listens on a further address. Raises OSError when it is taken or not ours."""
        await web.TCPSite(self._runner, host, port, backlog=_BACKLOG).start()

    async def close(self, *, grace_ms: int = DRAIN_MS) -> None:
        """Drains and closes. Takes at most `grace_ms` and a little."""
        for site in list(self._runner.sites):
            await site.stop()
        await self.gateway.drain(grace_ms, DRAIN_LAST_MS)
        self._server.unwatch()
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int) -> Serving:
    """Listens; port 0 picks one. Raises OSError when the address is taken or not ours."""
    runner = _Runner(app, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert isinstance(server, PunctualServer)
    try:
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
    except OSError:
        await runner.cleanup()
        raise
    server.watch()
    return Serving(app, runner, server)
