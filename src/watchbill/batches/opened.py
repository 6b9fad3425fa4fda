"""An open batch: its durable record, its lines that wait, and those under way.

Everything that happens to a batch is an event, which becomes durable before it happens.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchbill.batches.asking import LineCall
from watchbill.batches.batch import Batch, Event, Stage
from watchbill.batches.disk import DiskThread
from watchbill.batches.limits import BATCH_STOP_MS
from watchbill.batches.lines import LineIndex
from watchbill.batches.record import BatchRecord

__all__ = ["LineUnderWay", "OpenBatch"]


@dataclass(slots=True, eq=False)
class LineUnderWay:
    """A line that is being asked."""

    model: str
    task: asyncio.Task[None]
    call: LineCall | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come."""
        return self.call is None or self.call.is_waiting


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that has not ended."""

    batch: Batch
    record: BatchRecord
    disk: DiskThread
    closes_at: float  # by the monotonic clock: a step of the wall clock ends nothing
    order: int  # older batches have lower ones
    index: LineIndex | None = None
    source: int = -1  # its input, open while lines are asked
    waiting: dict[str, deque[int]] = field(default_factory=dict[str, deque[int]])  # by model
    under_way: dict[int, LineUnderWay] = field(default_factory=dict[int, LineUnderWay])
    failures: Counter[int] = field(default_factory=Counter[int])  # of lines whose engine failed
    unwritten: int = 0  # answers that wait for the disk
    is_over: bool = False  # no further line is asked
    news: asyncio.Event = field(default_factory=asyncio.Event)
    commits: set[asyncio.Task[int]] = field(default_factory=set[asyncio.Task[int]])  # becoming durable
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an event becomes durable

    @property
    def owner(self) -> str:
        """Whose it is: a key's name."""
        return self.batch.created.owner

    @property
    def is_asked(self) -> bool:
        """Whether its lines are being asked."""
        return self.batch.stage is Stage.IN_PROGRESS and not self.is_over

    async def commit(self, events: Sequence[Event]) -> int:
        """Makes events durable, then makes them happen. Returns how many did. Raises DiskFailed.

        It is finished also when its caller leaves: what is on the disk and what is in memory must not differ."""
        task = asyncio.get_running_loop().create_task(self._make_happen(events), name="batch event")
        self.commits.add(task)
        task.add_done_callback(self.commits.discard)
        return await asyncio.shield(task)

    async def _make_happen(self, events: Sequence[Event]) -> int:
        async with self._lock:
            possible = [event for event in events if self.batch.takes(event)]
            if possible:
                await self.disk.do(lambda: self.record.append(possible))
            for event in possible:
                self.batch.apply(event)
            return len(possible)

    async def stop_lines(self) -> None:
        """Withdraws what is under way, and waits until all answers that came are durable."""
        self.is_over = True
        self.waiting.clear()
        tasks = [line.task for line in self.under_way.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=BATCH_STOP_MS / 1000)
        while self.unwritten:
            self.news.clear()
            await self.news.wait()
        if self.source >= 0:
            os.close(self.source)
            self.source = -1
