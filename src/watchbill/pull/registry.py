"""Registry: a model of Ollama's library, or of any server that speaks its protocol, into the models folder.

A name leads to a manifest, the manifest to layers: the model's file, and small ones with its system text, parameters,
messages, license and projector. Each layer lies in `blobs/` under its sha256, which is compared as it arrives; a layer
that is there already is not fetched again, and one that broke off is continued. A layer has the size that its manifest
declares, and nothing is fetched unless there is room for all that is missing.
"""

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from watchbill.errors import ConfigError, NameRefused, PullFailed
from watchbill.files.atomic import make_private_folder
from watchbill.names import check_model_name
from watchbill.pull import limits, web
from watchbill.pull.landing import Landing, Wanted, check_room

__all__ = [
    "REGISTRY",
    "Layers",
    "Reference",
    "Step",
    "layers_in",
    "pull_layers",
    "read_reference",
    "registry_address",
]

REGISTRY = "https://registry.ollama.ai"
VARIABLE = "WATCHBILL_REGISTRY"
_ADDRESS = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?")
_ACCEPT = "application/vnd.docker.distribution.manifest.v2+json"
_KIND = "application/vnd.ollama.image."
_MODEL, _PROJECTOR = "model", "projector"
#: Layers with a meaning here; a template is the engine's own matter, and is only kept to be shown.
_SMALL = ("system", "params", "messages", "license", "template")


class Step(NamedTuple):
    """Something that happened on the way."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


class Reference(NamedTuple):
    """Where a model of a registry is."""

    server: str  # its address
    repository: str
    tag: str

    @property
    def url(self) -> str:
        """The address of the repository."""
        return f"{self.server}/v2/{self.repository}"


class _Layer(msgspec.Struct):
    mediaType: str
    digest: str
    size: int = -1


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


class Layers(NamedTuple):
    """A model that was pulled: its file, and what its small layers say."""

    file: Path
    projector: Path | None
    texts: dict[str, bytes]

    def text(self, kind: str) -> str:
        """A small layer that is a text; empty where there is none."""
        return self.texts.get(kind, b"").decode("utf-8", "replace")

    def parameters(self) -> dict[str, object]:
        """The options of the model; none where they cannot be read."""
        return cast("dict[str, object]", _read(self.texts.get("params"), dict[str, object]) or {})

    def messages(self) -> list[dict[str, object]]:
        """The messages that every chat begins with."""
        found = _read(self.texts.get("messages"), list[dict[str, object]])
        return cast("list[dict[str, object]]", found or [])


def registry_address(environment: Mapping[str, str] = os.environ) -> str:
    """Where models without a host in their name come from: $WATCHBILL_REGISTRY, a mirror of one's own, or Ollama's.

    Raises ConfigError."""
    named = environment.get(VARIABLE, "").rstrip("/")
    if named and not _ADDRESS.fullmatch(named):
        raise ConfigError(
            f"${VARIABLE} is {named!r}, which is no address; write https://HOST or http://HOST:PORT"
        )
    return named or REGISTRY


def read_reference(name: str, *, is_plain: bool = False, registry: str = REGISTRY) -> Reference:
    """The place of `[host/][namespace/]model[:tag]`; without a host in `registry`. Raises NameRefused.

    `is_plain`: by http, for a registry of one's own."""
    check_model_name(name)
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, "latest"
    parts = path.split("/")
    has_host = len(parts) > 2 or (len(parts) == 2 and ("." in parts[0] or ":" in parts[0]))
    server = f"{'http' if is_plain else 'https'}://{parts.pop(0)}" if has_host else registry
    repository = "/".join(parts if len(parts) > 1 else ["library", *parts])
    if "@" in server or "+" in server:
        raise NameRefused(f"{name!r} names no model of a registry")
    return Reference(server, repository, tag)


def pull_layers(reference: Reference, folder: Path, tell: Callable[[Step], None]) -> Layers:
    """Fetches every layer that matters. Raises PullFailed. `tell` may raise to stop it; what came is kept."""
    tell(Step("pulling manifest"))
    manifest = _manifest(reference)
    wanted = _wanted(manifest)
    make_private_folder(folder)
    _check_sizes(reference, wanted, folder)
    files = [(_kind(layer), _fetch(reference, layer, folder, tell)) for layer in wanted]
    tell(Step("verifying sha256 digest"))
    return _put_together(files, reference.repository)


def layers_in(manifest: bytes, blobs: Path) -> Layers:
    """The layers of a manifest that lie in a folder already, as in an Ollama's store. Raises PullFailed, OSError."""
    try:
        read = msgspec.json.decode(manifest, type=_Manifest)
    except msgspec.DecodeError as error:
        raise PullFailed(f"its manifest cannot be read: {error}") from None
    wanted = _wanted(read)
    return _put_together([(_kind(layer), blobs / f"sha256-{_digest(layer)}") for layer in wanted], "it")


def _wanted(manifest: _Manifest) -> list[_Layer]:
    layers = manifest.layers[: limits.MANIFEST_LAYERS_MAX]
    return [layer for layer in layers if _kind(layer) in (_MODEL, _PROJECTOR, *_SMALL)]


def _check_sizes(reference: Reference, layers: list[_Layer], folder: Path) -> None:
    """Raises PullFailed for a size that none can have, and where the disk has no room for what is missing."""
    for layer in layers:
        is_small = _kind(layer) in _SMALL
        if (
            not 0
            <= layer.size
            <= (limits.LIBRARY_ENTRY_BYTES_MAX if is_small else limits.PULL_FILE_BYTES_MAX)
        ):
            raise PullFailed(
                f"{reference.repository} has a {_kind(layer)} of {layer.size} bytes, which cannot be"
            )
    missing = {_digest(layer): layer.size for layer in layers}
    for digest in list(missing):
        with contextlib.suppress(FileNotFoundError):
            missing[digest] -= (folder / ".pull" / f"sha256-{digest}.part").stat().st_size
        if (folder / f"sha256-{digest}").exists():
            del missing[digest]
    check_room(folder, reference.repository, sum(missing.values()))


def _kind(layer: _Layer) -> str:
    return layer.mediaType.removeprefix(_KIND)


def _put_together(files: list[tuple[str, Path]], what: str) -> Layers:
    models = [path for kind, path in files if kind == _MODEL]
    if len(models) != 1:
        raise PullFailed(f"{what} has {len(models)} model files; one is needed")
    projector = next((path for kind, path in files if kind == _PROJECTOR), None)
    texts = {kind: _small(path) for kind, path in files if kind in _SMALL}
    return Layers(models[0], projector, texts)


def _manifest(reference: Reference) -> _Manifest:
    url = f"{reference.url}/manifests/{reference.tag}"
    try:
        return msgspec.json.decode(web.read(url, _ACCEPT, limits.MANIFEST_BYTES_MAX), type=_Manifest)
    except web.NoSuchFile:
        raise PullFailed("pull model manifest: file does not exist") from None
    except msgspec.DecodeError as error:
        raise PullFailed(
            f"pull model manifest: {reference.server} does not answer with one: {error}"
        ) from None


def _fetch(reference: Reference, layer: _Layer, folder: Path, tell: Callable[[Step], None]) -> Path:
    digest = _digest(layer)
    url, status = f"{reference.url}/blobs/{layer.digest}", f"pulling {digest[:12]}"

    def progress(done: int, total: int | None) -> None:
        tell(Step(status, layer.digest, total or layer.size, done))

    wanted = Wanted(f"sha256-{digest}", url, digest, size_bytes=layer.size, is_private=True)
    landing = Landing(folder, wanted, progress)
    if landing.found() is None:
        web.fetch(url, landing)
    tell(Step(status, layer.digest, layer.size, layer.size))
    return landing.path


def _digest(layer: _Layer) -> str:
    algorithm, _, digest = layer.digest.partition(":")
    if algorithm != "sha256" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise PullFailed("it has a layer without a sha256")
    return digest


def _small(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(limits.LIBRARY_ENTRY_BYTES_MAX)


def _read(text: bytes | None, kind: object) -> object:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None
