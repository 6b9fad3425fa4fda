"""The door of maintenance: all memory of a device is lent to an operator or a script, and comes back (RES-14)."""

from typing import TYPE_CHECKING

from watchbill.errors import RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.response import Response
from watchbill.gateway.native import read_object
from watchbill.gateway.request_context import RequestContext
from watchbill.limits import CLAIM_HOURS_MAX, CLAIM_REASON_CHARS_MAX

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["MaintenanceDoor"]

_JSON = "application/json"
_HOUR_MS = 3_600_000


class MaintenanceDoor:
    """Serves /wb/v1/maintenance."""

    def __init__(self, gateway: "Services") -> None:
        self._gateway = gateway

    async def start(self, context: RequestContext) -> Response:
        """POST /wb/v1/maintenance with {"device", "for", "pid"?, "hours"?}: returns when the device is empty."""
        asked = await read_object(context, self._gateway)
        device, why = self._device(asked.get("device")), _reason(asked.get("for"))
        pid, lasts_ms = _pid(asked.get("pid")), _lasts(asked.get("hours"))
        if pid is not None and lasts_ms is not None:
            raise RequestError("say pid or hours: a claim lasts as long as its process, or so long, not both")
        said = await self._gateway.driver.claims.take(device, why, pid=pid, lasts_ms=lasts_ms)
        return json_response({"message": said, "device": device}, context.lines())

    async def renew(self, context: RequestContext) -> Response:
        """POST /wb/v1/maintenance/renew with {"device"}: the holder still lives."""
        asked = await read_object(context, self._gateway)
        device = self._device(asked.get("device"))
        self._gateway.driver.claims.renew(device)
        return json_response({"message": f"{device} stays yours", "device": device}, context.lines())

    async def end(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/maintenance?device=: permanent models return."""
        device = self._device(context.request.query.get("device"))
        said = await self._gateway.driver.claims.give_back(device)
        return json_response({"message": said, "device": device}, context.lines())

    def _device(self, name: object) -> str:
        known = self._gateway.driver.catalog.devices
        if not isinstance(name, str) or not name:
            raise RequestError(f"say which device; there are: {', '.join(known)}")
        if name not in known:
            raise RequestError(f"there is no device {name[:60]!r}; there are: {', '.join(known)}")
        return name


def _reason(why: object) -> str:
    if why is None:
        return "maintenance"
    if not isinstance(why, str) or not why.strip() or len(why) > CLAIM_REASON_CHARS_MAX:
        raise RequestError(f"for must be a text of 1 to {CLAIM_REASON_CHARS_MAX} characters")
    return " ".join(why.split())


def _pid(pid: object) -> int | None:
    if pid is None:
        return None
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        raise RequestError("pid must be the number of a process on this machine")
    return pid


def _lasts(hours: object) -> int | None:
    if hours is None:
        return None
    if not isinstance(hours, int | float) or isinstance(hours, bool) or not 0 < hours <= CLAIM_HOURS_MAX:
        raise RequestError(f"hours must be more than 0 and at most {CLAIM_HOURS_MAX}")
    return round(hours * _HOUR_MS)
