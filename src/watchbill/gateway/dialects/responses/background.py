"""A response that is made in the background: a task of its own, which outlives the request that asked for it.

It goes through the scheduler like any other request, with the same deadlines; a shutdown waits for it or cuts it, and
the next daemon makes it to its end (`stasis`). Promises that its end is kept exactly once, whatever that is: completed,
incomplete, failed or cancelled.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from watchbill.engines.upstream import Outgoing
from watchbill.errors import (
    DeviceUnreadable,
    DiskFailed,
    EngineFailed,
    InMaintenance,
    LaneFull,
    NoMemory,
    Overloaded,
    ShuttingDown,
    TheirsError,
)
from watchbill.gateway.answers import let_go
from watchbill.gateway.dialects.responses.response import Collecting, Making
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.forced_calls import ForcedCall
from watchbill.gateway.limits import RESPONSE_AGAIN_MS, RESPONSE_CANCEL_MS
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender, Whole
from watchbill.gateway.relay import Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Begun, Resumption
from watchbill.gateway.services import Services
from watchbill.runtime.ticket import Start, Submission

__all__ = ["Background", "Prepare"]

#: A request that the scheduler can be asked for.
Prepared = tuple[Submission, Sender, ForcedCall | None]
Prepare = Callable[[], Awaitable[Prepared]]
#: Refusals that say only that this is not the time, for a response that was accepted before.
_NOT_NOW = (LaneFull, Overloaded, InMaintenance, NoMemory, DeviceUnreadable, DiskFailed)


class Background:
    """One response, while it is made. `keep` is called once, with what it has become."""

    def __init__(
        self,
        services: Services,
        work: RequestContext,
        make: Callable[[], Making],
        keep: Callable[[Fields], Awaitable[None]],
        begun: Begun | None = None,
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """`begun` says how far an earlier daemon has come with it. `on_start` is called whenever its turn has come."""
        self._services, self._work, self._keep = services, work, keep
        self._calls = _Announcing(services, begun, on_start)
        self._begun = begun
        self._collecting = Collecting(make, lambda: work.model)
        self._task: asyncio.Task[None] | None = None
        self._final: Fields | None = None
        self._is_parked = False
        self._is_put_off = False  # refused for now, and about to be asked for again

    def now(self) -> Fields:
        """The response as it is."""
        if self._final is not None:
            return self._final
        return self._collecting.now("queued" if self.is_waiting else "in_progress")

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come, or to come again."""
        ticket = self._work.ticket
        return self._is_put_off or ticket is None or ticket.is_waiting

    def begun(self) -> Begun:
        """How far it is, if that can be continued: plain text, and nothing else."""
        text = self._collecting.plain_text
        return Begun(text, self._calls.tokens) if text else self._begun or Begun()

    async def start(self, submission: Submission, send: Sender, forced: ForcedCall | None = None) -> None:
        """Returns when the scheduler has accepted it. Raises what it refuses at once."""

        async def prepared() -> Prepared:
            return submission, send, forced

        task = asyncio.get_running_loop().create_task(self._make(prepared, again=False), name="response")
        self._task, accepted = task, self._calls.accepted
        await asyncio.wait({task, accepted}, return_when=asyncio.FIRST_COMPLETED)
        if not accepted.done():
            task.result()

    def go_on(self, prepare: Prepare) -> None:
        """Makes it to its end for an earlier daemon, which accepted it: what is refused for now is tried again."""
        self._task = asyncio.get_running_loop().create_task(self._make(prepare, again=True), name="response")

    @property
    def has_ended(self) -> bool:
        """Whether it is what it has become, whether or not that is kept already."""
        return self._final is not None

    async def kept(self) -> None:
        """Waits until what it has become is kept, for a bounded time."""
        await self._end()

    async def park(self) -> None:
        """Waits for its end at a shutdown; what has not ended is left to the next daemon."""
        self._is_parked = True
        await self._end()

    async def _end(self) -> None:
        assert self._task is not None
        if self._final is None:  # else it is being kept
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=RESPONSE_CANCEL_MS / 1000)

    async def cancel(self) -> Fields:
        """Ends it, if it has not ended; what it has become. Raises Overloaded when that takes too long."""
        await self._end()
        if self._final is None:
            raise Overloaded("the response has not ended yet; try again")
        return self._final

    async def _make(self, prepare: Prepare, *, again: bool) -> None:
        async def ask(_: RequestContext) -> _Made:
            answer = await self._insist(prepare, again=again)
            return _Made(200, self._collecting.final(answer))

        def refused(work: RequestContext, error: TheirsError) -> _Made:
            if not again and not self._calls.accepted.done():
                raise error  # its caller still waits for the verdict
            if isinstance(error, ShuttingDown):
                return _Made(error.status, None)
            self._services.note_broken(work, error)
            return _Made(error.status, self._collecting.failed(error))

        try:
            self._final = (await self._services.frame.run(self._work, ask, refused)).final
        except asyncio.CancelledError:
            if not self._is_parked:
                self._final = self._collecting.cancelled()
        if self._final is not None:
            await self._keep(self._final)

    async def _insist(self, prepare: Prepare, *, again: bool) -> Whole | Fallback:
        """Asks until it is not refused for now. An engine that does not go on from what there is begins anew.

        What is refused before it was accepted is for its caller, unless an earlier daemon has accepted it."""
        closing = self._services.closing
        while not closing.is_set():
            try:
                return await self._collect(*await prepare())
            except _NOT_NOW as error:
                if not again and not self._calls.accepted.done():
                    raise
                pause_ms = error.retry_after_ms or RESPONSE_AGAIN_MS
                let_go(error)
            except EngineFailed as error:
                if self._calls.begun is None:
                    raise
                self._calls.begun, pause_ms = None, RESPONSE_AGAIN_MS
                let_go(error)
            self._is_put_off = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await closing.wait()
            self._is_put_off = False
        raise ShuttingDown

    async def _collect(
        self, submission: Submission, send: Sender, forced: ForcedCall | None
    ) -> Whole | Fallback:
        return await self._calls.collect(self._work, submission, send, self._collecting.begin, forced=forced)


class _Made(NamedTuple):
    """How the making of a response ended."""

    status: int
    final: Fields | None  # None: the next daemon makes it


class _Announcing(ModelCalls):
    """Says when the scheduler has accepted the request, and goes on from what an earlier daemon has."""

    def __init__(self, services: Services, begun: Begun | None, on_start: Callable[[], None]) -> None:
        super().__init__(services)
        self._on_start = on_start
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun = begun if begun is not None and begun.text else None
        self._relay: Relay | None = None

    @property
    def tokens(self) -> int:
        """How many tokens its answer has so far."""
        relay = self._relay
        if relay is None:
            return 0
        return relay.events if relay.resume is None else relay.resume.tokens

    def _fall_back(self, context: RequestContext, submission: Submission, error: TheirsError) -> Fallback:
        if isinstance(error, ShuttingDown):
            raise error  # the next daemon has a better answer
        return super()._fall_back(context, submission, error)

    def _submit(
        self,
        context: RequestContext,
        submission: Submission,
        send: Callable[[Start], Outgoing],
        *,
        streamed: bool,
        unknown: Callable[[], bool] | None = None,
    ) -> Relay:
        def started(start: Start) -> Outgoing:
            self._on_start()
            return send(start)

        relay = super()._submit(context, submission, started, streamed=streamed, unknown=unknown)
        if self.begun is not None:
            relay.resume = Resumption(relay.ticket.model, self._services.not_continued, self.begun)
        self._relay = relay
        if not self.accepted.done():
            self.accepted.set_result(None)
        return relay
