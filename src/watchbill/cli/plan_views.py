"""How batches are shown: lists, tables and live progress, from the shared folder alone. Standard library only."""

import json as jsonlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from watchbill import limits
from watchbill.cli.terminal import Column, Part, Terminal, plain
from watchbill.files.atomic import NotAFile
from watchbill.files.host import boot_id
from watchbill.fleet import places
from watchbill.fleet.board import Board, Holdings
from watchbill.fleet.disk import FolderDisk
from watchbill.fleet.entries import Cause
from watchbill.fleet.heartbeat import HELD, Heartbeat, HeldWhy, OnHold, Pulse, heartbeats, kernel_says
from watchbill.fleet.permissions import load_book
from watchbill.fleet.progress import BatchProgress, BatchState, TaskLine, TaskStage, progress_of
from watchbill.fleet.reading import BatchPlace, Follower, batches_of, refusal_of
from watchbill.fleet.requests import has_request
from watchbill.fleet.rules import FILE, SandboxRules
from watchbill.fleet.values import Fields, fields_of
from watchbill.units import format_bytes, format_millis

__all__ = [
    "BatchView", "coordinator_of", "follow", "limits_fields", "overview", "overview_fields", "show_batch",
    "show_overview", "told_hold", "wait",
]  # fmt: skip

_STYLES = {
    BatchState.COMPLETE: "green", BatchState.PARTIAL: "yellow", BatchState.FAILED: "red", BatchState.REFUSED: "red",
    BatchState.NOT_SUBMITTED: "red",
    BatchState.RUNNING: "cyan", BatchState.SUBMITTED: "dim", BatchState.CANCELLED: "dim",
}  # fmt: skip
_PARTS = {
    TaskStage.COMPLETE: ("█", "green"), TaskStage.FAILED: ("▓", "red"), TaskStage.RUNNING: ("▒", "cyan"),
}  # fmt: skip
_BAR_CELLS = 40


# ------------------------------------------------------------------ coordinator and agents


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """The coordinator of the folder, by its own record."""

    host: str = ""
    pid: int = 0
    epoch: int = 0
    is_dead: bool = (
        True  # known to be dead, or there never was one; a coordinator of another machine may be alive
    )

    silent_ms: int = 0  # since its record was last written, by this machine's clock

    def fields(self) -> dict[str, object]:
        return {
            "host": self.host, "pid": self.pid, "epoch": self.epoch, "is_dead": self.is_dead,
            "silent_ms": self.silent_ms,
        }  # fmt: skip


def coordinator_of(disk: FolderDisk) -> CoordinatorView:
    """The present coordinator, as far as a single look can tell."""
    try:
        fields = fields_of(disk.read(places.COORDINATOR, limits.FLEET_FILE_BYTES_MAX))
    except (FileNotFoundError, ValueError, NotAFile):
        return CoordinatorView()
    pulse = Pulse.of(fields)
    is_dead, silent_ms = _is_known_dead(pulse), _age_ms(disk.root / places.COORDINATOR)
    return CoordinatorView(fields.text("host"), pulse.pid, fields.whole("epoch"), is_dead, silent_ms)


def _age_ms(file: Path) -> int:
    """How old a file is, as far as the clocks agree."""
    try:
        return max(0, round((time.time() - file.stat().st_mtime) * 1000))
    except FileNotFoundError:
        return 0


def _is_known_dead(pulse: Pulse) -> bool:
    return pulse.boot_id == boot_id() and not kernel_says(pulse.pid, pulse.start_time)


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as its last heartbeat shows it."""

    name: str
    state: str
    running: int
    is_dead: bool
    constraints: list[object]
    sandbox: str = ""
    hold: OnHold | None = None

    def fields(self) -> dict[str, object]:
        return {
            "state": self.state,
            "running": self.running,
            "is_dead": self.is_dead,
            "constraints": self.constraints,
            "sandbox": self.sandbox,
            "hold": None if self.hold is None else self.hold.fields(),
        }


def _agents(disk: FolderDisk, holdings: Holdings) -> list[AgentView]:
    return [_agent(name, each, holdings) for name, each in heartbeats(disk).items()]


def _agent(name: str, heartbeat: Heartbeat, holdings: Holdings) -> AgentView:
    fields = Fields(heartbeat.values)
    running = len(holdings.processing.get(name, ()))
    return AgentView(
        name, fields.text("state"), running, _is_known_dead(heartbeat.pulse), fields.items("constraints"),
        fields.text("sandbox"), heartbeat.hold,
    )  # fmt: skip


def told_hold(root: Path, agent: str, hold: OnHold) -> str:
    """That an agent claims nothing, why, and the command that lets it go on."""
    lift = places.fleet_command(root, "signal", agent, "resume")
    if hold.why is HeldWhy.PERSON:
        return f"{agent} is held: it was told to claim nothing; let it go on: {lift}"
    left = "soon" if hold.left_ms is None else f"in about {format_millis(hold.left_ms)}"
    return (
        f"{agent} is held: tasks failed on it that did not fail elsewhere; it goes on {left}; at once: {lift}"
    )


# ------------------------------------------------------------------ one batch


class BatchView:
    """One batch, read repeatedly."""

    def __init__(self, disk: FolderDisk, place: BatchPlace) -> None:
        self._disk = disk
        self._place = place
        self._follower = Follower(disk, place)

    def look(self) -> BatchProgress:
        """Its present progress."""
        is_to_go_on = has_request(
            self._disk, self._place.batch
        )  # before the journal: it is in one of the two
        ledger = self._follower.read()
        if ledger.is_open:
            living = {name: beat for name, beat in heartbeats(self._disk).items() if beat.may_live}
            found = progress_of(ledger, Board(self._disk).look_around(), living)
            return replace(found, state=BatchState.RUNNING) if is_to_go_on else found
        found = _without_journal(self._disk, self._place)
        if found.state is BatchState.NOT_SUBMITTED and self._follower.read().is_open:
            return self.look()  # opened between the two looks
        return found

    @property
    def root(self) -> Path:
        """The shared folder."""
        return self._disk.root

    @property
    def disk(self) -> FolderDisk:
        """The way to read it."""
        return self._disk

    @property
    def limits(self) -> SandboxRules:
        """What a task of the batch may have at most."""
        return load_book(self.root, self._place.plan).sandbox

    @property
    def refusal(self) -> str:
        """Why it was refused; "" where it was not."""
        return refusal_of(self._disk, f"{self._place.batch}.json")


def _without_journal(disk: FolderDisk, place: BatchPlace) -> BatchProgress:
    """A batch that no coordinator has opened, or that retention has reduced to its summary."""
    refusal = refusal_of(disk, f"{place.batch}.json")
    try:
        fields = fields_of(disk.read(f"{place.folder}/RUN_SUMMARY.json", limits.SLIP_BYTES_MAX))
    except (FileNotFoundError, ValueError, NotAFile):
        state = BatchState.REFUSED if refusal else _submitted(disk, place.batch)
        return BatchProgress(place.batch, place.plan, state, {}, [])
    listed = fields.mapping("counts")
    counts = {
        stage: value for stage in TaskStage if isinstance(value := listed.get(stage.value), int) and value
    }
    outcome = fields.text("outcome")
    state = next((each for each in BatchState if each.value == outcome), BatchState.FAILED)
    if fields.flag("is_cancelled"):
        state = BatchState.CANCELLED
    return BatchProgress(place.batch, place.plan, state, counts, [])


def _submitted(disk: FolderDisk, batch: str) -> BatchState:
    """Whether a batch without a journal waits for a coordinator, or was never submitted as a whole."""
    # The inbox first: a coordinator moves the file from there to the active ones.
    is_there = any(f"{batch}.json" in disk.names(folder) for folder in (places.INBOX, places.ACTIVE))
    return BatchState.SUBMITTED if is_there else BatchState.NOT_SUBMITTED


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
    if not progress.state.has_ended and (silence := _told_coordinator(view)):
        yield plain(silence)
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
             plain(_why(each))]
            for each in told[:tasks_max]
        ]  # fmt: skip
        columns = [
            Column("task"), Column("state"), Column("attempt", right=True), Column("agent"), Column("exit", right=True),
            Column("why"),
        ]  # fmt: skip
        yield from ("", *terminal.table(columns, rows))
        if len(told) > tasks_max:
            yield f"{len(told) - tasks_max:,} more; --json lists all"


def _why(task: TaskLine) -> str:
    """Why a task is where it is: in words, with the last line of its error."""
    if task.culprit:
        return f"because of {task.culprit}"
    if task.held is Cause.LOSSES:
        return f"losses: its agent died {limits.LOSSES_MAX} times while it ran"
    again = "" if task.again_at is None else f"again at {_clock(task.again_at)}; "
    said = f"{task.why}: {task.error}" if task.error and task.unclaimed is None else task.why
    return again + said


def _clock(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().strftime("%H:%M:%S")


def _told_coordinator(view: "BatchView") -> str:
    """That nobody takes care of a batch; "" where somebody does."""
    brain = coordinator_of(view.disk)
    if brain.is_dead:
        return f"no coordinator runs; start one: {places.fleet_command(view.root, 'coordinator')}"
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
        told.append(f"in {format_millis(max(0, progress.finished - progress.started))}")
    if not progress.state.has_ended and progress.rate_per_min:
        told.append(f"{progress.rate_per_min:,g} tasks a minute")
    if progress.left_ms is not None and not progress.state.has_ended:
        told.append(f"about {format_millis(progress.left_ms)} left")
    return f"  ({', '.join(told)})" if told else ""


def follow(view: BatchView, terminal: Terminal, *, json: bool) -> BatchProgress:
    """Show a batch until it has ended: a line whenever something changed."""
    last, held = "", frozenset[str]()
    while True:
        progress = view.look()
        if not json and held != frozenset(progress.held):
            held = frozenset(progress.held)
            terminal.show(*_told_holds(progress, view.root))
        line = jsonlib.dumps(_short(progress)) if json else _one_line(progress, terminal)
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


def _short(progress: BatchProgress) -> dict[str, object]:
    return {key: value for key, value in progress.fields().items() if key != "tasks"}


def _one_line(progress: BatchProgress, terminal: Terminal) -> str:
    state = terminal.mark(progress.state.value, _STYLES[progress.state])
    return f"{progress.done:,} of {progress.total:,}  {state}: {_counted(progress)}{_times(progress)}"


# ------------------------------------------------------------------ all of them


@dataclass(frozen=True, slots=True)
class Overview:
    """The fleet at one moment."""

    root: Path
    coordinator: CoordinatorView
    agents: list[AgentView]
    batches: list[BatchProgress]
    limits: SandboxRules  # of every task; those of a plan may be tighter


def overview(root: Path, disk: FolderDisk, batches_max: int) -> Overview:
    """Coordinator, agents, and the batches that run and the last ones that ended."""
    places_found = batches_of(disk)
    active = [each for each in places_found if each.is_active or each.is_submitted]
    rest = [each for each in places_found if each not in active][-batches_max:]
    holdings = Board(disk).look_around()
    progress = [BatchView(disk, each).look() for each in sorted([*active, *rest])]
    return Overview(
        root, coordinator_of(disk), _agents(disk, holdings), progress, load_book(root, "").sandbox
    )


def overview_fields(found: Overview) -> dict[str, object]:
    """Its JSON."""
    return {
        "root": str(found.root), "coordinator": found.coordinator.fields(),
        "agents": {each.name: each.fields() for each in found.agents}, "limits": limits_fields(found.limits),
        "batches": [_short(each) for each in found.batches],
    }  # fmt: skip


def limits_fields(rules: SandboxRules) -> dict[str, object]:
    """The limits of a task as JSON; null where there is none."""
    return {"memory_bytes": rules.memory_bytes or None, "processes": rules.processes or None}


def _told_limits(rules: SandboxRules) -> Iterable[str]:
    memory = f"{format_bytes(rules.memory_bytes)} of memory" if rules.memory_bytes else ""
    processes = f"{rules.processes} processes" if rules.processes else ""
    if memory or processes:
        yield f"limits of a task: {', '.join(filter(None, (memory, processes)))} ([sandbox] in {FILE})"


def show_overview(found: Overview, terminal: Terminal) -> None:
    """Print it."""
    brain = found.coordinator
    if brain.is_dead:
        terminal.show(f"coordinator: none; start one: {places.fleet_command(found.root, 'coordinator')}")
    else:
        silent = brain.silent_ms > limits.COORDINATOR_SILENCE_SHOWN_MS
        since = (
            f", silent for {format_millis(brain.silent_ms)}: it hangs, or its machine does" if silent else ""
        )
        terminal.show(f"coordinator: {plain(brain.host)}, pid {brain.pid}, epoch {brain.epoch}{since}")
    living = [each for each in found.agents if not each.is_dead]
    for each in living:
        constraints = [str(word) for word in each.constraints if word != HELD]
        limits_told = f", constrained: {plain(', '.join(constraints))}" if constraints else ""
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
