"""Journals: the record of a batch across coordinators, one file per epoch, and how much of each counts.

The first line of a file says how many bytes of the earlier files its coordinator has believed (`after`). What a
superseded coordinator appends later lies beyond, and an epoch that is not listed wrote nothing that counts. The newest
file with a first line decides for all before it.

Lines that are seen may not be on stable storage yet, when their writer died before its sync. They are synced before
they are believed: otherwise a power cut could take them back from under the lines that build on them. Those that an
earlier coordinator has believed were synced by it before it began its own file, so only the newest file is in doubt.

A coordinator that takes up a batch which it has closed goes on with its own file. So a batch has a file for each
coordinator that had to do with it, however often it is reopened.

A plan may be copied with its batches. A journal of another fleet, by the id in its first lines or by an epoch that was
never taken here, is refused: the copy has tokens and epochs of its own, and only its own coordinator may go on with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from watchbill.errors import OursError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.record import Recorder, read_whole
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.state.entries import Entry, Epoch, decode, encode_entry
from watchbill.fleet.state.epochs import Superseded, is_taken

__all__ = ["ForeignBatch", "Journal", "Past", "believed", "last_epoch", "read_past"]


class ForeignBatch(OursError):
    """The journal of a batch was written by coordinators of another fleet."""

    def __init__(self, plan: str, batch: str) -> None:
        super().__init__(
            f"plans/{plan}/history/{batch} is a batch of another fleet, copied into this one",
            hint=f"submit the plan anew: watchbill plan submit {plan}; or go on with the batch in its own folder",
        )


@dataclass(frozen=True, slots=True)
class Past:
    """What counts of the earlier epochs, and of this one where it has closed the batch before."""

    entries: list[Entry]
    after: dict[int, int]  # bytes of each earlier epoch
    own_end: int | None = None  # bytes of this epoch's own file, where it has one


def read_past(disk: Disk, plan: str, batch: str, epoch: int, fleet: str = "") -> Past:
    """Read what counts for the coordinator of this epoch, and of this fleet where its id is given.

    Raises Superseded, ForeignBatch, and ValueError for an unknown entry.
    """
    listed = disk.names(places.batch_folder(plan, batch))
    epochs = sorted(found for name in listed if (found := places.epoch_of_journal(name)) is not None)
    if epochs and epochs[-1] > epoch:
        if is_taken(disk, epochs[-1]):
            raise Superseded
        raise ForeignBatch(plan, batch)
    counted = believed(disk, plan, batch, epochs)
    entries: list[Entry] = []
    for each, until in sorted(counted.items()):
        entries += map(decode, read_whole(disk, places.journal_path(plan, batch, each), until)[0])
    own_end = counted.pop(epoch, None)
    if counted and own_end is None:
        disk.sync(places.journal_path(plan, batch, max(counted)))
    known = {entry.fleet for entry in entries if isinstance(entry, Epoch) and entry.fleet}
    if fleet and known - {fleet}:
        raise ForeignBatch(plan, batch)
    return Past(entries, counted, own_end)


def last_epoch(disk: Disk, plan: str, batch: str) -> int:
    """The newest epoch that has a journal of a batch; 0 for a batch that was never opened."""
    listed = disk.names(places.batch_folder(plan, batch))
    return max((found for name in listed if (found := places.epoch_of_journal(name)) is not None), default=0)


def believed(disk: Disk, plan: str, batch: str, epochs: list[int]) -> dict[int, int]:
    """How many bytes of each epoch count, by the first line of the newest of these."""
    for newest in reversed(epochs):
        lines, size = read_whole(disk, places.journal_path(plan, batch, newest))
        first = _first(lines)
        if first is not None:
            return {**first.after, newest: size}
    return {}


def _first(lines: list[Fields]) -> Epoch | None:
    entry = decode(lines[0]) if lines else None
    return entry if isinstance(entry, Epoch) else None


class Journal:
    """The journal of a batch that the coordinator of one epoch writes."""

    def __init__(
        self,
        disk: Disk,
        plan: str,
        batch: str,
        first: Epoch,
        *,
        own_end: int | None = None,
    ) -> None:
        """Begin the file, from whose first line on nothing more of the earlier epochs counts. With `own_end` go on."""
        self._recorder = Recorder(disk, places.journal_path(plan, batch, first.epoch), goes_on_at=own_end)
        if own_end is None:
            self.commit([first])

    def commit(self, entries: Iterable[Entry]) -> None:
        """Put entries on stable storage with one sync. Raises OSError: then the coordinator has to start anew."""
        self._recorder.commit(map(encode_entry, entries))

    def close(self) -> None:
        """Close the file and keep it."""
        self._recorder.close()
