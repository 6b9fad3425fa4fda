"""Escalations: what a planner, a person or a model, needs to correct a plan that did not succeed (FLEET-08).

Pure: from the ledger of a batch to `brain/escalations/BATCH.md` with the goal, the failed tasks, their commands and
last errors, what was tried, and how to go on.
"""

from collections.abc import Iterator

from watchbill.fleet import limits
from watchbill.fleet.folder.places import fleet_command
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.plans.summary import Summary

__all__ = ["escalation"]

_FAILED = (Phase.FAILED, Phase.MANUAL)
_FENCE = "````"


def escalation(ledger: Ledger, summary: Summary, root: str = "") -> str:
    """The text of the file."""
    failed = [task for task in ledger.tasks() if ledger.phase(task) in _FAILED]
    shown = failed[: limits.ESCALATION_TASKS_MAX]
    lines = [f"# {ledger.plan}, batch {ledger.batch}: {summary.outcome.value}", ""]
    lines += ["## Goal", "", ledger.goal or "The plan names none.", ""]
    lines += ["## State", "", *_state(summary), ""]
    lines += ["## Failed tasks", ""]
    lines += [line for task in shown for line in _task(ledger, task)]
    if len(failed) > len(shown):
        lines += [f"{len(failed) - len(shown):,} more tasks failed; see RUN_SUMMARY.json.", ""]
    if not failed:
        lines += ["None: tasks were skipped or cancelled.", ""]
    return "\n".join([*lines, *_how_to_go_on(ledger, root)])


def _state(summary: Summary) -> Iterator[str]:
    for state, count in summary.counts.items():
        if count:
            yield f"- {state}: {count:,}"
    for culprit, count in summary.skipped.items():
        yield f"- skipped because of {culprit}: {count:,}"


def _task(ledger: Ledger, task: str) -> Iterator[str]:
    state, spec = ledger.state(task), ledger.spec(task)
    yield from (f"### {task}", "")
    yield f"- **line in plan.md**: {spec.line}"
    yield f"- **attempts**: {state.attempt} ({state.failures} failed, {state.losses} lost with their agent)"
    yield f"- **last agent**: {state.agent or 'none'}"
    if state.end is not None:
        yield f"- **last end**: {state.end.value}{'' if state.rc is None else f', exit code {state.rc}'}"
    if state.vram_mb:
        yield f"- **GPU memory of the last attempt**: {state.vram_mb:,} MB"
    yield from _fenced("command" if spec.work.command else "prompt", spec.work.command or spec.work.prompt)
    for item in ledger.items(task)[:1]:
        yield from _fenced("item", item)
    yield from _fenced("last error", state.tail)
    yield ""


def _fenced(title: str, text: str) -> Iterator[str]:
    """A text of the outside in a fence that it cannot end."""
    if text:
        cut = text[-limits.ESCALATION_TEXT_CHARS_MAX :].replace(_FENCE, "'''")
        yield from ("", f"**{title}**:", "", _FENCE, cut.rstrip("\n"), _FENCE)


def _how_to_go_on(ledger: Ledger, root: str) -> Iterator[str]:
    resume = ("plan", "resume", ledger.batch)
    yield from ("## How to go on", "")
    yield f"Correct `plans/{ledger.plan}/plan.md` or its scripts, then:"
    yield from (
        "",
        _FENCE,
        fleet_command(root, *resume, "--explain"),
        fleet_command(root, *resume),
        _FENCE,
        "",
    )
    if root:
        yield f"`{root}` is the shared folder where the coordinator runs: use the path that it has on your machine."
    yield "Complete tasks whose command, scripts, inputs and items did not change are kept."
    yield ""
