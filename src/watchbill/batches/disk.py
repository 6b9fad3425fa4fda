"""A thread for the disk: file work in its order, off the event loop, with a deadline and one kind of error.

What was begun is finished even when its caller left meanwhile; what comes after it in the same thread sees its result.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from watchbill.batches.limits import BATCH_DISK_MS
from watchbill.errors import DiskFailed
from watchbill.files.disk import DISK_FULL

__all__ = ["DiskIsFull", "DiskThread"]

T = TypeVar("T")


class DiskIsFull(DiskFailed):
    """The disk under Watchbill's root is full; make room, and batches go on by themselves."""


class DiskThread:
    """One thread. Lives on the event loop that uses it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def do(self, work: Callable[[], T], *, timeout_ms: int = BATCH_DISK_MS) -> T:
        """Does a piece of work. Raises DiskIsFull, DiskFailed when the disk fails or is too slow, and
        FileNotFoundError."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise DiskFailed("the disk under Watchbill's root is too slow; see what else uses it") from None
        except FileNotFoundError:
            raise  # the file was removed, which is no fault of the disk
        except OSError as error:
            if error.errno in DISK_FULL:
                raise DiskIsFull from error
            raise DiskFailed(f"the disk under Watchbill's root fails: {error.strerror}") from error

    def later(self, work: Callable[[], object]) -> None:
        """Does a piece of work whose outcome is not waited for, behind what was asked before."""
        self._thread.submit(work)

    def close(self) -> None:
        """Takes nothing more; what was asked before is still done."""
        self._thread.shutdown(wait=False)
