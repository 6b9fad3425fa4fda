"""Found models: what lies on the shelf, as entries of the library that need no table in the config.

Looks at the models folder and at the store of an installed Ollama, as the config allows. Never writes: only `library`
removes files.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from watchbill.catalog import LibraryRules
from watchbill.runtime.entry import Entry
from watchbill.shelf import Folder, OllamaModel, OllamaStore, OnShelf, Passed, find_store

__all__ = ["Finding", "FoundModel", "Origin", "Shelf"]


class Origin(StrEnum):
    """Where a model is known from."""

    CONFIG = "config"
    NAMED = "named"  # a caller made the name
    FOLDER = "folder"  # a file of the models folder
    OLLAMA = "ollama"  # the store of an installed Ollama


class FoundModel(NamedTuple):
    """A model of the shelf."""

    entry: Entry
    aliases: tuple[str, ...]
    origin: Origin
    file: Path
    real: str  # where its file really lies, links followed

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it would like to have, its own first."""
        return self.entry.name, *self.aliases


class Finding(NamedTuple):
    """What one look found."""

    models: tuple[FoundModel, ...] = ()
    passed: tuple[Passed, ...] = ()


class Shelf:
    """The places of one root where models lie. Not for several threads at once."""

    def __init__(self, folder: Path, rules: LibraryRules) -> None:
        self._folder = Folder(folder)
        self._store: OllamaStore | None = None
        self._rules = rules

    def allow(self, rules: LibraryRules) -> None:
        """Takes over the rules of a new config, from the next look on."""
        self._rules = rules

    def look(self) -> Finding:
        """Everything that is there now; blocks."""
        files, passed = self._folder.look() if self._rules.files else ([], [])
        kept, unreadable = self._look_into_store()
        models = [*(_of_file(each, self._folder.path) for each in files), *map(_of_ollama, kept)]
        return Finding(tuple(models), (*passed, *unreadable))

    def _look_into_store(self) -> tuple[list[OllamaModel], list[Passed]]:
        if not self._rules.ollama:
            return [], []
        named = self._rules.ollama_folder
        place = find_store() if named is None else Path(named)
        if place is None:
            return [], []
        if self._store is None or self._store.path != place:
            self._store = OllamaStore(place)
        return self._store.look()


def _of_file(found: OnShelf, folder: Path) -> FoundModel:
    projector = found.projector
    entry = Entry(
        found.name,
        file=str(found.file.relative_to(folder)),
        projector=None if projector is None else str(projector.relative_to(folder)),
        embedding=found.embedding,
        modified_s=found.modified_s,
    )
    return FoundModel(entry, found.aliases, Origin.FOLDER, found.file, os.path.realpath(found.file))


def _of_ollama(found: OllamaModel) -> FoundModel:
    layers = found.layers
    entry = Entry(
        found.name,
        file=str(layers.file),
        projector=None if layers.projector is None else str(layers.projector),
        embedding=found.embedding,
        system=layers.text("system"),
        template=layers.text("template"),
        license=layers.text("license"),
        parameters=layers.parameters(),
        messages=layers.messages(),
        modified_s=found.modified_s,
    )
    return FoundModel(entry, (), Origin.OLLAMA, layers.file, os.path.realpath(layers.file))
