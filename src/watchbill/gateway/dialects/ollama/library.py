"""Names that callers make and delete, as Ollama's clients do: copy, create, delete, and the files they upload for it.

They act on the library in the models folder, for callers with admin rights. A model of the config is the operator's:
it can be copied and built upon, but only the config takes it away. One that an Ollama keeps is deleted there.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from watchbill.errors import DiskFailed, ModelNotFound, NotOffered, RequestError, TooLarge
from watchbill.files.atomic import PRIVATE_MODE, make_private_folder, move_file, writing
from watchbill.gateway.dialects.ollama import request
from watchbill.gateway.dialects.ollama.names import Found, asked_name, check_name, find
from watchbill.gateway.dialects.ollama.progress import tell_progress
from watchbill.gateway.dialects.ollama.pulling import Pulling
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.limits import BLOB_BYTES_MAX, BLOB_RECEIPT_MS
from watchbill.gateway.options import check_ranges
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.typed import object_of
from watchbill.gguf import GgufError, read_header
from watchbill.pull.limits import LIBRARY_ENTRY_BYTES_MAX
from watchbill.runtime.library import BLOBS, Entry, Library, plain_name

__all__ = ["LibraryApi"]

Fields = dict[str, object]

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_ROLES = frozenset({"system", "user", "assistant", "tool"})


class LibraryApi:
    """Serves copy, create, delete and blobs."""

    def __init__(self, services: Services, pulling: Pulling) -> None:
        self._services = services
        self._pulling = pulling

    @property
    def _library(self) -> Library:
        if self._services.library is None:
            raise NotOffered("this gateway has no folder for models")
        return self._services.library

    # ------------------------------------------------------------------ copy and delete

    async def copy(self, context: RequestContext) -> Response:
        """POST /api/copy: another name for a model."""
        body = await self._services.bodies.read_plain(context)
        source, name = (_text(body, field) for field in ("source", "destination"))
        check_name(source, "source")
        target = check_name(name, "destination")
        found = find(self._services, source)
        entry = _entry_of(found, target)
        if found.entry is not None or plain_name(target) != plain_name(found.model.name):
            self._refuse_declared(target)
            await self._library.put(self._services.driver, entry)
        return Response(b"", {}, lines=context.lines())

    async def delete(self, context: RequestContext) -> Response:
        """DELETE /api/delete: takes a name away, and its file where no other name needs it."""
        body = await self._services.bodies.read_plain(context)
        name = asked_name(body)
        check_name(name, "name")
        model, entry = find(self._services, name)
        if self._services.driver.catalog.engines[model.engine].driver == "ollama" and (
            entry is None or entry.base is None
        ):
            await self._pulling.delete_there(model)
        elif entry is None and not self._library.may_remove(model):
            raise RequestError(f"{model.name} is a model of the config; take it out there")
        if entry is not None or self._library.may_remove(model):
            await self._library.remove(self._services.driver, model.name if entry is None else entry.name)
        return Response(b"", {}, lines=context.lines())

    def _refuse_declared(self, name: str) -> None:
        """Raises RequestError for a name that the config has."""
        try:
            found = find(self._services, name)
        except ModelNotFound:
            return
        if found.entry is None:
            raise RequestError(f"{found.model.name} is a model of the config; choose another name")

    # ------------------------------------------------------------------ create

    async def create(self, context: RequestContext) -> Answer:
        """POST /api/create: a name with a system text, messages and parameters, for a model or an uploaded file."""
        body = await self._services.bodies.read_plain(context)
        name = check_name(asked_name(body), "model")
        self._refuse_declared(name)
        draft = _overlay(body, name)
        files = _files(body)
        if files:
            await asyncio.to_thread(self._check_blobs, files)
        elif not body.get("from"):
            raise RequestError("neither 'from' or 'files' was specified")
        return await tell_progress(context, body, self._create(body, draft, files))

    async def _create(self, body: Fields, draft: Entry, files: dict[str, str]) -> AsyncGenerator[Fields]:
        if files:
            yield {"status": "parsing GGUF"}
            base = await asyncio.to_thread(self._from_blob, draft.name, next(iter(files.values())))
        else:
            yield {"status": "reading model metadata"}
            wanted = _text(body, "from")
            try:
                base = _entry_of(find(self._services, wanted), draft.name)
            except ModelNotFound:
                async for step in self._pulling.fetch(check_name(wanted, "from")):
                    yield step
                base = _entry_of(find(self._services, wanted), draft.name)
        if draft.system:
            yield {"status": "creating system layer"}
        if draft.template:
            yield {"status": "the template is kept to be shown; the engine uses its own"}
        yield {"status": "writing manifest"}
        await self._library.put(self._services.driver, _on_top(base, draft))
        yield {"status": "success"}

    def _check_blobs(self, files: dict[str, str]) -> None:
        for digest in files.values():
            path = self._library.blob(digest)
            if not path.is_file():
                raise RequestError(f"blob {digest!r} not found; upload it to /api/blobs/ first")
            try:
                read_header(path)
            except GgufError as error:
                raise RequestError(f"supplied file was not in GGUF format: {error.what}") from None

    def _from_blob(self, name: str, digest: str) -> Entry:
        path = self._library.blob(digest)
        return Entry(name, file=f"{BLOBS}/{path.name}", embedding=read_header(path).is_embedding)

    # ------------------------------------------------------------------ blobs

    async def has_blob(self, context: RequestContext) -> Response:
        """HEAD /api/blobs/{digest}."""
        path = self._blob(context)
        if not await asyncio.to_thread(path.is_file):
            raise ModelNotFound(f"blob {context.request.match['digest']!r} not found")
        return Response(b"", {}, lines=context.lines())

    async def put_blob(self, context: RequestContext) -> Response:
        """POST /api/blobs/{digest}: a file, for a model that is made of it."""
        path = self._blob(context)
        if await asyncio.to_thread(path.is_file):
            return Response(b"", {}, lines=context.lines())
        draft = path.with_name(f".{path.name}.{context.id}")
        try:
            await self._receive(context, draft, path)
        except OSError as error:
            raise DiskFailed(f"the file cannot be kept: {error.strerror}") from error
        return Response(b"", {}, 201, context.lines())

    def _blob(self, context: RequestContext) -> Path:
        digest = context.request.match["digest"]
        if not _DIGEST.fullmatch(digest):
            raise RequestError("invalid digest format: write sha256: and 64 hexadecimal digits")
        return self._library.blob(digest.lower())

    async def _receive(self, context: RequestContext, draft: Path, path: Path) -> None:
        await asyncio.to_thread(make_private_folder, path.parent)
        hashed, size, is_right = hashlib.sha256(), 0, False
        try:
            with writing(draft, mode=PRIVATE_MODE) as file:
                async for piece in self._services.bodies.pieces(context, BLOB_RECEIPT_MS):
                    size += len(piece)
                    if size > BLOB_BYTES_MAX:
                        raise TooLarge(f"a model file has at most {BLOB_BYTES_MAX} bytes")
                    await asyncio.to_thread(_take, file, hashed.update, piece)
            found = f"sha256-{hashed.hexdigest()}"
            if found != path.name:
                raise RequestError(f"digest mismatch, expected {path.name!r}, got {found!r}")
            is_right = True
        finally:
            if not is_right:
                draft.unlink(missing_ok=True)
        await asyncio.to_thread(move_file, draft, path)


def _take(file: BinaryIO, hash_on: Callable[[bytes], None], piece: bytes) -> None:
    file.write(piece)
    hash_on(piece)


def _text(body: Fields, field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str | None):
        raise RequestError(f"{field} must be a text")
    return value or ""


def _entry_of(found: Found, name: str) -> Entry:
    """What a new name of a model stands for."""
    model, entry = found
    if entry is not None:
        return msgspec.structs.replace(entry, name=name, modified_s=time.time())
    return Entry(name, base=model.name, modified_s=time.time())


def _overlay(body: Fields, name: str) -> Entry:
    """The texts and parameters of a new name. Raises RequestError."""
    if body.get("adapters"):
        raise RequestError("adapters are not supported: name one in `arguments` of a model of the config")
    if body.get("quantize") or body.get("quantization"):
        raise RequestError("models are not quantized here; upload a file that is")
    parameters = request.options_of({"options": body.get("parameters")})
    if not isinstance(body.get("parameters"), dict | None):
        raise RequestError("parameters must be an object")
    request.check({"options": parameters}, is_native=True)
    check_ranges(request.as_options(parameters))
    license_text = body.get("license") or ""
    if isinstance(license_text, list):
        license_text = "\n".join(map(str, cast("list[object]", license_text)))
    entry = Entry(
        name,
        system=_text(body, "system"),
        template=_text(body, "template"),
        license=str(license_text),
        parameters=parameters,
        messages=_messages(body.get("messages")),
        modified_s=time.time(),
    )
    if len(msgspec.json.encode(entry)) > LIBRARY_ENTRY_BYTES_MAX:
        raise TooLarge(f"the texts of a name have at most {LIBRARY_ENTRY_BYTES_MAX} bytes")
    return entry


def _messages(given: object) -> list[Fields]:
    if given is None:
        return []
    told: list[Fields] = []
    for each in cast("list[object]", given) if isinstance(given, list) else [None]:
        fields = object_of(each)
        role, content = str(fields.get("role")).lower(), fields.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise RequestError("messages must be a list of objects with a role and a content")
        told.append({"role": role, "content": content})
    return told


def _files(body: Fields) -> dict[str, str]:
    """The uploaded files that a model is made of. Raises RequestError."""
    files = body.get("files")
    if files is None or files == {}:
        return {}
    if not isinstance(files, dict) or len(cast("Fields", files)) > 1:
        raise RequestError("files must name one file: an object of its name and its digest")
    told = {name: str(digest).lower() for name, digest in cast("Fields", files).items()}
    for digest in told.values():
        if not _DIGEST.fullmatch(digest):
            raise RequestError("invalid digest format: write sha256: and 64 hexadecimal digits")
    return told


def _on_top(base: Entry, draft: Entry) -> Entry:
    """A new name on top of what it is made from: its own texts first, parameters one by one."""
    return msgspec.structs.replace(
        base,
        name=draft.name,
        system=draft.system or base.system,
        template=draft.template or base.template,
        license=draft.license or base.license,
        parameters=base.parameters | draft.parameters,
        messages=draft.messages or base.messages,
        modified_s=draft.modified_s,
    )
