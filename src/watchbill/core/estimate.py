"""What is learned about a model: how long it loads, serves and stops, and how often it is asked for.

Every figure starts as a guess that says so, and says when measurements are far off what it foretold. Load times are
bimodal (page cache), so they are kept as a median of the last nine; service times drift with the prompts, so they are
an exponentially weighted mean.
"""

import math
from collections import deque
from statistics import median

__all__ = ["ArrivalRate", "Context", "MeanEstimate", "MedianEstimate"]

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
#: Shorter prompts say nothing about how long reading one takes.
PROMPT_BYTES_MIN = 4_096
#: Time constant of the learned arrival rate.
RATE_WINDOW_MS = 60_000
#: A rate over less time than this would be noise.
RATE_SPAN_MIN_MS = 1_000


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


class Context:
    """What the slots of a model hold, and what reading it anew would take."""

    __slots__ = ("_prompts", "_read")

    def __init__(self, slots: int) -> None:
        self._prompts: deque[int] = deque(maxlen=slots)  # bytes of the last prompt of each slot
        self._read = MedianEstimate(1.0)  # milliseconds for each MiB

    def keep(self, prompt_bytes: int, first_ms: int) -> None:
        """A slot holds this prompt from now on; reading it took until the first token."""
        self._prompts.append(prompt_bytes)
        if prompt_bytes >= PROMPT_BYTES_MIN:
            self._read.learn(first_ms * 2**20 / prompt_bytes)

    def forget(self) -> None:
        """The model leaves."""
        self._prompts.clear()

    @property
    def rebuild_ms(self) -> float:
        """By the slowest of the last prompts: the others were partly in the engine's cache already."""
        return 0.0 if self._read.is_guess else self._read.high_ms * sum(self._prompts) / 2**20


class ArrivalRate:
    """Weighted arrivals per millisecond in which the model was there, fading over a minute of that time.

    Time without the model does not count: callers that wait for an answer before they ask again come ten times a
    second while the model is there, and not at all while it is away. The first caller after it left counts as well if
    it comes soon: otherwise a model that always leaves a moment too early would never be seen to be asked again.
    """

    __slots__ = ("_at", "_ends", "_last", "_span", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0  # of the arrivals, faded
        self._span = 0.0  # milliseconds in which they were counted, faded
        self._at: int | None = None  # until when; None: the clock stands
        self._ends: float = math.inf  # when the clock stops, after the model left
        self._last = 0.0  # the weight of the newest arrival, whether it was counted or not

    def seen(self, now: int) -> float:
        """The rate as it has faded until now."""
        weight, span = self._faded(now)
        return weight / max(span, RATE_SPAN_MIN_MS)

    def expected(self, now: int, prior_ms: float) -> float:
        """The same, with one more arrival like the last in `prior_ms`: what to expect before much was seen."""
        weight, span = self._faded(now)
        return (weight + self._last) / (span + prior_ms)

    def came(self, now: int) -> None:
        """The model is there: the clock runs."""
        self._settle(now)
        self._at, self._ends = now, math.inf

    def left(self, now: int, soon_ms: float) -> None:
        """The model is gone: the clock runs on until the first caller, or for so long."""
        self._ends = now + soon_ms

    def learn(self, weight: float, now: int) -> None:
        """Counts one arrival of this weight."""
        self._last = weight
        if self._at is None:
            return
        if now != self._at:  # where it counts, several come in a millisecond
            self._settle(now)
        if now <= self._ends:
            self._weight += weight
        if self._ends < math.inf:
            self._at = None

    def _settle(self, now: int) -> None:
        self._weight, self._span = self._faded(now)
        if self._at is not None:
            self._at = now

    def _faded(self, now: int) -> tuple[float, float]:
        if self._at is None:
            return self._weight, self._span
        passed = (now if now < self._ends else self._ends) - self._at
        kept = math.exp(-passed / RATE_WINDOW_MS)
        return self._weight * kept, self._span * kept + RATE_WINDOW_MS * (1 - kept)
