"""Changes to a scenario by hand: `policy.alpha=1.5`, `devices.ram.capacity=+16GB`, `lanes.chat.max_wait=30s`.

The question "what would 16 GB more memory buy me?" is one such change.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from watchbill.catalog import Catalog, PolicyRules, WorkClass
from watchbill.config.limits import PARALLEL_LOADS_MAX
from watchbill.errors import ConfigError
from watchbill.simulate.scenario import Scenario
from watchbill.units import parse_bytes, parse_millis

__all__ = ["FRONTIER_WEIGHTS", "adjust", "with_interactive_weight"]

#: Weights of an interactive request relative to background work, along the frontier.
FRONTIER_WEIGHTS = (2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0)

_Thing = TypeVar("_Thing")
_CLASSES = {each.name.lower(): each for each in WorkClass}
_FIGURES = ("alpha", "linger", "inertia")
#: The largest factor or weight, as in the config.
FIGURE_MAX = 1000
_KEYS = (
    "there is no such key; there are policy.alpha, policy.linger, policy.inertia, policy.weights.CLASS, "
    "policy.parallel_loads, devices.NAME.capacity, devices.NAME.reserve and lanes.NAME.max_wait"
)


def adjust(scenario: Scenario, changes: Iterable[str]) -> Scenario:
    """The scenario with these changes. Raises ConfigError for one that is not understood."""
    for change in changes:
        key, _, value = change.partition("=")
        try:
            catalog = _changed(scenario.catalog, key.strip().split("."), value.strip())
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"--set {change}: {error}") from error
        scenario = replace(scenario, catalog=catalog)
    return scenario


def with_interactive_weight(scenario: Scenario, weight: float) -> Scenario:
    """The scenario with another weight for interactive requests; the frontier varies this."""
    policy = scenario.catalog.policy
    weights = (weight, *policy.weights[1:])
    return replace(scenario, catalog=replace(scenario.catalog, policy=replace(policy, weights=weights)))


def _changed(catalog: Catalog, path: list[str], value: str) -> Catalog:
    match path:
        case ["policy", *rest]:
            return replace(catalog, policy=_policy(catalog.policy, rest, value))
        case ["devices", name, ("capacity" | "reserve") as key]:
            device = _named(catalog.devices, name)
            device = replace(device, **{key: _resized(getattr(device, key) or 0, value)})
            if device.reserve >= (device.capacity or 0):
                raise ValueError("the reserve would leave no memory for models")
            return replace(catalog, devices={**catalog.devices, name: device})
        case ["lanes", name, "max_wait"]:
            lane = replace(_named(catalog.lanes, name), max_wait_ms=parse_millis(value))
            return replace(catalog, lanes={**catalog.lanes, name: lane})
        case _:
            raise ValueError(_KEYS)


def _resized(size: int, value: str) -> int:
    """A size, or a difference to the present one: `32GB`, `+8GB`, `-4GB`."""
    if not value.startswith(("+", "-")):
        return parse_bytes(value)
    more = parse_bytes(value[1:])
    return size + more if value[0] == "+" else size - more


def _named(known: Mapping[str, _Thing], name: str) -> _Thing:
    if name not in known:
        raise ValueError(f"there is no {name!r} in this scenario; there are: {', '.join(known)}")
    return known[name]


def _figure(text: str) -> float:
    number = float(text)
    if not 0 <= number <= FIGURE_MAX:  # rejects NaN, too
        raise ValueError(f"must be from 0 to {FIGURE_MAX}")
    return number


def _loads(text: str) -> int:
    number = int(text)
    if not 1 <= number <= PARALLEL_LOADS_MAX:
        raise ValueError(f"must be from 1 to {PARALLEL_LOADS_MAX}")
    return number


def _policy(rules: PolicyRules, path: list[str], value: str) -> PolicyRules:
    kinds: dict[str, Callable[[str], float]] = {**dict.fromkeys(_FIGURES, _figure), "parallel_loads": _loads}
    match path:
        case [key] if key in kinds:
            return replace(rules, **{key: kinds[key](value)})
        case ["weights", name]:
            weights = list(rules.weights)
            weights[_named(_CLASSES, name)] = _figure(value)
            return replace(rules, weights=tuple(weights))
        case _:
            raise ValueError(_KEYS)
