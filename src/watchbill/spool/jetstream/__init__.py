"""A spool on NATS JetStream: the same operations, for producers and workers on several machines (SPOOL-08).

    from watchbill.spool.jetstream import JetSpool, Reach

    link      one connection and its thread    streams   the four streams and their subjects
    holders   who has leased what              spool     the operations        by_hand   looking, and shell workers

Needs the extra `watchbill[nats]`, imported with the first operation.
"""

from watchbill.spool.jetstream.link import Reach
from watchbill.spool.jetstream.spool import JetSpool

__all__ = ["JetSpool", "Reach"]
