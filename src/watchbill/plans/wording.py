"""How people name the tasks that another task waits for, beside their names: `all of transcribe`, `a and b`.

    Split Chapters   split-chapters   the title of a task, in any spelling
    Step 1                            the task with this number in front of its title
    all of b   every b   b (all)      the foreach task b: its tasks are waited for in any case
    b_*   all b tasks                 the same
    a and b   a & b   a; b            both

Only what names tasks of the plan without a doubt is read so. Everything else stays as it was written, and is an error.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from watchbill.plans.task import Dependency, Task

__all__ = ["with_names"]

#: `Step 1: fetch`, `2. parse`.
_NUMBER = re.compile(r"((?:task|step|phase|stage)\s*\d+|\d+)\s*[:.)]", re.IGNORECASE)
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
    known = _Names(tasks)
    return tuple(replace(task, depends_on=_named(task.depends_on, known)) for task in tasks)


class _Names:
    """The names of the tasks, and what else means exactly one of them."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._names = {task.name for task in tasks}
        meant: dict[str, set[str]] = {}
        for task in tasks:
            for spelling in _spellings(task):
                meant.setdefault(spelling, set()).add(task.name)
        self._others = {spelling: min(names) for spelling, names in meant.items() if len(names) == 1}

    def find(self, text: str) -> str:
        """The task that a text means; "" where it is none, or might be several."""
        return text if text in self._names else self._others.get(_folded(text), "")


def _spellings(task: Task) -> set[str]:
    """What may stand for a task: its name, its heading, and the number in front of that."""
    numbers = [match[1] for title in task.titles if (match := _NUMBER.match(title))]
    return {_folded(text) for text in (task.name, *task.titles, *numbers)} - {""}


def _folded(text: str) -> str:
    """A text without what people spell in different ways: capitals, accents, blanks, hyphens and underscores."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if letter.isalnum())


def _named(dependencies: Iterable[Dependency], names: _Names) -> tuple[Dependency, ...]:
    found: dict[tuple[str, bool], Dependency] = {}
    for dependency in dependencies:
        for name in _meant(dependency.name, names) or (dependency.name,):
            found.setdefault((name, dependency.per_item), dependency._replace(name=name))
    return tuple(found.values())


def _meant(text: str, names: _Names) -> list[str]:
    """The tasks that a text names; none where a part of it names no task."""
    whole = _one(text, names)
    if whole:
        return [whole]
    parts = [_one(part, names) for part in _BETWEEN.split(text) if part]
    return parts if all(parts) else []


def _one(text: str, names: _Names) -> str:
    whole = names.find(text)
    if whole:
        return whole
    rest = _BEFORE.sub("", text, count=1)
    candidates = (rest, _BEHIND.sub("", rest), _BEHIND.sub("", text))
    return next((name for each in candidates if (name := names.find(each.strip(" `\"'")))), "")
