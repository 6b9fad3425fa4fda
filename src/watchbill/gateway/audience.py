"""The audience: how many clients follow a stream without an end, in all and of each key.

Such a stream holds a connection and a buffer for as long as its client likes, so there is a bound for each key and for
all; operators have a few places beyond it.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from watchbill.catalog import ApiKey
from watchbill.errors import LaneFull
from watchbill.gateway.limits import EVENT_STREAMS_ADMIN_RESERVE, EVENT_STREAMS_KEY_MAX, EVENT_STREAMS_MAX

__all__ = ["Audience"]


class Audience:
    """Those who listen to one stream."""

    def __init__(self) -> None:
        self._listeners: Counter[str | None] = Counter()  # by key

    @property
    def size(self) -> int:
        """How many listen."""
        return self._listeners.total()

    @contextmanager
    def enter(self, key: ApiKey | None) -> Generator[None]:
        """Counts a listener while it listens. Raises LaneFull when there are as many as may be."""
        self._check(key)
        name = None if key is None else key.name
        self._listeners[name] += 1
        try:
            yield
        finally:
            self._listeners[name] -= 1

    def _check(self, key: ApiKey | None) -> None:
        is_admin = key is not None and key.admin
        if self.size >= EVENT_STREAMS_MAX + (EVENT_STREAMS_ADMIN_RESERVE if is_admin else 0):
            raise LaneFull(f"there are already {self.size} listeners; try again when one has left")
        if key is not None and not is_admin and self._listeners[key.name] >= EVENT_STREAMS_KEY_MAX:
            raise LaneFull(
                f"key {key.name} already has {EVENT_STREAMS_KEY_MAX} listeners; close one of them first"
            )
