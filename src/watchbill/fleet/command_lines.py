"""The programs of a fleet: the command lines of the coordinator and the agents that a config names. Pure.

`up` runs them beside the daemon; `systemd units --fleet` writes a unit for each instead.
"""

from pathlib import Path

from watchbill.catalog import AgentRules, CoordinatorRules, FleetRules
from watchbill.units import spell_millis

__all__ = ["fleet_folder", "programs_of"]


def fleet_folder(root: Path, rules: FleetRules) -> Path:
    """The shared folder: the config's, else one in the daemon's root."""
    return root / "fleet" if rules.root is None else Path(rules.root)


def programs_of(rules: FleetRules, folder: Path) -> dict[str, tuple[str, ...]]:
    """What each program is called -> its words behind `watchbill`."""
    found: dict[str, tuple[str, ...]] = {}
    if rules.coordinator is not None:
        found["coordinator"] = ("coordinator", *_coordinator(rules, rules.coordinator, folder))
    if rules.nats == "serve":
        found["door"] = ("door", "--root", str(folder), "--nats", "config")
    where = ("--nats", "config") if rules.nats == "use" else ("--root", str(folder))
    for agent in rules.agents:
        found[f"agent-{agent.name}"] = ("agent", agent.name, *where, *_agent(agent))
    return found


def _coordinator(rules: FleetRules, brain: CoordinatorRules, folder: Path) -> tuple[str, ...]:
    return _options({
        "--root": str(folder), "--slots": brain.slots, "--stuck-after": spell_millis(brain.stuck_after_ms),
        "--keep-complete": spell_millis(rules.keep_complete_ms),
        "--keep-history": "off" if rules.keep_history_ms is None else spell_millis(rules.keep_history_ms),
        "--model": brain.model,
    }) + (() if brain.training_samples else ("--no-training-samples",))  # fmt: skip


def _agent(agent: AgentRules) -> tuple[str, ...]:
    return _options({
        "--cpu-slots": agent.cpu_slots, "--device": ",".join(agent.devices) or None,
        "--model": agent.model, "--port": agent.port, "--llm-slots": agent.llm_slots,
    })  # fmt: skip


def _options(given: dict[str, str | int | None]) -> tuple[str, ...]:
    return tuple(word for key, value in given.items() if value is not None for word in (key, str(value)))
