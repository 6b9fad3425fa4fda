"""Capturing: finished requests for the spool that a key, a model, a type of work or a lane names (SPOOL-13).

A tap listens to the engine's bytes as they pass and keeps them, within a bound. When the request is over, its answer
is put together from the next turn of the loop on, after the caller has its own, a piece per turn, and handed to the
spool's thread, in the order in which requests ended. A request that says `X-Watchbill-Private: 1` is never captured.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial

from watchbill.catalog import Catalog, Tier
from watchbill.errors import EngineFailed
from watchbill.gateway.answers import EngineRefused
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.options import is_marked_private
from watchbill.gateway.request_context import RequestContext
from watchbill.runtime.capture import Capture, Captured
from watchbill.runtime.limits import CAPTURE_ANSWER_BYTES_MAX, CAPTURE_PROMPT_BYTES_MAX, CAPTURE_STOP_MS
from watchbill.runtime.ticket import Submission

__all__ = ["Capturing", "Tap"]

_Finish = Callable[[str, Coroutine[object, object, Captured]], None]


class Capturing:
    """Which requests are captured, and where to."""

    def __init__(self) -> None:
        #: Where events go; the daemon sets it when the config has spools.
        self.sink: Capture | None = None
        self._ending: set[asyncio.Task[None]] = set()  # taps whose answers are put together
        self._last: dict[str, asyncio.Task[None]] = {}  # of them, the one that ended last, by spool

    def begin(self, catalog: Catalog, context: RequestContext, submission: Submission) -> "Tap | None":
        """Listens to a request, if a spool wants it."""
        if self.sink is None or is_marked_private(context.request.headers):
            return None
        spool = _spool_of(catalog, context, submission)
        return None if spool is None else Tap(spool, context, self._finish)

    def _finish(self, spool: str, making: Coroutine[object, object, Captured]) -> None:
        task = asyncio.get_running_loop().create_task(self._hand_over(spool, making, self._last.get(spool)))
        self._last[spool] = task
        self._ending.add(task)
        task.add_done_callback(partial(self._ended, spool))

    async def _hand_over(
        self, spool: str, making: Coroutine[object, object, Captured], before: asyncio.Task[None] | None
    ) -> None:
        event = await making
        if before is not None and not before.done():  # a longer answer, which takes more turns
            await asyncio.wait({before})
        if self.sink is not None:
            self.sink.capture(spool, event)

    def _ended(self, spool: str, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if self._last.get(spool) is task:
            del self._last[spool]

    async def close(self) -> None:
        """Waits for the answers that are put together, for a bounded time."""
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=CAPTURE_STOP_MS / 1000)


def _spool_of(catalog: Catalog, context: RequestContext, submission: Submission) -> str | None:
    """The first that says `capture`: the key, the type of work, the model, the lane."""
    model = catalog.find_model(submission.model)
    lane = catalog.lane_for(submission.lane)
    named = (
        context.key and context.key.capture,
        context.capture,
        model and model.capture,
        lane.capture,
    )
    return next((spool for spool in named if spool), None)


class Tap:
    """One request that is captured."""

    def __init__(self, spool: str, context: RequestContext, finish: _Finish) -> None:
        self._spool, self._context, self._finish = spool, context, finish
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Bytes of the engine's answer."""
        self._size += len(piece)
        if self._size <= CAPTURE_ANSWER_BYTES_MAX:
            self._pieces.append(piece)

    def restart(self) -> None:
        """The answer broke off and is asked for once more."""
        self._pieces, self._size = [], 0

    def end(self, outcome: str) -> None:
        """The request is over; its caller waits for nothing of what follows."""
        self._finish(self._spool, self._made(outcome, time.time()))

    async def _made(self, outcome: str, ended_at: float) -> Captured:
        context = self._context
        asked = context.asked or {}
        prompt = next((asked[name] for name in ("messages", "prompt", "input") if name in asked), None)
        if context.lifted is not None:
            found = context.lifted.restore(prompt, CAPTURE_PROMPT_BYTES_MAX)
            prompt = context.lifted.without(prompt) if found is prompt else found
        answer = await _text_of(self._pieces)
        model = context.model or str(asked.get("model") or "")
        tier = Tier.LOCAL if context.start is None else context.start.tier
        return Captured(
            context.id, ended_at, context.lane, model, tier, prompt, answer, outcome, cost=context.cost
        )


async def _text_of(pieces: list[bytes]) -> object:
    """The answer's message or text; what is not in OpenAI's words is kept as the engine sent it."""
    for chat in (True, False):
        assembly = Assembly(chat=chat)
        try:
            for piece in pieces:
                assembly.feed(piece)
                await asyncio.sleep(0)
            choices = assembly.result().get("choices")
        except (EngineFailed, EngineRefused):
            continue
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            return choices[0].get("message") or choices[0].get("text")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  any JSON
    return b"".join(pieces).decode("utf-8", "replace") or None
