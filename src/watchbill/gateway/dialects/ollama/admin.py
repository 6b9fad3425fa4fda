"""What only Ollama itself can do: fetching, making, copying and deleting its models.

Forwarded as it is to the first Ollama of the config, and its answer passed on as it comes. Without one: 501. No
model is scheduled for it, so it has no lane and no turn; it needs admin rights, and its caller's leaving ends it.
"""

from typing import TYPE_CHECKING

from watchbill.engines.base import Endpoint, endpoint_of
from watchbill.engines.ollama import DEFAULT_URL
from watchbill.engines.upstream import Call, Outgoing, UpstreamFailed
from watchbill.errors import NotOffered
from watchbill.gateway.body import encode
from watchbill.gateway.http.messages import Answer, Stream
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.wire import line

if TYPE_CHECKING:
    from watchbill.gateway.services import Handler, Services

__all__ = ["OllamaAdmin"]


class OllamaAdmin:
    """Passes requests on to an Ollama server."""

    def __init__(self, gateway: "Services") -> None:
        self._gateway = gateway

    def at(self, path: str) -> "Handler":
        """The handler of one address. Ollama is asked without the lane in the caller's address."""

        async def forward(context: RequestContext) -> Answer:
            return await self._forward(context, path)

        return forward

    async def _forward(self, context: RequestContext, path: str) -> Answer:
        endpoint = self._endpoint(path)
        body = encode(await self._gateway.bodies.read_plain(context))
        call = self._gateway.upstream.call(
            Outgoing(endpoint, context.request.method, path, body), streamed=True
        )
        try:
            return await self._pass(context, call)
        finally:
            call.abort()

    async def _pass(self, context: RequestContext, call: Call) -> Answer:
        status = await call.head()
        headers = {"Content-Type": call.content_type or "application/json; charset=utf-8"}
        response = Stream(context.request, headers, status, context.lines())
        await response.open()
        try:
            while piece := await call.chunk():
                await response.write(piece)
        except UpstreamFailed as error:
            await response.write(line({"error": str(error)}))
        await response.end()
        return response

    def _endpoint(self, path: str) -> Endpoint:
        engines = self._gateway.driver.catalog.engines.values()
        rules = next((rules for rules in engines if rules.driver == "ollama"), None)
        if rules is None:
            raise NotOffered(f"{path} needs an Ollama behind Watchbill; add one as an engine to the config")
        return endpoint_of(rules.url or DEFAULT_URL)
