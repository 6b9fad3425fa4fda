"""Leases over HTTP: what peers ask before they send work, and while they have some here (RES-23).

A lease belongs to the peer whose key asked for it; no other peer can renew or end it, or work under it.
"""

from watchbill.catalog import PeerRules
from watchbill.core.leases import LEASE_MS, RENEW_MS
from watchbill.errors import Forbidden, LeaseEnds, ModelNotFound, RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.native import read_object
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.quoting import quoted

__all__ = ["LeasesApi"]


class LeasesApi:
    """Serves /wb/v1/leases."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def ask(self, context: RequestContext) -> Response:
        """POST /wb/v1/leases with {"model"}: a lease for a model, if there may be one now."""
        peer, driver = _peer(context), self._services.driver
        asked = await read_object(context, self._services)
        name = asked.get("model")
        if not isinstance(name, str) or not name:
            raise RequestError("say which model")
        model = driver.catalog.find_model(name)
        if model is None or not peer.may_use(model):
            raise ModelNotFound(f"no model that {peer.name} may use is called {quoted(name)}")
        # A machine that was stopped finds all that was asked meanwhile: leases that no peer has would use up those that
        # the peer may have.
        if context.request.connection.has_left():
            raise ConnectionResetError("the peer did not wait for the answer")
        id = await driver.lease(peer.name, model.name)
        told = {
            "id": id,
            "model": model.name,
            "lasts_ms": LEASE_MS,
            "renew_ms": RENEW_MS,
            "continues": driver.continues(model.name),
        }
        return json_response(told, context.lines())

    async def renew(self, context: RequestContext) -> Response:
        """POST /wb/v1/leases/{id}/renew: the peer lives."""
        id, driver = context.request.match["id"], self._services.driver
        if self._services.closing.is_set():
            raise LeaseEnds
        driver.renew_lease(_peer(context).name, id)
        return json_response({"id": id, "lasts_ms": LEASE_MS, "renew_ms": RENEW_MS}, context.lines())

    async def end(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/leases/{id}: what still runs under it is cut."""
        id = context.request.match["id"]
        self._services.driver.end_lease(_peer(context).name, id)
        return json_response({"id": id, "message": "given back"}, context.lines())


def _peer(context: RequestContext) -> PeerRules:
    if context.key is None or context.key.peer is None:
        raise Forbidden("only another machine of [peers] may ask this")
    return context.key.peer
