"""Streams to clients: headers that are held back, signs of life, pieces, and an end that says how it went.

A relay writes into an `Out`; each dialect has its own kind. Promises that a stream ends in good order or with an error
in the dialect's own shape, never in half an event. Owns no ticket and no engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from watchbill.engines.sse import DONE, WholeEvents
from watchbill.errors import TheirsError
from watchbill.gateway.answers import error_body
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Stream
from watchbill.gateway.request_context import RequestContext

__all__ = ["Out", "StreamOut"]


class Out(ABC):
    """A stream to a client. Each dialect says how signs of life, errors and fallbacks look in it."""

    content_type = "text/event-stream"

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self._response: Stream | None = None

    @property
    def response(self) -> Stream | None:
        """None while the headers are held back."""
        return self._response

    async def open(self) -> Stream:
        """Sends the headers, unless they were sent."""
        if self._response is None:
            self._response = Stream(self.context.request, self.headers(), lines=self.lines())
            await self._response.open()
        return self._response

    def headers(self) -> dict[str, str]:
        """The headers that say what the answer is."""
        return {
            "Content-Type": self.content_type,
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }

    def lines(self) -> str:
        """The headers that say how the request was served."""
        return self.context.lines()

    async def send(self, content: bytes) -> None:
        """Sends bytes of the answer, after the headers."""
        if content:
            await (await self.open()).write(content)

    async def send_each(self, pieces: Iterable[bytes]) -> None:
        """Sends pieces of the answer together. Where making one of them fails, those before it are sent first."""
        made: list[bytes] = []
        try:
            for piece in pieces:
                made.append(piece)
        finally:
            await self.send(b"".join(made))

    async def end(self) -> Stream:
        """Ends the stream."""
        response = await self.open()
        await response.end()
        return response

    # ------------------------------------------------------------------ what dialects do differently

    async def comment(self, text: str) -> None:
        """A sign of life. Where the protocol knows none, the headers are one."""
        await self.open()

    async def write(self, piece: bytes) -> None:
        """Takes a piece of the engine's answer."""
        await self.send(piece)

    async def flush(self) -> None:  # noqa: B027  most dialects hold nothing back
        """The engine ended its answer in good order."""

    @abstractmethod
    async def fail(self, error: TheirsError) -> None:
        """Says in the stream what went wrong."""

    @abstractmethod
    async def fall_back(self, fallback: Fallback) -> None:
        """Writes a whole answer that no model gave."""

    @abstractmethod
    def has_ended(self, tail: bytes) -> bool:
        """Whether the engine's stream came to its end, by its last bytes."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole already: the engine need not go on."""
        return False

    def takes(self, status: int, content_type: str) -> bool:
        """Whether an answer that is no stream of events can be written here all the same."""
        return False


class StreamOut(Out):
    """Server-sent events that pass unchanged."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._whole_events = WholeEvents()
        self._last_sent = b"\n"

    async def comment(self, text: str) -> None:
        """A sign of life. One newline only: a blank line would end an event, and clients broke on that."""
        await self.send(f": {text}\n".encode())

    async def write(self, piece: bytes) -> None:
        """Passes bytes on unchanged, up to the end of the last whole event. Raises EventTooLarge."""
        whole = self._whole_events.feed(piece)
        if whole and self._response is not None:
            self._last_sent = whole[-1:]
            await self._response.write(whole)

    async def flush(self) -> None:
        """Sends what is held back: the engine ended its answer in good order without a last newline."""
        if self._response is not None and (half := self._whole_events.rest()):
            await self._response.write(half)

    async def fail(self, error: TheirsError) -> None:
        """Ends the stream with an error event."""
        await self.send_last(b"data: " + error_body(error) + b"\n\n")

    async def fall_back(self, fallback: Fallback) -> None:
        """Not every stream of events is an answer that a text could stand in for; those that are say how."""
        raise AssertionError("requests of this kind have no fallback")

    async def send_last(self, event: bytes) -> None:
        """Sends the stream's last event, in place of one whose beginning is held back.

        Carriage returns alone end a line, too, but many clients do not know it: they would miss an event behind one.
        """
        self._whole_events.rest()
        await self.send(event if self._last_sent == b"\n" else b"\n\n" + event)

    def has_ended(self, tail: bytes) -> bool:
        return DONE in tail[-32:] or b'"error"' in tail
