"""The gateway: every door in one place, and what all of them share.

A request's way in: the guard (Host, Origin, key), then its door, then the scheduler. Whatever goes wrong becomes
an answer here: an error of ours with its status and code, a bug with 500 and a line in the log. Owns the set of
requests in the house, for a shutdown that sends away who waits and lets finish who is served.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from watchbill.catalog import Server
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.errors import MethodNotAllowed, NotFound, ShuttingDown, TheirsError, WaitExceeded
from watchbill.gateway.accesslog import AccessLog
from watchbill.gateway.anthropic import AnthropicDoor
from watchbill.gateway.auth import Access, Guard
from watchbill.gateway.dialects import refusal
from watchbill.gateway.forwarding import Forwarding
from watchbill.gateway.maintenance import MaintenanceDoor
from watchbill.gateway.meters import Meters
from watchbill.gateway.native import NativeDoor
from watchbill.gateway.ollama import OllamaDoor
from watchbill.gateway.openai import OpenAiDoor
from watchbill.gateway.process import ProcessDoor
from watchbill.gateway.punctual import stop_lingering
from watchbill.gateway.relay import Relay
from watchbill.gateway.surface import DriverSurface
from watchbill.gateway.visit import Visit
from watchbill.gateway.wishes import Wishes
from watchbill.runtime.ticket import Start, Wish

__all__ = ["GATEWAY", "Gateway", "Route", "make_app"]

Door = Callable[[Visit], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Access, Door]

#: Before an address of /v1 or /api: the lane of callers who can only set a base address.
LANE_PREFIX = "/lane/{lane}"
_log = logging.getLogger("watchbill.gateway")


class Gateway:
    """What the doors share: the driver, the way to engines, the guard, the books of who is in the house."""

    def __init__(
        self,
        driver: DriverSurface,
        server: Server,
        upstream: Upstream,
        *,
        access_log: Callable[[str], None] | None = None,
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        self.driver = driver
        self.upstream = upstream
        self.metrics = metrics
        self.access = AccessLog(access_log)
        #: Reads the config again and says what changed; the daemon sets it.
        self.reload: Callable[[], Awaitable[list[str]]] | None = None
        self.wishes = Wishes()
        self.meters = Meters(time.monotonic)
        self.closing = asyncio.Event()
        self._relays: set[Relay] = set()
        self._visitors = 0
        self._emptied = asyncio.Event()
        self._ids = itertools.count(1)
        self._id_prefix = f"http-{os.urandom(4).hex()}-"
        self._own = NativeDoor(self)
        self._lending = MaintenanceDoor(self)
        self._openai = OpenAiDoor(self, created_s=int(time.time()))
        self._process = ProcessDoor(self)
        self._anthropic = AnthropicDoor(self)
        self._ollama = OllamaDoor(self)
        self._forwarding = Forwarding(self)
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new keys, hosts, origins and limits; the address needs a restart."""
        self.server = server
        self._guard = Guard(server)

    def routes(self) -> list[Route]:
        """Every address that is served, and what it asks of its caller. Anything else is denied."""
        own, v1, api, pass_on = self._own, self._openai, self._ollama, self._forwarding.forward
        lending = self._lending
        return [
            ("GET", "/health", Access.OPEN, own.health),
            ("GET", "/ready", Access.OPEN, own.ready),
            ("GET", "/metrics", Access.KEY, own.metrics),
            ("GET", "/wb/v1/status", Access.KEY, own.status),
            ("GET", "/wb/v1/events", Access.KEY, own.events),
            ("GET", "/wb/v1/explain", Access.KEY, own.explain),
            ("GET", "/wb/v1/requests", Access.KEY, own.requests),
            ("GET", "/wb/v1/requests/{id}", Access.KEY, own.request),
            ("DELETE", "/wb/v1/requests/{id}", Access.ADMIN, own.cancel),
            ("POST", "/wb/v1/models/{name:.+}/load", Access.ADMIN, own.load),
            ("POST", "/wb/v1/models/{name:.+}/evict", Access.ADMIN, own.evict),
            ("POST", "/wb/v1/config/reload", Access.ADMIN, own.reload),
            ("POST", "/wb/v1/maintenance", Access.ADMIN, lending.start),
            ("POST", "/wb/v1/maintenance/renew", Access.ADMIN, lending.renew),
            ("DELETE", "/wb/v1/maintenance", Access.ADMIN, lending.end),
            ("POST", "/v1/chat/completions", Access.KEY, v1.chat),
            ("POST", "/v1/completions", Access.KEY, v1.completions),
            ("POST", "/v1/embeddings", Access.KEY, v1.embeddings),
            ("GET", "/v1/models", Access.KEY, v1.models),
            ("GET", "/v1/models/{id:.+}", Access.KEY, v1.model),
            ("POST", "/process", Access.KEY, self._process.process),
            ("POST", "/v1/messages", Access.KEY, self._anthropic.messages),
            ("POST", "/v1/messages/count_tokens", Access.KEY, self._anthropic.count_tokens),
            ("GET", "/", Access.OPEN, api.root),
            ("HEAD", "/", Access.OPEN, api.root),
            ("GET", "/api/version", Access.KEY, api.version),
            ("HEAD", "/api/version", Access.KEY, api.version),
            ("GET", "/api/tags", Access.KEY, api.tags),
            ("HEAD", "/api/tags", Access.KEY, api.tags),
            ("GET", "/api/ps", Access.KEY, api.ps),
            ("POST", "/api/show", Access.KEY, api.show),
            ("POST", "/api/generate", Access.KEY, api.generate),
            ("POST", "/api/chat", Access.KEY, api.chat),
            ("POST", "/api/embed", Access.KEY, api.embed),
            ("POST", "/api/embeddings", Access.KEY, api.embeddings),
            ("POST", "/api/pull", Access.ADMIN, pass_on),
            ("POST", "/api/create", Access.ADMIN, pass_on),
            ("POST", "/api/copy", Access.ADMIN, pass_on),
            ("POST", "/api/push", Access.ADMIN, pass_on),
            ("DELETE", "/api/delete", Access.ADMIN, pass_on),
        ]

    # ------------------------------------------------------------------ for the doors

    def wish(self, visit: Visit, body: dict[str, object]) -> Wish:
        """What the caller asks of the scheduler."""
        request = visit.request
        lane = request.path.split("/", 3)[2] if request.path.startswith("/lane/") else None
        return self.wishes.read(request.headers, body, self.driver.catalog, visit.key, lane)

    def relay(
        self,
        visit: Visit,
        wish: Wish,
        send: Callable[[Start], Outgoing],
        *,
        streamed: bool,
        unknown: Callable[[], bool] | None = None,
    ) -> Relay:
        """Submits a wish. Raises what the scheduler refuses at once."""
        if self.closing.is_set():
            raise ShuttingDown
        self.meters.check(visit.key)
        try:
            ticket = self.driver.submit(wish)
        except TheirsError:
            asked = self.driver.catalog.find_model(wish.model)
            visit.model = asked.name if asked else ""  # the answer says what this model is doing
            raise
        visit.took(ticket)
        relay = Relay(
            self.upstream,
            ticket,
            visit,
            send=send,
            on_close=self._relays.discard,
            streamed=streamed,
            unknown=unknown,
        )
        self._relays.add(relay)
        if visit.key is not None and visit.key.is_bounded:
            relay.meter(self.meters, visit.key)
        return relay

    def note_broken(self, visit: Visit, error: TheirsError) -> None:
        """An answer broke off after its headers were sent; the access log will say 200."""
        _log.warning("request=%s model=%s broke off: %s: %s", visit.id, visit.model, error.code, error)

    # ------------------------------------------------------------------ shutdown

    @property
    def listeners(self) -> int:
        """How many streams of events are open."""
        return self._own.listeners

    @property
    def is_draining(self) -> bool:
        """Whether the house is closing."""
        return self.closing.is_set()

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """Sends away who waits, lets finish who is served, then cuts off who is still there."""
        self.closing.set()
        await self._ollama.unloading.close()
        for relay in list(self._relays):
            relay.leave()
        await self._wait_empty(grace_ms)
        for relay in list(self._relays):
            relay.cut_off()
        await self._wait_empty(last_ms)
        self.access.flush()

    async def _wait_empty(self, bound_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_ms / 1000):
                while self._visitors:
                    self._emptied.clear()
                    await self._emptied.wait()

    # ------------------------------------------------------------------ every request

    def enter(self, access: Access, door: Door) -> Handler:
        """Wraps a door: checks before it, turns what it raises into answers, writes the access log."""
        loop = asyncio.get_running_loop()

        async def handle(request: web.Request) -> web.StreamResponse:
            visit = Visit(request, f"{self._id_prefix}{next(self._ids)}", loop.time())
            self._visitors += 1
            status = 499
            try:
                visit.let_in(self._guard.admit(request, access))
                response = await door(visit)
                status = response.status
            except TheirsError as error:
                response = self._refuse(visit, error)
                status = response.status
            except Exception as error:  # noqa: BLE001  the server's last line: a bug becomes an answer
                response = self._broken(visit, error)
                status = 500
            finally:
                self._visitors -= 1
                if not self._visitors:
                    self._emptied.set()
                self.access.note(visit, status, loop.time())
            if self.closing.is_set() and not response.prepared:
                response.force_close()
            return response

        return handle

    async def lost(self, visit: Visit) -> web.StreamResponse:
        """An address that nobody serves."""
        raise NotFound(f"nothing is served at {visit.request.path[:100]!r}")

    async def wrong_method(self, visit: Visit) -> web.StreamResponse:
        """A known address, asked in a way it does not know."""
        raise MethodNotAllowed

    def answer_other(self, paths: dict[str, set[str]]) -> Handler:
        """The door of last resort: preflights, wrong methods, unknown addresses."""
        lost = self.enter(Access.KEY, self.lost)
        wrong = self.enter(Access.KEY, self.wrong_method)

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                preflight = self._guard.answer_preflight(request)
            except TheirsError as error:
                return self._refuse(Visit(request, f"{self._id_prefix}{next(self._ids)}", 0.0), error)
            if preflight is not None:
                return preflight
            known = next((methods for path, methods in paths.items() if _matches(path, request.path)), None)
            response = await (wrong if known else lost)(request)
            if known and response.status == 405:
                response.headers["Allow"] = ", ".join(sorted(known))
            return response

        return handle

    def _refuse(self, visit: Visit, error: TheirsError) -> web.Response:
        beside = self._loading(visit, error) if isinstance(error, WaitExceeded) else None
        response = refusal(visit.request.path, error, visit.headers("application/json"), beside)
        if response.status in (408, 413):
            stop_lingering(visit.request)
        return response

    def _loading(self, visit: Visit, error: TheirsError) -> dict[str, object]:
        models = cast("dict[str, dict[str, object]]", self.driver.status().get("models", {}))
        state = models.get(visit.model, {}).get("state")
        eta = None if error.retry_after_ms is None else -(-error.retry_after_ms // 1000)
        return {"loading": {"state": state, "progress": None, "eta_seconds": eta}}

    def _broken(self, visit: Visit, error: Exception) -> web.Response:
        _log.error("request=%s failed inside Watchbill", visit.id, exc_info=error)
        bug = TheirsError(f"Watchbill failed; its log has the reason under {visit.id}")
        return refusal(visit.request.path, bug, visit.headers("application/json"))


GATEWAY = web.AppKey("gateway", Gateway)


def make_app(
    driver: DriverSurface,
    server: Server,
    *,
    upstream: Upstream | None = None,
    access_log: Callable[[str], None] | None = None,
    metrics: Callable[[], bytes] | None = None,
) -> web.Application:
    """Builds the application; needs a running event loop. `serve` puts it on a socket."""
    own = upstream or Upstream()
    gateway = Gateway(driver, server, own, access_log=access_log, metrics=metrics)
    app = web.Application(client_max_size=server.body_max)
    app[GATEWAY] = gateway
    paths: dict[str, set[str]] = {}
    for method, path, access, door in gateway.routes():
        handler = gateway.enter(access, door)
        for address in (path, LANE_PREFIX + path) if path.startswith(("/v1/", "/api/")) else (path,):
            app.router.add_route(method, address, handler)
            paths.setdefault(address, set()).add(method)
    app.router.add_route("*", "/{tail:.*}", gateway.answer_other(paths))
    if upstream is None:

        async def close_upstream(_app: web.Application) -> None:
            await own.close()

        app.on_cleanup.append(close_upstream)
    return app


def _matches(pattern: str, path: str) -> bool:
    """Whether a route's address covers a path; only for saying 405 rather than 404."""
    head, brace, rest = pattern.partition("{")
    tail = rest.partition("}")[2]
    if not brace:
        return path == pattern
    return path.startswith(head) and path.endswith(tail) and len(path) > len(head) + len(tail)
