"""A spool by hand, whichever way it stores events: looking, moving single events, leases of shell workers.

    by_hand(spool).stats()

What the command line and the daemon's counts need beyond the operations of `backend`. Everything works while workers
run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from watchbill.spool import inspect, shell_lease
from watchbill.spool.backend import AnySpool
from watchbill.spool.inspect import Entry, Stats
from watchbill.spool.item import Carried, Item
from watchbill.spool.layout import State
from watchbill.spool.names import stem_of
from watchbill.spool.queue import Spool
from watchbill.spool.replay import replay_dead, unreplayed
from watchbill.spool.retention import Collected, gc
from watchbill.spool.term import Term

__all__ = ["ByHand", "by_hand"]


class ByHand(Protocol):
    """One spool, for a person or a script."""

    def stats(self) -> Stats:
        """Count the events by state."""
        ...

    def counts(self, *states: State) -> dict[State, int]:
        """Count the events of these states, as cheaply as possible."""
        ...

    def entries(self, *states: State) -> Iterator[Entry]:
        """Yield the events of these states (all by default), in no order."""
        ...

    def by_age(self, *states: State, limit: int | None = None) -> tuple[Iterator[Entry], int]:
        """The events of these states, oldest first, and how many there are in all."""
        ...

    def beginning(self, stem: str, *states: State) -> list[Entry]:
        """The events whose stem begins with this; where one has exactly this stem, that one."""
        ...

    def show(self, entry: Entry) -> bytes:
        """An event's bytes. Raises SpoolLayout if they cannot be read."""
        ...

    def carried(self, entry: Entry) -> Carried:
        """An event as it is carried to another spool."""
        ...

    def unreplayed(self) -> int:
        """Acknowledged events that cannot be shown now."""
        ...

    def in_folders(self) -> int:
        """Waiting events that a plain `ls` of the queue does not show."""
        ...

    def requeue(self, entry: Entry, content: bytes | None = None) -> str:
        """Put a poisoned or finished event back with all attempts restored, and with another content if given."""
        ...

    def put_away(self, entry: Entry) -> None:
        """Take a poisoned event away that another spool has now."""
        ...

    def release(
        self, entry: Entry, *, force: bool = False, holder: bool = False, failed: bool = False
    ) -> str:
        """Put an event in flight back. Refused while its worker is alive, unless forced or asked for by its holder."""
        ...

    def poison(self, entry: Entry, reason: str, *, force: bool = False, holder: bool = False) -> str:
        """Give up an event that waits or is in flight."""
        ...

    def collect(self, *, keep_done_s: float, compact: bool = True, archive: Path | None = None) -> Collected:
        """Remove or archive finished events that are older."""
        ...

    def lease_out(self, term: Term) -> tuple[Path, Item] | None:
        """Lease the oldest event for a worker outside this process, as a file."""
        ...

    def find_leased(self, path: Path) -> Entry:
        """The event that is leased under exactly this path. Raises LeaseLost."""
        ...

    def is_leased_path(self, name: str) -> bool:
        """Whether a text is the path of a leased file."""
        ...

    def renew(self, path: Path, term: Term) -> Path:
        """Renew such a lease."""
        ...

    def finish(self, path: Path) -> str:
        """Finish such an event, durably, and return its name."""
        ...

    def fail(self, path: Path, reason: str) -> State:
        """Put such an event back or, after its last attempt, give it up. Return where it went."""
        ...


def by_hand(spool: AnySpool) -> ByHand:
    """The same spool, by hand."""
    if isinstance(spool, Spool):
        return _FilesByHand(spool)
    # Only now: a command for files should not pay for an event loop.
    from watchbill.spool.jetstream.by_hand import JetByHand
    from watchbill.spool.jetstream.spool import JetSpool

    assert isinstance(spool, JetSpool)
    return JetByHand(spool)


class _FilesByHand:
    """A spool of files."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def stats(self) -> Stats:
        return inspect.stats(self._spool)

    def counts(self, *states: State) -> dict[State, int]:
        return inspect.counts(self._spool.layout.root, *states)

    def entries(self, *states: State) -> Iterator[Entry]:
        return inspect.entries(self._spool, *states)

    def by_age(self, *states: State, limit: int | None = None) -> tuple[Iterator[Entry], int]:
        replay_dead(self._spool.layout)
        return inspect.by_age(self._spool, *states, limit=limit)

    def beginning(self, stem: str, *states: State) -> list[Entry]:
        found: list[Entry] = []
        for entry in inspect.entries(self._spool, *states):
            its = stem_of(entry.name)
            if its == stem:
                return [entry]
            if its.startswith(stem):
                found.append(entry)
        return found

    def show(self, entry: Entry) -> bytes:
        return inspect.show(self._spool, entry)[1]

    def carried(self, entry: Entry) -> Carried:
        content = self.show(entry).removesuffix(b"\n")
        return Carried(entry.name, content, entry.attempt, self._spool.signature_of(entry.name))

    def unreplayed(self) -> int:
        return unreplayed(self._spool.layout)

    def in_folders(self) -> int:
        return inspect.in_folders(self._spool)

    def requeue(self, entry: Entry, content: bytes | None = None) -> str:
        if content is not None:
            inspect.replace_content(entry, content)
        return inspect.requeue(self._spool, entry)

    def put_away(self, entry: Entry) -> None:
        inspect.put_away(self._spool, entry)

    def release(
        self, entry: Entry, *, force: bool = False, holder: bool = False, failed: bool = False
    ) -> str:
        return inspect.release_named(self._spool, entry, force=force, holder=holder, failed=failed)

    def poison(self, entry: Entry, reason: str, *, force: bool = False, holder: bool = False) -> str:
        return inspect.poison_named(self._spool, entry, reason, force=force, holder=holder)

    def collect(self, *, keep_done_s: float, compact: bool = True, archive: Path | None = None) -> Collected:
        return gc(self._spool, keep_done_s=keep_done_s, compact=compact, archive=archive)

    def lease_out(self, term: Term) -> tuple[Path, Item] | None:
        return shell_lease.dequeue(self._spool, term)

    def find_leased(self, path: Path) -> Entry:
        return inspect.find_leased(self._spool, path)

    def is_leased_path(self, name: str) -> bool:
        return self._spool.layout.folder(State.IN_FLIGHT) in Path(name).absolute().parents

    def renew(self, path: Path, term: Term) -> Path:
        return shell_lease.renew(self._spool, path, term)

    def finish(self, path: Path) -> str:
        return shell_lease.done(self._spool, path)

    def fail(self, path: Path, reason: str) -> State:
        return shell_lease.fail(self._spool, path, reason)
