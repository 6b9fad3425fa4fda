"""llama-swap's own addresses: what runs, unloading all of it, and an engine's own pages below /upstream/NAME/.

A request below /upstream goes to the model's engine as it came, in its turn like every other one: its method, path,
query, body and kind are kept. It reaches whatever the engine serves, so it needs admin rights. It stays below the path
of the engine's own address: a path with `..` in it, however it is written, is refused.
"""

import re
from urllib.parse import unquote

from watchbill.core.stages import ModelStatus
from watchbill.engines.upstream import Outgoing
from watchbill.errors import NotOffered, RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.limits import ESCAPED_TIMES_MAX
from watchbill.gateway.passthrough import PassedOut, PlainCalls
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.runtime.ticket import Start

__all__ = ["LlamaSwapApi", "to_page"]

#: A model's stage in llama-swap's words; any other is not listed.
_STATES = {
    ModelStatus.PLANNED: "starting",
    ModelStatus.LOADING: "starting",
    ModelStatus.READY: "ready",
    ModelStatus.ASLEEP: "ready",
    ModelStatus.DRAINING: "stopping",
    ModelStatus.STOPPING: "stopping",
}
_PREFIX = "/upstream/"
#: A step upwards, as servers understand it: some take a backslash for a slash, or leave out what follows a semicolon.
_UPWARDS = re.compile(r"(?:^|[/\\])\.\.(?:$|[/\\;])")


class LlamaSwapApi:
    """Serves /running, /unload, /ui and /upstream."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = PlainCalls(services)

    async def running(self, context: RequestContext) -> Response:
        """GET /running: the models in memory, or on their way."""
        driver = self._services.driver
        states = {name: _STATES.get(driver.model_status(name)) for name in driver.catalog.offered}
        listed = [{"model": name, "state": state} for name, state in states.items() if state is not None]
        return json_response({"running": listed}, context.lines())

    async def unload(self, context: RequestContext) -> Response:
        """GET or POST /unload: every model that may leave, leaves."""
        services = self._services
        for name, model in services.driver.catalog.offered.items():
            if services.driver.resident(name) is not None:
                services.unloading.begin(model, context.key)
        return _ok(context)

    async def unload_one(self, context: RequestContext) -> Response:
        """POST /api/models/unload/NAME: this model leaves, if it may."""
        services = self._services
        model = services.driver.catalog.model_called(context.request.match["name"])
        if services.driver.resident(model.name) is not None:
            services.unloading.begin(model, context.key)
        return _ok(context)

    async def ui(self, context: RequestContext) -> Response:
        """GET /ui: where llama-swap has its page."""
        return to_page(context)

    async def upstream(self, context: RequestContext) -> Answer:
        """Any method at /upstream/NAME/...: the engine's own address."""
        services, request = self._services, context.request
        asked, _, query = request.target.partition("?")
        _check_below(asked)
        name, path = self._split(asked.removeprefix(_PREFIX))
        body = bytes(await services.bodies.read(context))
        kind = request.headers.get("content-type")
        target = f"{path}?{query}" if query else path
        if not target.isascii() or any(letter <= " " for letter in target):
            raise RequestError(
                "the address below /upstream must be plain ASCII, with escapes for everything else"
            )
        submission = services.caller_options.submission(context, {"model": name}, services.driver.catalog)

        def send(start: Start) -> Outgoing:
            headers = {"Content-Type": kind} if kind else {}
            method = "GET" if request.method == "HEAD" else request.method
            return Outgoing(start.endpoint, method, target, body, headers)

        def lacks() -> bool:
            raise NotOffered(f"the engine of {context.model} does not serve {path[:100]}")

        out = PassedOut(context, events="text/event-stream" in request.headers.get("accept", ""))
        return await self._calls.stream(context, submission, send, out, unknown=lacks)

    def _split(self, tail: str) -> tuple[str, str]:
        """The model, whose name may have slashes, and the path behind it, as it was sent."""
        parts = tail.split("/")
        catalog = self._services.driver.catalog
        for count in range(len(parts), 0, -1):
            name = unquote("/".join(parts[:count]))
            if catalog.find_model(name) is not None:
                return name, "/" + "/".join(parts[count:])
        return unquote(parts[0]), "/" + "/".join(parts[1:])  # the scheduler says that it is unknown


def to_page(context: RequestContext) -> Response:
    """Sends a browser to the page."""
    return Response(b"", {"Location": "/"}, 302, lines=context.lines())


def _ok(context: RequestContext) -> Response:
    return Response(b"OK", {"Content-Type": "text/plain; charset=utf-8"}, lines=context.lines())


def _check_below(path: str) -> None:
    """Raises RequestError for a path that leads upwards, however often its escapes are written out on its way."""
    for _ in range(ESCAPED_TIMES_MAX + 1):
        if _UPWARDS.search(path):
            raise RequestError("a path below /upstream must not contain `..`")
        plain = unquote(path)
        if plain == path:
            return
        path = plain
    raise RequestError(f"a path below /upstream may be escaped at most {ESCAPED_TIMES_MAX} times over")
