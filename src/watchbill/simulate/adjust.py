"""Changes to a scenario by hand: `policy.alpha=1.5`, `devices.ram.capacity=32GB`, `lanes.chat.max_wait=30s`.

The question "what would 16 GB more memory buy me?" is one such change.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from watchbill.catalog import Catalog, PolicyRules, WorkClass
from watchbill.errors import ConfigError
from watchbill.simulate.scenario import Scenario
from watchbill.units import parse_bytes, parse_millis

__all__ = ["FRONTIER_WEIGHTS", "adjust", "with_interactive_weight"]

#: How much heavier than background work a person's request weighs, along the frontier.
FRONTIER_WEIGHTS = (2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0)

_FIGURES = ("alpha", "linger", "inertia")


def adjust(scenario: Scenario, changes: Iterable[str]) -> Scenario:
    """The scenario with these changes. Raises ConfigError for one that is not understood."""
    for change in changes:
        key, _, value = change.partition("=")
        try:
            catalog = _changed(scenario.catalog, key.strip().split("."), value.strip())
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"--set {change}: {error}; there are policy.alpha, policy.linger, policy.inertia, "
                "policy.weights.CLASS, policy.parallel_loads, devices.NAME.capacity, devices.NAME.reserve and "
                "lanes.NAME.max_wait"
            ) from error
        scenario = replace(scenario, catalog=catalog)
    return scenario


def with_interactive_weight(scenario: Scenario, weight: float) -> Scenario:
    """The scenario with another weight for people; the frontier walks along this."""
    policy = scenario.catalog.policy
    weights = (weight, *policy.weights[1:])
    return replace(scenario, catalog=replace(scenario.catalog, policy=replace(policy, weights=weights)))


def _changed(catalog: Catalog, path: list[str], value: str) -> Catalog:
    match path:
        case ["policy", *rest]:
            return replace(catalog, policy=_policy(catalog.policy, rest, value))
        case ["devices", name, ("capacity" | "reserve") as key]:
            device = replace(catalog.devices[name], **{key: parse_bytes(value)})
            return replace(catalog, devices={**catalog.devices, name: device})
        case ["lanes", name, "max_wait"]:
            lane = replace(catalog.lanes[name], max_wait_ms=parse_millis(value))
            return replace(catalog, lanes={**catalog.lanes, name: lane})
        case _:
            raise ValueError("unknown key")


def _policy(rules: PolicyRules, path: list[str], value: str) -> PolicyRules:
    kinds: dict[str, Callable[[str], float]] = {**dict.fromkeys(_FIGURES, float), "parallel_loads": int}
    match path:
        case [key] if key in kinds:
            return replace(rules, **{key: kinds[key](value)})
        case ["weights", name]:
            weights = list(rules.weights)
            weights[WorkClass[name.upper()]] = float(value)
            return replace(rules, weights=tuple(weights))
        case _:
            raise ValueError("unknown key")
