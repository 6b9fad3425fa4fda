"""Watchbill's own API: health, metrics, and the operator's queries and commands (/wb/v1).

Answers from the driver's state; never touches an engine, so that a probe resets no idle timer.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import cast

import msgspec

from watchbill.catalog import PLANS_LANE
from watchbill.config.limits import PORT_MAX
from watchbill.errors import ConfigError, NotFound, RequestError, ShuttingDown, UnsupportedMedia
from watchbill.gateway.answers import json_response
from watchbill.gateway.audience import Audience
from watchbill.gateway.http.messages import Answer, Door, Response
from watchbill.gateway.limits import EVENT_HEARTBEAT_MS
from watchbill.gateway.options import read_companions
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.stream import StreamOut
from watchbill.limits import PLAIN_NAME_CHARS_MAX
from watchbill.metrics import CONTENT_TYPE, render
from watchbill.quoting import quoted
from watchbill.runtime.library import listed
from watchbill.steps import Steps

__all__ = ["DoorsApi", "NativeApi", "read_object"]

_JSON = "application/json"


class NativeApi:
    """Serves /health, /ready, /metrics and /wb/v1."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._audience = Audience()

    async def health(self, context: RequestContext) -> Response:
        """GET /health: the process is alive."""
        return json_response({"status": "ok"}, context.lines())

    async def ready(self, context: RequestContext) -> Response:
        """GET /ready: the scheduler turns. The open socket alone would prove nothing."""
        if self._services.closing.is_set():
            return json_response({"status": "shutting down"}, context.lines(), 503)
        if not self._services.driver.is_ready():
            return json_response({"status": "the scheduler does not turn"}, context.lines(), 503)
        return json_response({"status": "ready"}, context.lines())

    async def metrics(self, context: RequestContext) -> Response:
        """GET /metrics, for Prometheus."""
        metrics = self._services.metrics
        if metrics is None:
            raise NotFound("metrics are not configured")
        families = await self._services.shares.do(metrics.families())
        page = await asyncio.to_thread(render, families)  # text only: it reads nothing that changes
        return Response(page, {"Content-Type": CONTENT_TYPE}, lines=context.lines())

    async def status(self, context: RequestContext) -> Response:
        """GET /wb/v1/status."""
        status = await self._services.shares.do(self._services.driver.status_steps())
        models, services = cast("dict[str, dict[str, object]]", status["models"]), self._services
        for name, row in models.items():
            model = services.driver.catalog.models.get(name)
            row["abilities"] = [] if model is None else (await services.abilities.of(model)).listed()
        return json_response(status, context.lines())

    async def library(self, context: RequestContext) -> Response:
        """GET /wb/v1/library: every model with its size and origin, and the files that are no models."""
        library, catalog = self._services.library, self._services.driver.catalog
        if library is None:
            raise NotFound("this gateway has no folder for models")
        return json_response(await asyncio.to_thread(listed, library, catalog), context.lines())

    async def requests(self, context: RequestContext) -> Response:
        """GET /wb/v1/requests: every open request."""
        rows = await self._services.shares.do(_encoded(self._services.driver.requests_steps()))
        return json_response({"requests": rows}, context.lines())

    async def request(self, context: RequestContext) -> Response:
        """GET /wb/v1/requests/{id}: position, reason and forecast of one."""
        id = self._services.frame.known_as(context, context.request.match["id"])
        found = self._services.driver.request(id)
        if found is None:
            raise NotFound("no open request has this id")
        return json_response(found, context.lines())

    async def cancel(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/requests/{id}: a caller's own request; any for a key with admin rights."""
        id = self._services.frame.known_as(context, context.request.match["id"])
        if not self._services.may_cancel(context, id):
            raise NotFound("none of your open requests has this id")
        if not self._services.driver.cancel(id):
            raise NotFound("no open request has this id")
        return json_response({"message": f"{id} is cancelled", "id": id}, context.lines())

    async def explain(self, context: RequestContext) -> Response:
        """GET /wb/v1/explain?model=&with=: what would happen now."""
        model = context.request.query.get("model", "")
        if not model:
            raise RequestError("say which: /wb/v1/explain?model=NAME")
        name, driver = self._check_model(model), self._services.driver
        beside, unknown = read_companions(context.request.query.get("with", ""), name, driver.catalog)
        if unknown:  # a request would go without them; who asks beforehand wants to know
            names = ", ".join(quoted(name) for name in unknown)
            raise RequestError(f"no model and no set of the config is called {names}")
        said = await self._services.shares.do(driver.explain(name, beside))
        return json_response(said, context.lines())

    async def load(self, context: RequestContext) -> Response:
        """POST /wb/v1/models/{name}/load: returns when the model is warm."""
        await self._read(context)
        name = self._check_model(context.request.match["name"])
        said = await self._services.driver.load(name)
        return json_response({"message": said, "model": name}, context.lines())

    async def evict(self, context: RequestContext) -> Response:
        """POST /wb/v1/models/{name}/evict with {"force": bool}."""
        force = (await self._read(context)).get("force", False)
        if not isinstance(force, bool):
            raise RequestError("force must be true or false")
        name = self._check_model(context.request.match["name"])
        said = await self._services.driver.evict(name, force=force)
        return json_response(
            {"message": said, "model": name, "waiting": self._waiting(name)}, context.lines()
        )

    async def pin(self, context: RequestContext) -> Response:
        """POST /wb/v1/models/{name}/pin with {"pinned": bool}: whether it stays in memory until the daemon ends."""
        pinned = (await self._read(context)).get("pinned", True)
        if not isinstance(pinned, bool):
            raise RequestError("pinned must be true or false")
        name = self._check_model(context.request.match["name"])
        said = self._services.driver.pin(name, pinned=pinned)
        return json_response({"message": said, "model": name}, context.lines())

    def _waiting(self, model: str) -> int:
        """How many requests wait for a model, by itself or as a companion: they bring it back."""
        return sum(
            request["state"] == "waiting"
            and model in (request["model"], *cast("list[str]", request["companions"]))
            for request in self._services.driver.requests()
        )

    async def reload(self, context: RequestContext) -> Response:
        """POST /wb/v1/config/reload: applied whole, or refused with every error."""
        await self._read(context)
        if self._services.reload is None:
            raise NotFound("this gateway was started without a config file")
        try:
            changes = await self._services.reload()
        except ConfigError as error:
            raise RequestError(f"the config was refused, the old one stays: {error}") from error
        since = datetime.fromtimestamp(self._services.config_since).astimezone()
        unchanged = f"nothing changed; this config is in force since {since:%Y-%m-%d %H:%M:%S}"
        awaiting = self._services.awaiting_restart
        told = {
            "message": "; ".join([*(changes or [unchanged]), *awaiting]),
            "changes": [*changes, *awaiting],
            "since": since.isoformat(timespec="seconds"),
        }
        return json_response(told, context.lines())

    async def events(self, context: RequestContext) -> Answer:
        """GET /wb/v1/events: the journal as it is written."""
        with self._audience.enter(context.key):
            out = StreamOut(context)
            events = self._services.driver.subscribe()
            await out.open()
            await self._tell(events, out)
        return await out.end()

    @property
    def listeners(self) -> int:
        """How many follow the journal."""
        return self._audience.size

    async def _tell(self, events: AsyncIterator[dict[str, object]], out: StreamOut) -> None:
        closing = asyncio.ensure_future(self._services.closing.wait())
        coming = asyncio.ensure_future(_next(events))
        try:
            while not closing.done():
                await asyncio.wait(
                    {closing, coming}, timeout=EVENT_HEARTBEAT_MS / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                if not coming.done():
                    await out.comment("quiet")
                    continue
                event = coming.result()
                if event is None:
                    return
                await out.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
                coming = asyncio.ensure_future(_next(events))
        finally:
            closing.cancel()
            coming.cancel()

    def _check_model(self, name: str) -> str:
        return self._services.driver.catalog.model_called(name).name

    async def _read(self, context: RequestContext) -> dict[str, object]:
        return await read_object(context, self._services)


async def read_object(context: RequestContext, services: Services) -> dict[str, object]:
    """The JSON object of an operator's call; empty when it brings none."""
    body = await services.bodies.read(context)
    if not body and "content-type" not in context.request.headers:
        return {}
    if context.request.content_type != _JSON:
        raise UnsupportedMedia
    return await services.bodies.parse_plain(body) if body else {}


async def _next(events: AsyncIterator[dict[str, object]]) -> dict[str, object] | None:
    return await anext(events, None)


class DoorsApi:
    """Serves /wb/v1/doors."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def open(self, context: RequestContext) -> Response:
        """POST /wb/v1/doors with {"name", "model"?, "lane"?, "port"?}."""
        if self._services.closing.is_set():
            raise ShuttingDown  # an agent claims nothing more that a daemon which leaves would have to serve
        asked = await read_object(context, self._services)
        name, port, lane = asked.get("name"), asked.get("port", 0), asked.get("lane", PLANS_LANE.name)
        if not isinstance(name, str) or not 0 < len(name) <= PLAIN_NAME_CHARS_MAX:
            raise RequestError("name must be the name of the door, for example that of an agent")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= PORT_MAX:
            raise RequestError(f"port must be a number from 0 to {PORT_MAX}")
        catalog, model = self._services.driver.catalog, asked.get("model")
        if not isinstance(lane, str) or catalog.offered_lane(lane) is None:
            raise RequestError(f"there is no lane {quoted(lane)}")
        if model is not None and not isinstance(model, str):
            raise RequestError("model must be a name")
        known = None if model is None else catalog.model_called(model).name
        bound = await self._services.doors.open(name, port, Door(lane, known))
        told = {
            "message": f"{name} has port {bound}",
            "name": name,
            "port": bound,
            "lane": lane,
            "model": known,
        }
        return json_response(told, context.lines())


def _encoded(listing: Steps[list[dict[str, object]]]) -> Steps[list[msgspec.Raw]]:
    """The rows of a list as JSON: there may be as many as requests wait."""
    rows: list[msgspec.Raw] = []
    for row in (yield from listing):
        rows.append(msgspec.Raw(msgspec.json.encode(row)))
        yield
    return rows
