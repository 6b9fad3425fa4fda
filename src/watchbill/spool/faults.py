"""Every error the spool raises on purpose.

    OursError
    └── SpoolLayout      500            the folders cannot be used as a spool
    TheirsError
    ├── EventRefused     400  invalid_request   this event can never be stored or delivered
    ├── SpoolFull        507  spool_full        no room; nothing was stored; try again later
    ├── SpoolBroken      503  spool_broken      the disk failed or is read-only; nothing was acknowledged
    └── LeaseLost        409  lease_lost        the file is no longer where this worker leased it to
    WatchbillError
    └── PoisonEvent      raised by a consumer inside `dequeue()`: never deliver this event again

An error of enqueue means that the event was not acknowledged, without exception.
"""

from watchbill.errors import OursError, TheirsError, WatchbillError
from watchbill.files.disk import DISK_FULL

__all__ = [
    "EventRefused",
    "LeaseLost",
    "PoisonEvent",
    "SpoolBroken",
    "SpoolFull",
    "SpoolLayout",
    "disk_fault",
]


class SpoolLayout(OursError):
    """These folders cannot be used as a spool."""


class EventRefused(TheirsError):
    """The event cannot be stored."""

    code = "invalid_request"
    status = 400


class SpoolFull(TheirsError):
    """No room on the spool's disk; nothing was stored, free some space and try again."""

    code = "spool_full"
    status = 507


class SpoolBroken(TheirsError):
    """The spool's disk failed; nothing was acknowledged."""

    code = "spool_broken"
    status = 503


class LeaseLost(TheirsError):
    """The lease is gone: the file was recovered, moved or removed by another process."""

    code = "lease_lost"
    status = 409


class PoisonEvent(WatchbillError):
    """The consumer declares this event undeliverable."""


def disk_fault(error: OSError, doing: str) -> SpoolFull | SpoolBroken:
    """Turn an operating system error into ours, saying what could not be done and where."""
    where = f" ({error.filename!s})" if error.filename else ""
    text = f"cannot {doing}{where}: {error.strerror or error}"
    if error.errno in DISK_FULL:
        return SpoolFull(f"{text}; nothing was stored, free some space and try again")
    return SpoolBroken(f"{text}; nothing was acknowledged")
