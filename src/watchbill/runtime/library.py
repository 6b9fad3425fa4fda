"""The library: names of models that callers made, beside those of the config.

    ROOT/models/library.json     every entry
    ROOT/models/blobs/sha256-*   files that were uploaded or pulled for them

An entry is a name and what it stands for: a model of the config, a file of the models folder, or a model that an engine
keeps. It may bring a system text, messages and parameters, which requests under this name begin with. Entries of one
file, or of one model of the config, share one model in memory: the first is its name, the others are aliases of it.
The config comes first: an entry whose name it takes is not served until the config gives the name back.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec

from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.errors import DiskFailed, TooLarge
from watchbill.files.atomic import make_folder, read_regular, replace_file
from watchbill.limits import LIBRARY_BYTES_MAX, LIBRARY_ENTRIES_MAX
from watchbill.pull.registry import REGISTRY
from watchbill.runtime.driver import Driver

__all__ = ["Entry", "Library", "extended", "plain_name"]

FILE = "library.json"
BLOBS = "blobs"
_LLAMACPP = "llamacpp"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One name, and what a request under it means."""

    name: str
    base: str | None = None  # a model of the config
    file: str | None = None  # below the models folder
    engine: str | None = None  # that keeps the model itself, under `source`
    source: str | None = None
    projector: str | None = None  # below the models folder: lets the model see
    embedding: bool = False
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: dict[str, object] = {}
    messages: list[dict[str, object]] = []
    modified_s: float = 0.0

    @property
    def thing(self) -> tuple[str | None, str | None, str | None, str | None]:
        """What it stands for; the same for every name of one model."""
        return self.base, self.file, self.engine, self.source

    @property
    def is_plain(self) -> bool:
        """Whether requests under it are changed by nothing."""
        return not (self.system or self.parameters or self.messages)


def plain_name(name: str) -> str:
    """A name as names are compared: `foo` and `Foo:latest` are the same."""
    return name.removesuffix(":latest").casefold()


class Library:
    """The entries of one models folder, and the catalog that they and the config make."""

    def __init__(self, folder: Path, declared: Catalog, registry: str = REGISTRY) -> None:
        self.folder = folder
        self.registry = registry  # where models without a host in their name come from
        self._declared = declared
        self._entries: dict[str, Entry] = {}
        self._turn = asyncio.Lock()

    @classmethod
    def of(cls, folder: Path, declared: Catalog, registry: str = REGISTRY) -> "Library":
        """The library of a folder, read; blocks."""
        library = cls(folder, declared, registry)
        library.read()
        return library

    def read(self) -> None:
        """Reads the entries; blocks. A file that cannot be read is an empty library, and is kept under another name."""
        path = self.folder / FILE
        try:
            found = msgspec.json.decode(
                read_regular(str(path), bytes_max=LIBRARY_BYTES_MAX), type=list[Entry]
            )
        except FileNotFoundError:
            return
        except msgspec.DecodeError:
            path.rename(path.with_name(f"{FILE}.unreadable"))
            return
        self._entries = {plain_name(entry.name): entry for entry in found[:LIBRARY_ENTRIES_MAX]}

    @property
    def catalog(self) -> Catalog:
        """The config's catalog with the names of the library."""
        return extended(self._declared, self._entries.values(), self.folder)

    def entries(self) -> list[Entry]:
        """The entries that are served."""
        return [entry for entry in self._entries.values() if self.find(entry.name) is not None]

    def find(self, name: str) -> Entry | None:
        """The entry of a name, unless the config has taken it."""
        if not self._entries:  # nearly always, and for every request
            return None
        entry = self._entries.get(plain_name(name))
        return None if entry is None or plain_name(name) in _names(self._declared) else entry

    def path_of(self, entry: Entry) -> Path | None:
        """Where its file lies."""
        return None if entry.file is None else self.folder / entry.file

    def blob(self, digest: str) -> Path:
        """Where a blob with a checked digest lies, or would lie."""
        return self.folder / BLOBS / digest.replace(":", "-")

    # ------------------------------------------------------------------ changes

    async def declare(self, driver: Driver, declared: Catalog) -> list[str]:
        """Takes over a new config; returns the changes as sentences."""
        async with self._turn:
            self._declared = declared
            return await driver.reload(self.catalog)

    async def put(self, driver: Driver, entry: Entry) -> None:
        """Adds an entry, or replaces the one of its name. It is on the disk when this returns. Raises TooLarge."""
        async with self._turn:
            kept = {**self._entries, plain_name(entry.name): entry}
            if len(kept) > LIBRARY_ENTRIES_MAX:
                raise TooLarge(f"the library has {LIBRARY_ENTRIES_MAX} names; delete one first")
            await self._take_over(driver, kept)

    async def remove(self, driver: Driver, name: str) -> None:
        """Takes an entry away, and its file where nothing else needs it."""
        async with self._turn:
            kept = dict(self._entries)
            entry = kept.pop(plain_name(name))
            await self._take_over(driver, kept)
            path = self.path_of(entry)
            if path is not None and not self._is_needed(path):
                await asyncio.to_thread(path.unlink, missing_ok=True)

    def _is_needed(self, path: Path) -> bool:
        of_entries = {self.path_of(entry) for entry in self._entries.values()}
        return path in of_entries or str(path) in {model.source for model in self._declared.models.values()}

    async def _take_over(self, driver: Driver, entries: dict[str, Entry]) -> None:
        text = msgspec.json.format(msgspec.json.encode(list(entries.values())))
        if len(text) > LIBRARY_BYTES_MAX:
            raise TooLarge(f"the library would exceed {LIBRARY_BYTES_MAX} bytes; delete a name first")
        try:
            await asyncio.to_thread(self._write, text)
        except OSError as error:
            raise DiskFailed(f"the library cannot be written: {error.strerror}") from error
        self._entries = entries
        await driver.reload(self.catalog)

    def _write(self, text: bytes) -> None:
        make_folder(self.folder)
        replace_file(self.folder / FILE, text)


# ------------------------------------------------------------------ the catalog


def extended(declared: Catalog, entries: Iterable[Entry], folder: Path) -> Catalog:
    """The catalog with the names of these entries. An entry without its base, file or engine is left out."""
    models, engines = dict(declared.models), dict(declared.engines)
    taken, owners = _names(declared), dict[tuple[str | None, ...], str]()
    for entry in entries:
        name = entry.name.removesuffix(":latest")
        owner = owners.get(entry.thing, entry.base)
        if plain_name(name) in taken or (owner is not None and owner not in models):
            continue
        if owner is not None:
            models[owner] = replace(models[owner], aliases=(*models[owner].aliases, name))
        elif (model := _made(entry, name, declared, folder)) is not None:
            models[name] = model
            owners[entry.thing] = name
            engines.setdefault(model.engine, EngineRules(model.engine, _LLAMACPP))
        else:
            continue
        taken.add(plain_name(name))
    return replace(declared, models=MappingProxyType(models), engines=MappingProxyType(engines))


def _names(catalog: Catalog) -> set[str]:
    return {
        plain_name(name)
        for model in catalog.models.values()
        if model.copy_of is None
        for name in (model.name, *model.aliases)
    }


def _made(entry: Entry, name: str, declared: Catalog, folder: Path) -> Model | None:
    """A model for a file, with the devices and settings of the config's first one of the same kind."""
    if entry.engine is not None:
        if entry.engine not in declared.engines:
            return None
        source, embedding = entry.source, entry.embedding
        return Model(
            name, entry.engine, source=source, embedding=embedding, stays_if_room=True, writes_here=False
        )
    path = folder / (entry.file or "")
    if entry.file is None or not path.is_file():
        return None
    like = _first(declared)
    sees = () if entry.projector is None else ("--mmproj", str(folder / entry.projector))
    made = Model(
        name, _LLAMACPP, source=str(path), embedding=entry.embedding, stays_if_room=True, arguments=sees
    )
    if like is None:
        return made
    return replace(made, engine=like.engine, devices=like.devices, threads=like.threads, context=like.context)


def _first(declared: Catalog) -> Model | None:
    engines: Mapping[str, EngineRules] = declared.engines
    ours = (
        model
        for model in declared.models.values()
        if engines[model.engine].driver == _LLAMACPP and not model.embedding and model.copy_of is None
    )
    return next(ours, None)
