"""JetSpool: the operations of a spool, on the streams of a NATS broker.

    enqueue   publish to the queue; the broker's acknowledgement is ours
    lease     pull messages, then note them as leased by this worker; the note and the message are renewed meanwhile
    done      publish to the finished events, then acknowledge
    release   take the note back, then the message; a failure is counted before that
    poison    publish to poison, then acknowledge

Each step may be cut off after any part of it: then the event is delivered again, or is in two places and the second
step of its next worker finds the first one done. It is never in none. All waits are bounded by the reach.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from watchbill.spool.backend import leased_for_a_block
from watchbill.spool.consumer import reason_bytes
from watchbill.spool.events import Event, encode, refuse_bundle
from watchbill.spool.faults import EventRefused, LeaseLost, SpoolBroken, SpoolFull
from watchbill.spool.item import BadLine, Carried, Item, bad_line_name, item_of
from watchbill.spool.jetstream.deliveries import Deliveries, Delivery, put_back, put_back_word
from watchbill.spool.jetstream.holders import Held, Holders, Note
from watchbill.spool.jetstream.link import NO_MESSAGE, BrokerSays, Link
from watchbill.spool.jetstream.own_leases import OwnLeases, StreamLease
from watchbill.spool.jetstream.reach import Reach
from watchbill.spool.jetstream.streams import (
    ATTEMPTS,
    NAME,
    REASON,
    SIGNATURE,
    Stored,
    Streams,
    from_api,
    ns_of_time,
    stored_of,
)
from watchbill.spool.limits import (
    ATTEMPTS as ATTEMPTS_MAX,
)
from watchbill.spool.limits import (
    BROKER_BEATS,
    BROKER_LEASE_S,
    BROKER_PENDING_MAX,
    BROKER_REPLY_S,
    BROKER_WINDOW,
    BUNDLE_BYTES_MAX,
    EVENT_BYTES_MAX,
    KEEP_DONE_S,
)
from watchbill.spool.names import (
    Stamps,
    bundle_name,
    event_names,
    new_writer,
    stem_of,
    with_attempt,
)
from watchbill.spool.producer import Signer
from watchbill.spool.recovery import Recovered

__all__ = ["JetSpool"]

T = TypeVar("T")
#: Bytes of headers around an event, at most.
_HEAD_BYTES = 4_096
_STORE_FAILED = 10077


class JetSpool:
    """One spool on a broker. Thread-safe. Connects with the first operation; raises SpoolBroken if it cannot."""

    def __init__(
        self,
        name: str,
        reach: Reach,
        *,
        folder: str | os.PathLike[str] = "",
        attempts: int = ATTEMPTS_MAX,
        event_bytes_max: int = EVENT_BYTES_MAX,
        signer: Signer | None = None,
        lease_s: float = BROKER_LEASE_S,
        replicas: int = 1,
        keep_done_s: float = KEEP_DONE_S,
    ) -> None:
        """`name` is that of the stream. `folder` holds the files of shell workers' leases on this machine."""
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        self.path = Path(folder)
        self.streams = Streams(name)
        self.attempts = attempts
        self.given_up = 0
        self.lease_s = lease_s
        self.keep_done_s = keep_done_s
        self._replicas = replicas
        self._reach = reach
        self._event_bytes_max = event_bytes_max
        self._sign = signer.sign if signer is not None else None
        self._is_stored: Callable[[list[tuple[Event, bytes]]], bool] = lambda _: False
        self._stamps, self._writer = Stamps(), new_writer()
        self._rest_ends_s = 0.0
        self._signatures: dict[str, bytes] = {}
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        """All that belongs to one process and its connection."""
        self._pid = os.getpid()
        self._link = Link(self._reach, f"watchbill {self.streams.name}")
        self.holders = Holders(self._link, self.streams, self.lease_s)
        self._is_ready = False
        self._readying = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._pull_most = BROKER_PENDING_MAX  # fewer while retries come alone
        self._leases = OwnLeases(self._link, self.holders, self.lease_s)
        self._deliveries = Deliveries(self._link, self.streams, self.lease_s, self._arrived.set)

    # ------------------------------------------------------------------ facts

    @property
    def in_flight_here(self) -> int:
        return len(self._leases)

    @property
    def rests_s(self) -> float:
        return max(0.0, self._rest_ends_s - time.monotonic())

    @property
    def barred(self) -> dict[str, str]:
        """Nothing on a broker belongs to another user."""
        return {}

    @property
    def named(self) -> str:
        """The spool, for messages."""
        return f"{self.streams.name} on {self._reach.named}"

    def warnings(self) -> list[str]:
        """Names the servers of a cluster that are ill. A broker that does not answer at all is an error elsewhere."""
        try:
            behind = self._call(lambda: self.streams.servers_behind(self._link), "look at the servers")
        except SpoolBroken:
            return []
        return [
            f"the server {name} keeps no copy of new events: it is down, cut off, or its disk was full; "
            "see its log, and restart it when its disk has room"
            for name in behind
        ]

    def signature_of(self, name: str) -> bytes | None:
        """The signature of an event that is leased here."""
        return self._signatures.get(stem_of(name))

    # ------------------------------------------------------------------ producing

    def enqueue(self, event: Mapping[str, Any] | bytes | str) -> str:
        """Store one event and return its name. On return the broker has acknowledged it."""
        return self.commit_lines([encode(event, self._event_bytes_max)])[0]

    def enqueue_many(
        self, events: Iterable[Mapping[str, Any] | bytes | str], *, bundle: bool = False
    ) -> list[str]:
        return self.commit_lines([encode(event, self._event_bytes_max) for event in events], bundle=bundle)

    def commit_lines(self, lines: Sequence[bytes], *, bundle: bool = False) -> list[str]:
        """Store lines that `events.encode` has made. Raises SpoolFull or SpoolBroken: then not all are there."""
        if not lines:
            return []
        if bundle:
            refuse_bundle(lines)
            names = [bundle_name(self._stamps.take(), self._writer, len(lines))]
            contents: Sequence[bytes] = [b"\n".join(lines)]
        else:
            names = event_names(self._stamps.take(len(lines)), self._writer, len(lines))
            contents = lines
        signatures = [None if self._sign is None else self._sign(content) for content in contents]
        nonce = os.urandom(6).hex()  # one id for all sends of this call, and no other's

        async def store(place: int) -> None:
            await self._publish(
                "queue", names[place], contents[place], signature=signatures[place], nonce=nonce
            )

        self._store_all(contents, store)
        return names

    def checkpoint(self) -> None:
        """Nothing to do: the broker has what it acknowledged."""

    def put_many(self, carried: Sequence[Carried]) -> None:
        """Store events of another spool under their own names. What this spool has is left out: a move that was cut
        off may be repeated."""

        async def put(place: int) -> None:
            each = carried[place]
            if await self.find_stored(self.streams.poison, "poison", stem_of(each.name)) is not None:
                return
            await self._publish(
                "queue", each.name, each.content, attempts=each.attempts, signature=each.signature
            )

        self._store_all([each.content for each in carried], put)

    def put_poison(self, carried: Carried, reason: Mapping[str, object]) -> None:
        """Store an event that another spool has given up, with its reason."""

        async def publish() -> None:
            self._refuse_large([carried.content])
            await self._publish(
                "poison", carried.name, carried.content, attempts=carried.attempts, signature=carried.signature,
                reason=reason,
            )  # fmt: skip

        self._call(publish, f"store {carried.name}")

    # ------------------------------------------------------------------ consuming

    def dequeue(self) -> contextlib.AbstractContextManager[Item | None]:
        """Lease the oldest event for the length of a `with` block, as `Spool.dequeue` does."""
        return leased_for_a_block(self)

    def lease(self) -> Item | None:
        """Lease the oldest event without a `with` block; settle it with done, release, fail or poison."""
        return next(iter(self.lease_many(1)), None)

    def lease_many(
        self,
        count: int,
        *,
        bytes_max: int = BUNDLE_BYTES_MAX,
        retries_alone: bool = False,
        counts: bool = True,
    ) -> list[Item]:
        """Lease up to `count` of the oldest events, as `Spool.lease_many` does. Unreadable ones go to poison."""

        async def lease() -> list[Item]:
            while leased := await self._lease(count, bytes_max, retries_alone, counts):
                try:
                    items = [item for each in leased if (item := await self._read(each)) is not None]
                except BaseException:  # the bound is over: they are not returned, so they must not be renewed
                    for each in leased:
                        self._settle(each)
                    raise
                if items:
                    return items
            return []

        return self._call(lease, "lease events", more_s=BROKER_REPLY_S)

    def done(self, item: Item) -> None:
        self.done_many([item])

    def done_many(self, items: Sequence[Item]) -> None:
        """Finish events. Raises LeaseLost if a lease was lost, SpoolBroken if the broker does not confirm it."""

        async def finish(window: slice) -> None:
            leases = [self._lease_of(item) for item in items[window] if not item.lease.settled]
            await self._leases.confirm()
            for lease in leases:
                self._leases.refuse_lost(lease)
            await self._together(self._finish(lease) for lease in leases)

        if items:
            self._refuse_settled(items)
            self._in_windows(len(items), finish, "finish events")

    def release(self, item: Item, *, rest_s: float = 0.0) -> None:
        """Put an event back without using up an attempt; it is not leased again for `rest_s` seconds."""
        self._put_back(item, rest_s, failed=False)

    def give_back(self, item: Item) -> None:
        """Release soon, without a wait: a whole batch is given back while the broker is away. Then the lease ends."""
        lease = self._lease_of(item)
        if lease.settled:
            return
        self.forget(item)

        async def free() -> None:
            # Before the message is free: its next worker must not find it held.
            await self._leases.write_due()
            await put_back(self._link, lease.reply)

        self._link.soon(free)

    def forget(self, item: Item) -> None:
        """Drop the lease of an event without a word to the broker, which delivers it again when the lease is over."""
        lease = self._lease_of(item)
        lease.settled = True
        self._let_go(lease)

    def poison(self, item: Item, reason: str) -> None:
        """Give an event up; the reason is stored with it."""
        self._refuse_settled([item])
        told = {"reason": reason, "error": "poisoned"}
        self._call(lambda: self._poison(self._lease_of(item), told), f"give up {item.name}")

    def fail(self, item: Item, error: BaseException, *, rest_s: float = 0.0) -> bool:
        """Release an event that failed, or poison it after its last attempt. Return True if it was poisoned."""
        self._refuse_settled([item])
        if item.attempt < self.attempts:
            self._put_back(item, rest_s, failed=True)
            return False
        text = f"retries exhausted: {type(error).__name__}: {error}"
        told = {"reason": text, "error": "retries exhausted"}
        self._call(lambda: self._poison(self._lease_of(item), told), f"give up {item.name}")
        return True

    def split_out(self, item: Item, bad: BadLine) -> None:
        """Put a bundle's bad line into poison; a redelivery stores the same."""
        self._call(lambda: self._split_out(item, bad), f"split a bad line out of {item.name}")

    def recover(self, *, start: bool = True) -> Recovered:
        """Take back the leases of workers that are dead; their events come with the next lease."""

        async def sweep() -> None:
            await self.holders.look(self._leases.worker)
            await self.holders.sweep()

        del start
        self._call(sweep, "recover the spool")
        return Recovered()

    def spare(
        self, is_stored: Callable[[list[tuple[Event, bytes]]], bool], corpora: Sequence[Path] = ()
    ) -> None:
        """Deliver, and never poison, events whose workers died if `is_stored` finds them in the worker's store. Workers
        elsewhere do not see its files, so they are not noted."""
        del corpora
        self._is_stored = is_stored

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something may have arrived, at most `timeout_s`."""

        async def arrived() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return False
            finally:
                self._arrived.clear()
            return True

        return self._call(arrived, "wait for events", more_s=timeout_s)

    def wake(self) -> None:
        """End a `wait` in another thread."""
        if not self._is_closed:
            with contextlib.suppress(ValueError, RuntimeError):
                self._link.on_loop(self._arrived.set)

    def take_turn(self) -> bool:
        """Whether this worker is the only one that may lease now; `ordered` drains ask before each batch."""
        return self._call(self._take_turn, "take the turn")

    def let_turn_go(self) -> None:
        """Let another worker have the turn."""
        if self._leases.has_turn:
            with contextlib.suppress(SpoolBroken, SpoolFull):
                self._call(self._drop_turn, "let the turn go")
            self._leases.forget_turn()

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Put back what is leased, for a bounded time, and end the connection."""
        if self._is_closed:
            return
        if self._pid == os.getpid() and self._link.is_connected:
            with contextlib.suppress(SpoolBroken, SpoolFull):
                self._link.call(self._leave, "leave the spool")
        self._is_closed = self._leases.is_closed = True
        self._link.close() if self._pid == os.getpid() else self._link.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ for looking and moving by hand

    def run(self, act: Callable[[Link], Awaitable[T]], doing: str) -> T:
        """Run a coroutine function with the link of this spool, once its streams are there."""
        return self._call(lambda: act(self._link), doing)

    async def find_stored(self, stream: str, kind: str, stem: str) -> Stored | None:
        """The message of an event in one stream."""
        if stream == self.streams.done and self.keep_done_s <= 0:
            return None
        subject = self.streams.subject(kind, stem)
        try:
            reply = await self._link.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except BrokerSays as error:
            if error.number in NO_MESSAGE:
                return None
            raise
        at_ns = ns_of_time(str(reply["message"]["time"]))
        return stored_of(
            self.streams, from_api(reply), stream=stream, seq=int(reply["message"]["seq"]), at_ns=at_ns
        )

    async def publish_copy(
        self, kind: str, stored: Stored, *, attempts: int, reason: Mapping[str, object] | None = None
    ) -> str:
        """Store an event in another stream of this spool, under its name."""
        signature = stored.headers.get(SIGNATURE)
        return await self._publish(
            kind, stored.name, stored.data, attempts=attempts, reason=reason,
            signature=None if signature is None else signature.encode(),
        )  # fmt: skip

    def hand_over(self, item: Item, note: Note, worker: str) -> None:
        """Make a lease of this process that of another worker, such as a shell script, and forget it."""

        async def hand() -> None:
            lease = self._lease_of(item)
            note.held = {lease.seq: Held(lease.attempt, len(item.events))}
            note.reply = lease.reply
            await self.holders.write(worker, note, 0, 0)
            lease.settled = True
            self._let_go(lease)
            await self._leases.write()

        self._call(hand, f"lease {item.name}")

    # ------------------------------------------------------------------ on the loop: sending

    async def _publish(
        self,
        kind: str,
        name: str,
        content: bytes,
        *,
        attempts: int = 0,
        signature: bytes | None = None,
        reason: Mapping[str, object] | None = None,
        nonce: str = "",
    ) -> str:
        """Store a message and return its name. In the queue a second copy of a waiting event is left out."""
        stem = stem_of(name)
        headers = {
            NAME: with_attempt(name, 0),
            "Nats-Msg-Id": f"{kind}.{stem}.{nonce or os.urandom(6).hex()}",
        }
        if attempts:
            headers[ATTEMPTS] = str(attempts)
        if signature is not None:
            headers[SIGNATURE] = signature.decode()
        if reason is not None:
            headers[REASON] = reason_bytes(with_attempt(name, attempts), attempts, reason).decode().strip()
        try:
            await self._link.ask(self.streams.subject(kind, stem), content, headers)
        except BrokerSays as error:
            if kind != "queue" or error.number != _STORE_FAILED:
                raise
            waiting = await self.find_stored(self.streams.name, kind, stem)
            if waiting is None or waiting.data != content:
                raise
        return name

    def _store_all(self, contents: Sequence[bytes], store: Callable[[int], Awaitable[None]]) -> None:
        """Store each of these, by its place. All are refused where one is too large."""

        async def store_window(window: slice) -> None:
            if not window.start:
                self._refuse_large(contents)
            await self._together(map(store, range(*window.indices(len(contents)))))

        self._in_windows(len(contents), store_window, "store events")

    def _in_windows(self, count: int, act: Callable[[slice], Awaitable[None]], doing: str) -> None:
        """Do `count` things a window at a time, each window within the bound: of a whole batch a slow disk would
        finish none in that time, and begin it again without end."""
        for first in range(0, count, BROKER_WINDOW):
            window = slice(first, first + BROKER_WINDOW)
            self._call(lambda window=window: act(window), doing)

    def _refuse_large(self, contents: Iterable[bytes]) -> None:
        most = self._link.payload_bytes_max - _HEAD_BYTES
        size = max(map(len, contents), default=0)
        if size > most:
            raise EventRefused(
                f"the event has {size} bytes, more than the {most} that the broker takes; raise its max_payload"
            )

    async def _together(self, acts: "Iterable[Awaitable[Any]]") -> None:
        """Do all, a window at a time. Raises the first failure after all have ended."""
        gate = asyncio.Semaphore(BROKER_WINDOW)

        async def one(act: Awaitable[Any]) -> None:
            async with gate:
                await act

        for outcome in await asyncio.gather(*(one(act) for act in acts), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # ------------------------------------------------------------------ on the loop: leasing

    async def _lease(
        self, count: int, bytes_max: int, retries_alone: bool, counts: bool
    ) -> list[StreamLease]:
        """Pull messages, leave out those that others hold, and note the rest as ours.

        The broker delivers what it has delivered before first, such as what a shell has leased for an hour. What waits
        behind that is found by pulling on: at most once for each event that others hold."""
        pulls = 0
        while True:
            deliveries = await self._deliveries.pull(
                min(count, self._pull_most) if retries_alone else count, bytes_max
            )
            leases = await self._sort_out(deliveries, retries_alone)
            pulls += 1
            if leases or not deliveries or pulls > len(self.holders.all_held()):
                break
        if leases:
            await self._leases.add(leases, counts=counts)
        return leases

    async def _sort_out(self, deliveries: list[Delivery], retries_alone: bool) -> list[StreamLease]:
        """Of what was delivered the events that may be leased. The others go back."""
        if any(each.times > 1 for each in deliveries) or self._look_is_due():
            await self.holders.look(self._leases.worker)
            await self.holders.sweep()
        leases: list[StreamLease] = []
        back: dict[str, float] = {}  # reply and pause of what is not for us now
        is_full = False
        tries = await self._tries_of(deliveries)
        for each in deliveries:
            if (held := self._leases.get(each.stored.seq)) is not None:
                held.reply = each.reply  # the broker forgot that it is ours
            elif self.holders.of(each.stored.seq) is not None:
                back[each.reply] = self.lease_s / BROKER_BEATS
            else:
                lease = self._leased(each, tries.get(each.stored.seq, 0))
                first = leases[0].attempt if leases else 0
                is_full = is_full or (retries_alone and first > 0 and max(first, lease.attempt) > 1)
                if is_full:
                    back[each.reply] = 0.0
                else:
                    leases.append(lease)
        await self._together(put_back(self._link, reply, pause_s) for reply, pause_s in back.items())
        # The retries of a dead worker's batch come alone: pulled by the batch, all others would go back for each one.
        is_alone = is_full or (retries_alone and any(each.attempt > 1 for each in leases))
        self._pull_most = 1 if is_alone else min(self._pull_most * 2, BROKER_PENDING_MAX)
        return leases

    async def _tries_of(self, deliveries: list[Delivery]) -> dict[int, int]:
        """The used attempts of what was delivered before, asked for together: one by one took longer than a lease."""
        found: dict[int, int] = {}

        async def look(seq: int) -> None:
            found[seq] = await self.holders.tries(seq)

        await self._together(look(each.stored.seq) for each in deliveries if each.times > 1)
        return found

    def _leased(self, delivery: Delivery, tries: int) -> StreamLease:
        stored = delivery.stored
        attempt = max(stored.attempts, tries) + 1
        return StreamLease(
            with_attempt(stored.name, attempt), attempt, True, "", stored.name,
            seq=stored.seq, reply=delivery.reply, worker=self._leases.worker, stored=stored, tried=tries > 0,
        )  # fmt: skip

    async def _read(self, lease: StreamLease) -> Item | None:
        """The item of a lease; None if it had to be given up."""
        assert lease.stored is not None
        content = lease.stored.data.removesuffix(b"\n")
        try:
            item = item_of(lease, Path(), content)
        except EventRefused as error:
            await self._poison(lease, {"reason": str(error), "error": "unreadable"})
            self.given_up += 1
            return None
        if lease.attempt > self.attempts:
            pairs = list(zip(item.events, item.lines, strict=True))
            if not await asyncio.to_thread(self._is_stored, pairs):
                died = f"its worker died, or its lease ran out, in try {lease.attempt - 1} of {self.attempts}"
                await self._poison(lease, {"reason": f"retries exhausted: {died}", "error": "worker died"})
                self.given_up += len(item.events)
                return None
        if (signature := lease.stored.headers.get(SIGNATURE)) is not None:
            self._signatures[stem_of(item.name)] = signature.encode()
        for bad in item.bad:
            await self._split_out(item, bad)
        self.given_up += len(item.bad)
        return item

    # ------------------------------------------------------------------ on the loop: settling

    async def _finish(self, lease: StreamLease) -> None:
        assert lease.stored is not None
        if self.keep_done_s > 0:
            await self.publish_copy("done", lease.stored, attempts=lease.attempt)
        await self._acknowledge(lease, b"+ACK")
        if lease.tried:
            await self.holders.forget_tries(lease.seq)
        self._settle(lease)

    async def _acknowledge(self, lease: StreamLease, word: bytes) -> None:
        """Have the broker delete a message, and wait until it has.

        A server that was killed may have forgotten that it delivered the message. Then it does not answer an
        acknowledgement, ever; the lease is ours by our note, so the message is deleted by its number."""
        if not await self._link.is_answered(lease.reply, word):
            await self._link.delete(self.streams.name, lease.seq)

    async def _poison(self, lease: StreamLease, reason: Mapping[str, object]) -> None:
        await self._leases.confirm()
        self._leases.refuse_lost(lease)
        assert lease.stored is not None
        await self.publish_copy("poison", lease.stored, attempts=lease.attempt, reason=reason)
        await self._acknowledge(lease, b"+TERM")
        if lease.tried:
            await self.holders.forget_tries(lease.seq)
        self._settle(lease)

    def _put_back(self, item: Item, rest_s: float, *, failed: bool) -> None:
        self._refuse_settled([item])

        async def free() -> None:
            lease = self._lease_of(item)
            await self._leases.confirm()
            self._leases.refuse_lost(lease)
            if failed:
                await self.holders.note_tries(lease.seq, lease.attempt)
            self._settle(lease)
            await self._leases.write()  # before the message is free: its next worker must not find it held
            # Answered when it is free: the next pull must find it. If not, it comes again when its time is over.
            await self._link.is_answered(lease.reply, put_back_word(rest_s))

        self._call(free, f"put {item.name} back")
        if rest_s > 0:
            self._rest_ends_s = max(self._rest_ends_s, time.monotonic() + rest_s)

    async def _split_out(self, item: Item, bad: BadLine) -> None:
        name = bad_line_name(item, bad)
        reason = {"reason": bad.reason, "bundle": item.name, "line": bad.number}
        await self._publish("poison", name, bad.line, attempts=item.attempt, reason=reason)

    def _settle(self, lease: StreamLease) -> None:
        lease.settled = True
        self._let_go(lease)

    def _let_go(self, lease: StreamLease) -> None:
        self._signatures.pop(stem_of(lease.name), None)
        self._leases.drop(lease)

    def _lease_of(self, item: Item) -> StreamLease:
        if not isinstance(item.lease, StreamLease) or self._pid != os.getpid():
            raise LeaseLost(f"{item.name} is not leased by this process")
        return item.lease

    @staticmethod
    def _refuse_settled(items: Sequence[Item]) -> None:
        if all(item.lease.settled for item in items):
            raise LeaseLost(f"{items[0].name} was settled before")

    def _look_is_due(self) -> bool:
        return time.monotonic() - self.holders.looked_at_s > self.lease_s / BROKER_BEATS

    # ------------------------------------------------------------------ on the loop: life

    def _call(self, act: Callable[[], Awaitable[T]], doing: str, *, more_s: float = 0.0) -> T:
        if self._is_closed:
            raise ValueError(f"the spool {self.streams.name} is closed")
        if self._pid != os.getpid():
            self._link.abandon()
            self._begin()

        async def ready() -> T:
            await self._make_ready()
            return await act()

        try:
            return self._link.call(ready, doing, more_s=more_s)
        except SpoolBroken:
            self._is_ready = False  # the broker may come back without our streams
            raise

    async def _make_ready(self) -> None:
        async with self._readying:
            if self._is_ready:
                return
            await self.streams.ensure(
                self._link, replicas=self._replicas, lease_s=self.lease_s, keep_done_s=self.keep_done_s
            )
            await self._link.listen(f"{self.streams.name}.wake.>", lambda _: self._arrived.set())
            self._is_ready = True

    # Looked up when they run: after a fork `_call` makes new leases.

    async def _take_turn(self) -> bool:
        return await self._leases.take_turn()

    async def _drop_turn(self) -> None:
        await self._leases.drop_turn()

    async def _leave(self) -> None:
        """Put our leases back and take our notes away."""
        held = await self._leases.drop_all()
        await self._deliveries.put_all_back()
        for lease in held:
            lease.settled = True
            await put_back(self._link, lease.reply)
        if self._leases.has_turn:
            await self._leases.drop_turn()
