"""The gateway: every address, which handler it means, and what is answered where no handler is.

A request's way in: its address is looked up (`routes`), access is checked (`services`), then its handler runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchbill.batches.batch import Dialect
from watchbill.batches.service import Batches
from watchbill.catalog import Server
from watchbill.engines.upstream import Upstream
from watchbill.errors import MethodNotAllowed, NotFound, TheirsError
from watchbill.gateway.access import Access
from watchbill.gateway.dialects.anthropic.messages import AnthropicApi
from watchbill.gateway.dialects.batches.anthropic import AnthropicResults, MessageBatchesApi
from watchbill.gateway.dialects.batches.files import FilesApi
from watchbill.gateway.dialects.batches.lines import DriverModels, LineCalls
from watchbill.gateway.dialects.batches.openai import BatchesApi, OpenAiResults
from watchbill.gateway.dialects.llama_swap import LlamaSwapApi
from watchbill.gateway.dialects.llama_swap_logs import LLAMA_SWAP_STREAMS, LlamaSwapLogs
from watchbill.gateway.dialects.lmstudio import LmStudioApi
from watchbill.gateway.dialects.ollama.api import OllamaApi
from watchbill.gateway.dialects.ollama.library import LibraryApi
from watchbill.gateway.dialects.ollama.pulling import Pulling
from watchbill.gateway.dialects.openai import OpenAiApi
from watchbill.gateway.dialects.responses.api import ResponsesApi
from watchbill.gateway.frame import Routes
from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.messages import Answer, Door, Request
from watchbill.gateway.leases import LeasesApi
from watchbill.gateway.lending import LoansApi, MaintenanceApi
from watchbill.gateway.native import DoorsApi, NativeApi
from watchbill.gateway.page.files import PageFiles
from watchbill.gateway.page.live import LiveApi
from watchbill.gateway.page.plans import PlansApi
from watchbill.gateway.page.records import RecordsApi, SpoolsApi
from watchbill.gateway.page.what_if import WhatIfApi
from watchbill.gateway.passthrough import PassthroughApi
from watchbill.gateway.process import ProcessApi
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Handler, Services
from watchbill.gateway.websocket import WebsocketApi
from watchbill.metrics import Metrics
from watchbill.quoting import quoted
from watchbill.runtime.driver import Driver
from watchbill.runtime.library import Library

__all__ = ["Gateway", "Route"]

Route = tuple[str, str, Access, Handler]

#: Before an address of /v1 or /api: the lane of callers who can only set a base address.
LANE_PREFIX = "/lane/{lane}"
#: Those of `PASSED` that are served without /v1, too, and have no address of their own there.
PASSED_BESIDE_V1 = ("/v1/audio/speech", "/v1/images/generations")
#: Addresses of engines that have them; nothing in them is ours.
PASSED = (
    "/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking", *PASSED_BESIDE_V1,
    "/infill", "/tokenize", "/detokenize", "/apply-template",
)  # fmt: skip
PASSED_FORMS = (
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations",
)  # fmt: skip
VOICES = "/v1/audio/voices"
#: Those that are only read; the model is in the query.
PASSED_READS = (VOICES, "/props", "/slots")
#: Before OpenAI's addresses that make something, in place of /v1: what Azure's clients have.
AZURE_MAKES = ("/openai/v1", "/openai/deployments/{deployment:.+}")
#: Azure's, in place of /v1: its newer clients have the one, its older ones the other.
AZURE = ("/openai/v1", "/openai")
#: Methods below /upstream.
_EVERY_METHOD = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Streams without an end; there is nothing to say about them without their body.
EVENTS, LIVE = "/wb/v1/events", "/wb/v1/live"


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
        batches: Batches | None = None,
        library: Library | None = None,
    ) -> None:
        super().__init__(
            driver, server, upstream or Upstream(), access_log=access_log, metrics=metrics, library=library
        )
        self._owns_upstream = upstream is None
        self._native = NativeApi(self)
        self._page, self._live, self._plans = PageFiles(), LiveApi(self), PlansApi(self)
        self._records, self._spools, self._what_if = RecordsApi(self), SpoolsApi(self), WhatIfApi(self)
        self._maintenance, self._loans, self._doors = MaintenanceApi(self), LoansApi(self), DoorsApi(self)
        self._leases = LeasesApi(self)
        self._openai = OpenAiApi(self, created_s=int(time.time()))
        self._process = ProcessApi(self)
        self._anthropic = AnthropicApi(self)
        self._responses = ResponsesApi(self, responses)
        self.batches = batches
        self._files, self._batches = FilesApi(self, batches), BatchesApi(self, batches)
        self._message_batches = MessageBatchesApi(self, batches)
        self._ollama = OllamaApi(self)
        self._pulling = Pulling(self)
        self._library_api = LibraryApi(self, self._pulling)
        self._passthrough = PassthroughApi(self)
        self._websockets = WebsocketApi(self)
        self._llama_swap, self._lmstudio = LlamaSwapApi(self), LmStudioApi(self)
        self._llama_swap_logs = LlamaSwapLogs(self)
        self._served = self._serve_all()
        #: Answers a request, whatever its address.
        self.handle: Handle = self._served.answer

    @property
    def listeners(self) -> int:
        """How many streams of events are open."""
        return self._native.listeners + self._live.listeners + self._llama_swap_logs.listeners

    async def start_batches(self) -> None:
        """Has the lines of batches answered, those that an earlier daemon left first."""
        if self.batches is not None:
            handlers = {
                "/v1/chat/completions": self._openai.chat,
                "/v1/completions": self._openai.completions,
                "/v1/embeddings": self._openai.embeddings,
                "/v1/responses": self._responses.create,
                "/v1/messages": self._anthropic.messages,
            }
            formats = {Dialect.OPENAI: OpenAiResults(), Dialect.ANTHROPIC: AnthropicResults()}
            await self.batches.start(LineCalls(self, handlers), DriverModels(self.driver), formats)

    async def resume_responses(self) -> None:
        """Goes on with responses that an earlier daemon was asked for in the background."""
        await self._responses.resume()

    async def drain(self, grace_ms: int, last_ms: int) -> None:
        """As the services do; unloads that clients asked for, and lines of batches, are ended first."""
        self.closing.set()
        await self._what_if.close()
        await self.unloading.close()
        if self.batches is not None:
            await self.batches.close()
        await super().drain(grace_ms, last_ms)

    async def close(self) -> None:
        """Ends what is our own; after `drain`."""
        await self._responses.close()
        await self.capturing.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        if self._owns_upstream:
            await self.upstream.close()

    def routes(self) -> list[Route]:
        """Every address that is served, and what it asks of its caller. Anything else is denied."""
        asked = self._addresses()
        # HEAD is GET without a body: health checks and proxies ask so.
        heads = [
            ("HEAD", path, access, handler)
            for method, path, access, handler in asked
            if method == "GET"
            and path not in (EVENTS, LIVE, "/unload", *LLAMA_SWAP_STREAMS)  # whose GET does something
        ]
        return asked + heads

    def _addresses(self) -> list[Route]:
        own, v1, api = self._native, self._openai, self._ollama
        lending, loans, leases = self._maintenance, self._loans, self._leases
        return [
            ("GET", "/health", Access.OPEN, own.health),
            ("GET", "/ready", Access.OPEN, own.ready),
            ("GET", "/metrics", Access.KEY, own.metrics),
            ("GET", "/wb/v1/status", Access.KEY, own.status),
            ("GET", EVENTS, Access.KEY, own.events),
            ("GET", "/wb/v1/library", Access.KEY, own.library),
            ("GET", "/wb/v1/explain", Access.KEY, own.explain),
            ("GET", "/wb/v1/requests", Access.KEY, own.requests),
            ("GET", "/wb/v1/requests/{id}", Access.KEY, own.request),
            ("DELETE", "/wb/v1/requests/{id}", Access.KEY, own.cancel),
            ("POST", "/wb/v1/models/{name:.+}/load", Access.ADMIN, own.load),
            ("POST", "/wb/v1/models/{name:.+}/evict", Access.ADMIN, own.evict),
            ("POST", "/wb/v1/models/{name:.+}/pin", Access.ADMIN, own.pin),
            ("POST", "/wb/v1/config/reload", Access.ADMIN, own.reload),
            ("POST", "/wb/v1/maintenance", Access.ADMIN, lending.start),
            ("POST", "/wb/v1/maintenance/renew", Access.ADMIN, lending.renew),
            ("DELETE", "/wb/v1/maintenance", Access.ADMIN, lending.end),
            ("POST", "/wb/v1/leases", Access.PEER, leases.ask),
            ("POST", "/wb/v1/leases/{id}/renew", Access.PEER, leases.renew),
            ("DELETE", "/wb/v1/leases/{id}", Access.PEER, leases.end),
            ("GET", "/wb/v1/loans", Access.KEY, loans.listed),
            ("POST", "/wb/v1/loans", Access.ADMIN, loans.ask),
            ("POST", "/wb/v1/loans/{id}/renew", Access.ADMIN, loans.renew),
            ("DELETE", "/wb/v1/loans/{id}", Access.ADMIN, loans.end),
            ("POST", "/wb/v1/doors", Access.ADMIN, self._doors.open),
            ("POST", "/v1/chat/completions", Access.KEY, v1.chat),
            ("POST", "/v1/completions", Access.KEY, v1.completions),
            ("POST", "/v1/embeddings", Access.KEY, v1.embeddings),
            *(("POST", path, Access.KEY, self._passthrough.at(path)) for path in PASSED),
            *(("POST", path, Access.KEY, self._passthrough.form_at(path)) for path in PASSED_FORMS),
            *(("GET", path, Access.KEY, self._passthrough.get_at(path)) for path in PASSED_READS),
            *self._neighbours(),
            ("GET", "/v1/models", Access.KEY, v1.models),
            ("GET", "/v1/models/{id:.+}", Access.KEY, v1.model),
            ("POST", "/process", Access.KEY, self._process.process),
            ("POST", "/v1/messages", Access.KEY, self._anthropic.messages),
            ("POST", "/v1/messages/count_tokens", Access.KEY, self._anthropic.count_tokens),
            *self._kept_addresses(),
            *self._page_addresses(),
            ("GET", "/api/version", Access.KEY, api.version),
            ("GET", "/api/tags", Access.KEY, api.tags),
            ("GET", "/api/ps", Access.KEY, api.ps),
            ("POST", "/api/show", Access.KEY, api.show),
            ("POST", "/api/generate", Access.KEY, api.generate),
            ("POST", "/api/chat", Access.KEY, api.chat),
            ("POST", "/api/embed", Access.KEY, api.embed),
            ("POST", "/api/embeddings", Access.KEY, api.embeddings),
            ("GET", "/api/status", Access.KEY, api.status),
            *self._library_addresses(),
            *self._bare_addresses(),
        ]

    def _bare_addresses(self) -> list[Route]:
        """OpenAI's and Anthropic's addresses for clients whose base address lacks /v1; `_neighbours` has chat's."""
        passed = self._passthrough
        below_v1 = [
            ("GET", "/v1/models", Access.KEY, self._openai.models),
            ("GET", "/v1/models/{id:.+}", Access.KEY, self._openai.model),
            *self._kept_addresses(),
            *(("POST", path, Access.KEY, passed.at(path)) for path in PASSED_BESIDE_V1),
            *(("POST", path, Access.KEY, passed.form_at(path)) for path in PASSED_FORMS),
            ("GET", VOICES, Access.KEY, passed.get_at(VOICES)),
            ("POST", "/v1/messages", Access.KEY, self._anthropic.messages),
            ("POST", "/v1/messages/count_tokens", Access.KEY, self._anthropic.count_tokens),
        ]
        return [
            (method, path.removeprefix("/v1"), access, handler) for method, path, access, handler in below_v1
        ]

    def _neighbours(self) -> list[Route]:
        """Addresses of other programs that clients know: llama-swap, LM Studio, Azure, OpenAI's chat without /v1."""
        v1, swap, studio = self._openai, self._llama_swap, self._lmstudio
        own = {"/chat/completions": v1.chat, "/completions": v1.completions, "/embeddings": v1.embeddings}
        passed = {path: self._passthrough.at(path) for path in PASSED_BESIDE_V1}
        passed |= {path: self._passthrough.form_at(path) for path in PASSED_FORMS}
        made = own | {path.removeprefix("/v1"): handler for path, handler in passed.items()}
        return [
            *(("POST", path, Access.KEY, handler) for path, handler in own.items()),
            *(
                ("POST", prefix + path, Access.KEY, deployed(handler))
                for prefix in AZURE_MAKES
                for path, handler in made.items()
            ),
            ("POST", "/api/v0/embeddings", Access.KEY, v1.embeddings),
            *(
                ("POST", f"/api/v0{path}", Access.KEY, studio.with_figures(own[path]))
                for path in ("/chat/completions", "/completions")
            ),
            ("GET", "/v1/realtime", Access.KEY, self._websockets.realtime),
            *(
                (method, prefix + path.removeprefix("/v1"), access, handler)
                for prefix in AZURE
                for method, path, access, handler in self._azure_addresses()
            ),
            ("GET", "/api/v0/models", Access.KEY, studio.models),
            ("GET", "/api/v0/models/{id:.+}", Access.KEY, studio.model),
            ("GET", "/running", Access.KEY, swap.running),
            ("GET", "/unload", Access.ADMIN, swap.unload),
            ("POST", "/unload", Access.ADMIN, swap.unload),
            ("POST", "/api/models/unload", Access.ADMIN, swap.unload),
            ("POST", "/api/models/unload/{name:.+}", Access.ADMIN, swap.unload_one),
            *(("GET", path, Access.OPEN, swap.ui) for path in ("/ui", "/ui/")),
            ("GET", "/logs", Access.ADMIN, self._llama_swap_logs.logs),
            *(("GET", path, Access.ADMIN, self._llama_swap_logs.stream) for path in LLAMA_SWAP_STREAMS),
            *((method, "/upstream/{tail:.+}", Access.ADMIN, swap.upstream) for method in _EVERY_METHOD),
        ]

    def _azure_addresses(self) -> list[Route]:
        """What Azure's clients ask without a deployment in the address."""
        kept = [route for route in self._kept_addresses() if not route[1].startswith("/v1/messages")]
        return [
            ("GET", "/v1/models", Access.KEY, self._openai.models),
            ("GET", "/v1/models/{id:.+}", Access.KEY, self._openai.model),
            *kept,
        ]

    def _library_addresses(self) -> list[Route]:
        """What changes the names and files of models."""
        names, pulling = self._library_api, self._pulling
        return [
            ("POST", "/api/pull", Access.ADMIN, pulling.pull),
            ("POST", "/api/push", Access.ADMIN, pulling.push),
            ("POST", "/api/copy", Access.ADMIN, names.copy),
            ("POST", "/api/create", Access.ADMIN, names.create),
            ("DELETE", "/api/delete", Access.ADMIN, names.delete),
            ("POST", "/api/blobs/{digest}", Access.ADMIN, names.put_blob),
            ("HEAD", "/api/blobs/{digest}", Access.ADMIN, names.has_blob),
        ]

    def _page_addresses(self) -> list[Route]:
        """The page, and what it shows beside the operator's calls."""
        return [
            ("GET", "/", Access.OPEN, self.front),
            ("GET", "/page/{name}", Access.OPEN, self._page.file),
            ("GET", LIVE, Access.KEY, self._live.live),
            ("GET", "/wb/v1/journal", Access.KEY, self._records.journal),
            ("GET", "/wb/v1/plans", Access.KEY, self._plans.plans),
            ("GET", "/wb/v1/simulate", Access.KEY, self._what_if.last),
            ("POST", "/wb/v1/simulate", Access.ADMIN, self._what_if.start),
            ("DELETE", "/wb/v1/simulate", Access.ADMIN, self._what_if.cancel),
            ("GET", "/wb/v1/models/{name:.+}/log", Access.ADMIN, self._records.log),
            ("GET", "/wb/v1/spools/{name}/poison", Access.ADMIN, self._spools.poison),
            ("POST", "/wb/v1/spools/{name}/requeue", Access.ADMIN, self._spools.requeue),
        ]

    async def front(self, context: RequestContext) -> Answer:
        """GET /: the page for a browser; programs look for Ollama's words."""
        is_browser = "text/html" in context.request.headers.get("accept", "")
        return await (self._page.index if is_browser else self._ollama.root)(context)

    def _kept_addresses(self) -> list[Route]:
        """Where something is kept for its caller."""
        responses, files = self._responses, self._files
        batches, message_batches = self._batches, self._message_batches
        return [
            ("POST", "/v1/responses", Access.KEY, responses.create),
            ("POST", "/v1/responses/input_tokens", Access.KEY, responses.count),
            ("POST", "/v1/responses/compact", Access.KEY, responses.compact),
            ("GET", "/v1/responses/{id}", Access.KEY, responses.retrieve),
            ("DELETE", "/v1/responses/{id}", Access.KEY, responses.delete),
            ("POST", "/v1/responses/{id}/cancel", Access.KEY, responses.cancel),
            ("GET", "/v1/responses/{id}/input_items", Access.KEY, responses.input_items),
            ("POST", "/v1/files", Access.KEY, files.upload),
            ("GET", "/v1/files", Access.KEY, files.listed),
            ("GET", "/v1/files/{id}", Access.KEY, files.retrieve),
            ("GET", "/v1/files/{id}/content", Access.KEY, files.content),
            ("DELETE", "/v1/files/{id}", Access.KEY, files.delete),
            ("POST", "/v1/batches", Access.KEY, batches.create),
            ("GET", "/v1/batches", Access.KEY, batches.listed),
            ("GET", "/v1/batches/{id}", Access.KEY, batches.retrieve),
            ("POST", "/v1/batches/{id}/cancel", Access.KEY, batches.cancel),
            ("POST", "/v1/messages/batches", Access.KEY, message_batches.create),
            ("GET", "/v1/messages/batches", Access.KEY, message_batches.listed),
            ("GET", "/v1/messages/batches/{id}", Access.KEY, message_batches.retrieve),
            ("DELETE", "/v1/messages/batches/{id}", Access.KEY, message_batches.delete),
            ("POST", "/v1/messages/batches/{id}/cancel", Access.KEY, message_batches.cancel),
            ("GET", "/v1/messages/batches/{id}/results", Access.KEY, message_batches.results),
        ]

    # ------------------------------------------------------------------ serving

    def _serve_all(self) -> Routes:
        served = Routes(self._answer_other())
        for method, path, access, handler in self.routes():
            handle = self.frame.wrap(access, handler)
            for address in (path, LANE_PREFIX + path) if path.startswith(("/v1/", "/api/")) else (path,):
                served.add(method, address, handle)
        return served

    # ------------------------------------------------------------------ what no handler serves

    async def lost(self, context: RequestContext) -> Answer:
        """An unknown address."""
        path = context.request.path
        near = self._served.near(path)
        hint = "" if near is None else f"; did you mean {quoted(near)}?"
        raise NotFound(f"nothing is served at {quoted(path)}{hint}")

    async def wrong_method(self, context: RequestContext) -> Answer:
        """A known address with a method that it does not have."""
        raise MethodNotAllowed

    def _answer_other(self) -> Handle:
        """Answers preflights, wrong methods and unknown addresses."""
        lost = self.frame.wrap(Access.KEY, self.lost)
        wrong = self.frame.wrap(Access.KEY, self.wrong_method)

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


def deployed(handler: Handler) -> Handler:
    """A handler whose address may name the model, as Azure's do. A client with a deployment names any in the body."""

    def handle(context: RequestContext) -> Awaitable[Answer]:
        request = context.request
        if name := request.match.get("deployment"):
            request.door = Door(request.door.lane, name, is_model_fixed=True)
        return handler(context)

    return handle
