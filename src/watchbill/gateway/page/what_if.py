"""What-if questions over HTTP: the last day's traffic, simulated with more or less memory or another policy.

One at a time, in a program of its own beside the daemon, with a deadline; for operators, because it costs a core for
some seconds. The last answer is kept, so that a page that is opened again shows it.
"""

import asyncio
from typing import cast

import msgspec

from watchbill.errors import Cancelled, LaneFull, NotFound, RequestError, ShuttingDown, UnitError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.native import read_object
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.processes import Keeper, Withheld
from watchbill.quoting import quoted
from watchbill.root import Root
from watchbill.runtime.limits import TRAFFIC_HOURS
from watchbill.runtime.what_if import Question, ask_what_if
from watchbill.units import parse_bytes

__all__ = ["WhatIfApi"]

POLICIES = ("rate", "turns", "fifo", "exhaustive")
#: No machine has more; a larger difference is a typing error.
_MEMORY_BYTES_MAX = 2**50


class WhatIfApi:
    """Serves /wb/v1/simulate."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running: asyncio.Task[bytes] | None = None
        self._last: dict[str, object] | None = None

    async def last(self, context: RequestContext) -> Response:
        """GET /wb/v1/simulate: whether one runs, and the last answer."""
        told = {"running": self._running is not None, "kept": self._is_kept(), "last": self._last}
        return json_response(told, context.lines())

    async def start(self, context: RequestContext) -> Response:
        """POST /wb/v1/simulate with {"memory"?: {DEVICE: "+8GB"}, "policy"?, "hours"?}: answers when it is done."""
        question = self._question(await read_object(context, self._services))
        if self._running is not None:
            raise LaneFull("a simulation is running; wait for its end, or cancel it: DELETE /wb/v1/simulate")
        if not self._is_kept():
            raise NotFound("no traffic is kept for simulations: set traffic = true in [journal] and restart")
        withheld = Withheld(self._services.server.key_variables)
        keeper = Keeper(self._services.driver.root, withheld=withheld)
        self._running = asyncio.create_task(ask_what_if(keeper, question), name="what-if")
        try:
            told = await self._running
        except asyncio.CancelledError:
            raise self._why_cancelled() from None
        finally:
            self._running = None
        self._last = cast("dict[str, object]", msgspec.json.decode(told))
        return json_response(self._last, context.lines())

    async def cancel(self, context: RequestContext) -> Response:
        """DELETE /wb/v1/simulate: ends the one that runs."""
        running = self._running
        if running is None:
            raise NotFound("no simulation is running")
        running.cancel()
        await asyncio.wait([running])
        return json_response({"message": "the simulation was cancelled"}, context.lines())

    async def close(self) -> None:
        """Ends the one that runs."""
        if (running := self._running) is not None:
            running.cancel()
            await asyncio.wait([running])

    def _is_kept(self) -> bool:
        return self._services.driver.catalog.journal.traffic

    def _why_cancelled(self) -> BaseException:
        """The caller of a cancelled simulation is told; one that left itself cancels the handler."""
        asked = asyncio.current_task()
        if asked is not None and asked.cancelling():
            if self._running is not None:
                self._running.cancel()
            return asyncio.CancelledError()
        return (
            ShuttingDown() if self._services.closing.is_set() else Cancelled("the simulation was cancelled")
        )

    def _question(self, asked: dict[str, object]) -> Question:
        driver = self._services.driver
        policy, hours = asked.get("policy"), asked.get("hours", TRAFFIC_HOURS)
        if policy is not None and policy not in POLICIES:
            raise RequestError(
                f"policy must be one of {', '.join(POLICIES)}; leave it out for the present one"
            )
        if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours <= TRAFFIC_HOURS:
            raise RequestError(f"hours must be a number above 0, at most {TRAFFIC_HOURS}")
        return Question(
            Root(driver.root).traffic,
            driver.catalog,
            driver.known_loads(),
            hours,
            self._memory(asked.get("memory", {})),
            cast("str | None", policy),
        )

    def _memory(self, asked: object) -> dict[str, int]:
        if not isinstance(asked, dict):
            raise RequestError('memory must be an object of devices and differences: {"ram": "+8GB"}')
        devices = self._services.driver.catalog.devices
        told: dict[str, int] = {}
        for name, size in cast("dict[str, object]", asked).items():
            if name not in devices:
                raise RequestError(f"there is no device {quoted(name)}; there are: {', '.join(devices)}")
            told[name] = _difference(name, size)
        return told


def _difference(device: str, asked: object) -> int:
    """Bytes more, or fewer: `+8GB`, `-4GB`."""
    if not isinstance(asked, str) or not asked.startswith(("+", "-")):
        raise RequestError(f'memory.{device} must be a difference with its sign, such as "+8GB" or "-4GB"')
    try:
        size = parse_bytes(asked[1:])
    except UnitError as error:
        raise RequestError(f"memory.{device}: {error}") from error
    if size > _MEMORY_BYTES_MAX:
        raise RequestError(f"memory.{device} is more than any machine has")
    return size if asked[0] == "+" else -size
