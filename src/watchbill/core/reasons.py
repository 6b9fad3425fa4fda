"""Reasons: why a model is loaded, why it leaves, and what else the journal explains, as facts with their figures.

A decision carries its reason as a record. Metrics, invariants, `explain` and the driver read the fields; `str` makes
the sentence where a person reads it. A reason that comes as text (an engine's failure, an operator's command, the
sentence of a policy of your own) stays text, and no code looks into it.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

from msgspec import Struct

from watchbill.catalog import Tier
from watchbill.units import format_bytes

__all__ = [
    "AT_WORK",
    "AboveUsual",
    "Bar",
    "BecameWarm",
    "Cause",
    "Cost",
    "Elsewhere",
    "EpochClosed",
    "EpochOpened",
    "Exceeded",
    "Excess",
    "Fits",
    "HostHolds",
    "HostUnloads",
    "Idle",
    "InPlaceOf",
    "LeaseGranted",
    "LeaseOver",
    "LeaseRevoked",
    "LeasesPaused",
    "LeasesRestored",
    "Lent",
    "Occasion",
    "Occurred",
    "Outweighs",
    "OverQuota",
    "PermanentMissing",
    "PlanDropped",
    "PlanKind",
    "Planned",
    "Proof",
    "Reason",
    "RoutedTo",
    "Shortfall",
    "Stalls",
    "Swapped",
    "TaskDue",
    "TaskTook",
    "TurnCame",
    "Uncertain",
    "Uncertainty",
    "Unwell",
    "WaitedLongest",
    "Well",
]


#: Why leased work waits, and why no lease is given.
AT_WORK = "a person is using this machine"


# ------------------------------------------------------------------ words used by scripts and metrics


class Bar(StrEnum):
    """Why a site may not serve a request."""

    HERE = "here"  # the caller wants this machine
    PRIVATE = "private"  # private work is never sent to an external tier
    OFF = "off"  # the tier is not enabled
    LIMIT = "limit"  # its daily limit is reached
    KEY = "key"  # its server does not accept the key that this machine shows
    FORBIDDEN = "forbidden"  # that key may not use the model
    MONEY = "money"  # its server asks to be paid first
    BUSY = "busy"  # its server wants to be asked later
    UNKNOWN = "unknown"  # its server does not know the model
    AWAY = "away"  # its server cannot be reached
    FAILED = "failed"  # its server has failed this request, or it may cost more than is left


class Proof(StrEnum):
    """The probe that proved a model warm, as its `probe` setting names it."""

    CHAT = "chat"
    EMBED = "embed"
    HTTP = "http"
    NONE = "none"


class Cause(StrEnum):
    """Why a model leaves memory: one word for metrics and scripts. The reason beside it has the figures."""

    SWAP = "swap"  # another model needs its memory
    # Unused for its time to live, for the time that its last caller asked for, or in a tier that is spent out.
    IDLE = "idle"
    SLEEP = "sleep"  # the same, where its engine can sleep
    PRESSURE = "pressure"  # the machine runs out of memory
    BUDGET = "budget"  # its device holds more than it may
    MAINTENANCE = "maintenance"  # its device is lent to the operator
    LOAN = "loan"  # it was idle, and its memory is lent
    LEASE = "lease"  # only a peer needed it, and a person works here
    HOST = "host"  # the program that hosts it unloads it
    OPERATOR = "operator"  # by hand
    CALLER = "caller"  # a caller's keep_alive of 0
    CONFIG = "config"  # its definition changed
    SHUTDOWN = "shutdown"


class PlanKind(StrEnum):
    """Why a model is loaded: one word for scripts. The reason beside it has the figures."""

    FITS = "fits"  # beside the resident models
    TURN = "turn"  # it has waited long enough behind the resident models
    DUE = "due"  # its oldest request would run out of patience otherwise
    RATE = "rate"  # more work waits for it than the idle models are likely to get
    PERMANENT = "permanent"  # it must always be resident
    ROTATION = "rotation"  # its background task, in place of idle models
    FIFO = "fifo"  # the oldest request of all waits for it
    TURNS = "turns"  # the same, after the others' quanta
    CUSTOM = "custom"  # chosen by the operator's own policy; its sentence says why


class Reason(Struct, frozen=True, gc=False):
    """Why something was decided. `str` makes the sentence for people."""


# ------------------------------------------------------------------ why a model is loaded


class Uncertain(Enum):
    """A learned figure that cannot be relied on yet."""

    LOAD_UNMEASURED = "load_unmeasured"
    LOAD_OFF = "load_off"  # the last load took far longer, or far less, than the learned time
    ANSWERS_UNMEASURED = "answers_unmeasured"
    ANSWERS_OFF = "answers_off"


_UNCERTAIN = {
    Uncertain.LOAD_UNMEASURED: "the load time of {model} is not measured yet",
    Uncertain.LOAD_OFF: "the last load of {model} was more than 3 times off the learned time",
    Uncertain.ANSWERS_UNMEASURED: "the answer time of {model} is not measured yet",
    Uncertain.ANSWERS_OFF: "answers of {model} take more than 3 times the learned time",
}


class Uncertainty(Reason, frozen=True):
    """Why rates cannot be compared: the uncertain figure and its model."""

    figure: Uncertain
    model: str

    def __str__(self) -> str:
        return _UNCERTAIN[self.figure].format(model=self.model)


class Fits(Reason, frozen=True):
    """There is room for it."""

    def __str__(self) -> str:
        return "it fits beside what is resident"


class Elsewhere(Reason, frozen=True):
    """It needs no memory here."""

    site: str

    def __str__(self) -> str:
        return f"it is served by {self.site}"


class PermanentMissing(Reason, frozen=True):
    """It must always be resident, and is not."""

    def __str__(self) -> str:
        return "a permanent model is not resident"


class WaitedLongest(Reason, frozen=True):
    """Its request is the oldest."""

    def __str__(self) -> str:
        return "its request has waited longest"


class TaskDue(Reason, frozen=True):
    """Its background task is due."""

    def __str__(self) -> str:
        return "its background task is due; only idle models leave for it"


class TurnCame(Reason, frozen=True):
    """Its turn has come."""

    left_ms: int | None  # the patience of its oldest request; None: it has none
    unsure: Uncertainty | None = None  # why turns go by age
    is_early: bool = False  # a quantum was cut short for it

    def __str__(self) -> str:
        left = "" if self.left_ms is None else f", its oldest request has {self.left_ms / 1000:.1f} s left"
        by_age = "" if self.unsure is None else f"; turns, because {self.unsure}"
        early = "; a turn is cut short, so that all are served in time" if self.is_early else ""
        return f"its turn{left}{by_age}{early}"


class Outweighs(Reason, frozen=True):
    """More work waits for it than the leaving models are likely to get. Both are weights per millisecond."""

    pressure: float
    momentum: float  # inertia included

    def __str__(self) -> str:
        pressure, momentum = f"{self.pressure * 1000:.3g}/s", f"{self.momentum * 1000:.3g}/s"
        return f"pressure {pressure} outweighs momentum {momentum} (inertia included)"


class Planned(Reason, frozen=True):
    """The whole plan."""

    kind: PlanKind
    target: str  # a model, or a companion set by its name
    members: tuple[str, ...]  # the models of the target; the first one serves
    why: Reason | str
    leaving: tuple[str, ...] = ()

    @property
    def is_set(self) -> bool:
        """Whether several models are needed together."""
        return len(self.members) > 1

    def __str__(self) -> str:
        beside = f" ({self.target})" if self.is_set else ""
        leaving = f"; leaving: {', '.join(self.leaving)}" if self.leaving else ""
        return f"{self.kind}{beside}: {self.why}{leaving}"


# ------------------------------------------------------------------ why a model leaves


class Swapped(Reason, frozen=True):
    """Another model needs its memory."""

    kind: PlanKind
    target: str
    why: Reason | str

    def __str__(self) -> str:
        return f"{self.kind} of {self.target}: {self.why}"


class Idle(Reason, frozen=True):
    """It was not used for its time to live."""

    ms: int
    as_asked: bool  # the time is the one that its last caller asked for

    def __str__(self) -> str:
        return f"idle for {self.ms // 1000} s" + (", as its last caller asked" if self.as_asked else "")


class Lent(Reason, frozen=True):
    """It was idle, and its memory is lent."""

    device: str
    bytes: int
    why: str  # the borrower's words

    def __str__(self) -> str:
        return f"idle; {format_bytes(self.bytes)} of {self.device} is lent for {self.why}"


class Shortfall(Reason, frozen=True):
    """The machine runs out of memory. Without figures: the kernel stalls for memory."""

    device: str
    available: int | None = None
    reserve: int = 0

    def __str__(self) -> str:
        if self.available is None:
            return "emergency: the kernel stalls for memory"
        free, reserve = format_bytes(self.available), format_bytes(self.reserve)
        return f"emergency: {free} available on {self.device}, below its reserve of {reserve}"


class Exceeded(Enum):
    """The bound of a device, or of a program that hosts models, that is exceeded."""

    BUDGET = "budget"
    RESIDENTS = "residents"  # max_resident
    GROUP = "group"  # one model of an exclusive group at a time
    PLACES = "places"  # of the program that hosts it
    MAINTENANCE = "maintenance"  # it is lent, so it may hold nothing


_EXCESS = {
    Exceeded.BUDGET: "{where} holds more than its budget",
    Exceeded.RESIDENTS: "{where} holds more models than its max_resident",
    Exceeded.GROUP: "{where} holds more than one model of group {detail}",
    Exceeded.PLACES: "{where} has fewer places for models than before",
    Exceeded.MAINTENANCE: "{where} is lent for maintenance: {detail}",
}


class Excess(Reason, frozen=True):
    """A device, or the program that hosts it, holds more than it may."""

    what: Exceeded
    where: str  # the device or the engine
    detail: str = ""  # the group, or the operator's reason for the maintenance

    def __str__(self) -> str:
        return _EXCESS[self.what].format(where=self.where, detail=self.detail)


class HostUnloads(Reason, frozen=True):
    """The program that hosts it is about to unload it."""

    engine: str

    def __str__(self) -> str:
        return f"{self.engine} unloads it when its answers have ended"


class LeaseRevoked(Reason, frozen=True):
    """Only leased work needed it, and a person uses this machine."""

    peers: tuple[str, ...]  # empty: the leases ended meanwhile

    def __str__(self) -> str:
        return f"its lease to {', '.join(self.peers) or 'a peer'} is revoked: a person is using this machine"


class Occasion(Enum):
    """A reason that has no figures."""

    OPERATOR = "operator"
    KEEP_ALIVE = "keep_alive"
    CONFIG_CHANGED = "config_changed"
    SHUTDOWN = "shutdown"
    SLEEP_DUE = "sleep_due"
    LOAD_TOO_LONG = "load_too_long"
    NOT_NEEDED = "not_needed"
    SPENT_OUT = "spent_out"


_OCCASIONS = {
    Occasion.OPERATOR: "the operator asked for it",
    Occasion.KEEP_ALIVE: "its caller's keep_alive",
    Occasion.CONFIG_CHANGED: "its definition in the config changed",
    Occasion.SHUTDOWN: "Watchbill is shutting down",
    Occasion.SLEEP_DUE: "idle; it is put to sleep",
    Occasion.LOAD_TOO_LONG: "its load took too long",
    Occasion.NOT_NEEDED: "no request waits for it any more, or the memory is gone",
    Occasion.SPENT_OUT: "idle, and the daily limit of its tier is reached",
}


class Occurred(Reason, frozen=True):
    """A model leaves, or its plan is dropped, for a reason that has no figures."""

    what: Occasion

    def __str__(self) -> str:
        return _OCCASIONS[self.what]


# ------------------------------------------------------------------ why a model is reset


class OverQuota(Reason, frozen=True):
    """It uses more memory than the config lets it."""

    model: str
    device: str
    held: int
    quota: int

    def __str__(self) -> str:
        uses = f"it uses {format_bytes(self.held)} of {self.device}, more than its quota of {format_bytes(self.quota)}"
        return f"{uses}; raise models.{self.model}.quota, or leave it out"


class AboveUsual(Reason, frozen=True):
    """It uses far more memory than it ever needed while it was healthy, on a device that is short of memory."""

    model: str
    device: str
    held: int
    usual: int

    def __str__(self) -> str:
        uses = f"it uses {format_bytes(self.held)} of {self.device} while {self.device} is short of memory"
        before = f"{uses}, and needed {format_bytes(self.usual)} before"
        return f"{before}; set models.{self.model}.memory to the amount that it may use"


class Stalls(Reason, frozen=True):
    """Its answers stop in the middle, although it answers simple questions."""

    count: int

    def __str__(self) -> str:
        return f"{stalled_text(self.count)}, and no other answer was good since"


class Unwell(Reason, frozen=True):
    """Answers failed, and so did the simple question that it was asked then."""

    bad_answers: int
    stalled: int  # answers that stopped in the middle, since its last good one
    failure: str | None  # of the question; None: no answer came

    def __str__(self) -> str:
        failed = failures_text(self.bad_answers, self.stalled)
        if self.failure is None:
            return f"{failed}, and it did not answer a simple question"
        return f"{failed}, and it failed to answer a simple question: {self.failure}"


# ------------------------------------------------------------------ what becomes of leases


class LeaseGranted(Reason, frozen=True):
    """A peer may have its work done here."""

    peer: str
    ms: int  # without a renewal

    def __str__(self) -> str:
        return f"{self.peer} has it for {self.ms // 1000} s at a time"


class LeaseOver(Reason, frozen=True):
    """A peer gave its lease back, or did not renew it."""

    peer: str
    silent_ms: int | None = None  # since its last renewal; None: it was given back

    @property
    def how(self) -> str:
        """In words, for the peer itself."""
        if self.silent_ms is None:
            return "given back"
        return f"swept: {self.peer} did not renew it for {self.silent_ms // 1000} s"

    def __str__(self) -> str:
        return f"{self.peer}: {self.how}"


class LeasesPaused(Reason, frozen=True):
    """A person uses this machine: leased work makes way."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} leases are paused while a person uses this machine"


class LeasesRestored(Reason, frozen=True):
    """It was quiet for long enough."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} leases continue"


# ------------------------------------------------------------------ what else the journal explains


_PROVEN = {
    Proof.CHAT: "warm: healthy, and a real prompt was answered",
    Proof.EMBED: "warm: healthy, and a real text was embedded",
    Proof.HTTP: 'healthy, and no real request was tried (probe = "http")',
    Proof.NONE: 'started, and nothing was asked (probe = "none")',
}


class BecameWarm(Reason, frozen=True):
    """It was loaded, or woken, and is warm."""

    proof: Proof
    ms: int  # since the decision
    memory: Mapping[str, int]  # device -> bytes; empty when its engine cannot report it
    woke: bool = False

    def __str__(self) -> str:
        return _PROVEN[self.proof]


class PlanDropped(Reason, frozen=True):
    """The model that it should have made room for is not needed any more."""

    target: str

    def __str__(self) -> str:
        return f"the plan for {self.target} was dropped"


class InPlaceOf(Reason, frozen=True):
    """A smaller model of the family serves in place of the model that was asked for."""

    model: str

    def __str__(self) -> str:
        return f"in place of {self.model}"


class RoutedTo(Reason, frozen=True):
    """Another site serves the request."""

    site: str
    tier: Tier
    asked: str  # the model that was asked for

    def __str__(self) -> str:
        return f"{self.tier} tier {self.site} serves {self.asked}"


class Cost(Reason, frozen=True):
    """An estimate of what an answer cost, or the time in which a burst tier ran."""

    site: str
    tier: Tier
    amount: float
    prompt_tokens: int = 0
    answer_tokens: int = 0
    up_ms: int = 0

    def __str__(self) -> str:
        what = (
            f"{self.up_ms // 1000} s" if self.up_ms else f"{self.prompt_tokens} + {self.answer_tokens} tokens"
        )
        return f"about {self.amount:.6f} for {what} at {self.tier} tier {self.site}"


class HostHolds(Reason, frozen=True):
    """How many of our models a program holds at once."""

    engine: str
    places: int

    def __str__(self) -> str:
        return f"{self.engine} holds {self.places} of our models at once"


class TaskTook(Reason, frozen=True):
    """A background task is over."""

    text: str  # the task's own report
    load_ms: int
    useful_ms: int

    def __str__(self) -> str:
        return f"{self.text}; loaded for {self.load_ms} ms, useful for {self.useful_ms} ms"


class EpochOpened(Reason, frozen=True):
    """A window of ingestion work opened."""

    epoch: str
    by_schedule: bool  # False: an item waited long

    def __str__(self) -> str:
        return f"epoch {self.epoch}: " + ("by schedule" if self.by_schedule else "an item waited long")


class EpochClosed(Reason, frozen=True):
    """A window of ingestion work closed."""

    epoch: str
    is_done: bool  # False: its time is over

    def __str__(self) -> str:
        return f"epoch {self.epoch}: " + ("done" if self.is_done else "the window is over")


class Well(Reason, frozen=True):
    """Answers failed, and the model is well."""

    bad_answers: int
    stalled: int = 0  # answers that stopped in the middle, since its last good one

    def __str__(self) -> str:
        failed = failures_text(self.bad_answers, self.stalled)
        if self.stalled:
            return f"{failed}, but it answers a simple question; it is reset if more answers stop"
        return f"{failed}, but it is well: the requests were at fault"


def failures_text(count: int, stalled: int = 0) -> str:
    """The failures of an engine in a row, in words. One request may count twice: see `docs/residency.md`."""
    if stalled:
        return stalled_text(stalled)
    return "an answer failed" if count == 1 else f"{count} failures in a row"


def stalled_text(count: int) -> str:
    """Answers that stopped in the middle, in words."""
    return (
        "an answer stopped in the middle" if count == 1 else f"{count} answers in a row stopped in the middle"
    )
