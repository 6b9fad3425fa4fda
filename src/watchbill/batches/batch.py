"""A batch: its stages, what may happen to it in each, and what has become of its lines. Pure.

A batch is the sum of its events, in their order. The record on the disk holds the events, and nothing else about a
batch is kept while it is open; a restart applies them again. Everything that affects a batch's stage is in this file.

    VALIDATING ──▶ IN_PROGRESS ──▶ FINALIZING ──▶ COMPLETED        every line was answered
        │   │        │  │   └────▶ EXPIRING ────▶ EXPIRED          its window closed first
        │   └────────┼──┴────────▶ CANCELLING ──▶ CANCELLED        its caller ended it
        └────────────┴───────────▶ FAILED                          its input cannot be used

A line is answered once: a second answer to it, of a daemon that was killed between asking and writing down, changes
nothing.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from watchbill.batches.usage import Tokens
from watchbill.catalog import Reach
from watchbill.errors import IllegalTransition

__all__ = [
    "NEXT", "AllAnswered", "Answered", "Batch", "CancelAsked", "Created", "Dialect", "EndedBatch", "Event", "Fault",
    "Rejected", "Stage", "TimeUp", "Validated", "Written",
]  # fmt: skip


class Stage(StrEnum):
    """Where a batch is. Clients see EXPIRING as finalizing."""

    VALIDATING = "validating"  # its input is read
    IN_PROGRESS = "in_progress"  # its lines are asked
    FINALIZING = "finalizing"  # every line is answered, its results are written
    EXPIRING = "expiring"  # the same, and some lines are not answered
    CANCELLING = "cancelling"  # no line is asked any more, its results are written
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Dialect(StrEnum):
    """Whose batches these are: the shape of its answers and results."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Fault(msgspec.Struct, frozen=True):
    """Why an input cannot be used."""

    code: str
    message: str
    line: int | None = None  # as people count them
    param: str | None = None


# ------------------------------------------------------------------ events


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened to a batch, at this time by the wall clock, in milliseconds."""

    at: int


class Created(Event, frozen=True, tag="created"):
    """It was asked for."""

    id: str
    owner: str
    dialect: Dialect
    endpoint: str
    input_file: str
    window: str  # as its caller wrote it
    window_ms: int
    metadata: dict[str, str] | None = None
    output_kept_ms: int | None = None
    lines: int = 0  # as its caller counted them, where it did
    reach: Reach = Reach.ANYWHERE  # how far from this machine its lines may be answered


class Validated(Event, frozen=True, tag="validated"):
    """Its input has so many lines, and all of them are requests."""

    total: int


class Rejected(Event, frozen=True, tag="rejected"):
    """Its input cannot be used."""

    faults: list[Fault]


class Answered(Event, frozen=True, tag="answered"):
    """One of its lines, counted from 0, was answered, or refused for good."""

    line: int
    status: int
    request: str
    body: msgspec.Raw

    @property
    def is_good(self) -> bool:
        """Whether the answer is what was asked for."""
        return 200 <= self.status < 300


class AllAnswered(Event, frozen=True, tag="all_answered"):
    """No line is left."""


class TimeUp(Event, frozen=True, tag="time_up"):
    """Its window closed."""


class CancelAsked(Event, frozen=True, tag="cancel_asked"):
    """Its caller wants no more of it."""


class Written(Event, frozen=True, tag="written"):
    """Its results are files. What an earlier version wrote tells neither tokens nor a model."""

    output_file: str | None
    error_file: str | None
    tokens: Tokens | None = None
    model: str | None = None  # where all lines name the same one


#: What may happen in which stage, and the stage afterwards.
NEXT: dict[tuple[Stage, type[Event]], Stage] = {
    (Stage.VALIDATING, Validated): Stage.IN_PROGRESS,
    (Stage.VALIDATING, Rejected): Stage.FAILED,
    (Stage.VALIDATING, CancelAsked): Stage.CANCELLING,
    (Stage.IN_PROGRESS, Answered): Stage.IN_PROGRESS,
    (Stage.IN_PROGRESS, AllAnswered): Stage.FINALIZING,
    (Stage.IN_PROGRESS, TimeUp): Stage.EXPIRING,
    (Stage.IN_PROGRESS, CancelAsked): Stage.CANCELLING,
    (Stage.IN_PROGRESS, Rejected): Stage.FAILED,  # its input was removed
    (Stage.CANCELLING, Answered): Stage.CANCELLING,  # it was on its way
    (Stage.CANCELLING, Rejected): Stage.FAILED,
    (Stage.CANCELLING, Written): Stage.CANCELLED,
    (Stage.FINALIZING, Rejected): Stage.FAILED,
    (Stage.FINALIZING, Written): Stage.COMPLETED,
    (Stage.EXPIRING, Rejected): Stage.FAILED,
    (Stage.EXPIRING, Written): Stage.EXPIRED,
}
_ENDS = frozenset({Stage.COMPLETED, Stage.FAILED, Stage.EXPIRED, Stage.CANCELLED})


class EndedBatch(msgspec.Struct, frozen=True):
    """All that is kept of a batch after its end."""

    created: Created
    stage: Stage
    times: dict[Stage, int]
    total: int
    completed: int
    failed: int
    faults: list[Fault]
    output_file: str | None
    error_file: str | None
    tokens: Tokens | None = None
    model: str | None = None


class Batch:
    """One batch. `takes` says whether an event can happen now, `apply` makes it happen."""

    def __init__(self, created: Created) -> None:
        self.created = created
        self.stage = Stage.VALIDATING
        self.times: dict[Stage, int] = {Stage.VALIDATING: created.at}  # when each stage began
        self.total = self.completed = self.failed = 0
        self.faults: list[Fault] = []
        self.output_file: str | None = None
        self.error_file: str | None = None
        self.tokens: Tokens | None = None
        self.model: str | None = None
        self._answered = bytearray()  # a byte for each line

    @staticmethod
    def restored(ended: EndedBatch) -> "Batch":
        """A batch that ended earlier."""
        batch = Batch(ended.created)
        batch.stage, batch.times, batch.faults = ended.stage, dict(ended.times), list(ended.faults)
        batch.total, batch.completed, batch.failed = ended.total, ended.completed, ended.failed
        batch.output_file, batch.error_file = ended.output_file, ended.error_file
        batch.tokens, batch.model = ended.tokens, ended.model
        return batch

    def ended(self) -> EndedBatch:
        """What is kept of it."""
        return EndedBatch(
            self.created,
            self.stage,
            self.times,
            self.total,
            self.completed,
            self.failed,
            self.faults,
            self.output_file,
            self.error_file,
            self.tokens,
            self.model,
        )

    # ------------------------------------------------------------------ questions

    @property
    def id(self) -> str:
        """Its name."""
        return self.created.id

    @property
    def has_ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.stage in _ENDS

    @property
    def remaining(self) -> int:
        """How many lines are not answered."""
        return self.total - self.completed - self.failed

    @property
    def expires_at(self) -> int:
        """When its window closes, by the wall clock, in milliseconds."""
        return self.created.at + self.created.window_ms

    def unanswered(self) -> Iterable[int]:
        """The lines that have no answer, in their order."""
        return (line for line, done in enumerate(self._answered) if not done)

    def takes(self, event: Event) -> bool:
        """Whether the event can happen now, and changes anything."""
        if (self.stage, type(event)) not in NEXT:
            return False
        if isinstance(event, Answered):
            return 0 <= event.line < self.total and not self._answered[event.line]
        return not isinstance(event, AllAnswered) or self.remaining == 0

    # ------------------------------------------------------------------ acts

    def apply(self, event: Event) -> None:
        """Makes an event happen. Raises IllegalTransition for one that cannot, and changes nothing then."""
        if not self.takes(event):
            raise IllegalTransition(
                f"{type(event).__name__} cannot happen to {self.id}, which is {self.stage}"
            )
        match event:
            case Validated(total=total):
                self.total, self._answered = total, bytearray(total)
            case Rejected(faults=faults):
                self.faults = faults
            case Answered(line=line):
                self._answered[line] = 1
                self.completed += event.is_good
                self.failed += not event.is_good
            case Written(output_file=output, error_file=errors):
                self.output_file, self.error_file = output, errors
                self.tokens, self.model = event.tokens, event.model
            case _:
                pass
        self._move(NEXT[self.stage, type(event)], event.at)

    def _move(self, stage: Stage, at: int) -> None:
        if stage is not self.stage:
            self.stage = stage
            self.times[stage] = at
