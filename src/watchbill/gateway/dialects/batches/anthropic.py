"""Anthropic's Message Batches: /v1/messages/batches, and the lines of their results.

The requests of a batch come in the body that makes it. They become an input file like OpenAI's, which is no file of
its caller and leaves with the batch's end; from there on both dialects have the same way.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from watchbill.batches.batch import Answered, Batch, Created, Dialect, Stage
from watchbill.batches.files import HIDDEN
from watchbill.batches.limits import BATCH_LINE_BYTES_MAX, UPLOAD_WRITE_BYTES
from watchbill.batches.service import Batches
from watchbill.decodable import end_of_text
from watchbill.errors import NotFound, RequestError, TooLarge
from watchbill.gateway.answers import json_response
from watchbill.gateway.body import parse_object
from watchbill.gateway.dialects.anthropic.errors import lines
from watchbill.gateway.dialects.batches.files import require_batches, send_file
from watchbill.gateway.dialects.batches.pages import page_between, read_limit
from watchbill.gateway.dialects.batches.treatment import MESSAGE_BATCH_FIELDS, check_fields
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.limits import JSON_DEPTH_MAX

__all__ = ["AnthropicResults", "MessageBatchesApi", "split_requests"]

ENDPOINT = "/v1/messages"
_WINDOW, _WINDOW_MS = "24h", 86_400_000
_PAGE, _PAGE_MAX = 20, 1_000
_CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: A text, or what separates and nests. The quote alone begins a text of many escapes, or one that has no end. The group
#: may repeat possessively: before the end of the body none of its branches fails halfway (gh-106052).
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.){0,1000}+"|["{}\[\]:]', re.DOTALL)
_encode = msgspec.json.Encoder().encode


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


_decode = msgspec.json.Decoder(_Request).decode


class MessageBatchesApi:
    """Serves /v1/messages/batches."""

    def __init__(self, services: Services, batches: Batches | None) -> None:
        self._services = services
        self._batches = batches

    async def create(self, context: RequestContext) -> Response:
        """POST /v1/messages/batches."""
        batches = require_batches(self._batches)
        body, seen = await self._services.bodies.read(context), set[str]()
        pieces = _as_lines(body, batches.rules.lines_max, seen)
        draft = await batches.files.begin(context.owner)
        try:
            while (piece := await batches.bulk.do(lambda: next(pieces, None))) is not None:
                await draft.write(piece)
            del piece
            await batches.bulk.do(lambda: _let_go(body))
            file = await draft.keep("requests.jsonl", HIDDEN)
        finally:
            draft.discard()
        created = Created(
            batches.now_ms(),
            batches.new_id(Dialect.ANTHROPIC),
            context.owner,
            Dialect.ANTHROPIC,
            ENDPOINT,
            file.id,
            _WINDOW,
            _WINDOW_MS,
            lines=len(seen),
            reach=self._services.caller_options.reach(context, self._services.driver.catalog),
        )
        try:
            batch = await batches.create(created)
        except BaseException:
            await batches.files.remove(file)
            raise
        return self._told(context, batch)

    async def listed(self, context: RequestContext) -> Response:
        """GET /v1/messages/batches: the newest first."""
        batches, query = require_batches(self._batches), context.request.query
        mine = batches.listed(context.owners, Dialect.ANTHROPIC)
        page, ends = page_between(mine, lambda batch: batch.id, query, read_limit(query, _PAGE, _PAGE_MAX))
        return json_response({"data": list(map(describe, page)), **ends}, lines(context))

    async def retrieve(self, context: RequestContext) -> Response:
        """GET /v1/messages/batches/{id}."""
        return self._told(context, self._find(context))

    async def cancel(self, context: RequestContext) -> Response:
        """POST /v1/messages/batches/{id}/cancel."""
        batch = self._find(context)
        await require_batches(self._batches).cancel(batch)
        return self._told(context, batch)

    async def delete(self, context: RequestContext) -> Response:
        """DELETE /v1/messages/batches/{id}: only one that has ended."""
        batch = self._find(context)
        await require_batches(self._batches).forget(batch)
        return json_response({"id": batch.id, "type": "message_batch_deleted"}, lines(context))

    async def results(self, context: RequestContext) -> Answer:
        """GET /v1/messages/batches/{id}/results."""
        batches, batch = require_batches(self._batches), self._find(context)
        if not batch.has_ended:
            raise NotFound(f"{batch.id} has not ended; its results come with its end")
        kind = "application/x-jsonl"
        if batch.output_file is None:
            return Response(b"", {"Content-Type": kind}, lines=lines(context))
        return await send_file(context, batches, batches.files.find(context.owners, batch.output_file), kind)

    def _find(self, context: RequestContext) -> Batch:
        id = context.request.match["id"]
        return require_batches(self._batches).find(context.owners, Dialect.ANTHROPIC, id)

    def _told(self, context: RequestContext, batch: Batch) -> Response:
        return json_response(describe(batch), lines(context))


# ------------------------------------------------------------------ requests


def _as_lines(body: bytes | bytearray, lines_max: int, seen: set[str]) -> Iterator[bytes]:
    """The requests of a batch as lines of an input file, a piece at a time; their ids are added to `seen`. Never all
    of them at once: freeing so many pieces takes as long as a tenth of a second. Raises RequestError, TooLarge."""
    held, size = list[bytes](), 0
    for number, text in enumerate(split_requests(body)):
        if number >= lines_max:
            raise TooLarge(f"a batch has at most {lines_max} requests (batches.lines_max)")
        line = _line(number, text, seen)
        held.append(line)
        size += len(line)
        if size >= UPLOAD_WRITE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if not seen:
        raise RequestError("requests must be a list of at least one request")
    yield b"".join(held)


def _let_go(body: bytes | bytearray) -> None:
    """Frees a large body by halves: all at once it would hold up the event loop, whichever thread does it."""
    while isinstance(body, bytearray) and len(body) > UPLOAD_WRITE_BYTES:
        del body[len(body) // 2 - 1 :]


def _line(number: int, text: bytes, seen: set[str]) -> bytes:
    place = f"requests.{number}"
    try:
        asked = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"{place} is no request: {error}") from None
    id, params = asked.custom_id, bytes(asked.params).strip()
    if not _CUSTOM_ID.fullmatch(id):
        raise RequestError(f"{place}.custom_id must have 1 to 64 letters, digits, - and _")
    if id in seen:
        raise RequestError(f"{place}.custom_id {id} is that of an earlier request, too")
    if not params.startswith(b"{"):
        raise RequestError(f"{place}.params must be an object")
    seen.add(id)
    # Between values a line break means nothing, and within a text there is none.
    flat = params.replace(b"\r", b" ").replace(b"\n", b" ")
    line = b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (
        id.encode(),
        ENDPOINT.encode(),
        flat,
    )
    if len(line) > BATCH_LINE_BYTES_MAX:
        raise TooLarge(f"{place} has more than {BATCH_LINE_BYTES_MAX} bytes")
    return line


def split_requests(body: bytes | bytearray) -> Iterator[bytes]:
    """The elements of `requests`, undecoded, one at a time.

    A body of many megabytes would take long to decode at once, and a thread that decodes lets no other run. So its
    brackets are counted instead. Raises RequestError for a body that is not an object with one list of objects."""
    depth, start, after, inside = 0, 0, 0, (-1, -1)
    key = last = b""
    for token in _tokens(body):
        mark = token[0]
        if mark == b":":
            key = last if depth == 1 else key
        elif mark in (b"{", b"["):
            depth += 1
            if depth == 2 and mark == b"[" and key == b'"requests"':
                if inside != (-1, -1):
                    raise RequestError("the body has requests twice")
                inside, after = (token.end(), -1), token.end()
            elif depth == 3 and inside[0] >= 0 > inside[1]:
                _check_gap(body, after, token.start(), is_first=after == inside[0])
                if mark == b"[":
                    raise RequestError("requests must be a list of objects")
                start = token.start()
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 2 and inside[0] >= 0 > inside[1]:
                after = token.end()
                yield bytes(body[start:after])
            elif depth == 1 and inside[0] >= 0 > inside[1]:
                if body[after : token.start()].strip():
                    raise RequestError("requests must be a list of objects")
                inside = (inside[0], token.start())
        last = mark
        if depth > JSON_DEPTH_MAX or depth < 0:
            raise RequestError(f"the body is not JSON, or nested deeper than {JSON_DEPTH_MAX}")
    if inside[1] < 0:
        raise RequestError("the body must have requests: a list of objects with custom_id and params")
    check_fields(parse_object(body[: inside[0]] + body[inside[1] :]), MESSAGE_BATCH_FIELDS)


def _tokens(body: bytes | bytearray) -> Iterator[re.Match[bytes]]:
    """The tokens of a body. Of a text of many escapes it is the first quote alone; its end is looked for a window at a
    time, so that other threads go on in between. Raises RequestError."""
    at = 0
    while at < len(body):
        start, at = at, len(body)
        for token in _TOKEN.finditer(body, start):
            yield token
            if token[0] != b'"':
                continue
            at = end_of_text(body, token.end()) + 1
            if not at:
                raise RequestError(
                    "the body is not JSON: a text has no end, or what JSON does not allow in one"
                )
            break


def _check_gap(body: bytes | bytearray, begin: int, end: int, *, is_first: bool) -> None:
    if bytes(body[begin:end]).strip() != (b"" if is_first else b","):
        raise RequestError("requests must be a list of objects")


# ------------------------------------------------------------------ answers


def describe(batch: Batch) -> dict[str, object]:
    """A batch as Anthropic shows it."""
    ended = max(batch.times.values()) if batch.has_ended else None
    status = "ended" if batch.has_ended else "canceling" if batch.stage is Stage.CANCELLING else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch),
        "created_at": _time(batch.created.at),
        "expires_at": _time(batch.expires_at),
        "ended_at": _time(ended),
        "cancel_initiated_at": _time(batch.times.get(Stage.CANCELLING)),
        "archived_at": None,
        "results_url": f"/v1/messages/batches/{batch.id}/results" if batch.has_ended else None,
    }


def _counts(batch: Batch) -> dict[str, int]:
    total = batch.total or batch.created.lines
    if not batch.has_ended:
        return {"processing": total, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    left = total - batch.completed - batch.failed
    return {
        "processing": 0,
        "succeeded": batch.completed,
        "errored": batch.failed + (left if batch.stage is Stage.FAILED else 0),
        "canceled": left if batch.stage is Stage.CANCELLED else 0,
        "expired": left if batch.stage is Stage.EXPIRED else 0,
    }


def _time(at: int | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Succeeded(msgspec.Struct, tag_field="type", tag="succeeded"):
    message: msgspec.Raw


class _Errored(msgspec.Struct, tag_field="type", tag="errored"):
    error: msgspec.Raw


class _Expired(msgspec.Struct, tag_field="type", tag="expired"):
    pass


class _Canceled(msgspec.Struct, tag_field="type", tag="canceled"):
    pass


class _Result(msgspec.Struct):
    custom_id: str
    result: _Succeeded | _Errored | _Expired | _Canceled


class AnthropicResults:
    """The lines of a results file."""

    def line(self, batch: Batch, number: int, custom_id: str, answer: Answered | None) -> tuple[bytes, bool]:
        """One line; errors are in the same file."""
        if answer is None:
            result = _Expired() if batch.stage is Stage.EXPIRING else _Canceled()
        else:
            result = _Succeeded(answer.body) if answer.is_good else _Errored(answer.body)
        return _encode(_Result(custom_id, result)), False
