"""How batches are shown: lists, tables and live progress, from the shared folder alone. Standard library only."""

import json as jsonlib
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from watchbill.cli import limits
from watchbill.cli.terminal import Column, Part, Terminal, plain
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HELD, STOPPED, HeldWhy, OnHold
from watchbill.fleet.folder.heartbeat import heartbeats
from watchbill.fleet.permissions.rules import FILE, SandboxRules
from watchbill.fleet.state.entries import Cause
from watchbill.fleet.views.overview import BatchView, Overview, coordinator_of, short_fields
from watchbill.fleet.views.progress import BatchProgress, BatchState, TaskLine, TaskStage
from watchbill.fleet.views.room import Shortage, shortage_of
from watchbill.units import format_bytes, format_millis

__all__ = ["follow", "show_batch", "show_overview", "told_hold", "told_why", "wait"]

_STYLES = {
    BatchState.COMPLETE: "green", BatchState.PARTIAL: "yellow", BatchState.FAILED: "red", BatchState.REFUSED: "red",
    BatchState.NOT_SUBMITTED: "red", BatchState.UNREADABLE: "red",
    BatchState.RUNNING: "cyan", BatchState.SUBMITTED: "dim", BatchState.CANCELLED: "dim",
}  # fmt: skip
_PARTS = {
    TaskStage.COMPLETE: ("█", "green"), TaskStage.FAILED: ("▓", "red"), TaskStage.RUNNING: ("▒", "cyan"),
}  # fmt: skip
_BAR_CELLS = 40


# ------------------------------------------------------------------ agents


def told_hold(root: Path, agent: str, hold: OnHold) -> str:
    """That an agent claims nothing, why, and the command that lets it go on."""
    lift = places.fleet_command(root, "signal", agent, "resume")
    if hold.why is HeldWhy.PERSON:
        return f"{agent} is held: it was told to claim nothing; let it go on: {lift}"
    if hold.why is HeldWhy.DISK_FULL:
        return f"{agent} is held: the disk of {hold.folder} on its machine is full; it goes on when there is room"
    left = "soon" if hold.left_ms is None else f"in about {format_millis(hold.left_ms)}"
    return (
        f"{agent} is held: tasks failed on it that did not fail elsewhere; it goes on {left}; at once: {lift}"
    )


# ------------------------------------------------------------------ one batch


def show_batch(view: BatchView, terminal: Terminal, *, tasks_max: int) -> BatchProgress:
    """Print a batch: head, counts, agents, and the tasks that are not simply done."""
    progress = view.look()
    terminal.show(*_lines(progress, view, terminal, tasks_max))
    return progress


def _lines(progress: BatchProgress, view: BatchView, terminal: Terminal, tasks_max: int) -> Iterable[str]:
    state = terminal.mark(progress.state.value, _STYLES[progress.state])
    yield f"{plain(progress.batch)}  {plain(progress.plan)}  {state}{_times(progress)}"
    if refusal := view.refusal:
        yield plain(refusal)
    if not progress.state.has_ended and (stuck := _why_stuck(view)):
        yield plain(stuck)
    yield from _told_holds(progress, view.root)
    if not progress.state.has_ended:
        yield from _told_limits(view.limits)
    if progress.total:
        yield f"{_bar(progress, terminal)}  {_counted(progress)}"
    if progress.agents:
        columns = [Column("agent"), *(Column(word, right=True) for word in ("running", "complete", "failed"))]
        rows = [
            [plain(name), str(share.running), str(share.complete), str(share.failed)]
            for name, share in progress.agents.items()
        ]
        yield from ("", *terminal.table(columns, rows))
    told = [
        each
        for each in progress.tasks
        if each.state in (TaskStage.RUNNING, TaskStage.FAILED, TaskStage.MANUAL)
    ]
    told += [each for each in progress.tasks if each.unclaimed is not None or each.again_at is not None]
    told += [each for each in progress.tasks if each.state is TaskStage.SKIPPED]
    if told:
        rows = [
            [plain(each.id), each.state, str(each.attempt), plain(each.agent), _exit(each.exit),
             plain(told_why(each))]
            for each in told[:tasks_max]
        ]  # fmt: skip
        columns = [
            Column("task"), Column("state"), Column("attempt", right=True), Column("agent"), Column("exit", right=True),
            Column("why"),
        ]  # fmt: skip
        yield from ("", *terminal.table(columns, rows))
        if len(told) > tasks_max:
            yield f"{len(told) - tasks_max:,} more; --json lists all"


def told_why(task: TaskLine) -> str:
    """Why a task is where it is: in words, with the last line of its error."""
    if task.culprit:
        return f"because of {task.culprit}"
    if task.held is Cause.LOSSES:
        return f"losses: its agent died {fleet_limits.LOSSES_MAX} times while it ran"
    again = "" if task.again_at is None else f"again at {_clock(task.again_at)}; "
    said = f"{task.why}: {task.error}" if task.error and task.unclaimed is None else task.why
    return again + said


def _clock(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().strftime("%H:%M:%S")


def _why_stuck(view: "BatchView") -> str:
    """Why nothing of a batch can move: no coordinator, or no agent; "" where both are there."""
    if told := _told_coordinator(view):
        return told
    beats = heartbeats(view.disk)
    if any(beat.may_live for name, beat in beats.items() if name != places.BRAIN):
        return ""
    return f"no agent lives, so no task is claimed; start one: {places.fleet_command(view.root, 'agent')}"


def _told_coordinator(view: "BatchView") -> str:
    """That no coordinator runs a batch; "" where one does."""
    brain = coordinator_of(view.disk)
    if brain.is_dead:
        return f"no coordinator runs; start one: {places.fleet_command(view.root, 'coordinator')}"
    if shortage := shortage_of(view.root):
        return told_shortage(view.root, shortage)
    if brain.silent_ms > limits.COORDINATOR_SILENCE_SHOWN_MS:
        return (
            f"the coordinator (host {brain.host or '?'}, pid {brain.pid}) has been silent for "
            f"{format_millis(brain.silent_ms)}: it hangs, or its machine does"
        )
    return ""


def _told_holds(progress: BatchProgress, root: Path) -> list[str]:
    """The agents that take none of its tasks, while it has some."""
    if progress.state.has_ended:
        return []
    return [plain(told_hold(root, name, hold)) for name, hold in progress.held.items()]


def _exit(code: int | None) -> str:
    return "" if code is None else str(code)


def _bar(progress: BatchProgress, terminal: Terminal) -> str:
    rest = progress.total - sum(progress.counts.get(state, 0) for state in _PARTS)
    parts = [Part(progress.counts.get(state, 0), *cell) for state, cell in _PARTS.items()]
    return terminal.bar([*parts, Part(rest, "·", "dim")], _BAR_CELLS)


def _counted(progress: BatchProgress) -> str:
    known = [(state, progress.counts.get(state, 0)) for state in TaskStage]
    return ", ".join(f"{number:,} {state}" for state, number in known if number) or "no tasks"


def _times(progress: BatchProgress) -> str:
    told: list[str] = []
    if progress.started is not None and progress.finished is not None:
        told.append(f"in {format_millis(max(0, progress.finished - progress.started - progress.paused_ms))}")
    if not progress.state.has_ended and progress.rate_per_min:
        told.append(f"{progress.rate_per_min:,g} tasks a minute")
    if progress.left_ms is not None and not progress.state.has_ended:
        told.append(f"about {format_millis(progress.left_ms)} left")
    return f"  ({', '.join(told)})" if told else ""


def follow(view: BatchView, terminal: Terminal, *, json: bool) -> BatchProgress:
    """Show a batch until it has ended: a line whenever something changed, and once why nothing can."""
    last, held, stuck = "", frozenset[str](), ""
    while True:
        progress = view.look()
        if not progress.state.has_ended and stuck != (stuck := _why_stuck(view)) and stuck:
            terminal.note(plain(stuck))
        if not json and held != frozenset(progress.held):
            held = frozenset(progress.held)
            terminal.show(*_told_holds(progress, view.root))
        line = jsonlib.dumps(short_fields(progress)) if json else _one_line(progress, terminal)
        if line != last:
            terminal.show(line)
            last = line
        if progress.state.has_ended:
            return progress
        time.sleep(limits.CLI_FOLLOW_S)


def wait(view: BatchView, timeout_s: float | None) -> BatchProgress:
    """Wait until a batch has ended, or the time is over."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        progress = view.look()
        left_s = limits.CLI_FOLLOW_S if until is None else until - time.monotonic()
        if progress.state.has_ended or left_s <= 0:
            return progress
        time.sleep(min(limits.CLI_FOLLOW_S, left_s))


def _one_line(progress: BatchProgress, terminal: Terminal) -> str:
    state = terminal.mark(progress.state.value, _STYLES[progress.state])
    return f"{progress.done:,} of {progress.total:,}  {state}: {_counted(progress)}{_times(progress)}"


# ------------------------------------------------------------------ all of them


def _told_limits(rules: SandboxRules) -> Iterable[str]:
    memory = f"{format_bytes(rules.memory_bytes)} of memory" if rules.memory_bytes else ""
    processes = f"{rules.processes} processes" if rules.processes else ""
    if memory or processes:
        yield f"limits of a task: {', '.join(filter(None, (memory, processes)))} ([sandbox] in {FILE})"


def told_shortage(root: Path, shortage: Shortage) -> str:
    """That the shared folder takes nothing, and what that means."""
    return f"the shared folder {root} {shortage.value}: nothing is claimed or recorded there until it takes files again"


def show_overview(found: Overview, terminal: Terminal) -> None:
    """Print it."""
    brain, reason = found.coordinator, "it hangs, or its machine does"
    if found.shortage is not None:
        terminal.show(plain(told_shortage(found.root, found.shortage)))
        reason = f"the shared folder {found.shortage.value}"
    if brain.is_dead:
        terminal.show(f"coordinator: none; start one: {places.fleet_command(found.root, 'coordinator')}")
    else:
        silent = brain.silent_ms > limits.COORDINATOR_SILENCE_SHOWN_MS
        since = f", silent for {format_millis(brain.silent_ms)}: {reason}" if silent else ""
        terminal.show(f"coordinator: {plain(brain.host)}, pid {brain.pid}, epoch {brain.epoch}{since}")
    living = [each for each in found.agents if not each.is_dead]
    for each in living:
        constraints = [str(word) for word in each.constraints if word != HELD]
        limits_told = f", constrained: {plain(', '.join(constraints))}" if constraints else ""
        if each.silent_ms > fleet_limits.SILENCE_MS_MAX and each.state != STOPPED:
            limits_told += f", silent for {format_millis(each.silent_ms)}: {reason}"
        terminal.show(
            f"agent {plain(each.name)}: {plain(each.state) or 'up'}, {each.running} running, "
            f"sandbox {plain(each.sandbox) or 'unknown'}{limits_told}"
        )
        if each.hold is not None:
            terminal.show(plain(told_hold(found.root, each.name, each.hold)))
    terminal.show(*_told_limits(found.limits))
    if not living:
        terminal.show("agents: none lives; tasks wait in tasks/queue/")
    if not found.batches:
        terminal.show(
            f"no batches; submit a plan: {places.fleet_command(found.root, 'plan', 'submit', 'PLAN')}"
        )
        return
    rows = [
        [
            plain(each.batch),
            plain(each.plan),
            each.state.value,
            f"{each.done:,}/{each.total:,}",
            _counted(each),
        ]
        for each in found.batches
    ]
    columns = [Column("batch"), Column("plan"), Column("state"), Column("done", right=True), Column("tasks")]
    terminal.show("", *terminal.table(columns, rows))
    tell_unreadable(found.batches, terminal)


def tell_unreadable(batches: Iterable[BatchProgress], terminal: Terminal) -> None:
    """Say why some batches cannot be read."""
    for each in batches:
        if each.why:
            terminal.note(plain(each.why))
