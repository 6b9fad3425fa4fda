"""Why a task is where it is, as `plan logs` tells it: its state, its failure, what it waits for, its items.

From the shared folder alone, standard library only.
"""

from collections.abc import Sequence

from watchbill.cli.plan_views import told_why
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.fleet.folder import places
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.views.overview import BatchView
from watchbill.fleet.views.progress import TaskLine, TaskStage

__all__ = ["reason_for", "show_items"]

#: Tasks that a message names.
_NAMED_MAX = 5


def reason_for(view: BatchView, task: str) -> str:
    """Where a task is and why, in one line."""
    lines = {each.id: each for each in view.look().tasks}
    line = lines.get(task)
    return f"{task} is complete" if line is None else _told(line, lines, view)


def _told(line: TaskLine, lines: dict[str, TaskLine], view: BatchView) -> str:
    is_at = f"{line.id} is {line.state}"
    match line.state:
        case TaskStage.COMPLETE | TaskStage.RUNNING:
            return is_at
        case TaskStage.SKIPPED:
            culprit = lines.get(line.culprit)
            because = "" if culprit is None else f": {_told(culprit, {}, view)}"
            return f"{is_at} because of {line.culprit}{because}"
        case TaskStage.QUEUED:
            return f"{is_at}: {told_why(line) or 'no agent has claimed it yet'}"
        case TaskStage.WAITING if line.again_at is None:
            return f"{is_at} for {_awaited(view.ledger, line.id)}"
        case TaskStage.MANUAL:
            approve = places.fleet_command(
                view.root, "plan", "approve", line.id, "--batch", view.ledger.batch
            )
            return f"{is_at}: {told_why(line)}; to let it run: {approve}"
        case _:
            code = f", exit code {line.exit}" if line.exit else ""
            why = told_why(line)
            return f"{is_at}{code}{f': {why}' if why else ''}"


def _awaited(ledger: Ledger, task: str) -> str:
    """The tasks that one still waits for."""
    node = ledger.spec(task).node
    open_ = [
        name
        for name in (*ledger.followed(task), *node.depends_on)
        if any(ledger.phase(each) is not Phase.COMPLETE for each in ledger.tasks_of(name) or (name,))
    ]
    more = f" and {len(open_) - _NAMED_MAX} more" if len(open_) > _NAMED_MAX else ""
    return ", ".join(open_[:_NAMED_MAX]) + more or "its turn"


def show_items(
    view: BatchView, template: str, parts: Sequence[str], terminal: Terminal, rows_max: int
) -> None:
    """List the tasks of a foreach, those that did not complete first."""
    lines = {each.id: each for each in view.look().tasks}
    found = [lines[name] for name in parts if name in lines]
    found.sort(key=lambda line: line.state is TaskStage.COMPLETE)
    terminal.note(plain(f"{template} of {view.ledger.batch} has {len(parts):,} tasks; name one of them"))
    columns = [Column("task"), Column("state"), Column("attempt", right=True), Column("agent"), Column("why")]
    rows = [
        [plain(line.id), line.state, str(line.attempt), plain(line.agent), plain(told_why(line))]
        for line in found[:rows_max]
    ]
    terminal.show(*terminal.table(columns, rows))
    if len(found) > rows_max:
        terminal.show(f"{len(found) - rows_max:,} more")
