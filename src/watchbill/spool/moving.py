"""Moving events from one spool to another: from files to a broker, or back.

    recover ─▶ lease a batch ─▶ store it in the other spool under the same names ─▶ finish it here, until nothing waits

Then what was given up, with its reasons. An event is finished here only after the other spool has acknowledged it: a
move that is killed loses nothing. It may be repeated: an event that is still in the other spool is not stored twice;
one that was consumed there meanwhile is delivered again, and its id is known to the corpus. The end of a move uses up
no attempt. Finished events stay where they are. Events that workers hold are counted, and moved by the next run; those
of dead ones, such as a move that was killed, are waited for where it takes time to see that they are dead.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.faults import EventRefused, LeaseLost, SpoolBroken
from watchbill.spool.item import Carried, Item
from watchbill.spool.layout import State
from watchbill.spool.limits import DRAIN_BATCH_BYTES_MAX, MOVE_BATCH, MOVE_LOOK_S
from watchbill.spool.queue import Spool
from watchbill.spool.turn import Turn

__all__ = ["Moved", "move"]


@dataclass(slots=True)
class Moved:
    """What a move did; counts are of events."""

    waiting: int = 0
    poison: int = 0
    refused: int = 0  # too large for the other spool
    leased: int = 0  # by workers, when the move ended
    left: int = 0  # that wait, when the move ended


def move(
    source: AnySpool, target: AnySpool, *, progress: Callable[[Moved], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False, patience_s: float = 0.0, turn_s: float = 0.0,
) -> Moved:  # fmt: skip
    """Move all events that wait or were given up. Those that cannot be leased are waited for, `patience_s` after the
    last that could; the end of another move of the same folder `turn_s`. Raises SpoolFull or SpoolBroken: then the rest
    is where it was."""
    with _alone(source, target, turn_s):
        return _move(source, target, progress, stop, patience_s)


@contextlib.contextmanager
def _alone(source: AnySpool, target: AnySpool, turn_s: float) -> Generator[None]:
    """One move of a folder at a time. Of two in opposite directions, each would find an event at its target that the
    other one is about to finish there: both would finish it, and it would be nowhere."""
    ends_s = time.monotonic() + turn_s
    with contextlib.ExitStack() as held:
        for spool in (source, target):
            if isinstance(spool, Spool):
                turn = Turn(".moving")
                held.callback(turn.let_go)
                while not turn.take(spool.layout.root):
                    if time.monotonic() >= ends_s:
                        raise SpoolBroken(
                            f"another move of {spool.path} is under way, by `watchbill spool move` or by a daemon that "
                            "forwards its events to NATS; wait for its end, or stop it, and try again"
                        )
                    time.sleep(MOVE_LOOK_S)
                spool.forget_stems()
        yield


def _move(
    source: AnySpool, target: AnySpool, progress: Callable[[Moved], None], stop: Callable[[], bool],
    patience_s: float,
) -> Moved:  # fmt: skip
    moved = Moved()
    source.recover()
    refused: list[Item] = []
    try:
        while not stop() and (items := _next(source, stop, patience_s)):
            refused += _move_batch(source, target, items, moved)
            progress(moved)
        left = _left(source)
        moved.leased, moved.left = left[State.IN_FLIGHT] - source.in_flight_here, left[State.QUEUE]
    finally:
        for item in refused:
            source.give_back(item)
    if not stop():
        _move_poison(source, target, moved)
    return moved


def _next(source: AnySpool, stop: Callable[[], bool], patience_s: float) -> list[Item]:
    """The next batch. Where events are there that cannot be leased, look again until the patience is over."""
    ends_s = time.monotonic() + patience_s
    while not (
        items := source.lease_many(MOVE_BATCH, bytes_max=DRAIN_BATCH_BYTES_MAX, counts=False)
    ) and not (stop() or time.monotonic() >= ends_s or sum(_left(source).values()) <= source.in_flight_here):
        source.wait(MOVE_LOOK_S)
        source.recover(start=False)
    return items


def _left(source: AnySpool) -> dict[State, int]:
    return by_hand(source).counts(State.QUEUE, State.IN_FLIGHT)


def _move_batch(source: AnySpool, target: AnySpool, items: list[Item], moved: Moved) -> list[Item]:
    """Move a batch and return the events that the target can never store."""
    try:
        try:
            target.put_many([_carried(source, item) for item in items])
            kept: list[Item] = []
        except EventRefused:
            kept = [item for item in items if not _fits(source, target, item)]
    except BaseException:
        for item in items:
            source.give_back(item)
        raise
    done = [item for item in items if item not in kept]
    if done:
        with contextlib.suppress(LeaseLost):  # taken from us meanwhile: delivered again, and its id is known
            source.done_many(done)
        moved.waiting += sum(len(item.events) for item in done)
    moved.refused += len(kept)
    return kept


def _fits(source: AnySpool, target: AnySpool, item: Item) -> bool:
    try:
        target.put_many([_carried(source, item)])
    except EventRefused:
        return False
    return True


def _carried(source: AnySpool, item: Item) -> Carried:
    return Carried(item.name, item.content, item.attempt - 1, source.signature_of(item.name))


def _move_poison(source: AnySpool, target: AnySpool, moved: Moved) -> None:
    here = by_hand(source)
    for entry in list(here.entries(State.POISON)):
        try:
            target.put_poison(here.carried(entry), entry.reason)
        except EventRefused:
            moved.refused += 1
            continue
        here.put_away(entry)
        moved.poison += entry.events
