"""Pictures of a batch: files for people and planners that a coordinator draws from the ledger. No decision reads them.

A coordinator that hangs while it draws may put an old picture over that of its successor. It finds out when it looks
behind its drawing, and draws what the journals say by then (`draw_anew`).

plans/PLAN/history/BATCH/RUN_SUMMARY.md, .json     while it runs, and final
brain/private_tasks/BATCH.json                     tasks that wait, and what for
brain/escalations/BATCH.md                         what a planner needs after a failure
"""

from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.values import encode
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.reading import BatchPlace, Follower
from watchbill.fleet.views.escalation import escalation
from watchbill.plans.summary import Outcome, Summary, summarize

__all__ = ["draw", "draw_anew", "draw_last", "summary_of"]


def summary_of(ledger: Ledger, wall_ms: int) -> Summary:
    """The summary of a batch, at this time by the wall clock that its journal was written by."""
    end_ms = ledger.ended_ms or wall_ms
    elapsed_ms = max(0, end_ms - ledger.opened_ms - ledger.paused_ms) if ledger.opened_ms else 0
    return summarize(
        ledger.batch, ledger.plan, ledger.reports(), elapsed_ms, is_cancelled=ledger.is_cancelled
    )


def draw(disk: Disk, ledger: Ledger, wall_ms: int) -> None:
    """Show a batch that runs."""
    _put_summary(disk, ledger, summary_of(ledger, wall_ms), durable=False)
    waiting = [task for task in ledger.tasks() if ledger.phase(task) is Phase.WAITING]
    listed = {task: list(ledger.spec(task).node.depends_on) for task in waiting[: limits.WAITING_LISTED_MAX]}
    fields = {"batch": ledger.batch, "plan": ledger.plan, "waiting": len(waiting), "tasks": listed}
    disk.put(places.waiting_path(ledger.batch), encode(fields) + b"\n")


def draw_last(disk: Disk, ledger: Ledger, wall_ms: int, root: str = "") -> None:
    """Show a batch that has ended. May be repeated. `root`: the shared folder on this machine, for people."""
    summary = summary_of(ledger, wall_ms)
    _put_summary(disk, ledger, summary, durable=True)
    disk.remove(places.waiting_path(ledger.batch))
    if ledger.outcome is Outcome.COMPLETE or ledger.is_cancelled:
        disk.remove(places.escalation_path(ledger.batch))
    else:
        text = escalation(ledger, summary, root)
        disk.put(places.escalation_path(ledger.batch), text.encode("utf-8", "replace"))


def draw_anew(disk: Disk, plan: str, batch: str, wall_ms: int, root: str = "") -> None:
    """Show what the journals of a batch say now, again while they change meanwhile: its coordinator draws it, too."""
    follower = Follower(disk, BatchPlace(batch, plan))
    ledger = follower.read()
    for _ in range(limits.FLEET_TRIES_MAX):
        if ledger.outcome is None:
            draw(disk, ledger, wall_ms)
        else:
            draw_last(disk, ledger, wall_ms, root)
        drawn = summary_of(ledger, wall_ms)
        ledger = follower.read()
        if summary_of(ledger, wall_ms) == drawn:
            return


def _put_summary(disk: Disk, ledger: Ledger, summary: Summary, *, durable: bool) -> None:
    folder = places.batch_folder(ledger.plan, ledger.batch)
    disk.put(f"{folder}/RUN_SUMMARY.json", summary.to_json().encode("utf-8", "replace"), durable=durable)
    # Last: who sees the end here finds it in the fields, too.
    disk.put(f"{folder}/RUN_SUMMARY.md", summary.to_markdown().encode("utf-8", "replace"), durable=durable)
