"""Long work in steps: done at once, or a share at a time on an event loop, so that requests do not wait for its end;
or aside, in a thread, where it only reads what does not change meanwhile.

The work is a generator that yields between its steps and returns its result. What it reads may change between two
steps; it must look again instead of believing what it saw before.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import TypeVar

from watchbill.limits import JSON_AT_ONCE_BYTES_MAX, LOOP_SHARE_MS

__all__ = ["Shares", "Steps", "at_once", "join"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def at_once(steps: Steps[Result]) -> Result:
    """Does all steps now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def join(pieces: Sequence[bytes], size: int) -> bytes:
    """The pieces as one; large ones in a thread: joining bytes does not hold up the other threads."""
    if size <= JSON_AT_ONCE_BYTES_MAX:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)


class Shares:
    """A share of each turn of the event loop for long work; requests wait for the end of that share."""

    def __init__(self) -> None:
        self._taken = asyncio.Lock()
        self._aside = asyncio.Lock()  # of several threads together the loop would get only a small part

    async def do(self, steps: Steps[Result]) -> Result:
        """Does the steps, and lets others go on between them."""
        async with self._taken:
            while True:
                until = time.perf_counter() + LOOP_SHARE_MS / 1000
                try:
                    while time.perf_counter() < until:
                        next(steps)
                except StopIteration as end:
                    return end.value
                await asyncio.sleep(0)

    async def aside(self, work: Callable[[], Result], size: int) -> Result:
        """Does work of Python's own on a request of so many bytes, one large one at a time; others go on meanwhile."""
        if size <= JSON_AT_ONCE_BYTES_MAX:
            return work()
        async with self._aside:
            return await asyncio.to_thread(work)

    async def each(self, items: Iterable[Item], make: Callable[[Item], Awaitable[Result]]) -> list[Result]:
        """What is made of each of these; others go on in between."""
        made: list[Result] = []
        async with self._taken:
            until = time.perf_counter() + LOOP_SHARE_MS / 1000
            for item in items:
                made.append(await make(item))
                if time.perf_counter() >= until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + LOOP_SHARE_MS / 1000
        return made
