"""OpenAI's dialect: chat, completions, embeddings, and the list of models.

Engines are always asked to stream chats and completions; for a client that wants a whole answer the pieces are
put together. A client's stream passes unchanged. Our own fields are taken out of a body before an engine sees
it, numbers are checked, everything else goes through.
"""

import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from watchbill.catalog import Model
from watchbill.core.model_state import ModelStatus
from watchbill.errors import RequestError
from watchbill.gateway.answers import json_response
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.model_calls import Fields, ModelCalls, Whole
from watchbill.gateway.options import check_ranges
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.stream import StreamOut

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["OpenAiApi"]

_encode = msgspec.json.Encoder().encode
#: A model's stage in the words that clients know.
_STATES = {
    ModelStatus.PLANNED: "loading",
    ModelStatus.LOADING: "loading",
    ModelStatus.READY: "loaded",
    ModelStatus.DRAINING: "loaded",
    ModelStatus.FAILED: "failed",
    ModelStatus.QUARANTINED: "failed",
}


#: A whole answer says how many tokens it took; a stream only when it is asked to.
_COUNTED = {"include_usage": True}
_ASSEMBLIES = (partial(Assembly, chat=False), partial(Assembly, chat=True))


class OpenAiApi:
    """Serves /v1."""

    def __init__(self, gateway: "Services", *, created_s: int) -> None:
        self._gateway = gateway
        self._calls = ModelCalls(gateway)
        self._created_s = created_s
        self._created_at = datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z")

    # ------------------------------------------------------------------ generation

    def chat(self, context: RequestContext) -> Awaitable[Answer]:
        """POST /v1/chat/completions."""
        return self._generate(context, "/v1/chat/completions", chat=True)

    def completions(self, context: RequestContext) -> Awaitable[Answer]:
        """POST /v1/completions."""
        return self._generate(context, "/v1/completions", chat=False)

    async def embeddings(self, context: RequestContext) -> Answer:
        """POST /v1/embeddings: a short answer, passed on whole."""
        gateway = self._gateway
        body = await gateway.bodies.read_object(context)
        check_ranges(body)
        if not isinstance(body.get("stream"), bool | None):
            raise RequestError("stream must be true or false")
        submission = gateway.caller_options.submission(context, body, gateway.driver.catalog)
        submission = await gateway.abilities.check(submission, "embedding")
        whole = await self._calls.fetch(context, submission, JsonSender(body, "/v1/embeddings"))
        return self._pass_on(context, whole)

    async def _generate(self, context: RequestContext, path: str, *, chat: bool) -> Answer:
        gateway = self._gateway
        body = await gateway.bodies.read_object(context)
        check_ranges(body)
        stream = body.get("stream")
        if not isinstance(stream, bool | None):
            raise RequestError("stream must be true or false")
        submission = gateway.caller_options.submission(context, body, gateway.driver.catalog)
        allowed = await gateway.abilities.allow(submission, body)
        submission, body, forced = allowed
        if stream:
            out = CompletionOut(context, chat=chat)
            as_is = partial(self._pass_on, context)
            send = JsonSender(body, path)
            return await self._calls.stream(context, submission, send, out, instead=as_is, forced=forced)
        body["stream"] = True
        options = body.get("stream_options")
        body["stream_options"] = (
            {**cast("Fields", options), **_COUNTED} if isinstance(options, dict) else _COUNTED
        )
        send, make = JsonSender(body, path), _ASSEMBLIES[chat]
        answer = await self._calls.collect(context, submission, send, make, forced=forced)
        if isinstance(answer, Fallback):
            return json_response(_completion(answer, context.id, chat=chat), context.lines())
        return self._pass_on(context, answer)

    def _pass_on(self, context: RequestContext, whole: Whole) -> Answer:
        body = whole.body if whole.assembled is None else _encode(whole.assembled)
        return Response(body, {"Content-Type": whole.content_type}, lines=context.lines())

    # ------------------------------------------------------------------ models

    async def models(self, context: RequestContext) -> Response:
        """GET /v1/models, for OpenAI's clients and for Anthropic's, who have it at the same address."""
        models = self._gateway.driver.catalog.offered
        await self._gateway.files.refresh()
        names, listed = list(models), await self._gateway.shares.each(models.values(), self._describe)
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        return json_response({"object": "list", "data": listed, "has_more": False, **ends}, context.lines())

    async def model(self, context: RequestContext) -> Response:
        """GET /v1/models/{id}."""
        model = self._gateway.driver.catalog.model_called(context.request.match["id"])
        return json_response(await self._describe(model), context.lines())

    async def _describe(self, model: Model) -> dict[str, object]:
        status = self._gateway.driver.model_status(model.name)
        return {
            "id": model.name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "watchbill",
            "type": "model",
            "display_name": model.name,
            "created_at": self._created_at,
            "status": {"value": _STATES.get(status, "unloaded")},
            "meta": {"n_ctx": (await self._gateway.files.facts(model)).context(model)},
            "aliases": list(model.aliases),
            "capabilities": (await self._gateway.abilities.of(model)).listed(),
        }


class CompletionOut(StreamOut):
    """A stream of a chat or completion."""

    def __init__(self, context: RequestContext, *, chat: bool) -> None:
        super().__init__(context)
        self._chat = chat

    async def fall_back(self, fallback: Fallback) -> None:
        await self.send(_completion_events(fallback, self.context.id, chat=self._chat))


# ------------------------------------------------------------------ fallbacks


def _completion(fallback: Fallback, id: str, *, chat: bool) -> dict[str, object]:
    """A whole chat or completion."""
    said: dict[str, object] = (
        {"message": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    return {
        **_base(fallback, id, "chat.completion" if chat else "text_completion"),
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _completion_events(fallback: Fallback, id: str, *, chat: bool) -> bytes:
    """The same as a stream."""
    base = _base(fallback, id, "chat.completion.chunk" if chat else "text_completion")
    said: dict[str, object] = (
        {"delta": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    events = (
        {**base, "choices": [{"index": 0, **said, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, **last, "finish_reason": "stop"}]},
    )
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _base(fallback: Fallback, id: str, kind: str) -> dict[str, object]:
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": fallback.model,
        "watchbill": fallback.note,
    }
