"""Answering: asks the lines of all open batches in idle time, and makes their answers durable.

One dispatcher starts lines: `order.choose` says of which models, and never more than a model has slots. One writer
makes answers durable, all that came meanwhile with one sync. A line counts as answered when its answer is durable; one
that was asked and not written down when the daemon died is asked again.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from watchbill.batches.asking import Ask, Models, NotNow, Question, Reply
from watchbill.batches.batch import Answered
from watchbill.batches.limits import (
    BATCH_AGAIN_MS,
    BATCH_AGAIN_MS_MAX,
    BATCH_ANSWER_BYTES_MAX,
    BATCH_LINES_OPEN_MAX,
    BATCH_LOOK_MS,
    BATCH_STOP_MS,
    BATCH_UNWRITTEN_BYTES_MAX,
    BATCH_UNWRITTEN_MAX,
)
from watchbill.batches.lines import read_body
from watchbill.batches.opened import LineUnderWay, OpenBatch
from watchbill.batches.order import choose
from watchbill.batches.pausing import Pausing

__all__ = ["Answering"]

_log = logging.getLogger("watchbill.batches")


class Answering:
    """One for all batches, of which `opened` has those that have not ended."""

    def __init__(
        self,
        opened: Mapping[str, OpenBatch],
        ask: Ask,
        models: Models,
        *,
        pausing: Pausing,
        news: asyncio.Event,
        counts: Counter[str],
        attempts: int,
        look_at_room: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._open, self._ask, self._models, self._pausing = opened, ask, models, pausing
        self.attempts = attempts  # of a line whose engine fails
        self._look_at_room, self._now_ms = look_at_room, now_ms
        self._answers: list[tuple[OpenBatch, Answered, int]] = []  # not durable yet, with their sizes
        self._has_answers = asyncio.Event()
        self._news = news  # a line may be started
        self._served_at: dict[str, int] = {}  # model -> when a line of it was answered, or its lines came
        self._again_at: dict[str, float] = {}  # model -> until when it is left alone
        self._failing: Counter[str] = Counter()  # model -> how often in a row it could not be asked
        self._last_turn: dict[str, int] = {}  # owner -> number of the line that was started last
        self._started = 0
        self._counts = counts
        self._is_closing = False
        #: One line is decoded at a time: several together would keep the loop waiting.
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        """Withdraws lines under way, and waits for the disk for a bounded time."""
        self._is_closing = True
        lines = [line.task for work in self._open.values() for line in work.under_way.values()]
        for task in lines:
            task.cancel()
        if lines:
            await asyncio.wait(lines, timeout=BATCH_STOP_MS / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BATCH_STOP_MS / 1000):
                while self._answers and self._pausing.reason is None:
                    self._news.clear()
                    await self._news.wait()

    # ------------------------------------------------------------------ lines

    async def dispatch_often(self) -> None:
        """Starts lines whenever there is news, and now and then without."""
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
        if self._is_closing or self._pausing.reason is not None:
            return
        demand = self._demand()
        warm = {model for model in demand if models.is_warm(model)}
        chosen = choose(demand, warm, _now())
        self._withdraw({model for model in demand if model not in chosen and model not in warm})
        running = Counter(line.model for work in self._open.values() for line in work.under_way.values())
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
            wanted.update((line.model, None) for line in work.under_way.values())
        return {
            model: self._served_at.setdefault(model, _now())
            for model in wanted
            if self._again_at.get(model, 0.0) <= now
        }

    def _withdraw(self, models: set[str]) -> None:
        """Takes back lines that wait for models whose turn it is not: else the scheduler would load them."""
        for work in self._open.values():
            for line in work.under_way.values():
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
        work.under_way[number] = LineUnderWay(model, task)
        return True

    async def _answer(self, work: OpenBatch, number: int, model: str) -> None:
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
            work.under_way.pop(number, None)
            if not is_answered and work.is_asked and not self._is_closing:
                work.waiting.setdefault(model, deque()).appendleft(number)
            self._news.set()

    async def _reply(self, work: OpenBatch, number: int, model: str) -> Reply | None:
        """The answer to a line; None when it is to be asked again."""
        index = work.index
        assert index is not None
        async with self._reading:
            body = await asyncio.to_thread(read_body, work.source, index, number)
        created = work.batch.created
        call = self._ask.begin(Question(work.owner, created.endpoint, body, created.reach))
        work.under_way[number].call = call
        try:
            return await call.reply()
        except NotNow as error:
            self._counts["repeated"] += 1
            if error.failure is not None:
                work.failures[number] += 1
                if work.failures[number] >= self.attempts:
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

    # ------------------------------------------------------------------ answers

    def _put(self, work: OpenBatch, number: int, reply: Reply) -> None:
        if len(reply.body) > BATCH_ANSWER_BYTES_MAX:
            told = f"the answer has {len(reply.body)} bytes; a line's has at most {BATCH_ANSWER_BYTES_MAX}"
            body = msgspec.json.encode(
                {"error": {"message": told, "type": "server_error", "code": "too_large"}}
            )
            reply = Reply(502, reply.request, body)
        answer = Answered(self._now_ms(), number, reply.status, reply.request, msgspec.Raw(reply.body))
        self._answers.append((work, answer, len(reply.body)))
        work.unwritten += 1
        self._has_answers.set()

    async def write_answers(self) -> None:
        """Makes answers durable, all that came together with one sync for each batch."""
        while True:
            await self._has_answers.wait()
            self._has_answers.clear()
            grouped: dict[OpenBatch, list[Answered]] = {}
            for work, answer, _ in self._answers:
                grouped.setdefault(work, []).append(answer)
            for work, answers in grouped.items():
                taken = await self._pausing.patiently(lambda w=work, a=answers: w.commit(a))
                self._answered(work, answers, taken)

    def _answered(self, work: OpenBatch, answers: Sequence[Answered], taken: int) -> None:
        done = set(map(id, answers))
        self._answers = [each for each in self._answers if id(each[1]) not in done]
        work.unwritten -= len(answers)
        self._counts["answered"] += taken
        self._counts["failed"] += sum(not answer.is_good for answer in answers)
        work.news.set()
        self._news.set()


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
