"""LM Studio's list of models, at /api/v0; its chats, completions and embeddings are OpenAI's."""

from watchbill.catalog import Model
from watchbill.gateway.answers import json_response
from watchbill.gateway.dialects.ollama.models import quantization_of
from watchbill.gateway.http.messages import Response
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services

__all__ = ["LmStudioApi"]

Fields = dict[str, object]


class LmStudioApi:
    """Serves /api/v0/models."""

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
            "arch": facts.header.architecture if facts.header else str(facts.details.get("family", "")),
            "compatibility_type": "gguf",
            "quantization": quantization_of(facts),
            "state": "loaded" if is_loaded else "not-loaded",
            "max_context_length": facts.context(model),
            "capabilities": ["tool_use"] if able.tools else [],
        }
