"""One request to an engine and its answer, whichever client carries it.

    call.poll()          0 until the answer's head is there; the first look sends the request
    call.take()          None until a piece is there, nothing at the answer's end
    await call.news()    for whoever got neither; what went wrong is told by the next look

`head`, `chunk` and `read` do the waiting for callers with nothing else to do. A caller who stops waiting (a timeout
of its own) may go on later: nothing is sent twice. Every failure is UpstreamFailed.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from watchbill.engines.connection import UpstreamFailed
from watchbill.limits import UPSTREAM_ANSWER_BYTES_MAX

__all__ = ["Call"]


class Call(ABC):
    """One request on its way, and its answer."""

    __slots__ = ()

    content_type: str  #: The answer's media type, lower case, without parameters; known with its status.
    has_ended: bool  #: Whether the whole answer came.

    @abstractmethod
    def poll(self) -> int:
        """The answer's status, 0 while there is none. Raises UpstreamFailed."""

    @abstractmethod
    def take(self) -> bytes | None:
        """What has come: a piece, nothing at the answer's end, None for who has to wait. Raises UpstreamFailed when
        it breaks off."""

    @abstractmethod
    def news(self) -> Awaitable[None]:
        """News, to be awaited: a head, a piece, the end or a failure. One waits at a time."""

    @abstractmethod
    def abort(self) -> None:
        """Cuts the request wherever it is; whoever waits gets UpstreamFailed. Does nothing after the end."""

    @property
    @abstractmethod
    def has_spoken(self) -> bool:
        """Whether a byte of the answer came."""

    @property
    @abstractmethod
    def silent_ms(self) -> int:
        """How long the engine has said nothing, or had when the request was cut."""

    @abstractmethod
    def on_let_go(self, tell: Callable[[bool], None]) -> bool:
        """After `abort`: has somebody told when the engine works on it no more, and whether that is known or only the
        bound is over. False when there is nothing to wait for."""

    async def head(self) -> int:
        """Waits for the answer's status."""
        while not (status := self.poll()):
            await self.news()
        return status

    async def chunk(self) -> bytes:
        """Waits for the next piece of the answer, empty at its end."""
        while (piece := self.take()) is None:
            await self.news()
        return piece

    async def read(self, limit_bytes: int = UPSTREAM_ANSWER_BYTES_MAX) -> bytes:
        """The whole rest of the answer. Raises UpstreamFailed, also when it is larger than the limit."""
        body = bytearray()
        while piece := await self.chunk():
            body += piece
            if len(body) > limit_bytes:
                self.abort()
                raise UpstreamFailed(
                    "too_large", f"the engine's answer exceeds {limit_bytes} bytes", received=True
                )
        return bytes(body)
