"""A whole config file: the sections in their order, what each of them becomes, and where a key stands among them.

The tables of the sections are the only list of keys. The reference in the docs, the JSON Schema for editors,
`config show` and the hint for a mistyped key are all drawn from them. A key stands there only when this version
honours it; what is planned is refused by name in `planned`. A new section is a file of its own, a field of `Document`
and a line in `settle`, `check_sections` and `build`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import Field, PrivateAttr

from watchbill.catalog import Catalog
from watchbill.config.batches import BatchesTable, build_batches, check_batches
from watchbill.config.checks import Draft, Wrong
from watchbill.config.devices import UNNAMED_CARD, DeviceTable, build_device, check_devices, settle_devices
from watchbill.config.engines import EngineTable, build_engines, check_engines
from watchbill.config.fleet import (
    AgentName,
    AgentTable,
    CoordinatorTable,
    FleetTable,
    build_fleet,
    check_fleet,
)
from watchbill.config.journal import AlertsTable, JournalTable, build_alerts, build_journal
from watchbill.config.keys import Key, keys_of, tables_of
from watchbill.config.lanes import LaneTable, build_lane, check_lanes, settle_lanes
from watchbill.config.library import LibraryTable, build_library, check_library
from watchbill.config.models import ModelTable, build_model, check_models, settle_model
from watchbill.config.nats import NatsTable, build_nats, check_nats, nats_variables_of
from watchbill.config.peers import (
    PeerTable,
    add_peers,
    build_peer_keys,
    build_peer_lanes,
    check_peers,
    peer_variables_of,
)
from watchbill.config.policy import PolicyTable, build_policy, check_policy
from watchbill.config.process_types import ProcessTable, build_process_type
from watchbill.config.rotation import (
    EpochTable,
    RotationTable,
    build_epoch,
    build_rotation,
    check_epochs,
    settle_rotation,
)
from watchbill.config.server import ServerTable, build_server, check_server
from watchbill.config.sets import SetTable, check_sets
from watchbill.config.spools import SpoolTable, build_spool, check_spools, settle_spool
from watchbill.config.tiers import (
    RoutingTable,
    TierTable,
    add_tiers,
    build_routing,
    build_tier,
    check_tiers,
    key_variables_of,
    settle_routing,
)
from watchbill.config.traces import TracesTable, build_traces, check_traces, trace_variables_of
from watchbill.config.values import ModelName, PlainName, Table
from watchbill.toml import KeyPath

__all__ = ["TABLES", "Document", "build", "check_sections", "find_key", "place_of", "settle"]


class Document(Table):
    """A whole config file."""

    server: ServerTable = Field(default=ServerTable(), description="Where the gateway listens.")
    devices: dict[str, DeviceTable] = Field(default={}, description="Memory domains.")
    engines: dict[PlainName, EngineTable] = Field(default={}, description="Programs that host models.")
    models: dict[ModelName, ModelTable] = Field(default={}, description="Models.")
    library: LibraryTable = Field(default=LibraryTable(), description="Models without a table.")
    sets: dict[PlainName, SetTable] = Field(default={}, description="Models needed together.")
    lanes: dict[PlainName, LaneTable] = Field(default={}, description="Queues.")
    policy: PolicyTable = Field(default=PolicyTable(), description="How residency decides.")
    rotation: RotationTable = Field(default=RotationTable(), description="Background rotation.")
    epochs: dict[PlainName, EpochTable] = Field(default={}, description="Windows for ingestion work.")
    journal: JournalTable = Field(default=JournalTable(), description="Where decisions are written down.")
    alerts: AlertsTable = Field(default=AlertsTable(), description="Where alerts go.")
    traces: TracesTable = Field(default=TracesTable(), description="Where traces of requests go.")
    spool: dict[PlainName, SpoolTable] = Field(default={}, description="Durable queues.")
    nats: NatsTable = Field(
        default=NatsTable(), description="Brokers for spools and fleets of several machines."
    )
    batches: BatchesTable = Field(default=BatchesTable(), description="Bounds of uploaded files and batches.")
    process: dict[PlainName, ProcessTable] = Field(default={}, description="Types of work for POST /process.")
    fleet: FleetTable = Field(default=FleetTable(), description="The folder that plans are run from.")
    coordinator: CoordinatorTable | None = Field(default=None, description="The coordinator that `up` runs.")
    agents: dict[AgentName, AgentTable] = Field(default={}, description="Agents that `up` runs.")
    tiers: dict[PlainName, TierTable] = Field(
        default={}, description="Where requests may run beside this machine."
    )
    peers: dict[PlainName, PeerTable] = Field(default={}, description="Other Watchbill machines.")
    routing: RoutingTable = Field(default=RoutingTable(), description="Which tier serves a request.")
    _card: DeviceTable = PrivateAttr(default_factory=DeviceTable)

    @property
    def unnamed_card(self) -> DeviceTable:
        """Of a document that is settled: what holds for a card without a table."""
        return self._card

    def with_unnamed_card(self, table: DeviceTable) -> "Document":
        """The same document, with what holds for a card without a table."""
        self._card = table
        return self


#: Every table by its place in the file; "*" is a name that the operator chooses.
TABLES = tables_of(Document)


def place_of(path: KeyPath) -> tuple[str, ...]:
    """The path with "*" for the names that the operator chose: models.a.idle is models.*.idle."""
    place: tuple[str, ...] = ()
    for part in path:
        named = (*place, "*")
        is_named = any(known[: len(named)] == named for known in TABLES)
        place = named if is_named or isinstance(part, int) else (*place, part)
    return place


def find_key(path: KeyPath) -> Key | None:
    """The key that the path means, if there is such a key."""
    place = place_of(path)
    table = TABLES.get(place[:-1]) if place else None
    return keys_of(table).get(place[-1]) if table else None


def settle(document: Document) -> Document:
    """The same document with every default that depends on other keys, as if the operator had written it.

    A document that is settled says everything: its devices are all there, its lanes have their times. Changes nothing
    that was given.
    """
    models = {name: settle_model(table) for name, table in document.models.items()}
    named = (device for table in models.values() for device in table.devices or ())
    has_tasks = any(table.background is not None for table in models.values())
    settled = document.model_copy(
        update={
            "devices": settle_devices(document.devices, named),
            "models": models,
            "lanes": settle_lanes(document.lanes),
            "rotation": settle_rotation(document.rotation, has_tasks=has_tasks),
            "spool": {name: settle_spool(name, table) for name, table in document.spool.items()},
            "routing": settle_routing(document.routing, document.tiers, _asked_peers(document)),
        }
    )
    cards = settle_devices({**document.devices, UNNAMED_CARD: DeviceTable()}, ())
    return settled.with_unnamed_card(cards[UNNAMED_CARD])


def check_sections(document: Document, draft: Draft) -> Iterator[Wrong]:
    """Everything that is wrong within single sections of a settled document."""
    yield from check_server(document.server, draft)
    yield from check_devices(document.devices, draft)
    yield from check_engines(document.engines, draft)
    yield from check_models(document.models, document.engines, document.devices, draft)
    yield from check_library(document.library, draft)
    yield from check_sets(document.sets, draft)
    yield from check_lanes(draft)
    yield from check_policy(document.policy, draft)
    yield from check_epochs(document.epochs, draft)
    yield from check_spools(document.spool, draft)
    is_used = document.fleet.nats is not None or any(
        table.backend == "nats" for table in document.spool.values()
    )
    yield from check_nats(document.nats, draft, is_used=is_used)
    yield from check_traces(document.traces, draft)
    yield from check_batches(document.batches, draft)
    yield from check_fleet(document.fleet, document.coordinator, document.agents, draft)
    peers = _asked_peers(document)
    yield from check_tiers(document.tiers, document.routing, document.models, peers, draft)
    yield from check_peers(document.peers, document.tiers, document.models, document.server.keys, draft)


def _asked_peers(document: Document) -> list[str]:
    """The peers that serve requests of this machine."""
    return [name for name, table in document.peers.items() if table.url is not None]


def build(
    document: Document, base: Path, environment: Mapping[str, str], root: Path | None = None
) -> Catalog:
    """The catalog of a document that has been settled and found right. Model files may lie below the root."""
    engines = build_engines(document.engines, (table.engine for table in document.models.values()), base)
    models = {
        name: build_model(name, table, engines[table.engine], base, root)
        for name, table in document.models.items()
    }
    routing = build_routing(document.routing)
    variables = key_variables_of(document.tiers) | peer_variables_of(document.peers)
    variables |= nats_variables_of(document.nats) | trace_variables_of(document.traces)
    nats = build_nats(document.nats, base, environment)
    server = build_server(document.server, environment, variables)
    add_peers(document.peers, engines, models, environment)
    add_tiers(document.tiers, routing.order, engines, models, environment)
    return Catalog(
        devices={name: build_device(name, table) for name, table in document.devices.items()},
        unnamed_card=build_device(UNNAMED_CARD, document.unnamed_card),
        engines=engines,
        models=models,
        lanes={name: build_lane(name, table) for name, table in document.lanes.items()}
        | build_peer_lanes(document.peers),
        policy=build_policy(document.policy, base),
        server=replace(server, keys=(*server.keys, *build_peer_keys(document.peers, environment))),
        rotation=build_rotation(document.rotation),
        epochs={name: build_epoch(name, table) for name, table in document.epochs.items()},
        sets={name: table.models for name, table in document.sets.items()},
        journal=build_journal(document.journal, base),
        alerts=build_alerts(document.alerts),
        traces=build_traces(document.traces, environment),
        spools={name: build_spool(name, table, base, nats) for name, table in document.spool.items()},
        batches=build_batches(document.batches),
        library=build_library(document.library, base),
        process={name: build_process_type(name, table) for name, table in document.process.items()},
        fleet=build_fleet(document.fleet, document.coordinator, document.agents, base, nats),
        tiers={name: build_tier(name, table) for name, table in document.tiers.items()},
        routing=routing,
    )
