"""Claims: which operator or task has a device, or an amount of its memory, and until when (RES-14).

A claim without a size is **maintenance**: all memory of a device. One with a size is a **loan**. Either is held by a
process on this machine (pid and start time), or by a holder that renews it in time, or it has no holder and lasts a
number of hours. It ends when it is given back, when its process is gone, when it was not renewed in time, or when its
time is over: no claim lasts without limit. Claims live as long as the daemon does, and an id of an earlier daemon is
unknown to the next one.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from watchbill.catalog import RAM
from watchbill.errors import LaneFull, NotFound, RequestError, TheirsError
from watchbill.files.host import start_time
from watchbill.probes import Cards
from watchbill.probes.trees import pids_of_tree, pss_of_pids
from watchbill.runtime.limits import CLAIM_LOOK_MS, CLAIM_RENEW_MS, LOANS_MAX

__all__ = ["Claim", "Claims", "Core"]


@dataclass(slots=True)
class Claim:
    """A device, or an amount of its memory, that is lent."""

    id: str
    device: str
    why: str
    pid: int | None
    started: int | None  # start time of the process; a pid alone proves nothing
    renewed_at: int
    ends_at: int | None  # for a claim that is not renewed
    size: int | None = None  # of a loan, in bytes; None: the whole device
    evict_idle: bool = True  # of a loan: models that have been idle for long may leave for it
    is_granted: bool = False  # the device is empty, or the memory is there
    user: int | None = None  # of a loan: the process that uses it, where its holder has several
    used: int = 0  # of a loan: the bytes that its user, or else its holder, was seen to use
    peak: int = 0  # the most of these

    def expiry(self, now: int) -> str | None:
        """Why it is over; None while it is valid."""
        if self.pid is not None:
            gone = self.started is None or start_time(self.pid) != self.started
            return f"its holder, process {self.pid}, is gone" if gone else None
        if self.ends_at is not None:
            return "its time is over" if now >= self.ends_at else None
        late = now - self.renewed_at > CLAIM_RENEW_MS
        return f"it was not renewed for {CLAIM_RENEW_MS // 1000} s" if late else None


class Core(Protocol):
    """What claims ask of the scheduler. Both return the core's words, or raise what it refused with."""

    def claim(self, claim: Claim, /) -> Awaitable[str]:
        """Takes the memory; returns when it is there."""
        ...

    def release(self, claim: Claim, why: str, /) -> Awaitable[str]:
        """Gives it back."""
        ...


class Claims:
    """All claims, by their id."""

    def __init__(self, core: Core, now: Callable[[], int]) -> None:
        self._core, self._now = core, now
        self._claims: dict[str, Claim] = {}
        self._numbers, self._prefix = itertools.count(1), os.urandom(3).hex()
        self._leaving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ maintenance: whole devices

    async def take(
        self, device: str, why: str, *, pid: int | None = None, lasts_ms: int | None = None
    ) -> str:
        """Claims a device; returns when every model has left it. Raises RequestError when it is claimed already.

        A caller that leaves before that, or whose wait fails, has claimed nothing.
        """
        held = self._of_device(device)
        if held is not None and held.expiry(self._now()) is None:
            raise RequestError(f"{device} is already in maintenance for {held.why!r}; end that first")
        if held is not None:
            del self._claims[held.id]
        return await self._hold(self._make("maintenance", device, why, pid, lasts_ms))

    def renew_device(self, device: str) -> None:
        """Extends the claim of a device: its holder still lives."""
        self._in_maintenance(device).renewed_at = self._now()

    async def give_back_device(self, device: str) -> str:
        """Ends the claim of a device."""
        return await self._end(self._in_maintenance(device), "given back")

    def _in_maintenance(self, device: str) -> Claim:
        claim = self._of_device(device)
        if claim is None:
            raise RequestError(f"{device} is not in maintenance")
        return claim

    def _of_device(self, device: str) -> Claim | None:
        whole = (claim for claim in self._claims.values() if claim.size is None)
        return next((claim for claim in whole if claim.device == device), None)

    # ------------------------------------------------------------------ loans: amounts of memory

    async def borrow(
        self,
        device: str,
        size: int,
        why: str,
        *,
        pid: int | None = None,
        lasts_ms: int | None = None,
        evict_idle: bool = True,
    ) -> tuple[Claim, str]:
        """Borrows memory; returns when it is there. Raises the core's refusal. A caller that leaves has nothing."""
        if sum(claim.size is not None for claim in self._claims.values()) >= LOANS_MAX:
            raise LaneFull(f"there are already {LOANS_MAX} loans; give some back first")
        loan = self._make("loan", device, why, pid, lasts_ms)
        loan.size, loan.evict_idle = size, evict_idle
        return loan, await self._hold(loan)

    def renew(self, id: str, user: int | None = None) -> Claim:
        """Extends a loan: its holder still lives. `user` is the process whose tree uses it from now on."""
        loan = self._loan(id)
        loan.user = user if user is not None else loan.user
        loan.renewed_at = self._now()
        return loan

    async def give_back(self, id: str, why: str = "given back") -> str:
        """Ends a loan."""
        return await self._end(self._loan(id), why)

    def _loan(self, id: str) -> Claim:
        loan = self._claims.get(id)
        if loan is None or loan.size is None:
            raise NotFound("there is no such loan: it was given back, or its holder was gone")
        return loan

    # ------------------------------------------------------------------ the life of either

    def _make(self, kind: str, device: str, why: str, pid: int | None, lasts_ms: int | None) -> Claim:
        started = start_time(pid) if pid is not None else None
        if pid is not None and started is None:
            raise RequestError(f"there is no process {pid} that could hold {device}")
        now = self._now()
        ends_at = None if lasts_ms is None else now + lasts_ms
        id = f"{kind}-{self._prefix}-{next(self._numbers)}"
        return Claim(id, device, why, pid, started, now, ends_at)

    async def _hold(self, claim: Claim) -> str:
        self._claims[claim.id] = claim
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._sweep(), name="claims")
        try:
            said = await self._core.claim(claim)
        except BaseException:
            if self._claims.get(claim.id) is claim:
                self._leaving.add(task := asyncio.create_task(self._drop(claim)))
                task.add_done_callback(self._leaving.discard)
            raise
        claim.is_granted, claim.renewed_at = True, self._now()
        return said

    async def _drop(self, claim: Claim) -> None:
        """Ends a claim whose caller left, or was told that it failed."""
        with contextlib.suppress(TheirsError):  # there may be no such device
            await self._end(claim, "its caller did not wait")

    async def _end(self, claim: Claim, why: str) -> str:
        self._claims.pop(claim.id, None)
        return await self._core.release(claim, why)

    async def _sweep(self) -> None:
        while self._claims:
            await asyncio.sleep(CLAIM_LOOK_MS / 1000)
            expired = [(c, why) for c in self._claims.values() if (why := c.expiry(self._now()))]
            for claim, why in expired:
                if claim.id in self._claims:
                    await self._end(claim, f"{why} ({claim.why})")

    async def close(self) -> None:
        """Forgets every claim."""
        ending = [task for task in (self._task, *self._leaving) if task is not None]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    # ------------------------------------------------------------------ views

    def view(self) -> dict[str, dict[str, object]]:
        """The devices in maintenance, for `status`."""
        whole = [claim for claim in self._claims.values() if claim.size is None]
        return {
            c.device: {"why": c.why, "pid": c.pid, "empty": c.is_granted, **self._times(c)} for c in whole
        }

    def loans_view(self) -> dict[str, dict[str, object]]:
        """The loans, for `status`."""
        return {loan.id: self.loan_view(loan) for loan in self._claims.values() if loan.size is not None}

    def loan_view(self, loan: Claim) -> dict[str, object]:
        """One loan."""
        about = {
            "device": loan.device,
            "memory": loan.size,
            "used": loan.used,
            "peak": loan.peak,
            "why": loan.why,
        }
        return {**about, "pid": loan.pid, "granted": loan.is_granted, **self._times(loan)}

    def _times(self, claim: Claim) -> dict[str, object]:
        now = self._now()
        ends_ms = None if claim.ends_at is None else max(0, claim.ends_at - now)
        return {"renewed_ms": now - claim.renewed_at, "ends_ms": ends_ms}

    # ------------------------------------------------------------------ what the holders use

    def measure(self, cards: Cards, *, ram: bool) -> dict[str, dict[str, int]]:
        """Device -> loan -> the bytes that its holder uses. Blocks on /proc: call it in a thread.

        Without `ram` only the cards are read, which costs little, and loans of RAM keep their last figures.
        """
        loans = [c for c in list(self._claims.values()) if c.size is not None and c.pid is not None]
        self._note_use([loan for loan in loans if ram or loan.device != RAM], cards)
        found: dict[str, dict[str, int]] = {}
        for loan in loans:
            # The ledger knows no owner for memory beyond the loan: it counts as foreign.
            found.setdefault(loan.device, {})[loan.id] = min(loan.size or 0, loan.used)
        return found

    def own_pids(self) -> set[int]:
        """The processes of the daemon and its engines, without those that hold a loan. Blocks on /proc."""
        return _own_pids({claim.pid for claim in list(self._claims.values()) if claim.pid is not None})

    def _note_use(self, loans: list[Claim], cards: Cards) -> None:
        """A holder's memory is that of its process tree, less the daemon's own, which a holder may have started. One
        holder may have several loans of a device: those whose user is known have what its tree uses, and the others
        are filled with the rest in the order in which they were asked for.
        """
        ours = _own_pids({loan.pid for loan in loans if loan.pid is not None}) if loans else set[int]()
        left: dict[tuple[int, str], int] = {}
        for loan in sorted(loans, key=lambda each: each.user is None):
            holder = (loan.pid or 0, loan.device)
            if holder not in left:
                left[holder] = _used(holder[0], loan.device, cards, ours)
            if loan.user is None:
                loan.used = min(loan.size or 0, left[holder])
            else:
                loan.used = _used(loan.user, loan.device, cards, ours)
            loan.peak = max(loan.peak, loan.used)
            left[holder] = max(0, left[holder] - loan.used)


def _own_pids(holders: set[int]) -> set[int]:
    """The processes of the daemon and its engines. An agent that the daemon has started is a holder like any other."""
    tree = set(pids_of_tree(os.getpid()))
    for holder in holders & tree:
        tree.difference_update(pids_of_tree(holder))
    return tree


def _used(pid: int, device: str, cards: Cards, but: set[int]) -> int:
    pids = [member for member in pids_of_tree(pid) if member not in but]
    if device == RAM:
        return pss_of_pids(pids)
    card = cards.get(device)
    return 0 if card is None else sum(card.processes.get(member, 0) for member in pids)
