"""The library: names of models that callers made, beside those of the config.

    ROOT/models/library.json     every entry
    ROOT/models/blobs/sha256-*   files that were uploaded or pulled for them

An entry is a name and what it stands for: a model of the config, a file of the models folder, or a model that an engine
keeps. It may bring a system text, messages and parameters, which requests under this name begin with. Entries of one
file, or of one model of the config, share one model in memory: the first is its name, the others are aliases of it.
Files that lie on the shelf are models without an entry (`found`); they come and go with the files.
The config comes first: an entry whose name it takes is not served until the config gives the name back. Names that
callers made come before those of files.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec

from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.errors import DiskFailed, ModelNotFound, PullFailed, RequestError, TooLarge
from watchbill.files.atomic import PRIVATE_FOLDER_MODE, make_folder, read_regular, replace_file
from watchbill.gguf import GgufError, read_header
from watchbill.pull.registry import REGISTRY, Layers
from watchbill.quoting import quoted
from watchbill.runtime.driver import Driver
from watchbill.runtime.entry import Entry, plain_name
from watchbill.runtime.found import Finding, FoundModel, Origin, Shelf
from watchbill.runtime.limits import BLOB_UNUSED_MS, LIBRARY_BYTES_MAX, LIBRARY_ENTRIES_MAX
from watchbill.runtime.placing import Placing
from watchbill.shelf import Passed, parts_of

__all__ = ["Entry", "Library", "entry_of", "extended", "listed", "plain_name", "without_missing"]

FILE = "library.json"
BLOBS = "blobs"
_LLAMACPP = "llamacpp"
_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
#: An upload that has not ended; its last word is the request's id.
_DRAFT = re.compile(rf"\.{_BLOB.pattern}\.[a-z0-9-]+")


class Library:
    """The entries of one models folder, what else lies on the shelf, and the catalog that they and the config make."""

    def __init__(
        self, folder: Path, declared: Catalog, registry: str = REGISTRY, *, is_default: bool = False
    ) -> None:
        self.folder = folder
        #: No operator wrote the config, so its model may be removed like any other.
        self._is_default = is_default
        self.registry = registry  # where models without a host in their name come from
        self._declared = declared
        # Declared by the embedded default; served again once their files are there.
        self._absent: dict[str, Model] = {}
        self._entries: dict[str, Entry] = {}
        self._shelf = Shelf(folder, declared.library)
        self._finding = Finding()
        self._placing = Placing()  # without cards nothing is moved
        self._served: dict[str, Entry] = {}
        self._turn = asyncio.Lock()

    @classmethod
    def of(
        cls, folder: Path, declared: Catalog, registry: str = REGISTRY, *, is_default: bool = False
    ) -> "Library":
        """The library of a folder, read; blocks."""
        library = cls(folder, declared, registry, is_default=is_default)
        library.read()
        return library

    def sweep(self) -> int:
        """Removes what is left in `blobs`: halves of uploads, and files older than a day that no name uses.

        Returns how many files it removed; blocks. For the daemon that holds the root, before it serves. Keeps every
        file where the entries could not be read."""
        if not (self.folder / BLOBS).is_dir():
            return 0
        (self.folder / BLOBS).chmod(PRIVATE_FOLDER_MODE)
        drafts = [path for path in (self.folder / BLOBS).iterdir() if _DRAFT.fullmatch(path.name)]
        unused = [] if (self.folder / f"{FILE}.unreadable").exists() else self._unused()
        self._unlink([*drafts, *unused])
        return len(drafts) + len(unused)

    def _unused(self) -> list[Path]:
        before_s = time.time() - BLOB_UNUSED_MS / 1000
        named = {each for entry in self._entries.values() for each in (entry.file, entry.projector) if each}
        config = repr(self._declared.models.values())  # wherever a model of the config names a file
        return [
            path
            for path in (self.folder / BLOBS).iterdir()
            if _BLOB.fullmatch(path.name)
            and f"{BLOBS}/{path.name}" not in named
            and path.name not in config
            and path.lstat().st_mtime < before_s
        ]

    def read(self) -> None:
        """Reads the entries and looks at the shelf; blocks.

        A file that cannot be read is an empty library, and is kept under another name.
        """
        self._entries = self._read_entries()
        self._finding = self._shelf.look()
        self._served = self._serve()

    def _read_entries(self) -> dict[str, Entry]:
        path = self.folder / FILE
        try:
            found = msgspec.json.decode(
                read_regular(str(path), bytes_max=LIBRARY_BYTES_MAX), type=list[Entry]
            )
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError:
            path.rename(path.with_name(f"{FILE}.unreadable"))
            return {}
        return {plain_name(entry.name): entry for entry in found[:LIBRARY_ENTRIES_MAX]}

    @property
    def catalog(self) -> Catalog:
        """The config's catalog with the names of the library and of the shelf, each model where it goes."""
        return self._placing.place(self._unplaced())

    def _unplaced(self) -> Catalog:
        return extended(self._declared, self._entries.values(), self.folder, self._finding.models)

    def place_with(self, placing: Placing) -> None:
        """Places models by these cards from now on; blocks."""
        placing.learn(self._unplaced())
        self._placing = placing

    @property
    def passed(self) -> tuple[Passed, ...]:
        """Files that are no models, and why."""
        return self._finding.passed

    def entries(self) -> list[Entry]:
        """The entries that callers made and that are served."""
        return [entry for name, entry in self._entries.items() if self._served.get(name) is entry]

    def find(self, name: str) -> Entry | None:
        """The entry of a name, unless the config has taken it."""
        if not self._served:  # often, and for every request
            return None
        return self._served.get(plain_name(name))

    def may_remove(self, model: Model) -> bool:
        """Whether a model is not the operator's own."""
        return self._is_default or model.name not in self._declared.models

    def origin_of(self, model: Model) -> Origin:
        """Where a model of the catalog is known from."""
        if model.name in self._declared.models:
            return Origin.CONFIG
        found = next((each for each in self._finding.models if str(each.file) == model.source), None)
        return Origin.NAMED if found is None else found.origin

    def _serve(self) -> dict[str, Entry]:
        """Plain name -> the entry that requests under it begin with."""
        declared, catalog = _names(self._declared), self.catalog
        served = {name: entry for name, entry in self._entries.items() if name not in declared}
        for found in self._finding.models:
            for name in found.names:
                model, plain = catalog.find_model(name), plain_name(name)
                if model is not None and model.source == str(found.file) and plain not in declared:
                    served.setdefault(plain, found.entry)
        return served

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
            self._declared, self._absent = declared, {}
            self._shelf.allow(declared.library)
            self._finding = await asyncio.to_thread(self._shelf.look)
            await asyncio.to_thread(self._placing.learn, self._unplaced())
            return await self._reload(driver)

    async def look_again(self, driver: Driver) -> list[str]:
        """Takes over files that came or went; returns the changes as sentences."""
        async with self._turn:
            found = await asyncio.to_thread(self._shelf.look)
            if found.models == self._finding.models:
                self._finding = self._finding._replace(passed=found.passed)
                return []
            self._finding = found
            self._take_back()
            await asyncio.to_thread(self._placing.learn, self._unplaced())
            return await self._reload(driver)

    def expect(self, declared: Catalog) -> None:
        """Models of the embedded default that are not here: their file, once it comes, has the names they had."""
        self._absent |= {
            name: model for name, model in declared.models.items() if name not in self._declared.models
        }

    def _take_back(self) -> None:
        back = {name: model for name, model in self._absent.items() if Path(model.source or "/").is_file()}
        self._absent = {name: model for name, model in self._absent.items() if name not in back}
        self._declared = replace(self._declared, models=MappingProxyType({**back, **self._declared.models}))

    async def _reload(self, driver: Driver | None) -> list[str]:
        """Serves what there is now. Without a daemon there is no driver, and only the disk changes."""
        self._served = self._serve()
        return [] if driver is None else await driver.reload(self.catalog)

    async def put(self, driver: Driver | None, entry: Entry) -> None:
        """Adds an entry, or replaces the one of its name. It is on the disk when this returns. Raises TooLarge."""
        async with self._turn:
            kept = {**self._entries, plain_name(entry.name): entry}
            if len(kept) > LIBRARY_ENTRIES_MAX:
                raise TooLarge(f"the library has {LIBRARY_ENTRIES_MAX} names; delete one first")
            await self._take_over(driver, kept)

    async def remove(self, driver: Driver | None, name: str) -> None:
        """Takes a name away, and its file where nothing else needs it.

        Raises ModelNotFound for a name that is not there, RequestError for a model that others keep.
        """
        async with self._turn:
            kept = dict(self._entries)
            entry = kept.pop(plain_name(name), None)
            if entry is None:
                await self._remove_file(driver, name)
                return
            await self._take_over(driver, kept)
            path = self.path_of(entry)
            # Only blobs are the library's own: a name may stand for the operator's file, or for one of Ollama's.
            if path is not None and path.parent == self.folder / BLOBS and not self._is_needed(path):
                await asyncio.to_thread(self._unlink, [path])

    async def _remove_file(self, driver: Driver | None, name: str) -> None:
        """Takes a model of the models folder off the shelf: first out of memory, then off the disk."""
        if self._is_default and (embedded := self._declared.find_model(name)) is not None:
            rest = {key: model for key, model in self._declared.models.items() if model is not embedded}
            whole, self._declared = self._declared, replace(self._declared, models=MappingProxyType(rest))
            self.expect(whole)
            self._served = self._serve()
        entry = self.find(name)
        found = next((each for each in self._finding.models if each.entry is entry), None)
        if entry is None or found is None:
            raise ModelNotFound(f"no model is called {quoted(name)}")
        if found.origin is Origin.OLLAMA:
            raise RequestError(f"{entry.name} belongs to Ollama; delete it with: ollama rm {entry.name}")
        others = [each.name for each in self._entries.values() if self.path_of(each) == found.file]
        if others:
            raise RequestError(f"{others[0]} uses the same file; delete that name first")
        rest = tuple(each for each in self._finding.models if each is not found)
        self._finding = self._finding._replace(models=rest)
        await self._reload(driver)
        still_used = {each.entry.projector for each in rest}
        projector = [] if entry.projector in still_used else [entry.projector]
        files = [*parts_of(found.file), *(self.folder / each for each in projector if each is not None)]
        await asyncio.to_thread(self._unlink, files)

    def _unlink(self, files: Iterable[Path]) -> None:
        for file in files:
            try:
                file.unlink(missing_ok=True)
                (file.parent / ".pull" / f"{file.name}.json").unlink(missing_ok=True)
            except OSError as error:  # whichever errno: the caller is told
                raise DiskFailed(f"{file.name} cannot be removed: {error.strerror}") from error

    def _is_needed(self, path: Path) -> bool:
        of_entries = {self.path_of(entry) for entry in self._entries.values()}
        return path in of_entries or str(path) in {model.source for model in self._declared.models.values()}

    async def _take_over(self, driver: Driver | None, entries: dict[str, Entry]) -> None:
        text = msgspec.json.format(msgspec.json.encode(list(entries.values())))
        if len(text) > LIBRARY_BYTES_MAX:
            raise TooLarge(f"the library would exceed {LIBRARY_BYTES_MAX} bytes; delete a name first")
        try:
            await asyncio.to_thread(self._write, text)
        except OSError as error:
            raise DiskFailed(f"the library cannot be written: {error.strerror}") from error
        self._entries = entries
        await self._reload(driver)

    def _write(self, text: bytes) -> None:
        make_folder(self.folder)
        replace_file(self.folder / FILE, text)


def without_missing(catalog: Catalog, folder: Path) -> Catalog:
    """The catalog of the embedded default without its model, where that is not fetched and other models are there."""
    rest = {name: model for name, model in catalog.models.items() if Path(model.source or "/").is_file()}
    others = replace(catalog, models=MappingProxyType(rest))
    return others if Library.of(folder, others).catalog.models else catalog


# ------------------------------------------------------------------ making an entry


def entry_of(name: str, layers: Layers, folder: Path) -> Entry:
    """The name of a model that was pulled. Raises PullFailed for a file that is no model; blocks."""
    try:
        header = read_header(layers.file)
    except GgufError as error:
        raise PullFailed(f"what was pulled as {name} is no model: {error.what}") from None
    projector = layers.projector
    return Entry(
        name,
        file=str(layers.file.relative_to(folder)),
        projector=None if projector is None else str(projector.relative_to(folder)),
        embedding=header.is_embedding,
        system=layers.text("system"),
        template=layers.text("template"),
        license=layers.text("license"),
        parameters=layers.parameters(),
        messages=layers.messages(),
        modified_s=time.time(),
    )


# ------------------------------------------------------------------ listing


def listed(library: Library, catalog: Catalog) -> dict[str, object]:
    """Every model with its size and origin, and the files that are none; blocks."""
    return {
        "models": [_row(model, library) for model in catalog.offered.values()],
        "passed": [
            {"file": _shown(each.file, library.folder), "why": each.why.value, "detail": each.detail}
            for each in library.passed
        ],
    }


def _row(model: Model, library: Library) -> dict[str, object]:
    size, modified_s = _measure(model.source)
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "origin": library.origin_of(model).value,
        "engine": model.engine,
        "size": size,
        "modified_s": modified_s,
    }


def _measure(source: str | None) -> tuple[int | None, float | None]:
    """Size and time of a model's file, with all its parts; nothing where it has none here."""
    if source is None or not source.startswith("/"):
        return None, None
    try:
        facts = [part.stat() for part in parts_of(Path(source))]
    except OSError:  # whichever errno: it is listed without
        return None, None
    return sum(each.st_size for each in facts), max(each.st_mtime for each in facts)


def _shown(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name


# ------------------------------------------------------------------ the catalog


def extended(
    declared: Catalog, entries: Iterable[Entry], folder: Path, found: Iterable[FoundModel] = ()
) -> Catalog:
    """The catalog with the names of these entries, and of the files that were found.

    An entry without its base, file or engine is left out, and so is a file that a model of the config names.
    """
    entries = list(entries)
    growing = _Growing(declared, folder)
    growing.hold(entry.name for entry in entries)
    sources = {model.source: name for name, model in declared.models.items() if model.source is not None}
    for each in found:
        owner = sources.get(str(each.file)) or sources.get(each.real)
        if owner is None:
            growing.add_found(each)
        elif (
            each.origin is Origin.OLLAMA
        ):  # several of its names may share a file, each with texts of its own
            growing.share(each, owner)
    growing.let_go()
    for entry in entries:
        growing.add(entry)
    return replace(
        declared, models=MappingProxyType(growing.models), engines=MappingProxyType(growing.engines)
    )


class _Growing:
    """A catalog's models and engines while names are added."""

    def __init__(self, declared: Catalog, folder: Path) -> None:
        self.models, self.engines = dict(declared.models), dict(declared.engines)
        self._declared, self._folder = declared, folder
        self._taken = _names(declared)
        self._held: set[str] = set()  # names of entries, which files do not get
        self._owners: dict[tuple[str | None, ...], str] = {}

    def hold(self, names: Iterable[str]) -> None:
        """Keeps names for entries that are added later."""
        self._held = {plain_name(name) for name in names} - self._taken

    def let_go(self) -> None:
        """Gives the names that were kept to their entries."""
        self._held = set()

    def add_found(self, found: FoundModel) -> None:
        """Adds a file under the first name that is free; the others become aliases."""
        free = [name for name in found.names if plain_name(name) not in self._taken | self._held]
        if not free:
            return
        self.add(msgspec.structs.replace(found.entry, name=free[0]))
        for name in free[1:]:
            self.add(msgspec.structs.replace(found.entry, name=name))

    def share(self, found: FoundModel, owner: str) -> None:
        """Adds the names of a file that a model of the config has, too: both are one model in memory."""
        self._owners.setdefault(found.entry.thing, owner)
        self.add_found(found)

    def add(self, entry: Entry) -> None:
        """Adds a name: a model of its own, or an alias of the one that it stands for."""
        name = entry.name.removesuffix(":latest")
        owner = self._owners.get(entry.thing, entry.base)
        if plain_name(name) in self._taken or (owner is not None and owner not in self.models):
            return
        if owner is not None:
            model = self.models[owner]
            self.models[owner] = replace(model, aliases=(*model.aliases, name))
        elif (model := _made(entry, name, self._declared, self._folder)) is not None:
            self.models[name] = model
            self._owners[entry.thing] = name
            self.engines.setdefault(model.engine, EngineRules(model.engine, _LLAMACPP))
        else:
            return
        self._taken.add(plain_name(name))


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
        name, _LLAMACPP, source=str(path), embedding=entry.embedding, stays_if_room=True, arguments=sees,
        is_placed=False,
    )  # fmt: skip
    if like is None:
        return made
    return replace(
        made, engine=like.engine, devices=like.devices, is_placed=like.is_placed, threads=like.threads,
        context=like.context,
    )  # fmt: skip


def _first(declared: Catalog) -> Model | None:
    engines: Mapping[str, EngineRules] = declared.engines
    ours = (
        model
        for model in declared.models.values()
        if engines[model.engine].driver == _LLAMACPP and not model.embedding and model.copy_of is None
    )
    return next(ours, None)
