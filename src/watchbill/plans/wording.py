"""How people name the tasks that another task waits for, beside their names: `all of transcribe`, `a and b`.

    Split Chapters                    the title of a task
    all of b   every b   b (all)      the foreach task b: its tasks are waited for in any case
    b_*   all b tasks                 the same
    a and b   a & b   a; b            both

Only what names tasks of the plan without a doubt is read so. Everything else stays as it was written, and is an error.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from watchbill.plans.fields import name_of_title
from watchbill.plans.task import Dependency, Task

__all__ = ["with_names"]

_BETWEEN = re.compile(r"\s*[;&+]\s*|\s+(?:and|und|et|y)\s+", re.IGNORECASE)
_BEFORE = re.compile(
    r"^(?:(?:after|on)\s+)?(?:(?:all|every|each)\s+(?:of\s+)?)?(?:the\s+)?(?:(?:tasks?|steps?)\s+)?",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    r"(?:\s*\((?:all|every|each)[^()]*\)|(?:[_.-]?\*)|\s+(?:tasks?|items?|jobs?|steps?|results?|outputs?)"
    r"|\s+(?:completed?|done|finished|succeeded))+$",
    re.IGNORECASE,
)


def with_names(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The tasks with dependencies on names, where a dependency is written in other words."""
    names = {task.name for task in tasks}
    if all(each.name in names for task in tasks for each in task.depends_on):
        return tasks
    return tuple(replace(task, depends_on=_named(task.depends_on, names)) for task in tasks)


def _named(dependencies: Iterable[Dependency], names: Collection[str]) -> tuple[Dependency, ...]:
    found: dict[tuple[str, bool], Dependency] = {}
    for dependency in dependencies:
        for name in _meant(dependency.name, names) or (dependency.name,):
            found.setdefault((name, dependency.per_item), dependency._replace(name=name))
    return tuple(found.values())


def _meant(text: str, names: Collection[str]) -> list[str]:
    """The tasks that a text names; none where a part of it names no task."""
    whole = _one(text, names)
    if whole:
        return [whole]
    parts = [_one(part, names) for part in _BETWEEN.split(text) if part]
    return parts if all(parts) else []


def _one(text: str, names: Collection[str]) -> str:
    if text in names:
        return text
    rest = _BEFORE.sub("", text, count=1)
    for candidate in (text, rest, _BEHIND.sub("", rest), _BEHIND.sub("", text)):
        for name in (candidate.strip(" `\"'"), name_of_title(candidate)):
            if name in names:
                return name
    return ""
