"""The life of a batch: a task leads it from its stage to its end, whatever stage a restart finds it in.

    created ──▶ validated ──▶ its lines wait by model ──▶ asked ──▶ answers are durable ──▶ results are files ──▶ ended

A step that the disk refuses is done again until it succeeds. Does not ask lines itself: it puts them in line, and waits
until all of them are answered, the window closes or the batch is cancelled.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from watchbill.batches.asking import Models
from watchbill.batches.batch import (
    AllAnswered,
    Batch,
    Dialect,
    Fault,
    Rejected,
    Stage,
    TimeUp,
    Validated,
    Written,
)
from watchbill.batches.disk import DiskThread
from watchbill.batches.files import BATCH_OUTPUT, HIDDEN, FileStore, StoredFile
from watchbill.batches.limits import BATCH_BULK_MS
from watchbill.batches.lines import LineIndex, scan
from watchbill.batches.opened import OpenBatch
from watchbill.batches.pausing import Pausing
from watchbill.batches.record import write_ended
from watchbill.batches.results import Results, ResultsFormat, write_results
from watchbill.errors import NotFound
from watchbill.files.atomic import NotAFile, make_folder, open_regular

__all__ = ["BatchLife"]

_log = logging.getLogger("watchbill.batches")


class BatchLife:
    """Leads batches to their ends."""

    def __init__(
        self,
        files: FileStore,
        disk: DiskThread,
        bulk: DiskThread,
        *,
        pausing: Pausing,
        models: Models,
        formats: Mapping[Dialect, ResultsFormat],
        lines_max: int,
        account_of: Callable[[Batch], Path],
        on_news: Callable[[], None],
        on_end: Callable[[Batch], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._files, self._disk, self._bulk, self._pausing = files, disk, bulk, pausing
        self._models, self._formats = models, formats
        self.lines_max = lines_max
        self._account_of, self._on_news, self._on_end, self._now_ms = account_of, on_news, on_end, now_ms

    async def lead(self, work: OpenBatch) -> None:
        """Leads a batch from its stage to its end."""
        try:
            if work.batch.stage is Stage.VALIDATING:
                await self._pausing.patiently(lambda: self._validate(work))
            if work.is_asked:
                await self._serve(work)
            if not work.batch.has_ended:
                await self._pausing.patiently(lambda: self._finish(work))
            await self._pausing.patiently(lambda: self._settle(work))
        except Exception:  # noqa: BLE001  one batch must not end the others; the next start takes it up again
            _log.exception("batch=%s stopped", work.batch.id)

    async def _validate(self, work: OpenBatch) -> None:
        index, faults = await self._scan(work)
        now = self._now_ms()
        await work.commit([Rejected(now, faults) if faults else Validated(now, len(index))])

    async def _scan(self, work: OpenBatch) -> tuple[LineIndex, list[Fault]]:
        """Reads the input of a batch, as it is on the disk."""
        created = work.batch.created
        try:
            path = self._files.path(self._files.get(created.owner, created.input_file, is_needed=True))
            lines_max = work.batch.total or self.lines_max  # what was accepted stays
            index, faults = await self._bulk.do(
                lambda: scan(path, created.endpoint, lines_max), timeout_ms=BATCH_BULK_MS
            )
        except (NotFound, FileNotFoundError, NotAFile):
            return LineIndex(), [Fault("input_file_gone", "the input file was removed")]
        work.index = index
        return index, faults

    async def _serve(self, work: OpenBatch) -> None:
        """Has every line asked, until none is left, the window closes, or the batch is cancelled."""
        if not await self._pausing.patiently(lambda: self._queue_lines(work)):
            return
        while work.is_asked and work.batch.remaining:
            left_s = work.closes_at - time.monotonic()
            if left_s <= 0:
                break
            self._on_news()
            work.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await work.news.wait()
        await work.stop_lines()
        end = AllAnswered(self._now_ms()) if not work.batch.remaining else TimeUp(self._now_ms())
        await self._pausing.patiently(lambda: work.commit([end]))

    async def _queue_lines(self, work: OpenBatch) -> bool:
        """Puts the lines that are not answered in line. False when the input cannot be used any more."""
        batch, models = work.batch, self._models
        if work.index is None:
            _, faults = await self._scan(work)
            if faults:
                await work.commit([Rejected(self._now_ms(), faults)])
                return False
        index = work.index
        assert index is not None
        if len(index) != batch.total:
            changed = Fault("input_file_changed", "the input file is not what it was")
            await work.commit([Rejected(self._now_ms(), [changed])])
            return False
        path = self._files.path(self._files.get(work.owner, batch.created.input_file, is_needed=True))
        work.source = await self._disk.do(lambda: open_regular(path))
        waiting = await self._bulk.do(lambda: _by_model(batch, index, models))
        if work.is_asked:
            work.waiting = waiting
        return True

    async def _finish(self, work: OpenBatch) -> None:
        """Writes the results of a batch whose lines are not asked any more."""
        batch, owner = work.batch, work.owner
        if not batch.total:  # it was cancelled before its lines were counted
            await work.commit([Written(self._now_ms(), None, None)])
            return
        index = work.index
        if index is None:
            index, faults = await self._scan(work)
            if faults:
                await work.commit([Rejected(self._now_ms(), faults)])
                return
        kinds = (("output", batch.created.dialect is Dialect.OPENAI), ("error", True))
        ids = [f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:32]}" for kind, _ in kinds]
        drafts = (self._files.draft_path(owner, ids[0]), self._files.draft_path(owner, ids[1]))
        source = self._files.path(self._files.get(owner, batch.created.input_file, is_needed=True))
        results_format = self._formats[batch.created.dialect]

        def write() -> Results:
            return write_results(
                batch, source, index, work.record.answers(), results_format=results_format, drafts=drafts
            )

        written = await self._bulk.do(write, timeout_ms=BATCH_BULK_MS)
        kept: list[str | None] = []
        for id, (kind, is_listed), draft, size in zip(ids, kinds, drafts, written[:2], strict=True):
            if size:
                purpose = BATCH_OUTPUT if is_listed else HIDDEN
                expires_s = self._files.expiry(batch.created.output_kept_ms)
                name = f"{batch.id}_{kind}.jsonl"
                file = StoredFile(id, owner, name, purpose, size, self._files.now_s(), expires_s)
                await self._files.keep(file, draft)
            kept.append(id if size else None)
        model = (index.names[0] or None) if len(index.names) == 1 else None
        await work.commit([Written(self._now_ms(), kept[0], kept[1], written.tokens, model)])

    async def _settle(self, work: OpenBatch) -> None:
        """Keeps a short account of a batch that has ended in place of its record."""
        batch, record = work.batch, work.record
        path = self._account_of(batch)

        def compact() -> None:
            make_folder(path.parent)
            write_ended(path, batch.ended())
            record.remove()

        await self._disk.do(compact)
        self._on_end(batch)
        if batch.created.dialect is Dialect.ANTHROPIC:
            with contextlib.suppress(NotFound):
                await self._files.remove(
                    self._files.get(work.owner, batch.created.input_file, is_needed=True)
                )


def _by_model(batch: Batch, index: LineIndex, models: Models) -> dict[str, deque[int]]:
    """The lines that are not answered, in line for their models. Lines for unknown models are one line."""
    meant = [models.resolve(name) for name in index.names]
    waiting: dict[str, deque[int]] = {}
    for line in batch.unanswered():
        waiting.setdefault(meant[index.models[line]], deque()).append(line)
    return waiting
