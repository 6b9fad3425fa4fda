"""OpenAI's Files API: POST /v1/files and what is done with a file afterwards.

An upload goes to the disk as it arrives; nothing of it is held in memory but the last piece. Only files for batches
are taken: there is nothing here that the other purposes could serve.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from watchbill.batches.files import BATCH_INPUT, Draft, StoredFile, open_content
from watchbill.batches.limits import UPLOAD_RECEIPT_MS
from watchbill.batches.service import Batches
from watchbill.errors import NotFound, NotOffered, RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.dialects.batches.pages import page_of, read_limit
from watchbill.gateway.form import FORM_TEXT_BYTES_MAX, FormReader, PartHead
from watchbill.gateway.http.messages import Answer, Response, Stream
from watchbill.gateway.limits import BATCH_LIST_MAX, FILE_KEPT_MS_MIN, FILE_NAME_CHARS_MAX, FILE_PIECE_BYTES
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.quoting import quoted

__all__ = ["FilesApi", "describe", "require_batches", "send_file"]

_FILE = "file"
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = frozenset({"purpose", _ANCHOR, _SECONDS})


class FilesApi:
    """Serves /v1/files."""

    def __init__(self, services: Services, batches: Batches | None) -> None:
        self._services = services
        self._batches = batches

    async def upload(self, context: RequestContext) -> Response:
        """POST /v1/files."""
        store = require_batches(self._batches).files
        upload = _Upload(context.request.headers.get("content-type", ""))
        draft = await store.begin(context.owner)
        try:
            async for piece in self._services.bodies.pieces(context, UPLOAD_RECEIPT_MS):
                await upload.take(piece, draft)
            kept_ms = upload.finish()
            reach = self._services.caller_options.reach(context, self._services.driver.catalog)
            file = await draft.keep(upload.filename, BATCH_INPUT, kept_ms, reach=reach)
        finally:
            draft.discard()
        return json_response(describe(file), context.lines())

    async def listed(self, context: RequestContext) -> Response:
        """GET /v1/files: the newest first."""
        files, query = require_batches(self._batches).files.listed(*context.owners), context.request.query
        if purpose := query.get("purpose"):
            files = [file for file in files if file.purpose == purpose]
        if _order(query.get("order")):
            files.reverse()
        limit = read_limit(query, BATCH_LIST_MAX, BATCH_LIST_MAX)
        page, has_more = page_of(files, lambda file: file.id, query.get("after"), limit)
        told = await self._services.shares.each(page, _describe_one)
        ends = {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
        return json_response({"object": "list", "data": told, **ends, "has_more": has_more}, context.lines())

    async def retrieve(self, context: RequestContext) -> Response:
        """GET /v1/files/{id}."""
        return json_response(describe(self._find(context)), context.lines())

    async def content(self, context: RequestContext) -> Answer:
        """GET /v1/files/{id}/content."""
        file = self._find(context)
        return await send_file(context, require_batches(self._batches), file, "application/octet-stream")

    async def delete(self, context: RequestContext) -> Response:
        """DELETE /v1/files/{id}."""
        file = self._find(context)
        await require_batches(self._batches).files.delete(file.owner, file.id)
        return json_response({"id": file.id, "object": "file", "deleted": True}, context.lines())

    def _find(self, context: RequestContext) -> StoredFile:
        return require_batches(self._batches).files.find(context.owners, context.request.match["id"])


def require_batches(batches: Batches | None) -> Batches:
    """Raises NotOffered where nothing is kept."""
    if batches is None:
        raise NotOffered("files and batches are not kept here: this gateway has no folder for them")
    return batches


def describe(file: StoredFile) -> dict[str, object]:
    """A file as OpenAI shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_s,
        "expires_at": file.expires_s,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


async def _describe_one(file: StoredFile) -> dict[str, object]:
    return describe(file)


async def send_file(context: RequestContext, batches: Batches, file: StoredFile, content_type: str) -> Stream:
    """The content of a file as an answer. Raises NotFound when it was removed, DiskFailed."""
    path = batches.files.path(file)
    try:
        content = await batches.disk.do(lambda: open_content(path))
    except FileNotFoundError:
        raise NotFound(f"the content of {file.id} is gone") from None
    answer = Stream(context.request, {"Content-Type": content_type}, lines=context.lines())
    try:
        await answer.open()
        async for piece in _pieces(content):
            await answer.write(piece)
        await answer.end()
    finally:
        content.close()
    return answer


async def _pieces(content: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(content.read, FILE_PIECE_BYTES):
        yield piece


def _order(asked: str | None) -> bool:
    """Whether the newest comes first. Raises RequestError."""
    if asked not in (None, "", "asc", "desc"):
        raise RequestError("order must be asc or desc")
    return asked != "asc"


class _Upload:
    """The form of an upload, as it arrives."""

    def __init__(self, content_type: str) -> None:
        self._reader = FormReader(content_type)
        self._part: PartHead | None = None
        self._texts: dict[str, bytearray] = {}
        self._has_file = False
        self.filename = ""

    async def take(self, piece: bytes, draft: Draft) -> None:
        """Takes a piece of the body. Raises RequestError, TooLarge, DiskFailed."""
        for found in self._reader.feed(piece):
            if isinstance(found, PartHead):
                self._begin(found)
            elif self._part is not None and self._part.name == _FILE:
                await draft.write(found.piece)
            elif self._part is not None and (text := self._texts.get(self._part.name)) is not None:
                text += found.piece
                if len(text) > FORM_TEXT_BYTES_MAX:
                    raise RequestError(f"the form's {self._part.name!a} is too long")

    def finish(self) -> int | None:
        """How long the file is to be kept; None: as long as others. Raises RequestError for a form that lacks a part,
        or asks for what is not done here."""
        self._reader.finish()
        texts = {name: text.decode("utf-8", "replace") for name, text in self._texts.items()}
        if not self._has_file:
            raise RequestError("the form has no part called file")
        purpose = texts.get("purpose")
        if purpose != BATCH_INPUT:
            raise RequestError(
                f"purpose must be batch: only files for batches are kept here, not {quoted(purpose)}"
            )
        return _kept_ms(texts)

    def _begin(self, part: PartHead) -> None:
        is_again = part.name in self._texts or (part.name == _FILE and self._has_file)
        if is_again:
            raise RequestError(f"the form has {quoted(part.name)} twice")
        if part.name == _FILE:
            self._has_file, self.filename = True, _shown_name(part.filename)
        elif part.name in _FIELDS:
            self._texts[part.name] = bytearray()
        else:
            raise RequestError(
                f"{quoted(part.name)} is no field of an upload; there are file, purpose, expires_after"
            )
        self._part = part


def _shown_name(filename: str) -> str:
    """A name for people; it never becomes a path."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in filename[:FILE_NAME_CHARS_MAX])
    return plain or "upload.jsonl"


def _kept_ms(texts: dict[str, str]) -> int | None:
    anchor, seconds = texts.get(_ANCHOR), texts.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise RequestError("expires_after must have the anchor created_at")
    least = FILE_KEPT_MS_MIN // 1000
    if seconds is None or not (seconds.isascii() and seconds.isdecimal()) or int(seconds[:12]) < least:
        raise RequestError(f"expires_after must have seconds, a whole number from {least} on")
    return int(seconds[:12]) * 1000
