"""Bodies inside: how many bytes clients have sent and Watchbill still holds, in all and per key.

A body counts from its first byte until its request is over: a request that waits or is served keeps it in memory. It
counts as it comes, not as it is announced, so a client that announces much and sends little takes nothing from others.
One whose announced body does not fit any more is refused before it is sent. Beyond the bound there is a reserve for
small bodies, and another one for operators: large uploads can keep neither from being heard. The memory of large
bodies goes back to the system soon after their end.
"""

import asyncio

from watchbill.catalog import ApiKey, Server
from watchbill.errors import LaneFull, Overloaded
from watchbill.limits import (
    BODIES_RETRY_MS,
    BODY_RESERVES,
    HEAP_RETURN_BYTES,
    HEAP_RETURN_MS,
    SMALL_BODY_BYTES_MAX,
)
from watchbill.runtime.heap import return_freed
from watchbill.units import format_bytes

__all__ = ["Bodies", "Holding"]


class Bodies:
    """What all requests hold together."""

    def __init__(self, server: Server) -> None:
        self.held = 0
        self._of_key: dict[str, int] = {}
        self._released = 0  # since memory was last returned
        self._timer: asyncio.TimerHandle | None = None
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new bounds over; what is inside stays."""
        self._max = server.bodies_max
        self._reserve = server.bodies_max // BODY_RESERVES
        self._key_max = {key.name: key.bodies_max or server.key_bodies_max for key in server.keys}

    def check(self, key: ApiKey | None, size: int, whole: int) -> None:
        """Raises LaneFull or Overloaded when so many more bytes, of a body that has `whole`, are too many."""
        if key is not None:
            bound = self._key_max.get(key.name, self._max)
            if self._of_key.get(key.name, 0) + size > bound:
                raise LaneFull(
                    f"the bodies of key {key.name} would exceed its bodies_max of {format_bytes(bound)}; "
                    "wait for the requests that are open",
                    retry_after_ms=BODIES_RETRY_MS,
                )
        if self.held + size > self._bound(key, whole):
            raise Overloaded(
                f"the bodies of all requests would exceed server.bodies_max of {format_bytes(self._max)}; "
                "try again when others are done",
                retry_after_ms=BODIES_RETRY_MS,
            )

    def _bound(self, key: ApiKey | None, whole: int) -> int:
        """What all bodies may hold together for one more of this kind to come in."""
        if key is not None and key.admin:
            return self._max + 2 * self._reserve
        return self._max + (self._reserve if whole <= SMALL_BODY_BYTES_MAX else 0)

    def take(self, key: ApiKey | None, size: int, whole: int) -> None:
        """Counts bytes that have come. Raises as `check`, and counts nothing then."""
        if key is not None or self.held + size > self._max:
            self.check(key, size, whole)
        self.held += size
        if key is not None:
            self._of_key[key.name] = self._of_key.get(key.name, 0) + size

    def release(self, key: ApiKey | None, size: int) -> None:
        """Counts bytes as gone."""
        self.held -= size
        if key is not None:
            self._of_key[key.name] -= size
        self._released += size
        if self._released >= HEAP_RETURN_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAP_RETURN_MS / 1000, self._return)

    def _return(self) -> None:
        self._timer, self._released = None, 0
        asyncio.get_running_loop().run_in_executor(None, return_freed)


class Holding:
    """The body of one request, as far as it has come."""

    __slots__ = ("_announced", "_bodies", "_key", "size")

    def __init__(self, bodies: Bodies, key: ApiKey | None) -> None:
        self._bodies, self._key, self.size = bodies, key, 0
        self._announced = 0

    def expect(self, size: int) -> None:
        """Raises when so many bytes would be too many; counts nothing."""
        self._bodies.check(self._key, size, size)
        self._announced = size

    def add(self, size: int) -> None:
        """Counts bytes that have come. Raises when they are too many."""
        self._bodies.take(self._key, size, max(self._announced, self.size + size))
        self.size += size

    def close(self) -> None:
        """The request is over."""
        size, self.size = self.size, 0
        if size:
            self._bodies.release(self._key, size)
