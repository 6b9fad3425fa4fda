"""Epochs: which coordinator is the one that counts.

A coordinator takes the next number by creating `brain/epochs/NUMBER`, which exactly one process can. From then on
the ones before it are **superseded**. No lock is needed, and the last one need not be dead: a coordinator that was
stopped for an hour and goes on writes where nothing is read any more.

The rule by which no coordinator acts on what does not count: **write, look, act**. A coordinator appends to its
journals, then looks whether a higher number was taken, and only then touches the board. A successor reads the journals
after it took its number. So if the look found none, every later successor has seen those lines.

On a mount that hides what others do, a look may be as old as the mount hides anything. There a coordinator that takes
over from one that may still run (`may_still_act`) waits for so long between its number and the journals: by then the
one before it has seen the number, and everything that it acted on is to be seen.

Numbers are taken without gaps, and only the newest ones are kept, because each look lists them. A coordinator that
hung between its look and its file may so create a number again that was taken and removed: it looks once more.
"""

import re
from dataclasses import dataclass

from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.heartbeat import Kernel, Pulse, Watcher
from watchbill.fleet.folder.values import Fields, encode, fields_at

__all__ = [
    "Incumbent", "Office", "Superseded", "announce", "is_taken", "may_still_act", "refuse_if_replaced",
    "refuse_if_superseded", "take_epoch",
]  # fmt: skip

_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


class Superseded(Exception):
    """Another coordinator has taken over; this one must end."""


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The coordinator that says it is in charge."""

    host: str
    pulse: Pulse


class Office:
    """How a coordinator that starts finds out whether another one lives."""

    def __init__(self, disk: Disk, watcher: Watcher) -> None:
        self._disk = disk
        self._watcher = watcher

    def occupant(self, now_ms: int) -> Incumbent | None:
        """The coordinator that may still live; None where the next one may start.

        One of this boot that is dead is known to be. Any other one is waited for: ask again until it is silent.
        """
        fields = self._read()
        if fields is None:
            return None
        pulse = Pulse.of(fields)
        is_dead = self._watcher.is_dead(places.COORDINATOR, pulse, now_ms)
        return None if is_dead else Incumbent(fields.text("host"), pulse)

    def _read(self) -> Fields | None:
        return _announced(self._disk)


def take_epoch(disk: Disk) -> int:
    """Take the next number. Raises OSError."""
    for _ in range(limits.FLEET_TRIES_MAX):
        epoch = max(_taken(disk), default=0) + 1
        try:
            disk.take(f"{places.EPOCHS}/{epoch}")
        except FileExistsError:  # another one starts at the same time, and was faster
            continue
        taken = _taken(disk)
        if max(taken, default=0) <= epoch:
            for number in sorted(taken)[: -limits.EPOCHS_KEPT]:
                disk.remove(f"{places.EPOCHS}/{number}")
            return epoch
    raise FileExistsError(f"no epoch could be taken in {limits.FLEET_TRIES_MAX} tries")


def may_still_act(disk: Disk, epoch: int, own: Pulse, kernel: Kernel) -> bool:
    """Whether the coordinator before this epoch may run: not one of this boot that is dead, or was this process.

    Asked before this epoch is announced.
    """
    if epoch == 1:
        return False
    fields = _announced(disk)
    if fields is None or fields.whole("epoch") != epoch - 1 or fields.flag("waits"):
        return True  # one that ended while it waited has left the one before it as it was
    return _is_another(Pulse.of(fields), own, kernel)


def refuse_if_replaced(disk: Disk, epoch: int, own: Pulse, kernel: Kernel) -> None:
    """Raise Superseded where a coordinator that may run has taken over since this epoch of our process has failed.

    Not by the number alone: our process may have taken it, and the reply was lost.
    """
    fields = _announced(disk)
    if fields is not None and fields.whole("epoch") > epoch and _is_another(Pulse.of(fields), own, kernel):
        raise Superseded


def _is_another(pulse: Pulse, own: Pulse, kernel: Kernel) -> bool:
    """Whether this is of another process, which may run: not of one of this boot that is dead."""
    is_here = bool(own.boot_id) and pulse.boot_id == own.boot_id
    is_own = (pulse.pid, pulse.start_time) == (own.pid, own.start_time)
    return not is_here or (not is_own and kernel(pulse.pid, pulse.start_time))


def is_taken(disk: Disk, epoch: int) -> bool:
    """Whether a coordinator of this folder has ever taken this number."""
    return epoch <= max(_taken(disk), default=0)


def refuse_if_superseded(disk: Disk, epoch: int) -> None:
    """Raise Superseded when a higher number was taken."""
    if max(_taken(disk), default=0) > epoch:
        raise Superseded


def announce(disk: Disk, epoch: int, host: str, pulse: Pulse, *, waits: bool = False) -> None:
    """Say who is in charge: for people, and for the `Office` of the next one. `waits`: for what its mount hides."""
    told = {"epoch": epoch, "host": host, **pulse.fields(), **({"waits": True} if waits else {})}
    try:
        disk.put(places.COORDINATOR, encode(told) + b"\n")
    except (IsADirectoryError, NotADirectoryError):
        # What lies there says nothing and would stop all batches; its content is kept.
        disk.move(places.COORDINATOR, f"{places.COORDINATOR}.moved-{epoch}")
        disk.put(places.COORDINATOR, encode(told) + b"\n")


def _announced(disk: Disk) -> Fields | None:
    return fields_at(disk, places.COORDINATOR)


def _taken(disk: Disk) -> list[int]:
    return [int(name) for name in disk.names(places.EPOCHS) if _NUMBER.fullmatch(name)]
