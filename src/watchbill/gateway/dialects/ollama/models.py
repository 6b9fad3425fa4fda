"""Models as Ollama lists them: tags, those in memory, and one in detail.

Answers from the catalog, the library, the driver's state and the headers of model files; for a model of an Ollama
behind us, from what that says of it. Never touches an engine, so that a list resets no idle timer.
"""

from datetime import UTC, datetime, timedelta
from typing import cast

from watchbill.catalog import Model
from watchbill.gateway.modelfiles import Facts
from watchbill.gguf import Header
from watchbill.runtime.library import Entry
from watchbill.runtime.views import Resident

__all__ = ["list_item", "loaded_item", "quantization_of", "shown", "tagged"]

Fields = dict[str, object]

#: How a permanent model's end is written; Ollama writes "no end" as some 290 years.
_FOR_EVER = "2318-01-01T00:00:00Z"
#: `general.file_type` of GGUF, as Ollama spells it.
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


def tagged(name: str) -> str:
    """The name with its tag: `foo` is `foo:latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def list_item(name: str, model: Model, facts: Facts, capabilities: list[str], entry: Entry | None) -> Fields:
    """An item of /api/tags: a model under one of its names."""
    details = _details(facts)
    details["context_length"] = facts.context(model)
    details.setdefault("embedding_length", facts.header.n_embd if facts.header else 0)
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": _text(_modified(facts, entry)),
        "size": facts.size,
        "digest": facts.digest,
        "details": details,
        "capabilities": capabilities,
    }


def loaded_item(model: Model, facts: Facts, resident: Resident) -> Fields:
    """An item of /api/ps."""
    left_ms = model.idle_ms if resident.idle_left_ms is None else resident.idle_left_ms
    expires = _FOR_EVER if model.permanent else _text(datetime.now(UTC) + timedelta(milliseconds=left_ms))
    return {
        "name": tagged(model.name),
        "model": tagged(model.name),
        "size": sum(resident.memory.values()),
        "digest": facts.digest,
        "details": _details(facts),
        "expires_at": expires,
        "size_vram": sum(size for device, size in resident.memory.items() if device.startswith("gpu:")),
        "context_length": facts.context(model),
    }


def shown(
    name: str,
    model: Model,
    facts: Facts,
    capabilities: list[str],
    entry: Entry | None,
    *,
    theirs: Fields | None = None,
) -> Fields:
    """The answer of /api/show; `theirs` is that of the Ollama which keeps the model. Templates and tensors belong to
    the engine and are left empty."""
    lines = _parameters_of(model, facts, entry)
    told: Fields = {
        "modelfile": _modelfile(name, model, entry),
        "parameters": "\n".join(f"{key:<30} {value}" for key, value in lines),
        "template": entry.template if entry is not None else "",
        "details": _details(facts),
        "model_info": _info(facts.header),
        "tensors": [],
        **(theirs or {}),
        "capabilities": capabilities,
        "modified_at": _text(_modified(facts, entry)),
    }
    if entry is not None:
        beside = {"system": entry.system, "license": entry.license, "messages": entry.messages}
        told |= {key: value for key, value in beside.items() if value}
    return told


def _parameters_of(model: Model, facts: Facts, entry: Entry | None) -> list[tuple[str, str]]:
    return [("num_ctx", str(facts.context(model))), *(_set_by(entry) if entry is not None else [])]


def _set_by(entry: Entry) -> list[tuple[str, str]]:
    """The parameters that a name brings, in the words of a Modelfile: one line for each stop."""
    lines: list[tuple[str, str]] = []
    for key, value in entry.parameters.items():
        for each in cast("list[object]", value) if isinstance(value, list) else [value]:
            lines.append((key, f'"{each}"' if isinstance(each, str) else str(each)))
    return lines


def _modelfile(name: str, model: Model, entry: Entry | None) -> str:
    """How the name could be made again. Paths of files are left out."""
    lines = ["# Modelfile of Watchbill", f"# FROM {tagged(name)}", "", f"FROM {model.name}"]
    if entry is not None:
        lines += [f'SYSTEM """{entry.system}"""'] if entry.system else []
        lines += [f"PARAMETER {key} {value}" for key, value in _set_by(entry)]
    return "\n".join([*lines, ""])


def _modified(facts: Facts, entry: Entry | None) -> datetime:
    return facts.modified_at if entry is None else datetime.fromtimestamp(entry.modified_s, UTC)


def _details(facts: Facts) -> Fields:
    if facts.details:
        return dict(facts.details)
    header = facts.header
    family = header.architecture if header else ""
    return {
        "parent_model": "",
        "format": "gguf" if header else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _parameters(header.parameters) if header else "",
        "quantization_level": quantization_of(facts),
    }


def quantization_of(facts: Facts) -> str:
    """How a model's weights are stored, in the words of its users; empty where that is not known."""
    header = facts.header
    if header is None:
        return str(facts.details.get("quantization_level", ""))
    return _QUANTIZATIONS.get(header.file_type or 0, "unknown")


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


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
