"""Running requests: one that was granted a slot of a model, and one that is over except at its engine."""

from dataclasses import dataclass

from msgspec import Struct

from watchbill.core.messages import CutKind, Request

__all__ = ["BOUNDARY_MS", "CUT_LIMIT_MS", "FIRST_WORD_MS", "LINGER_LIMIT_MS", "Lingering", "Running"]

#: Background and leased work reaches a safe boundary within about this time.
BOUNDARY_MS = 1_500
#: A model that leaves waits for the first word of an answer with little patience for so long: its engine may hang.
FIRST_WORD_MS = 20_000
#: A cut request that is not reported ended by then counts as gone.
CUT_LIMIT_MS = 10_000
#: A run that was cut keeps its slot until its engine has let go, at most this long. The bound of the engine layer
#: (`UPSTREAM_LET_GO_MS`) ends earlier.
LINGER_LIMIT_MS = 15_000


class Running(Struct, gc=False):
    """A granted request."""

    request: Request
    since: int
    beside: int  # how many ran when it started, itself included
    begun: bool = False  # the first token came, or it was cut once before it: no cut before a boundary
    deadline: int = 0  # when it must be checked: at its time limit, or when its cut should have been reported
    cut: CutKind | None = None
    is_indivisible: bool = False  # its answer cannot be continued: once begun, it runs to its end
    is_orphaned: bool = False  # its engine died or was reset: its time runs on until another engine serves it
    serves_person: bool = False  # a person's request that this machine serves: leased work makes way (RES-23)
    rests_since: int | None = None  # the machine of its site says that it waits there
    rested_ms: int = 0  # in earlier pauses of this run
    has_spoken: bool = False  # the first token came
    waited_until: int = (
        0  # its model leaves as soon as it has a word, at the latest then; 0: it does not wait
    )

    def ran_ms(self, now: int) -> int:
        """How long it has run. While it waits at another machine it does not."""
        until = now if self.rests_since is None else self.rests_since
        return until - self.since - self.rested_ms

    def time_limit(self, max_wait_ms: int) -> int:
        """When it must have ended. What it rests is no part of its timeout, but its wait, of at most so long, and its
        timeout together bound it."""
        request = self.request
        ends = request.bound_at or request.arrived_at + max_wait_ms + request.timeout_ms
        if self.rests_since is None:
            ends = min(ends, self.since + request.timeout_ms + self.rested_ms)
        return min(ends, request.ends_at or ends)

    @property
    def makes_way(self) -> bool:
        """Whether it lets others go first before its end: no person waits for it, and it is repeated or continued."""
        return self.request.work_class.makes_way and not (self.begun and self.is_indivisible)

    @property
    def is_ending(self) -> bool:
        """Whether it was cut and is over soon."""
        return self.cut is not None and (self.makes_way or self.cut is not CutKind.BOUNDARY)

    @property
    def is_patient(self) -> bool:
        """Whether it may go back to its line in favour of another request: it has half of its patience left."""
        request = self.request
        return 2 * (self.since - request.arrived_at) <= request.max_wait_ms

    @property
    def patience_left_ms(self) -> int:
        """How long it may wait again. A request that was sent back without being patient gets half of a new wait."""
        request = self.request
        return max(request.arrived_at + request.max_wait_ms - self.since, request.max_wait_ms // 2)


@dataclass(frozen=True, slots=True)
class Lingering:
    """A run that is over, except at its engine: its slot is not free yet."""

    until: int
    was_silent: bool  # the engine was silent for longer than usual
