"""Notices at the start of a daemon: programs, model files and cards that cannot be used, and how to mend that.

Only reports. A model that cannot be loaded keeps none of the others from being served.
"""

from watchbill.catalog import Catalog
from watchbill.daemon.setting import Screen, Setting
from watchbill.engines.llamacpp import missing_server
from watchbill.engines.process import missing_program
from watchbill.errors import ConfigError
from watchbill.runtime.driver import Driver
from watchbill.runtime.library import Library
from watchbill.runtime.placing import Placing
from watchbill.shelf import Why

__all__ = ["failures_of", "tell_of_cards", "tell_of_engines", "tell_of_failures", "tell_of_files"]


def tell_of_engines(catalog: Catalog, screen: Screen) -> None:
    """Warns where llama.cpp or a model's program is missing: its models would fail at their first request."""
    used = {model.engine for model in catalog.models.values()}
    for rules in catalog.engines.values():
        if rules.name in used and rules.driver == "llamacpp":
            complaint, hint = missing_server(rules)
            if complaint is not None:
                screen.warn(f"models of the engine {rules.name} cannot be loaded: {complaint}: {hint}")
    for model in catalog.models.values():
        if catalog.engines[model.engine].driver == "process" and (missing := missing_program(model)):
            screen.warn(f"{model.name} cannot be loaded: {missing[0]}; {missing[1]}")


def tell_of_cards(placing: Placing, catalog: Catalog, screen: Screen) -> None:
    """Says which cards were found and what goes there, or the one command that would let them be used."""
    for note in placing.notes:
        screen.warn(note)
    if unused := placing.unused():
        screen.warn(f"{unused['cards']} is not used: {unused['why']}; mend it with: {unused['mend']}")
        return
    for line in placing.told(catalog):
        screen.tell(line)


def tell_of_files(library: Library, screen: Screen) -> None:
    """Warns about each file that looks like a model and is none; the others are served."""
    for passed in library.passed:
        if passed.why is not Why.PROJECTOR:
            screen.warn(f"{passed.file} is not served: {passed.told}")


def tell_of_failures(driver: Driver, setting: Setting) -> None:
    """Warns about each bad model file; the other models are served. Raises ConfigError when none is left, but for an
    agent that has tasks and no model."""
    failures = failures_of(driver)
    for failure in failures.values():
        setting.screen.warn(failure)
    if len(failures) == len(driver.catalog.models) and not setting.options.no_fetch:
        named = [] if setting.file is None else [str(setting.file)]
        check = setting.root.command("config", "check", *named)
        raise ConfigError(f"no model can be loaded; see: {check}")


def failures_of(driver: Driver) -> dict[str, str]:
    """Model -> the sentence with the reason why it cannot be loaded."""
    return {name: f"model {name} cannot be loaded: {why}" for name, why in driver.failures().items()}
