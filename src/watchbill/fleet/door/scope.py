"""Scope: the files that come with one task, and those that it may leave behind. Pure.

    permissions.toml                       read
    plans/PLAN/ without history/           read
    plans/PLAN/history/BATCH/              read and written, without the coordinator's own files
        tasks/TASK/                        read; written: the folder of this attempt. Not those of other tasks
    what `requires` or an input names      read, wherever it lies below the root

A slip in an agent's hands gives it this much and nothing else; without the slip, as after a revocation, nothing.
"""

import fnmatch
import glob
import posixpath
from collections.abc import Callable, Iterator
from functools import cached_property

from watchbill.errors import OursError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields
from watchbill.names import check_folder_name, file_stem
from watchbill.plans.bash_reader import read_command
from watchbill.plans.expand import item_of, values_of
from watchbill.plans.placeholders import Placeholder, fill
from watchbill.plans.second_reading import EXPANSION, VALUE, Word

__all__ = ["RULES", "Scope"]

RULES = "permissions.toml"
#: Stands for the root while placeholders are filled in: an absolute path elsewhere is no path below it.
_ROOT = "/\x01root"
#: What only the coordinator and `submit` write in the folder of a batch.
_RECORDS = frozenset({"inputs.json", "plan.lock.json", "RUN_SUMMARY.md", "RUN_SUMMARY.json"})
#: The board and the coordinator's own folders: no task has its files there.
_BOARD = frozenset({"tasks", "brain", "gpus", "signals", "logs", places.MARKER})
#: Redirections after which a file has nothing of what was in it.
_REPLACING = frozenset({">", ">|", ">&", "<>"})
#: Nothing that a task needs, and often a lot of it.
_LEFT_OUT = frozenset({".git", "__pycache__"})


class Scope:
    """The files of one attempt of a task."""

    def __init__(self, slip: Slip) -> None:
        """Raises OursError for a slip that belongs to no batch, or whose names are no names."""
        self._slip = slip
        self.plan = f"plans/{check_folder_name(slip.plan, 'a plan')}"
        self.history = f"{self.plan}/history"
        self.batch = places.batch_folder(slip.plan, slip.batch)
        self.others = f"{self.batch}/tasks"
        self.task = f"{self.others}/{file_stem(slip.task)}"
        self.attempt = f"{self.task}/a{slip.attempt}"

    def is_shown(self, path: str) -> bool:
        """Whether a file comes along at all. Records of batches never do."""
        parts = path.split("/")
        is_record = (
            parts[2:3] == ["history"] and len(parts) == 5 and places.epoch_of_journal(parts[4]) is not None
        )
        return not is_record and not _LEFT_OUT.intersection(parts)

    def may_write(self, path: str) -> bool:
        """Whether a task may leave this path behind."""
        parts = path.split("/")
        if (
            "\0" in path
            or any(part in ("", ".", "..") for part in parts)
            or not path.startswith(f"{self.batch}/")
        ):
            return False
        if path == self.others or path.startswith(f"{self.others}/"):
            return path in (self.others, self.task, self.attempt) or path.startswith(f"{self.attempt}/")
        name = path.removeprefix(f"{self.batch}/")
        return name not in _RECORDS and places.epoch_of_journal(name) is None

    def adds_to(self, path: str) -> bool:
        """Whether the task's command names the file behind `>>`, and behind no other redirection."""
        added, replaced = self._redirected
        return _is_one_of(path, added) and not _is_one_of(path, replaced)

    @cached_property
    def _redirected(self) -> tuple[frozenset[str], frozenset[str]]:
        """Patterns of the files behind `>>`, and of those behind other redirections to files."""
        words = [word for simple in read_command(self._slip.work.command).simple for word in simple]
        added = frozenset(_pattern(word) for word in words if word.redirect == ">>")
        replaced = frozenset(_pattern(word) for word in words if word.redirect in _REPLACING)
        return added, replaced

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The patterns below the root that `requires` and inputs name. A task that cannot be read names none."""
        try:
            found = [*self._filled(self._slip.work.requires), *self._inputs()]
        except (OursError, ValueError):
            return ()
        return tuple(dict.fromkeys(each for each in found if each.split("/")[0] not in _BOARD))

    @cached_property
    def out_of_reach(self) -> tuple[str, ...]:
        """The paths below the root that the task produces elsewhere than in its batch."""
        try:
            found = list(self._filled(self._slip.work.produces))
        except (OursError, ValueError):
            return ()
        return tuple(each for each in found if not each.startswith(f"{glob.escape(self.batch)}/"))

    def _filled(self, texts: tuple[str, ...]) -> Iterator[str]:
        items = [item_of(text) for text in self._slip.items]
        rows = [values_of(item, self._value) for item in items] or [self._value]
        for value_of in rows:
            for text in texts:
                pattern = fill(text, _escaped(value_of))
                whole = posixpath.normpath(posixpath.join(f"{_ROOT}/{glob.escape(self.plan)}", pattern))
                if whole.startswith(f"{_ROOT}/"):
                    yield whole.removeprefix(f"{_ROOT}/")

    def _inputs(self) -> Iterator[str]:
        for value in self._slip.inputs.values():
            below = Fields({"it": value}).fields("it").text("below_root")
            if below:
                places.refuse_outside(below)
                yield glob.escape(posixpath.normpath(below))

    def _value(self, place: Placeholder) -> str:
        known = {
            "BATCH_ID": self._slip.batch, "BATCH_PATH": f"{_ROOT}/{self.batch}", "PLAN_PATH": f"{_ROOT}/{self.plan}",
            "ROOT": _ROOT, "TASK_PATH": f"{_ROOT}/{self.attempt}",
        }  # fmt: skip
        if place.name in known:
            return known[place.name]
        value = self._slip.inputs.get(place.name)
        if isinstance(value, str):
            return value
        return f"{_ROOT}/{Fields(self._slip.inputs).fields(place.name).text('below_root')}"


def _pattern(word: Word) -> str:
    """What a word may stand for; what is known only when it runs may be anything."""
    return "".join("*" if part in (VALUE, EXPANSION) else glob.escape(part) for part in word.parts)


def _is_one_of(path: str, patterns: frozenset[str]) -> bool:
    """Whether a path ends as one of these does. A name of which no letter is known names nothing."""
    return any(
        fnmatch.fnmatchcase(f"/{path}", f"*/{pattern.removeprefix('./')}")
        for pattern in patterns
        if posixpath.basename(pattern).strip("*")
    )


def _escaped(value_of: Callable[[Placeholder], str]) -> Callable[[Placeholder], str]:
    return lambda place: glob.escape(value_of(place))
