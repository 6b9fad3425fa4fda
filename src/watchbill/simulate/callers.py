"""Who asks, what may go wrong, and what is counted while a world runs. State without behaviour."""

from collections.abc import Callable
from dataclasses import dataclass, field

from watchbill.core import messages as m

__all__ = ["Caller", "Faults", "Tally"]


@dataclass(frozen=True, slots=True)
class Faults:
    """How often, from 0 to 1, each kind of thing goes wrong, and until when."""

    load_fails: float = 0.0
    load_hangs: float = 0.0
    dies: float = 0.0  # some time after it became warm
    freezes: float = 0.0  # some time after it became warm: it takes questions and says nothing more
    answer_fails: float = 0.0
    caller_leaves: float = 0.0
    lingers: float = 0.0  # an engine works on for a while on what was cut
    memory_late: float = 0.0  # the process is gone, its memory is not
    answer_lost: float = 0.0  # of a stop: only the deadline helps
    answer_twice: float = 0.0
    probe_stuck: float = 0.0
    foreign_use: float = 0.0  # somebody takes memory for a while
    jitter: tuple[float, float] = (1.0, 1.0)  # of load times
    until_ms: float = float("inf")

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all; load times that vary do not count."""
        return self != Faults(jitter=self.jitter, until_ms=self.until_ms)


@dataclass(slots=True)
class Caller:
    """One request, as its caller sees it."""

    request: m.Request
    work_ms: float
    then: "Callable[[Caller], None] | None" = None
    state: str = "new"  # waiting, running, ended
    outcome: str = ""  # answered, failed, left, or the code of the refusal
    served_by: str = ""
    beside: tuple[str, ...] = ()  # the companions that were found for it
    forecast_ms: int = 0
    due: float = 0.0
    started_at: float | None = None  # the first start
    granted_at: float = 0.0
    ran_ms: float = 0.0  # in the turns before this one
    turns: int = 0
    ended_at: float | None = None
    begun: bool = False
    was_cut: bool = False  # before its first byte
    retry_after_ms: float = 0.0


@dataclass(slots=True)
class Tally:
    """What is counted while the world runs."""

    loads: int = 0
    wakings: int = 0
    load_ms: float = 0.0
    evictions: int = 0
    peak: dict[str, int] = field(default_factory=dict[str, int])
    loads_by_model: dict[str, int] = field(default_factory=dict[str, int])
