"""Own work: what the daemon itself asks a model. It is a request in a lane like any other, without a client.

    answer = await do_own_work(submit, Submission(model, lane=...), work)

`work` runs when the request is granted a place, with the ticket and the address of the model. Work that is cut for
another request goes back to its lane and begins again at its next grant; it must keep its own state until then. Work
that is cut for any other reason ends with an error.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar

from watchbill.core.messages import CutKind
from watchbill.engines.upstream import is_timeout
from watchbill.errors import EngineFailed, TheirsError
from watchbill.runtime.ticket import Start, Submission, Ticket

__all__ = ["Work", "do_own_work"]

_LOG = logging.getLogger("watchbill.own_work")
Result = TypeVar("Result")
Work = Callable[[Ticket, Start], Coroutine[object, object, Result]]


async def do_own_work(
    submit: Callable[[Submission], Ticket], submission: Submission, work: Work[Result]
) -> Result:
    """The result of the work. Raises the refusal of the scheduler, and TheirsError when the work was ended.

    Exceptions of `work` pass through. EngineFailed counts against the model: there may be no other caller that would
    notice. Success teaches nothing about answers, because the time of such work differs from theirs.
    """
    ticket = submit(submission)
    try:
        result = await _until_done(ticket, work)
        ticket.finish(ok=None)
    except EngineFailed as error:
        ticket.finish(ok=False, timed_out=is_timeout(error))
        raise
    finally:
        ticket.close()
    return result


async def _until_done(ticket: Ticket, work: Work[Result]) -> Result:
    """RES-17: explicit work comes first; then this work is queued again."""
    while True:
        start = await ticket.granted()
        working = asyncio.ensure_future(work(ticket, start))
        if await _ends_uncut(ticket, working):
            return working.result()
        if ticket.cut not in (CutKind.REQUEUE, CutKind.BOUNDARY):
            raise TheirsError(f"it was ended: {ticket.cut}")
        _LOG.info("work of the daemon on %s makes way for explicit work", start.model)
        ticket.give_back()


async def _ends_uncut(ticket: Ticket, working: "asyncio.Future[Result]") -> bool:
    """Waits for the work to end. False when it was cut. Raises what the work raises."""

    def stop() -> None:
        working.cancel()

    ticket.on_cut = stop
    if ticket.cut is not None:
        stop()
    try:
        await working
    except asyncio.CancelledError:
        if ticket.cut is None:
            raise
        return False
    finally:
        working.cancel()
    return True
