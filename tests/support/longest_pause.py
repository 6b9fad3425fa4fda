"""How long an event loop stands still."""

import asyncio
import gc
import time
from collections.abc import Awaitable

__all__ = ["LAG_S_MAX", "longest_pause"]

#: Nobody else waits longer for a hostile body; slow machines, and caches that others fill, included.
LAG_S_MAX = 0.5


async def longest_pause(work: Awaitable[object]) -> float:
    """How long the event loop worked without turning while something was done, in processor time of its thread: what
    other processes take of a busy machine does not count, and neither do the objects that earlier tests left in this
    process: a collection of them would take a second."""
    gc.freeze()
    try:
        doing, worst = asyncio.ensure_future(work), 0.0
        while not doing.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - began)
        doing.exception()
        return worst
    finally:
        gc.unfreeze()
