"""A spool that keeps what is captured in memory."""

from watchbill.runtime.capture import Captured

__all__ = ["Recorded"]


class Recorded:
    """Takes events as a spool does, and keeps them in their order."""

    def __init__(self) -> None:
        self.events: list[Captured] = []

    def capture(self, spool: str, event: Captured) -> bool:
        self.events.append(event)
        return True
