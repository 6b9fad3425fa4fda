"""Doors: further addresses of the gateway, each with a lane and a model for requests that name none.

An agent of the fleet has a door, so that the scripts of its tasks ask its model in the lane `plans` with nothing but
an address. A door has a name. Asking for it again changes what it assumes and returns the same address, so an agent
that starts anew leaves nothing behind. Doors close with the daemon.
"""

import errno
import os
from collections.abc import Awaitable, Callable

from watchbill.errors import LaneFull, RequestError
from watchbill.gateway.http.messages import Door
from watchbill.gateway.limits import DOORS_MAX

__all__ = ["Doors"]

#: Listens on a port of the gateway's own host; the door is asked for at each request.
Listen = Callable[[int, Callable[[], Door]], Awaitable[tuple[str, int]]]


class Doors:
    """The doors that are open."""

    def __init__(self) -> None:
        self.listen: Listen | None = None  # set by the server that the gateway is on
        self._doors: dict[str, Door] = {}
        self._ports: dict[str, int] = {}

    async def open(self, name: str, port: int, door: Door) -> int:
        """Opens a door, or changes what it assumes. Returns its port. Raises RequestError when that is taken."""
        if self.listen is None:
            raise RequestError("this gateway listens nowhere")
        known = self._ports.get(name)
        if known is not None and port in (0, known):
            self._doors[name] = door
            return known
        if len(self._ports) >= DOORS_MAX:
            raise LaneFull(f"there are already {DOORS_MAX} doors; they close with the daemon")
        before = self._doors.get(name)
        self._doors[name] = door
        try:
            _, self._ports[name] = await self.listen(port, lambda: self._doors[name])
        except OSError as error:
            if before is None:
                del self._doors[name]
            else:
                self._doors[name] = before
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise
            why = os.strerror(error.errno or 0).lower()
            raise RequestError(
                f"cannot listen on port {port}: {why}; choose another, or 0 for any"
            ) from error
        return self._ports[name]
