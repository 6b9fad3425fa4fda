"""Services: what every handler of the gateway shares.

The driver, the client of engines, access, the bounds of keys and bodies, and the requests that are open (`frame`): a
shutdown refuses those that wait and lets those that run finish.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from watchbill.catalog import Server
from watchbill.engines.upstream import Upstream
from watchbill.errors import TheirsError, WaitExceeded
from watchbill.gateway.abilities import Abilities
from watchbill.gateway.access import Guard
from watchbill.gateway.access_log import AccessLog
from watchbill.gateway.body import Bodies
from watchbill.gateway.capture import Capturing
from watchbill.gateway.charging import Charging
from watchbill.gateway.dialects.errors import refusal
from watchbill.gateway.doors import Doors
from watchbill.gateway.frame import Frame, Handler
from watchbill.gateway.http.messages import Response
from watchbill.gateway.meters import Meters
from watchbill.gateway.modelfiles import ModelFiles
from watchbill.gateway.ollama_lists import OllamaLists
from watchbill.gateway.options import CallerOptions
from watchbill.gateway.relay import Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.tracing import Tracing
from watchbill.gateway.unloading import Unloading
from watchbill.metrics import Metrics
from watchbill.runtime.driver import Driver
from watchbill.runtime.library import Library
from watchbill.steps import Shares

__all__ = ["Handler", "Services"]

#: The state, in a refusal, of a model in memory that gets no request before it has answered the watchdog.
SUSPECT = "suspect"
_log = logging.getLogger("watchbill.gateway")


class Services:
    """One per gateway. Handlers, and the calls to engines, hold a reference to it."""

    def __init__(
        self,
        driver: Driver,
        server: Server,
        upstream: Upstream,
        *,
        access_log: Callable[[str], None] | None = None,
        metrics: Metrics | None = None,
        library: Library | None = None,
    ) -> None:
        self.driver = driver
        self.upstream = upstream
        self.metrics = metrics
        self.shares = Shares()
        self.access = AccessLog(access_log)
        #: Reads the config again and says what changed; the daemon sets it.
        self.reload: Callable[[], Awaitable[list[str]]] | None = None
        #: When the config that is in force was taken over, by the wall clock; the daemon moves it on.
        self.config_since = time.time()
        self.awaiting_restart: list[str] = []  # what a changed config asks for and only a restart can do
        self.caller_options = CallerOptions()
        self.doors = Doors()
        self.meters = Meters(time.monotonic)
        self.ollama_lists = OllamaLists(upstream)
        self.files = ModelFiles(datetime.now(UTC), self.ollama_lists, lambda: driver.catalog)
        #: Names that callers made; None where there is no folder for them.
        self.library = library
        self.abilities = Abilities(driver, self.files, library)
        self.capturing = Capturing()
        self.charging = Charging(driver.tiers)
        self.unloading = Unloading(driver, time.monotonic)
        self.bodies = Bodies(server, self.meters)
        self.guard = Guard(server)
        self.frame = Frame(self.guard, self.bodies, self.caller_options, self.access, self.refuse)
        self.closing = self.frame.closing
        self.relays: set[Relay] = set()  # of the requests that were submitted and are not over
        self.not_continued: set[str] = set()  # models whose chat template refuses to continue an answer
        #: Models, and an address that is only read and their engine said it does not have.
        self.lacking: set[tuple[str, str]] = set()
        #: Set where a collector of traces is configured.
        self.tracing: Tracing | None = None
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new keys, hosts, origins and limits; the address needs a restart."""
        self.server = server
        self.guard = self.frame.guard = Guard(server)
        self.lacking.clear()
        self.bodies.reconfigure(server)

    # ------------------------------------------------------------------ refusals

    def refuse(self, context: RequestContext, error: TheirsError) -> Response:
        """The answer to a request that is refused, in the caller's dialect."""
        beside = self._loading(context, error) if isinstance(error, WaitExceeded) else None
        return refusal(context, error, beside)

    def _loading(self, context: RequestContext, error: TheirsError) -> dict[str, object]:
        state: str | None = self.driver.model_status(context.model) if context.model else None
        if context.model and self.driver.is_doubted(context.model):
            state = SUSPECT
        eta = None if error.retry_after_ms is None else -(-error.retry_after_ms // 1000)
        return {"loading": {"state": state, "progress": None, "eta_seconds": eta}}

    # ------------------------------------------------------------------ rights and records

    def may_cancel(self, context: RequestContext, id: str) -> bool:
        """Whether a caller may cancel this request: its own, or any with admin rights or where there are no keys."""
        if context.key is None or context.key.admin:
            return True
        return any(relay.ticket.id == id and relay.context.owner == context.owner for relay in self.relays)

    def note_broken(self, context: RequestContext, error: TheirsError) -> None:
        """An answer broke off after its headers were sent; the access log will say 200."""
        _log.warning("request=%s model=%s broke off: %s: %s", context.id, context.model, error.code, error)

    # ------------------------------------------------------------------ shutdown

    @property
    def is_busy(self) -> bool:
        """Whether a request is open."""
        return self.frame.open_requests > 0

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """Refuses requests that wait, lets running ones finish, then cuts off those that are left."""
        self.closing.set()
        for relay in list(self.relays):
            relay.leave()
        await self._wait_empty(grace_ms)
        for relay in list(self.relays):
            relay.cut_off()
        await self._wait_empty(last_ms)
        self.access.flush()

    async def _wait_empty(self, bound_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_ms / 1000):
                while self.is_busy:
                    self.frame.emptied.clear()
                    await self.frame.emptied.wait()
