"""Commands of the operator: sent to the core, answered when their effect has happened."""

import asyncio
import itertools
from collections.abc import Callable

from watchbill.core.messages import Event, Reply
from watchbill.errors import RequestError, TheirsError
from watchbill.runtime.limits import OPERATOR_MS_MAX

__all__ = ["Commands"]


class Commands:
    """The commands that wait for a reply."""

    def __init__(self, feed: Callable[[Event], None]) -> None:
        self._feed = feed
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}

    async def ask(self, event_of: Callable[[int], Event]) -> str:
        """Feeds the command's event and waits for its end. Raises RequestError when the core refuses."""
        command = next(self._numbers)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[command] = answer
        try:
            self._feed(event_of(command))
            async with asyncio.timeout(OPERATOR_MS_MAX / 1000):
                reply = await answer
        except TimeoutError:
            raise TheirsError(
                "the command is not finished yet and goes on; the status shows when it is done"
            ) from None
        finally:
            self._waiting.pop(command, None)
        if not reply.ok:
            raise RequestError(reply.text)
        return reply.text

    def fail(self, command: int, error: TheirsError) -> None:
        """Ends a command with an error that says more than a reply."""
        answer = self._waiting.get(command)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def reply(self, reply: Reply) -> None:
        """Delivers the core's answer."""
        answer = self._waiting.get(reply.command)
        if answer is not None and not answer.done():
            answer.set_result(reply)
