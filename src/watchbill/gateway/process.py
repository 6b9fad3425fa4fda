"""Typed work: POST /process (LANE-05).

The config maps a type to its lane, model, prompt and fallback. Every answer has the same keys and status 200: a
thought of the model, or the fallback with the reason in `error`. `stale` means that a newer request took its place
and no model was asked; `timeout` that it could not start or end in time; anything else is the failure's own code.
"""

from typing import cast

import msgspec

from watchbill import names
from watchbill.catalog import ProcessType
from watchbill.errors import NameRefused, RequestError, TheirsError, UnsupportedMedia
from watchbill.gateway.answers import json_response, let_go
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender
from watchbill.gateway.dialects.ollama.response import now_text
from watchbill.gateway.fallback import Fallback, error_name, summarize
from watchbill.gateway.http.messages import Response
from watchbill.gateway.model_calls import Fields, ModelCalls
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.wire import read_chunk
from watchbill.templates import Template

__all__ = ["ProcessApi"]

_JSON = "application/json"
#: What is said when neither the type nor its lane has a text for it.
_FALLBACK = "I notice {summary}."


class ProcessApi:
    """Serves POST /process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = ModelCalls(services)

    async def process(self, context: RequestContext) -> Response:
        """POST /process with {"type", "id"?, "payload"}."""
        work = await self._read(context)
        try:
            told = await self._think(context, work)
        except TheirsError as error:
            told = work.answer(context, work.instead(self._lane_text(work.kind)), error_name(error))
            let_go(error)
        return json_response(told, context.lines())

    async def _think(self, context: RequestContext, work: "_Work") -> Fields:
        kind = work.kind
        body: Fields = {"model": kind.model}
        context.capture = kind.capture
        # The type decides the lane; a header could otherwise take work out of the lane that culls it.
        submission = msgspec.structs.replace(
            self._services.caller_options.submission(context, body, self._services.driver.catalog),
            lane=kind.lane,
        )
        submission = await self._services.abilities.check(submission, "completion")
        body |= {"messages": [{"role": "user", "content": work.prompt}], "stream": True}
        if kind.max_tokens is not None:
            body["max_tokens"] = kind.max_tokens
        send = JsonSender(body, "/v1/chat/completions")
        answer = await self._calls.collect(context, submission, send, lambda: Assembly(chat=True))
        if isinstance(answer, Fallback):
            return work.answer(context, work.instead(self._lane_text(kind)), answer.error)
        return work.answer(context, read_chunk(answer.fields()).text.strip(), None)

    def _lane_text(self, kind: ProcessType) -> str | None:
        lane = self._services.driver.catalog.lanes.get(kind.lane)
        return lane.fallback if lane else None

    async def _read(self, context: RequestContext) -> "_Work":
        if context.request.content_type != _JSON:
            raise UnsupportedMedia
        body = await self._services.bodies.read_plain(context)
        types = self._services.driver.catalog.process
        kind = types.get(str(body.get("type")))
        if kind is None:
            known = ", ".join(list(types)[:20]) or "none; add [process.NAME] to the config"
            raise RequestError(f"type must be one of those that the config names: {known}")
        payload = body.get("payload", {})
        if not isinstance(payload, dict):
            raise RequestError("payload must be an object")
        return _Work(kind, _id(body.get("id"), context), cast("Fields", payload))


class _Work:
    """One piece of work, with its texts filled in."""

    def __init__(self, kind: ProcessType, id: str, payload: Fields) -> None:
        self.kind = kind
        self.id = id
        self._payload = payload
        self._values = {"summary": summarize(payload), "type": kind.name, "id": id}
        self.prompt = self._fill(kind.prompt)
        self._own_text = None if kind.fallback is None else self._fill(kind.fallback)

    def _fill(self, text: str) -> str:
        return Template(text).fill(self._values, self._payload)

    def instead(self, lane_text: str | None) -> str:
        """The thought that no model had: the type's text, the lane's, or what was noticed."""
        if self._own_text is not None:
            return self._own_text
        return self._fill(_FALLBACK if lane_text is None else lane_text)

    def answer(self, context: RequestContext, thought: str, error: str | None) -> Fields:
        """The answer; its keys are always the same."""
        if error is not None:
            context.fallback = error
            context.lane = context.lane or self.kind.lane
        return {
            "id": self.id,
            "type": self.kind.name,
            "thought": thought,
            "fallback": error is not None,
            "error": error,
            "model": context.model if error is None else None,
            "lane": self.kind.lane,
            "created_at": now_text(),
            "wait_ms": context.start.wait_ms if context.start is not None else int(context.age_s() * 1000),
        }


def _id(given: object, context: RequestContext) -> str:
    if given is None:
        return context.id
    text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(text, str):
        raise RequestError("id must be a text")
    try:
        return names.check_request_id(text)
    except NameRefused as error:
        raise RequestError(f"id: {error}") from error
