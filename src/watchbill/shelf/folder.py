"""The models folder: which of its files are models, what they are called, and why the others are not.

A file counts when its header is whole and every tensor lies inside it, so half a download never does. Nothing is
written here. Headers are read again only when a file changes, so that a look costs a few system calls per file.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from watchbill.gguf import GgufError, read_header
from watchbill.shelf.limits import SHELF_DEPTH_MAX, SHELF_FILES_MAX
from watchbill.shelf.naming import Names, names_of, settle

__all__ = ["Folder", "OnShelf", "Passed", "Why", "parts_of"]

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
#: What downloaders call a file until it is whole, and files that they keep beside it until then.
_ARRIVING = (".part", ".partial", ".crdownload", ".download", ".incomplete", ".tmp", ".aria2", ".!qb")
_BESIDE = (".aria2", ".part")
_UNREAD = frozenset({"blobs"})  # of names that callers made; the library knows them


class Why(StrEnum):
    """Why a file is not a model."""

    ARRIVING = "still being written"
    BROKEN = "broken"
    UNFINISHED = "download not finished"
    PROJECTOR = "a projector"
    SAME_NAME = "another file has its name"


class OnShelf(NamedTuple):
    """A file that is a model."""

    name: str
    aliases: tuple[str, ...]
    file: Path
    size_bytes: int  # of all its parts
    modified_s: float
    embedding: bool
    projector: Path | None = None


class Passed(NamedTuple):
    """A file that is no model, and why."""

    file: Path
    why: Why
    detail: str = ""

    @property
    def told(self) -> str:
        """The reason for a person."""
        return f"{self.why}: {self.detail}" if self.detail else str(self.why)


class _Stamp(NamedTuple):
    """Of all parts of a model together."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class _Read:
    """What is known of a file that has not changed since."""

    stamp: _Stamp
    title: str = ""
    size_bytes: int = 0
    embedding: bool = False
    complaint: str = ""


class Folder:
    """One models folder, looked at again and again. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, _Read] = {}
        self._seen: dict[Path, _Stamp] = {}  # at the last look
        self._has_looked = False

    def look(self) -> tuple[list[OnShelf], list[Passed]]:
        """The models and the other files. A folder that cannot be read is an empty one; blocks."""
        listed = list(_walk(self.path, SHELF_DEPTH_MAX))[:SHELF_FILES_MAX]
        files = {path for path in listed if path.suffix.lower() == ".gguf"}
        passed = [Passed(path, Why.UNFINISHED) for path in listed if _is_arriving(path)]
        read: dict[Path, _Read] = {}
        projectors = [path for path in files if "mmproj" in path.name.lower()]
        for path in sorted(files - set(projectors)):
            if _is_later_part(path):
                continue
            found = self._read(path)
            if isinstance(found, Passed):
                passed.append(found)
            else:
                read[path] = found
        self._has_looked = True
        models, same = _named(read, self.path, projectors)
        used = {model.projector for model in models}
        passed += same
        passed += [
            Passed(path, Why.PROJECTOR, "no model beside it") for path in projectors if path not in used
        ]
        return models, sorted(passed)

    def _read(self, path: Path) -> _Read | Passed:
        try:
            stamp = _stamp(path)
        except OSError as error:  # whichever errno: it went meanwhile, or is a link to nowhere
            return Passed(path, Why.BROKEN, (error.strerror or "").lower())
        is_settled = not self._has_looked or self._seen.get(path) == stamp
        self._seen[path] = stamp
        # A downloader that reserves the space first has a whole header long before the weights, and keeps a file
        # beside it until the end.
        if not is_settled or any(path.with_name(path.name + suffix).exists() for suffix in _BESIDE):
            return Passed(path, Why.ARRIVING)
        known = self._known.get(path)
        if known is None or known.stamp != stamp:
            self._known[path] = known = _examined(path, stamp)
        return Passed(path, Why.BROKEN, known.complaint) if known.complaint else known


def parts_of(file: Path) -> list[Path]:
    """All files of a model: itself, or every part of one that is split."""
    found = _SHARD.fullmatch(file.stem)
    if found is None:
        return [file]
    count = min(int(found[3]), SHELF_FILES_MAX)
    return [file.with_name(f"{found[1]}-{part:05}-of-{found[3]}.gguf") for part in range(1, count + 1)]


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Regular files below a folder, and links to such files, without hidden ones."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # whichever errno: there is nothing to serve
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _UNREAD:
            if entry.name == ".pull":
                yield from (path for path in _walk(Path(entry.path), 1) if path.suffix == ".part")
            continue
        try:
            kind = entry.stat().st_mode
        except OSError:
            kind = stat.S_IFREG if entry.name.endswith(".gguf") else 0  # a link to nowhere is told as broken
        if stat.S_ISREG(kind) and entry.name.isprintable():
            yield Path(entry.path)
        elif stat.S_ISDIR(kind) and depth > 1 and not entry.is_symlink():
            yield from _walk(Path(entry.path), depth - 1)


def _is_arriving(path: Path) -> bool:
    return path.suffix.lower() in _ARRIVING and ".gguf" in path.name.lower()


def _is_later_part(path: Path) -> bool:
    found = _SHARD.fullmatch(path.stem)
    return found is not None and int(found[2]) != 1


def _stamp(path: Path) -> _Stamp:
    facts = [path.stat(), *(part.stat() for part in parts_of(path) if part != path and part.exists())]
    return _Stamp(sum(each.st_size for each in facts), max(each.st_mtime_ns for each in facts))


def _examined(path: Path, stamp: _Stamp) -> _Read:
    try:
        header = read_header(path)
    except GgufError as error:
        return _Read(
            stamp, complaint=error.what if error.path == path else f"{error.path.name}: {error.what}"
        )
    return _Read(stamp, header.name, header.file_bytes, header.is_embedding)


def _named(
    read: dict[Path, _Read], folder: Path, projectors: list[Path]
) -> tuple[list[OnShelf], list[Passed]]:
    names: dict[str, Names] = {}
    owners: dict[str, Path] = {}
    same: list[Passed] = []
    for path, found in read.items():
        below = path.parent.relative_to(folder)
        own = names_of(path.stem, found.title, below.name)
        if own.name in owners and below.parts:
            own = own._replace(name=f"{names_of(below.name).name}/{own.name}")
        if own.name in owners:
            same.append(Passed(path, Why.SAME_NAME, own.name))
            continue
        owners[own.name] = path
        names[str(path)] = own
    aliases = settle(names)
    models = [
        OnShelf(
            name,
            aliases[str(path)],
            path,
            read[path].size_bytes,
            read[path].stamp.mtime_ns / 1e9,
            read[path].embedding,
            _projector_of(path, names[str(path)], projectors, list(read)),
        )
        for name, path in owners.items()
    ]
    return models, same


def _projector_of(path: Path, own: Names, projectors: list[Path], models: list[Path]) -> Path | None:
    """The projector beside a model: the only model of its folder, or one whose name it bears."""
    beside = [each for each in projectors if each.parent == path.parent]
    alone = sum(each.parent == path.parent for each in models) == 1
    called = [each for each in beside if _bears(each, own)]
    return next(iter(called), beside[0] if alone and len(beside) == 1 else None)


def _bears(projector: Path, own: Names) -> bool:
    bare = names_of(re.sub(r"[-_.]?mmproj[-_.]?", "", projector.stem.lower())).claims
    return bool(set(bare) & set(own.claims))
