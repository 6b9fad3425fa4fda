"""Which driver a config means by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from watchbill.catalog import EngineRules
from watchbill.engines.base import DeathCallback, Engine, HostCallback, HostState
from watchbill.engines.burst import BurstHost
from watchbill.engines.foreign import ForeignEngine, ForeignHost
from watchbill.engines.llamacpp import LlamaRecipe
from watchbill.engines.ollama import DEFAULT_URL, OllamaHost
from watchbill.engines.owned import OwnedEngine, Recipe
from watchbill.engines.peer import PeerHost
from watchbill.engines.process import ProcessRecipe
from watchbill.engines.remote import SharedEngine
from watchbill.engines.scripted import ScriptedRecipe
from watchbill.engines.systemd import SystemdHost
from watchbill.errors import ConfigError
from watchbill.processes import Withheld
from watchbill.quoting import quoted

__all__ = ["DRIVERS", "make_engine"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an engine is given beside its table."""

    root: Path
    on_death: DeathCallback
    on_host: HostCallback
    withheld: Withheld  # what of our environment its processes do not get
    uuids: Callable[[], Mapping[str, str]]  # device -> UUID of its card


def _owned(recipe: Recipe, around: Surroundings) -> OwnedEngine:
    return OwnedEngine(recipe, around.root, around.on_death, around.withheld, around.uuids)


def _foreign(host: ForeignHost, around: Surroundings) -> ForeignEngine:
    return ForeignEngine(host, around.on_death, around.on_host)


Make = Callable[[EngineRules, Surroundings], Engine]

#: Driver name -> how to make its engine from the engine's table.
DRIVERS: Mapping[str, Make] = {
    "llamacpp": lambda rules, around: _owned(LlamaRecipe(rules.binary), around),
    "process": lambda _, around: _owned(ProcessRecipe(), around),
    "scripted": lambda _, around: _owned(ScriptedRecipe(), around),
    "ollama": lambda rules, around: _foreign(OllamaHost(rules, around.root), around),
    "remote": lambda rules, _: SharedEngine(rules),
    "systemd": lambda rules, around: _foreign(SystemdHost(rules, around.root), around),
}

#: The same for the engines of tiers, which have no table in [engines].
TIER_DRIVERS: Mapping[str, Make] = {
    "burst": lambda rules, around: _foreign(BurstHost(rules, around.root, around.withheld), around),
    "peer": lambda rules, around: _foreign(PeerHost(rules), around),
}

#: The drivers whose engine may be shared, with the address that counts where the table has none.
SHARED: Mapping[str, str | None] = {"ollama": DEFAULT_URL, "remote": None}


def _unheard(state: HostState) -> None:
    """The callback of a caller that does not watch hosts."""


def make_engine(
    rules: EngineRules,
    *,
    root: Path,
    on_death: DeathCallback,
    on_host: HostCallback = _unheard,
    withheld: Withheld | None = None,
    uuids: Callable[[], Mapping[str, str]] = dict,
) -> Engine:
    """The engine that a table of the config describes. Raises ConfigError for a driver we do not have."""
    make = DRIVERS.get(rules.driver) or TIER_DRIVERS.get(rules.driver)
    if make is None:
        known = ", ".join(sorted(DRIVERS))
        raise ConfigError(f"engine {rules.name!r}: unknown driver {quoted(rules.driver)}; known are {known}")
    if not rules.shared:
        return make(rules, Surroundings(root, on_death, on_host, withheld or Withheld(), uuids))
    if rules.driver not in SHARED:
        raise ConfigError(
            f"engine {rules.name!r}: driver {rules.driver!r} starts processes and cannot be shared"
        )
    return SharedEngine(rules, SHARED[rules.driver])
