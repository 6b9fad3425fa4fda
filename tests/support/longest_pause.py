"""How long an event loop stands still."""

import asyncio
import time
from collections.abc import Awaitable

__all__ = ["LAG_S_MAX", "longest_pause"]

#: Nobody else waits longer for a hostile body on a machine with nothing else to do; a busy one is slower by far.
LAG_S_MAX = 0.5


async def longest_pause(work: Awaitable[object]) -> float:
    """How long the event loop did not turn while something was done."""
    doing, worst = asyncio.ensure_future(work), 0.0
    while not doing.done():
        began = time.perf_counter()
        await asyncio.sleep(0)
        worst = max(worst, time.perf_counter() - began)
    doing.exception()
    return worst
