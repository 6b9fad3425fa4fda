"""What is learned about a model: how long it loads, serves and stops, and how often it is asked for.

Every figure starts as a guess that says so, and says when measurements are far off what it foretold. Load times are
bimodal (page cache), so they are kept as a median of the last nine; service times drift with the prompts, so they are
an exponentially weighted mean.
"""

import math
from collections import deque
from statistics import median

__all__ = ["ArrivalRate", "MeanEstimate", "MedianEstimate"]

#: How many measurements a median remembers.
MEDIAN_WINDOW = 9
#: The first so many measurements of a mean weigh the same; every later one weighs as much as the last of them did.
MEAN_COUNT = 10
MEAN_WEIGHT_MIN = 1 / MEAN_COUNT
#: An estimate is off when measurements are more than this many times larger or smaller.
OFF_FACTOR = 3.0
#: Answers differ by nature, so only so many long ones in a row count. Short ones prove nothing: where a few answers are
#: very long, most of the others are far below the mean.
LONG_IN_A_ROW = 3
#: Time constant of the learned arrival rate.
RATE_WINDOW_MS = 60_000


class MedianEstimate:
    """A duration that jumps between two or three typical values."""

    __slots__ = ("_seen", "high_ms", "is_off", "ms")

    def __init__(self, guess_ms: float) -> None:
        self._seen: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self.ms = max(1.0, guess_ms)
        self.is_off = False  # the last measurement was far from what the others foretold
        #: A duration that is rarely exceeded: the largest seen, or twice the guess.
        self.high_ms = 2 * self.ms

    @property
    def is_guess(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._seen

    def learn(self, measured_ms: float) -> None:
        """Takes in one measurement."""
        self.is_off = bool(self._seen) and _is_off(max(1.0, measured_ms) / self.ms)
        self._seen.append(max(1.0, measured_ms))
        self.ms, self.high_ms = median(self._seen), max(self._seen)


class MeanEstimate:
    """A duration that varies around a mean."""

    __slots__ = ("_row", "count", "ms")

    def __init__(self, guess_ms: float) -> None:
        self.ms = max(1.0, guess_ms)
        self.count = 0  # of measurements
        self._row = 0  # how many in a row were far longer than foretold

    @property
    def is_guess(self) -> bool:
        """Whether nothing was measured yet."""
        return self.count == 0

    @property
    def is_off(self) -> bool:
        """Whether the last few measurements were far longer than foretold."""
        return self._row >= LONG_IN_A_ROW

    def learn(self, measured_ms: float) -> None:
        """Takes in one measurement; the first one replaces the guess."""
        # Comparisons and no max(): every answer comes by here.
        foretold = self.ms
        count = self.count = self.count + 1
        if measured_ms > OFF_FACTOR * foretold and count > 1:
            self._row += 1
        else:
            self._row = 0
        off_ms = (measured_ms if measured_ms > 1 else 1.0) - foretold
        self.ms = foretold + (MEAN_WEIGHT_MIN if count >= MEAN_COUNT else 1 / count) * off_ms


def _is_off(ratio: float) -> bool:
    return not 1 / OFF_FACTOR <= ratio <= OFF_FACTOR


class ArrivalRate:
    """Weighted arrivals per millisecond, fading over a minute."""

    __slots__ = ("_at", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at: int = 0

    def at(self, now: int) -> float:
        """The rate as it has faded until now."""
        return self._rate * math.exp(-(now - self._at) / RATE_WINDOW_MS) if self._rate else 0.0

    def learn(self, weight: float, now: int) -> None:
        """Counts one arrival of this weight."""
        if now != self._at:  # where it counts, several come in a millisecond
            self._rate = self.at(now)
            self._at = now
        self._rate += weight / RATE_WINDOW_MS
