"""Background tasks of the rotation: one at a time, each a request like any other, in the lowest class (RES-16, RES-17).

The command runs first, with the model's address in its environment; its output goes into the prompt where the prompt
says `{output}`, else after it. A task that is cut for somebody's sake waits for its next turn in the same lane.
"""

import asyncio
import json
import logging
import shlex
from collections.abc import Callable
from pathlib import Path

from watchbill.catalog import ROTATION_LANE, BackgroundTask
from watchbill.core.messages import TaskEnded
from watchbill.engines.base import Endpoint
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.errors import TheirsError
from watchbill.limits import TASK_COMMAND_MS, TASK_OUTPUT_CHARS_MAX, TASK_TOKENS_MAX
from watchbill.processes import Keeper
from watchbill.runtime.ticket import Start, Ticket, Wish

__all__ = ["Tasks"]

_LOG = logging.getLogger("watchbill.rotation")


class Tasks:
    """Runs the tasks that the core asks for."""

    def __init__(
        self, root: Path, submit: Callable[[Wish], Ticket], feed: Callable[[TaskEnded], None]
    ) -> None:
        self._keeper, self._submit, self._feed = Keeper(root), submit, feed
        self._upstream = Upstream()
        self._task: asyncio.Task[None] | None = None

    def run(self, model: str, task: BackgroundTask, now: Callable[[], int]) -> None:
        """Begins a task."""
        self._task = asyncio.create_task(self._run(model, task, now), name=f"rotation {model}")

    async def _run(self, model: str, task: BackgroundTask, now: Callable[[], int]) -> None:
        load_ms = useful_ms = 0
        try:
            ticket = self._submit(Wish(model, lane=ROTATION_LANE.name))
            try:
                start = await ticket.granted()
                began, load_ms = now(), start.load_ms
                text = await self._work(ticket, start, task)
                useful_ms = now() - began
                ticket.finish(ok=True)
            finally:
                ticket.close()
            self._feed(TaskEnded(model, load_ms, useful_ms, True, text))
        except (TheirsError, UpstreamFailed, OSError) as error:
            self._feed(TaskEnded(model, load_ms, useful_ms, False, str(error)))

    async def _work(self, ticket: Ticket, start: Start, task: BackgroundTask) -> str:
        working = asyncio.ensure_future(self._perform(start, task))

        def stop() -> None:
            working.cancel()

        ticket.on_cut = stop
        try:
            return await working
        except asyncio.CancelledError:
            if ticket.cut is None:
                raise
            raise TheirsError("it made room for explicit work") from None

    async def _perform(self, start: Start, task: BackgroundTask) -> str:
        output = ""
        if task.command is not None:
            output = await self._command(task.command, start)
        if task.prompt is None:
            return f"the command wrote {len(output)} characters"
        prompt = task.prompt.replace("{output}", output) if "{output}" in task.prompt else task.prompt
        if output and "{output}" not in task.prompt:
            prompt = f"{prompt}\n\n{output}"
        answer = await self._ask(start.endpoint, start.model, prompt)
        return f"the model answered with {len(answer)} characters"

    async def _command(self, command: str, start: Start) -> str:
        endpoint = start.endpoint
        url = f"http://{endpoint.host}:{endpoint.port}{endpoint.path_prefix}"
        env = {"WATCHBILL_MODEL_URL": url, "WATCHBILL_MODEL": endpoint.upstream_model or start.model}
        words = tuple(shlex.split(command))
        finished = await self._keeper.run(
            f"task of {start.model}", words, env=env, timeout_ms=TASK_COMMAND_MS
        )
        if finished.code != 0:
            raise TheirsError(f"{words[0]} ended with {finished.code}: {finished.output.strip()[-200:]}")
        return finished.output[:TASK_OUTPUT_CHARS_MAX]

    async def _ask(self, endpoint: Endpoint, model: str, prompt: str) -> str:
        body = json.dumps(
            {
                "model": endpoint.upstream_model or model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": TASK_TOKENS_MAX,
            }
        ).encode()
        call = self._upstream.call(
            Outgoing(endpoint, "POST", f"{endpoint.path_prefix}/v1/chat/completions", body), streamed=False
        )
        status = await call.head()
        answer = await call.read()
        if status != 200:
            raise TheirsError(f"the engine answered {status}")
        return str(json.loads(answer)["choices"][0]["message"].get("content") or "")

    async def close(self) -> None:
        """Ends what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._upstream.close()
