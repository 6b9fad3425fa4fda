"""llama-swap's own addresses: what runs, unloading all of it, and an engine's own pages below /upstream/NAME/.

A request below /upstream goes to the model's engine as it came, in its turn like every other one: its method, path,
query, body and kind are kept. It reaches whatever the engine serves, so it needs admin rights.
"""

from typing import TYPE_CHECKING

from watchbill.core.model_state import ModelStatus
from watchbill.engines.upstream import Outgoing
from watchbill.errors import Forbidden, NotOffered, RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.passthrough import PassedOut, PlainCalls
from watchbill.gateway.request_context import RequestContext
from watchbill.runtime.ticket import Start

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["LlamaSwapApi"]

#: A model's stage in llama-swap's words; any other is not listed.
_STATES = {
    ModelStatus.PLANNED: "starting",
    ModelStatus.LOADING: "starting",
    ModelStatus.READY: "ready",
    ModelStatus.ASLEEP: "ready",
    ModelStatus.DRAINING: "stopping",
    ModelStatus.STOPPING: "stopping",
}
_FROM_OWN = (None, "same-origin", "none")


class LlamaSwapApi:
    """Serves /running, /unload and /upstream."""

    def __init__(self, gateway: "Services") -> None:
        self._gateway = gateway
        self._calls = PlainCalls(gateway)

    async def running(self, context: RequestContext) -> Response:
        """GET /running: the models in memory, or on their way."""
        driver = self._gateway.driver
        states = {name: _STATES.get(driver.model_status(name)) for name in driver.catalog.offered}
        listed = [{"model": name, "state": state} for name, state in states.items() if state is not None]
        return json_response({"running": listed}, context.lines())

    async def unload(self, context: RequestContext) -> Response:
        """GET or POST /unload: every model that may leave, leaves."""
        if context.request.headers.get("sec-fetch-site") not in _FROM_OWN:
            raise Forbidden(
                "a web page may not unload models"
            )  # a link or an image needs no permission of ours
        gateway = self._gateway
        for name, model in gateway.driver.catalog.offered.items():
            if gateway.driver.resident(name) is not None:
                gateway.unloading.begin(model, context.key)
        return Response(b"OK", {"Content-Type": "text/plain; charset=utf-8"}, lines=context.lines())

    async def upstream(self, context: RequestContext) -> Answer:
        """Any method at /upstream/NAME/...: the engine's own address."""
        gateway, request = self._gateway, context.request
        name, path = self._split(request.match["tail"])
        body = bytes(await gateway.bodies.read(context))
        kind = request.headers.get("content-type")
        query = request.target.partition("?")[2]
        target = f"{path}?{query}" if query else path
        if not target.isascii() or any(letter <= " " for letter in target):
            raise RequestError(
                "the address below /upstream must be plain ASCII, with escapes for everything else"
            )
        submission = gateway.caller_options.submission(context, {"model": name}, gateway.driver.catalog)

        def send(start: Start) -> Outgoing:
            headers = {"Content-Type": kind} if kind else {}
            method = "GET" if request.method == "HEAD" else request.method
            return Outgoing(start.endpoint, method, target, body, headers)

        def lacks() -> bool:
            raise NotOffered(f"the engine of {context.model} does not serve {path[:100]}")

        out = PassedOut(context, events="text/event-stream" in request.headers.get("accept", ""))
        return await self._calls.stream(context, submission, send, out, unknown=lacks)

    def _split(self, tail: str) -> tuple[str, str]:
        """The model, whose name may have slashes, and the path behind it."""
        parts = tail.split("/")
        catalog = self._gateway.driver.catalog
        for count in range(len(parts), 0, -1):
            name = "/".join(parts[:count])
            if catalog.find_model(name) is not None:
                return name, "/" + "/".join(parts[count:])
        return parts[0], "/" + "/".join(parts[1:])  # the scheduler says that it is unknown
