"""The spool: a durable queue of plain files, usable on its own with nothing but the standard library.

    from watchbill.spool import Spool

Four folders are the state machine (queue, queue-in-flight, queue-done, queue-poison); `ls` shows the whole
state. `docs/spool.md` explains it. Schema files and signatures need extras, imported only when used.
"""

from watchbill.spool.aio import AsyncSpool
from watchbill.spool.corpus import Appended, Corpus
from watchbill.spool.drain import Drain, DrainReport, drain_all
from watchbill.spool.faults import EventRefused, LeaseLost, PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.inspect import (
    Entry,
    Stats,
    entries,
    find,
    poison_named,
    release_named,
    requeue,
    show,
    stats,
)
from watchbill.spool.item import Item
from watchbill.spool.layout import State
from watchbill.spool.queue import Durability, Spool
from watchbill.spool.recovery import Recovered
from watchbill.spool.retention import Collected, gc
from watchbill.spool.schema import AnyObject, BuiltinSchema, JsonSchema, Schema
from watchbill.spool.signing import KeySigner, KeyVerifier, make_key

__all__ = [
    "AnyObject", "Appended", "AsyncSpool", "BuiltinSchema", "Collected", "Corpus", "Drain", "DrainReport",
    "Durability", "Entry", "EventRefused", "Item", "JsonSchema", "KeySigner", "KeyVerifier", "LeaseLost",
    "PoisonEvent", "Recovered", "Schema", "Spool", "SpoolBroken", "SpoolFull", "SpoolLayout", "State", "Stats",
    "drain_all", "entries", "find", "gc", "make_key", "poison_named", "release_named", "requeue", "show", "stats",
]  # fmt: skip
