"""From a settled, checked document to the catalog that every other layer reads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from watchbill import catalog, names
from watchbill.catalog import Catalog, WorkClass
from watchbill.config.document import DeviceTable, Document, EngineTable, LaneTable, ModelTable, ScriptTable
from watchbill.config.drivers import DRIVERS
from watchbill.config.process_types import build_process_types
from watchbill.config.rotations import build_background, build_epochs, build_rotation, idle_of
from watchbill.config.settle import asleep_of, memory_of
from watchbill.config.spools import build_spools
from watchbill.config.strategies import find_strategy
from watchbill.units import Bytes, Millis, spell_bytes, spell_millis

__all__ = ["build"]


def build(document: Document, base: Path, environment: Mapping[str, str]) -> Catalog:
    """The catalog of a document that has been settled and found right."""
    engines = _engines(document, base)
    models = {name: _model(name, table, engines, base) for name, table in document.models.items()}
    return Catalog(
        devices={name: _device(name, table) for name, table in document.devices.items()},
        engines=engines,
        models=models,
        lanes={name: _lane(name, table) for name, table in document.lanes.items()},
        policy=_policy(document, base),
        server=_server(document, environment),
        rotation=build_rotation(document.rotation),
        epochs=build_epochs(document),
        sets={name: table.models for name, table in document.sets.items()},
        journal=catalog.JournalRules(
            _below_root(document.journal.markdown, base), _below_root(document.journal.events, base)
        ),
        alerts=catalog.AlertRules(document.alerts.command, document.alerts.webhook),
        spools=build_spools(document.spool, base),
        process=build_process_types(document.process),
    )


def _below_root(text: str, base: Path) -> str:
    """What Watchbill writes belongs to its root, which is not known here; only ~ and / lead elsewhere."""
    return str(names.operator_path(base, text)) if text.startswith(("~", "/")) else text


def _server(document: Document, environment: Mapping[str, str]) -> catalog.Server:
    server = document.server
    keys = tuple(
        catalog.ApiKey(
            name,
            _secret(table.key, environment),
            table.lane,
            table.admin,
            table.max_priority,
            table.requests_max,
            table.waiting_max,
            table.tokens_per_minute,
            table.capture,
            table.bodies_max,
        )
        for name, table in server.keys.items()
    )
    variables = frozenset(
        table.key.removeprefix("env:") for table in server.keys.values() if table.key.startswith("env:")
    )
    return catalog.Server(
        server.host,
        server.port,
        keys,
        server.hosts,
        server.origins,
        server.body_max,
        server.bodies_max,
        server.connections_max,
        variables,
    )


def _secret(key: str, environment: Mapping[str, str]) -> str:
    return environment[key.removeprefix("env:")] if key.startswith("env:") else key


def _device(name: str, table: DeviceTable) -> catalog.Device:
    kept = table.reservation
    return catalog.Device(
        name,
        capacity=table.capacity,
        reserve=table.reserve or Bytes(0),
        share=table.budget,
        max_resident=table.max_resident,
        parallel_loads=table.parallel_loads,
        protect=table.protect,
        reservation=catalog.Reservation(kept.model, kept.memory) if kept else None,
        max_temp_c=table.max_temp_c,
        max_vram_percent=table.max_vram_percent,
        max_power_w=table.max_power_w,
    )


def _engines(document: Document, base: Path) -> dict[str, catalog.EngineRules]:
    """The engines of the file, and those that models name by their driver."""
    named = {model.engine for model in document.models.values()} - set(document.engines)
    tables = {**document.engines, **{driver: EngineTable(driver=driver) for driver in sorted(named)}}
    return {name: _engine(name, table, base) for name, table in tables.items()}


def _engine(name: str, table: EngineTable, base: Path) -> catalog.EngineRules:
    binary = table.binary
    if binary is not None and ("/" in binary or binary.startswith("~")):
        binary = str(names.operator_path(base, binary))
    shared = table.shared or DRIVERS[table.driver].is_shared
    return catalog.EngineRules(name, table.driver, url=table.url, shared=shared, binary=binary)


def _model(
    name: str, table: ModelTable, engines: Mapping[str, catalog.EngineRules], base: Path
) -> catalog.Model:
    engine = engines[table.engine]
    source = table.source
    if source is not None and DRIVERS[engine.driver].source_is_path:
        source = str(names.operator_path(base, source))
    return catalog.Model(
        name,
        table.engine,
        source=source,
        memory=MappingProxyType(memory_of(table)),
        devices=table.devices or (catalog.RAM,),
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
        tier=table.tier,
        exact=table.exact,
        context=table.context,
        threads=table.threads,
        mmap=table.mmap,
        embedding=table.embedding,
        prompt_cache=table.prompt_cache,
        load_timeout_ms=table.load_timeout,
        command=table.command,
        health=table.health,
        stop=table.stop,
        probe=table.probe,
        env=MappingProxyType(table.env),
        arguments=table.arguments,
        script=MappingProxyType(_script(table.script)),
        background=build_background(table),
        sleep_ms=table.sleep,
        sleeps_when_told=DRIVERS[engine.driver].sleeps_when_told and table.sleep is not None,
        asleep=MappingProxyType(asleep_of(table)),
        quota=table.quota,
        capture=table.capture,
        url=table.url,
        unit=table.unit,
        image=table.image,
    )


def _script(table: ScriptTable | None) -> dict[str, object]:
    """The script, spelled as the scripted engine reads it."""
    if table is None:
        return {}
    said: dict[str, object] = table.model_dump(exclude_none=True)
    spelled: dict[str, object] = {
        "load": spell_millis(table.load),
        "wake": spell_millis(table.wake),
        "service": spell_millis(table.service),
        "memory": spell_bytes(table.memory),
        "fail": list(table.fail),
    }
    return {key: spelled.get(key, value) for key, value in said.items()}


def _lane(name: str, table: LaneTable) -> catalog.Lane:
    return catalog.Lane(
        name,
        work_class=WorkClass[table.work_class.upper()],
        policy=table.policy,
        priority=table.priority,
        max_wait_ms=table.max_wait or Millis(0),
        timeout_ms=table.timeout or Millis(0),
        queue_max=table.queue_max,
        concurrency=table.concurrency,
        fallback=table.fallback,
        capture=table.capture,
    )


def _policy(document: Document, base: Path) -> catalog.PolicyRules:
    policy, weights = document.policy, document.policy.weights
    _, _, _, leased, rotation = catalog.PolicyRules().weights
    return catalog.PolicyRules(
        policy.name,
        alpha=policy.alpha,
        linger=policy.linger,
        inertia=policy.inertia,
        weights=(weights.interactive, weights.normal, weights.background, leased, rotation),
        parallel_loads=policy.parallel_loads,
        strategy=find_strategy(policy.name, base),
    )
