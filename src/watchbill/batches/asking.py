"""How lines are asked: what `answering` needs of the part that answers a line, without knowing that part."""

from typing import Protocol

import msgspec

from watchbill.catalog import Reach

__all__ = ["Ask", "LineCall", "Models", "NotNow", "Question", "Reply"]


class Question(msgspec.Struct, frozen=True):
    """A line of a batch, to be answered as its address would answer it."""

    owner: str
    url: str
    body: bytes
    reach: Reach = Reach.ANYWHERE


class Reply(msgspec.Struct, frozen=True):
    """An answer, or a refusal for good."""

    status: int
    request: str  # the id under which it was served
    body: bytes


class NotNow(Exception):
    """The line is not answered yet, and is asked again. A failure counts against its attempts; a wait does not."""

    def __init__(self, failure: Reply | None, again_ms: int) -> None:
        super().__init__("not now")
        self.failure = failure
        self.again_ms = again_ms


class LineCall(Protocol):
    """A line that is being asked."""

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come: nothing is lost when it is withdrawn."""
        ...

    async def reply(self) -> Reply:
        """The answer. Raises NotNow."""
        ...


class Ask(Protocol):
    """The part that answers lines."""

    def begin(self, question: Question) -> LineCall:
        """A call that has not been made; `reply` makes it."""
        ...


class Models(Protocol):
    """What is known of models here."""

    def resolve(self, name: str) -> str:
        """The model that a name means; empty where it is unknown."""
        ...

    def slots(self, name: str) -> int:
        """How many lines of a model make sense at once."""
        ...

    def is_warm(self, name: str) -> bool:
        """Whether a model is in memory, or needs none."""
        ...
