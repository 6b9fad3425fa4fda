"""The gateway: every address, which handler it means, and what happens around every handler.

A request's way in: its address is looked up, access is checked (Host, Origin, key), then its handler runs. Whatever
goes wrong becomes an answer here: an error of ours with its status and code, a bug with 500 and a line in the log.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote

from watchbill.catalog import Server
from watchbill.engines.upstream import Upstream
from watchbill.errors import MethodNotAllowed, NotFound, TheirsError, WaitExceeded
from watchbill.gateway.access import Access
from watchbill.gateway.answers import let_go
from watchbill.gateway.dialects.anthropic.messages import AnthropicApi
from watchbill.gateway.dialects.errors import refusal
from watchbill.gateway.dialects.ollama.admin import OllamaAdmin
from watchbill.gateway.dialects.ollama.api import OllamaApi
from watchbill.gateway.dialects.openai import OpenAiApi
from watchbill.gateway.dialects.responses.api import ResponsesApi
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.messages import Answer, Request, Response
from watchbill.gateway.lending import LoansApi, MaintenanceApi
from watchbill.gateway.native import DoorsApi, NativeApi
from watchbill.gateway.passthrough import PassthroughApi
from watchbill.gateway.process import ProcessApi
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Handler, Services
from watchbill.metrics import Metrics
from watchbill.runtime.driver import Driver

__all__ = ["Gateway", "Route"]

_log = logging.getLogger("watchbill.gateway")
_VARIABLE = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
Route = tuple[str, str, Access, Handler]

#: Before an address of /v1 or /api: the lane of callers who can only set a base address.
LANE_PREFIX = "/lane/{lane}"
#: Addresses of engines that have them; nothing in them is ours.
PASSED = ("/v1/rerank", "/rerank", "/v1/audio/speech", "/v1/images/generations")
PASSED_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
#: What only Ollama can do with its models.
FORWARDED = ("/api/pull", "/api/create", "/api/copy", "/api/push")
#: A stream without an end; there is nothing to say about it without its body.
EVENTS = "/wb/v1/events"


class Gateway(Services):
    """All handlers with the services they share. Needs a running event loop; `serve` puts it on a socket."""

    def __init__(
        self,
        driver: Driver,
        server: Server,
        *,
        upstream: Upstream | None = None,
        access_log: Callable[[str], None] | None = None,
        metrics: Metrics | None = None,
        responses: Path | None = None,
    ) -> None:
        super().__init__(driver, server, upstream or Upstream(), access_log=access_log, metrics=metrics)
        self._owns_upstream = upstream is None
        self._native = NativeApi(self)
        self._maintenance, self._loans, self._doors = MaintenanceApi(self), LoansApi(self), DoorsApi(self)
        self._openai = OpenAiApi(self, created_s=int(time.time()))
        self._process = ProcessApi(self)
        self._anthropic = AnthropicApi(self)
        self._responses = ResponsesApi(self, responses)
        self._ollama = OllamaApi(self)
        self._ollama_admin = OllamaAdmin(self)
        self._passthrough = PassthroughApi(self)
        self._served = self._serve_all()
        #: Answers a request, whatever its address.
        self.handle: Handle = self._served.enter

    @property
    def listeners(self) -> int:
        """How many streams of events are open."""
        return self._native.listeners

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """As the services do; unloads that clients asked for are ended first."""
        self.closing.set()
        await self.unloading.close()
        await super().drain(grace_ms, last_ms)

    async def close(self) -> None:
        """Ends what is our own; after `drain`."""
        await self._responses.close()
        await self.capturing.close()
        if self._owns_upstream:
            await self.upstream.close()

    def routes(self) -> list[Route]:
        """Every address that is served, and what it asks of its caller. Anything else is denied."""
        asked = self._addresses()
        # HEAD is GET without a body: health checks and proxies ask so.
        heads = [
            ("HEAD", path, access, handler)
            for method, path, access, handler in asked
            if method == "GET" and path != EVENTS
        ]
        return asked + heads

    def _addresses(self) -> list[Route]:
        own, v1, api = self._native, self._openai, self._ollama
        lending, loans, responses = self._maintenance, self._loans, self._responses
        return [
            ("GET", "/health", Access.OPEN, own.health),
            ("GET", "/ready", Access.OPEN, own.ready),
            ("GET", "/metrics", Access.KEY, own.metrics),
            ("GET", "/wb/v1/status", Access.KEY, own.status),
            ("GET", EVENTS, Access.KEY, own.events),
            ("GET", "/wb/v1/explain", Access.KEY, own.explain),
            ("GET", "/wb/v1/requests", Access.KEY, own.requests),
            ("GET", "/wb/v1/requests/{id}", Access.KEY, own.request),
            ("DELETE", "/wb/v1/requests/{id}", Access.KEY, own.cancel),
            ("POST", "/wb/v1/models/{name:.+}/load", Access.ADMIN, own.load),
            ("POST", "/wb/v1/models/{name:.+}/evict", Access.ADMIN, own.evict),
            ("POST", "/wb/v1/config/reload", Access.ADMIN, own.reload),
            ("POST", "/wb/v1/maintenance", Access.ADMIN, lending.start),
            ("POST", "/wb/v1/maintenance/renew", Access.ADMIN, lending.renew),
            ("DELETE", "/wb/v1/maintenance", Access.ADMIN, lending.end),
            ("GET", "/wb/v1/loans", Access.KEY, loans.listed),
            ("POST", "/wb/v1/loans", Access.ADMIN, loans.ask),
            ("POST", "/wb/v1/loans/{id}/renew", Access.ADMIN, loans.renew),
            ("DELETE", "/wb/v1/loans/{id}", Access.ADMIN, loans.end),
            ("POST", "/wb/v1/doors", Access.ADMIN, self._doors.open),
            ("POST", "/v1/chat/completions", Access.KEY, v1.chat),
            ("POST", "/v1/completions", Access.KEY, v1.completions),
            ("POST", "/v1/embeddings", Access.KEY, v1.embeddings),
            ("POST", "/v1/responses", Access.KEY, responses.create),
            ("POST", "/v1/responses/input_tokens", Access.KEY, responses.count),
            ("GET", "/v1/responses/{id}", Access.KEY, responses.retrieve),
            ("DELETE", "/v1/responses/{id}", Access.KEY, responses.delete),
            ("POST", "/v1/responses/{id}/cancel", Access.KEY, responses.cancel),
            ("GET", "/v1/responses/{id}/input_items", Access.KEY, responses.input_items),
            *(("POST", path, Access.KEY, self._passthrough.at(path)) for path in PASSED),
            *(("POST", path, Access.KEY, self._passthrough.form_at(path)) for path in PASSED_FORMS),
            ("GET", "/v1/models", Access.KEY, v1.models),
            ("GET", "/v1/models/{id:.+}", Access.KEY, v1.model),
            ("POST", "/process", Access.KEY, self._process.process),
            ("POST", "/v1/messages", Access.KEY, self._anthropic.messages),
            ("POST", "/v1/messages/count_tokens", Access.KEY, self._anthropic.count_tokens),
            ("GET", "/", Access.OPEN, api.root),
            ("GET", "/api/version", Access.KEY, api.version),
            ("GET", "/api/tags", Access.KEY, api.tags),
            ("GET", "/api/ps", Access.KEY, api.ps),
            ("POST", "/api/show", Access.KEY, api.show),
            ("POST", "/api/generate", Access.KEY, api.generate),
            ("POST", "/api/chat", Access.KEY, api.chat),
            ("POST", "/api/embed", Access.KEY, api.embed),
            ("POST", "/api/embeddings", Access.KEY, api.embeddings),
            *(("POST", path, Access.ADMIN, self._ollama_admin.at(path)) for path in FORWARDED),
            ("DELETE", "/api/delete", Access.ADMIN, self._ollama_admin.at("/api/delete")),
        ]

    # ------------------------------------------------------------------ every request

    def _serve_all(self) -> "Routes":
        served = Routes(self._answer_other())
        for method, path, access, handler in self.routes():
            handle = self.enter(access, handler)
            for address in (path, LANE_PREFIX + path) if path.startswith(("/v1/", "/api/")) else (path,):
                served.add(method, address, handle)
        return served

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
                response = self._refuse(context, error)
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

    def _refuse(self, context: RequestContext, error: TheirsError) -> Response:
        beside = self._loading(context, error) if isinstance(error, WaitExceeded) else None
        return refusal(context, error, beside)

    def _loading(self, context: RequestContext, error: TheirsError) -> dict[str, object]:
        state = self.driver.model_status(context.model) if context.model else None
        eta = None if error.retry_after_ms is None else -(-error.retry_after_ms // 1000)
        return {"loading": {"state": state, "progress": None, "eta_seconds": eta}}

    def _broken(self, context: RequestContext, error: Exception) -> Response:
        _log.error("request=%s failed inside Watchbill", context.id, exc_info=error)
        bug = TheirsError(f"Watchbill failed; its log has the reason under {context.id}")
        return refusal(context, bug)

    # ------------------------------------------------------------------ what no handler serves

    async def lost(self, context: RequestContext) -> Answer:
        """An unknown address."""
        raise NotFound(f"nothing is served at {context.request.path[:100]!r}")

    async def wrong_method(self, context: RequestContext) -> Answer:
        """A known address with a method that it does not have."""
        raise MethodNotAllowed

    def _answer_other(self) -> Handle:
        """Answers preflights, wrong methods and unknown addresses."""
        lost = self.enter(Access.KEY, self.lost)
        wrong = self.enter(Access.KEY, self.wrong_method)

        async def handle(request: Request) -> Answer:
            try:
                preflight = self.guard.answer_preflight(request)
            except TheirsError as error:
                return self._refuse(RequestContext(request, 0.0), error)
            if preflight is not None:
                return preflight
            known = self._served.methods(request)
            response = await (wrong if known else lost)(request)
            if known and response.status == 405:
                response.headers["Allow"] = ", ".join(sorted(known))
            return response

        return handle


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

    def enter(self, request: Request) -> Awaitable[Answer]:
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
        """How the address of a request may be asked; nothing when nobody serves it."""
        path = request.target.partition("?")[0]
        fixed = {method for method, known in self._fixed if known in (path, request.path)}
        return fixed | {method for method, pattern, _ in self._patterns if pattern.fullmatch(path)}


def _compile(pattern: str) -> re.Pattern[str]:
    parts = _VARIABLE.split(pattern)
    text = re.escape(parts[0])
    for name, inner, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += f"(?P<{name}>{inner or '[^/]+'}){re.escape(after)}"
    return re.compile(text, re.DOTALL)
