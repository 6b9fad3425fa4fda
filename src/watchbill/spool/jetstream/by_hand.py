"""Looking at a spool on a broker, moving single events by hand, and leases of shell workers.

A leased event of a shell worker lies as a file on its own machine, `FOLDER/leased/WORKER/NAME`. The path is the lease:
its worker has a note with a term on the broker, and without that note the lease is over. Counts are of events.
"""

import contextlib
import heapq
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from watchbill.files.atomic import make_folder, write_file_durable
from watchbill.spool.faults import LeaseLost, SpoolLayout, disk_fault
from watchbill.spool.inspect import Entry, Stats, not_leased_text
from watchbill.spool.item import Carried, Item
from watchbill.spool.jetstream.holders import Held, Note, new_worker
from watchbill.spool.jetstream.link import NO_MESSAGE, BrokerSays, Link
from watchbill.spool.jetstream.spool import JetSpool
from watchbill.spool.jetstream.streams import (
    REASON,
    SIGNATURE,
    Stored,
    from_api,
    ns_of_time,
    stored_of,
)
from watchbill.spool.layout import State
from watchbill.spool.limits import BROKER_PAGE, BROKER_PAGE_BYTES
from watchbill.spool.names import is_event, lines_of, ns_of, stem_of, with_attempt
from watchbill.spool.retention import Collected
from watchbill.spool.term import Term

__all__ = ["JetByHand"]

_ENDS = frozenset({"204", "404"})
_SHELL = "shell-"


class JetByHand:
    """The events of one spool on a broker. Blocks."""

    def __init__(self, spool: JetSpool) -> None:
        self._spool, self._streams = spool, spool.streams
        self._leased = spool.path / "leased"

    # ------------------------------------------------------------------ looking

    def stats(self) -> Stats:
        """Count the events."""

        async def count(link: Link) -> Stats:
            await self._spool.holders.look()
            held = self._spool.holders.all_held()
            total, oldest_ns = await self._count(link, self._streams.name, "queue")
            done = (
                await self._count(link, self._streams.done, "done")
                if self._spool.keep_done_s > 0
                else (0, None)
            )
            poison, _ = await self._count(link, self._streams.poison, "poison")
            in_flight = min(total, sum(each.events for _, each in held.values()))
            waiting = total - in_flight
            age = (
                None
                if oldest_ns is None or not waiting
                else max(0, (time.time_ns() - oldest_ns) // 1_000_000)
            )
            return Stats(waiting, in_flight, done[0], poison, age, 0)

        return self._spool.run(count, "count the events")

    def counts(self, *states: State) -> dict[State, int]:
        """Count the events of these states."""
        told = self.stats()
        known = {
            State.QUEUE: told.queue, State.IN_FLIGHT: told.in_flight, State.DONE: told.done, State.POISON: told.poison,
        }  # fmt: skip
        return {state: known[state] for state in states}

    def entries(self, *states: State) -> Iterator[Entry]:
        """Yield the events of these states, in no order."""
        return self.by_age(*states)[0]

    def by_age(self, *states: State, limit: int | None = None) -> tuple[Iterator[Entry], int]:
        """The events of these states, oldest first, and how many messages there are in all."""
        wanted = states or tuple(State)

        async def read(link: Link) -> tuple[list[Entry], int]:
            await self._spool.holders.look()
            held, found, total = self._spool.holders.all_held(), list[tuple[int, int, Entry]](), 0
            for stream, kind in self._streams_of(wanted):
                total += await self._messages(link, stream)
                most = None if limit is None else limit + len(held)
                async for stored in self._read(link, stream, most):
                    entry = self._entry(kind, stored, held)
                    if entry.state in wanted:
                        found.append((_arrived_ns(stored), stored.seq, entry))
            if State.QUEUE in wanted and State.IN_FLIGHT not in wanted:
                total -= len(held)
            elif State.IN_FLIGHT in wanted and State.QUEUE not in wanted:
                total = (
                    sum(each.state is State.IN_FLIGHT for _, _, each in found)
                    + total
                    - await self._messages(link, self._streams.name)
                )
            kept = (
                sorted(found, key=_arrival) if limit is None else heapq.nsmallest(limit, found, key=_arrival)
            )
            return await self._with_tries([entry for *_, entry in kept]), max(total, len(kept))

        found, total = self._spool.run(read, "list the events")
        return iter(found), total

    def beginning(self, stem: str, *states: State) -> list[Entry]:
        """The events whose stem begins with this; one whose stem it is, is enough."""
        wanted = states or tuple(State)

        async def find(link: Link) -> list[Entry]:
            await self._spool.holders.look()
            held = self._spool.holders.all_held()
            for stream, kind in self._streams_of(wanted):
                stored = await self._spool.find_stored(stream, kind, stem)
                if stored is not None and (entry := self._entry(kind, stored, held)).state in wanted:
                    return await self._with_tries([entry])
            return []

        if exact := self._spool.run(find, f"look for {stem}"):
            return exact
        return [each for each in self.entries(*wanted) if stem_of(each.name).startswith(stem)]

    def show(self, entry: Entry) -> bytes:
        """An event's bytes. Raises SpoolLayout where it is gone."""
        return self._stored(entry).data

    def carried(self, entry: Entry) -> Carried:
        """An event as it is carried to another spool."""
        stored = self._stored(entry)
        signature = stored.headers.get(SIGNATURE)
        return Carried(
            stored.name, stored.data.removesuffix(b"\n"), entry.attempt,
            None if signature is None else signature.encode(),
        )  # fmt: skip

    def unreplayed(self) -> int:
        """Nothing is hidden on a broker."""
        return 0

    def in_folders(self) -> int:
        return 0

    # ------------------------------------------------------------------ moving

    def requeue(self, entry: Entry, content: bytes | None = None) -> str:
        """Put a poisoned or finished event back with all attempts restored, and return its new name."""

        async def put_back(link: Link) -> None:
            stored = await self._get(link, entry)
            if content is not None:  # its signature does not fit any more
                stored = replace(stored, data=content, headers={})
            await self._spool.publish_copy("queue", stored, attempts=0)
            await link.delete(stored.stream, stored.seq)

        self._spool.run(put_back, f"put {entry.name} back")
        return with_attempt(entry.name, 0)

    def put_away(self, entry: Entry) -> None:
        """Remove a poisoned event that another spool has now."""
        self._spool.run(lambda link: link.delete(*_place(entry)), f"remove {entry.name}")

    def release(
        self, entry: Entry, *, force: bool = False, holder: bool = False, failed: bool = False
    ) -> str:
        """Put an event in flight back. Refused while its worker is alive, unless forced or asked for by its holder."""
        worker, held, note = self._refuse_living(entry, force=force, holder=holder)

        async def put_back(link: Link) -> None:
            seq = _place(entry)[1]
            if failed:
                await self._spool.holders.note_tries(seq, held.attempt)
            await self._take(worker)
            if note.reply:
                await link.request(note.reply, b"-NAK")

        self._spool.run(put_back, f"put {entry.name} back")
        self._leave(worker)
        return with_attempt(entry.name, entry.attempt if failed else max(0, entry.attempt - 1))

    def poison(self, entry: Entry, reason: str, *, force: bool = False, holder: bool = False) -> str:
        """Give up an event that waits or is in flight, with a reason."""
        worker = ""
        if entry.state is State.IN_FLIGHT:
            worker, _, _ = self._refuse_living(entry, force=force, holder=holder)
        told = {"reason": reason, "error": "poisoned by hand"}

        async def give_up(link: Link) -> None:
            stored = await self._get(link, entry)
            await self._spool.publish_copy("poison", stored, attempts=entry.attempt, reason=told)
            await link.delete(stored.stream, stored.seq)
            if worker:
                await self._take(worker)

        self._spool.run(give_up, f"give up {entry.name}")
        self._leave(worker)
        return entry.name

    def collect(self, *, keep_done_s: float, compact: bool = True, archive: Path | None = None) -> Collected:
        """Remove finished events that are older; the broker itself does so with those of the config's `keep_done`."""
        del compact  # there is nothing to compact
        if archive is not None:
            raise SpoolLayout(
                "finished events on a broker cannot be archived; move the spool to files for that"
            )

        async def remove(link: Link) -> int:
            if self._spool.keep_done_s <= 0:
                return 0
            removed, before_ns = 0, time.time_ns() - int(keep_done_s * 1e9)
            async for stored in self._read(link, self._streams.done, None):
                if stored.at_ns >= before_ns:
                    break
                await link.delete(stored.stream, stored.seq)
                removed += lines_of(stored.name)
            return removed

        return Collected(removed=self._spool.run(remove, "remove finished events"))

    # ------------------------------------------------------------------ shell workers

    def lease_out(self, term: Term) -> tuple[Path, Item] | None:
        """Lease the oldest event for a worker outside this process; None when nothing waits."""
        item = self._spool.lease()
        if item is None:
            return None
        worker = _SHELL + new_worker()
        path = self._leased.absolute() / worker / item.name
        try:
            make_folder(path.parent)
            write_file_durable(path, item.content + b"\n")
        except OSError as error:
            self._spool.give_back(item)
            raise disk_fault(error, f"lease {item.name}") from error
        self._spool.hand_over(item, Note(term=term), worker)
        return path, item

    def find_leased(self, path: Path) -> Entry:
        """The event that is leased under exactly this path. Else raises LeaseLost."""
        worker = self._worker_of(path)
        note = self._note(worker) if worker else None
        if not worker or note is None or not note.held or not path.is_file():
            found = self.beginning(stem_of(path.name)) if is_event(path.name) else []
            exact = next((each for each in found if stem_of(each.name) == stem_of(path.name)), None)
            raise LeaseLost(not_leased_text(path, "is not leased any more", exact, self._streams.name))
        seq, held = next(iter(note.held.items()))
        name = with_attempt(path.name, held.attempt)
        size, born_ns = path.stat().st_size, ns_of(path.name)
        age_ms = max(0, time.time_ns() - (born_ns or time.time_ns())) // 1_000_000
        return Entry(
            name, State.IN_FLIGHT, path.absolute(), held.attempt, held.events, size, age_ms, worker,
            (self._streams.name, seq),
        )  # fmt: skip

    def is_leased_path(self, name: str) -> bool:
        """Whether a text is the path of a leased file."""
        return self._leased.absolute() in Path(name).absolute().parents

    def renew(self, path: Path, term: Term) -> Path:
        """Renew a lease for another term. Raises LeaseLost if it was taken back."""
        worker = self.find_leased(path).folder

        async def write(_: Link) -> None:
            found = await self._spool.holders.read(worker)
            if found is None or not found[0].held:
                raise LeaseLost(f"{path} is not leased any more")
            note, revision = found
            note.term = term
            if not await self._spool.holders.write(worker, note, time.time_ns(), revision):
                raise LeaseLost(f"{path} was taken back meanwhile")

        self._spool.run(write, f"renew the lease of {path.name}")
        return path

    def finish(self, path: Path) -> str:
        """Finish a leased event and return its name. Raises LeaseLost if it was taken back."""
        entry = self.find_leased(path)

        async def finish(link: Link) -> None:
            stored = await self._get(link, entry)
            if self._spool.keep_done_s > 0:
                await self._spool.publish_copy("done", stored, attempts=entry.attempt)
            await link.delete(stored.stream, stored.seq)
            await self._take(entry.folder)

        self._spool.run(finish, f"finish {entry.name}")
        self._leave(entry.folder)
        return entry.name

    def fail(self, path: Path, reason: str) -> State:
        """Put a leased event back for another attempt or, after the last one, poison it. Return where it went."""
        entry = self.find_leased(path)
        if entry.attempt >= self._spool.attempts:
            self.poison(entry, f"retries exhausted: {reason}", holder=True)
            return State.POISON
        self.release(entry, holder=True, failed=True)
        return State.QUEUE

    # ------------------------------------------------------------------ on the loop

    async def _count(self, link: Link, stream: str, kind: str) -> tuple[int, int | None]:
        """How many events a stream has, and when its first was stored. A bundle's name says how many it has."""
        bundles = f"{self._streams.name}.{kind}.*.*"
        told = cast(
            "dict[str, Any]", (await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": bundles}))["state"]
        )
        count = int(told["messages"])
        for subject in cast("dict[str, int]", told.get("subjects") or {}):
            stem = subject.removeprefix(f"{self._streams.name}.{kind}.")
            count += lines_of(f"{stem}~0.bundle.jsonl") - 1
        return count, ns_of_time(str(told["first_ts"])) if told["messages"] else None

    async def _messages(self, link: Link, stream: str) -> int:
        return int((await link.api(f"STREAM.INFO.{stream}"))["state"]["messages"])

    async def _read(self, link: Link, stream: str, most: int | None) -> AsyncIterator[Stored]:
        """The messages of a stream, oldest first."""
        seq, left = 1, most
        while left is None or left > 0:
            got = 0
            body = {
                "seq": seq,
                "batch": min(BROKER_PAGE, left or BROKER_PAGE),
                "max_bytes": BROKER_PAGE_BYTES,
            }
            for message in await link.collect(f"$JS.API.DIRECT.GET.{stream}", body, until=_ENDS):
                got += 1
                seq = int(message.headers["Nats-Sequence"]) + 1
                at_ns = ns_of_time(message.headers["Nats-Time-Stamp"])
                yield stored_of(self._streams, message, stream=stream, seq=seq - 1, at_ns=at_ns)
            left = None if left is None else left - got
            if not got:
                return

    async def _take(self, worker: str) -> None:
        """Take a worker's leases away; their attempts do not count."""
        await self._spool.holders.drop(worker)

    # ------------------------------------------------------------------ parts

    def _streams_of(self, states: tuple[State, ...]) -> list[tuple[str, str]]:
        found = [(self._streams.name, "queue")] if {State.QUEUE, State.IN_FLIGHT} & set(states) else []
        if State.DONE in states and self._spool.keep_done_s > 0:
            found.append((self._streams.done, "done"))
        return found + ([(self._streams.poison, "poison")] if State.POISON in states else [])

    def _entry(self, kind: str, stored: Stored, held: dict[int, tuple[str, Held]]) -> Entry:
        state = {"queue": State.QUEUE, "done": State.DONE, "poison": State.POISON}[kind]
        attempt, folder = stored.attempts, ""
        if kind == "queue" and stored.seq in held:
            state, folder, attempt = State.IN_FLIGHT, held[stored.seq][0], held[stored.seq][1].attempt
        name = with_attempt(stored.name, attempt)
        path = Path(f"nats:{stored.stream}") / str(stored.seq)
        if folder.startswith(_SHELL) and (self._leased / folder / name).is_file():
            path = self._leased.absolute() / folder / name
        age_ms = max(0, time.time_ns() - _arrived_ns(stored)) // 1_000_000
        reason = _reason(stored) if kind == "poison" else None
        return Entry(
            name, state, path, attempt, lines_of(name), len(stored.data), age_ms, folder,
            (stored.stream, stored.seq), reason,
        )  # fmt: skip

    async def _with_tries(self, entries: list[Entry]) -> list[Entry]:
        """The same entries; those that wait with the attempts that they have used up."""
        waiting = [_place(entry)[1] for entry in entries if entry.state is State.QUEUE]
        tries = await self._spool.holders.all_tries(waiting)
        return [
            replace(entry, name=with_attempt(entry.name, tries[seq]), attempt=tries[seq])
            if entry.state is State.QUEUE and tries.get(seq := _place(entry)[1], 0) > entry.attempt
            else entry
            for entry in entries
        ]

    def _stored(self, entry: Entry) -> Stored:
        """The message of an entry. Raises SpoolLayout if it has moved."""
        return self._spool.run(lambda link: self._get(link, entry), f"read {entry.name}")

    async def _get(self, link: Link, entry: Entry) -> Stored:
        stream, seq = _place(entry)
        try:
            reply = await link.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        except BrokerSays as error:
            if error.number not in NO_MESSAGE:
                raise
            raise SpoolLayout(f"{entry.name} has moved meanwhile; look again") from error
        at_ns = ns_of_time(str(reply["message"]["time"]))
        return stored_of(self._streams, from_api(reply), stream=stream, seq=seq, at_ns=at_ns)

    def _refuse_living(self, entry: Entry, *, force: bool, holder: bool) -> tuple[str, Held, Note]:
        seq = _place(entry)[1]
        note = self._note(entry.folder)
        if note is None or seq not in note.held:
            raise LeaseLost(f"{entry.name} is not leased any more; look again")
        if not (force or holder or note.is_over):
            raise SpoolLayout(
                f"{entry.name} is leased by {entry.folder}; a dead worker's lease ends by itself, "
                "use --force to take it away now"
            )
        return entry.folder, note.held[seq], note

    def _note(self, worker: str) -> Note | None:
        async def read(_: Link) -> Note | None:
            found = await self._spool.holders.read(worker)
            return found[0] if found is not None else None

        return self._spool.run(read, "look at a lease")

    def _worker_of(self, path: Path) -> str:
        """The worker in the path of a leased file; "" for a path elsewhere."""
        try:
            inside = path.parent.resolve().relative_to(self._leased.resolve())
        except (OSError, ValueError, RuntimeError):
            return ""
        worker = str(inside)
        return worker if worker.startswith(_SHELL) and "/" not in worker else ""

    def _leave(self, worker: str) -> None:
        """Remove the file of a shell's lease that is settled."""
        folder = self._leased / worker
        if worker.startswith(_SHELL) and folder.is_dir():
            with contextlib.suppress(OSError):
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()


def _place(entry: Entry) -> tuple[str, int]:
    assert entry.place is not None
    return entry.place


def _arrived_ns(stored: Stored) -> int:
    return ns_of(stored.name) or stored.at_ns


def _arrival(found: tuple[int, int, Entry]) -> tuple[int, int]:
    """The sort key for arrival. Whole milliseconds of age are too coarse: events of one call share them."""
    return found[:2]


def _reason(stored: Stored) -> dict[str, Any]:
    try:
        table: object = json.loads(stored.headers.get(REASON, "{}"))
    except ValueError:
        return {"reason": "unreadable reason"}
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}
