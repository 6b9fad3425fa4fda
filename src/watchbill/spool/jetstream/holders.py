"""Who has leased what on a broker, as far as the broker itself does not know it.

JetStream redelivers a message after its acknowledgement is late. It does not know why: the worker died, or the broker
lost its own notes in a failover. Its count of deliveries would poison events for the broker's faults. So each worker
keeps one note, the events that it has leased with their attempts, and renews it as a heartbeat:

    NAME.state.worker.WORKER   {"beat": 17, "held": {"SEQ": [ATTEMPT, EVENTS]}, "counts": true, "term": null, ...}
    NAME.state.tries.SEQ       attempts that are used up: written when one fails or its worker is found dead

A worker is dead when its note has not changed for a whole lease, by the clock of a reader that looked all the time. A
reader on the same boot asks the kernel as well, so a command that looks once finds such a death. The note of a dead
worker is replaced by counts of tries, and its events may be taken. A worker whose note is gone has lost its leases.
The note of a shell's lease has a term instead of a heartbeat.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from watchbill.files.host import boot_id, host_name, pid_space, process_start
from watchbill.spool.jetstream.link import NO_MESSAGE, BrokerSays, Link
from watchbill.spool.jetstream.streams import Streams, from_api
from watchbill.spool.limits import BROKER_AGAIN_S, BROKER_NOTES_S, BROKER_PAGE
from watchbill.spool.term import Term

__all__ = ["Held", "Holder", "Holders", "Life", "Note", "new_worker"]

_ENDS = frozenset({"204", "404"})
#: The second is said by streams with several copies, where two writes meet.
_WRONG_LAST = frozenset({10071, 10164})
#: The note of a worker whose leases are being taken away.
_TAKEN = b"{}"
_TTL = {"Nats-TTL": f"{int(BROKER_NOTES_S)}s"}


@dataclass(frozen=True, slots=True)
class Held:
    """One leased event: which attempt this is, and how many events the message has."""

    attempt: int
    events: int


@dataclass(frozen=True, slots=True)
class Life:
    """The process of a worker, for readers of the same boot. Host names are no proof: many machines have the same."""

    boot: str
    pids: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> "Life":
        return cls(boot_id(), pid_space(), os.getpid(), process_start(os.getpid()))

    @property
    def is_over(self) -> bool:
        """Whether the process is surely dead; False where this reader cannot know."""
        if not (self.boot and self.started) or (self.boot, self.pids) != (boot_id(), pid_space()):
            return False
        if started := process_start(self.pid):
            return started != self.started
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # it lives, and /proc does not show it to us
            return False
        except ProcessLookupError:
            return True
        return True  # a zombie


@dataclass(slots=True)
class Note:
    """What one worker has leased."""

    held: dict[int, Held] = field(default_factory=dict[int, Held])
    counts: bool = True  # False for a move between spools: its end uses up no attempt
    term: Term | None = None  # of a shell's lease
    reply: str = ""  # by which a shell's lease is put back
    life: Life | None = None  # of a worker with a heartbeat

    @property
    def is_over(self) -> bool:
        """Whether its leases have ended, as far as a single look can tell."""
        if self.term is not None:
            return self.term.is_over
        return self.life is not None and self.life.is_over

    def encode(self, beat: int) -> bytes:
        held = {str(seq): [each.attempt, each.events] for seq, each in self.held.items()}
        term = None if self.term is None else {name: getattr(self.term, name) for name in self.term.__slots__}
        life = None if self.life is None else asdict(self.life)
        beside = {"counts": self.counts, "life": life, "term": term, "reply": self.reply}
        return json.dumps({"beat": beat, "held": held, **beside}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Note":
        """What another worker wrote; an empty note for what is none."""
        try:
            table = cast("dict[str, Any]", json.loads(data))
            held = {int(seq): Held(int(pair[0]), int(pair[1])) for seq, pair in table["held"].items()}
            term = Term(**table["term"]) if table.get("term") else None
            life = Life(**table["life"]) if table.get("life") else None
            return cls(held, bool(table.get("counts", True)), term, str(table.get("reply", "")), life)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return cls()


@dataclass(slots=True)
class Holder:
    """Another worker, as it was last seen."""

    note: Note
    revision: int
    changed_at_s: float

    def is_alive(self, lease_s: float) -> bool:
        if self.note.is_over:
            return False
        return self.note.term is not None or time.monotonic() - self.changed_at_s < lease_s


def new_worker() -> str:
    return f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}".replace(".", "-")


class Holders:
    """The notes of one spool's workers. For the loop of its link only."""

    def __init__(self, link: Link, streams: Streams, lease_s: float) -> None:
        self._link, self._streams, self._lease_s = link, streams, lease_s
        self._seen: dict[str, Holder] = {}
        self.looked_at_s = float("-inf")

    async def look(self, own: str = "") -> None:
        """Read the notes of all workers but our own."""
        # Judge only by what was watched: while we could not look, the others may not have been able to write.
        is_gap = time.monotonic() - self.looked_at_s > self._lease_s / 2
        found: dict[str, Holder] = {}
        body = {"multi_last": [f"{self._streams.name}.state.worker.>"], "batch": 1_000}
        for message in await self._link.collect(
            f"$JS.API.DIRECT.GET.{self._streams.state}", body, until=_ENDS
        ):
            worker = message.headers["Nats-Subject"].rpartition(".")[2]
            revision = int(message.headers["Nats-Sequence"])
            before = self._seen.get(worker)
            if worker == own:
                continue
            if before is not None and before.revision == revision and not is_gap:
                found[worker] = before
            else:
                found[worker] = Holder(Note.decode(message.data), revision, time.monotonic())
        self._seen, self.looked_at_s = found, time.monotonic()

    def of(self, seq: int) -> tuple[str, Holder] | None:
        """The worker that has leased this event, as of the last look."""
        return next(((worker, each) for worker, each in self._seen.items() if seq in each.note.held), None)

    def all_held(self) -> dict[int, tuple[str, Held]]:
        """Every leased event of the other workers, as of the last look."""
        return {
            seq: (worker, held)
            for worker, each in self._seen.items()
            for seq, held in each.note.held.items()
            if seq
        }

    def get(self, worker: str) -> Holder | None:
        """One worker, as of the last look."""
        return self._seen.get(worker)

    async def sweep(self) -> None:
        """Take the leases of dead workers away; their attempts count. `look` first."""
        for worker, holder in list(self._seen.items()):
            if not holder.is_alive(self._lease_s):
                await self.take(worker, holder)

    async def take(self, worker: str, holder: Holder, *, counts: bool = True) -> None:
        """Take all leases of a worker away, unless it renews them at this moment. With `counts` its attempts count."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(holder.revision), **_TTL}
        try:
            # A fence first: from here on the worker's own renewal fails.
            await self._link.ask(self._subject(worker), _TAKEN, headers)
        except BrokerSays as error:
            if error.number not in _WRONG_LAST:
                raise
            return
        if counts and holder.note.counts:
            for seq, held in holder.note.held.items():
                await self.note_tries(seq, held.attempt)
        await self.drop(worker)
        self._seen.pop(worker, None)

    async def write(self, worker: str, note: Note, beat: int, revision: int) -> int:
        """Write our own note over its last version, and return the new revision; 0 if it was taken away."""
        data = note.encode(beat)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision), **_TTL}
        while True:
            try:
                reply = await self._link.ask(self._subject(worker), data, headers)
                return int(reply["seq"])
            except BrokerSays as error:
                if error.number not in _WRONG_LAST:
                    raise
            found = await self.read(worker)
            if (0 if found is None else found[1]) != revision:
                break
            # On a cluster: another write of it is under way, and what becomes of that decides.
            await asyncio.sleep(BROKER_AGAIN_S)
        # The answer to our first send may have been lost.
        return found[1] if found is not None and found[0].encode(beat) == data else 0

    async def read(self, worker: str) -> tuple[Note, int] | None:
        """The note of one worker and its revision, from the leader of the stream."""
        found = await self._read(self._subject(worker))
        return None if found is None else (Note.decode(found[0]), found[1])

    async def drop(self, worker: str) -> None:
        await self._drop(self._subject(worker))

    async def tries(self, seq: int) -> int:
        """Attempts of an event that failed, or whose worker died."""
        found = await self._read(self._tries(seq))
        return int(found[0]) if found is not None and found[0].isdigit() else 0

    async def all_tries(self, seqs: Sequence[int]) -> dict[int, int]:
        """The same of many events; those without any are left out."""
        found: dict[int, int] = {}
        for first in range(0, len(seqs), BROKER_PAGE):
            page = [self._tries(seq) for seq in seqs[first : first + BROKER_PAGE]]
            body = {"multi_last": page, "batch": len(page)}
            for message in await self._link.collect(
                f"$JS.API.DIRECT.GET.{self._streams.state}", body, until=_ENDS
            ):
                if message.data.isdigit():
                    found[int(message.headers["Nats-Subject"].rpartition(".")[2])] = int(message.data)
        return found

    async def note_tries(self, seq: int, attempts: int) -> None:
        await self._link.ask(self._tries(seq), str(attempts).encode(), _TTL)

    async def forget_tries(self, seq: int) -> None:
        await self._drop(self._tries(seq))

    async def _read(self, subject: str) -> tuple[bytes, int] | None:
        try:
            reply = await self._link.api(f"STREAM.MSG.GET.{self._streams.state}", {"last_by_subj": subject})
        except BrokerSays as error:
            if error.number in NO_MESSAGE:
                return None
            raise
        return from_api(reply).data, int(reply["message"]["seq"])

    async def _drop(self, subject: str) -> None:
        await self._link.api(f"STREAM.PURGE.{self._streams.state}", {"filter": subject})

    def _subject(self, worker: str) -> str:
        return f"{self._streams.name}.state.worker.{worker}"

    def _tries(self, seq: int) -> str:
        return f"{self._streams.name}.state.tries.{seq}"
