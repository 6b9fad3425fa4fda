"""Progress: how far a batch is, from its ledger, the board and the heartbeats. Pure.

Rates and the time left come from the coordinator's own times in the journal; clocks of two machines are never compared.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from watchbill.fleet.folder.agent_report import OnHold
from watchbill.fleet.folder.board import Holdings
from watchbill.fleet.folder.heartbeat import Heartbeat
from watchbill.fleet.folder.results import End
from watchbill.fleet.matching.abilities import ability_of, lack_of, need_of
from watchbill.fleet.state.entries import Cause
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.plans.summary import Outcome

__all__ = ["AgentShare", "BatchProgress", "BatchState", "TaskLine", "TaskStage", "progress_of"]

#: How many of the last completions the rate is taken from.
_RATE_OVER = 200


class BatchState(Enum):
    """Where a batch is."""

    SUBMITTED = "submitted"  # no coordinator has read it yet
    NOT_SUBMITTED = "not_submitted"  # its submission was interrupted: there is a folder and nothing else
    REFUSED = "refused"
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNREADABLE = "unreadable"  # from here: its journal makes no sense, or another user keeps it to himself

    @property
    def has_ended(self) -> bool:
        return self not in (BatchState.SUBMITTED, BatchState.RUNNING)


class TaskStage(StrEnum):
    """Where a task is: as its phase says, but queued or running where that is `issued`."""

    WAITING = "waiting"
    READY = "ready"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"
    MANUAL = "manual"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self not in (TaskStage.WAITING, TaskStage.READY, TaskStage.QUEUED, TaskStage.RUNNING)


class Unclaimed(Enum):
    """Why no agent takes a task that is queued."""

    NO_LIVING_AGENT = "no_living_agent"  # that could run it
    AGENTS_HELD = "agents_held"  # all that could run it are on hold


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task as `plan status` lists it."""

    id: str
    state: TaskStage
    attempt: int
    agent: str
    started: int | None  # ms since 1970, by the coordinator's clock
    finished: int | None
    exit: int | None
    end: End | None  # of its last attempt, where that was no success
    unclaimed: Unclaimed | None  # why no agent takes it, where it is queued
    culprit: str
    held: Cause | None = None  # why it waits for a person
    error: str = ""  # the last line that its last failed attempt left
    again_at: int | None = None  # when it is offered again after a failure, by the coordinator's clock
    is_unscored: bool = False  # complete, although its answer could not be evaluated

    @property
    def why(self) -> str:
        """Why it is not complete, or only with a reservation, in one word."""
        if self.is_unscored:
            return "unscored"
        said = self.unclaimed or self.held or self.end
        return "" if said is None else said.value


@dataclass(slots=True)
class AgentShare:
    """What one agent does and did for a batch."""

    running: int = 0
    complete: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch at one moment."""

    batch: str
    plan: str
    state: BatchState
    counts: Mapping[TaskStage, int]
    tasks: list[TaskLine]
    agents: Mapping[str, AgentShare] = field(default_factory=dict[str, AgentShare])
    started: int | None = None
    finished: int | None = None
    rate_per_min: float | None = None
    left_ms: int | None = None
    held: Mapping[str, OnHold] = field(default_factory=dict[str, OnHold])  # living agents that claim nothing
    paused_ms: int = 0  # between its ends and the times when it was reopened
    why: str = ""  # it cannot be read

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        """How many tasks have ended. One that waits for a person has not, although the batch ends without it."""
        return sum(
            count for stage, count in self.counts.items() if stage.has_ended and stage is not TaskStage.MANUAL
        )

    def fields(self) -> dict[str, object]:
        """The JSON of `plan status BATCH --json`."""
        return {
            "batch": self.batch, "plan": self.plan, "state": self.state.value, "counts": dict(self.counts),
            "started": self.started, "finished": self.finished, "rate_per_min": self.rate_per_min,
            "left_ms": self.left_ms,
            "agents": {
                name: {"running": share.running, "complete": share.complete, "failed": share.failed}
                for name, share in self.agents.items()
            },
            "held": {name: hold.fields() for name, hold in self.held.items()},
            "tasks": [
                {
                    "id": each.id, "state": each.state, "attempt": each.attempt, "agent": each.agent or None,
                    "started": each.started, "finished": each.finished, "exit": each.exit, "why": each.why,
                    "culprit": each.culprit, "error": each.error, "again_at": each.again_at,
                }
                for each in self.tasks
            ],
        }  # fmt: skip


class _Agents:
    """The living agents, and which of them claim tasks."""

    def __init__(self, living: Mapping[str, Heartbeat]) -> None:
        self.held = {name: hold for name, beat in living.items() if (hold := beat.report.hold) is not None}
        self._living = [ability_of(name, beat) for name, beat in living.items()]
        self._free = [each for each in self._living if each.agent not in self.held]

    def why_unclaimed(self, ledger: Ledger, task: str) -> Unclaimed | None:
        """Why no agent takes a task; None where one could."""
        need = need_of(ledger, task)
        if lack_of(need, self._living) is not None:
            return Unclaimed.NO_LIVING_AGENT
        return Unclaimed.AGENTS_HELD if lack_of(need, self._free) is not None else None


def progress_of(
    ledger: Ledger, holdings: Holdings, living: Mapping[str, Heartbeat], *, is_coordinated: bool = True
) -> BatchProgress:
    """How far a batch is. A task that waits for an agent although none of the living could take it says so.

    A task runs whose slip an agent holds. While no coordinator puts away the slips of those that have ended
    (`is_coordinated`), only those do that a heartbeat names.
    """
    holders = {name: agent for agent, held in holdings.processing.items() for name in held}
    if not is_coordinated:
        named = {(each.batch, each.task) for beat in living.values() for each in beat.report.tasks}
        for task in ledger.tasks():
            if (ledger.batch, task) not in named:
                holders.pop(ledger.state(task).token, None)
    culprits = {report.name: report.culprit for report in ledger.reports() if report.culprit}
    agents = _Agents(living)
    tasks = [_line(ledger, task, holders, culprits, agents) for task in ledger.tasks()]
    rate = _rate_per_min(ledger)
    left = sum(each.finished is None and not each.state.has_ended for each in tasks)
    is_foreseeable = rate and left and not any(each.again_at for each in tasks)  # a pause follows no rate
    return BatchProgress(
        ledger.batch, ledger.plan, _state_of(ledger), Counter(each.state for each in tasks), tasks, _shares(tasks),
        ledger.opened_ms or None, ledger.ended_ms or None, rate,
        round(left / rate * 60_000) if rate and is_foreseeable else None, agents.held,
        ledger.paused_ms,
    )  # fmt: skip


def _state_of(ledger: Ledger) -> BatchState:
    if ledger.outcome is None:
        return BatchState.RUNNING if ledger.is_open else BatchState.SUBMITTED
    if ledger.is_cancelled:
        return BatchState.CANCELLED
    return BatchState(ledger.outcome.value) if ledger.outcome is not Outcome.RUNNING else BatchState.RUNNING


def _line(
    ledger: Ledger,
    task: str,
    holders: Mapping[str, str],
    culprits: Mapping[str, str],
    agents: _Agents,
) -> TaskLine:
    phase, state = ledger.phase(task), ledger.state(task)
    agent = holders.get(state.token, "") if phase is Phase.ISSUED else state.agent
    is_put_off = phase is Phase.READY and state.delay_ms > 0
    stage = TaskStage.WAITING if is_put_off else _stage_of(phase, is_held=bool(agent))
    unclaimed = agents.why_unclaimed(ledger, task) if stage is TaskStage.QUEUED else None
    has_ended = phase in (Phase.COMPLETE, Phase.FAILED) and state.at_ms
    return TaskLine(
        task, stage, state.attempt, agent, max(0, state.at_ms - state.ms) if has_ended else None,
        state.at_ms if has_ended else None, state.rc if phase is not Phase.ISSUED else None,
        None if phase is Phase.COMPLETE else state.end, unclaimed, culprits.get(task, ""),
        state.held if phase is Phase.MANUAL else None, "" if phase is Phase.COMPLETE else _last_line(state.tail),
        state.at_ms + state.delay_ms if is_put_off and state.at_ms else None,
        phase is Phase.COMPLETE and state.is_unscored,
    )  # fmt: skip


def _last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _stage_of(phase: Phase, *, is_held: bool) -> TaskStage:
    if phase is Phase.ISSUED:
        return TaskStage.RUNNING if is_held else TaskStage.QUEUED
    return TaskStage(phase.value)


def _shares(tasks: list[TaskLine]) -> dict[str, AgentShare]:
    shares: dict[str, AgentShare] = {}
    for each in tasks:
        if each.agent and each.state in (TaskStage.RUNNING, TaskStage.COMPLETE, TaskStage.FAILED):
            share = shares.setdefault(each.agent, AgentShare())
            share.running += each.state is TaskStage.RUNNING
            share.complete += each.state is TaskStage.COMPLETE
            share.failed += each.state is TaskStage.FAILED
    return dict(sorted(shares.items()))


def _rate_per_min(ledger: Ledger) -> float | None:
    """How many tasks end in a minute: the last ones, over the time from the first of their starts to the last end.

    Not over the time between their ends: equal tasks side by side end in the same moment.
    """
    states = [
        ledger.state(task)
        for task in ledger.tasks()
        if ledger.phase(task) is Phase.COMPLETE and task not in ledger.kept
    ]
    ended = sorted((state.at_ms, state.ms) for state in states if state.at_ms)[-_RATE_OVER:]
    if len(ended) < 2:
        return None
    span_ms = ended[-1][0] - min(at_ms - ms for at_ms, ms in ended)
    return round(len(ended) * 60_000 / span_ms, 2) if span_ms > 0 else None
