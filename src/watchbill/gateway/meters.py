"""Meters: what each key has taken, against the bounds that its table sets.

Three bounds, each optional: requests open at once, requests that wait at once, and tokens per minute. Over one of them
the caller gets 429 with Retry-After; no other key is affected. A request counts as open before its body is received, so
a key that is over a bound sends nothing. Tokens count while an answer runs; the minute slides.

Tokens are counted by the bytes of an answer as they pass. Where the engine tells them (OpenAI's `usage`, Anthropic's,
Ollama's counts, llama.cpp's timings), its figures count, prompt and answer together. Until then, and where it never
tells, they are estimated: a token for each BYTES_PER_TOKEN bytes of the answer's texts and of the request, which is
never more than the model's context. So a caller who leaves before the end has spent what was made for it. The count
looks for names of fields, not for objects: within a JSON text their quotes are escaped, so no text of a model can look
like one. Of several choices of llama.cpp, which tells the tokens of each, every one counts as the longest.
"""

import re
from collections import deque
from collections.abc import Callable

from watchbill.catalog import ApiKey
from watchbill.errors import LaneFull
from watchbill.runtime.ticket import Ticket

__all__ = ["BYTES_PER_TOKEN", "MeteredRequest", "Meters", "TokenCount"]

MINUTE_S = 60.0
RETRY_MS = 1_000
#: Tokens that are spent within this time are remembered as one: a minute has few of them, however small they are.
STEP_S = 0.1


class _Meter:
    """One key."""

    __slots__ = ("open", "spent", "total")

    def __init__(self) -> None:
        self.open: set[MeteredRequest] = set()
        self.spent: deque[tuple[float, int]] = deque()  # when, how many tokens; within the last minute
        self.total = 0

    def tokens(self, now: float) -> int:
        """Tokens of the last minute."""
        while self.spent and self.spent[0][0] <= now - MINUTE_S:
            self.total -= self.spent.popleft()[1]
        return self.total

    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(metered.is_waiting for metered in self.open)


class MeteredRequest:
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

    @property
    def is_spent(self) -> bool:
        """Whether its key has used up its tokens."""
        bound = self._key.tokens_per_minute
        return bound is not None and self._meter.tokens(self._clock()) >= bound

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
        spent, now = self._meter.spent, self._clock()
        if spent and now < spent[-1][0] + STEP_S:
            spent[-1] = (spent[-1][0], spent[-1][1] + tokens)
        else:
            spent.append((now, tokens))
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

    def enter(self, key: ApiKey) -> MeteredRequest:
        """Counts a request as open. Raises LaneFull when the key is over one of its bounds."""
        meter, now = self._meters.setdefault(key.name, _Meter()), self._clock()
        if key.requests_max is not None and len(meter.open) >= key.requests_max:
            raise LaneFull(
                f"key {key.name} already has {len(meter.open)} open requests, its requests_max",
                retry_after_ms=RETRY_MS,
            )
        metered = MeteredRequest(key, meter, self._clock)
        metered.check_waiting()
        if key.tokens_per_minute is not None and meter.tokens(now) >= key.tokens_per_minute:
            pause = round((meter.spent[0][0] + MINUTE_S - now) * 1000)
            raise LaneFull(
                f"key {key.name} has used its {key.tokens_per_minute} tokens_per_minute",
                retry_after_ms=max(pause, RETRY_MS),
            )
        meter.open.add(metered)
        return metered


BYTES_PER_TOKEN = 4
#: The longest name of a figure with its quotes, colon and digits: what may stand across two pieces.
_SEAM_BYTES = 64
_PROMPT = frozenset({b"prompt_tokens", b"input_tokens", b"prompt_eval_count", b"prompt_n"})
_FIGURES = re.compile(
    rb'(?<!\\)"(prompt_tokens|input_tokens|prompt_eval_count|prompt_n|'
    rb'completion_tokens|output_tokens|eval_count|predicted_n)"\s*:\s*(\d{1,9})(?=\D)'
)
_TEXTS = re.compile(
    rb'(?<!\\)"(?:content|text|reasoning_content|reasoning|thinking|response|partial_json|arguments|delta)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)*)"'
)


class TokenCount:
    """The tokens of one request. Tells of each change, by how much."""

    def __init__(self, spend: Callable[[int], None], prompt: int, *, choices: int = 1) -> None:
        """`choices`: how many are made at once by an engine that tells the tokens of each by themselves."""
        self._spend = spend
        self._choices = choices
        self._spent = 0
        self._prompt = prompt  # as estimated
        self._bytes = 0  # of the answer's texts
        self._told_prompt: int | None = None
        self._told_answer: int | None = None
        self._seam = b""

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the answer."""
        for text in _TEXTS.findall(piece):
            self._bytes += len(text)
        for name, digits in _FIGURES.findall(self._seam + piece):
            figure = int(digits)
            if name in _PROMPT:
                self._told_prompt = max(figure, self._told_prompt or 0)
            else:
                self._told_answer = max(figure, self._told_answer or 0)
        self._seam = piece[-_SEAM_BYTES:]
        self._settle()

    def end(self) -> None:
        """The answer is over, or its client has left."""
        self._settle()

    @property
    def prompt(self) -> int:
        """The tokens of the prompt."""
        return self._prompt if self._told_prompt is None else self._told_prompt

    @property
    def answer(self) -> int:
        """The tokens of the answer so far."""
        if self._told_answer is None:
            return self._bytes // BYTES_PER_TOKEN
        return self._told_answer * self._choices

    def _settle(self) -> None:
        spent = self.prompt + self.answer
        change, self._spent = spent - self._spent, spent
        if change:
            self._spend(change)
