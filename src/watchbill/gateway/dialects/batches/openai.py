"""OpenAI's Batch API: POST /v1/batches, what becomes of a batch, and the lines of its results."""

from typing import cast

import msgspec

from watchbill.batches.batch import Answered, Batch, Created, Dialect, Stage
from watchbill.batches.files import BATCH_INPUT
from watchbill.batches.service import Batches
from watchbill.batches.usage import Tokens
from watchbill.errors import RequestError, UnitError
from watchbill.gateway.answers import json_response
from watchbill.gateway.dialects.batches import treatment
from watchbill.gateway.dialects.batches.files import require_batches
from watchbill.gateway.dialects.batches.pages import page_of, read_limit
from watchbill.gateway.dialects.treatment import Treatment
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import BATCH_WINDOW_MS_MIN, FILE_KEPT_MS_MIN, LIST_ITEMS_MAX
from watchbill.gateway.options import read_metadata
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.typed import is_word, object_of
from watchbill.units import parse_millis, spell_millis

__all__ = ["ENDPOINTS", "BatchesApi", "OpenAiResults"]

#: What the lines of a batch may ask.
ENDPOINTS = tuple(path for path, what in treatment.ENDPOINTS.items() if what is Treatment.WORKS)
_PAGE = 20
_encode = msgspec.json.Encoder().encode
#: Why a line that was never answered was not.
_UNANSWERED = {
    Stage.EXPIRING: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    Stage.CANCELLING: ("batch_cancelled", "This request was not executed: the batch was cancelled before."),
}


class BatchesApi:
    """Serves /v1/batches."""

    def __init__(self, services: Services, batches: Batches | None) -> None:
        self._services = services
        self._batches = batches

    async def create(self, context: RequestContext) -> Response:
        """POST /v1/batches."""
        batches = require_batches(self._batches)
        body = await self._services.bodies.read_plain(context)
        treatment.check_fields(body, treatment.BATCH_FIELDS)
        endpoint, file = body.get("endpoint"), body.get("input_file_id")
        if not is_word(endpoint, ENDPOINTS):
            raise RequestError(f"endpoint must be one of {', '.join(ENDPOINTS)}")
        if not isinstance(file, str):
            raise RequestError("input_file_id must be the id of a file; POST /v1/files makes one")
        stored = batches.files.find(context.owners, file)
        if stored.purpose != BATCH_INPUT:
            raise RequestError(f"{file} is no input of a batch: upload one with the purpose batch")
        reach = self._services.caller_options.reach(context, self._services.driver.catalog)
        window, window_ms = self._window(body.get("completion_window"), batches.rules.window_max_ms)
        batch = await batches.create(
            Created(
                batches.now_ms(),
                batches.new_id(Dialect.OPENAI),
                stored.owner,  # a file from the time before keys has no owner
                Dialect.OPENAI,
                str(endpoint),
                file,
                window,
                window_ms,
                read_metadata(body.get("metadata")),
                _kept_ms(body.get("output_expires_after")),
                reach=max(reach, stored.reach),
            )
        )
        return json_response(describe(batch), context.lines())

    async def listed(self, context: RequestContext) -> Response:
        """GET /v1/batches: the newest first."""
        batches, query = require_batches(self._batches), context.request.query
        mine = batches.listed(context.owners, Dialect.OPENAI)
        limit = read_limit(query, _PAGE, LIST_ITEMS_MAX)
        page, has_more = page_of(mine, lambda batch: batch.id, query.get("after"), limit)
        ends = {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
        told = {"object": "list", "data": list(map(describe, page)), **ends, "has_more": has_more}
        return json_response(told, context.lines())

    async def retrieve(self, context: RequestContext) -> Response:
        """GET /v1/batches/{id}."""
        return json_response(describe(self._find(context)), context.lines())

    async def cancel(self, context: RequestContext) -> Response:
        """POST /v1/batches/{id}/cancel."""
        batch = self._find(context)
        await require_batches(self._batches).cancel(batch)
        return json_response(describe(batch), context.lines())

    def _find(self, context: RequestContext) -> Batch:
        id = context.request.match["id"]
        return require_batches(self._batches).find(context.owners, Dialect.OPENAI, id)

    def _window(self, asked: object, most_ms: int) -> tuple[str, int]:
        try:
            window_ms = parse_millis(asked) if isinstance(asked, str) else -1
        except UnitError:
            window_ms = -1
        if not isinstance(asked, str) or not BATCH_WINDOW_MS_MIN <= window_ms <= most_ms:
            least, most = spell_millis(BATCH_WINDOW_MS_MIN), spell_millis(most_ms)
            raise RequestError(f"completion_window must be a duration from {least} to {most}, such as 24h")
        return asked, window_ms


def describe(batch: Batch) -> dict[str, object]:
    """A batch as OpenAI shows it."""
    created, times = batch.created, batch.times
    faults = [
        {"code": fault.code, "message": fault.message, "line": fault.line, "param": fault.param}
        for fault in batch.faults
    ]
    finalizing = times.get(Stage.FINALIZING, times.get(Stage.EXPIRING))
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": created.endpoint,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": created.input_file,
        "completion_window": created.window,
        "status": "finalizing" if batch.stage is Stage.EXPIRING else batch.stage.value,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": created.at // 1000,
        "in_progress_at": _seconds(times.get(Stage.IN_PROGRESS)),
        "expires_at": batch.expires_at // 1000,
        "finalizing_at": _seconds(finalizing),
        "completed_at": _seconds(times.get(Stage.COMPLETED)),
        "failed_at": _seconds(times.get(Stage.FAILED)),
        "expired_at": _seconds(times.get(Stage.EXPIRED)),
        "cancelling_at": _seconds(times.get(Stage.CANCELLING)),
        "cancelled_at": _seconds(times.get(Stage.CANCELLED)),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": created.metadata,
        "model": batch.model,
        "usage": None if batch.tokens is None else _usage(batch.tokens),
    }


def _usage(tokens: Tokens) -> dict[str, object]:
    return {
        "input_tokens": tokens.read,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.made,
        "output_tokens_details": {"reasoning_tokens": tokens.thought},
        "total_tokens": tokens.read + tokens.made,
    }


def _seconds(at: int | None) -> int | None:
    return None if at is None else at // 1000


def _kept_ms(asked: object) -> int | None:
    """How long the results are kept; None: as long as other files. Raises RequestError."""
    if asked is None:
        return None
    fields = object_of(asked)
    seconds, least = fields.get("seconds"), FILE_KEPT_MS_MIN // 1000
    is_whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if fields.get("anchor") != "created_at" or not is_whole or cast("int", seconds) < least:
        raise RequestError(
            f"output_expires_after must have the anchor created_at, and seconds from {least} on"
        )
    return min(cast("int", seconds), 2**31) * 1000


class _Answer(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Result(msgspec.Struct):
    id: str
    custom_id: str
    response: _Answer | None
    error: _Error | None


class OpenAiResults:
    """The lines of an output file and of an error file."""

    def line(self, batch: Batch, number: int, custom_id: str, answer: Answered | None) -> tuple[bytes, bool]:
        """One line; what was not answered with success belongs to the errors."""
        id = f"batch_req_{batch.id.removeprefix('batch_')}{number:08x}"
        if answer is None:
            code, message = _UNANSWERED[batch.stage]
            return _encode(_Result(id, custom_id, None, _Error(code, message))), True
        told = _Answer(answer.status, answer.request, answer.body)
        return _encode(_Result(id, custom_id, told, None)), not answer.is_good
