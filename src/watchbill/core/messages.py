"""What the core is told and what it asks for: events in, actions out.

Both are frozen. Tokens never pass through here: only arrivals, starts, first bytes and ends do. Every action
that expects an answer carries the attempt it belongs to; an answer with another attempt is late, and is dropped
and counted. Times are monotonic milliseconds, sizes bytes.

Nothing here is part of a circle, and every request makes several of them: the garbage collector need not follow them
(`gc=False`).
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

from msgspec import Struct

from watchbill.catalog import Catalog, WorkClass

# ------------------------------------------------------------------ words that scripts and metrics know


class Mishap(StrEnum):
    """What went wrong with a model: the journal's event, and a label in metrics."""

    LOAD_FAILED = "load_failed"  # it could not be brought up
    DIED = "died"  # its engine went without being asked
    RESET = "reset"  # the watchdog took it down
    STUCK = "stuck"  # its engine does not go
    DISK_FAILED = "disk_failed"  # a full or failing disk, and no fault of the model


class Doubted(StrEnum):
    """What keeps everybody from a model that is in memory, while nothing is known to be wrong with it."""

    SUSPECT = "suspect"  # answers failed, and the watchdog's question to it is under way


class Proof(StrEnum):
    """What proved a model warm, as its `probe` names it."""

    CHAT = "chat"
    EMBED = "embed"
    HTTP = "http"
    NONE = "none"


# ------------------------------------------------------------------ what is known beforehand


class Footprint(Struct, frozen=True):
    """What a model is expected to occupy per device, and what it occupies at the least once loaded."""

    expected: Mapping[str, int]
    floor: Mapping[str, int] = {}


class Knowledge(Struct, frozen=True):
    """What its file and earlier runs tell about a model."""

    footprint: Footprint
    load_ms: float | None = None
    service_ms: float | None = None
    failure: str | None = None  # why it cannot be loaded at all: a missing or corrupt file
    wake_ms: float | None = None
    asleep: Mapping[str, int] = {}  # what it occupies asleep


class Cause(StrEnum):
    """Why a model leaves memory: one word for metrics and scripts; the sentence beside it is for people."""

    SWAP = "swap"  # another model needs its memory
    IDLE = "idle"  # nobody used it for its time to live, or the time that its last caller wished
    SLEEP = "sleep"  # the same, where its engine can sleep
    PRESSURE = "pressure"  # the machine runs out of memory
    BUDGET = "budget"  # its device holds more than it may
    MAINTENANCE = "maintenance"  # its device is lent to somebody
    HOST = "host"  # the program that hosts it unloads it
    OPERATOR = "operator"  # by hand
    CALLER = "caller"  # a caller's keep_alive of 0
    CONFIG = "config"  # its definition changed
    SHUTDOWN = "shutdown"


# ------------------------------------------------------------------ what waits


class Request(Struct, frozen=True, gc=False):
    """Somebody wants an answer from a model."""

    id: str
    model: str  # a name in the catalog, aliases already resolved
    lane: str
    work_class: WorkClass
    arrived_at: int
    max_wait_ms: int
    timeout_ms: int
    priority: int = 3
    operator: bool = False  # before every other of its class
    exact: bool = False  # no lower tier of the family will do
    supersede_key: str | None = None  # in a latest-wins lane: of those with the same key only the newest runs
    keep_alive_ms: int | None = None  # how long the model may idle after this one; a hint, 0: leave then
    companions: tuple[str, ...] = ()  # models that it needs warm beside its own, all the time it runs
    was_cut: bool = (
        False  # once before its first byte: the next turn is its own, or it would begin anew for ever
    )
    ends_at: int = 0  # its engine died: `timeout_ms` of its first try holds for the next one, too; 0: not yet


# ------------------------------------------------------------------ events


class Blame(Enum):
    """Whose fault it is that a model is not there. Only its own failures lead a model to quarantine."""

    MODEL = "model"
    HOST = "host"  # the program that hosts it does not answer, has no place for it, or dropped it
    DISK = "disk"  # the disk is full, read-only or broken


class Event(Struct, frozen=True, gc=False):
    """Something happened."""


class Arrived(Event, frozen=True):
    """A request came in."""

    request: Request


class Parting(Struct, frozen=True, gc=False):
    """What its engine was doing when a run ended before its answer did, whoever ended it."""

    silent_ms: int  # since the engine's last byte of the answer, or since it was asked
    has_spoken: bool  # whether a byte of the answer came
    lingers_as: str = ""  # the engine is still at it: LetGo comes under this name; empty: it has let go


class Left(Event, frozen=True):
    """The caller of a request is gone, waiting or served."""

    id: str
    parting: Parting | None = None


class FirstByte(Event, frozen=True):
    """The caller has received the first byte: the request can no longer be repeated elsewhere."""

    id: str


class Ended(Event, frozen=True):
    """A run is over: the engine answered well, it failed or the run was cut, or (None) nothing was asked."""

    id: str
    ok: bool | None
    parting: Parting | None = None  # set where the run ended before its answer
    first_ms: int | None = None  # from the question to the first byte of the answer
    prompt_bytes: int = 0  # of the question, where the engine keeps its context


class Returned(Event, frozen=True):
    """A request that was granted goes back to its queue: it was cut at a safe boundary, or its engine died
    before the first byte."""

    id: str
    parting: Parting | None = None


class LetGo(Event, frozen=True):
    """The engine no longer works on a run that ended before its answer."""

    model: str
    run: str  # as `Parting.lingers_as` named it
    is_known: bool = True  # False: the engine showed nothing of it within the bound


class Loaded(Event, frozen=True):
    """The engine is warm, as far as its probe proves it."""

    model: str
    attempt: int
    measured: Mapping[str, int]  # device -> bytes; empty when the engine cannot tell
    proof: Proof = Proof.CHAT


class LoadFailed(Event, frozen=True):
    """The engine could not be brought up; whatever was started is gone again, unless `remains`."""

    model: str
    attempt: int
    reason: str
    hopeless: bool = False  # the same load will fail again: a missing or corrupt file
    blame: Blame = Blame.MODEL
    remains: bool = False  # its memory may still be taken: it must be stopped before it counts as gone


class Stopped(Event, frozen=True):
    """The engine is gone and its memory is back."""

    model: str
    attempt: int


class Slept(Event, frozen=True):
    """The engine sleeps as it was told: its process is there, its weights are not."""

    model: str
    attempt: int
    measured: Mapping[str, int]  # what it still occupies; empty when the engine cannot tell


class Checked(Event, frozen=True):
    """A model whose answers had failed was asked something easy."""

    model: str
    attempt: int
    failure: str | None = None  # what came instead of an answer
    was_asked: bool = True  # False: it has nothing that it could be asked


class Died(Event, frozen=True):
    """An engine that was loading, warm or draining is gone without being asked."""

    model: str
    attempt: int
    reason: str
    blame: Blame = Blame.MODEL


class HostSeen(Event, frozen=True):
    """What is known now of a program that hosts models for us (Ollama). Sent when it changes."""

    engine: str
    silence: str | None = (
        None  # why it cannot be asked; nothing is known of its models until it answers again
    )
    places: int | None = None  # how many of our models it holds at once; None: no limit was noticed
    leaving: frozenset[str] = frozenset()  # our models that it unloads as soon as their answers have ended


class Trouble(Enum):
    """What is wrong with a device."""

    HEAT = "heat"  # degrees Celsius
    MEMORY = "memory"  # per cent of it that other programs use
    POWER = "power"  # watts
    THROTTLED = "throttled"  # it slows itself down


class Constraint(Struct, frozen=True):
    """Why nothing new should be loaded onto a device."""

    trouble: Trouble
    figure: float
    limit: float
    throttled: tuple[str, ...] = ()  # why it slows down


class DeviceReading(Struct, frozen=True):
    """What the machine says about one device now."""

    capacity: int
    available: int
    age_ms: int = 0  # how old the reading is; a failing probe keeps its last value
    constrained: Constraint | None = None  # why nothing new should be loaded there
    power_w: float | None = None  # what a card draws, and the most it may; None where it does not tell
    power_limit_w: float | None = None


class ModelReading(Struct, frozen=True):
    """What the machine says about one engine now."""

    attempt: int
    alive: bool
    memory: Mapping[str, int]
    asleep: bool | None = None  # whether its engine gave its weights back; None where nobody can tell


class Observed(Event, frozen=True):
    """A periodic look at the machine. Repairs any drift between the books and the truth."""

    taken_at: int
    devices: Mapping[str, DeviceReading]
    models: Mapping[str, ModelReading]
    pressure: bool = False  # the kernel stalls for memory (PSI above its bound)


class EvictAsked(Event, frozen=True):
    """The operator, or a keep_alive of 0, wants a model out of memory."""

    command: int
    model: str
    force: bool = False
    loads: tuple[str, ...] = ()  # requests that want no answer, only the model in memory
    cause: Cause = Cause.OPERATOR


class RetryAsked(Event, frozen=True):
    """The operator wants a model tried again at once, whatever failed before."""

    model: str


class MaintenanceAsked(Event, frozen=True):
    """The operator claims all memory of a device, or gives it back."""

    command: int
    device: str
    claimed: bool
    why: str


class TaskEnded(Event, frozen=True):
    """A background task of the rotation is over."""

    model: str
    load_ms: int
    useful_ms: int
    ok: bool
    text: str


class Reconfigured(Event, frozen=True):
    """The operator changed the config; it was checked whole before it came here."""

    catalog: Catalog
    known: Mapping[str, Knowledge]


class Tick(Event, frozen=True):
    """The armed timer fired."""


class Closing(Event, frozen=True):
    """The daemon shuts down: nothing new is admitted, what waits is refused, engines stop when drained."""


# ------------------------------------------------------------------ actions


class PlanKind(StrEnum):
    """Why a model is to be loaded. The sentence beside it is for people."""

    FITS = "fits"  # beside what is resident
    TURN = "turn"  # it has waited long enough behind what is resident
    DUE = "due"  # its oldest request would run out of patience otherwise
    RATE = "rate"  # more waits for it than would be missed of idle models
    PERMANENT = "permanent"  # it must always be there
    ROTATION = "rotation"  # its background task, over models that nobody uses
    FIFO = "fifo"  # the oldest request of all waits for it
    TURNS = "turns"  # the same, after the others' quanta
    CUSTOM = "custom"  # a policy of the operator's own wants it; the sentence says why


class Action(Struct, frozen=True, gc=False):
    """Something the driver shall do."""


class Admit(Action, frozen=True):
    """The request was let in and waits for its Grant. One that finds everything free is granted without."""

    id: str
    model: str  # the one that will serve
    forecast_ms: int
    companions: tuple[str, ...] = ()  # the tiers that will be beside it


class Refusal(StrEnum):
    """Why a request is not served: one of the closed list of codes in `errors`."""

    SHUTTING_DOWN = "shutting_down"
    MODEL_NOT_FOUND = "model_not_found"  # it is no longer in the config
    MODEL_FAILED = "model_failed"  # it is quarantined
    DISK_FAILED = "disk_failed"  # a full or failing disk keeps it from loading
    NEVER_FITS = "never_fits"
    LANE_FULL = "lane_full"
    WAIT_EXCEEDED = "wait_exceeded"  # it cannot start in time, or did not
    MAINTENANCE = "maintenance"  # the same, while its device is lent
    ENGINE_FAILED = "engine_failed"  # its engine died, and its next try could not begin in time
    PREEMPTED = "preempted"  # the operator took the model out of memory
    STALE = "stale"  # a newer request of its lane took its place


class Refuse(Action, frozen=True):
    """The request ends here without a start."""

    id: str
    code: Refusal
    message: str
    retry_after_ms: int | None = None


class Grant(Action, frozen=True):
    """The request may run on the model's engine now."""

    id: str
    model: str
    attempt: int
    companions: tuple[str, ...] = ()  # warm beside it, and not taken away while it runs


class CutKind(StrEnum):
    """How a running request is cut."""

    REQUEUE = "requeue"  # it goes back to its line: no byte was sent; answer with Returned
    BOUNDARY = "boundary"  # it goes back at the next safe boundary; answer with Returned
    PREEMPTED = "preempted"  # an emergency or the operator ends it: an error frame, then Ended
    RUN_TIMEOUT = "run_timeout"  # the lane's time limit is over: the same
    ENGINE_FAILED = "engine_failed"  # its engine died or was reset: the same


class Cut(Action, frozen=True):
    """A running request must end."""

    id: str
    how: CutKind


class Load(Action, frozen=True):
    """Bring the model up; answer with Loaded or LoadFailed before `deadline_ms` from now have passed."""

    model: str
    attempt: int
    deadline_ms: int
    expected_ms: int | None = None  # what its loads usually take; None before the first


class Stop(Action, frozen=True):
    """Take the model down and answer with Stopped when its memory is back. `hard` skips the polite steps."""

    model: str
    attempt: int
    hard: bool
    reason: str


class Sleep(Action, frozen=True):
    """Put the model to sleep; answer with Slept, or, where that failed, take it down and answer with Stopped."""

    model: str
    attempt: int


class Rouse(Action, frozen=True):
    """Wake the model; answer with Loaded or, when nothing of it is left, with LoadFailed, as for a Load."""

    model: str
    attempt: int
    deadline_ms: int


class Check(Action, frozen=True):
    """Ask a warm model something that it can answer if it is well; answer with Checked."""

    model: str
    attempt: int


class Note(Action, frozen=True):
    """One line for the journal."""

    event: str
    reason: str
    model: str | None = None
    device: str | None = None
    ms: int | None = None
    bytes: int | None = None
    request: str | None = None
    cause: Cause | None = None  # of an `evict`
    plan: PlanKind | None = None  # of a `plan`, and of an `evict` that makes room for one
    target: str | None = None  # what the plan is for: a model, or several together


class Alert(Action, frozen=True):
    """A person should know."""

    kind: str
    text: str
    model: str | None = None
    device: str | None = None


class RunTask(Action, frozen=True):
    """Run the model's background task; answer with TaskEnded."""

    model: str


class Reply(Action, frozen=True):
    """The answer to an operator's command."""

    command: int
    ok: bool
    text: str


class Wake(Action, frozen=True):
    """Send a Tick at this time instead of the one that was wished for before. Stands until the Tick or a new wish."""

    at: int
