"""Lending over HTTP: whole devices for maintenance, and amounts of their memory as loans (RES-14).

Reads what callers ask for and passes it to the claims. A caller that hangs up before its memory is there has nothing.
"""

from watchbill.errors import RequestError, UnitError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import CLAIM_HOURS_MAX
from watchbill.gateway.native import read_object
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.quoting import quoted
from watchbill.runtime.limits import CLAIM_REASON_CHARS_MAX
from watchbill.units import parse_bytes

__all__ = ["LoansApi", "MaintenanceApi"]

_HOUR_MS = 3_600_000


class MaintenanceApi:
    """Serves /wb/v1/maintenance."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def start(self, context: RequestContext) -> Response:
        """POST /wb/v1/maintenance with {"device", "for", "pid"?, "hours"?}: returns when the device is empty."""
        asked = await read_object(context, self._services)
        device, why = _device(self._services, asked.get("device")), _reason(asked.get("for"), "maintenance")
        pid, lasts_ms = _holder(asked)
        said = await self._services.driver.claims.take(device, why, pid=pid, lasts_ms=lasts_ms)
        return json_response({"message": said, "device": device}, context.lines())

    async def renew(self, context: RequestContext) -> Response:
        """POST /wb/v1/maintenance/renew with {"device"}: the holder still lives."""
        asked = await read_object(context, self._services)
        device = _device(self._services, asked.get("device"))
        self._services.driver.claims.renew_device(device)
        return json_response({"message": f"{device} stays yours", "device": device}, context.lines())

    async def end(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/maintenance?device=: permanent models return."""
        device = _device(self._services, context.request.query.get("device"))
        said = await self._services.driver.claims.give_back_device(device)
        return json_response({"message": said, "device": device}, context.lines())


class LoansApi:
    """Serves /wb/v1/loans."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def listed(self, context: RequestContext) -> Response:
        """GET /wb/v1/loans: every loan by its id."""
        return json_response({"loans": self._services.driver.claims.loans_view()}, context.lines())

    async def ask(self, context: RequestContext) -> Response:
        """POST /wb/v1/loans with {"memory", "device"?, "for"?, "pid"?, "hours"?, "evict_idle"?}: returns when granted.

        Without `device` the memory is that of the only device.
        """
        asked = await read_object(context, self._services)
        known = self._services.driver.catalog.devices
        only = next(iter(known)) if len(known) == 1 else None
        device, size = _device(self._services, asked.get("device", only)), _size(asked.get("memory"))
        pid, lasts_ms = _holder(asked)
        evict_idle = asked.get("evict_idle", True)
        if not isinstance(evict_idle, bool):
            raise RequestError("evict_idle must be true or false")
        loan, said = await self._services.driver.claims.borrow(
            device,
            size,
            _reason(asked.get("for"), "a loan"),
            pid=pid,
            lasts_ms=lasts_ms,
            evict_idle=evict_idle,
        )
        told = {"message": said, "id": loan.id, "device": device, "memory": size}
        return json_response(told, context.lines())

    async def renew(self, context: RequestContext) -> Response:
        """POST /wb/v1/loans/{id}/renew with {"user"?}: the holder still lives, and this process uses the memory."""
        asked = await read_object(context, self._services)
        loan = self._services.driver.claims.renew(context.request.match["id"], _pid(asked.get("user")))
        told = {"message": "it stays yours", "id": loan.id, "device": loan.device, "memory": loan.size}
        return json_response(told, context.lines())

    async def end(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/loans/{id}."""
        claims, id = self._services.driver.claims, context.request.match["id"]
        loan = claims.renew(id)
        told = {"message": await claims.give_back(id), "id": id, "device": loan.device, "memory": loan.size}
        told["peak"] = loan.peak
        return json_response(told, context.lines())


def _device(services: Services, name: object) -> str:
    known = services.driver.catalog.devices
    if not isinstance(name, str) or not name:
        raise RequestError(f"say which device; there are: {', '.join(known)}")
    if name not in known:
        raise RequestError(f"there is no device {quoted(name)}; there are: {', '.join(known)}")
    return name


def _holder(asked: dict[str, object]) -> tuple[int | None, int | None]:
    """The process that holds a claim, or how long it lasts; neither: it must be renewed."""
    pid, lasts_ms = _pid(asked.get("pid")), _lasts(asked.get("hours"))
    if pid is not None and lasts_ms is not None:
        raise RequestError("say pid or hours: a claim lasts as long as its process, or so long, not both")
    return pid, lasts_ms


def _size(memory: object) -> int:
    if memory is None:
        raise RequestError('say how much: "memory": "2GiB", or a number of bytes')
    try:
        size = parse_bytes(memory) if isinstance(memory, str | int) else 0
    except UnitError as error:
        raise RequestError(f"memory: {error}") from error
    if size < 1:
        raise RequestError("memory must be a size of at least one byte, for example 2GiB")
    return size


def _reason(why: object, usual: str) -> str:
    if why is None:
        return usual
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
