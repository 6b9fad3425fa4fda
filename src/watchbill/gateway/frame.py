"""The frame of every request: the handler that serves its address, and what happens around that handler.

`Frame.run` is the one way in which work is open, wherever it comes from: a client, a line of a batch, or a response
that is made in the background. It counts the work, makes an answer of what goes wrong, and frees at its end what the
work held. Requests of clients are admitted by their key, and may bring an id of their own.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Protocol, TypeVar
from urllib.parse import unquote

from watchbill import names
from watchbill.errors import NameRefused, TheirsError
from watchbill.gateway.access import Access, Guard
from watchbill.gateway.access_log import AccessLog
from watchbill.gateway.answers import let_go, status_of
from watchbill.gateway.body import Bodies
from watchbill.gateway.dialects.errors import refusal
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.messages import Answer, Request, Response
from watchbill.gateway.options import CallerOptions
from watchbill.gateway.request_context import RequestContext

__all__ = ["Frame", "Handler", "Routes"]

Handler = Callable[[RequestContext], Awaitable[Answer]]
Outcome = TypeVar("Outcome", bound="HasStatus")
_log = logging.getLogger("watchbill.gateway")

_VARIABLE = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
_LANE = re.compile(r"/lane/[^/]+(?=/)")
_SLASHES = re.compile(r"/{2,}")


class Routes:
    """The handler of each address. Fixed addresses are found at once; those with variables are tried in order.

    `/v1/models/{id:.+}`: a variable may hold slashes where its pattern says so; else it ends at the next one. What
    matches none goes to `other`."""

    def __init__(self, other: Handle) -> None:
        self._fixed: dict[tuple[str, str], Handle] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handle]] = []
        self._other = other

    def add(self, method: str, pattern: str, handle: Handle) -> None:
        """Serves an address."""
        if "{" in pattern:
            self._patterns.append((method, _compile(pattern), handle))
        else:
            self._fixed[method, pattern] = handle

    def answer(self, request: Request) -> Awaitable[Answer]:
        """Answers a request by the handler of its address."""
        found = self._fixed.get((request.method, request.target))
        return (found or self._find(request))(request)

    def _find(self, request: Request) -> Handle:
        fixed = self._fixed.get((request.method, request.path))
        if fixed is not None:
            return fixed
        path = request.target.partition("?")[0]
        for method, pattern, handle in self._patterns:
            if method == request.method and (found := pattern.fullmatch(path)):
                request.match = {name: unquote(value) for name, value in found.groupdict().items()}
                return handle
        return self._other

    def methods(self, request: Request) -> set[str]:
        """The methods that the address of a request has; none for an unknown address."""
        path = request.target.partition("?")[0]
        fixed = {method for method, known in self._fixed if known in (path, request.path)}
        return fixed | {method for method, pattern, _ in self._patterns if pattern.fullmatch(path)}

    def near(self, path: str) -> str | None:
        """The served address that an unknown one stands for, where the client's base address is not quite right."""
        return next((each for each in _mended(path) if self._knows(each)), None)

    def _knows(self, path: str) -> bool:
        return any(known == path for _, known in self._fixed) or any(
            pattern.fullmatch(path) for _, pattern, _ in self._patterns
        )


def _mended(path: str) -> Iterator[str]:
    """An address without needless slashes; the same without its first part (a second /v1); and with a /v1 before it."""
    before = found[0] if (found := _LANE.match(path)) else ""
    plain = _SLASHES.sub("/", path.removeprefix(before)).rstrip("/")
    rest = plain[1:].partition("/")[2]
    for each in (plain, f"/{rest}" if rest else "", f"/v1{plain}"):
        if each:
            yield before + each


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    parts = _VARIABLE.split(pattern)
    text = re.escape(parts[0])
    for name, inner, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += f"(?P<{name}>{inner or '[^/]+'}){re.escape(after)}"
    return re.compile(text, re.DOTALL)


class HasStatus(Protocol):
    """How work ended, as the access log has it."""

    @property
    def status(self) -> int: ...


class Frame:
    """Carries requests from their arrival to their end. One per gateway."""

    def __init__(
        self,
        guard: Guard,
        bodies: Bodies,
        options: CallerOptions,
        access: AccessLog,
        refuse: Callable[[RequestContext, TheirsError], Response],
    ) -> None:
        self.guard = guard
        self._bodies, self._options, self._access, self._refuse = bodies, options, access, refuse
        self._named: dict[tuple[str, str], RequestContext] = {}  # by key and the id that the caller gave
        self.closing = asyncio.Event()
        self.open_requests = 0
        self.emptied = asyncio.Event()  # set when the last open request is over

    def wrap(self, access: Access, handler: Handler) -> Handle:
        """Wraps a handler: checks access before it, turns what it raises into answers, writes the access log."""
        loop = asyncio.get_running_loop()

        async def admitted(context: RequestContext) -> Answer:
            try:
                request = context.request
                context.cors = self.guard.admit(
                    request, access
                )  # also of a refusal: else no page could read it
                context.key = self.guard.identify(request, access)
                if "x-request-id" in request.headers:
                    self._name(context, request.headers["x-request-id"])
                return self._last(await handler(context))
            except (
                TheirsError,
                ConnectionResetError,
            ):  # the latter: the client left in the middle of its answer
                raise
            except Exception as error:  # noqa: BLE001  the server's last line: a bug becomes an answer
                response = _broken(context, error)
                let_go(error)
                return self._last(response)

        def refused(context: RequestContext, error: TheirsError) -> Answer:
            return self._last(self._refuse(context, error))

        def handle(request: Request) -> Awaitable[Answer]:
            return self.run(RequestContext(request, loop.time()), admitted, refused)

        return handle

    def _last(self, answer: Answer) -> Answer:
        """The answer, as the last one of its connection where the gateway shuts down."""
        if self.closing.is_set() and not answer.is_begun:
            answer.closes = True
        return answer

    async def run(
        self,
        context: RequestContext,
        work: Callable[[RequestContext], Awaitable[Outcome]],
        refused: Callable[[RequestContext, TheirsError], Outcome],
    ) -> Outcome:
        """Does work that is open until its end; `refused` says what an error of it becomes, or raises."""
        self.open_requests += 1
        status = 499
        try:
            outcome = await work(context)
            status = outcome.status
        except TheirsError as error:
            status = status_of(error)
            try:
                outcome = refused(context, error)
            finally:
                let_go(error)
        finally:
            self._leave(context, status)
        return outcome

    def _leave(self, context: RequestContext, status: int) -> None:
        """The request is over: nothing more is counted for it."""
        if context.held or context.gathered:
            self._bodies.release(context)
        if context.metered is not None:
            context.metered.leave()
        if context.given:
            del self._named[context.owner, context.given]  # its caller may use the id again
        self.open_requests -= 1
        if not self.open_requests:
            self.emptied.set()
        if self._access.is_on:
            self._access.note(context, status)

    # ------------------------------------------------------------------ names of requests

    def _name(self, context: RequestContext, asked: str) -> None:
        """Takes the caller's own id for its request, unless it is invalid or one of its open requests has it."""
        try:
            names.check_request_id(asked)
        except NameRefused:
            self._options.degraded += 1
            return
        if (context.owner, asked) in self._named:
            self._options.degraded += 1
            return
        self._named[context.owner, asked] = context
        context.given = asked

    def known_as(self, context: RequestContext, id: str) -> str:
        """The scheduler's id of a request: the caller may use the id that it gave for a request of its own."""
        named = self._named.get((context.owner, id))
        return id if named is None else named.id


def _broken(context: RequestContext, error: Exception) -> Response:
    _log.error("request=%s failed inside Watchbill", context.id, exc_info=error)
    bug = TheirsError(f"Watchbill failed; its log has the reason under {context.id}")
    return refusal(context, bug)
