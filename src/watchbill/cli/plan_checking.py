"""How `plan check`, `plan graph` and `plan submit` report the findings about a plan. Standard library only."""

import json as jsonlib
import os
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from watchbill.cli.fleet_root import FLEET_VARIABLE
from watchbill.cli.plan_agents import Agents
from watchbill.cli.plan_permitting import Permits
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import ConfigError, NameRefused, Problem
from watchbill.fleet.folder import places as fleet_places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.names import check_folder_name
from watchbill.plans.bash_parse import parse_only
from watchbill.plans.batch import inputs_from_pairs, settle_inputs
from watchbill.plans.check import Checked, read_plan
from watchbill.plans.draw import mermaid
from watchbill.plans.findings import Finding
from watchbill.plans.syntax import BashSyntax

__all__ = ["WRONG", "check_plan", "count", "draw_plan", "find_plan", "read_with_bash", "tell"]

WRONG = 2
PLAN_FILE = "plan.md"


def check_plan(plan: str, pairs: Sequence[str], *, json: bool, root: Path | None, quiet: bool) -> int:
    """`plan check`. With inputs it looks at what `plan submit` would look at with the same ones."""
    file, terminal = find_plan(plan, root), Terminal(quiet=quiet)
    fleet = fleet_of(file, root)
    given = inputs_from_pairs(pairs)
    checked = read_with_bash(file, given if pairs else None, fleet)
    inputs = {each.name: each.default for each in checked.plan.inputs if each.default is not None}
    if pairs and checked.is_right:
        inputs = settle_inputs(checked.plan, given)
    if checked.is_right:
        folder = file.absolute().parent
        places = {"PLAN_PATH": str(folder), "BATCH_PATH": str(folder / "history" / "BATCH")}
        permits = Permits.of(fleet, file, places["BATCH_PATH"])
        permits.note(checked.plan, {**inputs, **places}, checked.findings)
    if checked.is_right and fleet is not None:
        agents = Agents.joined(FolderDisk(fleet))
        agents.refuse_what_none_could_run(checked.plan, inputs, checked.findings)
    tell(file, checked, terminal, json=json, is_set=given.keys())
    return 0 if checked.is_right else WRONG


def draw_plan(plan: str, *, root: Path | None, quiet: bool) -> int:
    """`plan graph`."""
    file, terminal = find_plan(plan, root), Terminal(quiet=quiet)
    checked = read_with_bash(file)
    if not checked.is_right:
        tell(file, checked, terminal)
        return WRONG
    terminal.show(mermaid(checked.plan.tasks))
    return 0


def read_with_bash(file: Path, given: Mapping[str, str] | None = None, root: Path | None = None) -> Checked:
    """Read and check a plan, with the inputs that are set where that is known, and have bash parse its commands."""
    return read_plan(file, BashSyntax(parse_only), given, root)


def find_plan(named: str, root: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The plan.md that is meant: in the named root first, then here; without a root also in $WATCHBILL_FLEET."""
    fleet = environment.get(FLEET_VARIABLE) if root is None else None
    here = Path(named)
    places = [
        *_in_root(named, root),
        *([here] if here.is_file() else []),
        here / PLAN_FILE,
        *_in_root(named, Path(fleet) if fleet else None),
    ]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(f"there is no plan {named}: looked for {looked}; name a folder with a {PLAN_FILE}")


def fleet_of(file: Path, root: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The shared folder whose agents would run a plan: the one that is named, else the one that the plan lies in."""
    named = root or environment.get(FLEET_VARIABLE)
    folder = Path(named) if named else file.resolve().parent.parent.parent
    return folder if (folder / fleet_places.MARKER).is_file() else None


def _in_root(named: str, root: Path | None) -> list[Path]:
    try:
        return [] if root is None else [root / "plans" / check_folder_name(named, "a plan") / PLAN_FILE]
    except NameRefused:
        return []  # a path: it means a folder or a file


def tell(
    file: Path,
    checked: Checked,
    terminal: Terminal,
    *,
    json: bool = False,
    is_set: Container[str] = (),
) -> None:
    """Print every finding about a plan."""
    findings = checked.findings
    if json:
        terminal.show(jsonlib.dumps(_as_fields(file, checked)))
        return
    for finding in findings.errors:
        _complain(_problem(file, finding))
    if findings.errors_unlisted:
        _complain(f"{file}: {findings.errors_unlisted:,} more errors")
    if not checked.is_right:
        return
    for finding in findings.notes:
        terminal.note(plain(_problem(file, finding)))
    if findings.notes_unlisted:
        terminal.note(plain(f"{file}: {findings.notes_unlisted:,} more notes"))
    for each in checked.plan.inputs:
        if each.default is not None and each.name not in is_set:
            terminal.note(
                plain(f"{file}:{each.line}: the input {each.name} is {each.default!r} unless it is set")
            )
    counts = f"{count(checked.plan.tasks, 'task')}, {count(checked.plan.inputs, 'input')}"
    terminal.show(plain(f"{file} is right: {counts}"))


def _complain(text: str | Problem) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def _problem(file: Path, finding: Finding) -> Problem:
    return Problem(str(file), finding.line, "", finding.text, finding.hint)


def count(things: Sequence[object], word: str) -> str:
    """The number of things, with their name."""
    return f"{len(things):,} {word}" if len(things) == 1 else f"{len(things):,} {word}s"


def _as_fields(file: Path, checked: Checked) -> dict[str, object]:
    plan, findings = checked.plan, checked.findings
    inputs = [{"name": each.name, "line": each.line, "default": each.default} for each in plan.inputs]
    tasks = [
        {
            "name": task.name,
            "line": task.line,
            "type": task.type.value,
            "executor": task.executor.value,
            "class": task.task_class.value,
            "depends_on": [each.name for each in task.depends_on],
        }
        for task in plan.tasks
    ]
    return {
        "ok": checked.is_right,
        "file": str(file),
        "title": plan.title,
        "errors": [each._asdict() for each in findings.errors],
        "errors_unlisted": findings.errors_unlisted,
        "notes": [each._asdict() for each in findings.notes],
        "inputs": inputs,
        "tasks": tasks,
    }
