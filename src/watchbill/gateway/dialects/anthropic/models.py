"""Anthropic's list of models: the same models as OpenAI's at the same address, in pages and with Anthropic's words."""

from typing import TYPE_CHECKING

from watchbill.catalog import Model
from watchbill.gateway.abilities import Able
from watchbill.gateway.answers import json_response
from watchbill.gateway.dialects.anthropic.errors import lines
from watchbill.gateway.dialects.batches.pages import page_between, read_limit
from watchbill.gateway.http.messages import Response
from watchbill.gateway.request_context import RequestContext

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["AnthropicModels"]

Fields = dict[str, object]

_PAGE, _PAGE_MAX = 20, 1_000


class AnthropicModels:
    """Serves /v1/models to Anthropic's clients."""

    def __init__(self, services: "Services", created_at: str) -> None:
        self._services = services
        self._created_at = created_at

    async def listed(self, context: RequestContext) -> Response:
        """GET /v1/models."""
        query, models = context.request.query, list(self._services.driver.catalog.offered.values())
        page, ends = page_between(
            models, lambda model: model.name, query, read_limit(query, _PAGE, _PAGE_MAX)
        )
        await self._services.files.refresh()
        told = await self._services.shares.each(page, self._describe)
        return json_response({"data": told, **ends}, lines(context))

    async def one(self, context: RequestContext) -> Response:
        """GET /v1/models/{id}."""
        model = self._services.driver.catalog.model_called(context.request.match["id"])
        return json_response(await self._describe(model), lines(context))

    async def _describe(self, model: Model) -> Fields:
        services = self._services
        tokens = (await services.files.facts(model)).context(model)
        return {
            "id": model.name,
            "type": "model",
            "display_name": model.name,
            "created_at": self._created_at,
            "lifecycle": "active",
            "line": None,
            "deprecated_at": None,
            "retires_at": None,
            "max_input_tokens": tokens,
            "max_tokens": tokens,
            "capabilities": _capabilities(await services.abilities.of(model)),
        }


def _capabilities(able: Able) -> Fields:
    """What is surely there."""
    thinks, speaks = able.thinking is True, able.completion is True
    levels = dict.fromkeys(("low", "medium", "high", "xhigh", "max"), _supported(is_there=thinks))
    kinds = dict.fromkeys(("enabled", "adaptive", "between_tools"), _supported(is_there=speaks))
    return {
        "batch": _supported(is_there=speaks),
        "citations": _supported(),
        "code_execution": _supported(),
        "context_management": {
            **_supported(),
            "clear_thinking_20251015": None,
            "clear_tool_uses_20250919": None,
            "compact_20260112": None,
        },
        "effort": {**_supported(is_there=thinks), **levels},
        "image_input": _supported(is_there=able.vision is True),
        "pdf_input": _supported(),
        "server_tools": {**_supported(), "code_execution": _supported(), "web_search": _supported()},
        "structured_outputs": _supported(is_there=able.is_llamacpp),
        "thinking": {
            **_supported(is_there=thinks),
            "types": {**kinds, "disabled": _supported(is_there=speaks)},
        },
    }


def _supported(*, is_there: bool = False) -> Fields:
    return {"supported": is_there}
