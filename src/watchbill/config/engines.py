"""`[engines.NAME]`: programs that host models, and which keys each of their drivers reads.

A driver's name serves as an engine without a table of its own. A key that a driver ignores is refused: an operator who
writes `context` for a process means to bound its memory, and would learn otherwise from the kernel.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field

from watchbill import catalog, names
from watchbill.config.checks import Draft, Wrong, did_you_mean
from watchbill.config.values import Line, Table, Url
from watchbill.quoting import quoted
from watchbill.toml import KeyPath

__all__ = [
    "DRIVERS", "ENGINE_KEYS", "MODEL_KEYS", "Driver", "EngineTable", "available_drivers", "build_engines",
    "check_address", "check_engines", "no_driver",
]  # fmt: skip

# ------------------------------------------------------------------ the table


class EngineTable(Table):
    """A program that hosts models. A driver's name serves as an engine without a table of its own."""

    driver: str = Field(
        description="llamacpp, process, scripted, ollama, remote or systemd.", examples=["llamacpp"]
    )
    url: Url | None = Field(
        default=None,
        description="Address of a server that Watchbill does not start; for ollama http://127.0.0.1:11434 by default.",
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


# ------------------------------------------------------------------ drivers


@dataclass(frozen=True, slots=True)
class Driver:
    """What one driver needs and reads of its tables."""

    is_available: bool = True
    needs: frozenset[str] = frozenset()  # keys a model must have
    reads: frozenset[str] = frozenset()  # keys a model may have beside those every model has
    engine_reads: frozenset[str] = frozenset()  # keys of its [engines.NAME] table beside `driver`
    source_is_path: bool = True
    declares: frozenset[str] = frozenset()  # keys of every model that this driver cannot do without
    needs_url: bool = False  # its engine has no address by itself
    is_shared: bool = False  # its engines are never loaded or stopped by Watchbill
    writes_here: bool = True  # its models are processes of ours, with a log and an entry below the root
    #: Its models have addresses for it; otherwise they sleep by themselves or never.
    sleeps_when_told: bool = False


#: Everything that runs as a process of ours.
_OWNED = frozenset({"health", "probe", "env"})
_SLEEP = frozenset({"sleep", "asleep"})

DRIVERS: dict[str, Driver] = {
    "llamacpp": Driver(
        needs=frozenset({"source"}),
        reads=_OWNED | _SLEEP | {"context", "threads", "mmap", "embedding", "prompt_cache", "arguments"},
        engine_reads=frozenset({"binary"}),
    ),
    "process": Driver(
        needs=frozenset({"command"}),
        reads=_OWNED | _SLEEP | {"source", "served_as", "stop"},
        sleeps_when_told=True,
    ),
    "scripted": Driver(reads=_OWNED | _SLEEP | {"script"}, sleeps_when_told=True),
    "ollama": Driver(
        needs=frozenset({"source"}),
        reads=frozenset({"probe", "embedding"}),
        engine_reads=frozenset({"url", "shared"}),
        source_is_path=False,
        writes_here=False,
    ),
    "remote": Driver(
        reads=frozenset({"source"}),
        engine_reads=frozenset({"url", "shared"}),
        source_is_path=False,
        needs_url=True,
        is_shared=True,
        writes_here=False,
    ),
    "systemd": Driver(
        needs=frozenset({"url"}),
        reads=_OWNED | {"source", "served_as", "command", "unit", "image"},
        declares=frozenset({"memory"}),
        writes_here=False,
    ),
}

#: Keys of a model that belong to some drivers only; every other key belongs to every model.
MODEL_KEYS = frozenset[str]().union(*(driver.needs | driver.reads for driver in DRIVERS.values()))
#: The same of an engine's table.
ENGINE_KEYS = frozenset[str]().union(*(driver.engine_reads for driver in DRIVERS.values()))


def available_drivers() -> list[str]:
    """The drivers this version has."""
    return [name for name, driver in DRIVERS.items() if driver.is_available]


# ------------------------------------------------------------------ checks


def check_engines(engines: Mapping[str, EngineTable], draft: Draft) -> Iterator[Wrong]:
    """Drivers that do not exist, keys that a driver does not read, and addresses that are missing or hold more."""
    for name, table in engines.items():
        yield from _check_engine(draft, name, table)


def _check_engine(draft: Draft, name: str, table: EngineTable) -> Iterator[Wrong]:
    driver = DRIVERS.get(table.driver)
    if driver is None or not driver.is_available:
        yield ("engines", name, "driver"), *no_driver(table.driver)
    if driver is None:
        return
    if name in DRIVERS and name != table.driver:
        yield ("engines", name), f"is the name of another driver than {table.driver}", "choose another name"
    for key in sorted((ENGINE_KEYS - driver.engine_reads) & draft.keys_at("engines", name)):
        hint = "it starts its models itself" if key in ("shared", "url") else "remove it"
        yield ("engines", name, key), f"the driver {table.driver} does not read it", hint
    if table.url is None and (driver.needs_url or (table.shared and "url" in driver.engine_reads)):
        yield ("engines", name), "a shared engine needs its address", 'add url = "http://127.0.0.1:9000"'
    if driver.is_shared and "shared" in draft.keys_at("engines", name) and not table.shared:
        yield ("engines", name, "shared"), f"an engine of the driver {table.driver} always is", "remove it"
    yield from check_address(("engines", name, "url"), table.url)


def check_address(path: KeyPath, url: str | None) -> Iterator[Wrong]:
    """An address that requests are sent to has scheme, host, port and path; a key in it would end in logs."""
    parts = urlsplit(url or "")
    if parts.query or parts.fragment or parts.username is not None:
        yield path, "holds more than an address", "write for example http://127.0.0.1:9000"


def no_driver(driver: str) -> tuple[str, str]:
    """What is wrong with a driver's name, and what to do."""
    if driver in DRIVERS:
        return (
            f"this version of Watchbill does not have the driver {driver}",
            f"use {_any_of(available_drivers())}",
        )
    return f"{quoted(driver)} is not a driver", did_you_mean(driver, available_drivers())


def _any_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


# ------------------------------------------------------------------ the catalog's records


def build_engines(
    engines: Mapping[str, EngineTable], named: Iterable[str], base: Path
) -> dict[str, catalog.EngineRules]:
    """The engines of the file, and those that models name by their driver."""
    drivers = sorted(set(named) - set(engines))
    tables = {**engines, **{driver: EngineTable(driver=driver) for driver in drivers}}
    return {name: _build_engine(name, table, base) for name, table in tables.items()}


def _build_engine(name: str, table: EngineTable, base: Path) -> catalog.EngineRules:
    binary = table.binary
    if binary is not None and ("/" in binary or binary.startswith("~")):
        binary = str(names.operator_path(base, binary))
    shared = table.shared or DRIVERS[table.driver].is_shared
    return catalog.EngineRules(name, table.driver, url=table.url, shared=shared, binary=binary)
