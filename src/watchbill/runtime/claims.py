"""Claims: which operator has a device for maintenance, and until when (RES-14).

A claim is held by a process on this machine (pid and start time), or by a holder that renews it in time, or it has no
holder and lasts a number of hours. It ends when it is given back, when its process is gone, when it was not renewed
in time, or when its time is over: no claim lasts without limit. Claims live as long as the daemon does.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from watchbill.errors import RequestError, TheirsError
from watchbill.files.host import start_time
from watchbill.limits import CLAIM_LOOK_MS, CLAIM_RENEW_MS

__all__ = ["Claim", "Claims"]

Ask = Callable[[str, bool, str], Awaitable[str]]  # device, claimed, why -> the core's reply


@dataclass(slots=True)
class Claim:
    """One device that is lent to an operator."""

    device: str
    why: str
    pid: int | None
    started: int | None  # start time of the process; a pid alone proves nothing
    renewed_at: int
    ends_at: int | None  # for a claim that is not renewed
    is_empty: bool = False  # every model has left the device

    def expiry(self, now: int) -> str | None:
        """Why it is over; None while it is valid."""
        if self.pid is not None:
            gone = self.started is None or start_time(self.pid) != self.started
            return f"its holder, process {self.pid}, is gone" if gone else None
        if self.ends_at is not None:
            return "its time is over" if now >= self.ends_at else None
        late = now - self.renewed_at > CLAIM_RENEW_MS
        return f"it was not renewed for {CLAIM_RENEW_MS // 1000} s" if late else None


class Claims:
    """All claims."""

    def __init__(self, ask: Ask, now: Callable[[], int]) -> None:
        self._ask, self._now = ask, now
        self._claims: dict[str, Claim] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def take(
        self, device: str, why: str, *, pid: int | None = None, lasts_ms: int | None = None
    ) -> str:
        """Claims a device; returns when every model has left it. Raises RequestError when it is claimed already.

        A caller that leaves before that, or whose wait fails, has claimed nothing.
        """
        held = self._claims.get(device)
        if held is not None and held.expiry(self._now()) is None:
            raise RequestError(f"{device} is already in maintenance for {held.why!r}; end that first")
        started = start_time(pid) if pid is not None else None
        if pid is not None and started is None:
            raise RequestError(f"there is no process {pid} that could hold {device}")
        now = self._now()
        ends_at = None if lasts_ms is None else now + lasts_ms
        claim = self._claims[device] = Claim(device, why, pid, started, now, ends_at)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._sweep(), name="claims")
        try:
            said = await self._ask(device, True, why)
        except BaseException:
            if self._claims.get(device) is claim:
                self._leaving.add(task := asyncio.create_task(self._drop(device)))
                task.add_done_callback(self._leaving.discard)
            raise
        claim.is_empty, claim.renewed_at = True, self._now()
        return said

    async def _drop(self, device: str) -> None:
        """Ends a claim whose caller left, or was told that it failed."""
        with contextlib.suppress(TheirsError):  # there may be no such device
            await self.give_back(device, "its caller did not wait")

    def renew(self, device: str) -> None:
        """Extends a claim: its holder still lives."""
        if device not in self._claims:
            raise RequestError(f"{device} is not in maintenance")
        self._claims[device].renewed_at = self._now()

    async def give_back(self, device: str, why: str = "given back") -> str:
        """Ends a claim."""
        if self._claims.pop(device, None) is None:
            raise RequestError(f"{device} is not in maintenance")
        return await self._ask(device, False, why)

    def view(self) -> dict[str, dict[str, object]]:
        """The claims, for `status`."""
        now = self._now()
        return {
            c.device: {
                "why": c.why,
                "pid": c.pid,
                "empty": c.is_empty,
                "renewed_ms": now - c.renewed_at,
                "ends_ms": None if c.ends_at is None else max(0, c.ends_at - now),
            }
            for c in self._claims.values()
        }

    async def _sweep(self) -> None:
        while self._claims:
            await asyncio.sleep(CLAIM_LOOK_MS / 1000)
            expired = [(c, why) for c in self._claims.values() if (why := c.expiry(self._now()))]
            for claim, why in expired:
                await self.give_back(claim.device, f"{why} ({claim.why})")

    async def close(self) -> None:
        """Forgets every claim."""
        ending = [task for task in (self._task, *self._leaving) if task is not None]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
