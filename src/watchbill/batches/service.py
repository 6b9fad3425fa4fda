"""The service: files and batches of all keys, and the worker that answers lines in idle time.

    created ──▶ validated ──▶ its lines wait by model ──▶ asked ──▶ answers are durable ──▶ results are files ──▶ ended

Every batch has a task that leads it from its stage to its end, whatever stage a restart finds it in. One dispatcher
starts lines: `order.choose` says of which models, and never more than a model has slots. One writer makes answers
durable, all that came meanwhile with one sync. A line counts as answered when its answer is durable; one that was
asked and not written down when the daemon died is asked again.

A full disk pauses everything: answers that came stay in memory, no further line is asked, an alert says so, and the
work goes on when there is room again. Knows neither HTTP nor engines: `asking` is what it needs of them.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from watchbill.batches.asking import Ask, LineCall, Models, NotNow, Question, Reply, Shape
from watchbill.batches.batch import (
    AllAnswered,
    Answered,
    Batch,
    CancelAsked,
    Created,
    Dialect,
    Event,
    Fault,
    Rejected,
    Stage,
    TimeUp,
    Validated,
    Written,
)
from watchbill.batches.disk import DiskIsFull, DiskThread
from watchbill.batches.files import BATCH_OUTPUT, HIDDEN, FileStore, StoredFile
from watchbill.batches.lines import LineIndex, decode_line, read_line, scan
from watchbill.batches.order import choose
from watchbill.batches.record import BatchRecord, read_ended, write_ended
from watchbill.batches.results import Results, write_results
from watchbill.catalog import BatchRules
from watchbill.core.messages import Alert, JournalEvent, Note
from watchbill.errors import DiskFailed, LaneFull, NotFound, RequestError
from watchbill.files.atomic import NotAFile, make_folder, open_regular
from watchbill.limits import (
    BATCH_AGAIN_MS,
    BATCH_AGAIN_MS_MAX,
    BATCH_ANSWER_BYTES_MAX,
    BATCH_BULK_MS,
    BATCH_DISK_AGAIN_MS,
    BATCH_LINES_OPEN_MAX,
    BATCH_LOOK_MS,
    BATCH_STOP_MS,
    BATCH_SWEEP_MS,
    BATCH_UNWRITTEN_BYTES_MAX,
    BATCH_UNWRITTEN_MAX,
)
from watchbill.names import file_stem
from watchbill.units import format_bytes

__all__ = ["Batches", "Pause"]

_log = logging.getLogger("watchbill.batches")
_ID = re.compile(r"(?:batch|msgbatch)_[0-9a-f]{32}")
_PREFIXES = {Dialect.OPENAI: "batch_", Dialect.ANTHROPIC: "msgbatch_"}
T = TypeVar("T")


class Pause(StrEnum):
    """Why no line is asked."""

    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"
    DISK_MAX = "disk_max"  # all files and answers together exceed batches.disk_max


@dataclass(slots=True, eq=False)
class _Work:
    """An open batch."""

    batch: Batch
    record: BatchRecord
    closes_at: float  # by the monotonic clock: a step of the wall clock ends nothing
    order: int
    index: LineIndex | None = None
    source: int = -1  # its input, open while lines are asked
    waiting: dict[str, deque[int]] = field(default_factory=dict[str, deque[int]])  # by model
    calls: dict[int, "_Line"] = field(default_factory=dict[int, "_Line"])  # lines under way
    failures: Counter[int] = field(default_factory=Counter[int])  # of lines whose engine failed
    unwritten: int = 0  # answers that wait for the disk
    is_over: bool = False  # no further line is asked
    news: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an event becomes durable

    @property
    def owner(self) -> str:
        return self.batch.created.owner

    @property
    def is_asked(self) -> bool:
        return self.batch.stage is Stage.IN_PROGRESS and not self.is_over


@dataclass(slots=True, eq=False)
class _Line:
    """A line under way."""

    model: str
    task: asyncio.Task[None]
    call: LineCall | None = None

    @property
    def is_waiting(self) -> bool:
        return self.call is None or self.call.is_waiting


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
        self._folder, self.rules, self._note, self._tell, self._clock = folder, rules, note, tell, clock
        self.disk = DiskThread("batches")  # short pieces, in their order
        self.bulk = DiskThread("batches-bulk")  # whole files
        self.files = FileStore(folder, rules, self.disk, in_use=self._user_of, clock=clock)
        self._open: dict[str, _Work] = {}
        self._ended: dict[str, Batch] = {}
        self._ask: Ask | None = None
        self._models: Models | None = None
        self._shapes: Mapping[Dialect, Shape] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[tuple[_Work, Answered, int]] = []  # not durable yet, with their sizes
        self._has_answers = asyncio.Event()
        self._commits: set[asyncio.Task[int]] = set()  # events that are becoming durable
        self._news = asyncio.Event()
        self._served_at: dict[str, int] = {}  # model -> when a line of it was answered, or its lines came
        self._again_at: dict[str, float] = {}  # model -> until when it is left alone
        self._failing: Counter[str] = Counter()  # model -> how often in a row it could not be asked
        self._last_turn: dict[str, int] = {}  # owner -> number of the line that was started last
        self._started = 0
        self._order = 0
        self._stuck: dict[int, Pause] = {}  # steps that the disk does not let be done
        self._is_full = False  # batches.disk_max is reached
        self._counts: Counter[str] = Counter()
        self._is_closing = False

    # ------------------------------------------------------------------ life

    async def start(self, ask: Ask, models: Models, shapes: Mapping[Dialect, Shape]) -> None:
        """Reads what an earlier daemon kept, and goes on with it."""
        self._ask, self._models, self._shapes = ask, models, shapes
        await self.files.open()
        for batch, record in await self.bulk.do(lambda: _found(self._folder), timeout_ms=BATCH_BULK_MS):
            if record is None:
                self._ended[batch.id] = batch
            else:
                self._take_up(batch, record)
        for work in (self._dispatch_often, self._write_answers, self._sweep_often):
            self._spawn(work())

    def reconfigure(self, rules: BatchRules) -> list[str]:
        """Takes new bounds over; what is kept stays. Returns the changes as sentences."""
        changes = [] if rules == self.rules else ["batches has new bounds"]
        self.rules = self.files.rules = rules
        return changes

    async def close(self) -> None:
        """Withdraws lines under way, and waits for the disk for a bounded time. A second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        lines = [line.task for work in self._open.values() for line in work.calls.values()]
        for task in lines:
            task.cancel()
        if lines:
            await asyncio.wait(lines, timeout=BATCH_STOP_MS / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BATCH_STOP_MS / 1000):
                while self._answers and self.paused is None:
                    self._news.clear()
                    await self._news.wait()
        for task in list(self._tasks):
            task.cancel()
        if left := [*self._tasks, *self._commits]:
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
            "running": sum(len(work.calls) for work in works),
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
        return next(iter(self._stuck.values()), Pause.DISK_MAX if self._is_full else None)

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
        self._spawn(self._live(work))
        return batch

    def new_id(self, dialect: Dialect) -> str:
        """An id for a batch."""
        return f"{_PREFIXES[dialect]}{os.urandom(16).hex()}"

    def now_ms(self) -> int:
        """By the wall clock."""
        return int(self._clock() * 1000)

    def find(self, owner: str, dialect: Dialect, id: str) -> Batch:
        """A batch of this owner. Raises NotFound."""
        work, batch = self._open.get(id), self._ended.get(id)
        batch = batch if work is None else work.batch
        if batch is None or batch.created.owner != owner or batch.created.dialect is not dialect:
            raise NotFound(f"no batch {id[:60]!a} is kept here for this key")
        return batch

    def listed(self, owner: str, dialect: Dialect) -> list[Batch]:
        """The batches of this owner, the newest first."""
        all_of_them = [*self._ended.values(), *(work.batch for work in self._open.values())]
        mine = [
            each for each in all_of_them if each.created.owner == owner and each.created.dialect is dialect
        ]
        return sorted(mine, key=lambda each: (each.created.at, each.id), reverse=True)

    async def cancel(self, batch: Batch) -> None:
        """Ends a batch; what was answered stays. Does nothing for one that is being ended. Raises RequestError,
        DiskFailed."""
        if batch.has_ended:
            raise RequestError(f"{batch.id} has ended already: it is {batch.stage}")
        work = self._open[batch.id]
        if await self._commit(work, [CancelAsked(self.now_ms())]):
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

    # ------------------------------------------------------------------ one batch, from any stage to its end

    async def _live(self, work: _Work) -> None:
        try:
            if work.batch.stage is Stage.VALIDATING:
                await self._patiently(lambda: self._validate(work))
            if work.is_asked:
                await self._serve(work)
            if not work.batch.has_ended:
                await self._patiently(lambda: self._finish(work))
            await self._patiently(lambda: self._settle(work))
        except Exception:  # noqa: BLE001  one batch must not end the others; the next start takes it up again
            _log.exception("batch=%s stopped", work.batch.id)

    async def _validate(self, work: _Work) -> None:
        index, faults = await self._scan(work)
        now = self.now_ms()
        await self._commit(work, [Rejected(now, faults) if faults else Validated(now, len(index))])

    async def _scan(self, work: _Work) -> tuple[LineIndex, list[Fault]]:
        """Reads the input of a batch, as it is on the disk."""
        created = work.batch.created
        try:
            path = self.files.path(self.files.get(created.owner, created.input_file, is_needed=True))
            lines_max = work.batch.total or self.rules.lines_max  # what was accepted stays
            index, faults = await self.bulk.do(
                lambda: scan(path, created.endpoint, lines_max), timeout_ms=BATCH_BULK_MS
            )
        except (NotFound, FileNotFoundError, NotAFile):
            return LineIndex(), [Fault("input_file_gone", "somebody removed the input file")]
        work.index = index
        return index, faults

    async def _serve(self, work: _Work) -> None:
        """Has every line asked, until none is left, the window closes, or the batch is cancelled."""
        if not await self._patiently(lambda: self._queue_lines(work)):
            return
        while work.is_asked and work.batch.remaining:
            left_s = work.closes_at - time.monotonic()
            if left_s <= 0:
                break
            self._news.set()
            work.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await work.news.wait()
        await self._stop_lines(work)
        end = AllAnswered(self.now_ms()) if not work.batch.remaining else TimeUp(self.now_ms())
        await self._patiently(lambda: self._commit(work, [end]))

    async def _queue_lines(self, work: _Work) -> bool:
        """Puts the lines that are not answered in line. False when the input cannot be used any more."""
        batch, models = work.batch, self._models
        assert models is not None
        if work.index is None:
            _, faults = await self._scan(work)
            if faults:
                await self._commit(work, [Rejected(self.now_ms(), faults)])
                return False
        index = work.index
        assert index is not None
        if len(index) != batch.total:
            changed = Fault("input_file_changed", "the input file is not what it was")
            await self._commit(work, [Rejected(self.now_ms(), [changed])])
            return False
        path = self.files.path(self.files.get(work.owner, batch.created.input_file, is_needed=True))
        work.source = await self.disk.do(lambda: open_regular(path))
        waiting = await self.bulk.do(lambda: _by_model(batch, index, models))
        if work.is_asked:
            work.waiting = waiting
        return True

    async def _stop_lines(self, work: _Work) -> None:
        """Withdraws what is under way, and waits until all answers that came are durable."""
        work.is_over = True
        work.waiting.clear()
        tasks = [line.task for line in work.calls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=BATCH_STOP_MS / 1000)
        while work.unwritten:
            work.news.clear()
            await work.news.wait()
        if work.source >= 0:
            os.close(work.source)
            work.source = -1

    async def _finish(self, work: _Work) -> None:
        """Writes the results of a batch whose lines are not asked any more."""
        batch, owner = work.batch, work.owner
        if not batch.total:  # it was cancelled before its lines were counted
            await self._commit(work, [Written(self.now_ms(), None, None)])
            return
        index = work.index
        if index is None:
            index, faults = await self._scan(work)
            if faults:
                await self._commit(work, [Rejected(self.now_ms(), faults)])
                return
        kinds = (("output", batch.created.dialect is Dialect.OPENAI), ("error", True))
        ids = [f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:32]}" for kind, _ in kinds]
        drafts = (self.files.draft_path(owner, ids[0]), self.files.draft_path(owner, ids[1]))
        source = self.files.path(self.files.get(owner, batch.created.input_file, is_needed=True))
        shape = self._shapes[batch.created.dialect]

        def write() -> Results:
            return write_results(batch, source, index, work.record.answers(), shape=shape, drafts=drafts)

        sizes = await self.bulk.do(write, timeout_ms=BATCH_BULK_MS)
        kept: list[str | None] = []
        for id, (kind, is_listed), draft, size in zip(ids, kinds, drafts, sizes, strict=True):
            if size:
                purpose = BATCH_OUTPUT if is_listed else HIDDEN
                expires_s = self.files.expiry(batch.created.output_kept_ms)
                name = f"{batch.id}_{kind}.jsonl"
                file = StoredFile(id, owner, name, purpose, size, self.files.now_s(), expires_s)
                await self.files.keep(file, draft)
            kept.append(id if size else None)
        await self._commit(work, [Written(self.now_ms(), kept[0], kept[1])])

    async def _settle(self, work: _Work) -> None:
        """Keeps a short account of a batch that has ended in place of its record."""
        batch, record = work.batch, work.record
        path = self._account(batch)

        def compact() -> None:
            make_folder(path.parent)
            write_ended(path, batch.ended())
            record.remove()

        await self.disk.do(compact)
        self._open.pop(batch.id, None)
        self._ended[batch.id] = batch
        if batch.created.dialect is Dialect.ANTHROPIC:
            with contextlib.suppress(NotFound):
                await self.files.remove(self.files.get(work.owner, batch.created.input_file, is_needed=True))
        self._counts[f"batches_{batch.stage}"] += 1
        told = f"{batch.stage}: {batch.completed} answered, {batch.failed} failed of {batch.total}"
        self._journal(JournalEvent.BATCH_END, batch, told)

    # ------------------------------------------------------------------ lines

    async def _dispatch_often(self) -> None:
        while True:
            self._news.clear()
            try:
                self._dispatch()
            except Exception:  # noqa: BLE001  a bug must not stop all batches in silence
                _log.exception("batches: no line could be started")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BATCH_LOOK_MS / 1000):
                    await self._news.wait()

    def _dispatch(self) -> None:
        """Starts lines, and withdraws those of models whose turn is over."""
        models = self._models
        self._look_at_room()
        if self._is_closing or self.paused is not None or models is None:
            return
        demand = self._demand()
        warm = {model for model in demand if models.is_warm(model)}
        chosen = choose(demand, warm, _now())
        self._withdraw({model for model in demand if model not in chosen and model not in warm})
        running = Counter(line.model for work in self._open.values() for line in work.calls.values())
        for model in chosen:
            room = min(models.slots(model), BATCH_LINES_OPEN_MAX) - running[model]
            while room > 0 and self._has_room() and self._start_line(model):
                room -= 1

    def _has_room(self) -> bool:
        """Whether the answers that wait for the disk leave room for more."""
        size = sum(size for _, _, size in self._answers)
        return len(self._answers) < BATCH_UNWRITTEN_MAX and size < BATCH_UNWRITTEN_BYTES_MAX

    def _demand(self) -> dict[str, int]:
        """The models with lines, and since when none of these was served. Models that failed just now are left out."""
        now = time.monotonic()
        wanted: dict[str, None] = {}
        for work in self._open.values():
            wanted.update((model, None) for model, lines in work.waiting.items() if lines)
            wanted.update((line.model, None) for line in work.calls.values())
        return {
            model: self._served_at.setdefault(model, _now())
            for model in wanted
            if self._again_at.get(model, 0.0) <= now
        }

    def _withdraw(self, models: set[str]) -> None:
        """Takes back lines that wait for models whose turn it is not: else the scheduler would load them."""
        for work in self._open.values():
            for line in work.calls.values():
                if line.model in models and line.is_waiting:
                    line.task.cancel()

    def _start_line(self, model: str) -> bool:
        """Starts the next line of a model: that of the key whose last turn was longest ago. False when none waits."""
        ready = [work for work in self._open.values() if work.is_asked and work.waiting.get(model)]
        if not ready:
            return False
        work = min(ready, key=lambda each: (self._last_turn.get(each.owner, 0), each.order))
        self._started += 1
        self._last_turn[work.owner] = self._started
        number = work.waiting[model].popleft()
        task = asyncio.get_running_loop().create_task(self._answer(work, number, model), name="batch line")
        work.calls[number] = _Line(model, task)
        return True

    async def _answer(self, work: _Work, number: int, model: str) -> None:
        """Asks a line, and hands its answer to the writer; a line that is not answered waits again."""
        is_answered = False
        try:
            reply = await self._reply(work, number, model)
            if reply is not None:
                self._failing.pop(model, None)
                self._served_at[model] = _now()
                self._put(work, number, reply)
                is_answered = True
        except Exception:  # noqa: BLE001  a bug in one line must not stop the others
            _log.exception("batch=%s line=%d failed inside Watchbill", work.batch.id, number + 1)
            self._put(
                work,
                number,
                Reply(500, "", b'{"error":{"message":"Watchbill failed; its log has the reason"}}'),
            )
            is_answered = True
        finally:
            work.calls.pop(number, None)
            if not is_answered and work.is_asked and not self._is_closing:
                work.waiting.setdefault(model, deque()).appendleft(number)
            self._news.set()

    async def _reply(self, work: _Work, number: int, model: str) -> Reply | None:
        """The answer to a line; None when it is to be asked again."""
        index, ask = work.index, self._ask
        assert index is not None and ask is not None
        line = decode_line(await asyncio.to_thread(read_line, work.source, index, number))
        call = ask.begin(Question(work.owner, line.url, bytes(line.body)))
        work.calls[number].call = call
        try:
            return await call.reply()
        except NotNow as error:
            self._counts["repeated"] += 1
            if error.failure is not None:
                work.failures[number] += 1
                if work.failures[number] >= self.rules.attempts:
                    return error.failure
            self._leave_alone(model, error.again_ms)
            return None

    def _leave_alone(self, model: str, again_ms: int) -> None:
        """A model could not be asked: it is tried again after a pause that grows."""
        if self._again_at.get(model, 0.0) > time.monotonic():
            return  # lines that failed together are one failure
        self._failing[model] += 1
        pause_ms = max(again_ms, BATCH_AGAIN_MS * 2 ** min(self._failing[model] - 1, 16))
        pause_s = min(pause_ms, BATCH_AGAIN_MS_MAX) / 1000
        self._again_at[model] = time.monotonic() + pause_s
        asyncio.get_running_loop().call_later(pause_s, self._news.set)

    def _put(self, work: _Work, number: int, reply: Reply) -> None:
        if len(reply.body) > BATCH_ANSWER_BYTES_MAX:
            told = f"the answer has {len(reply.body)} bytes; a line's has at most {BATCH_ANSWER_BYTES_MAX}"
            body = msgspec.json.encode(
                {"error": {"message": told, "type": "server_error", "code": "too_large"}}
            )
            reply = Reply(502, reply.request, body)
        answer = Answered(self.now_ms(), number, reply.status, reply.request, msgspec.Raw(reply.body))
        self._answers.append((work, answer, len(reply.body)))
        work.unwritten += 1
        self._has_answers.set()

    async def _write_answers(self) -> None:
        """Makes answers durable, all that came together with one sync for each batch."""
        while True:
            await self._has_answers.wait()
            self._has_answers.clear()
            grouped: dict[_Work, list[Answered]] = {}
            for work, answer, _ in self._answers:
                grouped.setdefault(work, []).append(answer)
            for work, answers in grouped.items():
                taken = await self._patiently(lambda w=work, a=answers: self._commit(w, a))
                self._answered(work, answers, taken)

    def _answered(self, work: _Work, answers: Sequence[Answered], taken: int) -> None:
        done = set(map(id, answers))
        self._answers = [each for each in self._answers if id(each[1]) not in done]
        work.unwritten -= len(answers)
        self._counts["answered"] += taken
        self._counts["failed"] += sum(not answer.is_good for answer in answers)
        work.news.set()
        self._news.set()

    # ------------------------------------------------------------------ the disk

    async def _commit(self, work: _Work, events: Sequence[Event]) -> int:
        """Makes events durable, then makes them happen. Returns how many did. Raises DiskFailed.

        It is finished also when its caller leaves: what is on the disk and what is in memory must not differ."""
        task = asyncio.get_running_loop().create_task(self._make_happen(work, events), name="batch event")
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    async def _make_happen(self, work: _Work, events: Sequence[Event]) -> int:
        async with work.lock:
            possible = [event for event in events if work.batch.takes(event)]
            if possible:
                await self.disk.do(lambda: work.record.append(possible))
            for event in possible:
                work.batch.apply(event)
            return len(possible)

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Does something that needs the disk, again and again until the disk lets it."""
        self._order += 1
        key = self._order
        try:
            while True:
                try:
                    return await step()
                except DiskFailed as error:
                    self._get_stuck(key, error)
                    await asyncio.sleep(BATCH_DISK_AGAIN_MS / 1000)
        finally:
            if self._stuck.pop(key, None) is not None:
                self._resumed()

    def _get_stuck(self, key: int, error: DiskFailed) -> None:
        if not self._stuck:
            self._tell(Alert("batches_paused", f"batches are paused: {error}"))
        self._stuck[key] = Pause.DISK_FULL if isinstance(error, DiskIsFull) else Pause.DISK_FAILED

    def _look_at_room(self) -> None:
        bound = self.rules.disk_max
        was_full, self._is_full = self._is_full, bool(self._open) and self._bytes() >= bound
        if self._is_full and not was_full:
            told = (
                f"files and answers have reached batches.disk_max of {format_bytes(bound)}; delete some files"
            )
            self._tell(Alert("batches_paused", f"batches are paused: {told}"))
        elif was_full and not self._is_full:
            self._resumed()

    def _resumed(self) -> None:
        if self.paused is None and not self._is_closing:
            self._note(Note(JournalEvent.BATCHES_RESUMED, "batches go on"))
            self._news.set()

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

    def _take_up(self, batch: Batch, record: BatchRecord) -> None:
        self._spawn(self._live(self._add(batch, record)))

    def _add(self, batch: Batch, record: BatchRecord) -> _Work:
        self._order += 1
        left_s = (batch.expires_at - self.now_ms()) / 1000
        work = _Work(batch, record, time.monotonic() + left_s, self._order)
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


def _now() -> int:
    return time.monotonic_ns() // 1_000_000


def _by_model(batch: Batch, index: LineIndex, models: Models) -> dict[str, deque[int]]:
    """The lines that are not answered, in line for their models. Lines for models that nobody knows are one line."""
    meant = [models.resolve(name) for name in index.names]
    waiting: dict[str, deque[int]] = {}
    for line in batch.unanswered():
        waiting.setdefault(meant[index.models[line]], deque()).append(line)
    return waiting


def _found(folder: Path) -> list[tuple[Batch, BatchRecord | None]]:
    """The batches on the disk, the oldest first, with the record of those that are open."""
    found: list[tuple[Batch, BatchRecord | None]] = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            stem = path.name.removesuffix(".json")
            if not _ID.fullmatch(stem):
                continue
            if path.is_dir():
                found += _opened(path)
            elif path.name.endswith(".json"):
                found += _read_account(path)
    return sorted(found, key=lambda each: (each[0].created.at, each[0].id))


def _opened(folder: Path) -> list[tuple[Batch, BatchRecord | None]]:
    record = BatchRecord(folder)
    if folder.with_name(folder.name + ".json").exists():  # it ended, and its record was being removed
        record.remove()
        return []
    if record.is_blank():  # it was never acknowledged
        record.remove()
        return []
    batch = record.read()
    if batch is None:
        # It was never acknowledged, or is damaged; nobody can tell, so it stays for a person.
        _log.warning("%s holds no batch and is put aside", folder)
        target = folder.with_name(f"{folder.name}.damaged")
        if not target.exists():
            folder.rename(target)
        return []
    return [(batch, record)]


def _read_account(path: Path) -> list[tuple[Batch, BatchRecord | None]]:
    try:
        return [(Batch.restored(read_ended(path)), None)]
    except (msgspec.DecodeError, UnicodeDecodeError, NotAFile):
        _log.warning("%s is damaged; its batch is not shown", path)
        return []
