"""Ollama's store: the models that an installed Ollama keeps on this disk, read and never changed.

    STORE/manifests/HOST/NAMESPACE/MODEL/TAG    which layers a model has
    STORE/blobs/sha256-*                        the layers: model files, texts, parameters

They are served from where they lie, under Ollama's own names. A model whose layers are not all there is none.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from watchbill.errors import NameRefused, PullFailed
from watchbill.files.atomic import read_regular
from watchbill.gguf import GgufError, read_header
from watchbill.names import check_model_name
from watchbill.pull.limits import MANIFEST_BYTES_MAX
from watchbill.pull.registry import Layers, layers_in
from watchbill.shelf.folder import Passed, Why
from watchbill.shelf.limits import SHELF_FILES_MAX

__all__ = ["OllamaModel", "OllamaStore", "find_store"]

VARIABLE = "OLLAMA_MODELS"
#: Where Ollama's installer for Linux has it, for the user `ollama`.
_SYSTEM = Path("/usr/share/ollama/.ollama/models")
_HOST, _NAMESPACE = "registry.ollama.ai", "library"


class OllamaModel(NamedTuple):
    """A model of the store."""

    name: str
    layers: Layers
    size_bytes: int
    modified_s: float
    embedding: bool


class _Known(NamedTuple):
    mtime_ns: int
    found: OllamaModel | Passed


def find_store(environment: Mapping[str, str] = os.environ, system: Path = _SYSTEM) -> Path | None:
    """The store of this machine's Ollama: $OLLAMA_MODELS, ~/.ollama/models, or that of its service."""
    named = environment.get(VARIABLE)
    home = environment.get("HOME")
    places = [Path(named)] if named else [*([Path(home) / ".ollama/models"] if home else []), system]
    return next((place for place in places if os.access(place / "manifests", os.R_OK | os.X_OK)), None)


class OllamaStore:
    """One store, looked at again and again. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, _Known] = {}

    def look(self) -> tuple[list[OllamaModel], list[Passed]]:
        """The models, and the manifests that lead to none; blocks."""
        found = [self._read(path) for path in _manifests(self.path / "manifests")]
        models = [each for each in found if isinstance(each, OllamaModel)]
        return models, [each for each in found if isinstance(each, Passed)]

    def _read(self, path: Path) -> OllamaModel | Passed:
        try:
            mtime_ns = path.stat().st_mtime_ns
        except OSError as error:  # whichever errno: deleted meanwhile, most likely
            return Passed(path, Why.BROKEN, error.strerror or "")
        known = self._known.get(path)
        if known is None or known.mtime_ns != mtime_ns or isinstance(known.found, Passed):
            self._known[path] = known = _Known(mtime_ns, self._examined(path, mtime_ns))
        return known.found

    def _examined(self, path: Path, mtime_ns: int) -> OllamaModel | Passed:
        try:
            text = read_regular(str(path), bytes_max=MANIFEST_BYTES_MAX)
            name = check_model_name(_name_of(path.relative_to(self.path / "manifests")))
            layers = layers_in(text, self.path / "blobs")
            header = read_header(layers.file)
        except GgufError as error:
            return Passed(path, Why.BROKEN, error.what)
        except (PullFailed, NameRefused) as error:
            return Passed(path, Why.BROKEN, str(error))
        except OSError as error:  # whichever errno: Ollama's folders may belong to another user
            return Passed(path, Why.BROKEN, error.strerror or "")
        size = header.file_bytes
        return OllamaModel(name, layers, size, mtime_ns / 1e9, header.is_embedding)


def _manifests(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.startswith("."):
                continue
            count += 1
            if count > SHELF_FILES_MAX:
                return
            yield Path(place) / file


def _name_of(below: Path) -> str:
    """HOST/NAMESPACE/MODEL/TAG as Ollama shows it: without its own host, namespace and the tag `latest`."""
    host, *rest = below.parts
    if len(rest) < 2:
        raise NameRefused(f"{below} is not where Ollama keeps a manifest")
    *path, tag = rest
    shown = [] if host == _HOST else [host]
    shown += path[1:] if host == _HOST and path[0] == _NAMESPACE and len(path) > 1 else path
    return "/".join(shown) + ("" if tag == "latest" else f":{tag}")
