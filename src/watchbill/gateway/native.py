"""Watchbill's own door: health, metrics, and what an operator asks and tells (/wb/v1).

Answers from the driver's state; never touches an engine, so that a probe resets no idle timer.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from watchbill.errors import ConfigError, LaneFull, NotFound, RequestError, UnsupportedMedia
from watchbill.gateway.answers import json_response
from watchbill.gateway.body import check_plain, parse_object
from watchbill.gateway.companions import read_companions
from watchbill.gateway.http.response import Answer, Response
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.visit import Visit
from watchbill.limits import EVENT_HEARTBEAT_MS, EVENT_STREAMS_MAX

if TYPE_CHECKING:
    from watchbill.gateway.house import House

__all__ = ["NativeDoor", "read_object"]

_JSON = "application/json"


class NativeDoor:
    """Serves /health, /ready, /metrics and /wb/v1."""

    def __init__(self, gateway: "House") -> None:
        self._gateway = gateway
        self.listeners = 0

    async def health(self, visit: Visit) -> Response:
        """GET /health: the process is alive."""
        return json_response({"status": "ok"}, visit.lines())

    async def ready(self, visit: Visit) -> Response:
        """GET /ready: the scheduler turns. The open socket alone would prove nothing."""
        if self._gateway.closing.is_set():
            return json_response({"status": "shutting down"}, visit.lines(), 503)
        if not self._gateway.driver.is_ready():
            return json_response({"status": "the scheduler does not turn"}, visit.lines(), 503)
        return json_response({"status": "ready"}, visit.lines())

    async def metrics(self, visit: Visit) -> Response:
        """GET /metrics, for Prometheus."""
        render = self._gateway.metrics
        if render is None:
            raise NotFound("metrics are not configured")
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return Response(render(), kind, lines=visit.lines())

    async def status(self, visit: Visit) -> Response:
        """GET /wb/v1/status."""
        return json_response(self._gateway.driver.status(), visit.lines())

    async def requests(self, visit: Visit) -> Response:
        """GET /wb/v1/requests: every open request."""
        return json_response({"requests": self._gateway.driver.requests()}, visit.lines())

    async def request(self, visit: Visit) -> Response:
        """GET /wb/v1/requests/{id}: position, reason and forecast of one."""
        id = self._gateway.known_as(visit, visit.request.match["id"])
        found = self._gateway.driver.request(id)
        if found is None:
            raise NotFound("no open request has this id")
        return json_response(found, visit.lines())

    async def cancel(self, visit: Visit) -> Response:
        """DELETE /wb/v1/requests/{id}: a caller's own request; any for a key with admin rights."""
        id = self._gateway.known_as(visit, visit.request.match["id"])
        if not self._gateway.may_cancel(visit, id):
            raise NotFound("none of your open requests has this id")
        if not self._gateway.driver.cancel(id):
            raise NotFound("no open request has this id")
        return json_response({"message": f"{id} is cancelled", "id": id}, visit.lines())

    async def explain(self, visit: Visit) -> Response:
        """GET /wb/v1/explain?model=&with=: what would happen now."""
        model = visit.request.query.get("model", "")
        if not model:
            raise RequestError("say which: /wb/v1/explain?model=NAME")
        name, driver = self._check_model(model), self._gateway.driver
        beside, unknown = read_companions(visit.request.query.get("with", ""), name, driver.catalog)
        if unknown:  # a request would go without them; who asks beforehand wants to know
            names = ", ".join(repr(name[:100]) for name in unknown)
            raise RequestError(f"no model and no set of the config is called {names}")
        return json_response(driver.explain(name, beside), visit.lines())

    async def load(self, visit: Visit) -> Response:
        """POST /wb/v1/models/{name}/load: returns when the model is warm."""
        await self._read(visit)
        name = self._check_model(visit.request.match["name"])
        said = await self._gateway.driver.load(name)
        return json_response({"message": said, "model": name}, visit.lines())

    async def evict(self, visit: Visit) -> Response:
        """POST /wb/v1/models/{name}/evict with {"force": bool}."""
        force = (await self._read(visit)).get("force", False)
        if not isinstance(force, bool):
            raise RequestError("force must be true or false")
        name = self._check_model(visit.request.match["name"])
        said = await self._gateway.driver.evict(name, force=force)
        return json_response({"message": said, "model": name}, visit.lines())

    async def reload(self, visit: Visit) -> Response:
        """POST /wb/v1/config/reload: applied whole, or refused with every error."""
        await self._read(visit)
        if self._gateway.reload is None:
            raise NotFound("this gateway was started without a config file")
        try:
            changes = await self._gateway.reload()
        except ConfigError as error:
            raise RequestError(f"the config was refused, the old one stays: {error}") from error
        said = "; ".join(changes) or "nothing changed"
        return json_response({"message": said, "changes": changes}, visit.lines())

    async def events(self, visit: Visit) -> Answer:
        """GET /wb/v1/events: the journal as it is written."""
        if self.listeners >= EVENT_STREAMS_MAX:
            raise LaneFull(f"there are already {EVENT_STREAMS_MAX} listeners")
        out = StreamOut(visit)
        events = self._gateway.driver.subscribe()
        self.listeners += 1
        try:
            await out.open()
            await self._tell(events, out)
        finally:
            self.listeners -= 1
        return await out.end()

    async def _tell(self, events: AsyncIterator[dict[str, object]], out: StreamOut) -> None:
        closing = asyncio.ensure_future(self._gateway.closing.wait())
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
        return self._gateway.driver.catalog.model_called(name).name

    async def _read(self, visit: Visit) -> dict[str, object]:
        return await read_object(visit, self._gateway)


async def read_object(visit: Visit, gateway: "House") -> dict[str, object]:
    """The JSON object of an operator's call; empty when it brings none."""
    body = await gateway.read(visit)
    if not body and "content-type" not in visit.request.headers:
        return {}
    if visit.request.content_type != _JSON:
        raise UnsupportedMedia
    check_plain(body)
    return parse_object(body) if body else {}


async def _next(events: AsyncIterator[dict[str, object]]) -> dict[str, object] | None:
    return await anext(events, None)
