"""Reading a fleet from its folder alone: which batches there are, and what each came to. Changes nothing.

For people on any machine that mounts the folder, also while coordinators come and go. Standard library only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from watchbill.errors import IllegalTransition, NameRefused, OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, FolderDisk, is_of_the_path
from watchbill.fleet.folder.record import Tail, read_whole
from watchbill.fleet.folder.values import Fields, fields_at
from watchbill.fleet.state.entries import decode
from watchbill.fleet.state.journal import believed
from watchbill.fleet.state.ledger import Ledger
from watchbill.limits import SUGGEST_LISTED_MAX
from watchbill.names import check_folder_name
from watchbill.plans.batch import ExecutePlan
from watchbill.suggest import did_you_mean

__all__ = ["BatchPlace", "Follower", "batches_of", "find_batch", "refusal_of", "was_cancelled_unopened"]


@dataclass(frozen=True, slots=True, order=True)
class BatchPlace:
    """A batch in the folder. Sorted by their ids, batches are in the order of their submission."""

    batch: str
    plan: str
    is_active: bool = False
    is_submitted: bool = False  # in the inbox: not opened yet, or in this moment
    is_refused: bool = False
    has_journal: bool = True  # False for one that retention has reduced to its summary

    @property
    def folder(self) -> str:
        return places.batch_folder(self.plan, self.batch)


def batches_of(disk: FolderDisk) -> list[BatchPlace]:
    """Every batch of the folder, the oldest first."""
    found: dict[str, BatchPlace] = {}
    for each in _with_folder(disk):
        if each.batch not in found or not _is_copy(disk, each):
            found[each.batch] = each
    for folder in (places.INBOX, places.REFUSED):
        for order in _orders(disk, folder):
            known = found.get(order.batch)
            if known is not None and known.has_journal:
                # Its journal is there before it is opened, and the order leaves the inbox after that.
                is_submitted = known.is_submitted or folder == places.INBOX
                found[order.batch] = replace(known, is_submitted=is_submitted)
            else:
                found[order.batch] = BatchPlace(
                    order.batch, order.plan, is_submitted=folder == places.INBOX, is_refused=folder == places.REFUSED,
                    has_journal=False,
                )  # fmt: skip
    return sorted(found.values())


def _with_folder(disk: FolderDisk) -> Iterator[BatchPlace]:
    active = places.batches_shown(disk.names(places.ACTIVE))
    refused = {name.removesuffix(".json") for name in disk.names(places.REFUSED)}
    for plan in disk.names("plans"):
        try:
            check_folder_name(plan, "a plan")
            batches = disk.names(f"plans/{plan}/history")
        except (NameRefused, PermissionError):
            continue
        for batch in batches:
            try:
                names = disk.names(places.batch_folder(plan, batch))
            except (NameRefused, PermissionError):  # no batch, or another user's own
                continue
            if not names:
                continue
            has_journal = any(places.epoch_of_journal(name) is not None for name in names)
            is_refused = batch in refused and not has_journal
            yield BatchPlace(batch, plan, batch in active, False, is_refused, has_journal)


def _is_copy(disk: FolderDisk, place: BatchPlace) -> bool:
    """Whether a batch that lies in two plans is of another plan than the one whose folder this is."""
    try:
        ledger = Follower(disk, place).read()
    except OursError:
        return True
    return ledger.is_open and ledger.plan != place.plan


def _orders(disk: FolderDisk, folder: str) -> Iterator[ExecutePlan]:
    for name in disk.names(folder):
        if name.endswith(".json"):
            try:
                yield ExecutePlan.decode(disk.read(f"{folder}/{name}", limits.FLEET_FILE_BYTES_MAX * 4))
            except (FileNotFoundError, PermissionError, NotAFile, OursError):
                continue


def find_batch(disk: FolderDisk, named: str) -> BatchPlace:
    """The batch of this id, or the only one that begins so. Raises OursError."""
    every = batches_of(disk)
    exact = [each for each in every if each.batch == named]
    found = exact or [each for each in every if named and each.batch.startswith(named)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(each.batch for each in found[:SUGGEST_LISTED_MAX])
        raise OursError(f"{named} begins the ids of {len(found)} batches: {listed}", hint="name one of them")
    newest = next((each.batch for each in reversed(every) if each.plan == named), None)
    if newest is not None:
        raise OursError(f"{named} is a plan, and not a batch of it", hint=f"its newest one is {newest}")
    raise OursError(
        f"there is no batch {named}",
        hint=did_you_mean(named, [each.batch for each in every]) or "submit a plan first",
    )


def refusal_of(disk: FolderDisk, file: str) -> str:
    """Why the coordinator refused a file of the inbox; "" where it did not."""
    return _refused(disk, file).text("error")


def was_cancelled_unopened(disk: FolderDisk, batch: str) -> bool:
    """Whether a batch was cancelled before a coordinator opened it."""
    return _refused(disk, f"{batch}.json").flag("is_cancelled")


def _refused(disk: FolderDisk, file: str) -> Fields:
    return fields_at(disk, f"{places.REFUSED}/{file}") or Fields({})


class Follower:
    """The ledger of a batch, followed as its journals grow, across coordinators."""

    def __init__(self, disk: Disk, place: BatchPlace) -> None:
        self._disk = disk
        self.place = place
        self.ledger = Ledger(place.batch)
        self._epoch = 0
        self._tail: Tail | None = None

    def read(self) -> Ledger:
        """The state of the batch as far as it is written down. Raises OursError for a journal that makes no sense."""
        try:
            newest = self._newest()
            if newest is not None and newest != self._epoch:
                self._begin(newest)
            for line in self._tail.read() if self._tail is not None else ():
                self.ledger.apply(decode(line))
        except OSError as error:
            if not is_of_the_path(error):
                raise
            raise self._unreadable(f"{error.filename}: {error.strerror}") from error
        except (IllegalTransition, ValueError, KeyError) as error:
            raise self._unreadable(error) from error
        return self.ledger

    def _unreadable(self, why: object) -> OursError:
        return OursError(f"the journal of {self.place.batch} cannot be read: {why}")

    def _newest(self) -> int | None:
        """The newest epoch whose file has begun."""
        names = self._disk.names(self.place.folder)
        epochs = sorted(
            (epoch for name in names if (epoch := places.epoch_of_journal(name)) is not None), reverse=True
        )
        for epoch in epochs:
            if epoch <= self._epoch:
                return self._epoch
            if self._disk.lines(self._path(epoch), 0)[0]:
                return epoch
        return None

    def _begin(self, epoch: int) -> None:
        """Replay what this epoch has believed of those before; its own lines follow."""
        ledger = Ledger(self.place.batch)
        after = believed(self._disk, self.place.plan, self.place.batch, [epoch])
        for earlier, until in sorted(after.items()):
            if earlier < epoch:
                for line in read_whole(self._disk, self._path(earlier), until)[0]:
                    ledger.apply(decode(line))
        self.ledger, self._epoch, self._tail = ledger, epoch, Tail(self._disk, self._path(epoch))

    def _path(self, epoch: int) -> str:
        return places.journal_path(self.place.plan, self.place.batch, epoch)
