"""Patterns of paths: the files that a plan names with `*`, `?`, `[...]` and `**`. Standard library only.

Not `glob`: its `**` enters links to folders, and two links to their own folder are 2**40 paths. A task that had left
such links behind hung its agent, and every agent that took the task after it. Its links to nothing count as files, and
a file with brackets in its name is not found under that name.
"""

import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["matches"]

#: Any folders, also none; the only part of a pattern that is about more than one name.
_DEEP = "**"
_MAGIC = re.compile(r"[*?[]")
#: One `[...]`, with what it leaves out behind `^`, which `fnmatch` knows as `!` only.
_LEAVES_OUT = re.compile(r"\[([!^]?)(\]?[^\]]*\])")
_ESCAPED = re.compile(r"\[([*?[])\]")


def matches(pattern: str, folder: str | Path) -> Iterator[str]:
    """The paths that a pattern names, relative to a folder unless it is absolute, each once.

    Whatever is there counts: a file, a folder, a pipe, a link to one of them; not a link to nothing. Names that begin
    with a dot are names like any other. `**` does not enter links. A name that is there as it is written counts, also
    where it could be read as a pattern. What cannot be listed holds nothing.
    """
    try:
        first = "/" if pattern.startswith("/") else f"{folder}/"
        yield from _below(first, _parts(pattern), set())
    except ValueError:  # no name of a file: a NUL character, half of a surrogate pair
        return


def _parts(pattern: str) -> tuple[str, ...]:
    """The names between the slashes; "" is the last one where the pattern ends with a slash, and means a folder."""
    if pattern == "." or pattern.endswith("/."):  # a folder, as with a slash alone
        pattern = f"{pattern[:-1]}/"
    parts: list[str] = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == _DEEP and parts[-1:] == [_DEEP]):
            parts.append(part)
    return (*parts, "") if pattern.endswith("/") else tuple(parts)


def _below(base: str, parts: tuple[str, ...], seen: set[tuple[str, int]]) -> Iterator[str]:
    """What these parts name in a folder, whose path ends with a slash. `seen`: what several `**` lead to at once."""
    for at, part in enumerate(parts):
        is_last = at == len(parts) - 1
        if part == "":
            if os.path.isdir(base):
                yield base
            return
        if part == _DEEP:
            yield from _deep(base, parts[at + 1 :], seen)
            return
        if (wanted := _test_of(part)) is not None:
            # A file holds nothing: to look for a name below each of a million took minutes.
            names = _names(base, wanted) if is_last else _folders(base, wanted)
            for name in names:
                yield from _found(base + name, parts[at + 1 :], seen)
            return
        name = _plain(part)
        if is_last:
            yield from _found(base + name, (), seen)
            return
        base += f"{name}/"


def _found(path: str, rest: tuple[str, ...], seen: set[tuple[str, int]]) -> Iterator[str]:
    if rest:
        yield from _below(f"{path}/", rest, seen)
    elif os.path.exists(path):
        yield path


def _deep(base: str, rest: tuple[str, ...], seen: set[tuple[str, int]]) -> Iterator[str]:
    """What the rest of a pattern names in a folder and in all folders below it, links left out."""
    if not rest and os.path.isdir(base):
        yield base
    waiting = [base]
    while waiting:
        folder = waiting.pop()
        if (folder, len(rest)) in seen:
            continue
        seen.add((folder, len(rest)))
        if rest:
            yield from _below(folder, rest, seen)
        for entry in _entries(folder):
            if not rest and os.path.exists(entry.path):
                yield entry.path
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{entry.path}/")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _folders(folder: str, wanted: Callable[[str], bool]) -> list[str]:
    """The folders among the names, and the links to some."""
    return [
        entry.name
        for entry in _entries(folder)
        if wanted(entry.name)
        and (entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path)))
    ]


def _names(folder: str, wanted: Callable[[str], bool]) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if wanted(name)]
    except OSError:
        return []


@functools.lru_cache(maxsize=256)
def _test_of(part: str) -> Callable[[str], bool] | None:
    """Whether a name is meant by a part of a pattern; None for a part that means one name only."""
    if not _MAGIC.search(_ESCAPED.sub("", part)):
        return None
    as_fnmatch = _LEAVES_OUT.sub(lambda found: f"[{'!' * bool(found[1])}{found[2]}", part)
    is_like, plain = re.compile(fnmatch.translate(as_fnmatch)).match, _plain(part)
    return lambda name: name == plain or is_like(name) is not None


def _plain(part: str) -> str:
    """A name without what `glob.escape` has put around its characters."""
    return _ESCAPED.sub(r"\1", part)
