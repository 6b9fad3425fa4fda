"""The summary of a batch: outcome, counts, durations, failures, memory and who did what (PLAN-06).

A pure function from what is known about the tasks to RUN_SUMMARY.json and RUN_SUMMARY.md. The same function serves a
batch that still runs.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

from watchbill.plans import limits
from watchbill.plans.graph import Stage
from watchbill.units import format_millis

__all__ = ["AgentWork", "Outcome", "Summary", "TaskMemory", "TaskReport", "summarize"]


_MISSING_SHOWN = 10


class Outcome(Enum):
    """How a batch ended."""

    RUNNING = "running"
    COMPLETE = "complete"  # every task
    PARTIAL = "partial"  # some tasks
    FAILED = "failed"  # no task


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What is known about one task."""

    name: str
    stage: Stage
    attempts: int = 0
    agent: str = ""
    run_ms: int = 0  # of the attempt that counts
    exit_code: int | None = None
    why: str = ""  # of a failure
    culprit: str = ""  # of a skip
    missing: tuple[str, ...] = ()  # dependencies that failed, of a task that needs them done
    peak_vram_mb: int = 0
    peak_rss_mb: int = 0
    template: str = ""  # of a task of a fan-out
    is_unscored: bool = False  # accepted although its answer could not be evaluated
    retries: int = 0  # attempts behind a failed one: not those behind an approval, a loss or a person's wish


@dataclass(slots=True)
class TaskMemory:
    """The most memory that a task used, in MiB."""

    vram_mb: int = 0
    rss_mb: int = 0


@dataclass(slots=True)
class AgentWork:
    """What one agent did."""

    complete: int = 0
    failed: int = 0
    run_ms: int = 0
    peak_vram_mb: int = 0
    peak_rss_mb: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """A batch in figures."""

    batch: str
    plan: str
    outcome: Outcome
    elapsed_ms: int
    run_ms: int
    counts: dict[str, int]
    retries: int
    peak_vram_mb: int
    agents: dict[str, AgentWork]
    failures: tuple[TaskReport, ...]
    failures_unlisted: int
    memory: dict[str, TaskMemory]  # task, or template of many -> the most that one of them used
    peak_rss_mb: int
    skipped: dict[str, int]  # culprit -> tasks, the worst culprits first
    #: Complete, although something they wanted is missing.
    incomplete: tuple[TaskReport, ...] = field(default=())
    is_cancelled: bool = False
    unscored: tuple[str, ...] = ()  # tasks whose answers were accepted although they could not be evaluated

    def to_json(self) -> str:
        """RUN_SUMMARY.json."""
        fields = asdict(self)
        fields["outcome"] = self.outcome.value
        for key, reports in (("failures", self.failures), ("incomplete", self.incomplete)):
            fields[key] = [_fields_of(each) for each in reports]
        return json.dumps(fields, indent=2) + "\n"

    def to_markdown(self) -> str:
        """RUN_SUMMARY.md."""
        total = sum(self.counts.values())
        states = ", ".join(f"{count:,} {stage}" for stage, count in self.counts.items() if count) or "none"
        lines = [
            f"# {_plain(self.plan)}: {'cancelled' if self.is_cancelled else self.outcome.value}",
            "",
            f"- **batch**: {_plain(self.batch)}",
            f"- **tasks**: {total:,} ({states})",
            f"- **time**: {format_millis(self.elapsed_ms)}, work of all agents {format_millis(self.run_ms)}",
            f"- **retries**: {self.retries:,}",
        ]
        if self.peak_vram_mb:
            lines.append(f"- **most GPU memory of a task**: {self.peak_vram_mb:,} MB")
        if self.peak_rss_mb:
            lines.append(f"- **most memory of a task**: {self.peak_rss_mb:,} MB")
        parts = (
            self._failures(),
            self._skips(),
            self._incomplete(),
            self._unscored(),
            self._memory(),
            self._work(),
        )
        return "\n".join([*lines, *(line for part in parts for line in part), ""])

    def _failures(self) -> list[str]:
        if not self.failures:
            return []
        rows = [(each.name, each.attempts, _exit(each), each.agent, each.why) for each in self.failures]
        more = [f"\n{self.failures_unlisted:,} more failed."] if self.failures_unlisted else []
        return ["", "## Failures", "", *_table(("task", "attempts", "exit", "agent", "why"), rows), *more]

    def _skips(self) -> list[str]:
        if not self.skipped:
            return []
        rows = [(name, f"{count:,}") for name, count in self.skipped.items()]
        return ["", "## Skipped", "", *_table(("because of", "tasks"), rows)]

    def _incomplete(self) -> list[str]:
        if not self.incomplete:
            return []
        rows = [
            (
                each.name,
                ", ".join(
                    [*each.missing[:_MISSING_SHOWN], *(["..."] if each.missing[_MISSING_SHOWN:] else [])]
                ),
            )
            for each in self.incomplete
        ]
        return ["", "## Complete without all they depend on", "", *_table(("task", "missing"), rows)]

    def _unscored(self) -> list[str]:
        if not self.unscored:
            return []
        return ["", "## Accepted without a score", "", *(f"- {_plain(name)}" for name in self.unscored)]

    def _memory(self) -> list[str]:
        if not self.memory:
            return []
        rows = [(name, each.vram_mb or "", each.rss_mb or "") for name, each in self.memory.items()]
        return ["", "## Memory", "", *_table(("task", "peak VRAM MB", "peak RSS MB"), rows)]

    def _work(self) -> list[str]:
        if not self.agents:
            return []
        rows = [
            (
                name, work.complete, work.failed, format_millis(work.run_ms), work.peak_vram_mb or "",
                work.peak_rss_mb or "",
            )
            for name, work in sorted(self.agents.items())
        ]  # fmt: skip
        head = ("agent", "complete", "failed", "work", "peak VRAM MB", "peak RSS MB")
        return ["", "## Agents", "", *_table(head, rows)]


def summarize(
    batch: str, plan: str, tasks: Sequence[TaskReport], elapsed_ms: int, *, is_cancelled: bool = False
) -> Summary:
    """Sums a batch up."""
    counts = Counter(each.stage for each in tasks)
    agents: dict[str, AgentWork] = {}
    for each in tasks:
        if each.agent:
            _credit(agents.setdefault(each.agent, AgentWork()), each)
    failures = [each for each in tasks if each.stage in (Stage.FAILED, Stage.MANUAL)]
    bound = limits.SUMMARY_FAILURES_MAX
    return Summary(
        batch=batch,
        plan=plan,
        outcome=_outcome(counts, len(tasks)),
        elapsed_ms=elapsed_ms,
        run_ms=sum(each.run_ms for each in tasks),
        counts={stage.name.lower(): counts[stage] for stage in Stage},
        retries=sum(each.retries for each in tasks),
        peak_vram_mb=max((each.peak_vram_mb for each in tasks), default=0),
        agents=agents,
        failures=tuple(failures[:bound]),
        failures_unlisted=max(len(failures) - bound, 0),
        memory=_memory_of(tasks),
        peak_rss_mb=max((each.peak_rss_mb for each in tasks), default=0),
        skipped=dict(
            Counter(each.culprit for each in tasks if each.stage is Stage.SKIPPED).most_common(bound)
        ),
        incomplete=tuple(each for each in tasks if each.stage is Stage.COMPLETE and each.missing)[:bound],
        is_cancelled=is_cancelled,
        unscored=tuple(each.name for each in tasks if each.is_unscored)[:bound],
    )


def _outcome(counts: Counter[Stage], total: int) -> Outcome:
    if counts[Stage.WAITING] or counts[Stage.READY]:
        return Outcome.RUNNING
    if counts[Stage.COMPLETE] == total:
        return Outcome.COMPLETE
    return Outcome.PARTIAL if counts[Stage.COMPLETE] else Outcome.FAILED


def _credit(work: AgentWork, task: TaskReport) -> None:
    work.complete += task.stage is Stage.COMPLETE
    work.failed += task.stage is Stage.FAILED
    work.run_ms += task.run_ms
    work.peak_vram_mb = max(work.peak_vram_mb, task.peak_vram_mb)
    work.peak_rss_mb = max(work.peak_rss_mb, task.peak_rss_mb)


def _memory_of(tasks: Sequence[TaskReport]) -> dict[str, TaskMemory]:
    """The tasks with the highest peaks; those of a fan-out together."""
    found: dict[str, TaskMemory] = {}
    for each in tasks:
        if each.peak_vram_mb or each.peak_rss_mb:
            most = found.setdefault(each.template or each.name, TaskMemory())
            most.vram_mb, most.rss_mb = (
                max(most.vram_mb, each.peak_vram_mb),
                max(most.rss_mb, each.peak_rss_mb),
            )
    largest = sorted(found, key=lambda name: (found[name].vram_mb, found[name].rss_mb), reverse=True)
    return {name: found[name] for name in largest[: limits.SUMMARY_FAILURES_MAX]}


def _fields_of(task: TaskReport) -> dict[str, object]:
    why = task.why[: limits.SUMMARY_TEXT_CHARS_MAX]
    return {
        **asdict(task),
        "stage": task.stage.name.lower(),
        "why": why,
        "missing": task.missing[:_MISSING_SHOWN],
    }


def _exit(task: TaskReport) -> str:
    return "" if task.exit_code is None else str(task.exit_code)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(_plain(str(cell)) for cell in row)} |" for row in rows]


def _plain(text: str) -> str:
    """Text from outside that cannot break a table or become markup."""
    one_line = " ".join(text[: limits.SUMMARY_TEXT_CHARS_MAX].split())
    printable = one_line if one_line.isprintable() else ascii(one_line)[1:-1]
    return "".join(f"\\{letter}" if letter in "\\|`*_<>[]#" else letter for letter in printable)
