"""Epochs: which coordinator is the one that counts.

A coordinator takes the next number by creating `brain/epochs/NUMBER`, which exactly one process can. From then on
the ones before it are **superseded**. No lock is needed, and the last one need not be dead: a coordinator that was
stopped for an hour and goes on writes where nothing is read any more.

The rule by which no coordinator acts on what does not count: **write, look, act**. A coordinator appends to its
journals, then looks whether a higher number was taken, and only then touches the board. A successor reads the journals
after it took its number. So if the look found none, every later successor has seen those lines.

Numbers are taken without gaps, and only the newest ones are kept, because each look lists them. A coordinator that
hung between its look and its file may so create a number again that was taken and removed: it looks once more.
"""

import re
from dataclasses import dataclass

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.heartbeat import Pulse, Watcher
from watchbill.fleet.folder.values import Fields, encode, fields_of

__all__ = [
    "Incumbent", "Office", "Superseded", "announce", "is_taken", "refuse_if_superseded", "take_epoch",
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
        try:
            return fields_of(self._disk.read(places.COORDINATOR, limits.FLEET_FILE_BYTES_MAX))
        except (FileNotFoundError, ValueError, NotAFile):
            return None


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


def is_taken(disk: Disk, epoch: int) -> bool:
    """Whether a coordinator of this folder has ever taken this number."""
    return epoch <= max(_taken(disk), default=0)


def refuse_if_superseded(disk: Disk, epoch: int) -> None:
    """Raise Superseded when a higher number was taken."""
    if max(_taken(disk), default=0) > epoch:
        raise Superseded


def announce(disk: Disk, epoch: int, host: str, pulse: Pulse) -> None:
    """Say who is in charge: for people, and for the `Office` of the next one."""
    disk.put(places.COORDINATOR, encode({"epoch": epoch, "host": host, **pulse.fields()}) + b"\n")


def _taken(disk: Disk) -> list[int]:
    return [int(name) for name in disk.names(places.EPOCHS) if _NUMBER.fullmatch(name)]
