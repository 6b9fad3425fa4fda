"""A spool on NATS JetStream: the same operations, for producers and workers on several machines (SPOOL-08).

    from watchbill.spool.jetstream import JetSpool, Reach

    reach     where the servers are            streams      the four streams and their subjects
    link      one connection and its thread    deliveries   the messages that a worker pulls
    holders   who has leased what              own_leases   what this worker has leased, and its heartbeat
    spool     the operations                   by_hand      looking, and shell workers

Needs the extra `watchbill[nats]`, imported with the first operation.
"""

from typing import TYPE_CHECKING, Any

from watchbill.spool.jetstream.reach import Reach

if TYPE_CHECKING:
    from watchbill.spool.jetstream.spool import JetSpool

__all__ = ["JetSpool", "Reach"]


def __getattr__(name: str) -> Any:
    """JetSpool, when it is first asked for: a command for a spool of files should not pay for an event loop."""
    if name == "JetSpool":
        from watchbill.spool.jetstream import spool

        return spool.JetSpool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
