"""Callers, faults and counters of a running world. State without behaviour."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from watchbill.core import messages as m

__all__ = ["Caller", "CallerState", "Faults", "Tally"]


@dataclass(frozen=True, slots=True)
class Faults:
    """The chance, from 0 to 1, of each kind of fault, and until when faults happen."""

    load_fails: float = 0.0
    load_hangs: float = 0.0
    dies: float = 0.0  # some time after it became warm
    freezes: float = 0.0  # some time after it became warm: it accepts questions and never answers
    #: From its load on: answers stop after their first token, and simple questions are answered.
    stalls: float = 0.0
    answer_fails: float = 0.0
    site_fails: float = 0.0  # the server of another site refuses or fails a request, or breaks off unseen
    caller_leaves: float = 0.0
    lingers: float = 0.0  # an engine goes on working on a cut request for a while
    memory_late: float = 0.0  # the process is gone, but its memory is not back yet
    answer_lost: float = 0.0  # the answer to a stop: only the deadline helps
    answer_twice: float = 0.0
    probe_stuck: float = 0.0
    foreign_use: float = 0.0  # another program takes memory for a while
    jitter: tuple[float, float] = (1.0, 1.0)  # of load times
    until_ms: float = float("inf")

    @property
    def any(self) -> bool:
        """Whether any fault can happen; varying load times do not count."""
        return self != Faults(jitter=self.jitter, until_ms=self.until_ms)


class CallerState(StrEnum):
    """Where a request is, from its caller's point of view."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class CallerOutcome(StrEnum):
    """How a request ended that the core neither refused nor cut; those end with the code of the refusal or the cut."""

    OPEN = ""  # it has not ended
    ANSWERED = "answered"
    FAILED = "failed"  # its engine failed
    LEFT = "left"  # its caller did not wait


#: How a request ended, as its caller saw it.
Ending = CallerOutcome | m.Refusal | m.CutKind


@dataclass(slots=True)
class Caller:
    """One request, from its caller's point of view."""

    request: m.Request
    work_ms: float
    then: "Callable[[Caller], None] | None" = None
    state: CallerState = CallerState.NEW
    outcome: Ending = CallerOutcome.OPEN
    served_by: str = ""
    beside: tuple[str, ...] = ()  # the companions that it got
    forecast_ms: int | None = 0
    due: float = 0.0
    ends_at: float = math.inf  # its time limit runs on since its first turn that an engine or a site failed
    started_at: float | None = None  # the first start
    granted_at: float = 0.0
    ran_ms: float = 0.0  # in the turns before this one
    turns: int = 0
    ended_at: float | None = None
    begun_at: float | None = None  # the first token of this turn
    was_cut: bool = False  # before its first byte
    is_yielding: bool = False  # this turn was to stop at a boundary
    has_words: bool = False  # its caller has seen a part of the answer, which goes on later
    failed_at: set[str] = field(default_factory=set[str])  # sites whose servers refused or failed it
    is_indivisible: bool = False  # one that has begun runs to its end: it cannot be continued
    retry_after_ms: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether the first token of this turn came."""
        return self.begun_at is not None

    def wait_again(self, due: float, *, is_failed: bool) -> None:
        """Begins another wait after a turn. After one that failed the time limit of the answer runs on."""
        if is_failed:
            self.ends_at = min(self.ends_at, self.granted_at + self.request.timeout_ms - self.ran_ms)
        self.due = min(due, self.ends_at)


@dataclass(slots=True)
class Tally:
    """Counters of a running world."""

    loads: int = 0
    wakings: int = 0
    load_ms: float = 0.0
    evictions: int = 0
    peak: dict[str, int] = field(default_factory=dict[str, int])
    loads_by_model: dict[str, int] = field(default_factory=dict[str, int])
