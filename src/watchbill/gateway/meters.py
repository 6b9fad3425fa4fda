"""Meters: how much of the house each key has taken, against the bounds that its table sets.

Three bounds, each optional: requests open at once, requests that wait at once, and tokens per minute. Over one of them
the caller gets 429 with Retry-After; nobody else notices. Tokens are counted as the engine's events pass, so a stream
counts while it runs; the minute slides.
"""

from collections import deque
from collections.abc import Callable

from watchbill.catalog import ApiKey
from watchbill.errors import LaneFull

__all__ = ["Meters"]

MINUTE_S = 60.0
RETRY_MS = 1_000


class _Meter:
    """One key."""

    __slots__ = ("open", "spent", "total")

    def __init__(self) -> None:
        self.open: list[Callable[[], bool]] = []  # for each open request: whether it still waits
        self.spent: deque[tuple[float, int]] = deque()  # when, how many tokens; within the last minute
        self.total = 0

    def tokens(self, now: float) -> int:
        """Tokens of the last minute."""
        while self.spent and self.spent[0][0] <= now - MINUTE_S:
            self.total -= self.spent.popleft()[1]
        return self.total


class Meters:
    """Every key that was seen. Keys come from the config, so their number is bounded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    def check(self, key: ApiKey) -> None:
        """Raises LaneFull when the key is over one of its bounds."""
        meter, now = self._meters.setdefault(key.name, _Meter()), self._clock()
        if key.requests_max is not None and len(meter.open) >= key.requests_max:
            raise LaneFull(
                f"key {key.name} already has {len(meter.open)} open requests, its requests_max",
                retry_after_ms=RETRY_MS,
            )
        waiting = sum(1 for waits in meter.open if waits())
        if key.waiting_max is not None and waiting >= key.waiting_max:
            raise LaneFull(
                f"key {key.name} already has {waiting} waiting requests, its waiting_max",
                retry_after_ms=RETRY_MS,
            )
        if key.tokens_per_minute is not None and meter.tokens(now) >= key.tokens_per_minute:
            pause = round((meter.spent[0][0] + MINUTE_S - now) * 1000)
            raise LaneFull(
                f"key {key.name} has used its {key.tokens_per_minute} tokens_per_minute",
                retry_after_ms=max(pause, RETRY_MS),
            )

    def enter(self, key: ApiKey, waits: Callable[[], bool]) -> Callable[[], None]:
        """Counts a request that was let in; returns what ends it."""
        meter = self._meters.setdefault(key.name, _Meter())
        meter.open.append(waits)

        def leave() -> None:
            if waits in meter.open:
                meter.open.remove(waits)

        return leave

    def spend(self, key: ApiKey, piece: bytes) -> None:
        """Counts the tokens of a piece of an answer: one per event that the engine sent."""
        meter, count = self._meters.setdefault(key.name, _Meter()), piece.count(b"data:")
        if count:
            meter.spent.append((self._clock(), count))
            meter.total += count
