"""Meters: how much of the house each key has taken, against the bounds that its table sets.

Three bounds, each optional: requests open at once, requests that wait at once, and tokens per minute. Over one of them
the caller gets 429 with Retry-After; nobody else notices. A request counts as open before its body is received, so a
key that is over a bound sends nothing. Tokens count while an answer runs (`gateway.tokens`); the minute slides.
"""

from collections import deque
from collections.abc import Callable

from watchbill.catalog import ApiKey
from watchbill.errors import LaneFull
from watchbill.runtime.ticket import Ticket

__all__ = ["Meters", "Stay"]

MINUTE_S = 60.0
RETRY_MS = 1_000


class _Meter:
    """One key."""

    __slots__ = ("open", "spent", "total")

    def __init__(self) -> None:
        self.open: set[Stay] = set()
        self.spent: deque[tuple[float, int]] = deque()  # when, how many tokens; within the last minute
        self.total = 0

    def tokens(self, now: float) -> int:
        """Tokens of the last minute."""
        while self.spent and self.spent[0][0] <= now - MINUTE_S:
            self.total -= self.spent.popleft()[1]
        return self.total

    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(stay.is_waiting for stay in self.open)


class Stay:
    """One request of a key that has bounds, from before its body to its end."""

    __slots__ = ("_clock", "_key", "_meter", "_ticket", "is_counted")

    def __init__(self, key: ApiKey, meter: _Meter, clock: Callable[[], float]) -> None:
        self._key, self._meter, self._clock = key, meter, clock
        self._ticket: Ticket | None = None
        self.is_counted = key.tokens_per_minute is not None  # whether its tokens are

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its turn."""
        return self._ticket is not None and self._ticket.is_waiting

    def check_waiting(self) -> None:
        """Raises LaneFull when as many of the key's requests wait as may."""
        waiting, bound = self._meter.waiting(), self._key.waiting_max
        if bound is not None and waiting >= bound:
            raise LaneFull(
                f"key {self._key.name} already has {waiting} waiting requests, its waiting_max",
                retry_after_ms=RETRY_MS,
            )

    def waits_for(self, ticket: Ticket) -> None:
        """The scheduler has accepted it."""
        self._ticket = ticket

    def spend(self, tokens: int) -> None:
        """Counts tokens; a negative number corrects an estimate."""
        self._meter.spent.append((self._clock(), tokens))
        self._meter.total += tokens

    def leave(self) -> None:
        """The request is over."""
        self._meter.open.discard(self)
        self._ticket = None


class Meters:
    """Every key that was seen. Keys come from the config, so their number is bounded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    def tokens(self, key: ApiKey) -> int:
        """What a key has used within the last minute."""
        return self._meters.setdefault(key.name, _Meter()).tokens(self._clock())

    def enter(self, key: ApiKey) -> Stay:
        """Counts a request as open. Raises LaneFull when the key is over one of its bounds."""
        meter, now = self._meters.setdefault(key.name, _Meter()), self._clock()
        if key.requests_max is not None and len(meter.open) >= key.requests_max:
            raise LaneFull(
                f"key {key.name} already has {len(meter.open)} open requests, its requests_max",
                retry_after_ms=RETRY_MS,
            )
        stay = Stay(key, meter, self._clock)
        stay.check_waiting()
        if key.tokens_per_minute is not None and meter.tokens(now) >= key.tokens_per_minute:
            pause = round((meter.spent[0][0] + MINUTE_S - now) * 1000)
            raise LaneFull(
                f"key {key.name} has used its {key.tokens_per_minute} tokens_per_minute",
                retry_after_ms=max(pause, RETRY_MS),
            )
        meter.open.add(stay)
        return stay
