"""Which driver a config means by its name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from watchbill.catalog import EngineRules
from watchbill.engines.base import DeathCallback, Engine, HostCallback, HostState
from watchbill.engines.foreign import ForeignEngine
from watchbill.engines.llamacpp import LlamaRecipe
from watchbill.engines.ollama import DEFAULT_URL, OllamaHost
from watchbill.engines.owned import OwnedEngine
from watchbill.engines.process import ProcessRecipe
from watchbill.engines.remote import SharedEngine
from watchbill.engines.scripted import ScriptedRecipe
from watchbill.engines.systemd import SystemdHost
from watchbill.errors import ConfigError

__all__ = ["DRIVERS", "make_engine"]

Make = Callable[[EngineRules, Path, DeathCallback, HostCallback], Engine]

#: Driver name -> how to make its engine from the engine's table.
DRIVERS: Mapping[str, Make] = {
    "llamacpp": lambda rules, root, died, _: OwnedEngine(LlamaRecipe(rules.binary), root, died),
    "process": lambda _, root, died, __: OwnedEngine(ProcessRecipe(), root, died),
    "scripted": lambda _, root, died, __: OwnedEngine(ScriptedRecipe(), root, died),
    "ollama": lambda rules, root, died, seen: ForeignEngine(OllamaHost(rules, root), died, seen),
    "remote": lambda rules, _, __, ___: SharedEngine(rules),
    "systemd": lambda rules, root, died, seen: ForeignEngine(SystemdHost(rules, root), died, seen),
}

#: The drivers whose engine may be somebody else's, and where it is when its table does not say.
SHARED: Mapping[str, str | None] = {"ollama": DEFAULT_URL, "remote": None}


def _unheard(state: HostState) -> None:
    """For who does not ask about hosts."""


def make_engine(
    rules: EngineRules, *, root: Path, on_death: DeathCallback, on_host: HostCallback = _unheard
) -> Engine:
    """The engine that a table of the config describes. Raises ConfigError for a driver we do not have."""
    make = DRIVERS.get(rules.driver)
    if make is None:
        known = ", ".join(sorted(DRIVERS))
        raise ConfigError(f"engine {rules.name!r}: unknown driver {rules.driver!r}; known are {known}")
    if not rules.shared:
        return make(rules, root, on_death, on_host)
    if rules.driver not in SHARED:
        raise ConfigError(
            f"engine {rules.name!r}: driver {rules.driver!r} starts processes and cannot be shared"
        )
    return SharedEngine(rules, SHARED[rules.driver])
