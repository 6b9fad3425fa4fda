"""Commands about batches: status, wait, list, logs, cancel, retry, resume. From the shared folder alone."""

import json as jsonlib
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from watchbill.cli import limits
from watchbill.cli.fleet_root import open_fleet
from watchbill.cli.plan_asking import asked, begin_round, refuse_behind_another
from watchbill.cli.plan_checking import WRONG, read_with_bash, tell
from watchbill.cli.plan_reasons import reason_for, show_items
from watchbill.cli.plan_submitting import read_inputs
from watchbill.cli.plan_views import follow, show_batch, show_overview, tell_unreadable, wait
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.requests import (
    Reopening,
    ask_to_cancel,
    ask_to_reopen,
    cancel_request,
    has_request,
    new_request_id,
)
from watchbill.fleet.folder.results import ResultReader
from watchbill.fleet.folder.values import fields_of
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.reading import BatchPlace, Follower, batches_of, find_batch
from watchbill.fleet.state.resuming import Reason, reason_of, reason_of_waiting
from watchbill.fleet.views.overview import (
    BatchView,
    limits_fields,
    overview,
    overview_fields,
    shortage_field,
)
from watchbill.fleet.views.progress import BatchProgress, BatchState, TaskStage
from watchbill.fleet.views.room import shortage_of
from watchbill.limits import SUGGEST_LISTED_MAX
from watchbill.names import file_stem
from watchbill.plans.batch import shared_inputs
from watchbill.plans.check import Plan
from watchbill.plans.limits import PLAN_INPUTS_BYTES_MAX
from watchbill.suggest import nearest

__all__ = [
    "batch_of_task",
    "cancel_batch",
    "list_batches",
    "resume_batch",
    "retry_tasks",
    "show_logs",
    "show_status",
    "wait_for_batch",
]

FAILED = 1
TIMED_OUT = 124


# ------------------------------------------------------------------ looking


def show_status(
    batch: str | None,
    *,
    follows: bool,
    json: bool,
    root: Path | None,
    quiet: bool,
    tasks_max: int = limits.CLI_TASKS_SHOWN,
) -> int:
    """`plan status`. With --follow the exit code is 1 for a batch that did not complete."""
    folder, disk = open_fleet(root)
    terminal = Terminal(quiet=quiet)
    if batch is None and follows:
        batch = _newest(disk)
    if batch is None:
        found = overview(folder, disk, limits.CLI_BATCHES_SHOWN)
        if json:
            terminal.show(jsonlib.dumps(overview_fields(found)))
        else:
            show_overview(found, terminal)
        return 0
    view = BatchView(disk, find_batch(disk, batch))
    if follows:
        progress = follow(view, terminal, json=json)
        if not json:
            show_batch(view, terminal, tasks_max=tasks_max)
        return _code_of(progress)
    if json:
        told = {"limits": limits_fields(view.limits), "shortage": shortage_field(shortage_of(folder))}
        terminal.show(jsonlib.dumps({**view.look().fields(), **told}))
    else:
        show_batch(view, terminal, tasks_max=tasks_max)
    return 0


def wait_for_batch(batch: str, *, timeout: float | None, root: Path | None, quiet: bool) -> int:
    """`plan wait`: 0 complete, 1 ended otherwise, 124 not ended in time."""
    _, disk = open_fleet(root)
    view = BatchView(disk, find_batch(disk, batch))
    progress = wait(view, timeout)
    if not quiet:
        Terminal().note(
            f"{progress.batch} is {progress.state.value}: {progress.done:,} of {progress.total:,} tasks ended"
        )
    return _code_of(progress) if progress.state.has_ended else TIMED_OUT


def _newest(disk: FolderDisk) -> str:
    every = batches_of(disk)
    if not every:
        hint = f"submit a plan: {places.fleet_command(disk.root, 'plan', 'submit', 'PLAN')}"
        raise OursError("there are no batches", hint=hint)
    active = [each for each in every if each.is_active or each.is_submitted]
    return (active or every)[-1].batch


def _code_of(progress: BatchProgress) -> int:
    return 0 if progress.state is BatchState.COMPLETE else FAILED


def list_batches(*, json: bool, root: Path | None, quiet: bool) -> int:
    """`plan list`: the plans of the folder, and every batch."""
    folder, disk = open_fleet(root)
    terminal = Terminal(quiet=quiet)
    plans = [name for name in disk.names("plans") if os.path.isfile(folder / "plans" / name / "plan.md")]
    batches = [(each, BatchView(disk, each).look_or_say()) for each in batches_of(disk)]
    tell_unreadable((found for _, found in batches), terminal)
    if json:
        rows = [
            {"batch": each.batch, "plan": each.plan, "state": found.state.value} for each, found in batches
        ]
        terminal.show(jsonlib.dumps({"plans": plans, "batches": rows}))
        return 0
    columns = [Column("plan"), Column("batch"), Column("state"), Column("done", right=True)]
    rows = [
        [plain(each.plan), plain(each.batch), found.state.value, f"{found.done:,}/{found.total:,}"]
        for each, found in sorted(batches, key=lambda pair: (pair[0].plan, pair[0].batch))
    ]
    run = {each.plan for each, _ in batches}
    rows += [[plain(name), "", "never run", ""] for name in plans if name not in run]
    terminal.show(*terminal.table(columns, sorted(rows)))
    return 0


# ------------------------------------------------------------------ logs


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt of a task, and where its files are."""

    task: str
    number: int
    folder: Path
    ledger: Ledger

    @property
    def runs(self) -> bool:
        return (
            self.number == self.ledger.state(self.task).attempt
            and self.ledger.phase(self.task) is Phase.ISSUED
        )

    def file(self, name: str) -> bytes:
        """What it left under this name; nothing where there is no such file."""
        try:
            with (self.folder / name).open("rb") as opened:
                return opened.read(limits.CLI_LOG_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return b""


def show_logs(
    task: str,
    *,
    batch: str | None,
    attempt: int | None,
    root: Path | None,
    quiet: bool,
    follows: bool = False,
    json: bool = False,
) -> int:
    """`plan logs`: the output and the result of a task's last attempt, or of the one that is named."""
    folder, disk = open_fleet(root)
    terminal = Terminal(quiet=quiet)
    place, ledger = batch_of_task(disk, task, batch)
    if follows:
        ledger = _follow_task(folder, disk, place, task, terminal)
    view = BatchView(disk, place)
    if task in ledger.templates() and not json:
        show_items(view, task, ledger.tasks_of(task), terminal, limits.CLI_TASKS_SHOWN)
        return 0
    found = _attempt_of(folder, place, ledger, task, attempt)
    why = reason_for(view, task)
    if json:
        terminal.show(jsonlib.dumps(_log_fields(disk, place, found, task, why)))
    elif found is None:
        terminal.show(plain(f"{why}; it has had no attempt"))
    elif found.runs and not _is_held(view, task):
        terminal.show(plain(why))
    else:
        _print_log(disk, found, terminal)
        if ledger.phase(task) not in (Phase.COMPLETE, Phase.ISSUED):
            had = ledger.state(task).attempt
            earlier = f"this was attempt {found.number} of {had}; now " if found.number < had else ""
            terminal.note(f"--- {earlier}{plain(why)}")
    return 0


def _is_held(view: BatchView, task: str) -> bool:
    """Whether an agent has the task."""
    return any(each.id == task and each.state is TaskStage.RUNNING for each in view.look().tasks)


def _attempt_of(
    folder: Path, place: BatchPlace, ledger: Ledger, task: str, wanted: int | None
) -> _Attempt | None:
    """The attempt that is meant; None where there was none at all. Raises OursError for a number that it has not."""
    had = ledger.state(task).attempt
    if not had and wanted is None:
        return None
    number = had if wanted is None else wanted
    if not 1 <= number <= had:
        raise OursError(f"{task} of {place.batch} has no attempt {number}: it has had {had}")
    own = folder / place.folder / "tasks" / file_stem(task) / f"a{number}"
    return _Attempt(task, number, own, ledger)


def _print_log(disk: FolderDisk, attempt: _Attempt, terminal: Terminal) -> None:
    kept = {name: content for name in ("stdout", "stderr", "result.json") if (content := attempt.file(name))}
    if _is_last_line(kept.get("result.json", b""), kept.get("stdout", b"")):
        del kept["result.json"]  # it would be shown twice
    for name, content in kept.items():
        terminal.note(f"--- {plain(attempt.folder / name)}")
        terminal.write(content.decode("utf-8", "replace"))
        if not content.endswith(b"\n"):
            terminal.write("\n")
    if kept:
        return
    if attempt.runs:
        terminal.note(f"--- {attempt.task} still runs; the end of what it has written so far")
        terminal.show(
            plain(attempt.file(places.SO_FAR).decode("utf-8", "replace").rstrip("\n") or "nothing so far")
        )
        return
    tail = _tail_of(disk, attempt.ledger, attempt.task, attempt.number).rstrip("\n")
    so_far = attempt.file(places.SO_FAR).decode("utf-8", "replace").rstrip("\n")
    terminal.show(plain(tail or so_far or "the attempt wrote nothing that was kept"))


def _is_last_line(result: bytes, output: bytes) -> bool:
    """Whether a result is the last line of the output, spelled in whatever way."""
    try:
        last = cast("object", jsonlib.loads(output.rstrip().rpartition(b"\n")[2]))
        return cast("object", jsonlib.loads(result)) == last
    except (ValueError, RecursionError):
        return False


def _log_fields(
    disk: FolderDisk, place: BatchPlace, attempt: _Attempt | None, task: str, why: str
) -> dict[str, object]:
    if attempt is None:
        return {"batch": place.batch, "task": task, "attempt": 0, "why": why}
    texts = {
        name: attempt.file(name).decode("utf-8", "replace") for name in ("stdout", "stderr", places.SO_FAR)
    }
    try:
        result = cast("object", jsonlib.loads(attempt.file("result.json") or b"null"))
    except ValueError:
        result = None
    tail = "" if attempt.runs else _tail_of(disk, attempt.ledger, attempt.task, attempt.number)
    return {
        "batch": place.batch, "task": attempt.task, "attempt": attempt.number,
        "state": "running" if attempt.runs else attempt.ledger.phase(attempt.task).value, "why": why, **texts,
        "tail": tail, "result": result,
    }  # fmt: skip


def _follow_task(folder: Path, disk: FolderDisk, place: BatchPlace, task: str, terminal: Terminal) -> Ledger:
    """Print what a task writes, as its agent shows it, until it has ended."""
    follower, before = Follower(disk, place), ""
    while True:
        ledger = follower.read()
        found = _attempt_of(folder, place, ledger, task, None)
        if (
            found is not None
            and (now := found.file(places.SO_FAR).decode("utf-8", "replace"))
            and now != before
        ):
            terminal.write(now[len(before) :] if now.startswith(before) else now)
            before = now
        if ledger.phase(task) not in (Phase.WAITING, Phase.READY, Phase.ISSUED):
            terminal.note(f"--- {plain(task)} is {ledger.phase(task).value}")
            return ledger
        time.sleep(limits.CLI_FOLLOW_S)


def _tail_of(disk: FolderDisk, ledger: Ledger, task: str, attempt: int) -> str:
    """The output that is part of an attempt's result: short outputs have no file."""
    state = ledger.state(task)
    if attempt == state.attempt and state.last:
        for result in ResultReader(disk).read():
            if result.name == state.last and result.tail:
                return result.tail
    return state.tail


def batch_of_task(disk: FolderDisk, task: str, batch: str | None) -> tuple[BatchPlace, Ledger]:
    """The named batch or, without one, the newest that has this task."""
    if batch is not None:
        place = find_batch(disk, batch)
        ledger = Follower(disk, place).read()
        _refuse_unopened(disk, place, ledger)
        if task not in ledger:
            see = f"see: {places.fleet_command(disk.root, 'plan', 'status', place.batch, '--json')}"
            raise OursError(f"{place.batch} has no task {task}", hint=_nearest_task(task, ledger) or see)
        return place, ledger
    newest = ""
    for place in reversed([each for each in batches_of(disk) if each.has_journal]):
        try:
            ledger = Follower(disk, place).read()
        except OursError as error:  # it may be in another one
            Terminal().note(plain(str(error)))
            continue
        if task in ledger:
            return place, ledger
        newest = newest or _nearest_task(task, ledger)
    see = f"see: {places.fleet_command(disk.root, 'plan', 'list')}"
    raise OursError(f"no batch has a task {task}", hint=newest or see)


def _refuse_unopened(disk: FolderDisk, place: BatchPlace, ledger: Ledger) -> None:
    """Refuse what is asked about a batch that no coordinator has opened yet: it has no tasks."""
    if place.is_submitted and not ledger.is_open:
        waits = places.fleet_command(disk.root, "plan", "status", place.batch, "--follow")
        cancels = places.fleet_command(disk.root, "plan", "cancel", place.batch)
        raise OursError(
            f"{place.batch} is submitted, and no coordinator has opened it yet",
            hint=f"wait for it: {waits}; or cancel it: {cancels}",
        )


def refuse_if_to_be_cancelled(disk: FolderDisk, ledger: Ledger) -> None:
    """Refuse to go on with a batch while a request to cancel it is unread: it would be obeyed behind this one."""
    request = cancel_request(disk, ledger.batch)
    if request is not None and (not request or request not in ledger.cancels):
        follow = places.fleet_command(disk.root, "plan", "status", ledger.batch, "--follow")
        raise OursError(
            f"{ledger.batch} is about to be cancelled, as somebody asked before",
            hint=f"wait for it: {follow}",
        )


def _nearest_task(task: str, ledger: Ledger) -> str:
    """A question that names the task which may be meant; "" where none is near."""
    near = nearest(task, ledger.tasks())
    return f"did you mean {near}?" if near else ""


# ------------------------------------------------------------------ requests


def cancel_batch(batch: str, *, root: Path | None, quiet: bool) -> int:
    """`plan cancel`."""
    folder, disk = open_fleet(root)
    place = find_batch(disk, batch)
    if BatchView(disk, place).look().state is BatchState.NOT_SUBMITTED:
        raise OursError(
            f"{place.batch} was not submitted as a whole, there is nothing to cancel",
            hint=f"remove it: rm -r {shlex.quote(str(folder / place.folder))}",
        )
    if not place.is_active and not place.is_submitted and not has_request(disk, place.batch):
        raise OursError(f"{place.batch} has ended, there is nothing to cancel")
    file = ask_to_cancel(disk, place.batch)
    asked(folder, disk, Terminal(quiet=quiet), f"{place.batch} will be cancelled", request=file)
    return 0


def retry_tasks(tasks: Sequence[str], *, batch: str | None, root: Path | None, quiet: bool) -> int:
    """`plan retry`: run these tasks again, and what depends on them; everything else stays as it is."""
    folder, disk = open_fleet(root)
    place, ledger = batch_of_task(disk, tasks[0], batch)
    refuse_if_to_be_cancelled(disk, ledger)
    _refuse_unknown(ledger, tasks)
    running = [task for task in tasks if ledger.phase(task) in (Phase.WAITING, Phase.READY, Phase.ISSUED)]
    # A task that waits for its next attempt has none under way: it need not wait any longer.
    running = [task for task in running if not ledger.tasks_of(task) and not ledger.state(task).delay_ms]
    if running:
        raise OursError(f"{running[0]} of {place.batch} has not ended, there is nothing to repeat")
    named = [_named(ledger, task) for task in tasks]
    cancelled = sum(ledger.phase(task) is Phase.CANCELLED for task in ledger.tasks() if task not in tasks)
    were = "task that was" if cancelled == 1 else "tasks that were"
    others = f", and so will {cancelled:,} more {were} cancelled" if cancelled else ""
    request = Reopening(new_request_id(), place.batch, place.plan, tuple(tasks))
    told = ", ".join(_told(disk, ledger, named, _culprits(disk, ledger, request)))
    file = ask_to_reopen(disk, request)
    asked(
        folder, disk, Terminal(quiet=quiet), f"{told} of {place.batch} will run again{others}", request=file
    )
    return 0


@dataclass(frozen=True, slots=True)
class _Named:
    """A name that is asked for, and what it means: itself, or the tasks of a fan-out that did not complete."""

    name: str
    parts: tuple[str, ...]
    total: int = 0  # tasks of the fan-out; 0 for a single task


def _named(ledger: Ledger, task: str) -> _Named:
    """Raises OursError for a fan-out of which nothing would run again."""
    parts = ledger.tasks_of(task)
    if not parts:
        return _Named(task, (task,))
    again = tuple(part for part in parts if ledger.phase(part) is not Phase.COMPLETE)
    if not again:
        raise OursError(
            f"{_all_of(parts, task)} complete, there is nothing to repeat",
            hint=f"to run one of them again all the same, name it, as {parts[0]}",
        )
    return _Named(task, again, len(parts))


def _all_of(parts: Sequence[str], task: str) -> str:
    return f"the only task of {task} is" if len(parts) == 1 else f"all {len(parts):,} tasks of {task} are"


def _culprits(disk: FolderDisk, ledger: Ledger, request: Reopening) -> dict[str, str]:
    """The tasks that would only be skipped as before, and because of which. Begins the new round on the ledger."""
    begin_round(disk, ledger, request)
    return {each.name: each.culprit for each in ledger.reports() if each.culprit}


def _told(
    disk: FolderDisk, ledger: Ledger, named: Sequence[_Named], culprits: Mapping[str, str]
) -> Iterator[str]:
    """What runs again for each name. Raises OursError for one of which all would be skipped again."""
    for each in named:
        skipped = [found for part in each.parts if (found := culprits.get(part) or culprits.get(each.name))]
        at_fault = _at_fault(ledger, skipped)
        if len(skipped) == len(each.parts):
            hint = places.fleet_command(disk.root, "plan", "retry", *at_fault, "--batch", ledger.batch)
            raise OursError(
                f"{each.name} of {ledger.batch} would be skipped again, because of {', '.join(at_fault)}",
                hint=f"repeat that: {hint}",
            )
        left = f" ({len(skipped):,} more stay skipped, because of {', '.join(at_fault)})" if skipped else ""
        runs = len(each.parts) - len(skipped)
        yield f"{runs:,} of {each.total:,} tasks of {each.name}{left}" if each.total else each.name


def _at_fault(ledger: Ledger, culprits: Sequence[str]) -> list[str]:
    """The names to repeat: several tasks of a fan-out by that of the fan-out."""
    found = sorted(set(culprits))
    parts = Counter(ledger.template_of(task) for task in found)
    names = (
        template if parts[template := ledger.template_of(task)] > 1 and template else task for task in found
    )
    return list(dict.fromkeys(names))[:SUGGEST_LISTED_MAX]


def _refuse_unknown(ledger: Ledger, tasks: Sequence[str]) -> None:
    for task in tasks:
        if task not in ledger:
            raise OursError(f"{ledger.batch} has no task {task}", hint=_nearest_task(task, ledger))


def resume_batch(
    batch: str, *, explain: bool, pairs: Sequence[str], json: bool, root: Path | None, quiet: bool
) -> int:
    """`plan resume`: read the plan again, keep what is complete and unchanged, run the rest."""
    folder, disk = open_fleet(root)
    terminal = Terminal(quiet=quiet)
    place = find_batch(disk, batch)
    ledger = Follower(disk, place).read()
    _refuse_unopened(disk, place, ledger)
    if not place.has_journal or not ledger.is_open:
        hint = f"submit it again: {places.fleet_command(folder, 'plan', 'submit', place.plan)}"
        raise OursError(f"{place.batch} has no journal to go on from", hint=hint)
    if not explain:
        refuse_if_to_be_cancelled(disk, ledger)
    if ledger.outcome is None:
        hint = f"cancel it first: {places.fleet_command(folder, 'plan', 'cancel', place.batch)}"
        raise OursError(f"{place.batch} still runs", hint=hint)
    if not explain and has_request(disk, place.batch):
        # The coordinator obeys in turn: the batch would run by then, and this request be refused.
        hint = f"cancel that first: {places.fleet_command(folder, 'plan', 'cancel', place.batch)}"
        raise OursError(f"{place.batch} is about to go on, as somebody asked before", hint=hint)
    checked = read_with_bash(folder / "plans" / place.plan / "plan.md", root=folder)
    if not checked.is_right:
        tell(folder / "plans" / place.plan / "plan.md", checked, terminal, json=json)
        return WRONG
    given = read_inputs(pairs, None)
    inputs = shared_inputs(given, PurePosixPath(folder))
    for note in _kept_defaults(checked.plan, ledger, {*given, *_inputs_told(disk, place)}):
        terminal.note(plain(note))
    request = Reopening(new_request_id(), place.batch, place.plan, (), reads_plan=True, inputs=inputs)
    reasons = _reasons(disk, ledger, request)
    if explain:
        _explain(reasons, terminal, json=json)
        return 0
    file = ask_to_reopen(disk, request)
    refuse_behind_another(folder, disk, place.batch, file)
    kept = sum(reason.is_kept for reason in reasons.values())
    told = f"{place.batch} goes on: {kept:,} of {len(reasons):,} known tasks are kept"
    asked(folder, disk, terminal, told, request=file)
    return 0


def _inputs_told(disk: FolderDisk, place: BatchPlace) -> set[str]:
    """The inputs that a batch was submitted with; none where its folder does not say so."""
    path = f"{places.batch_folder(place.plan, place.batch)}/inputs.json"
    try:
        return set(fields_of(disk.read(path, PLAN_INPUTS_BYTES_MAX * 2)).mapping("inputs"))
    except (OSError, NotAFile, ValueError):
        return set()


def _kept_defaults(plan: Plan, ledger: Ledger, told: set[str]) -> Iterator[str]:
    """The defaults that were changed in the plan: a batch keeps the inputs that it began with."""
    for each in plan.inputs:
        value = ledger.inputs.get(each.name)
        if each.default is None or not isinstance(value, str) or value == each.default:
            continue
        if each.name in plan.used and each.name not in told:
            says = f"the input {each.name} stays {value!r}, and its default is now {each.default!r}"
            yield f"{says}; to change it add --set {shlex.quote(f'{each.name}={each.default}')}"


def _reasons(disk: FolderDisk, ledger: Ledger, request: Reopening) -> dict[str, Reason]:
    """Why each task would run again, or not: replays the first steps of the new round on a copy of the ledger."""
    effects = begin_round(disk, ledger, request)
    reasons = {task: reason_of(ledger, task) for effect in effects for task in effect.ready}
    waiting = {task: reason_of_waiting(ledger, task) for task in ledger.tasks() if task not in reasons}
    return {**reasons, **waiting}


def _explain(reasons: dict[str, Reason], terminal: Terminal, *, json: bool) -> None:
    if json:
        fields = {
            task: {"kept": reason.is_kept, "why": reason.change.name.lower(), "about": reason.about}
            for task, reason in reasons.items()
        }
        terminal.show(jsonlib.dumps({"tasks": fields}))
        return
    rows = [
        [plain(task), "kept" if reason.is_kept else "runs", plain(reason)] for task, reason in reasons.items()
    ]
    terminal.show(*terminal.table([Column("task"), Column(""), Column("why")], rows))
