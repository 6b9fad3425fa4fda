"""The service: files and batches of all keys, for handlers and for `status`.

A batch is created here, found, listed, cancelled and forgotten; `life` leads it to its end, and `answering` answers its
lines. Knows neither HTTP nor engines: `asking` is what it needs of them.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from watchbill.batches.answering import Answering
from watchbill.batches.asking import Ask, Models
from watchbill.batches.batch import Batch, CancelAsked, Created, Dialect
from watchbill.batches.disk import DiskThread
from watchbill.batches.files import FileStore
from watchbill.batches.life import BatchLife
from watchbill.batches.limits import BATCH_AGAIN_MS_MAX, BATCH_BULK_MS, BATCH_STOP_MS, BATCH_SWEEP_MS
from watchbill.batches.opened import OpenBatch
from watchbill.batches.pausing import Pause, Pausing
from watchbill.batches.record import BatchRecord, found_batches
from watchbill.batches.results import ResultsFormat
from watchbill.catalog import BatchRules
from watchbill.core.messages import Alert, JournalEvent, Note
from watchbill.errors import DiskFailed, LaneFull, NotFound, RequestError
from watchbill.names import file_stem
from watchbill.quoting import quoted

__all__ = ["Batches"]

_PREFIXES = {Dialect.OPENAI: "batch_", Dialect.ANTHROPIC: "msgbatch_"}


class Batches:
    """One per daemon. `start` begins the work; until then nothing is served."""

    def __init__(
        self,
        folder: Path,
        rules: BatchRules,
        *,
        note: Callable[[Note], None] = lambda _: None,
        tell: Callable[[Alert], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self.rules, self._note, self._clock = folder, rules, note, clock
        self.disk = DiskThread("batches")  # short pieces, in their order
        self.bulk = DiskThread("batches-bulk")  # whole files
        self.files = FileStore(folder, rules, self.disk, in_use=self._user_of, clock=clock)
        self._open: dict[str, OpenBatch] = {}
        self._ended: dict[str, Batch] = {}
        self._news = asyncio.Event()  # a line may be started
        self._counts: Counter[str] = Counter()
        self._pausing = Pausing(note, tell, self._news.set)
        self._answering: Answering | None = None
        self._life: BatchLife | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = 0

    # ------------------------------------------------------------------ life

    async def start(self, ask: Ask, models: Models, formats: Mapping[Dialect, ResultsFormat]) -> None:
        """Reads what an earlier daemon kept, and goes on with it."""
        self._answering = answering = Answering(
            self._open,
            ask,
            models,
            pausing=self._pausing,
            news=self._news,
            counts=self._counts,
            attempts=self.rules.attempts,
            look_at_room=self._look_at_room,
            now_ms=self.now_ms,
        )
        self._life = BatchLife(
            self.files,
            self.disk,
            self.bulk,
            pausing=self._pausing,
            models=models,
            formats=formats,
            lines_max=self.rules.lines_max,
            account_of=self._account,
            on_news=self._news.set,
            on_end=self._ends,
            now_ms=self.now_ms,
        )
        await self.files.open()
        found = await self.bulk.do(lambda: found_batches(self._folder), timeout_ms=BATCH_BULK_MS)
        for batch, record in found:
            if record is None:
                self._ended[batch.id] = batch
            else:
                self._lead(self._add(batch, record))
        for work in (answering.dispatch_often, answering.write_answers, self._sweep_often):
            self._spawn(work())

    def reconfigure(self, rules: BatchRules) -> list[str]:
        """Takes new bounds over; what is kept stays. Returns the changes as sentences."""
        changes = [] if rules == self.rules else ["batches has new bounds"]
        self.rules = self.files.rules = rules
        if self._answering is not None and self._life is not None:
            self._answering.attempts, self._life.lines_max = rules.attempts, rules.lines_max
        return changes

    async def close(self) -> None:
        """Withdraws lines under way, and waits for the disk for a bounded time. A second call does nothing."""
        if self._pausing.is_closing:
            return
        self._pausing.is_closing = True
        if self._answering is not None:
            await self._answering.close()
        for task in list(self._tasks):
            task.cancel()
        commits = [task for work in self._open.values() for task in work.commits]
        if left := [*self._tasks, *commits]:
            await asyncio.wait(left, timeout=BATCH_STOP_MS / 1000)
        for work in self._open.values():
            self.disk.later(work.record.close)
        self.disk.close()
        self.bulk.close()

    def view(self) -> dict[str, object]:
        """What `status` shows."""
        works = self._open.values()
        return {
            "open": len(works),
            "ended": len(self._ended),
            "waiting": sum(len(lines) for work in works for lines in work.waiting.values()),
            "running": sum(len(work.under_way) for work in works),
            "answered": self._counts["answered"],
            "failed": self._counts["failed"],
            "repeated": self._counts["repeated"],
            "files": self.files.count,
            "bytes": self._bytes(),
            "paused": self.paused,
        }

    @property
    def paused(self) -> Pause | None:
        """Why no line is asked; None while lines are."""
        return self._pausing.reason

    # ------------------------------------------------------------------ for handlers

    async def create(self, asked: Created) -> Batch:
        """Accepts a batch: on return it survives a power cut. Raises LaneFull, DiskFailed, NotFound."""
        mine = sum(work.owner == asked.owner for work in self._open.values())
        if mine >= self.rules.open_max:
            raise LaneFull(
                f"{mine} batches of this key have not ended (batches.open_max); wait for one, or cancel one",
                retry_after_ms=BATCH_AGAIN_MS_MAX,
            )
        self.files.get(asked.owner, asked.input_file)
        batch, record = Batch(asked), BatchRecord(self._place(asked.owner) / asked.id)
        work = self._add(batch, record)  # from here on its input stays
        try:
            await self.disk.do(lambda: record.append([asked]))
        except BaseException:
            del self._open[batch.id]
            self.disk.later(record.remove)
            raise
        self._journal(JournalEvent.BATCH, batch, f"created for {asked.endpoint}")
        self._lead(work)
        return batch

    def new_id(self, dialect: Dialect) -> str:
        """An id for a batch."""
        return f"{_PREFIXES[dialect]}{os.urandom(16).hex()}"

    def now_ms(self) -> int:
        """By the wall clock."""
        return int(self._clock() * 1000)

    def find(self, owners: tuple[str, ...], dialect: Dialect, id: str) -> Batch:
        """A batch of one of these owners. Raises NotFound."""
        work, batch = self._open.get(id), self._ended.get(id)
        batch = batch if work is None else work.batch
        if batch is None or batch.created.owner not in owners or batch.created.dialect is not dialect:
            raise NotFound(f"no batch {quoted(id)} is kept here for this key")
        return batch

    def listed(self, owners: tuple[str, ...], dialect: Dialect) -> list[Batch]:
        """The batches of these owners, the newest first."""
        all_of_them = [*self._ended.values(), *(work.batch for work in self._open.values())]
        mine = [
            each for each in all_of_them if each.created.owner in owners and each.created.dialect is dialect
        ]
        return sorted(mine, key=lambda each: (each.created.at, each.id), reverse=True)

    async def cancel(self, batch: Batch) -> None:
        """Ends a batch; what was answered stays. Does nothing for one that is being ended. Raises RequestError,
        DiskFailed."""
        if batch.has_ended:
            raise RequestError(f"{batch.id} has ended already: it is {batch.stage}")
        work = self._open[batch.id]
        if await work.commit([CancelAsked(self.now_ms())]):
            work.news.set()

    async def forget(self, batch: Batch) -> None:
        """Removes a batch that has ended, and its results. Raises RequestError, DiskFailed."""
        if not batch.has_ended or batch.id in self._open:
            raise RequestError(f"{batch.id} has not ended; cancel it first")
        for id in (batch.output_file, batch.error_file):
            with contextlib.suppress(NotFound):
                if id is not None:
                    await self.files.remove(self.files.get(batch.created.owner, id))
        await self._drop(batch)

    # ------------------------------------------------------------------ keeping

    def _lead(self, work: OpenBatch) -> None:
        assert self._life is not None
        self._spawn(self._life.lead(work))

    def _ends(self, batch: Batch) -> None:
        """A batch has ended, and a short account of it is durable."""
        if self._open.pop(batch.id, None) is None:
            return  # this step is done once more, because the disk refused the next one
        self._ended[batch.id] = batch
        told = f"{batch.stage}: {batch.completed} answered, {batch.failed} failed of {batch.total}"
        self._journal(JournalEvent.BATCH_END, batch, told)

    def _look_at_room(self) -> None:
        self._pausing.look_at_room(self._bytes() if self._open else 0, self.rules.disk_max)

    def _bytes(self) -> int:
        return self.files.size + sum(work.record.size for work in self._open.values())

    async def _sweep_often(self) -> None:
        """Removes files and batches whose time is over."""
        while True:
            with contextlib.suppress(DiskFailed):  # the next round tries again
                await self.files.sweep()
                oldest = self.now_ms() - self.rules.keep_ms
                for batch in [each for each in self._ended.values() if max(each.times.values()) < oldest]:
                    await self._drop(batch)
            await asyncio.sleep(BATCH_SWEEP_MS / 1000)

    async def _drop(self, batch: Batch) -> None:
        path = self._account(batch)
        self._ended.pop(batch.id, None)
        await self.disk.do(lambda: path.unlink(missing_ok=True))

    # ------------------------------------------------------------------ smaller things

    def _add(self, batch: Batch, record: BatchRecord) -> OpenBatch:
        self._order += 1
        left_s = (batch.expires_at - self.now_ms()) / 1000
        work = OpenBatch(batch, record, self.disk, time.monotonic() + left_s, self._order)
        self._open[batch.id] = work
        return work

    def _spawn(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _place(self, owner: str) -> Path:
        return self._folder / file_stem(owner)

    def _account(self, batch: Batch) -> Path:
        return self._place(batch.created.owner) / f"{batch.id}.json"

    def _user_of(self, file: str) -> str | None:
        """The batch that needs a file."""
        works = (work for work in self._open.values() if work.batch.created.input_file == file)
        return next((work.batch.id for work in works), None)

    def _journal(self, event: JournalEvent, batch: Batch, told: str) -> None:
        self._note(Note(event, f"{batch.id} {told}"))
