"""`plan submit`: a checked plan becomes a batch folder and one file in the inbox. No daemon, no network, no package.

Paths are stored so that other machines can use them: an input in the shared folder is stored relative to it.
"""

import contextlib
import json as jsonlib
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.plan_agents import Agents
from watchbill.cli.plan_checking import WRONG, find_plan, read_with_bash, tell
from watchbill.cli.plan_permitting import Permits, ValueOf
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import OursError
from watchbill.files.given import open_given
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.places import make_fleet
from watchbill.fleet.views.overview import coordinator_of
from watchbill.plans import limits
from watchbill.plans.batch import (
    BelowRoot,
    ExecutePlan,
    batch_id,
    encoded_inputs,
    inputs_from_json,
    inputs_from_pairs,
    priority_of,
    settle_inputs,
    shared_inputs,
)  # fmt: skip
from watchbill.plans.check import Plan
from watchbill.plans.command import shown_command
from watchbill.plans.expand import items_at, values_of
from watchbill.plans.placeholders import Placeholder, fill
from watchbill.plans.task import PRIORITIES, Task

__all__ = ["priority_from", "read_inputs", "submit_plan"]

#: Folders that the scripts of a plan expect.
_FOLDERS = ("results", "output", "logs")


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `plan submit`."""

    plan: str
    pairs: Sequence[str] = ()
    inputs: str | None = None
    priority: str | None = None


def submit_plan(submission: Submission, *, dry_run: bool, json: bool, root: Path | None, quiet: bool) -> int:
    """`plan submit`. Nothing is written for a plan that cannot be run."""
    folder, terminal = find_fleet(root), Terminal(quiet=quiet)
    file = find_plan(submission.plan, folder)
    given = read_inputs(submission.pairs, submission.inputs)
    checked = read_with_bash(file, given, folder)
    agents = Agents.joined(FolderDisk(folder))
    settled = settle_inputs(checked.plan, given) if checked.is_right else {}
    if checked.is_right:
        agents.refuse_what_none_could_run(checked.plan, settled, checked.findings)
    if not checked.is_right:
        tell(file, checked, terminal, json=json)
        return WRONG
    name = _name_in(folder, file)
    batch = batch_id(datetime.now().astimezone(), secrets.token_hex(3))  # the local time: people read it
    priority = priority_from(submission.priority) or priority_of(settled)
    order = ExecutePlan(batch, name, _inputs_to_store(given, settled, folder), priority)
    if dry_run:
        _show_commands(folder, order, checked.plan, settled, terminal, json=json)
        return 0
    _write(folder, order)
    _told(folder, order, terminal, json=json)
    agents.tell_what_waits(checked.plan, settled, terminal)
    return 0


def _inputs_to_store(
    given: Mapping[str, str], settled: Mapping[str, str], folder: Path
) -> dict[str, str | BelowRoot]:
    """The inputs that were given, and the defaults that are paths of this machine to the shared folder."""
    shared = shared_inputs(settled, PurePosixPath(folder))
    return {name: value for name, value in shared.items() if name in given or isinstance(value, BelowRoot)}


def read_inputs(pairs: Sequence[str], inputs: str | None) -> dict[str, str]:
    """The inputs of --inputs, then those of --set."""
    found: dict[str, str] = {}
    if inputs is not None:
        text = _content_of(Path(inputs[1:])) if inputs.startswith("@") else inputs
        found.update(inputs_from_json(text))
    found.update(inputs_from_pairs(pairs))
    return found


def _content_of(file: Path) -> str:
    with open(open_given(file), encoding="utf-8") as opened:
        return opened.read(limits.PLAN_INPUTS_BYTES_MAX + 1)


def priority_from(text: str | None) -> int | None:
    """A priority as a number or a word. Raises OursError."""
    if text is None:
        return None
    word = text.strip().lower()
    if word in PRIORITIES:
        return PRIORITIES[word]
    if word in ("1", "2", "3", "4", "5"):
        return int(word)
    raise OursError(f"{text} is no priority", hint=f"use 1 to 5, or {', '.join(PRIORITIES)}")


def _name_in(folder: Path, file: Path) -> str:
    """The name of a plan in the shared folder. Raises OursError for one that lies elsewhere."""
    plans = (folder / "plans").resolve()
    found = file.resolve().parent
    if found.parent != plans:
        raise OursError(
            f"{file.parent} is not in {plans}: agents could not read it",
            hint=f"copy it there: cp -r {shlex.quote(str(found))} {shlex.quote(str(plans))}/",
        )
    return found.name


# ------------------------------------------------------------------ writing


def _write(folder: Path, order: ExecutePlan) -> None:
    """Submit a batch: all of it or nothing. Raises OSError."""
    make_fleet(folder)
    disk = FolderDisk(folder)
    try:
        _put(disk, order)
    except OSError:
        # Whether or not the last file is there: the batch's name was not told, and half a batch must not be found.
        with contextlib.suppress(OSError):
            disk.remove(f"{places.INBOX}/{order.batch}.json")
        shutil.rmtree(folder / places.batch_folder(order.plan, order.batch), ignore_errors=True)
        raise


def _put(disk: FolderDisk, order: ExecutePlan) -> None:
    own = places.batch_folder(order.plan, order.batch)
    for name in _FOLDERS:
        disk.make_folder(f"{own}/{name}")
    record = {"plan": order.plan, "priority": order.priority, "inputs": encoded_inputs(order.inputs)}
    disk.put(f"{own}/inputs.json", jsonlib.dumps(record, indent=2).encode() + b"\n")
    # Written last, and durably: this file submits the batch.
    disk.put(f"{places.INBOX}/{order.batch}.json", order.encode(), durable=True)


def _told(folder: Path, order: ExecutePlan, terminal: Terminal, *, json: bool) -> None:
    own = folder / places.batch_folder(order.plan, order.batch)
    if json:
        terminal.show(jsonlib.dumps({"batch": order.batch, "plan": order.plan, "path": str(own)}))
    else:
        terminal.show(order.batch)
    for name, value in order.inputs.items():
        if isinstance(value, BelowRoot):
            terminal.note(plain(f"{name} is in the shared folder: machines read it as {{ROOT}}/{value.path}"))
    if coordinator_of(FolderDisk(folder)).is_dead:
        terminal.note(f"no coordinator runs; start one: {places.fleet_command(folder, 'coordinator')}")
    terminal.note(
        f"follow it with: {places.fleet_command(folder, 'plan', 'status', order.batch, '--follow')}"
    )


# ------------------------------------------------------------------ --dry-run


def _show_commands(
    folder: Path,
    order: ExecutePlan,
    plan: Plan,
    settled: Mapping[str, str],
    terminal: Terminal,
    *,
    json: bool,
) -> None:
    own = folder / places.batch_folder(order.plan, order.batch)
    known = {
        **settled, "BATCH_ID": order.batch, "BATCH_PATH": str(own), "PLAN_PATH": str(folder / "plans" / order.plan),
        "ROOT": str(folder),
    }  # fmt: skip
    permits = Permits.of(folder, folder / "plans" / order.plan / "plan.md", str(own))
    rows: list[dict[str, str | None]] = []
    for task in plan.tasks:
        known["TASK_PATH"] = str(own / "tasks" / task.name / "a1")
        for head, value_of in _commands(task, known):
            ruling, text = permits.against(task, value_of), _text_of(plan, task, value_of)
            rows.append({"task": task.name, "about": head, "command": text, "ruling": ruling and str(ruling)})
            if not json:
                told = [] if ruling is None else [plain(f"# {ruling}")]
                terminal.show(plain(f"# {head}"), *told, plain(text), "")
    if json:
        terminal.show(jsonlib.dumps({"plan": order.plan, "commands": rows}))


def _commands(task: Task, known: Mapping[str, str]) -> Iterator[tuple[str, ValueOf]]:
    """Each command of a task with its values, as far as its items are known before anything ran."""
    after = ", ".join(each.name for each in task.depends_on)
    head = f"{task.name} ({task.task_class.value}{f', after {after}' if after else ''})"

    def value_of(place: Placeholder) -> str:
        return str(place) if place.is_item else known[place.name]

    items = _items_now(task, known)
    if task.foreach is None:
        yield head, value_of
    elif items is None:
        yield f"{head}: once for each item of {fill(task.foreach.file, value_of)}", value_of
    else:
        for number, item in enumerate(items, start=1):
            yield f"{head}, item {number} of {len(items)}", values_of(item, value_of)


def _items_now(task: Task, known: Mapping[str, str]) -> Sequence[object] | None:
    """The items of a foreach whose manifest is there already, and which no task could still write."""
    if task.foreach is None or task.depends_on:
        return None
    file = fill(task.foreach.file, lambda place: known[place.name])
    path = Path(known["PLAN_PATH"]) / file
    try:
        with path.open("rb") as opened:
            return items_at(opened.read(limits.PLAN_MANIFEST_BYTES_MAX + 1), task.foreach._replace(file=file))
    except OSError as error:
        raise OursError(
            f"plan.md:{task.line_of('foreach')}: {path}: {os.strerror(error.errno or 0).lower()}"
        ) from None


def _text_of(plan: Plan, task: Task, value_of: ValueOf) -> str:
    command = plan.commands.get(task.name)
    if command is not None:
        return shown_command(command, value_of)
    prompt = task.prompt.text if task.prompt is not None else ""
    return f"{task.type.value}: {fill(prompt, value_of)}"
