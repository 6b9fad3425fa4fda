"""Model work: tasks that need no process. A question to a model, and an order to the agent itself.

They run inside the agent and end like processes (`processes.crew`): the answer is the output, a failure is exit code 1
with its reason as error output, and every start is answered by exactly one `Ended`. Nothing here touches the shared
folder.

A question goes to the agent's own door of the host daemon. A model that is not in memory is loaded first, one at a time
on a host. A task that is stopped closes its stream, and the engine stops with it.

A daemon that ends takes its questions along. That is a loss and no failure of theirs, and no further question is
claimed until the daemon is back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from watchbill.engines.upstream import UpstreamFailed
from watchbill.errors import NotReachable, ShuttingDown, WatchbillError
from watchbill.fleet import limits
from watchbill.fleet.agent.answers import Answers
from watchbill.fleet.agent.memory import Memory
from watchbill.fleet.agent.questions import Question
from watchbill.fleet.logs import Part
from watchbill.plans.task import MetaCommand
from watchbill.processes.crew import Cause, Ended, Job, Output

__all__ = ["ModelWork"]

_LOG = Part.AGENT.logger


@dataclass(slots=True)
class _Running:
    """A task that has not ended."""

    task: "asyncio.Task[str]"
    began: float
    timer: asyncio.TimerHandle | None = None
    cause: Cause = Cause.EXIT
    heard_bytes: int = 0
    said: str = ""  # the end of the answer so far
    has_news: bool = False  # something was said since the last look
    is_private: bool = False


class ModelWork:
    """The tasks without a process of one agent. Lives on the agent's event loop."""

    def __init__(self, memory: Memory, key: str, on_end: Callable[[Ended], None]) -> None:
        self._memory, self._key, self._on_end = memory, key, on_end
        self._running: dict[str, _Running] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._running

    def ask(self, job: Job, question: Question) -> None:
        """Ask a model; `on_end` hears how it ended."""
        self._start(job, self._ask(job.id, question))

    def obey(self, job: Job, order: MetaCommand, model: str) -> None:
        """Load or unload a model; `on_end` hears how it ended."""
        self._start(job, self._obey(order, model))

    def stop(self, job: str, cause: Cause = Cause.STOPPED) -> None:
        """End a task now."""
        running = self._running[job]
        running.cause = cause
        running.task.cancel()

    def heard_bytes(self, job: str) -> int:
        """How much the daemon has said so far: a request that waits for its turn gets signs of life."""
        return self._running[job].heard_bytes

    def said_so_far(self) -> dict[str, str]:
        """The end of each answer to which something was added since the last look, by job."""
        news = {job: running for job, running in self._running.items() if running.has_news}
        for running in news.values():
            running.has_news = False
        return {job: running.said for job, running in news.items()}

    async def close(self) -> None:
        """End every task."""
        tasks = [running.task for running in self._running.values()]
        for job in list(self._running):
            self.stop(job)
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------ life of a task

    def _start(self, job: Job, work: "Awaitable[str]") -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        running = self._running[job.id] = _Running(task, time.monotonic())
        if job.timeout_ms is not None:
            running.timer = loop.call_later(job.timeout_ms / 1000, self.stop, job.id, Cause.TIMEOUT)
        # A callback, because a task that is stopped before its first step runs none of its own lines.
        task.add_done_callback(lambda task: self._end(job.id, task))

    def _end(self, job: str, task: "asyncio.Task[str]") -> None:
        running = self._running.pop(job)
        if running.timer is not None:
            running.timer.cancel()
        ms = round((time.monotonic() - running.began) * 1000)
        if task.cancelled():
            self._on_end(Ended(job, running.cause, None, ms))
            return
        error = task.exception()
        if error is None:
            said = _output(task.result())
            self._on_end(Ended(job, Cause.EXIT, 0, ms, out=said, is_private=running.is_private))
            return
        if not isinstance(error, WatchbillError):
            _LOG.error("%s failed", job, exc_info=error)
        said = _output(str(error) or type(error).__name__)
        if _is_daemon_gone(error):
            self._memory.miss()
            self._on_end(Ended(job, Cause.DAEMON_GONE, None, ms, err=said))
            return
        self._on_end(Ended(job, Cause.EXIT, 1, ms, err=said))

    # ------------------------------------------------------------ what tasks do

    async def _ask(self, job: str, question: Question) -> str:
        state = self._memory.state
        model = question.model or state.own_model
        if model and model not in state.hot:
            await self._memory.load(model)
        answers = Answers(
            state.model_url,
            self._key,
            on_bytes=lambda count: self._count(job, count),
            on_text=lambda text: self._hear(job, text),
        )
        try:
            return await answers.answer(replace(question, model=model))
        finally:
            self._running[job].is_private = answers.is_private
            await answers.close()

    def _count(self, job: str, heard_bytes: int) -> None:
        self._running[job].heard_bytes += heard_bytes

    def _hear(self, job: str, text: str) -> None:
        running = self._running[job]
        running.said = (running.said + text)[-limits.SO_FAR_CHARS_MAX :]
        running.has_news = True

    async def _obey(self, order: MetaCommand, model: str) -> str:
        model = model or self._memory.state.own_model
        if order is MetaCommand.LOAD:
            await self._memory.load(model)
            return f"loaded {model}"
        await self._memory.unload(model)
        return f"unloaded {model}"


def _is_daemon_gone(error: BaseException) -> bool:
    """Whether a question failed because its daemon has ended or is about to. A daemon tells of engines that failed."""
    if isinstance(error, NotReachable) and isinstance(error.__cause__, UpstreamFailed):
        error = error.__cause__
    return isinstance(error, ShuttingDown) or (isinstance(error, UpstreamFailed) and error.is_broken_off)


def _output(text: str) -> Output:
    content = text.encode("utf-8", "replace")
    return Output(len(content), content)
