"""The leases of this worker on a broker: its note, the heartbeat that renews it, and its turn.

The note is written before an event counts as leased, and again soon after one was settled (`holders` has its form and
says when another worker takes it away). Once that has happened the worker has lost all its leases and begins anew under
another name. The turn is a second note, of the one worker that may lease where events are handled in order. For the
loop of the link only.
"""

import asyncio
import time
from dataclasses import dataclass, field

from watchbill.spool.consumer import Lease
from watchbill.spool.faults import LeaseLost
from watchbill.spool.jetstream.holders import Held, Holders, Life, Note, new_worker
from watchbill.spool.jetstream.link import Link
from watchbill.spool.jetstream.streams import Stored
from watchbill.spool.limits import BROKER_BEATS
from watchbill.spool.names import lines_of

__all__ = ["OwnLeases", "StreamLease"]

#: How soon a note is written again after a lease was settled, in seconds: a batch is settled one by one.
_NOTE_SOON_S = 0.1
#: The note of the worker whose turn it is, where one at a time may lease.
_TURN = "turn"


@dataclass(slots=True)
class StreamLease(Lease):
    """A message that is ours until it is settled."""

    seq: int = 0
    reply: str = ""
    worker: str = ""
    stored: Stored | None = field(default=None, repr=False)
    tried: bool = False  # a count of its tries is stored


class OwnLeases:
    """What this worker has leased, by the number of the message."""

    def __init__(self, link: Link, holders: Holders, lease_s: float) -> None:
        self._link, self._holders, self._lease_s = link, holders, lease_s
        self._held: dict[int, StreamLease] = {}
        self.worker, self._note, self._beat, self._revision = new_worker(), Note(life=Life.own()), 0, 0
        self._noting = asyncio.Lock()
        self._noted_at_s = 0.0
        self._note_is_due = False
        self._turn_revision, self._turn_at_s = 0, 0.0
        self._is_beating = self.is_closed = False

    def __len__(self) -> int:
        return len(self._held)

    def get(self, seq: int) -> StreamLease | None:
        """The lease of a message."""
        return self._held.get(seq)

    def refuse_lost(self, lease: StreamLease) -> None:
        """Raise LeaseLost for a lease that was taken away."""
        if lease.worker != self.worker or self._held.get(lease.seq) is not lease:
            raise LeaseLost(f"{lease.name} is no longer leased by this worker")

    async def add(self, leases: list[StreamLease], *, counts: bool) -> None:
        """Note these messages as leased. With `counts` the end of this worker uses up their attempts."""
        for lease in leases:
            lease.worker = self.worker
            self._held[lease.seq] = lease
        self._note.counts = counts
        try:
            if not await self.write():
                self._lose_all()
                for lease in leases:  # not noted before, so still ours to note
                    lease.worker, self._held[lease.seq] = self.worker, lease
                await self.write()
        except BaseException:
            for lease in leases:
                self._held.pop(lease.seq, None)
            raise
        self._begin_beating()

    def drop(self, lease: StreamLease) -> None:
        """Forget a lease that was settled; the note follows soon."""
        self._held.pop(lease.seq, None)
        if not self._note_is_due:
            self._note_is_due = True
            self._link.soon(self.write_due, _NOTE_SOON_S)

    async def drop_all(self) -> list[StreamLease]:
        """Forget all leases and take the notes away; returns the leases."""
        held, self._held = list(self._held.values()), {}
        await self.write()
        return held

    # ------------------------------------------------------------------ the note

    async def write(self) -> bool:
        """Write what is leased now. False if our leases were taken away."""
        async with self._noting:
            self._note_is_due = False
            self._note.held = {
                seq: Held(lease.attempt, lines_of(lease.name)) for seq, lease in self._held.items()
            }
            if not self._note.held and not self._revision:
                return True
            if not self._note.held:
                await self._holders.drop(self.worker)
                self._revision = 0
                return True
            self._beat += 1
            revision = await self._holders.write(self.worker, self._note, self._beat, self._revision)
            self._revision = revision
            if revision:
                self._noted_at_s = time.monotonic()
            return revision > 0

    async def write_due(self) -> None:
        """Write the note if a lease was settled since."""
        if self._note_is_due and not await self.write():
            self._lose_all()

    async def confirm(self) -> None:
        """After a time without renewal: find out whether our leases were taken away meanwhile."""
        if time.monotonic() - self._noted_at_s > self._lease_s / 2 and not await self.write():
            self._lose_all()

    def _lose_all(self) -> None:
        """Another worker took us for dead: our leases are its own, and we begin anew."""
        self._held.clear()
        self.worker, self._revision = new_worker(), 0

    # ------------------------------------------------------------------ the heartbeat

    def _begin_beating(self) -> None:
        if not self._is_beating:
            self._is_beating = True
            self._link.soon(self._keep_beating, self._lease_s / BROKER_BEATS)

    async def _keep_beating(self) -> None:
        """Renew the leases, and look at the other workers; then again, a third of a lease later."""
        try:
            for lease in list(self._held.values()):
                await self._link.tell(lease.reply, b"+WPI")
            # Also without leases: a note of events that were given back would be taken for a dead worker's.
            if (self._held or self._revision) and not await self.write():
                self._lose_all()
            if self._turn_revision:
                await self._write_turn()
            await self._holders.look(self.worker)
        finally:
            if not self.is_closed:
                self._link.soon(self._keep_beating, self._lease_s / BROKER_BEATS)

    # ------------------------------------------------------------------ the turn

    @property
    def has_turn(self) -> bool:
        """Whether it is this worker's turn, as far as it knows."""
        return self._turn_revision > 0

    async def take_turn(self) -> bool:
        """Take the turn if no living worker has it, or renew it. False if it is another worker's."""
        if self._turn_revision:
            if time.monotonic() - self._turn_at_s > self._lease_s / BROKER_BEATS:
                await self._write_turn()
            return self.has_turn
        await self._holders.look(self.worker)
        await self._holders.sweep()
        if self._holders.get(_TURN) is None:
            await self._write_turn()
            self._begin_beating()
        return self.has_turn

    async def drop_turn(self) -> None:
        """Take the note of the turn away."""
        await self._holders.drop(_TURN)

    def forget_turn(self) -> None:
        """Count the turn as another worker's, whether or not its note could be taken away."""
        self._turn_revision = 0

    async def _write_turn(self) -> None:
        """Take or renew the turn; it is gone if another worker took us for dead."""
        self._beat += 1
        note = Note({0: Held(0, 0)}, counts=False, life=self._note.life)
        self._turn_revision = await self._holders.write(_TURN, note, self._beat, self._turn_revision)
        self._turn_at_s = time.monotonic()
