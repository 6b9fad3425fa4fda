"""How long an event loop stands still."""

import asyncio
import gc
import json
import time
from collections.abc import Awaitable

__all__ = ["LAG_S_MAX", "longest_pause"]

#: Nobody else waits longer for a hostile body; slow machines, and caches that others fill, included.
LAG_S_MAX = 0.5
#: What the yardstick takes on a machine of today that does nothing else.
YARDSTICK_S = 0.016
#: A collection of so many takes two milliseconds.
FEW_OBJECTS = 20_000
_YARDSTICK = json.dumps([{"a": [number, str(number)]} for number in range(10_000)])


async def longest_pause(work: Awaitable[object]) -> float:
    """How long the event loop worked without turning while something was done, in seconds of a machine of today.

    It is processor time of the loop's thread: what other processes take of a busy machine does not count, and neither
    do the objects that earlier tests left in this process: a collection of them would take a second. Cores that are
    shared with another machine, or run slowly, count their own pace as computing: a yardstick beside the work says how
    slow they are now."""
    _forget_earlier_objects()
    slowness = _slowness()
    doing, worst = asyncio.ensure_future(work), 0.0
    while not doing.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - began)
    doing.exception()
    return worst / max(slowness, _slowness())


def _forget_earlier_objects() -> None:
    """Takes what earlier tests left out of the collector's sight. It is not shown to it again afterwards, and all that
    pytest has collected with it: each later collection would look at millions of objects."""
    gc.collect()
    if len(gc.get_objects()) > FEW_OBJECTS:
        gc.freeze()


def _slowness() -> float:
    """How much longer this thread computes now than on a machine of today; 1 on a faster one."""
    began = time.thread_time()
    json.loads(_YARDSTICK)
    return max(1.0, (time.thread_time() - began) / YARDSTICK_S)
