"""A door in the process of a test, without a broker."""

from collections.abc import Callable

from watchbill.fleet.door.door import Door
from watchbill.fleet.door.session import Session
from watchbill.fleet.door.wire import Op, unpack

__all__ = ["Direct"]


class Direct(Session):
    """Requests to a door in this process, each carried as often as a test wants."""

    def __init__(self, door: Door, agent: str = "gpu-1", *, copies: int = 1) -> None:
        super().__init__(self._carry_here)
        self.door, self.agent, self.copies = door, agent, copies
        self.sent: list[bytes] = []
        self.before: dict[Op, Callable[[], None]] = {}  # what happens while such a request is on its way

    def _carry_here(self, data: bytes) -> bytes:
        self.sent.append(data)
        self.before.get(Op(unpack(data).fields.text("op")), _nothing)()
        answers = {self.door.answer(self.agent, data) for _ in range(self.copies)}
        (answer,) = answers
        assert answer is not None
        return answer


def _nothing() -> None:
    pass
