"""Estimates: how long a model takes to load, to serve and to stop, and how often it is requested.

Every figure starts as a guess and is marked as one. It also reports when measurements are far off its prediction.
Load times are bimodal (page cache), so they are kept as a median of the last nine. Service times drift with the
prompts, so they are an exponentially weighted mean.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

__all__ = ["OFF_FACTOR", "ArrivalRate", "Context", "MeanEstimate", "MedianEstimate"]

#: Number of measurements in a median.
MEDIAN_WINDOW = 9
#: The first measurements up to this count weigh the same in a mean; every later one weighs as much as the last of
#: them.
MEAN_COUNT = 10
MEAN_WEIGHT_MIN = 1 / MEAN_COUNT
#: An estimate is off when measurements are more than this many times larger or smaller.
OFF_FACTOR = 3.0
#: Answers differ by nature, so only this many long ones in a row count. Short ones prove nothing: where a few answers
#: are very long, most of the others are far below the mean.
LONG_IN_A_ROW = 3
#: Shorter prompts give no useful measurement of the reading time.
PROMPT_BYTES_MIN = 4_096
#: Time constant of the learned arrival rate.
RATE_WINDOW_MS = 60_000
#: A rate is known after this many arrivals like the last.
ARRIVALS_KNOWN = 3
#: A rate over less time than this would be noise.
RATE_SPAN_MIN_MS = 1_000


class MedianEstimate:
    """A duration that jumps between two or three typical values."""

    __slots__ = ("_seen", "high_ms", "is_off", "ms")

    def __init__(self, guess_ms: float) -> None:
        self._seen: deque[float] = deque(maxlen=MEDIAN_WINDOW)
        self.ms = max(1.0, guess_ms)
        self.is_off = False  # the last measurement was far from the prediction of the others
        #: A duration that is rarely exceeded: the largest seen, or twice the guess.
        self.high_ms = 2 * self.ms

    @property
    def is_guess(self) -> bool:
        """Whether there is no measurement yet."""
        return not self._seen

    def learn(self, measured_ms: float) -> None:
        """Adds one measurement."""
        self.is_off = bool(self._seen) and _is_off(max(1.0, measured_ms) / self.ms)
        self._seen.append(max(1.0, measured_ms))
        self.ms, self.high_ms = median(self._seen), max(self._seen)


class MeanEstimate:
    """A duration that varies around a mean.

    A few far longer measurements in a row are no chance: they are the new mean, and the older ones are forgotten.
    """

    __slots__ = ("_row", "_row_ms", "_usual_ms", "count", "ms")

    def __init__(self, guess_ms: float) -> None:
        self.ms = max(1.0, guess_ms)
        self.count = 0  # of measurements
        self._row = 0  # how many in a row were far longer than predicted
        self._row_ms = 0.0  # their sum
        self._usual_ms = self.ms  # the mean before them

    @property
    def is_guess(self) -> bool:
        """Whether there is no measurement yet."""
        return self.count == 0

    @property
    def is_off(self) -> bool:
        """Whether the last few measurements were far longer than predicted."""
        return self._row >= LONG_IN_A_ROW

    def learn(self, measured_ms: float) -> None:
        """Adds one measurement. The first one replaces the guess."""
        # Comparisons instead of max(): this runs for every answer.
        predicted = self.ms
        count = self.count = self.count + 1
        if (self._row or measured_ms > OFF_FACTOR * predicted) and self._is_new_mean(measured_ms, predicted):
            return
        off_ms = (measured_ms if measured_ms > 1 else 1.0) - predicted
        self.ms = predicted + (MEAN_WEIGHT_MIN if count >= MEAN_COUNT else 1 / count) * off_ms

    def _is_new_mean(self, measured_ms: float, predicted: float) -> bool:
        """Whether this measurement, far longer than predicted or after such a one, ends a row that is the new mean."""
        if not self._row:
            self._usual_ms = predicted
        if measured_ms <= OFF_FACTOR * self._usual_ms or self.count == 1:
            self._row, self._row_ms = 0, 0.0
            return False
        self._row += 1
        self._row_ms += measured_ms
        if self._row < LONG_IN_A_ROW:
            return False
        self.ms, self.count = self._row_ms / self._row, self._row
        self._usual_ms = self.ms
        return True

    def likely_ms(self, running_ms: Iterable[float], *, single: float) -> float:
        """The duration to expect now, where some have been running for these times and are not over.

        One far longer than predicted may be the first of many or the only one, and `single` is its weight. Two are the
        new rule, whether they are over or not.
        """
        late = [ms for ms in running_ms if self._is_long(ms)]
        count = self._row + len(late)
        if not count or self._row >= LONG_IN_A_ROW or self.is_guess:
            return self.ms
        usual_ms = self._row_ms / self._row if self._row else 0.0
        long_ms = (self._row_ms + sum(max(usual_ms, ms) for ms in late)) / count
        weight = single if count == 1 else 1.0
        return max(self.ms, self.ms + weight * (long_ms - self.ms))

    def is_doubtful(self, running_ms: Iterable[float]) -> bool:
        """Whether the last one, or one that is running, takes far longer than predicted."""
        return 0 < self._row < LONG_IN_A_ROW or any(map(self._is_long, running_ms))

    def _is_long(self, running_ms: float) -> bool:
        return running_ms > OFF_FACTOR * (self._usual_ms if self._row else self.ms)


def _is_off(ratio: float) -> bool:
    return not 1 / OFF_FACTOR <= ratio <= OFF_FACTOR


class Context:
    """The prompts that a model's slots hold, and the time to read them again."""

    __slots__ = ("_prompts", "_read")

    def __init__(self, slots: int) -> None:
        self._prompts: deque[int] = deque(maxlen=slots)  # bytes of the last prompt of each slot
        self._read = MedianEstimate(1.0)  # milliseconds for each MiB

    def keep(self, prompt_bytes: int, first_ms: int) -> None:
        """Records the prompt that a slot holds from now on. Reading it took until the first token."""
        self._prompts.append(prompt_bytes)
        if prompt_bytes >= PROMPT_BYTES_MIN:
            self._read.learn(first_ms * 2**20 / prompt_bytes)

    def forget(self) -> None:
        """Drops all prompts: the model leaves."""
        self._prompts.clear()

    @property
    def rebuild_ms(self) -> float:
        """The time to read all prompts again, by the slowest recent one: the others were partly in the cache."""
        return 0.0 if self._read.is_guess else self._read.high_ms * sum(self._prompts) / 2**20


class ArrivalRate:
    """Weighted arrivals per millisecond of the model's residency, fading over a minute of that time.

    Time without the model does not count. A caller that waits for an answer before its next request sends ten
    requests a second while the model is resident, and none while it is away. As many arrivals after the model left as
    it had callers also count if they come soon: otherwise a model that always leaves a moment too early would never
    appear to be requested again, and one of two callers that come back would look like half of the demand.
    """

    __slots__ = ("_at", "_due", "_ends", "_is_held", "_last", "_span", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0  # of the arrivals, faded
        self._span = 0.0  # milliseconds in which they were counted, faded
        self._at: int | None = None  # the time up to which they were counted; None: the clock is stopped
        self._ends: float = math.inf  # when the clock stops, after the model left,
        self._due = 0  # or after so many arrivals
        self._is_held = False  # one of these came: the clock goes on only if another one comes in time
        self._last = 0.0  # the weight of the newest arrival, whether it was counted or not

    def seen(self, now: int) -> float:
        """The rate, faded until now."""
        weight, span = self._faded(now)
        return weight / max(span, RATE_SPAN_MIN_MS)

    def is_known(self, now: int) -> bool:
        """Whether it rests on several arrivals."""
        return self._faded(now)[0] >= ARRIVALS_KNOWN * self._last

    def expected(self, now: int, prior_ms: float) -> float:
        """The rate with one more arrival like the last in `prior_ms`: the expectation before many were seen."""
        weight, span = self._faded(now)
        return (weight + self._last) / (span + prior_ms)

    def came(self, now: int) -> None:
        """Starts the clock: the model is resident."""
        self._weight, self._span = self._faded(now)
        self._at, self._ends, self._is_held = now, math.inf, False

    def left(self, now: int, soon_ms: float, callers: int) -> None:
        """Notes that the model left. The clock runs on until so many callers are back, or for `soon_ms`."""
        self._ends, self._due = now + soon_ms, callers

    def learn(self, weight: float, now: int) -> None:
        """Counts one arrival of this weight."""
        self._last = weight
        if self._at is None:
            return
        is_soon = now <= self._ends
        self._is_held = self._is_held and not is_soon
        if now != self._at:  # under load several arrive in one millisecond
            self._weight, self._span = self._faded(now)
            self._at = now
        if is_soon:
            self._weight += weight
        if self._ends < math.inf:
            self._due -= 1
            self._is_held = True
            if self._due <= 0 or not is_soon:
                self._at = None

    def _faded(self, now: int) -> tuple[float, float]:
        if self._at is None or self._is_held:
            return self._weight, self._span
        passed = (now if now < self._ends else self._ends) - self._at
        kept = math.exp(-passed / RATE_WINDOW_MS)
        return self._weight * kept, self._span * kept + RATE_WINDOW_MS * (1 - kept)
