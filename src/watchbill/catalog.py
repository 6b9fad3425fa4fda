"""The catalog: what the operator declared, as frozen records that every layer above may read.

Made by `config` from a TOML file, or built by hand in tests and simulations. Holds no behaviour beyond
look-ups: a name or alias to its model, a model to its devices. Never reads a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Literal

from watchbill.errors import ModelNotFound
from watchbill.limits import QUEUE_KEY_SHARES
from watchbill.quoting import quoted
from watchbill.suggest import nearest
from watchbill.units import Bytes, Millis

__all__ = [
    "BATCHES_LANE", "BUILT_IN_LANES", "DEFAULT_LANE", "LATEST_WINS", "LEASED_LANE", "LOCAL_SITE", "PLANS_LANE",
    "RAM", "ROTATION_LANE", "AlertRules", "ApiKey", "BackgroundTask", "BatchRules", "Catalog", "Device", "EngineRules",
    "Epoch", "JournalRules", "Lane", "Model", "NatsRules", "PeerRules", "PolicyRules", "ProcessType", "Reach",
    "Reservation", "RotationRules", "RoutingRules", "Server", "SpoolRules", "Tier", "TierRules", "WorkClass",
    "stream_of",
]  # fmt: skip

RAM = "ram"
DEFAULT_LANE = "default"
#: The policy of a lane in which a newer request takes the place of an older one with the same key.
LATEST_WINS = "latest-wins"
#: How many known names the error about an unknown model lists.
_MODELS_TOLD_MAX = 8
#: How many names an unknown one is compared with.
_MODELS_COMPARED_MAX = 100


class WorkClass(IntEnum):
    """Who waits for the answer. A lower number is served first."""

    INTERACTIVE = 0  # a person or a live agent
    NORMAL = 1  # plans, spool
    BACKGROUND = 2  # work without a waiting caller
    LEASED = 3  # another machine's work
    ROTATION = 4  # our own background rotation

    def __init__(self, number: int) -> None:
        #: Its answers stop at a boundary when they are in the way, and are continued: no person reads along.
        self.makes_way = number > 0
        #: As journals, views and recordings write it. A member's name by itself takes two calls to look up.
        self.word = self.name.lower()


class Tier(StrEnum):
    """Where a request runs."""

    LOCAL = "local"  # on this machine
    PEER = "peer"  # on another Watchbill machine, under a lease
    BURST = "burst"  # on a machine or container that a command starts on demand
    EXTERNAL = "external"  # at a provider's server, for money


class Reach(IntEnum):
    """How far from this machine a request may be served. A higher number is stricter."""

    ANYWHERE = 0
    PRIVATE = 1  # on machines of the operator: never in an external tier
    HERE = 2  # on this machine


@dataclass(frozen=True, slots=True)
class Reservation:
    """Memory kept free for a small core model that stays through every swap."""

    model: str
    memory: Bytes


@dataclass(frozen=True, slots=True)
class Device:
    """One memory domain: host RAM or one GPU."""

    name: str
    capacity: Bytes | None = None  # a cap; the machine's own figure otherwise
    reserve: Bytes = Bytes(0)
    share: float = 1.0  # part of the capacity that may be used
    max_resident: int | None = None
    parallel_loads: int = 1
    protect: tuple[str, ...] = ()  # processes whose death is an alert
    reservation: Reservation | None = None
    max_temp_c: float | None = None  # 85 otherwise
    max_vram_percent: float = 95.0
    max_power_w: float | None = None  # the card's own limit otherwise


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """What a model does when it is its turn in the background rotation: a prompt, a command, or both."""

    prompt: str | None = None
    command: str | None = None  # its output goes into the prompt


@dataclass(frozen=True, slots=True)
class RotationRules:
    """Background rotation: one interval for all, in order, when nothing else wants the memory."""

    every_ms: Millis | None = None  # None: on demand only
    max_ms: Millis = Millis(7_200_000)
    order: tuple[str, ...] = ()
    silence_ms: Millis | None = None  # None: the interval and a minute
    silence: bool = True


@dataclass(frozen=True, slots=True)
class Epoch:
    """A window in which ingestion work counts as normal work, so that it cannot starve."""

    name: str
    models: tuple[str, ...]
    window_ms: Millis = Millis(600_000)
    every_ms: Millis = Millis(3_600_000)
    priority: int = 3


@dataclass(frozen=True, slots=True)
class EngineRules:
    """A program that hosts models, and how to reach or start it."""

    name: str
    driver: str  # llamacpp, process, scripted, ollama, remote, systemd; burst: of a tier
    url: str | None = None
    shared: bool = False  # route only: never loaded, unloaded or killed
    binary: str | None = None  # llamacpp: path of a llama-server to prefer over the embedded one
    key: str = field(default="", repr=False)  # of a tier: the key that its server asks for
    start: str | None = None  # burst: the command that starts the machine
    stop: str | None = None  # burst: the command that stops it
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What is changed in the JSON body of every request for a model before its engine gets it."""

    set: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    drop: frozenset[str] = frozenset()
    # The name that the caller used -> what is set besides.
    by_name: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Model:
    """Something that answers requests and occupies memory while resident."""

    name: str
    engine: str
    source: str | None = None  # an absolute path, or the engine's own name for the model
    memory: Mapping[str, Bytes] = field(default_factory=lambda: MappingProxyType({}))  # declared, per device
    devices: tuple[str, ...] = (RAM,)
    aliases: tuple[str, ...] = ()
    permanent: bool = False
    shared: bool = False  # copied from its engine: routed to, never managed
    priority: int = 3
    concurrency: int = 1
    inertia: float | None = None  # the policy's otherwise
    idle_ms: Millis = Millis(300_000)
    stays_if_room: bool = False  # no idle time was said: it does not leave while every model fits (RES-25)
    group: str | None = None  # exclusive group
    family: str | None = None
    family_rank: int | None = None  # 1 is the largest of its family; by memory otherwise
    exact: bool = False  # no smaller model of its family serves in its place, for any caller
    context: int = 4096  # tokens per slot
    threads: int = 0  # 0: the engine decides
    mmap: bool = False
    embedding: bool = False
    abilities: frozenset[str] | None = None  # declared: it has these and no other; found out otherwise
    prompt_cache: Bytes = Bytes(0)
    load_timeout_ms: Millis | None = None  # 3 x the learned load time + 10 s otherwise
    command: str | None = None  # process: the command line with ${PORT} and ${SOURCE}
    health: str = "/health"
    stop: str = "SIGTERM"  # a signal, or a command
    probe: str | None = None  # chat, embed, http, none; the driver's own otherwise
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    arguments: tuple[str, ...] = ()  # passed to llama-server as they are
    script: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))  # scripted engine only
    background: BackgroundTask | None = None
    capture: str | None = None  # the spool that finished requests go into
    sleep_ms: Millis | None = None  # asleep after this long without use; None: never
    #: Copied from its driver: its engine can be told, and need not wait for that time.
    sleeps_when_told: bool = False
    asleep: Mapping[str, Bytes] = field(default_factory=lambda: MappingProxyType({}))  # declared, per device
    #: Copied from its driver: a load writes below the root, so a full disk prevents it.
    writes_here: bool = True
    quota: Bytes | None = None  # more than this on one device is a fault; 1.15 x what it needs otherwise
    url: str | None = None  # systemd: where its unit answers
    unit: str | None = None  # systemd: the unit's name; watchbill-MODEL.service otherwise
    image: str | None = None  # systemd: the container to run, for units that Watchbill writes
    served_as: str | None = None  # the name that its own program knows it by, where that is another one
    private: bool = False  # requests for it never leave the operator's machines
    requests: RequestRules | None = None  # None: they are passed on as they are
    where: Tier = Tier.LOCAL
    site: str | None = None  # the tier of the config that serves it; None: this machine
    copy_of: str | None = None  # the model that it serves for, under the same name at its site
    is_placed: bool = True  # False: the config does not say where it goes, and a card with room may take it


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue with a policy."""

    name: str
    work_class: WorkClass = WorkClass.INTERACTIVE
    policy: str = "fifo"
    priority: int | None = None  # the model's otherwise
    max_wait_ms: Millis = Millis(120_000)
    timeout_ms: Millis = Millis(600_000)
    queue_max: int = 256
    concurrency: int | None = None  # how many of its requests may run at once, on all models together
    fallback: str | None = None
    capture: str | None = None  # the spool that finished requests go into
    private: bool = False  # its requests never leave the operator's machines

    @property
    def is_open(self) -> bool:
        """Whether nothing of its own keeps a request from a model that is free."""
        return self.concurrency is None and self.queue_max > 0 and self.policy != LATEST_WINS

    @property
    def key_share(self) -> int:
        """How many requests of one key may wait in it where there are several keys."""
        return max(1, self.queue_max // QUEUE_KEY_SHARES)


#: The lane of our own background rotation: served last, and with a short wait.
#: No caller waits for its answers, so none is paid for elsewhere.
ROTATION_LANE = Lane("rotation", WorkClass.ROTATION, max_wait_ms=Millis(600_000), queue_max=64, private=True)
#: Requests of plan tasks. They may wait long: a task has its own time limit, and a person's request goes first.
PLANS_LANE = Lane(
    "plans", WorkClass.NORMAL, max_wait_ms=Millis(3_600_000), timeout_ms=Millis(3_600_000), queue_max=10_000
)
#: Work of other machines: it runs when no person works here, and may wait that long. Each peer has one of its own.
LEASED_LANE = Lane(
    "leased", WorkClass.LEASED, max_wait_ms=Millis(3_600_000), timeout_ms=Millis(3_600_000), queue_max=256
)
#: Lines of batches. Every person and every plan goes first; a line that waited in vain is asked again until its batch
#: expires. Waiting is no reason to pay for one elsewhere, so they never go to an external tier.
BATCHES_LANE = Lane(
    "batches",
    WorkClass.BACKGROUND,
    max_wait_ms=Millis(3_600_000),
    timeout_ms=Millis(3_600_000),
    queue_max=10_000,
    private=True,
)
#: The lanes that need not be declared. One of the same name in the config takes its place.
BUILT_IN_LANES = {lane.name: lane for lane in (ROTATION_LANE, PLANS_LANE, BATCHES_LANE, LEASED_LANE)}
_OFFERED_LANES = {lane.name: lane for lane in (PLANS_LANE, BATCHES_LANE)}


@dataclass(frozen=True, slots=True)
class ProcessType:
    """A type of work that POST /process takes."""

    name: str
    model: str
    lane: str = DEFAULT_LANE
    prompt: str = "{summary}"  # a template, as `templates` reads it
    fallback: str | None = None  # a template, too; the lane's text otherwise
    max_tokens: int | None = None
    capture: str | None = None  # the spool that finished requests go into


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """How residency decides. docs/scheduling.md explains each figure."""

    name: str = "rate"
    alpha: float = 1.0  # quantum = alpha x load time
    linger: float = 1.0  # an idle model keeps its price for linger x load time
    inertia: float = 1.5
    weights: tuple[float, ...] = (10.0, 3.0, 1.0, 0.3, 0.0)  # by WorkClass
    parallel_loads: int = 1  # on the whole host, beside each device's own limit
    strategy: type[object] | None = None  # the class that `name` means, where it is none of ours


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Another machine whose work is done here under leases."""

    name: str
    lends: tuple[str, ...] | None = None  # the models that it may use; None: all that are not private

    def may_use(self, model: Model) -> bool:
        """Whether it may have answers of a model of this machine."""
        if model.site is not None:
            return False
        return not model.private if self.lends is None else model.name in self.lends


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who may call, and with which rights."""

    name: str
    key: str = field(repr=False)  # a repr may end in a log
    lane: str | None = None
    admin: bool = False
    max_priority: int = 1  # the best priority that its requests may have
    requests_max: int | None = None  # open at once
    waiting_max: int | None = None  # waiting at once
    tokens_per_minute: int | None = None
    capture: str | None = None  # the spool that finished requests go into
    bodies_max: Bytes | None = None  # bytes of all its bodies that are inside
    peer: PeerRules | None = None  # it is another machine's
    old_key: str = field(default="", repr=False)  # as good as `key`, while that is being changed

    @property
    def is_bounded(self) -> bool:
        """Whether anything must be counted for it."""
        return not (self.requests_max is None and self.waiting_max is None and self.tokens_per_minute is None)


@dataclass(frozen=True, slots=True)
class Server:
    """Listen address, keys, allowed hosts and origins, bounds of the gateway."""

    host: str = "127.0.0.1"
    port: int = 8470
    keys: tuple[ApiKey, ...] = ()
    hosts: tuple[str, ...] = ()  # further names accepted in the Host header
    origins: tuple[str, ...] = ()  # web pages that may call us
    body_max: Bytes = Bytes(64 * 2**20)
    bodies_max: Bytes = Bytes(256 * 2**20)  # of all requests together
    connections_max: int = 4096
    store_responses: bool = True  # whether /v1/responses are kept for their next turn
    key_variables: frozenset[str] = frozenset()  # of the environment, in which keys stand

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need a key; those of peers alone do not close the door for others."""
        return any(key.peer is None for key in self.keys)

    @property
    def key_bodies_max(self) -> Bytes:
        """What a key that says nothing about it may take of `bodies_max`: a quarter, and always one body."""
        return Bytes(max(self.body_max, self.bodies_max // 4))

    def sharer(self, key: ApiKey) -> str | None:
        """The name under which a key's requests count against its share of a lane's queue. None where it may have all
        of it: it is the only key, an operator's, or has a bound of its own."""
        is_free = key.admin or key.waiting_max is not None or len(self.keys) == 1
        return None if is_free else key.name


@dataclass(frozen=True, slots=True)
class JournalRules:
    """Where decisions are written down."""

    markdown: str = "queue_log.md"
    events: str = "events.jsonl"
    traffic: bool = True  # whether arrivals, waits and loads of the last day are kept


@dataclass(frozen=True, slots=True)
class TraceRules:
    """Where traces of requests go."""

    endpoint: str | None = None  # None: none are made
    token: str = field(default="", repr=False)
    service: str = "watchbill"
    sample: float = 1.0  # of requests whose caller has not decided it


@dataclass(frozen=True, slots=True)
class AlertRules:
    """Where alerts go beside the journal and the log."""

    command: str | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class NatsRules:
    """NATS servers, and how this machine identifies itself there. Without servers: the one of `up --with-nats`."""

    servers: tuple[str, ...] = ()
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = ""  # absolute paths of files
    ca: str = ""
    certificate: str = ""
    key: str = ""
    replicas: int = 1
    timeout_ms: Millis = Millis(20_000)
    variables: frozenset[str] = frozenset()  # of the environment, in which the password or the token stands


@dataclass(frozen=True, slots=True)
class SpoolRules:
    """A durable queue, and where it is drained to. Paths may be relative to the root."""

    name: str
    path: str
    corpora: Mapping[str, str]  # kind -> file; "*" is every kind that has none of its own
    schema: str = "builtin"  # builtin, any, or the absolute path of a JSON Schema
    id_key: str = "id"
    attempts: int = 3
    poll_ms: Millis = Millis(1_000)
    workers: int = 1
    ordered: bool = False
    durability: Literal["wal", "event", "none"] = "wal"
    shared: bool | None = None  # with other hosts; None: if it is on a network mount
    drain: bool = True  # by the daemon
    keep_done_ms: Millis = Millis(7 * 86_400_000)
    archive: str | None = None  # where finished events go instead of being deleted
    verify: tuple[str, ...] = ()  # public keys; with any, unsigned events are poisoned
    sign: str | None = None  # the private key that the command line and the git hook sign with
    kinds: tuple[tuple[str, str], ...] = ()  # of the git hook: (path pattern, kind), first match wins
    backend: Literal["files", "nats"] = "files"
    stream: str = ""  # on a broker; "" is one by its name
    lease_ms: Millis = Millis(30_000)  # of a worker on a broker that does not renew it
    nats: NatsRules = NatsRules()


def stream_of(name: str, stream: str = "") -> str:
    """The stream of a spool on a broker: the one that is given, else one by the spool's name."""
    return stream or "watchbill_" + "".join(
        each if each.isalnum() and each.isascii() else "_" for each in name
    )


@dataclass(frozen=True, slots=True)
class TierRules:
    """What a burst or external tier costs, in any one currency."""

    name: str
    kind: Tier
    enabled: bool = True
    price_hour: float = 0.0  # while it runs
    price_in: float = 0.0  # for a million tokens of prompts
    price_out: float = 0.0  # for a million tokens of answers
    daily: float | None = None  # at most so much a day; None: no limit

    def cost_of(self, prompt_tokens: int, answer_tokens: int) -> float:
        """An estimate of what a request costs."""
        return (prompt_tokens * self.price_in + answer_tokens * self.price_out) / 1_000_000


#: The name of this machine in the routing order.
LOCAL_SITE = "local"


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """Which sites are tried for a request, in this order."""

    order: tuple[str, ...] = (LOCAL_SITE,)
    after_ms: Millis | None = None  # a longer wait here is a reason to go elsewhere; None: only a refusal is

    def place_of(self, site: str | None) -> int:
        """The place of a site in the order; None is this machine."""
        name = LOCAL_SITE if site is None else site
        return self.order.index(name) if name in self.order else len(self.order)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Bounds of /v1/files and of batches."""

    file_max: Bytes = Bytes(200 * 2**20)
    files_max: int = 1_000  # of one key
    storage_max: Bytes = Bytes(2 * 2**30)  # files and unfinished answers of one key
    disk_max: Bytes = Bytes(16 * 2**30)  # of all keys
    lines_max: int = 50_000  # of one batch
    open_max: int = 16  # batches of one key that have not ended
    window_max_ms: Millis = Millis(7 * 86_400_000)
    keep_ms: Millis = Millis(30 * 86_400_000)
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class LibraryRules:
    """Models that need no table of the config."""

    files: bool = True  # every GGUF file of the models folder
    ollama: bool = False  # what an installed Ollama keeps on this disk
    ollama_folder: str | None = None  # where the environment says otherwise


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """The coordinator that `up` runs."""

    slots: int
    stuck_after_ms: Millis
    model: str | None = None
    training_samples: bool = True


@dataclass(frozen=True, slots=True)
class AgentRules:
    """An agent that `up` runs."""

    name: str
    cpu_slots: int | None = None
    devices: tuple[str, ...] = ()  # none: tasks of class cpu only
    model: str | None = None
    port: int | None = None
    llm_slots: int = 1


#: Where the door of a fleet answers on a broker.
FLEET_SUBJECT = "watchbill_fleet"


@dataclass(frozen=True, slots=True)
class FleetRules:
    """The shared folder of plans, and the programs that `up` runs for it."""

    root: str | None = None  # None: below the daemon's root
    keep_complete_ms: Millis = Millis(7 * 86_400_000)
    keep_history_ms: Millis | None = None
    coordinator: CoordinatorRules | None = None
    agents: tuple[AgentRules, ...] = ()
    nats: Literal["serve", "use"] | None = None  # agents without the folder: here it is, or here they are
    subject: str = FLEET_SUBJECT
    broker: NatsRules = NatsRules()


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything the operator declared."""

    devices: Mapping[str, Device]
    engines: Mapping[str, EngineRules]
    models: Mapping[str, Model]
    lanes: Mapping[str, Lane] = field(default_factory=lambda: {DEFAULT_LANE: Lane(DEFAULT_LANE)})
    policy: PolicyRules = PolicyRules()
    server: Server = Server()
    rotation: RotationRules = RotationRules()
    epochs: Mapping[str, Epoch] = field(default_factory=lambda: MappingProxyType({}))
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    journal: JournalRules = JournalRules()
    alerts: AlertRules = AlertRules()
    traces: TraceRules = TraceRules()
    spools: Mapping[str, SpoolRules] = field(default_factory=lambda: MappingProxyType({}))
    process: Mapping[str, ProcessType] = field(default_factory=lambda: MappingProxyType({}))
    fleet: FleetRules = FleetRules()
    tiers: Mapping[str, TierRules] = field(default_factory=lambda: MappingProxyType({}))
    routing: RoutingRules = RoutingRules()
    batches: BatchRules = BatchRules()
    library: LibraryRules = LibraryRules()
    unnamed_card: Device = Device("gpu")  # what holds for a card that the config does not name
    pinned: frozenset[str] = frozenset()  # models that are permanent by hand, not by the config

    @property
    def offered(self) -> dict[str, Model]:
        """The models that are listed: without the copies that serve for others elsewhere."""
        return {name: model for name, model in self.models.items() if model.copy_of is None}

    def find_lane(self, name: str) -> Lane:
        """The lane of this name, declared or built in."""
        return self.lanes.get(name) or BUILT_IN_LANES.get(name) or self.lanes[name]

    def lane_for(self, name: str | None) -> Lane:
        """The lane of a request that names this one. Without a name, or with an unknown one, the first lane."""
        if name is None:
            return next(iter(self.lanes.values()))
        return self.lanes.get(name) or BUILT_IN_LANES.get(name) or self.lane_for(None)

    def offered_lane(self, name: str) -> Lane | None:
        """The lane that a caller may name: one of the config, or that of plans or batches."""
        lane = self.lanes.get(name) or _OFFERED_LANES.get(name)
        return None if lane is None or lane.work_class is WorkClass.LEASED else lane

    def driver_of(self, model: str) -> str | None:
        """The driver of a model's engine, by the model's own name; None for a model that is not there any more."""
        found = self.models.get(model)
        return None if found is None else self.engines[found.engine].driver

    def find_model(self, name: str) -> Model | None:
        """The model that is called `name`, or one of whose aliases is; `foo` and `foo:latest` are the same."""
        if (model := self.models.get(name)) is not None:  # nearly always, and for every request
            return model
        for asked in (name.removesuffix(":latest"), f"{name}:latest"):
            if (found := self.models.get(asked)) is not None:
                return found
        return next((model for model in self.models.values() if name in model.aliases), None)

    def model_called(self, name: str) -> Model:
        """As `find_model`, but raises ModelNotFound, which lists the known models."""
        model = self.find_model(name)
        if model is None:
            offered = self.offered
            known = ", ".join(islice(offered, _MODELS_TOLD_MAX)) or "none"
            more = ", ..." if len(offered) > _MODELS_TOLD_MAX else ""
            names = (called for own, each in offered.items() for called in (own, *each.aliases))
            near = nearest(name, islice(names, _MODELS_COMPARED_MAX))  # 20 us each, on the event loop
            meant = f"did you mean {near}? " if near else ""
            raise ModelNotFound(f"no model is called {quoted(name)}; {meant}there are: {known}{more}")
        return model
