"""The spool: a durable queue of plain files, usable on its own with nothing but the standard library."""

from watchbill.spool.faults import EventRefused, LeaseLost, PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.item import Item
from watchbill.spool.layout import State
from watchbill.spool.queue import Spool

__all__ = [
    "EventRefused", "Item", "LeaseLost", "PoisonEvent", "Spool", "SpoolBroken", "SpoolFull", "SpoolLayout", "State",
]  # fmt: skip
