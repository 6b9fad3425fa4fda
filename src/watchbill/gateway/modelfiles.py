"""What is known of a model without loading it: from the catalog, the header of its file, or the Ollama that keeps it.

A header is read once per file, in a thread. The digest of a file tells one state of it from another by name, size and
time; it is no hash of the content, but for a blob of the library, whose name is its hash.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec

from watchbill.catalog import Catalog, Model
from watchbill.footprint import usable_context
from watchbill.gateway.limits import MODEL_FILES_REMEMBERED_MAX
from watchbill.gateway.ollama_lists import OllamaLists
from watchbill.gateway.typed import object_of
from watchbill.gguf import GgufError, Header, read_header

__all__ = ["Facts", "ModelFiles"]

Fields = dict[str, object]

_BLOB = re.compile(r"sha256-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model without an engine."""

    size: int
    modified_at: datetime
    digest: str
    header: Header | None
    told: Mapping[str, object] | None = None  # by the Ollama that keeps it
    loaded_context: int | None = None  # of a model in the memory of an Ollama

    def context(self, model: Model) -> int:
        """Tokens of context that a request has: what was asked for, and no more than the model allows."""
        if self.loaded_context is not None:
            return self.loaded_context
        if self.header is not None:
            return usable_context(model, self.header)
        trained = self.details.get("context_length")
        return min(model.context, trained) if isinstance(trained, int) and trained > 0 else model.context

    @property
    def details(self) -> Fields:
        """What an Ollama says of the model's kind; nothing for any other model."""
        found = None if self.told is None else self.told.get("details")
        return object_of(found)

    @property
    def abilities(self) -> frozenset[str] | None:
        """What an Ollama says that the model can; None where nothing is said."""
        found = None if self.told is None else self.told.get("capabilities")
        return frozenset(map(str, cast("list[object]", found))) if isinstance(found, list) else None


class ModelFiles:
    """Remembers the headers of model files, and asks the Ollamas of the config for theirs."""

    def __init__(self, since: datetime, ollama_lists: OllamaLists, catalog: Callable[[], Catalog]) -> None:
        self._since = since
        self._ollama_lists = ollama_lists
        self._catalog = catalog
        self._headers: dict[tuple[str, int, int], Header | None] = {}

    async def facts(self, model: Model) -> Facts:
        """What the model's file, or its Ollama, says; the catalog alone where there is neither."""
        catalog = self._catalog()
        if model.engine in catalog.engines and catalog.engines[model.engine].driver == "ollama":
            return await self._told(model, catalog)
        source = model.source
        found = _stat(source) if source is not None and source.startswith("/") else None
        if source is None or found is None:
            return self._declared(model)
        header = await self._header(source, found)
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        size = int(header.file_bytes) if header else found.st_size
        blob = _BLOB.fullmatch(os.path.basename(source))
        digest = _digest(model.name, size, found.st_mtime_ns) if blob is None else blob[1]
        return Facts(size, modified, digest, header)

    def _declared(self, model: Model) -> Facts:
        size = sum(model.memory.values())
        return Facts(size, self._since, _digest(model.name, size, 0), None)

    async def _told(self, model: Model, catalog: Catalog) -> Facts:
        told, plain = await self._ollama_lists.listed(model, catalog), self._declared(model)
        if told is None:
            return plain
        running = await self._ollama_lists.running(model, catalog) or {}
        size, context, digest = told.get("size"), running.get("context_length"), told.get("digest")
        return Facts(
            size if isinstance(size, int) else plain.size,
            _moment(told.get("modified_at")) or self._since,
            digest if isinstance(digest, str) else plain.digest,
            None,
            told,
            context if isinstance(context, int) and context > 0 else None,
        )

    async def refresh(self) -> None:
        """Asks every Ollama for its lists, so that what is told of each model after it waits for none of them."""
        await self._ollama_lists.refresh(self._catalog())

    async def _header(self, path: str, found: os.stat_result) -> Header | None:
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in self._headers:
            header = await asyncio.to_thread(_read, path)
            if len(self._headers) >= MODEL_FILES_REMEMBERED_MAX:
                self._headers.clear()
            self._headers[key] = header
        return self._headers[key]


def _moment(text: object) -> datetime | None:
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return None


def _digest(name: str, size: int, mtime_ns: int) -> str:
    return hashlib.sha256(f"{name}\0{size}\0{mtime_ns}".encode()).hexdigest()


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # whatever the reason: there is no file to tell about, and the catalog answers alone
        return None


def _read(path: str) -> Header | None:
    try:
        return read_header(Path(path))
    except GgufError:
        return None
