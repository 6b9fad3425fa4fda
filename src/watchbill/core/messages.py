"""Messages of the core: events in, actions out.

Both are frozen. Tokens never pass through here; only arrivals, starts, first bytes and ends do. Every action that
expects an answer carries its attempt. An answer with another attempt is late: it is dropped and counted. Times are
monotonic milliseconds, sizes are bytes.

No message is part of a reference cycle, and every request creates several of them, so the garbage collector does not
track them (`gc=False`).
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

from msgspec import Struct

from watchbill.catalog import Catalog, Reach, WorkClass
from watchbill.core.reasons import Bar, Cause, Proof, Reason
from watchbill.core.reasons import PlanKind as PlanKind  # noqa: PLC0414  policies of your own import it from here

# ------------------------------------------------------------------ words used by scripts and metrics


class Mishap(StrEnum):
    """How a model failed: the journal's event, and a label in metrics."""

    LOAD_FAILED = "load_failed"  # its load failed
    DIED = "died"  # its engine exited unexpectedly
    RESET = "reset"  # the watchdog stopped it
    STUCK = "stuck"  # its engine does not stop
    DISK_FAILED = "disk_failed"  # a full or failing disk, not a fault of the model


class Doubted(StrEnum):
    """Why a model in memory may not be well, although no fault of it is known."""

    SUSPECT = "suspect"  # answers failed, and the watchdog's question to it is open: no request is sent to it
    STALLED = "stalled"  # its last answers stopped in the middle; it answers simple questions


class AlertKind(StrEnum):
    """What an alert is about: one word for status, metrics, the journal and receivers of alerts."""

    ABSENT = "absent"  # a permanent model is not in memory
    BATCHES_PAUSED = "batches_paused"  # the disk refuses the results of batches
    BUDGET = "budget"  # a model, or a device, holds more than it may
    CARD = "card"  # a card takes no new model: it is too hot, too full, or draws too much
    CAPTURE = "capture"  # captured requests are lost, or wait in memory
    DISK = "disk"  # a full or failing disk
    EMERGENCY = "emergency"  # the machine runs out of memory
    HOST = "host"  # a program that hosts models cannot be asked
    POLICY = "policy"  # a policy of your own failed
    PROBE = "probe"  # memory cannot be read
    PROTECTED = "protected"  # a protected process is not running
    QUARANTINE = "quarantine"  # a model failed too often
    SILENCE = "silence"  # nothing was loaded, served or done for too long
    SLOW_LOAD = "slow-load"
    SPOOL = "spool"  # a spool cannot be drained
    SPOOL_HOOK = "spool-hook"  # the git hook of a spool has a warning
    SPOOL_POISON = "spool-poison"  # events were poisoned
    STUCK = "stuck"  # an engine does not stop
    TIER = "tier"  # the daily limit of a tier is reached
    WATCHDOG = "watchdog"  # a model was reset


# ------------------------------------------------------------------ known before the first load


class Footprint(Struct, frozen=True):
    """The memory that a model is expected to occupy per device, and the least it occupies once loaded."""

    expected: Mapping[str, int]
    floor: Mapping[str, int] = {}
    #: Right after a load, where use made the model grow since.
    fresh: Mapping[str, int] = {}


class Knowledge(Struct, frozen=True):
    """Facts about a model from its file and from earlier runs."""

    footprint: Footprint
    load_ms: float | None = None
    service_ms: float | None = None
    failure: str | None = None  # why it can never be loaded: a missing or corrupt file
    wake_ms: float | None = None
    asleep: Mapping[str, int] = {}  # the memory it occupies asleep
    cold_load_ms: float | None = None  # from a disk, not from the page cache


# ------------------------------------------------------------------ requests


class Request(Struct, frozen=True, gc=False):
    """A caller's request for an answer from a model."""

    id: str
    model: str  # a name in the catalog, with aliases resolved
    lane: str
    work_class: WorkClass
    arrived_at: int
    max_wait_ms: int
    timeout_ms: int
    priority: int = 3
    operator: bool = False  # before every other of its class
    exact: bool = False  # no smaller model of the family may serve it
    supersede_key: str | None = None  # in a latest-wins lane only the newest request with the same key runs
    keep_alive_ms: int | None = None  # how long the model may idle after this request; a hint, 0: leave then
    companions: tuple[str, ...] = ()  # models that must be warm beside its own for the whole run
    caller: str | None = None  # the key that has a share of its lane's queue; None: it may have all of it
    reach: Reach = Reach.ANYWHERE  # how far from this machine it may be served
    lease: str | None = None  # of leased work: the lease that it runs under
    is_hurried: bool = False  # `max_wait_ms` is a deadline of its caller, and shorter than its lane's
    # Once before its first byte: it is not cut again, or it would start over without end.
    was_cut: bool = False
    # Set when its engine died: `timeout_ms` of the first try also covers the next one; 0: not set.
    ends_at: int = 0
    # Set when it was cut and goes back: however often that happens, it is answered by then; 0: not set.
    bound_at: int = 0
    failed_at: tuple[str, ...] = ()  # sites whose servers refused or failed it: another one serves it
    # Of leased work: its machine has another site for it, so it waits for no person here.
    is_elsewhere: bool = False
    foretold_ms: int = 0  # its wait as the rule forecast it, with no request after it; 0: not forecast


# ------------------------------------------------------------------ events


class Blame(Enum):
    """Which part failed when a model is not available. Only its own failures lead a model to quarantine."""

    MODEL = "model"
    HOST = "host"  # the program that hosts it does not answer, has no place for it, or dropped it
    DISK = "disk"  # the disk is full, read-only or broken


class Event(Struct, frozen=True, gc=False):
    """Something happened."""


class Arrived(Event, frozen=True):
    """A request arrived."""

    request: Request


#: The slowest measured model needs 2 s for a token: an engine that sent something this recently is working.
LULL_MS = 3_000


class Silence(Enum):
    """The engine's state at the end of a run that used all its time."""

    NONE = "none"  # tokens still came: it is slow, not hung
    MUTE = "mute"  # not one byte came: it hangs, or reads a long prompt
    STALLED = "stalled"  # the answer began, and stopped in the middle


class Parting(Struct, frozen=True, gc=False):
    """The state of the engine when a run ended before its answer, whichever side ended it."""

    silent_ms: int  # since the engine's last byte of the answer, or since the question
    has_spoken: bool  # whether a byte of the answer arrived
    lingers_as: str = ""  # the engine still works on it: LetGo comes under this name; empty: it has let go

    def silence(self, ran_ms: float) -> Silence:
        """What the engine's silence means at the end of a run of this length."""
        if not self.has_spoken:
            return Silence.MUTE
        return Silence.STALLED if self.silent_ms >= min(LULL_MS, ran_ms / 2) else Silence.NONE


class Left(Event, frozen=True):
    """The caller of a request is gone, waiting or served."""

    id: str
    parting: Parting | None = None


class FirstByte(Event, frozen=True):
    """The caller has received the first byte: the request can no longer be repeated elsewhere."""

    id: str


class Indivisible(Event, frozen=True):
    """The answer of a run cannot be continued: once it has begun, it stops nowhere before its end."""

    id: str


class Rested(Event, frozen=True):
    """The machine of a run's site says that the request waits there, or no longer does: that time is a wait."""

    id: str
    waits: bool


class Ended(Event, frozen=True):
    """A run is over: the engine answered well, it failed or the run was cut, or (None) it was never asked."""

    id: str
    ok: bool | None
    parting: Parting | None = None  # set when the run ended before its answer
    first_ms: int | None = None  # from the question to the first byte of the answer
    prompt_bytes: int = 0  # of the question, where the engine keeps its context


class Returned(Event, frozen=True):
    """A granted request goes back to its queue.

    It was cut at a safe boundary, or its engine died before the first byte. Or the server of a site refused or failed
    it: then another site serves it, or it is refused.
    """

    id: str
    parting: Parting | None = None
    failed_at: str = ""  # the site
    is_fault: bool = False  # the failure counts against the model there
    goes_on: bool = False  # another machine broke off, and the words that it brought are continued


class LetGo(Event, frozen=True):
    """The engine no longer works on a run that ended before its answer."""

    model: str
    run: str  # as `Parting.lingers_as` named it
    is_known: bool = True  # False: the engine did not show the run within the bound


class Loaded(Event, frozen=True):
    """The engine is warm, as far as its probe proves it."""

    model: str
    attempt: int
    measured: Mapping[str, int]  # device -> bytes; empty when the engine cannot report it
    proof: Proof = Proof.CHAT


class LoadFailed(Event, frozen=True):
    """The engine could not be started; everything that was started is gone again, unless `remains`."""

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
    """The engine sleeps as it was told: its process runs, its weights are unloaded."""

    model: str
    attempt: int
    measured: Mapping[str, int]  # the memory it still occupies; empty when the engine cannot report it


class Checked(Event, frozen=True):
    """The watchdog's question to a model whose answers had failed is over."""

    model: str
    attempt: int
    failure: str | None = None  # the failure in place of an answer
    was_asked: bool = True  # False: its probe has no question to ask


class Died(Event, frozen=True):
    """An engine that was loading, warm or draining exited unexpectedly."""

    model: str
    attempt: int
    reason: str
    blame: Blame = Blame.MODEL


class HostSeen(Event, frozen=True):
    """The state of a program that hosts models for us (Ollama). Sent when it changes."""

    engine: str
    # Why it cannot be asked; nothing is known about its models until it answers again, unless they serve without it.
    silence: str | None = None
    places: int | None = None  # how many of our models it holds at once; None: no limit was observed
    leaving: frozenset[str] = frozenset()  # our models that it unloads as soon as their answers have ended
    serves: bool = (
        False  # while it is silent, its models that are in memory answer; none of them comes or leaves
    )


class Trouble(Enum):
    """The kind of a device's health problem."""

    HEAT = "heat"  # degrees Celsius
    MEMORY = "memory"  # per cent of it used by other programs
    POWER = "power"  # watts
    THROTTLED = "throttled"  # it throttles itself
    UNREAD = "unread"  # seconds since it was read; a card that is lost, or a driver that hangs


class Constraint(Struct, frozen=True):
    """Why a device takes no loads."""

    trouble: Trouble
    figure: float
    limit: float
    throttled: tuple[str, ...] = ()  # the reasons for throttling


class DeviceReading(Struct, frozen=True):
    """The machine's report about one device."""

    capacity: int
    available: int
    age_ms: int = 0  # age of the reading; a failing probe keeps its last value
    constrained: Constraint | None = None  # why it takes no loads
    power_w: float | None = None  # the power draw and its limit; None where the card does not report it
    power_limit_w: float | None = None


class ModelReading(Struct, frozen=True):
    """The machine's report about one engine."""

    attempt: int
    alive: bool
    memory: Mapping[str, int]
    asleep: bool | None = None  # whether its engine unloaded its weights; None where that is unknown


class Observed(Event, frozen=True):
    """A periodic reading of the machine. It repairs any drift between the ledger and the machine."""

    taken_at: int
    devices: Mapping[str, DeviceReading]
    models: Mapping[str, ModelReading]
    pressure: bool = False  # the kernel stalls for memory (PSI above its bound)
    disk_fault: str | None = None  # in words for people; None: the disk of the root takes what a load writes
    # Loan -> the bytes that its holder was seen to use; missing where that is unknown.
    loans: Mapping[str, int] = {}


class DiskSeen(Event, frozen=True):
    """The answer to LookAtDisk: what the disk of the root says now, as in a reading of the machine."""

    fault: str | None


class EvictAsked(Event, frozen=True):
    """The operator, or a keep_alive of 0, evicts a model."""

    command: int
    model: str
    force: bool = False
    loads: tuple[str, ...] = ()  # requests that ask for no answer, only for the model in memory
    cause: Cause = Cause.OPERATOR


class RetryAsked(Event, frozen=True):
    """The operator lets a model be tried again at once, whatever failed before."""

    model: str


class MaintenanceAsked(Event, frozen=True):
    """The operator takes all memory of a device for maintenance, or gives it back."""

    command: int
    device: str
    claimed: bool
    why: str


class LoanAsked(Event, frozen=True):
    """A person or a task asks for an amount of a device's memory; the reply comes when it is there (RES-14)."""

    command: int
    id: str
    device: str
    bytes: int
    evict_idle: bool  # models that have been idle for long may leave for it
    why: str


class LoanEnded(Event, frozen=True):
    """A loan is given back, or its holder is gone; also before it was granted."""

    id: str
    why: str = "given back"


class LeaseAsked(Event, frozen=True):
    """A peer asks for the right to have a model's answers (RES-23)."""

    command: int
    id: str
    peer: str
    model: str


class LeaseRenewed(Event, frozen=True):
    """The peer that holds a lease lives."""

    id: str


class LeaseEnded(Event, frozen=True):
    """A peer gives a lease back."""

    id: str


class SiteClosed(Event, frozen=True):
    """A tier takes nothing for now, or (None) requests again."""

    site: str
    bar: Bar | None
    model: str = ""  # one model of the tier; empty: all of them
    lasts_ms: int | None = None  # when it opens at the latest


class TaskEnded(Event, frozen=True):
    """A background task of the rotation is over."""

    model: str
    load_ms: int
    useful_ms: int
    ok: bool
    text: str


class Reconfigured(Event, frozen=True):
    """The operator changed the config. It was checked as a whole before."""

    catalog: Catalog
    known: Mapping[str, Knowledge]


class Tick(Event, frozen=True):
    """The armed timer fired."""


class Closing(Event, frozen=True):
    """The daemon shuts down: no request is admitted, waiting ones are refused, engines stop when drained."""


# ------------------------------------------------------------------ actions


class Action(Struct, frozen=True, gc=False):
    """An instruction to the driver."""


class Admit(Action, frozen=True):
    """The request is admitted and waits for its Grant. A request that can start at once is granted without."""

    id: str
    model: str  # the model that will serve
    forecast_ms: int | None  # None: no forecast is possible
    companions: tuple[str, ...] = ()  # the models that will be resident beside it


class Refusal(StrEnum):
    """Why a request is not served, or memory not lent: one of the closed list of codes in `errors`."""

    SHUTTING_DOWN = "shutting_down"
    MODEL_NOT_FOUND = "model_not_found"  # it is no longer in the config
    MODEL_FAILED = "model_failed"  # it is quarantined
    DISK_FAILED = "disk_failed"  # a full or failing disk keeps it from loading
    NEVER_FITS = "never_fits"
    DEVICE_UNREADABLE = "device_unreadable"  # it is not known whether it fits
    LANE_FULL = "lane_full"
    WAIT_EXCEEDED = "wait_exceeded"  # it cannot start in time, or did not
    MAINTENANCE = "maintenance"  # the same, while its device is lent
    ENGINE_FAILED = "engine_failed"  # its engine died, and its next try could not begin in time
    PREEMPTED = "preempted"  # the operator evicted the model
    STALE = "stale"  # a newer request of its lane replaced it
    NO_MEMORY = "no_memory"  # of a loan: too much is in use now
    NO_LEASE = "no_lease"  # of leased work: its lease is over, or none is given now
    TIER_CLOSED = "tier_closed"  # only a tier has its model, and may not serve it


class Refuse(Action, frozen=True):
    """The request ends without a start."""

    id: str
    code: Refusal
    message: str
    retry_after_ms: int | None = None


class Grant(Action, frozen=True):
    """The request may run on the model's engine now."""

    id: str
    model: str
    attempt: int
    companions: tuple[str, ...] = ()  # warm beside it, and not evicted while it runs


class CutKind(StrEnum):
    """How a running request is cut."""

    REQUEUE = "requeue"  # it goes back to its line: no byte was sent; answer with Returned
    BOUNDARY = "boundary"  # it goes back at the next safe boundary; answer with Returned
    # An emergency or the operator ends it: an error frame, then Ended. One whose caller gets a whole answer, and has
    # seen nothing of it, goes back to its line instead: Returned.
    PREEMPTED = "preempted"
    RUN_TIMEOUT = "run_timeout"  # the lane's time limit is over: the same
    ENGINE_FAILED = "engine_failed"  # its engine died or was reset: the same
    # The core never asks for these: the driver cuts so by itself.
    CANCELLED = "cancelled"  # by hand
    SHUTTING_DOWN = "shutting_down"


class Cut(Action, frozen=True):
    """A running request must end."""

    id: str
    how: CutKind
    is_orphaned: bool = False  # its engine died or was reset


class Load(Action, frozen=True):
    """Load the model; answer with Loaded or LoadFailed before `deadline_ms` from now have passed."""

    model: str
    attempt: int
    deadline_ms: int
    expected_ms: int | None = None  # its usual load time; None before the first load


class Stop(Action, frozen=True):
    """Stop the model, and answer with Stopped when its memory is back. `hard` skips the graceful steps."""

    model: str
    attempt: int
    hard: bool


class Sleep(Action, frozen=True):
    """Put the model to sleep and answer with Slept. Where that fails, stop it and answer with Stopped."""

    model: str
    attempt: int


class WakeModel(Action, frozen=True):
    """Wake the model; answer with Loaded, or with LoadFailed when nothing of it is left, as for a Load."""

    model: str
    attempt: int
    deadline_ms: int


class LookAtDisk(Action, frozen=True):
    """Try the disk of the root now, and answer with DiskSeen: a model is to leave for a load that writes there."""


class Check(Action, frozen=True):
    """Ask a warm model a question that a healthy model can answer; answer with Checked."""

    model: str
    attempt: int


class JournalEvent(StrEnum):
    """What a line of the journal is about. A failure of a model is a `Mishap` instead."""

    START = "start"  # of the daemon: nothing is in memory
    PLAN = "plan"  # a change of residency was decided
    UNPLAN = "unplan"  # a plan was dropped
    EVICT = "evict"  # a model takes no new requests and leaves
    REOPEN = "reopen"  # a model that was leaving stays
    LOAD = "load"
    LOADED = "loaded"
    STOPPED = "stopped"  # its memory is back
    WAKE = "wake"
    AWAKE = "awake"
    ASLEEP = "asleep"
    LOST = "lost"  # gone without a fault of its own
    QUARANTINE = "quarantine"
    RETRY = "retry"  # the operator lifted a quarantine
    ABSENT = "absent"  # a permanent model does not fit
    WELL = "well"  # the watchdog asked, and the model answered
    SMALLER = "tier"  # a smaller model of the family serves
    ROUTE = "route"  # another site serves
    LEASE = "lease"  # a peer has the right to a model
    LEASE_END = "lease_end"
    LEASE_REVOKED = "lease_revoked"  # a person works here: leased work makes way
    LEASE_RESTORED = "lease_restored"  # it was quiet for long enough
    COST = "cost"  # an estimate of what an answer, or a time, of a tier cost
    SPENT = "spent"  # the daily limit of a tier is reached
    UNSPENT = "unspent"  # a new day began, or the limit was raised
    REFUSE = "refuse"
    EXPIRE = "expire"  # a request waited too long
    STRANDED = "stranded"  # a cut request was never reported as ended
    MAINTENANCE = "maintenance"
    MAINTENANCE_END = "maintenance_end"
    LOAN = "loan"  # memory was lent
    LOAN_END = "loan_end"
    CONSTRAINED = "constrained"  # a card takes no new model
    RECOVERED = "recovered"  # it takes models again
    HOST_SILENT = "host_silent"
    HOST_BACK = "host_back"
    PLACES = "places"  # how many models a host holds at once
    ROTATION = "rotation"  # a background task is over
    ROTATION_FAILED = "rotation_failed"
    EPOCH = "epoch"
    EPOCH_END = "epoch_end"
    BATCH = "batch"  # a batch was accepted
    BATCH_END = "batch_end"
    BATCHES_RESUMED = "batches_resumed"  # after a pause, which was an alert
    RELOAD = "reload"  # the config changed
    PIN = "pin"  # the operator wants a model to stay, or no longer
    PROTECTED = "protected"  # a protected process is back
    ALERT = "alert"


class Note(Action, frozen=True):
    """One line for the journal."""

    event: JournalEvent | Mishap
    reason: Reason | str
    model: str | None = None
    device: str | None = None
    ms: int | None = None
    bytes: int | None = None
    request: str | None = None
    cause: Cause | None = None  # of an `evict`
    alert: AlertKind | None = None  # of an `alert`


class Alert(Action, frozen=True):
    """A message that a person should see."""

    kind: AlertKind
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


class Decline(Action, frozen=True):
    """The answer to a loan that is not granted."""

    command: int
    code: Refusal
    message: str
    retry_after_ms: int | None = None  # when it may be worth asking again; None where that is unknown


class Wake(Action, frozen=True):
    """Send a Tick at this time; it replaces the time asked for before. Valid until the Tick or a newer Wake."""

    at: int
