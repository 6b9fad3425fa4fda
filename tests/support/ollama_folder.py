"""The models folder of an installed Ollama, as Ollama writes it: manifests, and blobs named by their hash."""

import hashlib
import json
from pathlib import Path

__all__ = ["keep_model", "snapshot"]

KIND = "application/vnd.ollama.image."


def keep_model(
    store: Path, name: str, model: bytes, host: str = "registry.ollama.ai/library", **texts: str
) -> Path:
    """Keeps a model as `name:tag`, with small layers as `system` or `params`. Returns its blob."""
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    layers, blobs = [], []
    for kind, content in [("model", model), *((kind, text.encode()) for kind, text in texts.items())]:
        digest = hashlib.sha256(content).hexdigest()
        blobs.append(store / "blobs" / f"sha256-{digest}")
        blobs[-1].write_bytes(content)
        layers.append({"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)})
    path, _, tag = name.partition(":")
    manifest = store / "manifests" / host / path / (tag or "latest")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blobs[0]


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file of a folder with what a change would change."""
    facts = {str(path): path.stat() for path in folder.rglob("*")}
    return {path: (each.st_ino, each.st_size, each.st_mtime_ns) for path, each in facts.items()}
