"""The file thread: the one thread of an agent that touches the shared folder.

A mount that hangs stops a thread for as long as it hangs, and nothing can end that. So one thread does all file work,
one piece after the other, and the event loop never does any. The thread dies with the process.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["FileThread"]

T = TypeVar("T")


class FileThread:
    """Does pieces of file work in their order. Lives on the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Bounded by its callers: each of the agent's few cycles waits for its piece before it asks for another.
        self._pieces: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="watchbill-files", daemon=True).start()

    async def do(self, piece: Callable[[], T]) -> T:
        """Do a piece of work and return its value, or raise what it raises."""
        done: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                value = piece()
            except BaseException as error:  # noqa: BLE001  it is the caller's
                self._tell(_settle_error, done, error)
            else:
                self._tell(_settle, done, value)

        self._pieces.put(work)
        return await done

    def _run(self) -> None:
        while True:
            self._pieces.get()()

    def _tell(self, act: Callable[..., None], *words: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(act, *words)


def _settle(done: "asyncio.Future[object]", value: object) -> None:
    if not done.done():
        done.set_result(value)


def _settle_error(done: "asyncio.Future[object]", error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
