"""What a spool can do, whichever way it stores events: as files (`queue`) or on a broker (`jetstream`).

The drain, the command line and moves between spools know nothing else. Both kinds pass the same contract tests
(`tests/store/test_backends.py`). Each operation raises SpoolFull or SpoolBroken when it cannot be done now, and
LeaseLost for a lease that has ended.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from watchbill.spool.events import Event
from watchbill.spool.faults import PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.item import BadLine, Carried, Item
from watchbill.spool.recovery import Recovered

__all__ = ["AnySpool", "leased_for_a_block"]

_AnyEvent = Mapping[str, Any] | bytes | str


class AnySpool(Protocol):
    """One spool."""

    given_up: int  # events poisoned before delivery: unreadable, or their workers died
    attempts: int
    path: Path  # files on this machine: all of the spool, or those of shell workers' leases

    @property
    def named(self) -> str:
        """The spool, for messages."""
        ...

    @property
    def in_flight_here(self) -> int:
        """Events that are leased here and not settled: a tier may sleep only at 0 (SPOOL-09)."""
        ...

    @property
    def rests_s(self) -> float:
        """Seconds until all events may be leased again that were put back here; 0 if they may now."""
        ...

    @property
    def barred(self) -> dict[str, str]:
        """What may not be read or moved here, each with the reason."""
        ...

    def warnings(self) -> list[str]:
        """What an operator should know about the place where events are stored."""
        ...

    def signature_of(self, name: str) -> bytes | None:
        """The signature of an event."""
        ...

    def enqueue(self, event: _AnyEvent) -> str:
        """Store one event and return its name. On return it is acknowledged."""
        ...

    def enqueue_many(self, events: Iterable[_AnyEvent], *, bundle: bool = False) -> list[str]:
        """Store many events and return their names."""
        ...

    def put_many(self, carried: Sequence[Carried]) -> None:
        """Store events of another spool under their own names; what this spool has is left out."""
        ...

    def put_poison(self, carried: Carried, reason: Mapping[str, object]) -> None:
        """Store an event that another spool has given up, with its reason."""
        ...

    def dequeue(self) -> AbstractContextManager[Item | None]:
        """Lease the oldest event for the length of a `with` block."""
        ...

    def lease(self) -> Item | None:
        """Lease the oldest event; None when nothing waits."""
        ...

    def lease_many(
        self, count: int, *, bytes_max: int = ..., retries_alone: bool = False, counts: bool = True
    ) -> list[Item]:
        """Lease up to `count` of the oldest events."""
        ...

    def done(self, item: Item) -> None:
        """Finish an event."""
        ...

    def done_many(self, items: Sequence[Item]) -> None:
        """Finish the events of one `lease_many` that are not settled yet."""
        ...

    def release(self, item: Item, *, rest_s: float = 0.0) -> None:
        """Put an event back without using up an attempt."""
        ...

    def give_back(self, item: Item) -> None:
        """Release, now or later."""
        ...

    def poison(self, item: Item, reason: str) -> None:
        """Give an event up."""
        ...

    def fail(self, item: Item, error: BaseException, *, rest_s: float = 0.0) -> bool:
        """Release an event that failed, or poison it after its last attempt. True if it was poisoned."""
        ...

    def split_out(self, item: Item, bad: BadLine) -> None:
        """Put a bundle's bad line into poison."""
        ...

    def recover(self, *, start: bool = True) -> Recovered:
        """Put back what dead workers have leased."""
        ...

    def spare(
        self, is_stored: Callable[[list[tuple[Event, bytes]]], bool], corpora: Sequence[Path] = ()
    ) -> None:
        """Never poison an event because its workers died if it is stored where they store events: in `corpora`."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something may have arrived, at most `timeout_s`."""
        ...

    def wake(self) -> None:
        """End a `wait` in another thread."""
        ...

    def take_turn(self) -> bool:
        """Whether this worker is the only one that may lease now."""
        ...

    def let_turn_go(self) -> None:
        """Let another worker have the turn."""
        ...

    def close(self) -> None:
        """End the use of this spool."""
        ...


@contextmanager
def leased_for_a_block(spool: AnySpool) -> Generator[Item | None]:
    """Lease the oldest event, and settle it by how the `with` block ends, unless the block did."""
    item = spool.lease()
    if item is None:
        yield None
        return
    with given_back_if_unsettled(spool, item):
        try:
            yield item
        except PoisonEvent as error:
            if not item.lease.settled:
                spool.poison(item, str(error))
            raise
        except Exception as error:
            if not item.lease.settled:
                spool.fail(item, error)
            raise
        except BaseException:
            if not item.lease.settled:
                spool.release(item)
            raise
        if not item.lease.settled:
            spool.done(item)


@contextmanager
def given_back_if_unsettled(spool: AnySpool, item: Item) -> Generator[None]:
    """Give an event back whose end could not be stored, now or as soon as it can be: the block is over, so nobody else
    would settle it, and no recovery takes it from a worker that lives."""
    try:
        yield
    except (SpoolFull, SpoolBroken, SpoolLayout):
        if not item.lease.settled:
            spool.give_back(item)
        raise
