"""`[peers.NAME]`: other Watchbill machines, which serve requests of this one or have theirs served here (RES-23).

A peer has a key each way: `key` is shown there, `their_key` is shown here. The models that it serves become models of
the catalog as those of tiers do: copies such as `big@rig`, or `big` itself where this machine has none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import Field

from watchbill import catalog
from watchbill.catalog import LEASED_LANE, LOCAL_SITE, Tier
from watchbill.config.checks import Draft, Wrong
from watchbill.config.engines import check_address
from watchbill.config.models import ModelTable
from watchbill.config.server import KeyTable, KeyText, check_secret, secret_of, variable_of
from watchbill.config.tiers import Offered, check_offered, copy_name, engine_name
from watchbill.config.values import Count, ModelName, Table, Url
from watchbill.units import Millis

__all__ = [
    "PeerTable",
    "add_peers",
    "build_peer_keys",
    "build_peer_lanes",
    "check_peers",
    "peer_variables_of",
]


class PeerTable(Table):
    """Another Watchbill machine. It serves requests of this one, has requests served here, or both."""

    url: Url | None = Field(
        default=None,
        description="Its address, where it serves requests of this machine.",
        examples=["http://10.0.0.8:8470"],
    )
    key: KeyText | None = Field(
        default=None,
        description='The key that this machine shows there, or "env:NAME".',
        examples=["env:RIG_KEY"],
    )
    their_key: KeyText | None = Field(
        default=None,
        description='The key that it shows here, or "env:NAME"; without it nothing is served to it.',
        examples=["env:RIG_SHOWS"],
    )
    their_old_key: KeyText | None = Field(
        default=None,
        description="A second key that it may show here, while the first one is being changed.",
        examples=["env:RIG_SHOWED"],
    )
    models: Offered = Field(
        default={},
        description="The models that it serves for this machine: a list, or a table from the name here to that there.",
        examples=[["big"]],
    )
    concurrency: Count = Field(
        default=2, description="Requests of this machine that it has for a model at a time."
    )
    lends: tuple[ModelName, ...] | None = Field(
        default=None,
        strict=False,
        description="The models of this machine that it may use; all that are not private otherwise.",
        examples=[["small"]],
    )
    requests_max: int = Field(
        default=2, ge=1, le=1024, description="Its requests that run here at a time; more wait here."
    )


#: How long a lease is kept without a request.
IDLE = Millis(60_000)
START_TIMEOUT = Millis(30_000)


def check_peers(
    peers: Mapping[str, PeerTable],
    tiers: Mapping[str, object],
    models: Mapping[str, ModelTable],
    keys: Mapping[str, KeyTable],
    draft: Draft,
) -> Iterator[Wrong]:
    """Peers that cannot be reached, keys that cannot be used, and models that are not there."""
    owners = {secret_of(table.key, draft.environment): name for name, table in keys.items()}
    for name, table in peers.items():
        yield from _check_peer(draft, name, table, models)
        if name == LOCAL_SITE or name in tiers:
            what = "local is this machine" if name == LOCAL_SITE else "is the name of a tier, too"
            yield ("peers", name), what, "choose another name"
        for place, key in (("their_key", table.their_key), ("their_old_key", table.their_old_key)):
            secret = "" if key is None else secret_of(key, draft.environment)
            if secret and owners.setdefault(secret, name) != name:
                yield (
                    ("peers", name, place),
                    f"is the same key as {owners[secret]}'s",
                    "give each a key of its own",
                )


def _check_peer(
    draft: Draft, name: str, table: PeerTable, models: Mapping[str, ModelTable]
) -> Iterator[Wrong]:
    path, said = ("peers", name), draft.keys_at("peers", name)
    if table.url is None and table.their_key is None and draft.is_sound("peers", name):
        yield path, "neither serves this machine nor is served by it", "add url and key, or their_key"
    for key in ("key", "models"):
        if table.url is not None and key not in said:
            yield (*path, key), "is missing; this machine asks there", f"add {key} = ..."
        elif table.url is None and key in said and draft.is_sound("peers", name):
            yield (*path, key), "means nothing without url", 'add url = "http://10.0.0.8:8470", or remove it'
    if table.their_old_key is not None and table.their_key is None and draft.is_sound("peers", name):
        yield (*path, "their_old_key"), "means nothing without their_key", "name it their_key, or remove it"
    yield from check_offered(path, name, table.models, models)
    yield from check_address((*path, "url"), table.url)
    for place, key in zip(("key", "their_key", "their_old_key"), _keys_of(table), strict=True):
        if key is not None:
            yield from check_secret((*path, place), key, draft.environment)
    for index, model in enumerate(table.lends or ()):
        if model not in models:
            yield (*path, "lends", index), f"there is no model {model}", "name models of this machine"


# ------------------------------------------------------------------ the catalog's records


def peer_variables_of(peers: Mapping[str, PeerTable]) -> set[str]:
    """The environment variables that hold keys: no engine gets them."""
    keys = [key for table in peers.values() for key in _keys_of(table) if key is not None]
    return {name for key in keys if (name := variable_of(key))}


def _keys_of(table: PeerTable) -> tuple[str | None, str | None, str | None]:
    return table.key, table.their_key, table.their_old_key


def build_peer_keys(
    peers: Mapping[str, PeerTable], environment: Mapping[str, str]
) -> tuple[catalog.ApiKey, ...]:
    """The keys that peers show here."""
    return tuple(
        catalog.ApiKey(
            name,
            secret_of(table.their_key, environment),
            lane=_lane_name(name),
            max_priority=3,
            peer=catalog.PeerRules(name, table.lends),
            old_key=secret_of(table.their_old_key or "", environment),
        )
        for name, table in peers.items()
        if table.their_key is not None
    )


def build_peer_lanes(peers: Mapping[str, PeerTable]) -> dict[str, catalog.Lane]:
    """A lane for each peer that is served here: what is beyond its bound waits in it."""
    return {
        (lane := _lane_name(name)): replace(LEASED_LANE, name=lane, concurrency=table.requests_max)
        for name, table in peers.items()
        if table.their_key is not None
    }


def _lane_name(peer: str) -> str:
    """No lane of the config has a colon."""
    return f"{LEASED_LANE.name}:{peer}"


def add_peers(
    peers: Mapping[str, PeerTable],
    engines: dict[str, catalog.EngineRules],
    models: dict[str, catalog.Model],
    environment: Mapping[str, str],
) -> None:
    """Adds the engine of each peer and the models that it serves, before those of tiers: a peer costs nothing."""
    for name, table in peers.items():
        if table.url is None:
            continue
        engine = catalog.EngineRules(
            engine_name(name), "peer", url=table.url, key=secret_of(table.key or "", environment)
        )
        engines[engine.name] = engine
        for asked, there in table.models.items():
            of_here = models.get(asked)
            placed = asked if of_here is None else copy_name(asked, name)
            models[placed] = catalog.Model(
                placed, engine.name, source=there, devices=(), concurrency=table.concurrency, idle_ms=IDLE,
                load_timeout_ms=START_TIMEOUT, probe="none", writes_here=False, where=Tier.PEER, site=name,
                priority=3 if of_here is None else of_here.priority,
                embedding=False if of_here is None else of_here.embedding,
                private=False if of_here is None else of_here.private,
                copy_of=None if of_here is None else of_here.name,
            )  # fmt: skip
