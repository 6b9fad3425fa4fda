"""Claims: who has a device for maintenance, and until when (RES-14).

A claim belongs to a process on this machine (pid and start time), or to whoever renews it in time. It ends when it is
given back, when its process is gone, or when nobody renewed it: a dead holder never keeps a device.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from watchbill.errors import RequestError
from watchbill.limits import CLAIM_LOOK_MS, CLAIM_RENEW_MS
from watchbill.root import start_time

__all__ = ["Claim", "Claims"]

Ask = Callable[[str, bool, str], Awaitable[str]]  # device, claimed, why -> what the core replied


@dataclass(slots=True)
class Claim:
    """One device in somebody's hands."""

    device: str
    why: str
    pid: int | None
    started: int | None  # of the process; a pid alone proves nothing
    renewed_at: int

    def has_expired(self, now: int) -> bool:
        """Whether its holder is gone."""
        if self.pid is not None:
            return self.started is None or start_time(self.pid) != self.started
        return now - self.renewed_at > CLAIM_RENEW_MS


class Claims:
    """Every claim there is."""

    def __init__(self, ask: Ask, now: Callable[[], int]) -> None:
        self._ask, self._now = ask, now
        self._claims: dict[str, Claim] = {}
        self._task: asyncio.Task[None] | None = None

    async def take(self, device: str, why: str, pid: int | None) -> str:
        """Claims a device; returns when everything has left it. Raises RequestError when somebody has it."""
        held = self._claims.get(device)
        if held is not None and not held.has_expired(self._now()):
            raise RequestError(f"{device} is already in maintenance for {held.why!r}; end that first")
        started = start_time(pid) if pid is not None else None
        if pid is not None and started is None:
            raise RequestError(f"there is no process {pid} that could hold {device}")
        self._claims[device] = Claim(device, why, pid, started, self._now())
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._sweep(), name="claims")
        return await self._ask(device, True, why)

    def renew(self, device: str) -> None:
        """Says that the holder still lives."""
        if device not in self._claims:
            raise RequestError(f"{device} is not in maintenance")
        self._claims[device].renewed_at = self._now()

    async def give_back(self, device: str, why: str = "given back") -> str:
        """Ends a claim."""
        if self._claims.pop(device, None) is None:
            raise RequestError(f"{device} is not in maintenance")
        return await self._ask(device, False, why)

    def view(self) -> dict[str, dict[str, object]]:
        """Who has what, for `status`."""
        return {
            c.device: {"why": c.why, "pid": c.pid, "renewed_ms": self._now() - c.renewed_at}
            for c in self._claims.values()
        }

    async def _sweep(self) -> None:
        while self._claims:
            await asyncio.sleep(CLAIM_LOOK_MS / 1000)
            for claim in [c for c in self._claims.values() if c.has_expired(self._now())]:
                await self.give_back(claim.device, f"its holder is gone ({claim.why})")

    async def close(self) -> None:
        """Forgets every claim."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
