"""Pictures of a plan: Mermaid, which GitHub, GitLab and many editors show.

[task]  a shell task     ([task])  a task of a model     [[task]]  a foreach
-->     waits for all    -.->      waits for the same item
"""

from collections.abc import Sequence

from watchbill.plans.task import Executor, Needs, Task, TaskClass

__all__ = ["mermaid"]


def mermaid(tasks: Sequence[Task]) -> str:
    """The tasks and their dependencies, top down."""
    numbers = {task.name: f"t{number}" for number, task in enumerate(tasks)}
    lines = ["flowchart TD"]
    for task in tasks:
        left, right = _shape(task)
        lines.append(f'    {numbers[task.name]}{left}"{_label(task)}"{right}')
    for task in tasks:
        for dependency in task.depends_on:
            if dependency.name in numbers:
                arrow = "-. per item .->" if dependency.per_item else "-->"
                if task.needs is Needs.DONE:
                    arrow = "-- done -->"
                lines.append(f"    {numbers[dependency.name]} {arrow} {numbers[task.name]}")
    return "\n".join(lines)


def _shape(task: Task) -> tuple[str, str]:
    if task.foreach is not None:
        return "[[", "]]"
    return ("([", "])") if task.task_class is TaskClass.LLM else ("[", "]")


def _label(task: Task) -> str:
    parts = [task.name, "brain" if task.executor is Executor.BRAIN else task.task_class.value]
    if task.foreach is not None:
        parts.append(f"for each of {task.foreach}")
    return "<br/>".join(_escaped(part) for part in parts)


def _escaped(text: str) -> str:
    """Mermaid reads quotes, brackets and `#`; entities without their ampersand are its way to write them."""
    return "".join(f"#{ord(letter)};" if letter in '"#<>&[]{}()|`;' else letter for letter in text)
