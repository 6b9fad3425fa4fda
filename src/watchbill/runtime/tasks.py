"""Background tasks of the rotation: one at a time, each a request like any other, in the lowest class (RES-16, RES-17).

The command runs first, with the model's address in its environment. Its output replaces `{output}` in the prompt, or
follows the prompt. A task that is cut for other work begins again with its next turn; a command that has already ended
is not run twice. Answers are kept for people in `ROOT/background/`.
"""

import asyncio
import errno
import logging
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from watchbill import names
from watchbill.catalog import ROTATION_LANE, BackgroundTask, Reach
from watchbill.core.messages import TaskEnded
from watchbill.engines.engine_calls import ask_text
from watchbill.engines.upstream import Upstream
from watchbill.errors import TheirsError
from watchbill.files.rotate import rotate
from watchbill.processes import Keeper
from watchbill.runtime.limits import (
    TASK_ANSWER_CHARS_MAX,
    TASK_ANSWERS_BYTES_MAX,
    TASK_COMMAND_MS,
    TASK_OUTPUT_CHARS_MAX,
    TASK_TOKENS_MAX,
)
from watchbill.runtime.own_work import do_own_work
from watchbill.runtime.ticket import Start, Submission, Ticket

__all__ = ["Tasks"]

_LOG = logging.getLogger("watchbill.rotation")


@dataclass(slots=True)
class _Work:
    """A task under way, over all its turns."""

    task: BackgroundTask
    output: str | None = None  # of its command, once that has ended
    load_ms: int = 0
    useful_ms: int = 0
    attempt: int = -1  # the attempt of the load that was counted last

    def prompt(self, prompt: str) -> str:
        """The prompt with the output of the command."""
        output = self.output or ""
        if "{output}" in prompt:
            return prompt.replace("{output}", output)
        return f"{prompt}\n\n{output}" if output else prompt


class Tasks:
    """Runs the tasks that the core starts."""

    def __init__(
        self, root: Path, submit: Callable[[Submission], Ticket], feed: Callable[[TaskEnded], None]
    ) -> None:
        self._keeper, self._submit, self._feed = Keeper(root), submit, feed
        self._answers = AnswerBook(root / "background")
        self._upstream = Upstream()
        self._task: asyncio.Task[None] | None = None

    def run(self, model: str, task: BackgroundTask, now: Callable[[], int]) -> None:
        """Begins a task."""
        self._task = asyncio.create_task(self._run(model, _Work(task), now), name=f"rotation {model}")

    async def _run(self, model: str, work: _Work, now: Callable[[], int]) -> None:
        ok, text = False, "it was interrupted"
        try:
            submission = Submission(model, lane=ROTATION_LANE.name, reach=Reach.HERE)
            text = await do_own_work(self._submit, submission, partial(self._turn, work, now))
            ok = True
        except (TheirsError, OSError) as error:
            text = str(error)
        finally:  # in any case the rotation is told: it waits for this task
            self._feed(TaskEnded(model, work.load_ms, work.useful_ms, ok, text))

    async def _turn(self, work: _Work, now: Callable[[], int], ticket: Ticket, start: Start) -> str:
        """Runs the task, and counts its time and that of its load."""
        began = now()
        if start.attempt != work.attempt:
            work.attempt, work.load_ms = start.attempt, work.load_ms + start.load_ms
        try:
            return await self._perform(work, ticket, start)
        finally:
            work.useful_ms = now() - began

    async def _perform(self, work: _Work, ticket: Ticket, start: Start) -> str:
        task = work.task
        if task.command is not None and work.output is None:
            work.output = await self._command(task.command, start)
        if task.prompt is None:
            return f"the command wrote {len(work.output or '')} characters"
        answer = await ask_text(
            self._upstream,
            start.endpoint,
            start.model,
            work.prompt(task.prompt),
            tokens_max=TASK_TOKENS_MAX,
            chars_max=TASK_ANSWER_CHARS_MAX,
            leave=ticket.leave,
        )
        await asyncio.to_thread(self._answers.keep, start.model, answer)
        return f"the model answered with {len(answer)} characters"

    async def _command(self, command: str, start: Start) -> str:
        endpoint = start.endpoint
        env = {"WATCHBILL_MODEL_URL": endpoint.url, "WATCHBILL_MODEL": endpoint.upstream_model or start.model}
        words = tuple(shlex.split(command))
        finished = await self._keeper.run(
            f"task of {start.model}", words, env=env, timeout_ms=TASK_COMMAND_MS
        )
        if finished.code != 0:
            raise TheirsError(f"{words[0]} ended with {finished.code}: {finished.output.strip()[-200:]}")
        return finished.output[:TASK_OUTPUT_CHARS_MAX]

    async def close(self) -> None:
        """Ends the running task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._upstream.close()


class AnswerBook:
    """The folder of answers: one file per model, the newest answer last.

    A file that has grown past its bound becomes `NAME.1` and a new one begins; older answers are dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, model: str, answer: str) -> None:
        """Adds an answer. When the disk is full it is lost, and the log says so."""
        path = self._folder / f"{names.file_stem(model)}.md"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > TASK_ANSWERS_BYTES_MAX:
                rotate(str(path), 2)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"## {time.strftime('%Y-%m-%d %H:%M:%S')}\n\n{answer.strip()}\n\n")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            _LOG.warning("the answer of %s is lost: %s", model, error)
