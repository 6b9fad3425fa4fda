"""`plan simulate`: how long a plan would take, and what one more agent would buy. Standard library only.

Times come from the journals of earlier batches (`fleet.state.learned`), agents from their heartbeats;
`simulate.forecast` plays the run. Nothing is submitted, and nothing in the shared folder changes.
"""

import json as jsonlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.plan_agents import Agents
from watchbill.cli.plan_checking import WRONG, find_plan, tell
from watchbill.cli.plan_submitting import read_inputs
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.errors import OursError
from watchbill.fleet.agent.memory import BUDGET_SHARE
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, heartbeats
from watchbill.fleet.matching.abilities import Ability, ability_of
from watchbill.fleet.state.learned import Expected, Source, read_history
from watchbill.plans import limits as plans_limits
from watchbill.plans.batch import ExecutePlan, settle_inputs, shared_inputs
from watchbill.plans.check import Plan, read_plan
from watchbill.simulate import limits
from watchbill.simulate.forecast import Forecaster, Known, OneMore
from watchbill.simulate.rig import Played, SimAgent
from watchbill.suggest import did_you_mean
from watchbill.units import format_millis

__all__ = ["Simulation", "simulate_plan"]

#: How fast a model is loaded of which no load was measured: the whole budget of its card, at this rate.
_GUESSED_LOAD_MB_PER_S = 200
_SEVERAL = re.compile(r"([1-9][0-9]{0,3})x(.+)")
_MADE_UP = re.compile(r"(cpu|card):([1-9][0-9]{0,7})")
#: The model of an agent that is made up, and of a coordinator that has none yet.
_ANY_MODEL = "model"
#: The slots of an agent that is made up for a card, and of a coordinator that never ran.
_CARD_CPU_SLOTS, _BRAIN_SLOTS = 4, 2
_BATCH = "simulated"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The arguments of `plan simulate`."""

    plan: str
    agents: str | None = None
    items: Sequence[str] = ()
    pairs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """What is shown."""

    plan: Plan
    name: str
    forecaster: Forecaster
    agents: list[SimAgent]
    loads: Mapping[str, Source]
    played: Played
    more: list[OneMore]
    runs: Mapping[str, int]


def simulate_plan(simulation: Simulation, *, json: bool, root: Path | None, quiet: bool) -> int:
    """`plan simulate`."""
    folder, terminal = find_fleet(root), Terminal(quiet=quiet)
    # What the simulated coordinator has to tell belongs into no log.
    logging.getLogger("watchbill").addHandler(logging.NullHandler())
    file = find_plan(simulation.plan, folder)
    checked = read_plan(file)
    plan, disk, name = checked.plan, FolderDisk(folder), file.resolve().parent.name
    if not checked.is_right:
        tell(file, checked, terminal, json=json)
        return WRONG
    inputs = _inputs(plan, simulation)
    agents, loads = _agents(disk, plan, simulation.agents, terminal)
    abilities = [_ability(each) for each in agents]
    Agents(abilities, abilities).refuse_what_none_could_run(plan, inputs, checked.findings)
    if not checked.is_right:
        tell(file, checked, terminal, json=json)
        return WRONG
    history = read_history(disk, name)
    order = ExecutePlan(_BATCH, name, shared_inputs(inputs, PurePosixPath(folder)))
    known = Known(history, disk, _counts(plan, simulation.items))
    forecaster = Forecaster(plan, file.read_bytes(), order, known)
    played = forecaster.play(agents)
    more = [forecaster.one_more(agents, each) for each in _kinds(agents)]
    runs = {task.name: history.runs(task.name) for task in plan.tasks}
    found = _Found(plan, name, forecaster, agents, loads, played, more, runs)
    terminal.show(*([jsonlib.dumps(_fields(found))] if json else _draw(found, terminal)))
    return 0


# ------------------------------------------------------------------ arguments


def _inputs(plan: Plan, simulation: Simulation) -> dict[str, str]:
    """The inputs; one that is not given is its own name, because times do not depend on it."""
    given = read_inputs(simulation.pairs, None)
    unset = {each.name: each.name for each in plan.inputs if each.default is None}
    return settle_inputs(plan, {**unset, **given})


def _counts(plan: Plan, texts: Sequence[str]) -> dict[str, int]:
    """How many items each foreach has. Raises OursError."""
    known = [task.name for task in plan.tasks if task.foreach is not None]
    found: dict[str, int] = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if name not in known:
            raise OursError(
                f"--items {text}: the plan has no foreach task {name or text}",
                hint=did_you_mean(name, known) or "write TASK=NUMBER",
            )
        if not count.isdecimal() or int(count) > plans_limits.PLAN_ITEMS_MAX:
            raise OursError(f"--items {text}: give a number from 0 to {plans_limits.PLAN_ITEMS_MAX:,}")
        found[name] = int(count)
    return found


# ------------------------------------------------------------------ agents


def _agents(
    disk: FolderDisk, plan: Plan, named: str | None, terminal: Terminal
) -> tuple[list[SimAgent], dict[str, Source]]:
    """The agents to play with, and where the time of a load of each comes from. Raises OursError."""
    joined = heartbeats(disk)
    known = {name: beat for name, beat in joined.items() if name != places.BRAIN}
    if named is None:
        living = {name: beat for name, beat in known.items() if beat.may_live}
        if not known:
            raise OursError(
                "no agent has joined this folder, so there is nothing to play with",
                hint="name agents that are made up: --agents 2xcpu:4,card:6144",
            )
        if not living:
            terminal.note("no agent lives: played with all that ever joined")
        found = [_known(name, beat) for name, beat in (living or known).items()]
    else:
        found = list(_named(named, known, plan))
    loads = {each.name: _load_source(each, joined.get(_original(each.name, joined))) for each in found}
    return [*found, _brain(joined.get(places.BRAIN))], loads


def _named(named: str, known: Mapping[str, Heartbeat], plan: Plan) -> Iterator[SimAgent]:
    taken: set[str] = set()
    for word in filter(None, (each.strip() for each in named.split(","))):
        several = None if word in known else _SEVERAL.fullmatch(word)
        count, kind = (int(several[1]), several[2]) if several else (1, word)
        about = _one(kind, known, plan)
        for _ in range(count):
            name = _free_name(about.name, taken)
            taken.add(name)
            yield about if name == about.name else replace(about, name=name, hot=())
            if len(taken) > limits.SIMULATED_AGENTS_MAX:
                raise OursError(f"--agents: {limits.SIMULATED_AGENTS_MAX:,} agents are the limit")
    if not taken:
        raise OursError("--agents names no agent", hint="as in --agents gpu-1,gpu-2 or --agents 4xgpu-1")


def _one(kind: str, known: Mapping[str, Heartbeat], plan: Plan) -> SimAgent:
    if kind in known:
        return _known(kind, known[kind])
    made_up = _MADE_UP.fullmatch(kind)
    if made_up is None:
        raise OursError(
            f"--agents: no agent {kind} ever joined this folder",
            hint=did_you_mean(kind, list(known))
            or "write cpu:SLOTS or card:MEGABYTES for one that is made up",
        )
    if made_up[1] == "cpu":
        return SimAgent(f"cpu-{made_up[2]}", int(made_up[2]))
    budget = int(BUDGET_SHARE * int(made_up[2]))
    named = {task.model.text for task in plan.tasks if task.model is not None}
    return SimAgent(
        f"card-{made_up[2]}", _CARD_CPU_SLOTS, ("gpu",), budget, _ANY_MODEL, (_ANY_MODEL, *sorted(named)), 1,
        "made-up", _guessed_load_ms(budget),
    )  # fmt: skip


def _free_name(name: str, taken: set[str]) -> str:
    numbered = (f"{name}-{number}" for number in range(2, limits.SIMULATED_AGENTS_MAX + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def _known(name: str, beat: Heartbeat) -> SimAgent:
    about, report = ability_of(name, beat), beat.report
    measured = _measured_load_ms(report.load_ms, about.own_model)
    return SimAgent(
        name, about.cpu_slots, report.devices, about.budget_mb if about.has_card else 0, about.own_model,
        about.models, report.llm_slots, report.host, measured or _guessed_load_ms(about.budget_mb),
        report.hot_models if beat.may_live else (),
    )  # fmt: skip


def _brain(beat: Heartbeat | None) -> SimAgent:
    """The agent of the coordinator. It has a model: without one nothing of class llm would ever be run by it."""
    known = SimAgent(places.BRAIN, _BRAIN_SLOTS) if beat is None else _known(places.BRAIN, beat)
    if known.models:
        return replace(known, load_ms=0)
    return replace(known, own_model=_ANY_MODEL, models=(_ANY_MODEL,), llm_slots=1, load_ms=0)


def _measured_load_ms(load_ms: Mapping[str, int], model: str) -> int:
    """The measured time of a load of an agent's own model; without one, of the slowest that it has loaded. 0: none."""
    return load_ms.get(model, 0) if model else max(load_ms.values(), default=0)


def _guessed_load_ms(budget_mb: int) -> int:
    return 1_000 + budget_mb * 1_000 // _GUESSED_LOAD_MB_PER_S


def _load_source(agent: SimAgent, beat: Heartbeat | None) -> Source:
    is_measured = beat is not None and _measured_load_ms(beat.report.load_ms, agent.own_model) > 0
    return Source.LEARNED if is_measured else Source.GUESS


def _original(name: str, joined: Mapping[str, Heartbeat]) -> str:
    """The agent that one of several was copied from."""
    return name if name in joined else name.rpartition("-")[0]


def _ability(agent: SimAgent) -> Ability:
    return Ability(
        agent.name, agent.cpu_slots, bool(agent.devices), len(agent.devices) > 1, agent.budget_mb, agent.own_model,
        agent.models,
    )  # fmt: skip


def _kinds(agents: Sequence[SimAgent]) -> list[SimAgent]:
    """One agent of each kind: a further one of it may be worth its price."""
    kinds = {
        replace(each, name="", devices=("",) * len(each.devices), host="", hot=()): each
        for each in reversed(agents)
        if each.name != places.BRAIN
    }
    return list(reversed(kinds.values()))[: limits.SIMULATED_KINDS_MAX]


# ------------------------------------------------------------------ what is shown


def _draw(found: _Found, terminal: Terminal) -> list[str]:
    played, total = found.played, sum(found.played.tasks.values())
    tasks = f"{total:,} {'task' if total == 1 else 'tasks'}"
    agents = ", ".join(each.name for each in found.agents if each.name != places.BRAIN)
    columns = (
        Column("task"), Column("class"), Column("tasks", right=True), Column("each", right=True), Column("time is"),
    )  # fmt: skip
    return [
        plain(f"{found.name} on {agents}: {format_millis(played.elapsed_ms)} for {tasks}"),
        "",
        *terminal.table(
            columns, [_task_row(found, task.name, task.task_class.value) for task in found.plan.tasks]
        ),
        "",
        *terminal.table(_AGENT_COLUMNS, [_agent_row(found, each) for each in found.agents]),
        "",
        *(_more_line(played, each) for each in found.more),
        *_guesses(found),
    ]


def _task_row(found: _Found, name: str, task_class: str) -> list[str]:
    count = found.played.tasks.get(name, 0)
    each = found.played.work_ms.get(name, 0) // count if count else found.forecaster.expected[name].mean_ms
    return [plain(name), task_class, f"{count:,}", format_millis(each), _told(found, name)]


def _told(found: _Found, name: str) -> str:
    expected, runs = found.forecaster.expected[name], found.runs[name]
    told = {
        Source.LEARNED: f"learned from {runs:,} {'run' if runs == 1 else 'runs'}",
        Source.SIMILAR: "a guess: the mean of other tasks of its class",
        Source.GUESS: "a guess",
    }[expected.source]
    items = found.forecaster.items.get(name)
    return (
        f"{told}; so is the number of items" if items is not None and items.source is Source.GUESS else told
    )


_AGENT_COLUMNS = (
    Column("agent"), Column("tasks", right=True), Column("busy", right=True), Column("work", right=True),
    Column("loads", right=True), Column("each", right=True),
)  # fmt: skip


def _agent_row(found: _Found, agent: SimAgent) -> list[str]:
    share, elapsed = found.played.shares[agent.name], max(1, found.played.elapsed_ms)
    return [
        plain(agent.name), f"{share.tasks:,}", f"{share.busy_ms / elapsed:.0%}", format_millis(share.work_ms),
        f"{share.loads:,}" if share.loads else "", format_millis(agent.load_ms) if share.loads else "",
    ]  # fmt: skip


def _more_line(played: Played, more: OneMore) -> str:
    after = more.played.elapsed_ms
    saved = played.elapsed_ms - after
    gained = (
        f"{saved / played.elapsed_ms:.0%} less" if saved * 100 >= played.elapsed_ms > 0 else "nothing gained"
    )
    return plain(f"one more like {more.like}: {format_millis(after)}, {gained}")


def _guesses(found: _Found) -> list[str]:
    """What to do about figures that are guesses."""
    guessed = [name for name, each in found.forecaster.items.items() if each.source is Source.GUESS]
    lines = [plain(f"say how many items {name} has with: --items {name}=NUMBER") for name in guessed]
    unknown = [task.name for task in found.plan.tasks if _is_guess(found.forecaster.expected[task.name])]
    if unknown:
        lines.append(
            plain(f"no batch has completed {', '.join(unknown)} yet: run the plan once on a few items")
        )
    loading = [
        each.name for each in found.agents
        if each.name in found.loads and found.played.shares[each.name].loads and found.loads[each.name] is Source.GUESS
    ]  # fmt: skip
    if loading:
        lines.append(
            plain(
                f"the time of a load on {', '.join(loading)} is a guess; measure it: watchbill gpus --bench"
            )
        )
    return ["", *lines] if lines else []


def _is_guess(expected: Expected) -> bool:
    return expected.source is not Source.LEARNED


def _fields(found: _Found) -> dict[str, object]:
    played, forecaster = found.played, found.forecaster
    return {
        "plan": found.name,
        "elapsed_ms": played.elapsed_ms,
        "tasks": [
            {
                "name": task.name, "class": task.task_class.value, "tasks": played.tasks.get(task.name, 0),
                "work_ms": played.work_ms.get(task.name, 0), "mean_ms": forecaster.expected[task.name].mean_ms,
                "time_source": forecaster.expected[task.name].source.value, "runs": found.runs[task.name],
                "items": len(forecaster.items[task.name].texts) if task.name in forecaster.items else None,
                "items_source": forecaster.items[task.name].source.value if task.name in forecaster.items else None,
            }
            for task in found.plan.tasks
        ],
        "agents": [
            {
                "name": each.name, "tasks": (share := played.shares[each.name]).tasks, "busy_ms": share.busy_ms,
                "work_ms": share.work_ms, "loads": share.loads, "load_ms": each.load_ms,
                "load_source": found.loads[each.name].value if each.name in found.loads else None,
            }
            for each in found.agents
        ],
        "one_more": [
            {
                "like": each.like, "elapsed_ms": each.played.elapsed_ms,
                "saved_ms": played.elapsed_ms - each.played.elapsed_ms,
            }
            for each in found.more
        ],
    }  # fmt: skip
