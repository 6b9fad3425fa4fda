"""A response that is made in the background: a task of its own, which outlives the request that asked for it.

It goes through the scheduler like any other request, with the same deadlines; a shutdown waits for it or cuts it.
Promises that its end is kept exactly once, whatever that is: completed, incomplete, failed or cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from watchbill.engines.upstream import Outgoing
from watchbill.errors import Overloaded, TheirsError
from watchbill.gateway.answers import let_go
from watchbill.gateway.dialects.responses.response import Collecting, Making
from watchbill.gateway.forced_calls import ForcedCall
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender
from watchbill.gateway.relay import Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.limits import RESPONSE_CANCEL_MS
from watchbill.runtime.ticket import Start, Submission

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["Background"]


class Background:
    """One response, while it is made. `keep` is called once, with what it has become."""

    def __init__(
        self,
        gateway: "Services",
        work: RequestContext,
        make: Callable[[], Making],
        keep: Callable[[Fields], Awaitable[None]],
    ) -> None:
        self._gateway, self._work, self._keep = gateway, work, keep
        self._calls = _Announcing(gateway)
        self._collecting = Collecting(make, lambda: work.model)
        self._task: asyncio.Task[None] | None = None
        self._final: Fields | None = None

    def now(self) -> Fields:
        """The response as it is."""
        if self._final is not None:
            return self._final
        ticket = self._work.ticket
        return self._collecting.now("queued" if ticket is None or ticket.is_waiting else "in_progress")

    async def start(self, submission: Submission, send: Sender, forced: ForcedCall | None = None) -> None:
        """Returns when the scheduler has accepted it. Raises what it refuses at once."""
        task = asyncio.get_running_loop().create_task(self._make(submission, send, forced), name="response")
        self._task, accepted = task, self._calls.accepted
        await asyncio.wait({task, accepted}, return_when=asyncio.FIRST_COMPLETED)
        if not accepted.done():
            task.result()

    async def cancel(self) -> Fields:
        """Ends it, if it has not ended; what it has become. Raises Overloaded when that takes too long."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=RESPONSE_CANCEL_MS / 1000)
        if self._final is None:
            raise Overloaded("the response has not ended yet; try again")
        return self._final

    async def _make(self, submission: Submission, send: Sender, forced: ForcedCall | None) -> None:
        work, collecting = self._work, self._collecting
        status = 200
        try:
            answer = await self._calls.collect(work, submission, send, collecting.begin, forced=forced)
            self._final = collecting.final(answer)
        except TheirsError as error:
            if not self._calls.accepted.done():
                raise  # its caller still waits for the verdict
            self._final, status = collecting.failed(error), error.status
            self._gateway.note_broken(work, error)
            let_go(error)
        except asyncio.CancelledError:
            self._final, status = collecting.cancelled(), 499
        finally:
            self._gateway.leave(work, status)
        await self._keep(self._final)


class _Announcing(ModelCalls):
    """Says when the scheduler has accepted the request."""

    def __init__(self, gateway: "Services") -> None:
        super().__init__(gateway)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _submit(
        self,
        context: RequestContext,
        submission: Submission,
        send: Callable[[Start], Outgoing],
        *,
        streamed: bool,
        unknown: Callable[[], bool] | None = None,
    ) -> Relay:
        relay = super()._submit(context, submission, send, streamed=streamed, unknown=unknown)
        self.accepted.set_result(None)
        return relay
