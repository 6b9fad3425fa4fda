"""Looking at a spool, and moving single events by hand, while workers run.

Everything here reads the four folders as they are; nothing needs a daemon. Counts are of events: a bundle
counts as many as its name says. An event that moves during the count may be counted twice or not at all.
"""

import contextlib
import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from watchbill.files.atomic import NotAFile, make_folder, open_folder, read_regular, write_file_durable
from watchbill.files.owner import LOCK_NAME, take_dead
from watchbill.spool.consumer import done_folder, move_unique, reason_bytes
from watchbill.spool.faults import LeaseLost, SpoolLayout, disk_fault
from watchbill.spool.layout import Layout, State, walk_events
from watchbill.spool.limits import BUNDLE_BYTES_MAX
from watchbill.spool.names import attempt_of, is_bundle, is_event, lines_of, ns_of, stem_of, with_attempt
from watchbill.spool.queue import Spool
from watchbill.spool.recovery import counts_tries
from watchbill.spool.replay import replay_dead, unreplayed
from watchbill.spool.term import holds

__all__ = [
    "Entry", "Stats", "by_age", "counts", "entries", "find", "find_leased", "in_folders", "not_leased_text", "oldest",
    "poison_named", "put_away", "release_named", "replace_content", "requeue", "show", "stats",
]  # fmt: skip

_Found = tuple[State, os.DirEntry[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a spool."""

    name: str
    state: State
    path: Path
    attempt: int
    events: int
    size_bytes: int
    age_ms: int
    folder: str  # worker, date or bucket; "" when it lies flat
    place: tuple[str, int] | None = None  # on a broker: stream and number
    told: dict[str, Any] | None = None  # the reason, where no file holds it

    @property
    def reason(self) -> dict[str, Any]:
        """Why it was poisoned; empty if that is not recorded."""
        return _reason(self.path) if self.told is None else self.told


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of events by state. `oldest_ms` is the age of the oldest waiting event, None if none waits."""

    queue: int
    in_flight: int
    done: int
    poison: int
    oldest_ms: int | None
    unreplayed: int  # acknowledged events that are only in a dead writer's log and cannot be made visible now

    def as_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__slots__}


def stats(spool: Spool) -> Stats:
    """Count the events, after replaying the logs of dead writers."""
    layout = spool.layout
    replay_dead(layout)
    oldest: int | None = None

    def noted() -> Iterator[_Found]:
        nonlocal oldest
        for found in _walk(layout.root, State.QUEUE):
            arrived = _arrived_ns(found[1])
            oldest = arrived if oldest is None or arrived < oldest else oldest
            yield found

    waiting = _count(noted())
    held = counts(layout.root, State.IN_FLIGHT, State.DONE, State.POISON)
    age = None if oldest is None else max(0, (time.time_ns() - oldest) // 1_000_000)
    return Stats(
        waiting, held[State.IN_FLIGHT], held[State.DONE], held[State.POISON], age, unreplayed(layout)
    )


def counts(root: Path, *states: State) -> dict[State, int]:
    """Count the events of these states by their file names alone; a missing spool holds none."""
    return {state: _count(_walk(root, state)) for state in states}


def in_folders(spool: Spool) -> int:
    """Count the events that wait in sub-folders of queue/, where a plain `ls` does not show them."""
    queue = os.fspath(spool.layout.folder(State.QUEUE))
    return _count(
        each for each in _walk(spool.layout.root, State.QUEUE) if os.path.dirname(each[1].path) != queue
    )


def entries(spool: Spool, *states: State) -> Iterator[Entry]:
    """Yield the files of these states (all four by default), in no order."""
    now_ns = time.time_ns()
    for state, found in _walk(spool.layout.root, *states):
        if (entry := _entry(spool.layout, state, found, now_ns)) is not None:
            yield entry


def oldest(spool: Spool, limit: int, *states: State) -> tuple[list[Entry], int]:
    """Return the oldest files of these states, at most `limit`, and how many files there are in all.

    Only names are read, except for the files that are returned: a million take a second, not a minute.
    """
    found, total = by_age(spool, *states, limit=limit)
    return list(found), total


def by_age(spool: Spool, *states: State, limit: int | None = None) -> tuple[Iterator[Entry], int]:
    """Yield the files of these states, oldest first, and say how many there are in all.

    Each file is opened when its turn comes; until then only names are held. Files that are gone by then are left out.
    """
    now_ns, total = time.time_ns(), 0

    def counted() -> Iterator[_Found]:
        nonlocal total
        for found in _walk(spool.layout.root, *states):
            total += 1
            yield found

    kept = (
        sorted(counted(), key=_arrival) if limit is None else heapq.nsmallest(limit, counted(), key=_arrival)
    )
    seen = (_entry(spool.layout, state, found, now_ns) for state, found in kept)
    return (entry for entry in seen if entry is not None), total


def find(spool: Spool, name: str, *states: State) -> Entry:
    """Return the file of this name, whatever its attempt. Raises SpoolLayout if there is none."""
    stem = stem_of(name)
    for state, found in _walk(spool.layout.root, *states):
        if stem_of(found.name) == stem:
            entry = _entry(spool.layout, state, found, time.time_ns())
            if entry is not None:
                return entry
    where = ", ".join(state.value for state in states) or "this spool"
    raise SpoolLayout(f"no event {name[:200]!r} in {where}")


def show(spool: Spool, what: str | Entry) -> tuple[Entry, bytes]:
    """Return an event's entry and its bytes. Raises SpoolLayout where it is no readable file."""
    entry = what if isinstance(what, Entry) else find(spool, what)
    try:
        with open_folder(entry.path.parent) as folder:
            return entry, read_regular(entry.name, dir_fd=folder, bytes_max=BUNDLE_BYTES_MAX)
    except (NotAFile, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpoolLayout(f"{entry.path} cannot be shown: {reason}") from error


def put_away(spool: Spool, entry: Entry) -> None:
    """Finish a poisoned event that another spool has now."""
    folder = done_folder(int(time.time()) // 86_400)
    try:
        make_folder(spool.layout.root / folder)
    except OSError as error:
        raise disk_fault(error, f"open {folder}") from error
    _move(spool.layout, entry, State.DONE, entry.name, folder)
    with contextlib.suppress(OSError):
        entry.path.with_name(entry.name + ".reason.json").unlink()


def replace_content(entry: Entry, content: bytes) -> None:
    """Give an event that was poisoned or finished another content, durably."""
    try:
        write_file_durable(entry.path, content + b"\n")
    except OSError as error:
        raise disk_fault(error, f"write {entry.name}") from error


def requeue(spool: Spool, what: str | Entry) -> str:
    """Put a poisoned (or finished) event back into the queue with all attempts restored, and return its new name."""
    entry = what if isinstance(what, Entry) else find(spool, what, State.POISON, State.DONE)
    new = _move(spool.layout, entry, State.QUEUE, with_attempt(entry.name, 0))
    with contextlib.suppress(OSError):  # the event is back; a reason file that stays does no harm
        entry.path.with_name(entry.name + ".reason.json").unlink()
    return new


def find_leased(spool: Spool, path: Path) -> Entry:
    """Return the event that is leased under exactly this path. Else raises LeaseLost, which says where it is."""
    inside = _inside_in_flight(spool, path)
    try:
        with os.scandir(spool.layout.folder(State.IN_FLIGHT) / (inside or "")) as beside:
            found = next((each for each in beside if each.name == path.name and is_event(each.name)), None)
    except OSError:  # whichever errno: nothing is leased there
        found = None
    entry = _entry(spool.layout, State.IN_FLIGHT, found, time.time_ns()) if inside and found else None
    if entry is None:
        raise LeaseLost(_why_not_leased(spool, path, "is not leased any more" if inside else "is not leased"))
    return entry


def _inside_in_flight(spool: Spool, path: Path) -> Path | None:
    """Return the folder of a leased file, relative to queue-in-flight; None for a path elsewhere.

    A spool may be reached by a link, now or when the event was leased.
    """
    folder = spool.layout.folder(State.IN_FLIGHT)
    try:
        return path.parent.resolve().relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # not below it, or a loop of links
        return None


#: Why an event is not leased, by the folder it is in.
_NOT_LEASED = {
    State.QUEUE: "waits in the queue",
    State.IN_FLIGHT: "is leased under another path",
    State.DONE: "is finished",
    State.POISON: "was given up",
}


def _why_not_leased(spool: Spool, path: Path, told: str) -> str:
    try:
        entry = find(spool, path.name) if is_event(path.name) else None
    except SpoolLayout:
        entry = None
    return not_leased_text(path, told, entry, str(spool.path))


def not_leased_text(path: Path, told: str, entry: Entry | None, spool: str) -> str:
    """What became of an event that is not leased under this path."""
    if entry is None:
        return f"{path} {told}: the spool {spool} has no such event; name a path that `spool dequeue` printed"
    return f"{path} {told}: {entry.name} {_NOT_LEASED[entry.state]}"


def release_named(
    spool: Spool, what: str | Entry, *, force: bool = False, holder: bool = False, failed: bool = False
) -> str:
    """Put an event in flight back. Refused while its worker is alive, unless forced or asked for by the holder of a
    shell's lease. The attempt counts only if it `failed`."""
    entry = what if isinstance(what, Entry) else find(spool, what, State.IN_FLIGHT)
    _refuse_living(spool.layout, entry, force, holder)
    name = entry.name if failed else _before_lease(spool.layout, entry)
    return _move(spool.layout, entry, State.QUEUE, name)


def _before_lease(layout: Layout, entry: Entry) -> str:
    """Return the name without the attempt that its lease began."""
    inside = entry.path.relative_to(layout.folder(State.IN_FLIGHT))
    is_counted = len(inside.parts) > 1 and counts_tries(layout.folder(State.IN_FLIGHT) / inside.parts[0])
    return with_attempt(entry.name, max(0, entry.attempt - 1)) if is_counted else entry.name


def poison_named(
    spool: Spool, what: str | Entry, reason: str, *, force: bool = False, holder: bool = False
) -> str:
    """Give up an event that waits or is in flight, with a reason."""
    entry = what if isinstance(what, Entry) else find(spool, what, State.QUEUE, State.IN_FLIGHT)
    if entry.state is State.IN_FLIGHT:
        _refuse_living(spool.layout, entry, force, holder)
    path = spool.layout.folder(State.POISON) / f"{entry.name}.reason.json"
    try:
        write_file_durable(
            path, reason_bytes(entry.name, entry.attempt, {"reason": reason, "error": "poisoned by hand"})
        )
    except OSError as error:
        raise disk_fault(error, f"write the reason of {entry.name}") from error
    return _move(spool.layout, entry, State.POISON, entry.name)


def _walk(root: Path, *states: State) -> Iterator[_Found]:
    for state in states or tuple(State):
        for found in walk_events(root / state.value):
            yield state, found


def _count(found: Iterable[_Found]) -> int:
    return sum(lines_of(entry.name) if is_bundle(entry.name) else 1 for _, entry in found)


def _entry(layout: Layout, state: State, found: os.DirEntry[str], now_ns: int) -> Entry | None:
    """Return the entry of one file; None if it is gone."""
    try:
        size = found.stat(follow_symlinks=False).st_size
        age_ms = max(0, now_ns - _arrived_ns(found)) // 1_000_000
    except FileNotFoundError:
        return None
    path = Path(found.path)
    inside = os.fspath(path.parent.relative_to(layout.folder(state)))
    return Entry(
        found.name, state, path, attempt_of(found.name), lines_of(found.name), size, age_ms,
        "" if inside == "." else inside,
    )  # fmt: skip


def _refuse_living(layout: Layout, entry: Entry, force: bool, holder: bool) -> None:
    if force or not entry.folder:
        return
    worker = layout.folder(State.IN_FLIGHT) / entry.folder.split("/")[0]
    lock = take_dead(worker, make_lock=False, witness=layout.witness)
    is_held = lock is None and (worker / LOCK_NAME).exists()
    if lock is not None:
        os.close(lock)
        is_held = not holder and holds(worker)
    if is_held:
        raise SpoolLayout(
            f"{entry.name} is leased by {worker.name}, which is alive; use --force to take it away"
        )


def _move(layout: Layout, entry: Entry, state: State, name: str, folder_name: str = "") -> str:
    inside = os.fspath(entry.path.parent.relative_to(layout.root))
    try:
        with layout.entered(inside) as source, layout.entered(folder_name or state.value) as folder:
            rename = layout.give if state is State.QUEUE else layout.take
            return move_unique(rename, entry.path.name, name, src_dir_fd=source, dst_dir_fd=folder)
    except FileNotFoundError as error:
        raise SpoolLayout(f"{entry.name} has moved meanwhile; look again") from error
    except OSError as error:
        raise disk_fault(error, f"move {entry.name}") from error


def _arrival(found: _Found) -> str:
    """The sort key for arrival: names made by Watchbill sort by themselves, which is the quickest way."""
    name = found[1].name
    if name[19:20] == "-" and name[:19].isdigit():
        return name
    return f"{_arrived_ns(found[1]):019d}-{name}"


def _arrived_ns(entry: os.DirEntry[str]) -> int:
    arrived = ns_of(entry.name)
    if arrived is not None:
        return arrived
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return time.time_ns()


def _reason(path: Path) -> dict[str, Any]:
    beside = path.with_name(path.name + ".reason.json")
    if not is_event(path.name) or not beside.is_file():
        return {}
    try:
        reason: object = json.loads(beside.read_bytes())
    except (OSError, ValueError):
        return {"reason": "unreadable reason file"}
    return cast(dict[str, Any], reason) if isinstance(reason, dict) else {}
