"""Progress: how far a batch is, from its ledger, the board and the heartbeats. Pure.

Rates and the time left come from the coordinator's own times in the journal; clocks of two machines are never compared.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from watchbill.fleet.abilities import Ability, lack_of, need_of
from watchbill.fleet.board import Holdings
from watchbill.fleet.ledger import Ledger, Phase
from watchbill.plans.summary import Outcome

__all__ = ["AgentShare", "BatchProgress", "BatchState", "TaskLine", "progress_of"]

#: How many of the last completions the rate is taken from.
_RATE_OVER = 200
#: Why a task is still queued that no living agent could run.
NO_LIVING_AGENT = "no_living_agent"


class BatchState(Enum):
    """Where a batch is."""

    SUBMITTED = "submitted"  # no coordinator has read it yet
    REFUSED = "refused"
    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self not in (BatchState.SUBMITTED, BatchState.RUNNING)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task as `plan status` lists it."""

    id: str
    state: str  # that of its phase; queued or running where it is issued
    attempt: int
    agent: str
    started: int | None  # ms since 1970, by the coordinator's clock
    finished: int | None
    exit: int | None
    why: str
    culprit: str


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
    counts: Mapping[str, int]
    tasks: list[TaskLine]
    agents: Mapping[str, AgentShare] = field(default_factory=dict[str, AgentShare])
    started: int | None = None
    finished: int | None = None
    rate_per_min: float | None = None
    left_ms: int | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return sum(
            self.counts.get(each, 0) for each in ("complete", "failed", "skipped", "manual", "cancelled")
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
            "tasks": [
                {
                    "id": each.id, "state": each.state, "attempt": each.attempt, "agent": each.agent or None,
                    "started": each.started, "finished": each.finished, "exit": each.exit, "why": each.why,
                    "culprit": each.culprit,
                }
                for each in self.tasks
            ],
        }  # fmt: skip


def progress_of(ledger: Ledger, holdings: Holdings, living: Sequence[Ability]) -> BatchProgress:
    """How far a batch is. A task that waits for an agent although none of the living could run it says so."""
    holders = {name: agent for agent, held in holdings.processing.items() for name in held}
    culprits = {report.name: report.culprit for report in ledger.reports() if report.culprit}
    tasks = [_line(ledger, task, holders, culprits, living) for task in ledger.tasks()]
    rate = _rate_per_min(ledger)
    left = sum(each.finished is None and each.state in _OPEN for each in tasks)
    return BatchProgress(
        ledger.batch, ledger.plan, _state_of(ledger), Counter(each.state for each in tasks), tasks, _shares(tasks),
        ledger.opened_ms or None, ledger.ended_ms or None, rate,
        round(left / rate * 60_000) if rate and left else None,
    )  # fmt: skip


_OPEN = ("waiting", "ready", "queued", "running")


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
    living: Sequence[Ability],
) -> TaskLine:
    phase, state = ledger.phase(task), ledger.state(task)
    word, agent = phase.value, state.agent
    why = "" if phase is Phase.COMPLETE or state.end is None else state.end.value
    if phase is Phase.ISSUED:
        agent = holders.get(state.token, "")
        word = "running" if agent else "queued"
        if not agent and lack_of(need_of(ledger, task), living) is not None:
            why = NO_LIVING_AGENT
    has_ended = phase in (Phase.COMPLETE, Phase.FAILED) and state.at_ms
    return TaskLine(
        task, word, state.attempt, agent, max(0, state.at_ms - state.ms) if has_ended else None,
        state.at_ms if has_ended else None, state.rc if phase is not Phase.ISSUED else None,
        why, culprits.get(task, ""),
    )  # fmt: skip


def _shares(tasks: list[TaskLine]) -> dict[str, AgentShare]:
    shares: dict[str, AgentShare] = {}
    for each in tasks:
        if each.agent and each.state in ("running", "complete", "failed"):
            share = shares.setdefault(each.agent, AgentShare())
            setattr(share, each.state, getattr(share, each.state) + 1)
    return dict(sorted(shares.items()))


def _rate_per_min(ledger: Ledger) -> float | None:
    ended = sorted(
        state.at_ms for task in ledger.tasks()
        if (state := ledger.state(task)).at_ms and ledger.phase(task) is Phase.COMPLETE and task not in ledger.kept
    )[-_RATE_OVER:]  # fmt: skip
    if len(ended) < 2 or ended[-1] <= ended[0]:
        return None
    return round((len(ended) - 1) * 60_000 / (ended[-1] - ended[0]), 2)
