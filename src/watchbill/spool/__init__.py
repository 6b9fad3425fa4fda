"""The spool: a durable queue of plain files, usable on its own with nothing but the standard library.

    from watchbill.spool import Spool

Four folders are the state machine (queue, queue-in-flight, queue-done, queue-poison); `ls` shows the whole
state. `docs/spool.md` explains it. What a producer does not need (drain, asyncio, ...) is imported when it
is first asked for: a git hook should not pay for an event loop. Schema files and signatures need extras.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from watchbill.spool.faults import EventRefused, LeaseLost, PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.item import Item
from watchbill.spool.layout import State
from watchbill.spool.queue import Durability, Spool
from watchbill.spool.recovery import Recovered

if TYPE_CHECKING:
    from watchbill.spool.aio import AsyncSpool
    from watchbill.spool.corpus import Appended, Corpus
    from watchbill.spool.drain import Drain, DrainReport, drain_all
    from watchbill.spool.inspect import (
        Entry,
        Stats,
        entries,
        find,
        oldest,
        poison_named,
        release_named,
        requeue,
        show,
        stats,
    )
    from watchbill.spool.retention import Collected, gc
    from watchbill.spool.schema import AnyObject, BuiltinSchema, JsonSchema, Schema
    from watchbill.spool.signing import KeySigner, KeyVerifier, make_key

__all__ = [
    "AnyObject", "Appended", "AsyncSpool", "BuiltinSchema", "Collected", "Corpus", "Drain", "DrainReport",
    "Durability", "Entry", "EventRefused", "Item", "JsonSchema", "KeySigner", "KeyVerifier", "LeaseLost",
    "PoisonEvent", "Recovered", "Schema", "Spool", "SpoolBroken", "SpoolFull", "SpoolLayout", "State", "Stats",
    "drain_all", "entries", "find", "gc", "make_key", "oldest", "poison_named", "release_named", "requeue", "show",
    "stats",
]  # fmt: skip

_LATER = {
    "aio": ("AsyncSpool",),
    "corpus": ("Appended", "Corpus"),
    "drain": ("Drain", "DrainReport", "drain_all"),
    "inspect": (
        "Entry", "Stats", "entries", "find", "oldest", "poison_named", "release_named", "requeue", "show", "stats",
    ),
    "retention": ("Collected", "gc"),
    "schema": ("AnyObject", "BuiltinSchema", "JsonSchema", "Schema"),
    "signing": ("KeySigner", "KeyVerifier", "make_key"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
