"""Borrowers: people and tasks in a world that ask for memory, use it for a while, and give it back.

A borrower takes its memory some time after it was granted, and not always all of it. Some leave before they are
answered. What is lent is known here from the core's replies alone.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from watchbill.core import messages as m

__all__ = ["Borrower", "Borrowers", "schedule_loans"]

#: The maximum number of loans of one world.
LOANS_MAX = 12
#: How long a loan lasts, and how long its holder takes until it uses its memory.
LOAN_MS = (500.0, 40_000.0)
TAKES_MS = (0.0, 5_000.0)
#: The number of the first loan's command; the operator's own commands are below.
COMMANDS_FROM = 1_000


class LoanState(StrEnum):
    """Where a loan is, from its holder's point of view."""

    ASKED = "asked"
    LENT = "lent"
    ENDED = "ended"


@dataclass(slots=True)
class Borrower:
    """One loan, from its holder's point of view."""

    id: str
    device: str
    size: int
    use: int  # the part of it that is really taken
    takes_ms: float
    lasts_ms: float
    asked_at: float
    state: LoanState = LoanState.ASKED
    outcome: str = ""  # given back, left, or the code of the refusal
    held: int = 0  # bytes taken so far
    granted_at: float | None = None
    retry_after_ms: int | None = None


class Lender(Protocol):
    """The part of the world that lends."""

    @property
    def now(self) -> float: ...

    capacity: dict[str, int]

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def feed(self, event: m.Event) -> None: ...


class Borrowers:
    """All loans of a world."""

    def __init__(self, world: Lender, granted: Callable[[Borrower], None]) -> None:
        self._world, self._granted = world, granted
        self.all: dict[int, Borrower] = {}  # command -> its loan

    def borrow(
        self,
        device: str,
        size: int,
        *,
        use: int | None = None,
        takes_ms: float = 0.0,
        lasts_ms: float = float("inf"),
        evict_idle: bool = True,
    ) -> Borrower:
        """Asks for a loan."""
        command = COMMANDS_FROM + len(self.all)
        id, now = f"loan-{command}", self._world.now
        borrower = Borrower(id, device, size, size if use is None else use, takes_ms, lasts_ms, now)
        self.all[command] = borrower
        self._world.feed(m.LoanAsked(command, id, device, size, evict_idle, "a task"))
        return borrower

    def give_back(self, borrower: Borrower) -> None:
        """Ends a loan, or a wait for one."""
        if borrower.state is LoanState.ENDED:
            return
        borrower.outcome = "given back" if borrower.state is LoanState.LENT else "left"
        borrower.state, borrower.held = LoanState.ENDED, 0
        self._world.feed(m.LoanEnded(borrower.id))

    def replied(self, reply: m.Reply) -> None:
        """Notes a loan that was granted. A reply to another command is none of ours."""
        borrower = self.all.get(reply.command)
        if borrower is None or borrower.state is not LoanState.ASKED:
            return
        if not reply.ok:
            borrower.state, borrower.outcome = LoanState.ENDED, "refused"
            return
        borrower.state, borrower.granted_at = LoanState.LENT, self._world.now
        self._granted(borrower)
        world = self._world
        world.at(world.now + borrower.takes_ms, lambda: self._take(borrower))
        if borrower.lasts_ms < float("inf"):
            world.at(world.now + borrower.lasts_ms, lambda: self.give_back(borrower))

    def declined(self, action: m.Decline) -> None:
        """Notes a loan that was refused."""
        borrower = self.all.get(action.command)
        if borrower is None:
            return  # a lease, which is not lent memory
        borrower.state, borrower.outcome = LoanState.ENDED, action.code
        borrower.retry_after_ms = action.retry_after_ms

    @staticmethod
    def _take(borrower: Borrower) -> None:
        if borrower.state is LoanState.LENT:
            borrower.held = borrower.use

    def lent(self, device: str) -> int:
        """The bytes of a device that are lent now."""
        return sum(b.size for b in self.all.values() if b.state is LoanState.LENT and b.device == device)

    def held(self, device: str) -> int:
        """The bytes of a device that borrowers use now."""
        return sum(b.held for b in self.all.values() if b.device == device)

    def seen(self) -> Mapping[str, int]:
        """What a reading of the machine shows: loan -> bytes in use."""
        return {b.id: b.held for b in self.all.values() if b.state is LoanState.LENT}


def schedule_loans(draw: random.Random, world: Lender, borrowers: Borrowers, until_ms: float) -> None:
    """In every second world memory is lent now and then."""
    if draw.random() < 0.5:
        return
    for _ in range(draw.randint(1, LOANS_MAX)):
        world.at(draw.uniform(0, until_ms), _loan(draw, world, borrowers))


def _loan(draw: random.Random, world: Lender, borrowers: Borrowers) -> Callable[[], None]:
    device = draw.choice(sorted(world.capacity))
    size = int(world.capacity[device] * draw.uniform(0.02, 0.6))
    use = int(size * draw.choice((0.3, 1.0, 1.0)))
    takes_ms, lasts_ms = draw.uniform(*TAKES_MS), draw.uniform(*LOAN_MS)
    evict_idle, leaves = draw.random() < 0.7, draw.random() < 0.1

    def ask() -> None:
        times = {"takes_ms": takes_ms, "lasts_ms": lasts_ms}
        borrower = borrowers.borrow(device, size, use=use, evict_idle=evict_idle, **times)
        if leaves:
            world.at(world.now + lasts_ms / 20, lambda: borrowers.give_back(borrower))

    return ask
