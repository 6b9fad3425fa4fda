"""Which driver a config means by its name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from watchbill.catalog import EngineRules
from watchbill.engines.base import DeathCallback, Engine
from watchbill.engines.llamacpp import LlamaRecipe
from watchbill.engines.owned import OwnedEngine, Recipe
from watchbill.engines.process import ProcessRecipe
from watchbill.engines.scripted import ScriptedRecipe
from watchbill.errors import ConfigError

__all__ = ["DRIVERS", "make_engine"]

#: Driver name -> how to make its recipe from the engine's table.
DRIVERS: Mapping[str, Callable[[EngineRules], Recipe]] = {
    "llamacpp": lambda rules: LlamaRecipe(rules.binary),
    "process": lambda _: ProcessRecipe(),
    "scripted": lambda _: ScriptedRecipe(),
}


def make_engine(rules: EngineRules, *, root: Path, on_death: DeathCallback) -> Engine:
    """The engine that a table of the config describes. Raises ConfigError for a driver we do not have."""
    recipe = DRIVERS.get(rules.driver)
    if recipe is None:
        known = ", ".join(sorted(DRIVERS))
        raise ConfigError(f"engine {rules.name!r}: unknown driver {rules.driver!r}; known are {known}")
    if rules.shared:
        raise ConfigError(
            f"engine {rules.name!r}: driver {rules.driver!r} starts processes and cannot be shared"
        )
    return OwnedEngine(recipe(rules), root, on_death)
