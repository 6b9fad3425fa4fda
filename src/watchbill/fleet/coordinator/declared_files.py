"""Declared files: which complete tasks of a batch lack one that they made, when the batch is resumed.

A batch may have ten thousand tasks with their files in one folder, and the coordinator does nothing else meanwhile:
each folder is listed once.
"""

import fnmatch
import glob
import re
from bisect import bisect_left
from collections.abc import Iterator

from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.shared_paths import output_path, patterns_of

__all__ = ["Listings", "gone_files"]

#: What `glob.escape` makes of a character of a value.
_ESCAPED = re.compile(r"\[([*?[])\]")
#: What a name begins with before its first `*` or `?`.
_LITERAL = re.compile(r"(?:[^*?[]|\[[*?[]\])*")


def gone_files(disk: Disk, ledger: Ledger) -> Iterator[tuple[str, str]]:
    """The complete tasks of which a declared file is not there any more, each with the first such file."""
    listings = Listings(disk)
    for task in ledger.tasks():
        if ledger.phase(task) is Phase.COMPLETE:
            gone = next((path for path in _declared(ledger, task) if not listings.have(path)), "")
            if gone:
                yield task, gone


def _declared(ledger: Ledger, task: str) -> Iterator[str]:
    """What a task leaves in the shared folder by its plan, as patterns: `produces`, and the answer of a model."""
    work = ledger.spec(task).work
    yield from patterns_of(ledger, task, work.produces)
    if work.output:
        yield glob.escape(output_path(ledger, task, work.output))


class Listings:
    """The folders that were asked about, each listed once. Answers as `Disk.has` does."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names: dict[str, list[str]] = {}  # in their order, hidden ones left out

    def have(self, pattern: str) -> bool:
        """Whether a path, which may be a pattern, names anything."""
        folder, _, name = pattern.rpartition("/")
        literal = _LITERAL.match(name)
        assert literal is not None, "it matches nothing, too"
        rest = name[literal.end() :]
        if not _is_literal(folder) or name in ("", "**") or name.startswith(".") or "[" in rest:
            return self._disk.has(pattern)
        begin = _ESCAPED.sub(r"\1", literal[0])
        if rest and not begin:
            return self._disk.has(pattern)  # hidden names count, too
        found = self._beginning_with(_ESCAPED.sub(r"\1", folder), begin)
        if not rest:
            return begin in found and self._disk.has(pattern)  # a link to nothing does not count
        matching = (each for each in found if fnmatch.fnmatchcase(each, name))
        return any(self._disk.has(f"{folder}/{glob.escape(each)}") for each in matching)

    def _beginning_with(self, folder: str, begin: str) -> list[str]:
        if folder not in self._names:
            self._names[folder] = self._disk.names(folder)
        names = self._names[folder]
        first = last = bisect_left(names, begin)
        while last < len(names) and names[last].startswith(begin):
            last += 1
        return names[first:last]


def _is_literal(folder: str) -> bool:
    return not glob.has_magic(_ESCAPED.sub("", folder))
