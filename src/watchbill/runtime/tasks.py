"""Background tasks of the rotation: one at a time, each a request like any other, in the lowest class (RES-16, RES-17).

The command runs first, with the model's address in its environment; its output goes into the prompt where the prompt
says `{output}`, else after it. A task that is cut for somebody's sake goes back to its lane and begins again when the
memory is free; a command that had already ended is not run twice. Answers are kept in `ROOT/background/`.
"""

import asyncio
import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from watchbill.catalog import ROTATION_LANE, BackgroundTask
from watchbill.core.messages import TaskEnded
from watchbill.engines.base import Endpoint
from watchbill.engines.sse import DONE, EventReader
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.errors import EngineFailed, TheirsError
from watchbill.limits import TASK_COMMAND_MS, TASK_OUTPUT_CHARS_MAX, TASK_TOKENS_MAX
from watchbill.processes import Keeper
from watchbill.runtime.answers import AnswerBook
from watchbill.runtime.ticket import Start, Submission, Ticket

__all__ = ["Tasks"]

#: An answer's length, whatever the engine makes of the tokens that it was asked for.
ANSWER_CHARS_MAX = 2**20
_LOG = logging.getLogger("watchbill.rotation")


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Event(msgspec.Struct):
    """One event of a streamed answer, as far as a task reads it."""

    choices: list[_Choice] = msgspec.field(default_factory=list[_Choice])
    error: dict[str, object] | str | None = None


@dataclass(slots=True)
class _Work:
    """A task under way, through as many turns as it takes."""

    task: BackgroundTask
    output: str | None = None  # of its command, once that has ended
    load_ms: int = 0
    useful_ms: int = 0
    attempt: int = -1  # of the load that was last counted


class Tasks:
    """Runs the tasks that the core asks for."""

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
        ok, text = False, "it broke off"
        try:
            ticket = self._submit(Submission(model, lane=ROTATION_LANE.name))
            try:
                text = await self._turns(ticket, work, now)
                ticket.finish(ok=None)  # how long a task takes says nothing about answers
            except EngineFailed as error:
                timed_out = isinstance(error, UpstreamFailed) and error.kind == "timeout"
                ticket.finish(ok=False, timed_out=timed_out)  # at night nobody else may find out
                raise
            finally:
                ticket.close()
            ok = True
        except (TheirsError, OSError) as error:
            text = str(error)
        finally:  # whatever happened, the rotation hears of it: it waits for this task
            self._feed(TaskEnded(model, work.load_ms, work.useful_ms, ok, text))

    async def _turns(self, ticket: Ticket, work: _Work, now: Callable[[], int]) -> str:
        """Works until it is done. RES-17: explicit work comes first; then the task is queued again."""
        while True:
            start = await ticket.granted()
            began = now()
            if start.attempt != work.attempt:
                work.attempt, work.load_ms = start.attempt, work.load_ms + start.load_ms
            text = await self._until_cut(ticket, start, work)
            work.useful_ms = now() - began
            if text is not None:
                return text
            if ticket.cut not in ("requeue", "boundary"):
                raise TheirsError(f"it was ended: {ticket.cut}")
            _LOG.info("background task of %s makes way for explicit work", start.model)
            ticket.give_back()

    async def _until_cut(self, ticket: Ticket, start: Start, work: _Work) -> str | None:
        """What came of it; None when it was cut."""
        working = asyncio.ensure_future(self._perform(ticket, start, work))

        def stop() -> None:
            working.cancel()

        ticket.on_cut = stop
        if ticket.cut is not None:
            stop()
        try:
            return await working
        except asyncio.CancelledError:
            if ticket.cut is None:
                raise
            return None
        finally:
            working.cancel()

    async def _perform(self, ticket: Ticket, start: Start, work: _Work) -> str:
        task = work.task
        if task.command is not None and work.output is None:
            work.output = await self._command(task.command, start)
        output = work.output or ""
        if task.prompt is None:
            return f"the command wrote {len(output)} characters"
        prompt = task.prompt.replace("{output}", output)
        if output and "{output}" not in task.prompt:
            prompt = f"{prompt}\n\n{output}"
        answer = await self._ask(ticket, start.endpoint, start.model, prompt)
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

    async def _ask(self, ticket: Ticket, endpoint: Endpoint, model: str, prompt: str) -> str:
        """Asks for a stream: engines notice that a caller left only while they stream."""
        body = msgspec.json.encode(
            {
                "model": endpoint.upstream_model or model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": TASK_TOKENS_MAX,
                "stream": True,
            }
        )
        outgoing = Outgoing(endpoint, "POST", "/v1/chat/completions", body)
        call = self._upstream.call(outgoing, streamed=True)
        try:
            status = await call.head()
            if status != 200:
                raise (EngineFailed if status >= 500 else TheirsError)(f"the engine answered {status}")
            reader, said = EventReader(), ""
            while piece := await call.chunk():
                said += "".join(_text_of(payload) for payload in reader.feed(piece))
                if len(said) > ANSWER_CHARS_MAX:
                    raise TheirsError(f"the engine answered with more than {ANSWER_CHARS_MAX} characters")
            return said
        finally:
            ticket.leave(call)

    async def close(self) -> None:
        """Ends what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._upstream.close()


def _text_of(payload: bytes) -> str:
    """The words in one event. Raises EngineFailed for what is no event of a chat, or says that it failed."""
    if payload == DONE:
        return ""
    try:
        event = msgspec.json.decode(payload, type=_Event)
    except msgspec.MsgspecError as error:
        raise EngineFailed(f"the engine sent something else than an answer: {error}") from error
    if event.error is not None:
        raise EngineFailed(f"the engine broke off: {str(event.error)[:200]}")
    return "".join(choice.delta.content or "" for choice in event.choices)
