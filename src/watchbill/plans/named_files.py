"""Named files: which paths of the plan's folder a task may depend on, by the words of its command. Pure.

A task that is complete is kept by `plan resume` while these files are unchanged, so a path too many costs a run and a
path too few keeps a wrong result: every word that could be a path counts, also behind `=`, `@`, redirections and `cd`,
and in the text of another program (`python3 -c "open('data.txt')"`). Which of the paths are files is the caller's
business. What the tasks of a plan write themselves does not count: those that make it run again when it has to change.
"""

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator

from watchbill.plans import limits
from watchbill.plans.bash_reader import read_command
from watchbill.plans.placeholders import Placeholder, places_in
from watchbill.plans.second_reading import EXPANSION, VALUE, Word
from watchbill.plans.task import Task

__all__ = ["Made", "paths_in_folder", "paths_named"]

#: The value of a placeholder where it is known; None for one that is known only later, as that of an item.
ValueOf = Callable[[Placeholder], str | None]

_TOKEN = re.compile(r"[\w./+,%~*?-]+")
#: A redirection into the plan's folder, perhaps: parsing a command takes longer than this look.
_MAY_WRITE = re.compile(r""">[>|&]?\s*["']?(?!\{(?:BATCH_|TASK_|ITEM|ROOT)|[/&\d\s>|])""")
_MOVES = ("cd", "pushd")
#: Stands for values that are not known in paths that a task writes.
_ANY = "*"


class Made:
    """The paths of the plan's folder that tasks of the plan write: redirections, `produces` and `output`."""

    def __init__(self, tasks: Iterable[Task], value_of: ValueOf) -> None:
        self._exact: set[str] = set()
        self._patterns: set[str] = set()
        self._known: dict[object, bool] = {}  # the same few files are asked about for task after task
        for task in tasks:
            for path in _written(task, value_of):
                (self._patterns if _ANY in path else self._exact).add(path)

    def __contains__(self, path: object) -> bool:
        if path not in self._known:
            self._known[path] = path in self._exact or any(
                fnmatch.fnmatchcase(str(path), each) for each in self._patterns
            )
        return self._known[path]


def paths_named(task: Task, value_of: ValueOf) -> list[str]:
    """The paths relative to the plan's folder that a task may read, each once; some are patterns, most are no files."""
    found: dict[str, None] = {}
    for text in task.requires:
        _keep(found, _filled(text.text, value_of), ())
    if task.command is not None:
        folders: list[str] = []
        for words in read_command(task.command.text).simple:
            folders += _folders_entered(words, folders, value_of)
            for word in words:
                if not word.redirect.startswith(">"):
                    _keep_all(found, _text_of(word, value_of), folders)
        for token in _TOKEN.findall(_filled(task.command.text, value_of) or task.command.text):
            _keep(found, token, folders)
    return list(found)[: limits.PLAN_NAMED_PATHS_MAX]


def paths_in_folder(text: str, value_of: ValueOf) -> list[str]:
    """The path relative to the plan's folder that a text of a plan means; none for one that is elsewhere."""
    found: dict[str, None] = {}
    _keep(found, _filled(text, value_of), ())
    return list(found)


def _keep_all(found: dict[str, None], text: str | None, folders: Iterable[str]) -> None:
    """A word, and what stands in it behind `=` and `@`."""
    if text is not None:
        for each in (text, text.rpartition("=")[2], text.lstrip("@<")):
            _keep(found, each, folders)


def _keep(found: dict[str, None], text: str | None, folders: Iterable[str]) -> None:
    is_path = text is not None and text.isprintable() and 0 < len(text) <= limits.PLAN_NAMED_CHARS_MAX
    if text is None or not is_path or text.startswith(("/", "-")):
        return
    for folder in ("", *folders):
        path = posixpath.normpath(posixpath.join(folder, text))
        if not path.startswith(("..", "/", "history/")) and path != ".":
            found.setdefault(path)


def _folders_entered(words: tuple[Word, ...], before: list[str], value_of: ValueOf) -> Iterator[str]:
    """The folder that a simple command enters, from the plan's and from the one that was entered last."""
    texts = [_text_of(word, value_of) for word in words if not word.redirect]
    if len(texts) > 1 and texts[0] in _MOVES and texts[-1] and len(before) < limits.PLAN_NESTING_MAX:
        yield texts[-1]
        if before:
            yield posixpath.join(before[-1], texts[-1])


def _text_of(word: Word, value_of: ValueOf, unknown: str | None = None) -> str | None:
    """A word without its quotes, with its values; None where something in it is not known."""
    values = iter(word.values)
    parts: list[str] = []
    for part in word.parts:
        text = (value_of(next(values)) if part == VALUE else part) if part != EXPANSION else None
        text = unknown if text is None else text
        if text is None:
            return None
        parts.append(text)
    return "".join(parts)


def _filled(text: str, value_of: ValueOf, unknown: str | None = None) -> str | None:
    parts: list[str] = []
    at = 0
    for offset, place in places_in(text):
        value = value_of(place)
        value = unknown if value is None else value
        if value is None:
            return None
        parts += [text[at:offset], value]
        at = offset + len(str(place))
    return "".join([*parts, text[at:]])


def _written(task: Task, value_of: ValueOf) -> Iterator[str]:
    texts = [*task.produces, *([] if task.output is None else [task.output])]
    paths = [_filled(each.text, value_of, _ANY) for each in texts]
    folders: list[str] = []
    text = "" if task.command is None else task.command.text
    for words in read_command(text).simple if _MAY_WRITE.search(text) else ():
        folders += _folders_entered(words, folders, value_of)
        for word in words:
            if word.redirect.startswith((">", "<>")):
                target = _text_of(word, value_of, _ANY) or ""
                paths += [target, *(posixpath.join(folder, target) for folder in folders)]
    # What begins with a value is the batch's folder, or anywhere.
    yield from (posixpath.normpath(path) for path in paths if path and not path.startswith((_ANY, "/")))
