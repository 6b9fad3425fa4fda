"""AsyncSpool: the same operations for asyncio, with nothing that waits for a disk on the event loop.

One thread commits: while it waits for the disk, all other callers' events gather and go with the next
commit, so a thousand tasks share a handful of syncs. Another thread consumes.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from watchbill.spool.events import encode
from watchbill.spool.faults import PoisonEvent, SpoolBroken, SpoolFull, SpoolLayout
from watchbill.spool.item import Item
from watchbill.spool.limits import EVENT_BYTES_MAX
from watchbill.spool.producer import Signer
from watchbill.spool.queue import AnyEvent, Durability, Spool
from watchbill.spool.recovery import Recovered

__all__ = ["AsyncSpool"]

T = TypeVar("T")
_Waiting = tuple[bytes, "asyncio.Future[str]"]


class AsyncSpool:
    """A Spool for one event loop. Raises what Spool raises."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "wal",
        attempts: int = 3,
        event_bytes_max: int = EVENT_BYTES_MAX,
        signer: Signer | None = None,
        shared: bool | None = None,
    ) -> None:
        self.spool = Spool(
            path, durability=durability, attempts=attempts, event_bytes_max=event_bytes_max, signer=signer,
            shared=shared,
        )  # fmt: skip
        self._event_bytes_max = event_bytes_max
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="watchbill-commit")
        self._consumes = ThreadPoolExecutor(1, thread_name_prefix="watchbill-consume")
        self._waits = ThreadPoolExecutor(1, thread_name_prefix="watchbill-wait")
        self._waiting: list[_Waiting] = []
        self._committer: asyncio.Task[None] | None = None
        self._is_closed = False

    async def enqueue(self, event: AnyEvent) -> str:
        """Store one event; when this returns it survives a power cut. Cancelling does not take it back."""
        line = encode(event, self._event_bytes_max)
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[str] = loop.create_future()
        self._waiting.append((line, stored))
        if self._committer is None:
            self._committer = loop.create_task(self._commit_waiting())
        return await stored

    async def enqueue_many(self, events: Iterable[AnyEvent], *, bundle: bool = False) -> list[str]:
        lines = [encode(event, self._event_bytes_max) for event in events]
        return await self._call(self._commits, lambda: self.spool.commit_lines(lines, bundle=bundle))

    @contextlib.asynccontextmanager
    async def dequeue(self) -> AsyncGenerator[Item | None]:
        """Lease the oldest event for the length of an `async with` block, as `Spool.dequeue` does."""
        item = await self.lease()
        if item is None:
            yield None
            return
        try:
            try:
                yield item
            except PoisonEvent as error:
                if not item.lease.settled:
                    await self.poison(item, str(error))
                raise
            except Exception as error:
                failure = error
                if not item.lease.settled:
                    await self._settle(lambda: self.spool.fail(item, failure))
                raise
            except BaseException:
                if not item.lease.settled:
                    await self.release(item)
                raise
            if not item.lease.settled:
                await self.done(item)
        except (SpoolFull, SpoolBroken, SpoolLayout):  # as `backend.given_back_if_unsettled`
            if not item.lease.settled:
                await self._settle(lambda: self.spool.give_back(item))
            raise

    async def lease(self) -> Item | None:
        leasing = asyncio.ensure_future(self._call(self._consumes, self.spool.lease))
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            leasing.add_done_callback(self._give_back)
            raise

    async def done(self, item: Item) -> None:
        await self._settle(lambda: self.spool.done(item))

    async def release(self, item: Item, *, rest_s: float = 0.0) -> None:
        await self._settle(lambda: self.spool.release(item, rest_s=rest_s))

    async def poison(self, item: Item, reason: str) -> None:
        await self._settle(lambda: self.spool.poison(item, reason))

    async def charge(self, item: Item, *, counts: bool) -> None:
        await self._settle(lambda: self.spool.charge(item, counts=counts))

    async def recover(self) -> Recovered:
        return await self._call(self._consumes, self.spool.recover)

    async def checkpoint(self) -> None:
        await self._call(self._commits, self.spool.checkpoint)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until something may have arrived, at most `timeout_s`."""
        waiting = asyncio.ensure_future(self._call(self._waits, lambda: self.spool.wait(timeout_s)))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.spool.wake()
            raise

    async def close(self) -> None:
        """Finish what was begun, then close. Later calls raise ValueError; a second `close` does nothing."""
        if self._is_closed:
            return
        while self._committer is not None:
            await asyncio.wait([self._committer])
        self.spool.wake()
        for executor in (self._waits, self._consumes):
            await self._call(self._commits, executor.shutdown)
        await self._call(self._commits, self.spool.close)
        self._is_closed = True
        self._commits.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _commit_waiting(self) -> None:
        """Commit everything that has gathered, repeatedly, until nothing waits."""
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                lines = [line for line, _ in group]
                try:
                    names = await self._call(
                        self._commits, lambda lines=lines: self.spool.commit_lines(lines)
                    )
                except Exception as error:  # noqa: BLE001  handed to every caller of this group
                    for _, stored in group:
                        if not stored.done():
                            stored.set_exception(error)
                    continue
                for (_, stored), name in zip(group, names, strict=True):
                    if not stored.done():
                        stored.set_result(name)
        finally:
            self._committer = None

    def _give_back(self, leasing: "asyncio.Future[Item | None]") -> None:
        """Put an event back whose caller was cancelled while a thread leased it."""
        item = None if leasing.cancelled() or leasing.exception() else leasing.result()
        if item is not None:
            self._consumes.submit(self.spool.give_back, item)

    async def _settle(self, act: Callable[[], Any]) -> None:
        """Settle a lease even if the caller is cancelled meanwhile."""
        await asyncio.shield(self._call(self._consumes, act))

    async def _call(self, executor: ThreadPoolExecutor, act: Callable[[], T]) -> T:
        if self._is_closed:
            raise ValueError(f"the spool {self.spool.path} is closed")
        return await asyncio.get_running_loop().run_in_executor(executor, act)
