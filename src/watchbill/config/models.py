"""`[models.NAME]`: what a model is, what it needs, and how long it stays.

Which keys a model may have depends on the driver of its engine (`engines`). Sizes are declared for each device; without
them they are predicted and measured.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from watchbill import catalog, names, units
from watchbill.catalog import RAM
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong, unknown
from watchbill.config.devices import is_device_name
from watchbill.config.engines import (
    DRIVERS,
    MODEL_KEYS,
    EngineTable,
    available_drivers,
    check_address,
    no_driver,
)
from watchbill.config.keys import keys_of
from watchbill.config.request_fields import FieldName, RequestFields, build_rules
from watchbill.config.rotation import BackgroundTable, build_background, check_task
from watchbill.config.values import (
    ENV_NAME,
    HIDDEN,
    SIZE_SCHEMA,
    Count,
    Duration,
    Line,
    Masked,
    ModelName,
    PlainName,
    Priority,
    Rate,
    Size,
    Table,
    Url,
    Written,
    passing,
    read_size,
    refused,
)
from watchbill.errors import NameRefused
from watchbill.quoting import quoted
from watchbill.suggest import did_you_mean
from watchbill.toml import KeyPath
from watchbill.units import Bytes, Millis

__all__ = [
    "FAILURES", "ModelTable", "ScriptTable", "build_model", "check_models", "idle_of", "memory_of", "settle_model",
]  # fmt: skip

# ------------------------------------------------------------------ kinds of value

#: What the scripted engine can be told to do wrong; its own module says what each one shows.
FAILURES = (
    "crash-on-load", "hang-on-load", "healthy-but-silent", "crash-before-first-byte", "crash-after-first-byte",
    "hang-before-first-byte", "hang-mid-stream", "hang-late-in-stream", "http-500", "bad-frames",
    "ignore-term", "fork-and-exit",
)  # fmt: skip
#: Names of variables whose values must not appear in a bug report.
_SECRET = re.compile("key|token|secret|pass|credential|auth", re.IGNORECASE)


def _read_memory(value: object) -> Bytes | dict[str, Bytes]:
    if not isinstance(value, dict):
        return read_size(value)
    sizes: dict[str, Bytes] = {}
    for device, size in cast("dict[str, object]", value).items():
        if not is_device_name(device):
            raise refused(f"{quoted(device)} is not a device", 'write ram or for example "gpu:0"', at=device)
        try:
            sizes[device] = read_size(size)
        except PydanticCustomError as error:
            context = error.context or {}
            raise refused(str(context["text"]), str(context["hint"]), at=device) from error
    return sizes


def _read_failures(value: object) -> tuple[str, ...]:
    given = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    for failure in given:
        if failure not in FAILURES:
            hint = did_you_mean(str(failure), list(FAILURES))
            raise refused(f"{quoted(str(failure))} is not a failure that can be scripted", hint)
    return tuple(map(str, given))


def _check_device(text: str) -> str:
    if not is_device_name(text):
        raise refused(f"{quoted(text)} is not a device", "write ram, gpu:0, gpu:1 and so on")
    return text


def _check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise refused("must not be empty", "write at least one, or leave the key out")
    return values


def _check_http_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise refused(f"{quoted(text)} is not the path of an address", "write for example /health")
    return text


def _check_env_name(text: str) -> str:
    if not ENV_NAME.fullmatch(text):
        raise refused(f"{quoted(text)} cannot name an environment variable", "use letters, digits and _")
    return text


def _mask_secrets(variables: object) -> object:
    given = cast("dict[str, str]", variables)
    return {name: HIDDEN if _SECRET.search(name) else text for name, text in given.items()}


Memory = Annotated[
    Bytes | dict[str, Bytes],
    BeforeValidator(_read_memory),
    WithJsonSchema(
        {"anyOf": [SIZE_SCHEMA, {"type": "object", "additionalProperties": SIZE_SCHEMA}]},
    ),
    Written(units.spell_bytes),
]
Failures = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_failures),
    WithJsonSchema(
        {"anyOf": [{"enum": [*FAILURES]}, {"type": "array", "items": {"enum": [*FAILURES]}}]},
    ),
]
DeviceNames = Annotated[
    tuple[Annotated[str, AfterValidator(_check_device)], ...],
    Field(strict=False),
    AfterValidator(_check_not_empty),
]
HttpPath = Annotated[str, AfterValidator(_check_http_path)]
UnitName = Annotated[str, passing(names.check_unit_name)]
EnvName = Annotated[str, AfterValidator(_check_env_name)]
Environment = Annotated[dict[EnvName, str], Masked(_mask_secrets)]
Portion = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# ------------------------------------------------------------------ the tables


class ScriptTable(Table):
    """How a model of the scripted engine behaves: for tests, demos and trying a config."""

    load: Duration = Field(default=Millis(0), description="Until it is healthy.")
    wake: Duration = Field(default=Millis(0), description="Until it is back from sleep.")
    service: Duration = Field(default=Millis(0), description="A whole answer.")
    linger: Duration = Field(
        default=Millis(0), description="It continues this long for a client that has left."
    )
    tokens: int = Field(default=8, ge=1, le=1_000_000, description="Words of an answer.")
    text: str = Field(default="", description="The words; the model's name otherwise.")
    memory: Size = Field(default=Bytes(0), description="Really occupied, unless touch = false.")
    touch: bool = Field(default=True, description="Occupy the memory.")
    concurrency: Count | None = Field(default=None, description="Slots; the model's otherwise.")
    jitter: Portion = Field(default=0.0, description="Durations vary by this share.")
    seed: int = Field(default=1, description="Of the variation: the same seed gives the same durations.")
    fail: Failures = Field(default=(), description="How it misbehaves: one failure or a list of them.")
    fail_times: int = Field(default=0, ge=0, description="How many times it fails; 0 is always.")


class ModelTable(Table):
    """A model: what it is, what it needs, and how long it stays."""

    engine: PlainName = Field(description="An engine's name, or a driver's.", examples=["llamacpp"])
    source: Line | None = Field(
        default=None,
        description="The model's file, beside the config file or in ROOT/models; for ollama and remote its name there.",
        examples=["models/big.gguf"],
    )
    served_as: Line | None = Field(
        default=None,
        description="The name that its program knows it by, where that is not the model's: what the program is asked "
        "for.",
        examples=["vendor/big-120b"],
    )
    memory: Memory | None = Field(
        default=None,
        description='What it occupies, or a table such as { "gpu:0" = "9GB" }; predicted and measured otherwise.',
        examples=["4.6GB"],
    )
    devices: DeviceNames | None = Field(
        default=None,
        strict=False,
        description='The devices it needs; those of `memory`, else for a GGUF file a card with room, else ["ram"].',
    )
    aliases: tuple[ModelName, ...] = Field(
        default=(), strict=False, description="Further names it answers to."
    )
    permanent: bool = Field(default=False, description="Loaded at start, and stays.")
    priority: Priority = Field(default=3, description="1 is served first, 5 last, within a class.")
    concurrency: Count = Field(default=1, description="Requests at a time; 1 is one after the other.")
    inertia: Rate | None = Field(
        default=None, description="How hard it is to displace, as a factor; the policy's otherwise."
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
        description="Sleeps after this long without use: its process stays without its weights, and it is back sooner. "
        "llama.cpp does so by itself; others get POST /sleep and /wake_up, also in place of an eviction.",
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
        default=False, description="Requests for it are never served by a smaller model of its family."
    )
    context: int = Field(
        default=4096, ge=16, le=limits.CONTEXT_TOKENS_MAX, description="Tokens of context for each request."
    )
    threads: int = Field(
        default=0, ge=0, le=limits.THREADS_MAX, description="CPU threads; 0 lets the engine decide."
    )
    mmap: bool = Field(default=False, description="Map the file instead of reading it into memory.")
    embedding: bool = Field(default=False, description="Serves embeddings instead of chat.")
    abilities: tuple[Literal["tools", "vision", "audio", "thinking", "insert"], ...] | None = Field(
        default=None,
        strict=False,
        description="What it can do beside text: tools, vision, audio, thinking, insert, and nothing else of these; "
        "found out where that is possible otherwise.",
        examples=[["tools", "thinking"]],
    )
    prompt_cache: Size = Field(
        default=Bytes(0), description="Memory for prompts that are kept between requests."
    )
    load_timeout: Duration | None = Field(
        default=None,
        ge=1,
        description="A load fails after this; otherwise after 3 x the learned load time, and never before 10 s "
        "or the time that a slow disk needs for its size.",
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
    env: Environment = Field(default={}, description="Environment variables of its process.")
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
        description="If it uses more than this on one device, it is restarted; 1.15 x its size otherwise.",
        examples=["6GB"],
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )
    private: bool = Field(
        default=False, description="Requests for it are private: they are never sent to an external tier."
    )
    set_fields: RequestFields = Field(
        default={},
        description="Fields of every request for it, whatever its caller sends. An Ollama that is asked in its own "
        "protocol gets its requests as they are.",
        examples=[{"temperature": 0.6}],
    )
    drop_fields: tuple[FieldName, ...] = Field(
        default=(), strict=False, description="Fields that its engine never gets.", examples=[["top_k"]]
    )
    set_fields_by_name: dict[ModelName, RequestFields] = Field(
        default={},
        description="Further fields for callers that use one of its aliases, or its own name.",
        examples=[{"big:high": {"reasoning_effort": "high"}}],
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


# ------------------------------------------------------------------ defaults

#: RES-07: how long a model stays without use.
IDLE = Millis(300_000)


def settle_model(table: ModelTable) -> ModelTable:
    """The same table with its devices. They count as said only where the file says them, or a size for each."""
    settled = table.model_copy(update={"devices": _devices_of(table)})
    if table.devices is None and not isinstance(table.memory, dict):
        settled.model_fields_set.discard("devices")
    return settled


def memory_of(table: ModelTable) -> dict[str, Bytes]:
    """What a model declares for each device; empty when it leaves that to prediction and measurement."""
    if table.memory is None and table.script is not None and table.script.memory:
        return _by_device(table, table.script.memory)
    return _by_device(table, table.memory)


def asleep_of(table: ModelTable) -> dict[str, Bytes]:
    """What a model declares to keep on each device when it sleeps."""
    return _by_device(table, table.asleep)


def idle_of(table: ModelTable) -> Millis:
    """How long a model stays without use."""
    return IDLE if table.idle is None else table.idle


def _by_device(table: ModelTable, size: Bytes | dict[str, Bytes] | None) -> dict[str, Bytes]:
    """One size means the first device."""
    if size is None or isinstance(size, dict):
        return size or {}
    return {_devices_of(table)[0]: size}


def _devices_of(table: ModelTable) -> tuple[str, ...]:
    """The devices a model needs: as said, else those of its memory table, else the machine's memory."""
    if table.devices is not None:
        return table.devices
    return tuple(table.memory) if isinstance(table.memory, dict) and table.memory else (RAM,)


# ------------------------------------------------------------------ checks

#: Keys of a model that only mean something when Watchbill manages it.
_MANAGED = frozenset({"permanent", "memory", "devices", "group", "inertia", "idle", "load_timeout", "quota"})


def check_models(
    models: Mapping[str, ModelTable],
    engines: Mapping[str, EngineTable],
    devices: Collection[str],
    draft: Draft,
) -> Iterator[Wrong]:
    """Everything that is wrong about single models, their names and their places in a family."""
    for name, table in models.items():
        yield from _check_engine_of(draft, name, table, engines)
        yield from check_address(("models", name, "url"), table.url)
        yield from _check_devices_of(draft, name, table, devices)
        yield from _check_sleep(("models", name), table)
        yield from _check_source(draft, name, table)
        if table.background is not None:
            path = ("models", name, "background")
            yield from check_task(path, table.background, is_embedding=table.embedding)
    yield from _check_names(draft, models)
    yield from _check_family_ranks(draft, models)


def _check_engine_of(
    draft: Draft, name: str, table: ModelTable, engines: Mapping[str, EngineTable]
) -> Iterator[Wrong]:
    path = ("models", name)
    engine = engines.get(table.engine)
    if engine is None and not draft.knows("engines", table.engine):
        yield from _check_driver_as_engine(draft, (*path, "engine"), table.engine)
    driver_name = engine.driver if engine else table.engine
    driver = DRIVERS.get(driver_name)
    if driver is not None:
        yield from _check_driver_keys(path, draft.keys_at(*path), driver_name)
    if engine is not None and (engine.shared or (driver is not None and driver.is_shared)):
        for key in sorted(_MANAGED & draft.keys_at(*path)):
            text = f"the engine {table.engine} is shared, so Watchbill does not manage it"
            yield (*path, key), text, "remove it"


#: Programs that people take for an engine; the driver `process` runs each of them.
_PROGRAMS = frozenset(
    {"exllamav2", "exllamav3", "infinity", "koboldcpp", "llama-server", "lmdeploy", "mlx", "sglang", "tabbyapi",
     "tei", "tgi", "transformers", "vllm", "whisper", "whisper-server"}
)  # fmt: skip


def _check_driver_as_engine(draft: Draft, path: KeyPath, name: str) -> Iterator[Wrong]:
    """An engine without a table is a driver that needs none."""
    driver = DRIVERS.get(name)
    if driver is None and name.casefold() in _PROGRAMS:
        hint = f'write engine = "process" and command = "{name} ... --port ${{PORT}}"'
        yield path, f"there is no engine {name}", hint
    elif driver is None:
        yield unknown(path, "engine", name, [*draft.names("engines"), *available_drivers()])
    elif not driver.is_available:
        yield path, *no_driver(name)
    elif driver.needs_url:
        yield path, "needs an address", f'add [engines.{name}] with driver = "{name}" and url = ...'


def _check_driver_keys(path: KeyPath, said: Set[str], name: str) -> Iterator[Wrong]:
    driver = DRIVERS[name]
    for key in sorted((driver.needs | driver.declares) - said):
        yield (*path, key), f"is missing; the driver {name} needs it", f"add {key} = ..."
    for key in sorted((MODEL_KEYS - driver.needs - driver.reads) & said):
        yield (*path, key), f"the driver {name} does not read it", "remove it"


def _check_devices_of(draft: Draft, name: str, table: ModelTable, known: Collection[str]) -> Iterator[Wrong]:
    path, devices = ("models", name), table.devices or ()
    said = "devices" in draft.keys_at(*path)
    for place, device in enumerate(devices):
        if not draft.knows("devices", device) and device not in known:
            at = (*path, "devices", place) if said else (*path, "memory", device)
            yield at, f"there is no device {device}", f'add [devices."{device}"] with its capacity'
        if device in devices[:place]:
            yield (*path, "devices", place), f"names {device} twice", "remove one"
    if isinstance(table.memory, dict):
        for device in sorted(set(table.memory) ^ set(devices)):
            side = "has no memory here" if device in devices else "is not among its devices"
            yield (*path, "memory"), f"{device} {side}", "name the same devices in memory and devices"
    elif table.memory is not None and len(devices) > 1:
        example = ", ".join(f'"{device}" = ...' for device in devices)
        yield (*path, "memory"), "one size for several devices", f"write memory = {{ {example} }}"


def _check_sleep(path: KeyPath, table: ModelTable) -> Iterator[Wrong]:
    if table.sleep is not None and table.permanent:
        yield (*path, "sleep"), "a permanent model stays warm", "remove one of the two"
    if table.asleep is not None and table.sleep is None:
        yield (*path, "asleep"), "means nothing without sleep", 'add sleep = "2m"'
    for device in sorted(set(asleep_of(table)) - set(table.devices or ())):
        yield (*path, "asleep"), f"{device} is not among its devices", "name the devices of its memory"
    if table.sleep is not None and table.idle is not None and table.idle <= table.sleep:
        yield (*path, "sleep"), "it leaves before it sleeps", "make sleep shorter than idle"


def _check_source(draft: Draft, name: str, table: ModelTable) -> Iterator[Wrong]:
    if table.source is None:
        return
    try:
        names.operator_path(draft.base, table.source)
    except NameRefused as error:
        yield ("models", name, "source"), error.what, error.hint


def _check_names(draft: Draft, models: Mapping[str, ModelTable]) -> Iterator[Wrong]:
    """`foo` and `foo:latest` are one name, so they may not be two models."""
    owners: dict[str, str] = {}
    for name in draft.names("models"):
        first = owners.setdefault(name.removesuffix(":latest"), name)
        if first != name:
            yield ("models", name), f"is the same name as {first}", "rename one"
    taken = frozenset(owners)
    for name, table in models.items():
        for place, alias in enumerate(table.aliases):
            plain, path = alias.removesuffix(":latest"), ("models", name, "aliases", place)
            if plain in taken:
                yield path, f"{alias} is already the name of a model", "choose another alias"
            elif plain in owners:
                yield path, f"{alias} is already an alias of {owners[plain]}", "remove one of them"
            else:
                owners[plain] = name
        for used in sorted(set(table.set_fields_by_name) - {name, *table.aliases}):
            path = ("models", name, "set_fields_by_name", used)
            yield path, f"{used} is no name of this model", f'add it: aliases = ["{used}"]'


def _check_family_ranks(draft: Draft, models: Mapping[str, ModelTable]) -> Iterator[Wrong]:
    owners: dict[tuple[str, int], str] = {}
    for name, table in models.items():
        if table.tier is None:
            continue
        if table.family is None:
            if draft.is_sound("models", name):
                yield ("models", name, "tier"), "means nothing without a family", 'add family = "NAME"'
        elif (first := owners.setdefault((table.family, table.tier), name)) != name:
            yield (
                ("models", name, "tier"),
                f"{first} has this place in the family {table.family}",
                "choose another",
            )


# ------------------------------------------------------------------ the catalog's record


def build_model(
    name: str, table: ModelTable, engine: catalog.EngineRules, base: Path, root: Path | None = None
) -> catalog.Model:
    """The record of a table that was settled and found right, on the engine that it names."""
    source = table.source
    if source is not None and DRIVERS[engine.driver].source_is_path:
        source = str(_find_source(base, root, source))
    return catalog.Model(
        name,
        table.engine,
        source=source,
        served_as=table.served_as,
        memory=MappingProxyType(memory_of(table)),
        devices=table.devices or (RAM,),
        is_placed="devices" in table.model_fields_set or engine.driver != "llamacpp",
        aliases=table.aliases,
        permanent=table.permanent,
        shared=engine.shared,
        priority=table.priority,
        concurrency=table.concurrency,
        inertia=table.inertia,
        idle_ms=idle_of(table),
        stays_if_room=table.idle is None and not engine.shared,
        group=table.group,
        family=table.family,
        family_rank=table.tier,
        exact=table.exact,
        context=table.context,
        threads=table.threads,
        mmap=table.mmap,
        embedding=table.embedding,
        abilities=None if table.abilities is None else frozenset(table.abilities),
        prompt_cache=table.prompt_cache,
        load_timeout_ms=table.load_timeout,
        command=table.command,
        health=table.health,
        stop=table.stop,
        probe=table.probe,
        env=MappingProxyType(table.env),
        arguments=table.arguments,
        script=MappingProxyType(_script(table.script)),
        background=build_background(table.background),
        sleep_ms=table.sleep,
        sleeps_when_told=DRIVERS[engine.driver].sleeps_when_told and table.sleep is not None,
        asleep=MappingProxyType(asleep_of(table)),
        writes_here=DRIVERS[engine.driver].writes_here,
        quota=table.quota,
        capture=table.capture,
        url=table.url,
        unit=table.unit,
        image=table.image,
        private=table.private,
        requests=build_rules(table.set_fields, table.drop_fields, table.set_fields_by_name),
    )


def _find_source(base: Path, root: Path | None, text: str) -> Path:
    """The file of a source: beside the config, else below the root and in its models folder, where `pull` puts it."""
    beside = names.operator_path(base, text)
    if root is None or Path(text).expanduser().is_absolute() or os.path.exists(beside):
        return beside
    pulled = (names.operator_path(folder, text) for folder in (root, root / "models"))
    return next((place for place in pulled if os.path.exists(place)), beside)


def _script(table: ScriptTable | None) -> dict[str, object]:
    """The script as its engine reads it: sizes and durations with their units, as the operator writes them."""
    said: dict[str, object] = table.model_dump(exclude_none=True) if table is not None else {}
    for key in keys_of(ScriptTable).values():
        value = said.get(key.name)
        if key.writer is not None and isinstance(value, int):
            said[key.name] = key.writer(value)
        elif isinstance(value, tuple):
            said[key.name] = list(cast("tuple[object, ...]", value))
    return said
