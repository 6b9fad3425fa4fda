"""LM Studio's API, at /api/v0: its list of models, and OpenAI's answers with the figures that it adds to whole ones."""

import time
from collections.abc import Awaitable, Callable

import msgspec

from watchbill import __version__
from watchbill.catalog import Model
from watchbill.gateway.answers import json_response
from watchbill.gateway.dialects.ollama.models import quantization_of
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.modelfiles import Facts
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services

__all__ = ["LmStudioApi"]

Fields = dict[str, object]
#: Why an answer ended, in LM Studio's words.
_STOPS = {
    "stop": "eosFound", "length": "maxPredictedTokensReached", "tool_calls": "toolCalls", "function_call": "toolCalls",
}  # fmt: skip


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Told(msgspec.Struct):
    """What the figures of an answer are made of."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None


_decode_told = msgspec.json.Decoder(_Told).decode
_decode_outline = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class LmStudioApi:
    """Serves /api/v0."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def models(self, context: RequestContext) -> Response:
        """GET /api/v0/models."""
        models = self._services.driver.catalog.offered.values()
        await self._services.files.refresh()
        listed = await self._services.shares.each(models, self._describe)
        return json_response({"object": "list", "data": listed}, context.lines())

    async def model(self, context: RequestContext) -> Response:
        """GET /api/v0/models/{id}."""
        model = self._services.driver.catalog.model_called(context.request.match["id"])
        return json_response(await self._describe(model), context.lines())

    def with_figures(
        self, handler: Callable[[RequestContext], Awaitable[Answer]]
    ) -> Callable[[RequestContext], Awaitable[Answer]]:
        """A handler of OpenAI's whose whole answers also have `stats`, `model_info` and `runtime`."""

        async def handle(context: RequestContext) -> Answer:
            answer = await handler(context)
            if isinstance(answer, Response) and answer.status == 200:
                answer.body = await self._with_figures(context, answer.body)
            return answer

        return handle

    async def _with_figures(self, context: RequestContext, body: bytes) -> bytes:
        try:
            told, outline = _decode_told(body), _decode_outline(body)
        except msgspec.DecodeError:  # an engine's own shape is passed on as it is
            return body
        return msgspec.json.encode(
            {
                **outline,
                "stats": _stats(context, told),
                "model_info": await self._model_info(context.model),
                "runtime": {"name": "watchbill", "version": __version__, "supported_formats": ["gguf"]},
            }
        )

    async def _model_info(self, name: str) -> Fields:
        model = self._services.driver.catalog.find_model(name)
        if model is None:  # it was taken out of the config meanwhile
            return {}
        facts = await self._services.files.facts(model)
        return {
            "arch": _architecture(facts),
            "quant": quantization_of(facts),
            "format": "gguf",
            "context_length": facts.context(model),
        }

    async def _describe(self, model: Model) -> Fields:
        services = self._services
        facts, able = await services.files.facts(model), await services.abilities.of(model)
        kind = "embeddings" if able.completion is False else "vlm" if able.vision else "llm"
        is_loaded = services.driver.resident(model.name) is not None
        return {
            "id": model.name,
            "object": "model",
            "type": kind,
            "publisher": "watchbill",
            "arch": _architecture(facts),
            "compatibility_type": "gguf",
            "quantization": quantization_of(facts),
            "state": "loaded" if is_loaded else "not-loaded",
            "max_context_length": facts.context(model),
            "capabilities": ["tool_use"] if able.tools else [],
        }


def _architecture(facts: Facts) -> str:
    return facts.header.architecture if facts.header else str(facts.details.get("family", ""))


def _stats(context: RequestContext, told: _Told) -> Fields:
    """From the moment at which the request had its turn; the time before it is in X-Watchbill-Wait-Ms."""
    ticket, now = context.ticket, time.monotonic_ns() // 1_000_000
    started = now if ticket is None or ticket.started_at is None else ticket.started_at
    first = now if ticket is None or ticket.first_at is None else max(ticket.first_at, started)
    made = told.usage.completion_tokens if told.usage else 0
    ended = next((each.finish_reason for each in told.choices if each.finish_reason), "stop")
    return {
        "tokens_per_second": round(made * 1000 / (now - first), 3) if now > first else 0.0,
        "time_to_first_token": (first - started) / 1000,
        "generation_time": (now - first) / 1000,
        "stop_reason": _STOPS.get(ended, ended),
    }
