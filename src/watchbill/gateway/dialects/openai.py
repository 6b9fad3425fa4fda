"""OpenAI's dialect: chat, completions, embeddings, and the list of models.

Engines are always asked to stream chats and completions; for a client that wants a whole answer the pieces are
put together. A client's stream passes unchanged. Our own fields are taken out of a body before an engine sees
it, numbers are checked, everything else goes through.
"""

from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from typing import cast

import msgspec

from watchbill.catalog import Model
from watchbill.core.stages import ModelStatus
from watchbill.engines.connection import Outgoing
from watchbill.errors import RequestError
from watchbill.gateway.abilities import Allowed
from watchbill.gateway.answers import json_response
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender
from watchbill.gateway.dialects.anthropic.errors import is_anthropic
from watchbill.gateway.dialects.anthropic.models import AnthropicModels
from watchbill.gateway.dialects.completion_out import CompletionOut, fallen_back
from watchbill.gateway.dialects.several import Run, SeveralOut, choices_of, merged, runs_of
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender, Whole
from watchbill.gateway.options import check_ranges
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.shapes import SHAPED, check_shapes, with_older_limit
from watchbill.gateway.vectors import (
    Vectors,
    as_base64,
    count_dimensions,
    cut_vectors,
    is_in_numbers,
    write_rows,
)
from watchbill.runtime.ticket import Start, Submission

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


_NEWER_LIMIT = "max_completion_tokens"
_ASSEMBLIES = (partial(Assembly, chat=False), partial(Assembly, chat=True))


class OpenAiApi:
    """Serves /v1."""

    def __init__(self, services: Services, *, created_s: int) -> None:
        self._services = services
        self._calls = ModelCalls(services)
        self._created_s = created_s
        self._created_at = datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z")
        self._anthropic = AnthropicModels(services, self._created_at)

    # ------------------------------------------------------------------ generation

    def chat(self, context: RequestContext) -> Awaitable[Answer]:
        """POST /v1/chat/completions."""
        return self._generate(context, "/v1/chat/completions", chat=True)

    def completions(self, context: RequestContext) -> Awaitable[Answer]:
        """POST /v1/completions."""
        return self._generate(context, "/v1/completions", chat=False)

    async def embeddings(self, context: RequestContext) -> Answer:
        """POST /v1/embeddings: a short answer, passed on whole unless it has to have another form."""
        services = self._services
        body = await services.bodies.read_object(context)
        check_ranges(body)
        if not isinstance(body.get("stream"), bool | None):
            raise RequestError("stream must be true or false")
        submission = services.caller_options.submission(context, body, services.driver.catalog)
        submission = await services.abilities.check(submission, "embedding")
        services.abilities.check_room(submission, body, context.held, context.lifted)
        if body.get("dimensions") is not None:
            return await self._shorter(context, submission, body)
        whole = await self._calls.fetch(context, submission, JsonSender(body, "/v1/embeddings"))
        if body.get("encoding_format") == "base64" and is_in_numbers(whole.body):
            # Many engines know numbers alone, and OpenAI's client for Node takes these for an empty vector.
            return await self._write(context, await self._services.shares.do(whole.vectors()), "base64")
        return self._pass_on(context, whole)

    async def _shorter(self, context: RequestContext, submission: Submission, body: Fields) -> Answer:
        """Embeddings of so many dimensions. Most engines ignore the field, so longer vectors are cut here."""
        wanted, form = int(cast("float", body["dimensions"])), body.get("encoding_format") or "float"
        if form not in ("float", "base64"):
            raise RequestError("encoding_format must be float or base64")
        shares, sender = (
            self._services.shares,
            JsonSender({**body, "encoding_format": "float"}, "/v1/embeddings"),
        )
        found = await shares.do((await self._calls.fetch(context, submission, sender)).vectors())
        lengths = {count_dimensions(vector) for vector in found.embeddings}
        if lengths and min(lengths) < wanted:
            raise RequestError(f"{context.model} makes {min(lengths)} dimensions; ask for no more than that")
        if lengths and max(lengths) > wanted:
            cut = await shares.do(cut_vectors(found.embeddings, wanted))
            found = Vectors(cut, found.usage)
        return await self._write(context, found, form)

    async def _write(self, context: RequestContext, found: Vectors, form: str) -> Answer:
        """These embeddings as an answer, in numbers or in base64."""
        told = found.embeddings
        if form == "base64":
            told = await self._services.shares.do(as_base64(told))
        top: Fields = {"object": "list", "model": context.model, "usage": found.usage}
        content = await write_rows(top, told)
        self._services.bodies.note_freed(len(content))  # the vectors by themselves
        return Response(content, {"Content-Type": "application/json"}, lines=context.lines())

    async def _generate(self, context: RequestContext, path: str, *, chat: bool) -> Answer:
        services = self._services
        body = await services.bodies.read_object(context)
        check_ranges(body)
        stream = body.get("stream")
        if not isinstance(stream, bool | None):
            raise RequestError("stream must be true or false")
        if None in body.values():  # an engine may refuse what other servers take for left out
            body = {name: value for name, value in body.items() if value is not None}
        if not SHAPED.isdisjoint(body):
            body = check_shapes(body)
        submission = services.caller_options.submission(context, body, services.driver.catalog)
        allowed = await services.abilities.allow(submission, body, context.held, context.lifted)
        submission, body, forced = allowed
        if "n" in body or isinstance(body.get("prompt"), list) or (not chat and body.get("logprobs")):
            places = self._places(submission)
            runs = runs_of(body, places)
            if len(runs) > 1 or (places is not None and (choices_of(body) > 1 or not chat)):
                return await self._several(context, allowed, runs, path, stream=stream is True)
        sender = self._either_sender if _NEWER_LIMIT in body else JsonSender
        if stream:
            out = CompletionOut(context, chat=chat)
            return await self._calls.stream(context, submission, sender(body, path), out, forced=forced)
        send, make = sender(body, path, is_streamed=True), _ASSEMBLIES[chat]
        answer = await self._calls.collect(context, submission, send, make, forced=forced)
        if isinstance(answer, Fallback):
            return json_response(fallen_back(answer, context.id, chat=chat), context.lines())
        return self._pass_on(context, answer)

    def _either_sender(self, body: Fields, path: str, *, is_streamed: bool = False) -> Sender:
        """Sends a body with the newer limit to the engine whose turn it is; an Ollama here is told its older name."""
        send, older = (
            JsonSender(body, path, is_streamed),
            JsonSender(with_older_limit(body), path, is_streamed),
        )

        def send_either(start: Start) -> Outgoing:
            driver = None if start.site else self._services.driver.catalog.driver_of(start.model)
            return (older if driver == "ollama" else send)(start)

        return send_either

    def _places(self, submission: Submission) -> int | None:
        """How many choices a model's engine makes at once; None: it sees to that itself."""
        catalog = self._services.driver.catalog
        model = catalog.find_model(submission.model)
        driver = None if model is None else catalog.engines[model.engine].driver
        if model is None or driver not in ("llamacpp", "ollama"):
            return None
        return model.concurrency if driver == "llamacpp" else 1  # Ollama passes over `n` without a word

    async def _several(
        self, context: RequestContext, allowed: Allowed, runs: list[Run], path: str, *, stream: bool
    ) -> Answer:
        """One answer of several choices or runs, each run in its own turn."""
        sender = self._either_sender if _NEWER_LIMIT in allowed.chat else JsonSender
        chat, submission, forced = path == "/v1/chat/completions", allowed.submission, allowed.forced
        if stream:
            out, answer = SeveralOut(context, chat=chat), None
            for place, run in enumerate(runs):
                out.begin(run, is_last=place == len(runs) - 1)
                send = sender(run.body, path)
                answer = await self._calls.stream(context, submission, send, out, forced=forced)
                if out.has_failed:
                    break
            assert answer is not None
            return answer
        answers: list[tuple[Run, Fields]] = []
        for run in runs:
            send = sender(run.body, path, is_streamed=True)
            make = partial(Assembly, chat=chat, sums=True)
            told = await self._calls.collect(context, submission, send, make, forced=forced)
            if isinstance(told, Fallback):
                return json_response(fallen_back(told, context.id, chat=chat), context.lines())
            answers.append((run, told.fields()))
        return json_response(merged(answers), context.lines())

    def _pass_on(self, context: RequestContext, whole: Whole) -> Answer:
        body = whole.body if whole.assembled is None else _encode(whole.assembled)
        return Response(body, {"Content-Type": whole.content_type}, lines=context.lines())

    # ------------------------------------------------------------------ models

    async def models(self, context: RequestContext) -> Response:
        """GET /v1/models, for OpenAI's clients and for Anthropic's, who have it at the same address."""
        if is_anthropic(context):
            return await self._anthropic.listed(context)
        models = self._services.driver.catalog.offered
        await self._services.files.refresh()
        names, listed = list(models), await self._services.shares.each(models.values(), self._describe)
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        return json_response({"object": "list", "data": listed, "has_more": False, **ends}, context.lines())

    async def model(self, context: RequestContext) -> Response:
        """GET /v1/models/{id}."""
        if is_anthropic(context):
            return await self._anthropic.one(context)
        model = self._services.driver.catalog.model_called(context.request.match["id"])
        return json_response(await self._describe(model), context.lines())

    async def _describe(self, model: Model) -> dict[str, object]:
        status = self._services.driver.model_status(model.name)
        return {
            "id": model.name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "watchbill",
            "type": "model",
            "display_name": model.name,
            "created_at": self._created_at,
            "status": {"value": _STATES.get(status, "unloaded")},
            "meta": {
                "n_ctx": (await self._services.files.facts(model)).context(model),
                "continues": self._services.driver.continues(model.name),
            },
            "aliases": list(model.aliases),
            "capabilities": (await self._services.abilities.of(model)).listed(),
        }
