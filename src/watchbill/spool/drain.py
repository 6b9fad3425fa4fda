"""The drain: moves events from a spool into its corpus, and does nothing else.

    lease a batch ─▶ verify, validate ─▶ append to the corpus (one write, one fdatasync) ─▶ done

Invalid events go to poison with their reason; the rest of the batch goes on. When the corpus cannot be
written (disk full), the batch stays leased and the append is tried again with growing pauses: a failing
disk uses up no attempt. An event that was leased before is drained alone, so that an event that kills its
worker cannot take others to poison. An event that the corpus already holds, because a worker died between append
and done, is finished and never poisoned. Several drains may run on one spool; with `ordered` only one at a time.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from watchbill.spool.backend import AnySpool
from watchbill.spool.consumer import rest_after
from watchbill.spool.corpus import Corpus
from watchbill.spool.events import Event, Id, event_id
from watchbill.spool.faults import LeaseLost, PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.item import BadLine, Item
from watchbill.spool.limits import BACKOFF_FIRST_S, BACKOFF_LAST_S, DRAIN_BATCH, DRAIN_BATCH_BYTES_MAX, POLL_S
from watchbill.spool.schema import BuiltinSchema, Schema

__all__ = ["Drain", "DrainReport", "Verifier", "drain_all"]

#: The corpus for kinds that have none of their own.
ANY_KIND = "*"


class Verifier(Protocol):
    """Checks signatures; `watchbill.spool.signing` has one."""

    def refuse(self, spool: AnySpool, name: str, content: bytes) -> str | None:
        """Return why the signature beside this event is not accepted, or None."""
        ...


@dataclass(slots=True)
class DrainReport:
    """What a drain has done so far; counts are of events."""

    appended: int = 0
    duplicates: int = 0
    poisoned: int = 0
    released: int = 0
    corpus_failures: int = 0  # appends that had to be tried again

    @property
    def settled(self) -> int:
        return self.appended + self.duplicates + self.poisoned


class Drain:
    """One drain worker. Runs in the thread that calls it."""

    def __init__(
        self,
        spool: AnySpool,
        corpora: Corpus | Mapping[str, Corpus],
        *,
        schema: Schema | None = None,
        verifier: Verifier | None = None,
        handle: Callable[[Event], None] | None = None,
        progress: Callable[[DrainReport], None] | None = None,
        poll_s: float = POLL_S,
        batch: int = DRAIN_BATCH,
        ordered: bool = False,
    ) -> None:
        """`corpora` may name one corpus per kind, with "*" for the rest. `handle` sees every valid event before
        it is appended: it may raise PoisonEvent, or anything else for another try later."""
        self.spool = spool
        self._corpora = {ANY_KIND: corpora} if isinstance(corpora, Corpus) else dict(corpora)
        self._takes_any = ANY_KIND in self._corpora
        self._schema = schema or BuiltinSchema()
        self._verifier = verifier
        self._handle = handle
        self._progress = progress
        self._poll_s = poll_s
        self._batch = batch
        self._ordered = ordered
        self._given_up = spool.given_up
        self._stop = threading.Event()
        self._active_at_s = time.monotonic()
        spool.spare(self._is_any_stored, [corpus.path for corpus in self._corpora.values()])
        self.report = DrainReport()
        self.last_error = ""  # the disk's last error, for `status` and progress lines

    @property
    def idle_s(self) -> float:
        """Seconds since the last event, 0 while one is being drained: a burst tier sleeps by this (SPOOL-09)."""
        return 0.0 if self.spool.in_flight_here else time.monotonic() - self._active_at_s

    def run(self) -> DrainReport:
        """Drain until `stop`: at once on arrival, and by the clock where arrivals cannot be noticed."""
        pause_s = BACKOFF_FIRST_S
        while not self._stop.is_set():
            try:
                if not self._may_go() or not self.step():
                    self.spool.wait(self._poll_s)
                pause_s = BACKOFF_FIRST_S
            except (SpoolFull, SpoolBroken, SpoolLayout) as error:
                self.last_error = str(error)
                self._stop.wait(pause_s)
                pause_s = min(BACKOFF_LAST_S, pause_s * 2)
        self._let_go()
        return self.report

    def run_once(self) -> DrainReport:
        """Recover the events of crashed workers, drain until none waits or rests between attempts, and return."""
        self.spool.recover()
        while not self._stop.is_set():
            rests_s = self.spool.rests_s
            if not self._may_go():
                self._stop.wait(self._poll_s)
            elif not self.step():
                rests_s = max(rests_s, self.spool.rests_s)  # before, or its end may fall between
                if not rests_s:
                    break
                self._stop.wait(min(rests_s, self._poll_s))
        self._let_go()
        return self.report

    def stop(self) -> None:
        """End `run` after the current batch. From any thread or signal handler."""
        self._stop.set()
        self.spool.wake()

    def step(self) -> int:
        """Drain one batch and return how many files it had. Raises SpoolFull or SpoolBroken of the spool."""
        items = self._lease()
        if not items:
            return 0
        self._active_at_s = time.monotonic()
        try:
            self._store([item for item in items if self._accept(item)])
        except (SpoolFull, SpoolBroken, SpoolLayout):
            for item in items:
                if not item.lease.settled:
                    self.spool.give_back(item)
            raise
        if self._progress is not None:
            self._progress(self.report)
        return len(items)

    def _lease(self) -> list[Item]:
        """Lease a batch; events that went to poison instead are counted, too."""
        try:
            return self.spool.lease_many(self._batch, bytes_max=DRAIN_BATCH_BYTES_MAX, retries_alone=True)
        finally:
            self.report.poisoned += self.spool.given_up - self._given_up
            self._given_up = self.spool.given_up

    def _accept(self, item: Item) -> bool:
        """Verify and validate one file; settle it and return False if it must not be appended."""
        if self._verifier is not None:
            reason = self._verifier.refuse(self.spool, item.name, item.content)
            if reason is not None:
                return self._poison(item, reason)
        if item.attempt > 1 and all(self._known(zip(item.events, item.lines, strict=True))):
            return True  # its last worker died between append and done: the append will find nothing to add
        for index in range(len(item.events) - 1, -1, -1):
            event = item.events[index]
            reason = self._schema.refuse(event)
            if reason is None and not self._takes_any:
                reason = self._unroutable(event)
            if reason is None:
                continue
            if len(item.events) == 1:
                return self._poison(item, f"schema: {reason}")
            self._split_out(item, index, f"schema: {reason}")
        return self._handle is None or self._run(self._handle, item)

    def _is_any_stored(self, events: list[tuple[Event, bytes]]) -> bool:
        """Whether the corpus holds one of these events. Raises SpoolFull or SpoolBroken."""
        return any(self._known(events))

    def _known(self, events: Iterable[tuple[Event, bytes]]) -> list[bool]:
        """Return for each event, in no order, whether its corpus holds it."""
        by_corpus: dict[str, list[tuple[Event, bytes]]] = {}
        for event, line in events:
            by_corpus.setdefault(self._route(event), []).append((event, line))
        known: list[bool] = []
        for route, group in by_corpus.items():
            corpus = self._corpora.get(route)
            known += (
                [False] * len(group)
                if corpus is None
                else corpus.known([event_id(event, line, corpus.id_key) for event, line in group])
            )
        return known

    def _run(self, handle: Callable[[Event], None], item: Item) -> bool:
        try:
            for event in item.events:
                handle(event)
        except PoisonEvent as error:
            return self._poison(item, str(error))
        except Exception as error:  # noqa: BLE001  the user's code: counted, written beside the event, retried
            if self.spool.fail(item, error, rest_s=rest_after(item.attempt)):
                self.report.poisoned += len(item.events)
            else:
                self.report.released += len(item.events)
            return False
        return True

    def _poison(self, item: Item, reason: str) -> bool:
        self.spool.poison(item, reason)
        self.report.poisoned += len(item.events)
        return False

    def _split_out(self, item: Item, index: int, reason: str) -> None:
        """Take one bad line out of a bundle. Its number counts good lines and bad ones."""
        taken = {bad.number for bad in item.bad}
        number = [n for n in range(1, len(item.events) + len(item.bad) + 1) if n not in taken][index]
        bad = BadLine(number, item.lines.pop(index), reason)
        item.events.pop(index)
        item.bad.append(bad)
        self.spool.split_out(item, bad)
        self.report.poisoned += 1

    def _store(self, items: list[Item]) -> None:
        """Append a batch, corpus by corpus, then acknowledge. The order of leases is the corpus's order."""
        by_corpus: dict[str, list[tuple[Id, bytes]]] = {route: [] for route in self._corpora}
        keys = {route: corpus.id_key for route, corpus in self._corpora.items()}
        for item in items:
            for event, line in zip(item.events, item.lines, strict=True):
                route = ANY_KIND if len(keys) == 1 and self._takes_any else self._route(event)
                by_corpus[route].append((event_id(event, line, keys[route]), line))
        for route, events in by_corpus.items():
            if events and not self._append(self._corpora[route], events):
                for item in items:
                    self._settle(item, self.spool.release)
                    self.report.released += len(item.events)
                return
        try:
            self.spool.done_many(items)
        except LeaseLost:
            for item in items:  # one of them was moved away by hand
                if not item.lease.settled:
                    self._settle(item, self.spool.done)

    def _append(self, corpus: Corpus, events: list[tuple[Id, bytes]]) -> bool:
        """Append until it succeeds; return False if told to stop before."""
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                result = corpus.append(events)
            except (SpoolFull, SpoolBroken, SpoolLayout) as error:
                self.last_error = str(error)
                self.report.corpus_failures += 1
                if self._progress is not None:
                    self._progress(self.report)
                if self._stop.wait(pause_s):
                    return False
                pause_s = min(BACKOFF_LAST_S, pause_s * 2)
                continue
            self.report.appended += result.appended
            self.report.duplicates += result.duplicates
            return True

    @staticmethod
    def _settle(item: Item, settle: Callable[[Item], None]) -> None:
        try:
            settle(item)
        except LeaseLost:
            return  # moved by hand; the corpus has the event, and recognises its id if it comes again

    def _unroutable(self, event: Event) -> str | None:
        if self._route(event) in self._corpora:
            return None
        return f"no corpus for kind {event.get('kind')!r}"

    def _route(self, event: Event) -> str:
        kind = event.get("kind")
        return kind if isinstance(kind, str) and kind in self._corpora else ANY_KIND

    def _may_go(self) -> bool:
        """With `ordered`: whether the turn of the whole spool is ours."""
        return not self._ordered or self.spool.take_turn()

    def _let_go(self) -> None:
        for corpus in self._corpora.values():
            corpus.close()
        if self._ordered:
            self.spool.let_turn_go()


def drain_all(drains: list[Drain], *, once: bool = False) -> DrainReport:
    """Run several drains, each in a thread of its own, until all end. Raises the first one's error, if any."""
    errors: list[BaseException] = []

    def work(drain: Drain) -> None:
        try:
            drain.run_once() if once else drain.run()
        except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
            errors.append(error)
            for other in drains:
                other.stop()

    threads = [threading.Thread(target=work, args=(drain,), name="watchbill-drain") for drain in drains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    total = DrainReport()
    for name in (field.name for field in fields(DrainReport)):
        setattr(total, name, sum(getattr(drain.report, name) for drain in drains))
    return total
