"""The config file's tables: every key, its kind, its default and one sentence about it.

This is the only list of keys. The reference in the docs, the JSON Schema for editors, `config show` and the
hint for a mistyped key are all drawn from it. A key stands here only when this version honours it; what is
planned is refused by name in `planned`. Defaults that depend on other keys are filled in by `build`.
"""

from typing import Literal

from pydantic import Field

from watchbill import limits
from watchbill.config.fields import (
    Count,
    DeviceNames,
    Duration,
    EnvName,
    Failures,
    HttpPath,
    LaneText,
    Line,
    Memory,
    ModelName,
    PlainName,
    PolicyName,
    Portion,
    Priority,
    Rate,
    Share,
    Size,
    UnitName,
    Url,
)
from watchbill.config.process_table import ProcessTable
from watchbill.config.rotation_table import BackgroundTable, EpochTable, RotationTable
from watchbill.config.server_table import KeyTable, ServerTable
from watchbill.config.set_table import SetTable
from watchbill.config.spool_table import SpoolTable
from watchbill.config.table import Table
from watchbill.units import Bytes, Millis

__all__ = [
    "TABLES", "AlertsTable", "BackgroundTable", "DeviceTable", "Document", "EngineTable", "EpochTable",
    "JournalTable", "KeyTable", "LaneTable", "ModelTable", "PolicyTable", "ProcessTable", "ReservationTable",
    "RotationTable", "ScriptTable", "ServerTable", "SetTable", "SpoolTable", "Table", "WeightsTable",
]  # fmt: skip


class ReservationTable(Table):
    """Memory kept free for one small model that stays through every swap."""

    model: ModelName = Field(description="The model it is kept for.", examples=["lexicon"])
    memory: Size = Field(description="How much.", examples=["2GiB"])


class DeviceTable(Table):
    """A memory domain: `ram`, or one GPU as `"gpu:0"`. `[devices.gpu]` holds defaults for all GPUs."""

    capacity: Size | None = Field(
        default=None,
        ge=1,
        description="A cap on the device's memory; the machine's own figure otherwise.",
        examples=["15GB"],
    )
    reserve: Size | None = Field(
        default=None,
        description="Left free for everything else on the machine: 2GiB on ram, 0B on a GPU.",
        examples=["2GiB"],
    )
    budget: Share = Field(default=1.0, description="The part of the capacity that may be used.")
    max_resident: Count | None = Field(
        default=None, description="At most this many models at a time.", examples=[2]
    )
    parallel_loads: int = Field(default=1, ge=1, le=limits.PARALLEL_LOADS_MAX, description="Loads at a time.")
    protect: tuple[Line, ...] = Field(
        default=(),
        strict=False,
        description="Processes to raise an alert about when they die.",
        examples=[["routx"]],
    )
    reservation: ReservationTable | None = Field(default=None, description="Memory kept for a core model.")
    max_temp_c: float | None = Field(
        default=None,
        gt=0,
        le=150,
        allow_inf_nan=False,
        description="A hotter card takes no new model; 85 unless set.",
        examples=[85],
    )
    max_vram_percent: float = Field(
        default=95.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="A card of which other programs use more takes no new model.",
    )
    max_power_w: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="A card that draws more takes no new model; its own limit unless set.",
        examples=[140],
    )


class EngineTable(Table):
    """A program that hosts models. A driver's name serves as an engine without a table of its own."""

    driver: str = Field(
        description="llamacpp, process, scripted, ollama, remote or systemd.", examples=["llamacpp"]
    )
    url: Url | None = Field(
        default=None,
        description="Where the server answers that somebody else runs; ollama has http://127.0.0.1:11434.",
        examples=["http://127.0.0.1:9000"],
    )
    shared: bool = Field(
        default=False,
        description="Routed to, never loaded, unloaded or stopped; a remote engine always is.",
    )
    binary: Line | None = Field(
        default=None,
        description="A llama-server to prefer over the embedded one: a path, or a name on the PATH.",
        examples=["llama-server"],
    )


class ScriptTable(Table):
    """How a model of the scripted engine behaves: for tests, demos and the rehearsal of a config."""

    load: Duration = Field(default=Millis(0), description="Until it is healthy.")
    wake: Duration = Field(default=Millis(0), description="Until it is back from sleep.")
    service: Duration = Field(default=Millis(0), description="A whole answer.")
    linger: Duration = Field(default=Millis(0), description="It works on so long for a client that left.")
    tokens: int = Field(default=8, ge=1, le=1_000_000, description="Words of an answer.")
    text: str = Field(default="", description="The words; the model's name otherwise.")
    memory: Size = Field(default=Bytes(0), description="Really occupied, unless touch = false.")
    touch: bool = Field(default=True, description="Occupy the memory.")
    concurrency: Count | None = Field(default=None, description="Slots; the model's otherwise.")
    jitter: Portion = Field(default=0.0, description="Durations vary by this share.")
    seed: int = Field(default=1, description="Of the variation: the same seed, the same row.")
    fail: Failures = Field(default=(), description="How it misbehaves: one failure or a list of them.")
    fail_times: int = Field(default=0, ge=0, description="Fails only so many times; 0 is always.")


class ModelTable(Table):
    """A model: what it is, what it needs, and how long it stays."""

    engine: PlainName = Field(description="An engine's name, or a driver's.", examples=["llamacpp"])
    source: Line | None = Field(
        default=None,
        description="The model's file, relative to the config file; for ollama and remote its name there.",
        examples=["models/big.gguf"],
    )
    memory: Memory | None = Field(
        default=None,
        description='What it occupies, or a table such as { "gpu:0" = "9GB" }; predicted and measured otherwise.',
        examples=["4.6GB"],
    )
    devices: DeviceNames | None = Field(
        default=None,
        strict=False,
        description='The devices it needs; those of `memory`, else ["ram"].',
    )
    aliases: tuple[ModelName, ...] = Field(
        default=(), strict=False, description="Further names it answers to."
    )
    permanent: bool = Field(default=False, description="Loaded at start, and stays.")
    priority: Priority = Field(default=3, description="1 is served first, 5 last, within a class.")
    concurrency: Count = Field(default=1, description="Requests at a time; 1 is one after the other.")
    inertia: Rate | None = Field(
        default=None, description="How hard it is to displace; the policy's otherwise."
    )
    idle: Duration | None = Field(
        default=None,
        ge=1,
        description="Leaves memory after this long without use. Without it: after 5m, and only where not all models "
        "fit at once.",
        examples=["5m"],
    )
    sleep: Duration | None = Field(
        default=None,
        ge=1000,
        description="Sleeps after this long without use: its process stays, its weights do not, and it is back sooner. "
        "llama.cpp does so by itself; others are told by POST /sleep and /wake_up, also in place of leaving.",
        examples=["2m"],
    )
    asleep: Memory | None = Field(
        default=None,
        description="What it occupies asleep; measured otherwise, and counted in full until then.",
        examples=["600MiB"],
    )
    group: PlainName | None = Field(
        default=None, description="Exclusive group: at most one of its members is on a device at a time."
    )
    family: PlainName | None = Field(
        default=None, description="Models that may stand in for a larger one of the same family."
    )
    tier: int | None = Field(
        default=None, ge=1, le=100, description="Its place in the family, 1 the largest; by memory otherwise."
    )
    exact: bool = Field(
        default=False, description="Requests for it are never served by a lower tier of its family."
    )
    context: int = Field(
        default=4096, ge=16, le=limits.CONTEXT_TOKENS_MAX, description="Tokens of context for each request."
    )
    threads: int = Field(
        default=0, ge=0, le=limits.THREADS_MAX, description="CPU threads; 0 lets the engine decide."
    )
    mmap: bool = Field(default=False, description="Map the file instead of reading it into memory.")
    embedding: bool = Field(default=False, description="Serves embeddings instead of chat.")
    prompt_cache: Size = Field(
        default=Bytes(0), description="Memory for prompts that are kept between requests."
    )
    load_timeout: Duration | None = Field(
        default=None, ge=1, description="A load fails after this; 3 x the learned load time + 10 s otherwise."
    )
    command: Line | None = Field(
        default=None,
        description="The command line that starts it, with ${PORT} and ${SOURCE}.",
        examples=["whisper-server --port ${PORT} --model ${SOURCE}"],
    )
    health: HttpPath = Field(default="/health", description="The path that answers 200 when it is ready.")
    stop: Line = Field(default="SIGTERM", description="The signal that ends it, or a command.")
    probe: Literal["chat", "embed", "http", "none"] | None = Field(
        default=None,
        description="What must be answered before it counts as warm; the driver's own probe otherwise.",
    )
    env: dict[EnvName, str] = Field(default={}, description="Environment variables of its process.")
    arguments: tuple[Line, ...] = Field(
        default=(), strict=False, description="Further arguments for llama-server, as they are."
    )
    script: ScriptTable | None = Field(default=None, description="How the scripted engine behaves.")
    background: BackgroundTable | None = Field(
        default=None, description="What it does by itself when it is its turn in the rotation."
    )
    quota: Size | None = Field(
        default=None,
        ge=1,
        description="More than this on one device is a fault and resets it; 1.15 x what it needs otherwise.",
        examples=["6GB"],
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )
    url: Url | None = Field(
        default=None, description="Where its systemd unit answers.", examples=["http://127.0.0.1:9101"]
    )
    unit: UnitName | None = Field(
        default=None,
        description="Its systemd unit; watchbill-MODEL.service otherwise.",
        examples=["vllm-70b.service"],
    )
    image: Line | None = Field(
        default=None,
        description="The container that `watchbill systemd units` runs it in.",
        examples=["ghcr.io/ggml-org/llama.cpp:server"],
    )


class WeightsTable(Table):
    """What a waiting request weighs when models compete, by its class."""

    interactive: Rate = Field(default=10.0, description="A person or live agent waits.")
    normal: Rate = Field(default=3.0, description="Plans and spools.")
    background: Rate = Field(default=1.0, description="Work nobody watches.")


class PolicyTable(Table):
    """How it is decided which models are in memory."""

    name: PolicyName = Field(
        default="rate",
        description="The rule: rate, turns, fifo, or a class of your own as package.module:Class.",
        examples=["turns"],
    )
    alpha: Rate = Field(default=1.0, description="A loaded model keeps its place for alpha x its load time.")
    linger: Rate = Field(default=1.0, description="An idle model keeps its price for linger x its load time.")
    inertia: Rate = Field(default=1.5, description="What must be gained to displace a model, as a factor.")
    weights: WeightsTable = Field(default=WeightsTable(), description="What a waiting request weighs.")
    parallel_loads: int = Field(
        default=1, ge=1, le=limits.PARALLEL_LOADS_MAX, description="Loads at a time on the whole machine."
    )


class LaneTable(Table):
    """A queue with a policy. The lane `default` always exists."""

    work_class: Literal["interactive", "normal", "background"] = Field(
        default="interactive",
        alias="class",
        description="Who waits for the answer; a higher class is served first.",
    )
    policy: Literal["fifo", "priority", "latest-wins"] = Field(
        default="fifo",
        description="Within the lane: in order of arrival; by the priority that a caller asks for, then arrival; "
        "or latest-wins: of those who wait only the newest ever runs, and the others are told at once.",
    )
    priority: Priority | None = Field(default=None, description="Of its requests; the model's otherwise.")
    max_wait: Duration | None = Field(
        default=None, ge=1, description="From arrival to start: 2m in an interactive lane, 15m in another."
    )
    timeout: Duration | None = Field(
        default=None, ge=1, description="From start to end: 10m, or 45s in a lane with a fallback."
    )
    queue_max: int = Field(
        default=256, ge=1, le=limits.QUEUE_LEN_MAX, description="Requests that may wait in it."
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="How many of its requests may run at once, on all models together."
    )
    fallback: LaneText | None = Field(
        default=None,
        description="The text to answer with when a model cannot; {summary} is what the caller asked, in one line.",
        examples=["I notice {summary}."],
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )


class JournalTable(Table):
    """Where decisions are written down. Watchbill writes these files, so they are relative to its root."""

    markdown: Line = Field(default="queue_log.md", description="The journal for people.")
    events: Line = Field(default="events.jsonl", description="The same for programs.")


class AlertsTable(Table):
    """Where alerts go beside the journal and the log."""

    command: Line | None = Field(
        default=None, description="A command that gets the alert's text.", examples=["notify-send"]
    )
    webhook: Url | None = Field(
        default=None, description="An address that gets it as JSON.", examples=["http://127.0.0.1:9999/"]
    )


class Document(Table):
    """A whole config file."""

    server: ServerTable = Field(default=ServerTable(), description="Where the gateway listens.")
    devices: dict[str, DeviceTable] = Field(default={}, description="Memory domains.")
    engines: dict[PlainName, EngineTable] = Field(default={}, description="Programs that host models.")
    models: dict[ModelName, ModelTable] = Field(default={}, description="Models.")
    sets: dict[PlainName, SetTable] = Field(default={}, description="Models needed together.")
    lanes: dict[PlainName, LaneTable] = Field(default={}, description="Queues.")
    policy: PolicyTable = Field(default=PolicyTable(), description="How residency decides.")
    rotation: RotationTable = Field(default=RotationTable(), description="Background rotation.")
    epochs: dict[PlainName, EpochTable] = Field(default={}, description="Windows for ingestion work.")
    journal: JournalTable = Field(default=JournalTable(), description="Where decisions are written down.")
    alerts: AlertsTable = Field(default=AlertsTable(), description="Where alerts go.")
    spool: dict[PlainName, SpoolTable] = Field(default={}, description="Durable queues of plain files.")
    process: dict[PlainName, ProcessTable] = Field(default={}, description="Types of work for POST /process.")


#: Every table by its place in the file; "*" is a name that the operator chooses.
TABLES: dict[tuple[str, ...], type[Table]] = {
    (): Document,
    ("server",): ServerTable,
    ("server", "keys", "*"): KeyTable,
    ("devices", "*"): DeviceTable,
    ("devices", "*", "reservation"): ReservationTable,
    ("engines", "*"): EngineTable,
    ("models", "*"): ModelTable,
    ("models", "*", "script"): ScriptTable,
    ("models", "*", "background"): BackgroundTable,
    ("sets", "*"): SetTable,
    ("lanes", "*"): LaneTable,
    ("policy",): PolicyTable,
    ("policy", "weights"): WeightsTable,
    ("rotation",): RotationTable,
    ("epochs", "*"): EpochTable,
    ("journal",): JournalTable,
    ("alerts",): AlertsTable,
    ("spool", "*"): SpoolTable,
    ("process", "*"): ProcessTable,
}
