"""What is known of a model without an engine: from the catalog, and from the header of its file.

A header is read once per file, in a thread. The digest tells one state of a file from another by name, size and
time; it is no hash of the content.
"""

import asyncio
import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from watchbill.catalog import Model
from watchbill.footprint import usable_context
from watchbill.gguf import GgufError, Header, read_header
from watchbill.limits import MODEL_FILES_REMEMBERED_MAX

__all__ = ["Facts", "ModelFiles"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model without an engine."""

    size: int
    modified_at: datetime
    digest: str
    header: Header | None

    def context(self, model: Model) -> int:
        """Tokens of context that a request has: what was asked for, and no more than the file allows."""
        return model.context if self.header is None else usable_context(model, self.header)


class ModelFiles:
    """Remembers the headers of model files."""

    def __init__(self, since: datetime) -> None:
        self._since = since
        self._headers: dict[tuple[str, int, int], Header | None] = {}

    async def facts(self, model: Model) -> Facts:
        """What the model's file says; the catalog alone where it has none."""
        source = model.source
        found = _stat(source) if source is not None and source.startswith("/") else None
        if source is None or found is None:
            size = sum(model.memory.values())
            return Facts(size, self._since, _digest(model.name, size, 0), None)
        header = await self._header(source, found)
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        size = int(header.file_bytes) if header else found.st_size
        return Facts(size, modified, _digest(model.name, size, found.st_mtime_ns), header)

    async def _header(self, path: str, found: os.stat_result) -> Header | None:
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in self._headers:
            header = await asyncio.to_thread(_read, path)
            if len(self._headers) >= MODEL_FILES_REMEMBERED_MAX:
                self._headers.clear()
            self._headers[key] = header
        return self._headers[key]


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
