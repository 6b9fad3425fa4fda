"""Enqueue and consume events from Python. Usage: enqueue.py SPOOL"""

import sys
import time

from watchbill.spool import Spool

with Spool(sys.argv[1]) as spool:
    # When this returns the event survives a power cut.
    name = spool.enqueue(
        {"id": "brief-1", "kind": "draft-created", "ts": time.time(), "text": "A first draft."}
    )
    print("enqueued", name)

    # Leaving the block is done; an exception is another try; the third one is poison.
    with spool.dequeue() as item:
        if item is not None:
            print("attempt", item.attempt, "of", item.event["id"])
