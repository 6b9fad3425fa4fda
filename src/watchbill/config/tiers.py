"""`[tiers.NAME]` and `[routing]`: where a request may run beside this machine, what that costs, and in which order.

A burst tier is a machine or container that a command starts on demand; an external tier is any OpenAI-compatible
address. The models that a tier serves become models of the catalog: a copy `big@cloud` for each model `big` of this
machine, or `big` itself where this machine has none. An external tier is off until it is enabled, and always has a
daily limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from watchbill import catalog, limits
from watchbill.catalog import LOCAL_SITE, Tier
from watchbill.config.checks import Draft, Wrong, did_you_mean
from watchbill.config.engines import check_address
from watchbill.config.models import HttpPath, ModelTable
from watchbill.config.server import KeyText, check_secret, secret_of, variable_of
from watchbill.config.values import Count, Duration, Line, ModelName, PlainName, Table, Url
from watchbill.toml import KeyPath
from watchbill.units import Millis

__all__ = [
    "Offered", "RoutingTable", "TierTable", "add_tiers", "build_routing", "build_tier", "check_offered", "check_tiers",
    "copy_name", "engine_name", "key_variables_of", "settle_routing",
]  # fmt: skip

# ------------------------------------------------------------------ the tables


def _read_models(value: object) -> object:
    """A list means the same names there."""
    if not isinstance(value, list):
        return value
    names = cast("list[object]", value)
    return {name: name for name in names if isinstance(name, str)} if _are_texts(names) else names


def _are_texts(names: list[object]) -> bool:
    return all(isinstance(name, str) for name in names)


Offered = Annotated[
    dict[ModelName, Line],
    BeforeValidator(_read_models),
    WithJsonSchema(
        {
            "type": ["array", "object"],
            "items": {"type": "string"},
            "additionalProperties": {"type": "string"},
            "description": "names of models, or a table from the name here to the name there",
        }
    ),
]
Money = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False, strict=False)]


class TierTable(Table):
    """A burst tier, which a command starts on demand, or an external one, which others run for money."""

    kind: Literal["burst", "external"] = Field(
        description="burst: started and stopped by commands; external: an address that is always there.",
        examples=["external"],
    )
    url: Url = Field(
        description="Its OpenAI-compatible address.",
        examples=["http://10.0.0.7:8470", "https://api.example.com/v1"],
    )
    key: KeyText | None = Field(
        default=None,
        description='The key that it asks for, or "env:NAME" to read it from $NAME.',
        examples=["env:CLOUD_KEY"],
    )
    models: Offered = Field(
        description='The models that it serves: a list, or a table such as { big = "gpt-large" } from the name here '
        "to the name there.",
        examples=[["big"]],
    )
    enabled: bool | None = Field(
        default=None,
        description="Whether requests may go there; an external tier must be enabled, a burst tier is.",
    )
    concurrency: Count = Field(default=4, description="Requests for each of its models at a time.")
    start: Line | None = Field(
        default=None,
        description="burst: the command that starts it. It returns; `health` says when the machine is there.",
        examples=["docker start burst"],
    )
    stop: Line | None = Field(
        default=None, description="burst: the command that stops it.", examples=["docker stop burst"]
    )
    idle: Duration | None = Field(
        default=None,
        ge=1_000,
        description="burst: stopped after this long without use, and never while it answers; 10m otherwise.",
    )
    start_timeout: Duration | None = Field(
        default=None, ge=1_000, description="burst: a start fails after this; 10m otherwise."
    )
    health: HttpPath | None = Field(
        default=None, description="burst: the path that answers 200 when it is there; /health otherwise."
    )
    price_hour: Money | None = Field(default=None, description="burst: what an hour of it costs.")
    price_in: Money | None = Field(
        default=None, description="external: what a million tokens of prompts cost.", examples=[0.15]
    )
    price_out: Money | None = Field(
        default=None, description="external: what a million tokens of answers cost.", examples=[0.6]
    )
    daily: Money | None = Field(
        default=None,
        description="At most so much a day (UTC), in the currency of the prices; an external tier needs it.",
        examples=[5.0],
    )


class RoutingTable(Table):
    """The routing rule: which of this machine and its tiers serves a request. The first that can, in this order."""

    order: tuple[PlainName, ...] | None = Field(
        default=None,
        strict=False,
        description='The order in which they are asked; "local" is this machine. Otherwise local, then peers, '
        "then burst tiers, then external ones, as they stand in the file.",
        examples=[["local", "box", "cloud"]],
    )
    after: Duration | None = Field(
        default=None,
        description="A request that would wait longer than this here goes to the next that starts it sooner; "
        "without it only a request that would be refused here does.",
        examples=["20s"],
    )


# ------------------------------------------------------------------ defaults

#: SPOOL-09.
IDLE = Millis(600_000)
START_TIMEOUT = Millis(600_000)
_BURST_KEYS = frozenset({"start", "stop", "idle", "start_timeout", "health", "price_hour"})
_EXTERNAL_KEYS = frozenset({"price_in", "price_out"})


def settle_routing(
    table: RoutingTable, tiers: Mapping[str, TierTable], peers: Sequence[str] = ()
) -> RoutingTable:
    """The same table with its order."""
    if table.order is not None:
        return table
    named = {name: tier.kind for name, tier in tiers.items() if name != LOCAL_SITE}
    bursts = [name for name, kind in named.items() if kind == "burst"]
    externals = [name for name, kind in named.items() if kind == "external"]
    return table.model_copy(update={"order": (LOCAL_SITE, *peers, *bursts, *externals)})


# ------------------------------------------------------------------ checks


def check_tiers(
    tiers: Mapping[str, TierTable],
    routing: RoutingTable,
    models: Mapping[str, ModelTable],
    peers: Sequence[str],
    draft: Draft,
) -> Iterator[Wrong]:
    """Tiers that cannot be reached or paid for, keys of the other kind, and an order that names no tier."""
    for name, table in tiers.items():
        yield from _check_tier(draft, name, table, models)
    known = [LOCAL_SITE, *peers, *draft.names("tiers")]
    order = routing.order or ()
    for place, name in enumerate(order):
        path = ("routing", "order", place)
        if name not in known:
            yield path, f"there is no tier or peer {name}", did_you_mean(name, known) or f"add [tiers.{name}]"
        elif name in order[:place]:
            yield path, f"names {name} twice", "remove one"
    if draft.is_sound("routing") and "order" in draft.keys_at("routing"):
        for name in [each for each in known if each not in order]:
            text = f"leaves out {name}, so that nothing would ever be served there"
            yield (
                ("routing", "order"),
                text,
                "add it, or remove its table" if name != LOCAL_SITE else "add it",
            )


def _check_tier(
    draft: Draft, name: str, table: TierTable, models: Mapping[str, ModelTable]
) -> Iterator[Wrong]:
    path, said = ("tiers", name), draft.keys_at("tiers", name)
    if name == LOCAL_SITE:
        yield path, "local is this machine", "choose another name"
    foreign = _EXTERNAL_KEYS if table.kind == "burst" else _BURST_KEYS
    for key in sorted(foreign & said):
        yield (*path, key), f"means nothing for a tier of kind {table.kind}", "remove it"
    if table.kind == "burst":
        for key in [key for key in ("start", "stop") if key not in said]:
            yield (
                (*path, key),
                "is missing; a burst tier is started and stopped by commands",
                f'add {key} = "..."',
            )
    elif "daily" not in said:
        yield (
            (*path, "daily"),
            "is missing; an external tier costs money",
            "add daily = 5.0, or what a day may cost",
        )
    if table.daily is not None and not any((table.price_hour, table.price_in, table.price_out)):
        hint = "add price_hour" if table.kind == "burst" else "add price_in and price_out"
        yield (*path, "daily"), "cannot be kept without a price", hint
    if not table.models:
        yield (
            (*path, "models"),
            "is empty, so that nothing would ever be served there",
            'write models = ["NAME"]',
        )
    yield from check_offered(path, name, table.models, models)
    yield from check_address((*path, "url"), table.url)
    if table.key is not None and (table.enabled or table.kind == "burst"):
        yield from check_secret((*path, "key"), table.key, draft.environment)


def check_offered(
    path: KeyPath, site: str, offered: Mapping[str, str], models: Mapping[str, ModelTable]
) -> Iterator[Wrong]:
    """Names of copies that are taken, or too long."""
    for model in offered:
        copy = copy_name(model, site)
        if copy in models:
            yield ("models", copy), f"is the name of the copy of {model} at {site}", "choose another name"
        elif len(copy) > limits.MODEL_NAME_CHARS_MAX:
            yield (*path, "models", model), f"with @{site} it is too long a name", "choose a shorter one"


# ------------------------------------------------------------------ the catalog's records

#: Begins the names of engines of tiers: no table of the file can have such a name.
_MARK = "@"


def engine_name(site: str) -> str:
    """The name of a site's engine."""
    return f"{_MARK}{site}"


def copy_name(model: str, site: str) -> str:
    """The name of a model's copy at a site."""
    return f"{model}@{site}"


def key_variables_of(tiers: Mapping[str, TierTable]) -> set[str]:
    """The environment variables that hold keys: no engine gets them."""
    return {name for table in tiers.values() if table.key and (name := variable_of(table.key))}


def build_tier(name: str, table: TierTable) -> catalog.TierRules:
    """The record of a table that was found right."""
    return catalog.TierRules(
        name,
        Tier(table.kind),
        enabled=table.kind == "burst" if table.enabled is None else table.enabled,
        price_hour=table.price_hour or 0.0,
        price_in=table.price_in or 0.0,
        price_out=table.price_out or 0.0,
        daily=table.daily,
    )


def build_routing(table: RoutingTable) -> catalog.RoutingRules:
    """The record of a table that was settled and found right."""
    return catalog.RoutingRules(table.order or (LOCAL_SITE,), table.after)


def add_tiers(
    tiers: Mapping[str, TierTable],
    order: tuple[str, ...],
    engines: dict[str, catalog.EngineRules],
    models: dict[str, catalog.Model],
    environment: Mapping[str, str],
) -> None:
    """Adds the engine of each tier and the models that it serves: copies, or models that are nowhere nearer."""
    for name in [name for name in order if name in tiers]:
        table = tiers[name]
        engine = _engine_of(name, table, environment)
        engines[engine.name] = engine
        for asked, there in table.models.items():
            of_here = models.get(asked)
            placed = copy_name(asked, name) if of_here is not None else asked
            models[placed] = _model_of(placed, there, table, engine, of_here)


def _engine_of(name: str, table: TierTable, environment: Mapping[str, str]) -> catalog.EngineRules:
    """The engine of a tier. No table of the file can have its name."""
    is_burst = table.kind == "burst"
    return catalog.EngineRules(
        engine_name(name),
        "burst" if is_burst else "remote",
        url=table.url,
        shared=not is_burst,
        key=secret_of(table.key, environment) if table.key else "",
        start=table.start,
        stop=table.stop,
    )


def _model_of(
    name: str, there: str, table: TierTable, engine: catalog.EngineRules, of_here: catalog.Model | None
) -> catalog.Model:
    return catalog.Model(
        name,
        engine.name,
        source=there,
        devices=(),
        shared=engine.shared,
        priority=3 if of_here is None else of_here.priority,
        concurrency=table.concurrency,
        idle_ms=table.idle or IDLE,
        load_timeout_ms=table.start_timeout or START_TIMEOUT,
        health=table.health or "/health",
        probe="none",
        embedding=False if of_here is None else of_here.embedding,
        private=False if of_here is None else of_here.private,
        writes_here=False,
        where=Tier(table.kind),
        site=engine.name.removeprefix(_MARK),
        copy_of=None if of_here is None else of_here.name,
    )
