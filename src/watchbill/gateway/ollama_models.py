"""Models as Ollama lists them: tags, those in memory, and one in detail.

Answers from the catalog, the driver's state and the headers of model files, which are read once per file in a
thread. Never touches an engine, so that a list resets no idle timer. The digest tells one state of a file from
another by name, size and time; it is no hash of the content.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from watchbill.catalog import Catalog, Model
from watchbill.gguf import GgufError, Header, read_header
from watchbill.limits import MODEL_FILES_REMEMBERED_MAX

__all__ = ["Facts", "ModelFiles", "list_item", "loaded_item", "shown", "status_of", "tagged"]

Fields = dict[str, object]

#: How a permanent model's end is written; Ollama says some 290 years for "for ever".
_FOR_EVER = "2318-01-01T00:00:00Z"
_IN_MEMORY = frozenset({"ready", "draining"})
#: `general.file_type` of GGUF, as Ollama spells it.
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model without an engine."""

    size: int
    modified_at: datetime
    digest: str
    header: Header | None


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


def tagged(name: str) -> str:
    """The name with its tag: `foo` is `foo:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def list_item(model: Model, facts: Facts) -> Fields:
    """An item of /api/tags."""
    details = _details(facts.header)
    details["context_length"] = model.context
    details["embedding_length"] = facts.header.n_embd if facts.header else 0
    return {
        "name": tagged(model.name),
        "model": tagged(model.name),
        "modified_at": _text(facts.modified_at),
        "size": facts.size,
        "digest": facts.digest,
        "details": details,
        "capabilities": capabilities(model, facts.header),
    }


def loaded_item(model: Model, facts: Facts, status: Mapping[str, object]) -> Fields | None:
    """An item of /api/ps; None for a model that is not in memory."""
    if status.get("state") not in _IN_MEMORY:
        return None
    devices = cast("dict[str, int]", status.get("devices", {}))
    left = status.get("idle_left_ms")
    left_ms = left if isinstance(left, int) else model.idle_ms
    expires = _FOR_EVER if model.permanent else _text(datetime.now(UTC) + timedelta(milliseconds=left_ms))
    return {
        "name": tagged(model.name),
        "model": tagged(model.name),
        "size": status.get("memory", 0),
        "digest": facts.digest,
        "details": _details(facts.header),
        "expires_at": expires,
        "size_vram": sum(size for device, size in devices.items() if device.startswith("gpu:")),
        "context_length": model.context,
    }


def shown(model: Model, facts: Facts) -> Fields:
    """The answer of /api/show. Templates and tensors belong to the engine and are left empty."""
    return {
        "modelfile": f"# served by Watchbill\nFROM {model.name}\n",
        "parameters": f"num_ctx                        {model.context}",
        "template": "",
        "details": _details(facts.header),
        "model_info": _info(facts.header),
        "tensors": [],
        "capabilities": capabilities(model, facts.header),
        "modified_at": _text(facts.modified_at),
    }


def capabilities(model: Model, header: Header | None) -> list[str]:
    """What a model can be asked, in Ollama's words."""
    if model.embedding or (header is not None and header.is_embedding):
        return ["embedding"]
    return ["completion"]


def status_of(catalog: Catalog, status: Mapping[str, object]) -> list[tuple[Model, Fields]]:
    """Every model with its part of the driver's status."""
    told = cast("dict[str, Fields]", status.get("models", {}))
    return [(model, told.get(model.name, {})) for model in catalog.models.values()]


def _details(header: Header | None) -> Fields:
    family = header.architecture if header else ""
    return {
        "parent_model": "",
        "format": "gguf" if header else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _parameters(header.parameters) if header else "",
        "quantization_level": _QUANTIZATIONS.get(header.file_type or 0, "unknown") if header else "",
    }


def _info(header: Header | None) -> Fields:
    if header is None:
        return {}
    family = header.architecture
    return {
        "general.architecture": family,
        "general.basename": header.name,
        "general.file_type": header.file_type,
        "general.parameter_count": header.parameters,
        f"{family}.attention.head_count": header.heads,
        f"{family}.attention.head_count_kv": max(header.kv_heads, default=0),
        f"{family}.block_count": header.n_layer,
        f"{family}.context_length": header.context_length,
        f"{family}.embedding_length": header.n_embd,
        f"{family}.feed_forward_length": header.n_ff,
        f"{family}.vocab_size": header.vocabulary,
        "tokenizer.ggml.model": header.tokenizer,
    }


def _parameters(count: int) -> str:
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M"


def _digest(name: str, size: int, mtime_ns: int) -> str:
    return hashlib.sha256(f"{name}\0{size}\0{mtime_ns}".encode()).hexdigest()


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


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
