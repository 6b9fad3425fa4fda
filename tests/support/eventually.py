"""The one way in which a test waits for what another task, thread or process does.

`eventually` waits in the event loop, `wait_until` in a thread. Both look again and again until the condition gives
something true, and return it. When the time is over they fail with the last value, so that the report of a failed
test says what was there instead.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "eventually", "wait_until"]

#: For a busy machine, on which a Python process may take many seconds to start. A test that waits for less says why.
PATIENCE_S = 30.0
LOOK_EVERY_S = 0.01

T = TypeVar("T")


async def eventually(happened: Callable[[], T | Awaitable[T]], seconds: float = PATIENCE_S) -> T:
    """Wait in the event loop until the condition, a function or a coroutine function, is true; return its value."""
    value: T | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            while not (value := await _value_of(happened)):  # noqa: ASYNC110  another task, thread or process
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        if not limit.expired():  # the condition's own
            raise
        raise _not_within(seconds, value) from None
    return value


def wait_until(happened: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """Wait in this thread until the condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise _not_within(seconds, value)
        time.sleep(LOOK_EVERY_S)
    return value


async def _value_of(happened: Callable[[], T | Awaitable[T]]) -> T:
    value = happened()
    return await value if inspect.isawaitable(value) else value


def _not_within(seconds: float, value: object) -> AssertionError:
    return AssertionError(f"not within {seconds} s: the last value was {value!r}")
