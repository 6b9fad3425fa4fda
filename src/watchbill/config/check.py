"""Checks across tables: what no single value can be wrong about.

Each check reads a settled document and yields what is wrong. A check never looks at the machine (`examine` does)
and never stops at its first find: the operator gets the whole list.
"""

from collections.abc import Collection, Iterator, Mapping, Set
from urllib.parse import urlsplit

from watchbill import names
from watchbill.catalog import RAM
from watchbill.config.document import EngineTable, ModelTable, ServerTable
from watchbill.config.draft import Draft
from watchbill.config.drivers import DRIVERS, available_drivers
from watchbill.config.fields import is_device_name, is_loopback
from watchbill.config.fit import check_fit
from watchbill.config.locate import KeyPath
from watchbill.config.problems import Wrong, did_you_mean
from watchbill.config.process_types import check_process_types
from watchbill.config.rotations import check_rotation
from watchbill.config.sets import check_sets
from watchbill.config.settle import GPU_DEFAULTS, asleep_of
from watchbill.config.spools import check_captures, check_spools
from watchbill.config.strategies import check_strategy
from watchbill.errors import ConfigError, NameRefused
from watchbill.units import spell_bytes

__all__ = ["HEALTH_KEYS", "check", "refuse_open_bind"]

#: Keys of a model that only mean something when Watchbill manages it.
_MANAGED = frozenset({"permanent", "memory", "devices", "group", "inertia", "idle", "load_timeout", "quota"})
#: Limits of a card's health; nothing on `ram` measures them.
HEALTH_KEYS = frozenset({"max_temp_c", "max_vram_percent", "max_power_w"})
#: Keys that belong to some drivers only; every other key belongs to every model.
_DRIVER_KEYS = frozenset[str]().union(*(driver.needs | driver.reads for driver in DRIVERS.values()))
_ENGINE_KEYS = frozenset[str]().union(*(driver.engine_reads for driver in DRIVERS.values()))


def check(draft: Draft) -> Iterator[Wrong]:
    """Everything that is wrong between tables."""
    yield from _check_server(draft)
    yield from _check_devices(draft)
    for name, table in draft.document.engines.items():
        yield from _check_engine(draft, name, table)
    for name, table in draft.document.models.items():
        yield from _check_model(draft, name, table)
    yield from _check_names(draft)
    yield from _check_tiers(draft)
    yield from check_strategy(draft)
    yield from check_fit(draft)
    yield from check_sets(draft)
    yield from check_spools(draft)
    yield from check_captures(draft)
    yield from check_rotation(draft)
    yield from check_process_types(draft, draft.document.process)


def refuse_open_bind(host: str, has_keys: bool) -> None:
    """Raises ConfigError when the gateway would stand open to the network. For `--host`, which comes after the
    config was checked."""
    if not has_keys and not is_loopback(host):
        raise ConfigError(f"{_OPEN[0].format(host)}; {_OPEN[1]}")


_OPEN = (
    "a non-loopback bind without an API key: everyone who reaches {} could use it",
    'add [server.keys.me] with key = "env:WATCHBILL_KEY", or listen on 127.0.0.1',
)

# ------------------------------------------------------------------ server


def _check_server(draft: Draft) -> Iterator[Wrong]:
    server = draft.document.server
    if draft.is_sound("server") and not server.keys and not is_loopback(server.host):
        yield ("server", "host"), _OPEN[0].format(server.host), _OPEN[1]
    yield from _check_secrets(server, draft.environment)
    for name, key in server.keys.items():
        if key.lane is not None and not draft.knows("lanes", key.lane):
            yield _unknown(("server", "keys", name, "lane"), "lane", key.lane, draft.names("lanes"))


def _check_secrets(server: ServerTable, environment: Mapping[str, str]) -> Iterator[Wrong]:
    owners: dict[str, str] = {}
    for name, table in server.keys.items():
        path = ("server", "keys", name, "key")
        variable = table.key.removeprefix("env:")
        secret = table.key if variable == table.key else environment.get(variable, "")
        if not secret:
            yield (
                path,
                f"the environment variable {variable!a} is not set",
                f"export {variable}=... before starting",
            )
        elif not secret.isascii() or not secret.isprintable() or " " in secret:
            yield path, "the key cannot travel in a header", "use printable ASCII without spaces"
        elif owners.setdefault(secret, name) != name:
            yield path, f"is the same key as {owners[secret]}'s", "give each caller a key of their own"


# ------------------------------------------------------------------ devices and engines


def _check_devices(draft: Draft) -> Iterator[Wrong]:
    for name in draft.names("devices"):
        if name != GPU_DEFAULTS and not is_device_name(name):
            yield (
                ("devices", name),
                "is not a device",
                'write ram, gpu for the defaults of all GPUs, or "gpu:0"',
            )
    for name, table in draft.document.devices.items():
        if name == RAM:
            for key in sorted(HEALTH_KEYS & draft.keys_at("devices", name)):
                yield ("devices", name, key), "is a limit of cards; ram has no such figure", "remove it"
        too_much = table.capacity is not None and (table.reserve or 0) >= table.capacity * table.budget
        if table.capacity is not None and too_much and draft.is_sound("devices"):
            text = f"leaves nothing of the capacity of {spell_bytes(table.capacity)}"
            yield ("devices", name, "reserve"), text, "make it smaller"
        if table.reservation is not None:
            yield from _check_reservation(draft, name, table.reservation.model)


def _check_reservation(draft: Draft, device: str, model: str) -> Iterator[Wrong]:
    path = ("devices", device, "reservation", "model")
    if not draft.knows("models", model):
        yield _unknown(path, "model", model, draft.names("models"))
    elif model in draft.document.models and device not in (draft.document.models[model].devices or ()):
        yield (
            path,
            f"{model} is not on {device}",
            f"keep memory for it on {draft.document.models[model].devices}",
        )


def _check_engine(draft: Draft, name: str, table: EngineTable) -> Iterator[Wrong]:
    driver = DRIVERS.get(table.driver)
    if driver is None or not driver.is_available:
        yield ("engines", name, "driver"), *_no_driver(table.driver)
    if driver is None:
        return
    if name in DRIVERS and name != table.driver:
        yield ("engines", name), f"is the name of another driver than {table.driver}", "choose another name"
    for key in sorted((_ENGINE_KEYS - driver.engine_reads) & draft.keys_at("engines", name)):
        hint = "it starts its models itself" if key in ("shared", "url") else "remove it"
        yield ("engines", name, key), f"the driver {table.driver} does not read it", hint
    if table.url is None and (driver.needs_url or (table.shared and "url" in driver.engine_reads)):
        yield ("engines", name), "a shared engine needs its address", 'add url = "http://127.0.0.1:9000"'
    if driver.is_shared and "shared" in draft.keys_at("engines", name) and not table.shared:
        yield ("engines", name, "shared"), f"an engine of the driver {table.driver} always is", "remove it"
    yield from _check_address(("engines", name, "url"), table.url)


def _check_address(path: KeyPath, url: str | None) -> Iterator[Wrong]:
    """An address that requests are sent to has scheme, host, port and path; a key in it would end in logs."""
    parts = urlsplit(url or "")
    if parts.query or parts.fragment or parts.username is not None:
        yield path, "holds more than an address", "write for example http://127.0.0.1:9000"


def _no_driver(driver: str) -> tuple[str, str]:
    if driver in DRIVERS:
        return (
            f"this version of Watchbill does not have the driver {driver}",
            f"use {_any_of(available_drivers())}",
        )
    return f"{driver!a} is not a driver", did_you_mean(driver, available_drivers())


# ------------------------------------------------------------------ models


def _check_model(draft: Draft, name: str, table: ModelTable) -> Iterator[Wrong]:
    path = ("models", name)
    engine = draft.document.engines.get(table.engine)
    driver_name = engine.driver if engine else table.engine
    if engine is None and not draft.knows("engines", table.engine):
        if DRIVERS.get(table.engine) is None:
            known = [*draft.names("engines"), *available_drivers()]
            yield _unknown((*path, "engine"), "engine", table.engine, known)
        elif not DRIVERS[table.engine].is_available:
            yield (*path, "engine"), *_no_driver(table.engine)
        elif DRIVERS[table.engine].needs_url:
            example = f'add [engines.{table.engine}] with driver = "{table.engine}" and url = ...'
            yield (*path, "engine"), "needs an address", example
    if driver_name in DRIVERS:
        yield from _check_driver_keys(path, draft.keys_at(*path), driver_name)
    yield from _check_address((*path, "url"), table.url)
    if engine is not None and (engine.shared or (driver_name in DRIVERS and DRIVERS[driver_name].is_shared)):
        for key in sorted(_MANAGED & draft.keys_at(*path)):
            yield (
                (*path, key),
                f"the engine {table.engine} is shared, so Watchbill does not manage it",
                "remove it",
            )
    yield from _check_devices_of_model(draft, path, table)
    yield from _check_sleep(path, table)
    if table.source is not None:
        try:
            names.operator_path(draft.base, table.source)
        except NameRefused as error:
            what, _, hint = str(error).partition("; ")
            yield (*path, "source"), what, hint


def _check_driver_keys(path: KeyPath, said: Set[str], name: str) -> Iterator[Wrong]:
    driver = DRIVERS[name]
    for key in sorted((driver.needs | driver.declares) - said):
        yield (*path, key), f"is missing; the driver {name} needs it", f"add {key} = ..."
    for key in sorted((_DRIVER_KEYS - driver.needs - driver.reads) & said):
        yield (*path, key), f"the driver {name} does not read it", "remove it"


def _check_devices_of_model(draft: Draft, path: KeyPath, table: ModelTable) -> Iterator[Wrong]:
    devices = table.devices or ()
    for place, device in enumerate(devices):
        if not draft.knows("devices", device) and device not in draft.document.devices:
            at = (
                (*path, "devices", place)
                if "devices" in draft.keys_at("models", str(path[-1]))
                else (*path, "memory", device)
            )
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


def _check_names(draft: Draft) -> Iterator[Wrong]:
    """`foo` and `foo:latest` are one name, so they may not be two models."""
    owners: dict[str, str] = {}
    for name in draft.names("models"):
        first = owners.setdefault(name.removesuffix(":latest"), name)
        if first != name:
            yield ("models", name), f"is the same name as {first}", "rename one"
    models = frozenset(owners)
    for name, table in draft.document.models.items():
        for place, alias in enumerate(table.aliases):
            plain, path = alias.removesuffix(":latest"), ("models", name, "aliases", place)
            if plain in models:
                yield path, f"{alias} is already the name of a model", "choose another alias"
            elif plain in owners:
                yield path, f"{alias} is already an alias of {owners[plain]}", "remove one of them"
            else:
                owners[plain] = name
    folded: dict[str, str] = {}
    for name in draft.names("lanes"):
        if folded.setdefault(name.lower(), name) != name:
            yield (
                ("lanes", name),
                f"is named twice: also as {folded[name.lower()]}",
                "headers do not tell case: rename one",
            )


def _check_tiers(draft: Draft) -> Iterator[Wrong]:
    owners: dict[tuple[str, int], str] = {}
    for name, table in draft.document.models.items():
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


def _unknown(path: KeyPath, what: str, name: str, known: Collection[str]) -> Wrong:
    return path, f"there is no {what} {name}", did_you_mean(name, sorted(known)) or f"add one to [{what}s]"


def _any_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)
