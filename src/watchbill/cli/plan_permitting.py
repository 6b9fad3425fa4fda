"""Which commands of a plan the rules would block or ask about: said before the plan runs. Standard library only.

Agents decide about each command with the values of its item (`fleet.permissions`). Here the same rules are asked
beforehand, with the values that are known by then; an item that is not known yet stands for itself.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from watchbill.cli import limits
from watchbill.fleet.permissions.rules import Action, RuleBook
from watchbill.fleet.permissions.ruling import Line, Ruling, decide, load_book
from watchbill.plans.check import Plan
from watchbill.plans.findings import Findings, shown
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.task import Task, TaskClass

__all__ = ["Permits", "ValueOf"]

ValueOf = Callable[[Placeholder], str]


class Permits:
    """The rules that hold for a plan, and where it would run."""

    def __init__(self, book: RuleBook, plan_path: str, batch_path: str) -> None:
        self._book, self._plan_path, self._batch_path = book, plan_path, batch_path

    @classmethod
    def of(cls, fleet: Path | None, file: Path, batch_path: str) -> "Permits":
        """Those of the shared folder; without one there are none. Raises OSError."""
        folder = file.absolute().parent
        book = RuleBook() if fleet is None else load_book(fleet, folder.name)
        return cls(book, str(folder), batch_path)

    def against(self, task: Task, value_of: ValueOf) -> Ruling | None:
        """The ruling that keeps a command from running by itself; None where it may run, or is none."""
        if task.command is None or task.task_class is TaskClass.META:
            return None
        env = {name: text.text for name, text in task.env}
        ruling = decide(Line(task.command.text, value_of, env, self._plan_path, self._batch_path), self._book)
        return None if ruling.action is Action.ALLOW else ruling

    def note(self, plan: Plan, known: Mapping[str, str], findings: Findings) -> None:
        """Note each task that would wait for a person or be blocked, as far as that is known without its items."""

        def value_of(place: Placeholder) -> str:
            return str(place) if place.is_item else known.get(place.name, str(place))

        for task in plan.tasks[: limits.CLI_TASKS_RULED]:
            if (ruling := self.against(task, value_of)) is not None:
                findings.note(task.line_of("command"), f"{shown(task.name)}: {ruling}")
