"""Services: what every handler of the gateway shares, and what happens around each of them.

The driver, the client of engines, access, the bounds of keys and bodies, and the requests that are open: a shutdown
refuses those that wait and lets those that run finish. Whatever goes wrong in a handler becomes an answer here: an
error of ours with its status and code, a bug with 500 and a line in the log.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from watchbill import names
from watchbill.catalog import Server
from watchbill.engines.upstream import Upstream
from watchbill.errors import NameRefused, TheirsError, WaitExceeded
from watchbill.gateway.abilities import Abilities
from watchbill.gateway.access import Access, Guard
from watchbill.gateway.access_log import AccessLog
from watchbill.gateway.answers import let_go
from watchbill.gateway.behind import Behind
from watchbill.gateway.body import Bodies
from watchbill.gateway.capture import Capturing
from watchbill.gateway.charging import Charging
from watchbill.gateway.dialects.errors import refusal
from watchbill.gateway.doors import Doors
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.messages import Answer, Request, Response
from watchbill.gateway.meters import Meters
from watchbill.gateway.modelfiles import ModelFiles
from watchbill.gateway.options import CallerOptions
from watchbill.gateway.relay import Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.unloading import Unloading
from watchbill.metrics import Metrics
from watchbill.runtime.driver import Driver
from watchbill.runtime.library import Library
from watchbill.steps import Shares

__all__ = ["Handler", "Services"]

Handler = Callable[[RequestContext], Awaitable[Answer]]
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
        self.caller_options = CallerOptions()
        self.doors = Doors()
        self.meters = Meters(time.monotonic)
        self.behind = Behind(upstream)
        self.files = ModelFiles(datetime.now(UTC), self.behind, lambda: driver.catalog)
        #: Names that callers made; None where there is no folder for them.
        self.library = library
        self.abilities = Abilities(driver, self.files, library)
        self.capturing = Capturing()
        self.charging = Charging(driver.tiers)
        self.unloading = Unloading(driver, time.monotonic)
        self._named: dict[tuple[str, str], RequestContext] = {}  # by key and the id that the caller gave
        self.bodies = Bodies(server, self.meters)
        self.closing = asyncio.Event()
        self.relays: set[Relay] = set()  # of the requests that were submitted and are not over
        self.not_continued: set[str] = set()  # models whose chat template refuses to continue an answer
        self.open_requests = 0
        self.emptied = asyncio.Event()  # set when the last open request is over
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new keys, hosts, origins and limits; the address needs a restart."""
        self.server = server
        self.guard = Guard(server)
        self.bodies.reconfigure(server)

    # ------------------------------------------------------------------ every request

    def enter(self, access: Access, handler: Handler) -> Handle:
        """Wraps a handler: checks access before it, turns what it raises into answers, writes the access log."""
        loop = asyncio.get_running_loop()

        async def handle(request: Request) -> Answer:
            context = RequestContext(request, loop.time())
            self.open_requests += 1
            status = 499
            try:
                context.key, context.cors = self.guard.admit(request, access)
                if "x-request-id" in request.headers:
                    self.name(context, request.headers["x-request-id"])
                response = await handler(context)
                status = response.status
            except TheirsError as error:
                response = self.refuse(context, error)
                status = response.status
                let_go(error)
            except ConnectionResetError:  # the client left in the middle of its answer
                raise
            except Exception as error:  # noqa: BLE001  the server's last line: a bug becomes an answer
                response = self._broken(context, error)
                status = 500
                let_go(error)
            finally:
                self.leave(context, status)
            if self.closing.is_set() and not response.is_begun:
                response.closes = True
            return response

        return handle

    def leave(self, context: RequestContext, status: int) -> None:
        """The request is over: nothing more is counted for it."""
        if context.held or context.gathered:
            self.bodies.release(context)
        if context.metered is not None:
            context.metered.leave()
        if context.given:
            self.forget_name(context)
        self.open_requests -= 1
        if not self.open_requests:
            self.emptied.set()
        if self.access.is_on:
            self.access.note(context, status)

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

    def _broken(self, context: RequestContext, error: Exception) -> Response:
        _log.error("request=%s failed inside Watchbill", context.id, exc_info=error)
        bug = TheirsError(f"Watchbill failed; its log has the reason under {context.id}")
        return refusal(context, bug)

    # ------------------------------------------------------------------ names of requests

    def name(self, context: RequestContext, asked: str) -> None:
        """Takes the caller's own id for its request, unless it is invalid or one of its open requests has it."""
        try:
            names.check_request_id(asked)
        except NameRefused:
            self.caller_options.degraded += 1
            return
        if (context.owner, asked) in self._named:
            self.caller_options.degraded += 1
            return
        self._named[context.owner, asked] = context
        context.given = asked

    def forget_name(self, context: RequestContext) -> None:
        """The request is over: its caller may use the id again."""
        del self._named[context.owner, context.given]

    def known_as(self, context: RequestContext, id: str) -> str:
        """The scheduler's id of a request: the caller may use the id that it gave for a request of its own."""
        named = self._named.get((context.owner, id))
        return id if named is None else named.id

    def may_cancel(self, context: RequestContext, id: str) -> bool:
        """Whether a caller may cancel this request: its own, or any with admin rights or where there are no keys."""
        if context.key is None or context.key.admin:
            return True
        return any(relay.ticket.id == id and relay.context.owner == context.owner for relay in self.relays)

    def note_broken(self, context: RequestContext, error: TheirsError) -> None:
        """An answer broke off after its headers were sent; the access log will say 200."""
        _log.warning("request=%s model=%s broke off: %s: %s", context.id, context.model, error.code, error)

    def detach(self, context: RequestContext) -> RequestContext:
        """A context for work that goes on after its request was answered: what is held and counted goes over to it.

        It is open like a request; `leave` ends it."""
        work = RequestContext(context.request, context.began)
        work.key, work.asked, work.lifted = context.key, context.asked, context.lifted
        work.held, work.metered = context.held, context.metered
        context.held, context.metered = 0, None
        self.open_requests += 1
        return work

    # ------------------------------------------------------------------ shutdown

    @property
    def is_busy(self) -> bool:
        """Whether a request is open."""
        return self.open_requests > 0

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
                    self.emptied.clear()
                    await self.emptied.wait()
