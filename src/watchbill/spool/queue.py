"""Spool: a durable queue of plain files.

    with Spool("spool") as spool:
        spool.enqueue({"id": "1", "kind": "note", "ts": 0})
        with spool.dequeue() as item:
            if item is not None:
                print(item.event)

When `enqueue` returns, the event survives a power cut. Delivery is at least once: leaving the `with` block
normally is done, an exception is a release, the exception after the last attempt is poison. Nothing here
needs a daemon; any number of processes and threads may use one spool at the same time. A Spool notices a
fork and starts with new files in the child.
"""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from watchbill.files.atomic import NotAFile, make_folder, read_regular, write_file_durable
from watchbill.files.watch import Watch
from watchbill.spool.backend import leased_for_a_block
from watchbill.spool.consumer import Consumer, Lease, reason_bytes, rest_after
from watchbill.spool.corpora import note_corpora
from watchbill.spool.events import Event, encode, refuse_bundle
from watchbill.spool.faults import (
    EventRefused,
    LeaseLost,
    SpoolBroken,
    SpoolFull,
    SpoolLayout,
    disk_fault,
)
from watchbill.spool.item import BadLine, Carried, Item, keep_bad_line, read_item
from watchbill.spool.layout import Layout, State, known_stems, storage_warnings, unseen_warnings
from watchbill.spool.limits import (
    ATTEMPTS,
    BUNDLE_BYTES_MAX,
    EVENT_BYTES_MAX,
    FOREIGN_LEASE_S,
    SIGNATURE_BYTES_MAX,
)
from watchbill.spool.log import Record
from watchbill.spool.names import stem_of, with_attempt
from watchbill.spool.producer import Producer, Signer
from watchbill.spool.publish import SIGNATURE_SUFFIX
from watchbill.spool.recovery import RECOVER_EVERY_S, Recovered, Rules, recover
from watchbill.spool.replay import replay_dead
from watchbill.spool.turn import Turn

__all__ = ["Durability", "Spool"]

Durability = Literal["wal", "event", "none"]
AnyEvent = Mapping[str, Any] | bytes | str


class _Parts:
    """The open parts of a Spool; a separate object, so that they can be closed when the Spool is garbage-collected."""

    def __init__(self, layout: Layout) -> None:
        self.pid = os.getpid()
        self.layout = layout
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self.watch: Watch | None = None

    def close(self) -> None:
        ours = self.pid == os.getpid()
        for part in (self.producer, self.consumer):
            if part is not None:
                part.close() if ours else part.abandon()
        self.producer = self.consumer = None
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def close_all(self) -> None:
        self.close()
        self.layout.close()


class Spool:
    """One spool. Creates its folders; raises SpoolLayout, SpoolFull or SpoolBroken if it cannot."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "wal",
        attempts: int = ATTEMPTS,
        event_bytes_max: int = EVENT_BYTES_MAX,
        signer: Signer | None = None,
        foreign_lease_s: float = FOREIGN_LEASE_S,
        shared: bool | None = None,
    ) -> None:
        """`shared` says whether other hosts use this folder, too; None: if it is on a network mount. Then `wal` acts as
        `event`: no host could replay the log of another one that may still live."""
        if durability not in ("wal", "event", "none"):
            raise ValueError(f"durability is wal, event or none, not {durability!r}")
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        self.path = Path(path)
        self._parts = _Parts(Layout.open(self.path, shared=shared))
        self._durability: Durability = durability
        self.attempts = attempts
        self._event_bytes_max = event_bytes_max
        self._recovery = Rules(attempts, foreign_lease_s)
        self._corpora: tuple[Path, ...] = ()  # of a drain of ours
        self._sign = signer.sign if signer is not None else None
        self._lock = threading.RLock()
        self._turn = Turn()
        self._known: set[str] | None = None  # stems of all events, once they were needed
        self._recovered_at_s: float | None = None
        self._place_seen_at_s = time.monotonic()
        self.given_up = 0  # events poisoned before delivery: unreadable, or their workers died
        self._finalizer = weakref.finalize(self, self._parts.close_all)

    @property
    def layout(self) -> Layout:
        """The spool's folders. Raises ValueError after `close`."""
        if not self._finalizer.alive:
            raise ValueError(f"the spool {self.path} is closed")
        return self._parts.layout

    @property
    def durability(self) -> Durability:
        """The mode that holds: on a mount that hosts share `wal` acts as `event`."""
        return "event" if self._durability == "wal" and self._parts.layout.is_shared else self._durability

    @property
    def in_flight_here(self) -> int:
        """Events that this Spool has leased and not settled: a tier may sleep only at 0 (SPOOL-09)."""
        consumer = self._parts.consumer
        return consumer.in_flight if consumer is not None else 0

    @property
    def rests_s(self) -> float:
        """Seconds until this Spool may lease all events again that it has put back; 0 if it may now."""
        consumer = self._parts.consumer
        return consumer.rests_s if consumer is not None else 0.0

    @property
    def barred(self) -> dict[str, str]:
        """Files and folders that this Spool may not read or move, each with the reason."""
        return self.layout.barred.standing()

    @property
    def named(self) -> str:
        """The spool, for messages."""
        return str(self.path)

    def signature_of(self, name: str) -> bytes | None:
        """The signature beside an event; None if there is none."""
        path = f"{self.layout.signatures.name}/{stem_of(name)}{SIGNATURE_SUFFIX}"
        try:
            return read_regular(path, dir_fd=self.layout.root_fd, bytes_max=SIGNATURE_BYTES_MAX)
        except (FileNotFoundError, NotAFile):
            return None

    def warnings(self) -> list[str]:
        """Say what an operator should know about the disk under this spool, and about files that are no events."""
        return storage_warnings(self.layout.root) + unseen_warnings(self.layout.folder(State.QUEUE))

    # Producing

    def enqueue(self, event: AnyEvent) -> str:
        """Store one event and return its file's name. On return it survives a power cut.

        Raises EventRefused (this event never), SpoolFull or SpoolBroken (nothing was acknowledged).
        """
        return self._producer().commit([encode(event, self._event_bytes_max)])[0]

    def enqueue_many(self, events: Iterable[AnyEvent], *, bundle: bool = False) -> list[str]:
        """Store many events with one sync and return their files' names.

        With `bundle` they become lines of one file, leased and finished together, and the list has one name.
        If any event is refused, none is stored.
        """
        lines = [encode(event, self._event_bytes_max) for event in events]
        return self.commit_lines(lines, bundle=bundle)

    def commit_lines(self, lines: Sequence[bytes], *, bundle: bool = False) -> list[str]:
        """Store lines that `events.encode` has made. For callers that encode elsewhere."""
        if not lines:
            return []
        if bundle:
            refuse_bundle(lines)
        return self._producer().commit(lines, bundle=bundle)

    def put_many(self, carried: Sequence[Carried]) -> None:
        """Store events of another spool under their own names, durably. What this spool has is left out: a move that
        was cut off may be repeated."""
        if self._known is None:
            self._known = known_stems(self.layout.root)
        fresh = [each for each in carried if stem_of(each.name) not in self._known]
        records: list[Record] = []
        for each in fresh:
            if each.signature is not None:
                records.append(Record(stem_of(each.name) + SIGNATURE_SUFFIX, each.signature))
            records.append(Record(with_attempt(each.name, each.attempts), each.content))
        if records:
            self._producer().put(records)
        self._known.update(stem_of(each.name) for each in fresh)

    def forget_stems(self) -> None:
        """Read anew what this spool has before the next `put_many`: others may have moved it away since."""
        self._known = None

    def put_poison(self, carried: Carried, reason: Mapping[str, object]) -> None:
        """Store an event that another spool has given up, with its reason."""
        name = with_attempt(carried.name, carried.attempts)
        folder, told = self.layout.folder(State.POISON), reason_bytes(name, carried.attempts, reason)
        try:
            if carried.signature is not None:
                make_folder(self.layout.signatures)
                write_file_durable(
                    self.layout.signatures / (stem_of(name) + SIGNATURE_SUFFIX), carried.signature
                )
            make_folder(folder)
            write_file_durable(folder / f"{name}.reason.json", told)
            write_file_durable(folder / name, carried.content + b"\n")
        except OSError as error:
            raise disk_fault(error, f"store {name}") from error

    def checkpoint(self) -> None:
        """Make all visible files durable and cut this writer's log."""
        producer = self._parts.producer
        if producer is not None:
            producer.checkpoint()

    # Consuming

    def dequeue(self) -> contextlib.AbstractContextManager[Item | None]:
        """Lease the oldest event for the length of a `with` block; None when nothing waits.

        Leaving normally is done. An exception is a release, or poison after the last attempt; PoisonEvent
        is poison at once; the exception propagates. Ctrl-C and cancellation release it without using up an attempt.
        """
        return leased_for_a_block(self)

    def lease(self) -> Item | None:
        """Lease the oldest event without a `with` block; settle it with done, release, fail or poison."""
        consumer = self._consumer()
        while (lease := consumer.lease()) is not None:
            item = self._read(consumer, lease)
            if item is not None:
                return item
        return None

    def lease_many(
        self,
        count: int,
        *,
        bytes_max: int = BUNDLE_BYTES_MAX,
        retries_alone: bool = False,
        counts: bool = True,
    ) -> list[Item]:
        """Lease up to `count` of the oldest events, in arrival order. Unreadable ones go to poison at once.

        Several share a folder of their own, which `done_many` finishes with one rename. With
        `retries_alone` an event that was leased before comes alone: if it kills its workers, it does not use up
        the attempts of other events. Without `counts` the death of this worker uses up no attempt.
        """
        consumer = self._consumer()
        items: list[Item] = []
        size = 0
        while len(items) < count and size < bytes_max:
            try:
                # Do not read the folder again just to fill a batch.
                lease = consumer.lease(
                    rescan=not items, retries=not (items and retries_alone), batch=count > 1, counts=counts
                )
                item = self._read(consumer, lease) if lease is not None else None
            except (SpoolFull, SpoolBroken, SpoolLayout):
                if items:
                    break  # the events leased so far can be delivered
                raise
            if lease is None:
                break
            if item is None:
                continue
            items.append(item)
            size += len(item.content)
            if retries_alone and item.attempt > 1:
                break
        return items

    def done(self, item: Item) -> None:
        """Finish an event: it moves to queue-done. Raises LeaseLost if the lease was lost."""
        self._consumer_of(item).done(item.lease)

    def done_many(self, items: Sequence[Item]) -> None:
        """Finish the events of a `lease_many` that are not settled yet: cheaper than one by one."""
        if items:
            self._consumer_of(items[0]).done_batch([item.lease for item in items])

    def release(self, item: Item, *, rest_s: float = 0.0) -> None:
        """Put an event back; this process leaves it alone for `rest_s` seconds. It uses up no attempt; `fail` does."""
        self._consumer_of(item).release(item.lease, rest_s)

    def give_back(self, item: Item) -> None:
        """Release, now or later, without using up an attempt: an event that cannot be moved now is moved later."""
        self._consumer_of(item).give_back(item.lease)

    def charge(self, item: Item, *, counts: bool) -> None:
        """Say whether the death of this worker uses up an attempt of the event, as it does from the lease on."""
        self._consumer_of(item).charge(item.lease, counts=counts)

    def forget(self, item: Item) -> None:
        """Drop the lease of an event whose file was moved elsewhere."""
        self._consumer_of(item).forget(item.lease)

    def poison(self, item: Item, reason: str) -> None:
        """Give an event up; the reason is written beside it."""
        self._consumer_of(item).poison(item.lease, {"reason": reason, "error": "poisoned"})

    def fail(self, item: Item, error: BaseException, *, rest_s: float = 0.0) -> bool:
        """Release an event that failed, or poison it after its last attempt. Return True if it was poisoned."""
        return self._fail(self._consumer_of(item), item.lease, f"{type(error).__name__}: {error}", rest_s)

    def recover(self, *, start: bool = True) -> Recovered:
        """Put back the events that dead workers left in flight, and replay the logs of dead writers.

        Never takes from a worker or writer that is alive. An event that a foreign program leased stays with it for
        `foreign_lease_s`. With `start` it waits for a replay by another process.
        """
        try:
            with self._lock:
                self._renew_layout()
            note_corpora(self.layout, self._corpora)
            replay_dead(self.layout, wait=start)
            result = recover(self.layout, self._recovery)
        except OSError as error:
            raise disk_fault(error, "recover the spool") from error
        self._recovered_at_s = time.monotonic()
        self.given_up += result.poisoned
        consumer = self._parts.consumer
        if consumer is not None:
            consumer.wake()
        return result

    def spare(
        self, is_stored: Callable[[list[tuple[Event, bytes]]], bool], corpora: Sequence[Path] = ()
    ) -> None:
        """Let recovery put back, and never poison, files of which `is_stored` finds an event in the worker's store.

        `corpora` are its files: they are noted in the spool before the first lease, for recoveries of other workers."""
        self._recovery = replace(self._recovery, is_stored=is_stored)
        self._corpora = tuple(corpora)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something may have arrived, at most `timeout_s`. It may be wrong, so check the queue."""
        deaf, watch = self._parts.watch is None, self._watch()
        consumer = self._consumer()
        # An arrival in a folder that was not watched yet caused no event: check first, then wait.
        arrived = watch.follow(consumer.folders) or deaf or watch.wait(timeout_s)
        consumer.wake()
        return arrived

    def wake(self) -> None:
        """End a `wait` in another thread. Does nothing before the first `wait` and after `close`."""
        if (watch := self._parts.watch) is not None:
            watch.wake()

    def take_turn(self) -> bool:
        """Whether this Spool is the only one that may lease now; `ordered` drains ask before each batch. Raises
        SpoolBroken on a shared mount where another host keeps the order."""
        return self._turn.take(self.layout.root, shared=self.layout.is_shared)

    def let_turn_go(self) -> None:
        """Let another worker have the turn."""
        self._turn.let_go()

    # Life

    def close(self) -> None:
        """Cut the log and remove the worker's folder, for good. Events that are still leased are left to recovery,
        and records that cannot be made durable now are left to replay."""
        self._turn.let_go()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _producer(self) -> Producer:
        parts = self._parts
        producer = parts.producer
        if producer is not None and not producer.broken and parts.pid == os.getpid():
            self._notice_mount()
            if producer.is_in_place:
                return producer
        with self._lock:
            self._after_fork()
            if parts.producer is not None and not parts.producer.is_in_place:
                parts.producer.broken = True
            if parts.producer is not None and parts.producer.broken:
                parts.producer.close()
                parts.producer = None
                with contextlib.suppress(OSError):
                    replay_dead(parts.layout)  # events that the broken writer acknowledged are in its log
            if parts.producer is None:
                try:
                    self.layout.renew()
                    parts.producer = Producer(self.layout, self.durability, self._sign)
                except OSError as error:
                    raise disk_fault(error, "open the spool for writing") from error
            return parts.producer

    def _consumer(self) -> Consumer:
        """Return the worker, and recover from crashed ones when that is due."""
        parts = self._parts
        consumer = parts.consumer
        if consumer is not None and consumer.is_ours and not self._recovery_is_due():
            return consumer
        with self._lock:
            self._after_fork()
            try:
                if self._recovery_is_due():
                    self._renew_layout()
                if parts.consumer is not None and not parts.consumer.is_ours:
                    parts.consumer.abandon()  # our folder was removed or moved
                    parts.consumer = None
                if parts.consumer is None:
                    self.layout.renew()
                    parts.consumer = Consumer(self.layout)
                    if parts.watch is not None:
                        parts.watch.renew()
            except OSError as error:
                raise disk_fault(error, "open the spool for reading") from error
            if self._recovery_is_due():
                self.recover(start=self._recovered_at_s is None)
                if parts.producer is not None:
                    parts.producer.checkpoint_if_old()
            return parts.consumer

    def _renew_layout(self) -> None:
        """Notice that the spool was moved, or mounted again: a process that only waits has no other way to."""
        consumer = self._parts.consumer
        if consumer is None or not consumer.in_flight or not consumer.is_ours:
            self.layout.renew()

    def _notice_mount(self) -> None:
        """Notice a mount that came over the folder that we write to, as one that was away when this process began:
        nobody finds what is stored below it. Raises what `Layout.open` raises."""
        now_s = time.monotonic()
        if now_s - self._place_seen_at_s < RECOVER_EVERY_S or self._parts.layout.is_mounted:
            return
        self._place_seen_at_s = now_s
        with self._lock:
            try:
                if self.layout.is_in_place:
                    return
            except FileNotFoundError:
                pass  # the mount has no such spool yet
            except OSError:
                return  # the write that follows says what is wrong
            with contextlib.suppress(OSError):
                self.layout.renew()

    def _recovery_is_due(self) -> bool:
        last = self._recovered_at_s
        return last is None or time.monotonic() - last > RECOVER_EVERY_S

    def _consumer_of(self, item: Item) -> Consumer:
        consumer = self._parts.consumer
        if consumer is None or consumer.path is not item.folder or self._parts.pid != os.getpid():
            raise LeaseLost(f"{item.name} is not leased by this process")
        return consumer

    def _watch(self) -> Watch:
        with self._lock:
            self._after_fork()
            if self._parts.watch is None:
                self._parts.watch = Watch(self.layout.folder(State.QUEUE))
            return self._parts.watch

    def _after_fork(self) -> None:
        if self._parts.pid != os.getpid():
            self._parts.close()
            self._parts.pid = os.getpid()
            self._recovered_at_s = None

    def _fail(self, consumer: Consumer, lease: Lease, text: str, rest_s: float) -> bool:
        if lease.attempt >= self.attempts:
            consumer.poison(lease, {"reason": f"retries exhausted: {text}", "error": "retries exhausted"})
            return True
        consumer.release(lease, rest_s, failed=True)
        return False

    def _read(self, consumer: Consumer, lease: Lease) -> Item | None:
        """Read a leased file, or settle it and return None."""
        try:
            item = self._read_or_settle(consumer, lease)
            if item is not None:
                for bad in item.bad:
                    self.split_out(item, bad)
                self.given_up += len(item.bad)
            return item
        except (SpoolFull, SpoolBroken, SpoolLayout):
            consumer.give_back(lease)
            raise

    def _read_or_settle(self, consumer: Consumer, lease: Lease) -> Item | None:
        try:
            return read_item(lease, consumer.path, consumer.fd, self._event_bytes_max)
        except EventRefused as error:
            consumer.poison(lease, {"reason": str(error), "error": "unreadable"})
            self.given_up += 1
        except FileNotFoundError:
            consumer.forget(lease)  # removed by hand between lease and read
        except PermissionError as error:
            consumer.set_aside(lease, error)  # another user may be able to read it: do not poison it
        except OSError as error:
            # The disk cannot read this file now; the event is poisoned only after its last attempt.
            text = f"cannot be read: {error}"
            self.given_up += self._fail(consumer, lease, text, rest_after(lease.attempt))
        return None

    def split_out(self, item: Item, bad: BadLine) -> None:
        """Put a bundle's bad line into poison; a redelivery writes the same file."""
        try:
            keep_bad_line(item, bad, self.layout.folder(State.POISON))
        except OSError as error:
            raise disk_fault(error, f"split a bad line out of {item.name}") from error
