"""The gateway: every door in one place, with its addresses and what each asks of its caller."""

import time
from collections.abc import Callable

from watchbill.catalog import Server
from watchbill.engines.upstream import Upstream
from watchbill.errors import MethodNotAllowed, NotFound, TheirsError
from watchbill.gateway.anthropic import AnthropicDoor
from watchbill.gateway.auth import Access
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.request import Request
from watchbill.gateway.http.response import Answer
from watchbill.gateway.http.routes import Routes
from watchbill.gateway.maintenance import MaintenanceDoor
from watchbill.gateway.native import NativeDoor
from watchbill.gateway.ollama import OllamaDoor
from watchbill.gateway.ollama_admin import Forwarding
from watchbill.gateway.openai import OpenAiDoor
from watchbill.gateway.passthrough import PassingDoor
from watchbill.gateway.process import ProcessDoor
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Door, Services
from watchbill.gateway.surface import DriverSurface

__all__ = ["Gateway", "Route"]

Route = tuple[str, str, Access, Door]

#: Before an address of /v1 or /api: the lane of callers who can only set a base address.
LANE_PREFIX = "/lane/{lane}"
#: Addresses of engines that have them; nothing in them is ours.
PASSED = ("/v1/responses", "/v1/rerank", "/rerank", "/v1/audio/speech", "/v1/images/generations")
PASSED_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
#: What only Ollama can do with its models.
FORWARDED = ("/api/pull", "/api/create", "/api/copy", "/api/push")
#: A stream without an end; there is nothing to say about it without its body.
EVENTS = "/wb/v1/events"


class Gateway(Services):
    """The house with all its doors. Needs a running event loop; `serve` puts it on a socket."""

    def __init__(
        self,
        driver: DriverSurface,
        server: Server,
        *,
        upstream: Upstream | None = None,
        access_log: Callable[[str], None] | None = None,
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(driver, server, upstream or Upstream(), access_log=access_log, metrics=metrics)
        self._owns_upstream = upstream is None
        self._own = NativeDoor(self)
        self._lending = MaintenanceDoor(self)
        self._openai = OpenAiDoor(self, created_s=int(time.time()))
        self._process = ProcessDoor(self)
        self._anthropic = AnthropicDoor(self)
        self._ollama = OllamaDoor(self)
        self._forwarding = Forwarding(self)
        self._passing = PassingDoor(self)
        self._served = self._serve_all()
        #: Answers a request, whatever its address.
        self.handle: Handle = self._served.enter

    @property
    def listeners(self) -> int:
        """How many streams of events are open."""
        return self._own.listeners

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """As the house does; unloads that clients asked for are ended first."""
        self.closing.set()
        await self.unloading.close()
        await super().drain(grace_ms, last_ms)

    async def close(self) -> None:
        """Ends what is our own; after `drain`."""
        if self._owns_upstream:
            await self.upstream.close()

    def routes(self) -> list[Route]:
        """Every address that is served, and what it asks of its caller. Anything else is denied."""
        asked = self._addresses()
        # HEAD is GET without a body: health checks and proxies ask so.
        heads = [
            ("HEAD", path, access, door)
            for method, path, access, door in asked
            if method == "GET" and path != EVENTS
        ]
        return asked + heads

    def _addresses(self) -> list[Route]:
        own, v1, api, lending = self._own, self._openai, self._ollama, self._lending
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
            ("POST", "/v1/chat/completions", Access.KEY, v1.chat),
            ("POST", "/v1/completions", Access.KEY, v1.completions),
            ("POST", "/v1/embeddings", Access.KEY, v1.embeddings),
            *(("POST", path, Access.KEY, self._passing.at(path)) for path in PASSED),
            *(("POST", path, Access.KEY, self._passing.form_at(path)) for path in PASSED_FORMS),
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
            *(("POST", path, Access.ADMIN, self._forwarding.at(path)) for path in FORWARDED),
            ("DELETE", "/api/delete", Access.ADMIN, self._forwarding.at("/api/delete")),
        ]

    async def lost(self, context: RequestContext) -> Answer:
        """An address that nobody serves."""
        raise NotFound(f"nothing is served at {context.request.path[:100]!r}")

    async def wrong_method(self, context: RequestContext) -> Answer:
        """A known address, asked in a way it does not know."""
        raise MethodNotAllowed

    def _serve_all(self) -> Routes:
        served = Routes(self._answer_other())
        for method, path, access, door in self.routes():
            handle = self.enter(access, door)
            for address in (path, LANE_PREFIX + path) if path.startswith(("/v1/", "/api/")) else (path,):
                served.add(method, address, handle)
        return served

    def _answer_other(self) -> Handle:
        """The door of last resort: preflights, wrong methods, unknown addresses."""
        lost = self.enter(Access.KEY, self.lost)
        wrong = self.enter(Access.KEY, self.wrong_method)

        async def handle(request: Request) -> Answer:
            try:
                preflight = self.guard.answer_preflight(request)
            except TheirsError as error:
                return self.refuse(RequestContext(request, 0.0), error)
            if preflight is not None:
                return preflight
            known = self._served.methods(request)
            response = await (wrong if known else lost)(request)
            if known and response.status == 405:
                response.headers["Allow"] = ", ".join(sorted(known))
            return response

        return handle
