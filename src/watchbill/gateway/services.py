"""The house: what every door of the gateway shares.

A request's way in: the guard (Host, Origin, key), then its door, then the scheduler. Whatever goes wrong becomes
an answer here: an error of ours with its status and code, a bug with 500 and a line in the log. Owns the set of
requests inside, for a shutdown that sends away who waits and lets finish who is served. Knows no door.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime
from types import coroutine
from typing import cast

import msgspec

from watchbill import names
from watchbill.catalog import Server, WorkClass
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.errors import NameRefused, Overloaded, ShuttingDown, TheirsError, WaitExceeded
from watchbill.gateway.abilities import Abilities
from watchbill.gateway.accesslog import AccessLog
from watchbill.gateway.answers import let_go
from watchbill.gateway.auth import Access, Guard
from watchbill.gateway.body import Bodies, check_plain, parse_object
from watchbill.gateway.capturing import Capturing
from watchbill.gateway.dialects import refusal
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.request import Request
from watchbill.gateway.http.response import Answer, Response
from watchbill.gateway.lifting import lift
from watchbill.gateway.meters import Meters
from watchbill.gateway.modelfiles import ModelFiles
from watchbill.gateway.options import CallerOptions
from watchbill.gateway.relay import Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Resumption
from watchbill.gateway.surface import DriverSurface
from watchbill.gateway.tokens import BYTES_PER_TOKEN, TokenCount
from watchbill.gateway.unloading import Unloading
from watchbill.limits import (
    JSON_AT_ONCE_BYTES_MAX,
    JSON_TURN_MS,
    PROMPT_TOKENS_FORETOLD_MAX,
    UNLOAD_RECENT_MS,
)
from watchbill.runtime.ticket import Start, Submission

__all__ = ["Door", "Services"]

Door = Callable[[RequestContext], Awaitable[Answer]]
_log = logging.getLogger("watchbill.gateway")
_BACKGROUND = (
    WorkClass.BACKGROUND
)  # asked for at every request, and a look into an enum takes five times longer


#: From so many inside on, going through the stages together gains more than the waiting for each other costs.
_CROWD = 4


class Services:
    """The driver, the way to engines, the guard, and the books of who is inside."""

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
        #: When the config that is in force was taken over, by the wall clock; the daemon moves it on.
        self.config_since = time.time()
        self.caller_options = CallerOptions()
        self.meters = Meters(time.monotonic)
        self.files = ModelFiles(datetime.now(UTC))
        self.abilities = Abilities(driver, self.files)
        self.capturing = Capturing()
        self.unloading = Unloading(driver, time.monotonic)
        self._named: dict[tuple[str, str], RequestContext] = {}  # by key and the id that the caller gave
        self.bodies = Bodies(server)
        self._lifting = (
            asyncio.Lock()
        )  # one large body is read at a time: others wait a window, not one of each
        self.closing = asyncio.Event()
        self._relays: set[Relay] = set()
        self._not_continued: set[str] = set()  # models whose chat template refuses to continue an answer
        self._visitors = 0
        self._emptied = asyncio.Event()
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new keys, hosts, origins and limits; the address needs a restart."""
        self.server = server
        self.guard = Guard(server)
        self.bodies.reconfigure(server)

    # ------------------------------------------------------------------ for the doors

    def read(self, context: RequestContext) -> Awaitable[bytes | bytearray]:
        """The request's body. The bounds of its key, and of all bodies, are checked before it is received."""
        key = context.key
        if key is not None and key.is_bounded and context.stay is None:
            context.stay = self.meters.enter(key)
        return self.bodies.read(context)

    async def read_object(self, context: RequestContext) -> dict[str, object]:
        """The JSON object in a request's body; long texts of a large one are lifted out (`gateway.lifting`)."""
        body = await self.read(context)
        if len(body) <= JSON_AT_ONCE_BYTES_MAX:
            return parse_object(body)
        try:
            async with asyncio.timeout(JSON_TURN_MS / 1000), self._lifting:
                found, context.lifted = await lift(body)
        except TimeoutError:
            raise Overloaded("too many large bodies came at once; try again later") from None
        return found

    async def read_plain(self, context: RequestContext) -> dict[str, object]:
        """The JSON object in a body that is never large. Raises TooLarge for one that is."""
        body = await self.read(context)
        check_plain(body)
        return parse_object(body)

    def submission(self, context: RequestContext, body: dict[str, object]) -> Submission:
        """What the caller asks of the scheduler."""
        request, context.asked = context.request, body
        return self.caller_options.read(
            request.headers, body, self.driver.catalog, context.key, request.match.get("lane")
        )

    def relay(
        self,
        context: RequestContext,
        submission: Submission,
        send: Callable[[Start], Outgoing],
        *,
        streamed: bool,
        unknown: Callable[[], bool] | None = None,
    ) -> Relay:
        """Submits a wish. Raises what the scheduler refuses at once."""
        if self.closing.is_set():
            raise ShuttingDown
        if context.stay is not None:
            context.stay.check_waiting()
        if submission.keep_alive_ms is not None:
            submission = self._without_harm(context, submission)
        try:
            ticket = self.driver.submit(submission)
        except TheirsError:
            asked = self.driver.catalog.find_model(submission.model)
            context.model = asked.name if asked else ""  # the answer says what this model is doing
            raise
        context.took(ticket)
        if context.key is not None:
            self.unloading.note_use(ticket.model, context.key)
        relay = Relay(self.upstream, ticket, context, send, self._relays.discard, streamed, unknown)
        self._relays.add(relay)
        if context.stay is not None:
            context.stay.waits_for(ticket)
            if context.stay.is_counted:
                relay.tokens = TokenCount(context.stay.spend, self._foretold_tokens(context, ticket.model))
        if ticket.request.work_class >= _BACKGROUND:
            relay.resume = Resumption(ticket.model, self._not_continued)
        if self.driver.catalog.spools:
            relay.tap = self.capturing.begin(self.driver.catalog, context, submission)
        return relay

    def _without_harm(self, context: RequestContext, submission: Submission) -> Submission:
        """The wish without a keep_alive that would take the model from others, or too often."""
        wished = submission.keep_alive_ms
        if wished is None or wished >= UNLOAD_RECENT_MS:
            return submission
        model = self.driver.catalog.find_model(submission.model)
        if model is None or self.unloading.grants(model, context.key):
            return submission
        return msgspec.structs.replace(submission, keep_alive_ms=None)

    def _foretold_tokens(self, context: RequestContext, name: str) -> int:
        """A prompt's tokens by the size of its request, as long as its engine has told nothing."""
        model = self.driver.catalog.models.get(name)
        most = (model.context if model is not None else None) or PROMPT_TOKENS_FORETOLD_MAX
        size = context.held if context.asked is not None else 0
        return min(size // BYTES_PER_TOKEN, most)

    @coroutine
    def step_aside(self) -> Generator[None]:
        """Between two stages of its way a request lets those that came with it catch up.

        So many go through each stage at once, and its code is fetched once for all of them. The whole way is several
        times larger than what a processor keeps at hand: one after the other, each would fetch all of it anew.
        """
        if self._visitors >= _CROWD:
            yield

    # ------------------------------------------------------------------ names of requests

    def _name(self, context: RequestContext, asked: str) -> None:
        """Takes a caller's own name for its request, unless it is none or one of its open requests has it."""
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

    def known_as(self, context: RequestContext, id: str) -> str:
        """The scheduler's name of a request: of the caller's own, under the name it gave, or of any as it is."""
        named = self._named.get((context.owner, id))
        return id if named is None else named.id

    def may_cancel(self, context: RequestContext, id: str) -> bool:
        """Whether a caller may cancel this request: its own, or any with admin rights or where there are no keys."""
        if context.key is None or context.key.admin:
            return True
        return any(relay.ticket.id == id and relay.context.owner == context.owner for relay in self._relays)

    def note_broken(self, context: RequestContext, error: TheirsError) -> None:
        """An answer broke off after its headers were sent; the access log will say 200."""
        _log.warning("request=%s model=%s broke off: %s: %s", context.id, context.model, error.code, error)

    # ------------------------------------------------------------------ shutdown

    @property
    def is_busy(self) -> bool:
        """Whether anybody is inside."""
        return self._visitors > 0

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """Sends away who waits, lets finish who is served, then cuts off who is still there."""
        self.closing.set()
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
                while self.is_busy:
                    self._emptied.clear()
                    await self._emptied.wait()

    # ------------------------------------------------------------------ every request

    def enter(self, access: Access, door: Door) -> Handle:
        """Wraps a door: checks before it, turns what it raises into answers, writes the access log."""
        loop = asyncio.get_running_loop()

        async def handle(request: Request) -> Answer:
            context = RequestContext(request, loop.time())
            self._visitors += 1
            status = 499
            try:
                context.key, context.cors = self.guard.admit(request, access)
                if "x-request-id" in request.headers:
                    self._name(context, request.headers["x-request-id"])
                response = await door(context)
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
                if context.held:
                    self.bodies.release(context)
                if context.stay is not None:
                    context.stay.leave()
                if context.given:
                    del self._named[context.owner, context.given]
                self._visitors -= 1
                if not self._visitors:
                    self._emptied.set()
                if self.access.is_on:
                    self.access.note(context, status)
            if self.closing.is_set() and not response.is_begun:
                response.closes = True
            return response

        return handle

    def refuse(self, context: RequestContext, error: TheirsError) -> Response:
        """The answer to a request that went wrong."""
        beside = self._loading(context, error) if isinstance(error, WaitExceeded) else None
        return refusal(context.request.path, error, context.lines(), beside)

    def _loading(self, context: RequestContext, error: TheirsError) -> dict[str, object]:
        models = cast("dict[str, dict[str, object]]", self.driver.status().get("models", {}))
        state = models.get(context.model, {}).get("state")
        eta = None if error.retry_after_ms is None else -(-error.retry_after_ms // 1000)
        return {"loading": {"state": state, "progress": None, "eta_seconds": eta}}

    def _broken(self, context: RequestContext, error: Exception) -> Response:
        _log.error("request=%s failed inside Watchbill", context.id, exc_info=error)
        bug = TheirsError(f"Watchbill failed; its log has the reason under {context.id}")
        return refusal(context.request.path, bug, context.lines())
