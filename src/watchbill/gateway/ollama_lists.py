"""What an Ollama behind us says of its own models: sizes, details, abilities, context.

Its lists are asked for at most every few seconds and waited for briefly. Asking for them loads nothing and resets no
timer of Ollama. One that does not answer tells nothing, and the catalog answers alone.
"""

import time
from typing import cast

import msgspec

from watchbill.catalog import Catalog, Model
from watchbill.decodable import is_decodable, json_decoder
from watchbill.engines.base import Endpoint, endpoint_of
from watchbill.engines.limits import OLLAMA_ANSWER_BYTES_MAX
from watchbill.engines.ollama import DEFAULT_URL
from watchbill.engines.ollama_api import full_name
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.gateway.limits import OLLAMA_LIST_MS, OLLAMA_LISTED_MS
from watchbill.limits import JSON_VALUES_MAX

__all__ = ["OllamaLists", "ollama_endpoint"]

Fields = dict[str, object]

_TAGS, _PS, _SHOW = "/api/tags", "/api/ps", "/api/show"
_decode = json_decoder(Fields).decode


def ollama_endpoint(catalog: Catalog, engine: str | None = None) -> Endpoint | None:
    """The address of an engine that is an Ollama, or of the first one; None where there is none."""
    for rules in catalog.engines.values():
        if rules.driver == "ollama" and engine in (None, rules.name):
            return endpoint_of(rules.url or DEFAULT_URL)
    return None


class OllamaLists:
    """The lists of every Ollama of the config."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._lists: dict[tuple[str, str], tuple[float, dict[str, Fields]]] = {}

    async def listed(self, model: Model, catalog: Catalog) -> Fields | None:
        """A model as its Ollama lists it; None where it is no model of an Ollama, or that does not tell."""
        return await self._item(model, catalog, _TAGS)

    async def running(self, model: Model, catalog: Catalog) -> Fields | None:
        """A model as its Ollama lists those in its memory."""
        return await self._item(model, catalog, _PS)

    async def refresh(self, catalog: Catalog) -> None:
        """Asks for the lists of every Ollama, where they are old."""
        for rules in catalog.engines.values():
            endpoint = ollama_endpoint(catalog, rules.name) if rules.driver == "ollama" else None
            for path in (_TAGS, _PS) if endpoint is not None else ():
                await self._list(cast("Endpoint", endpoint), path)

    async def shown(self, model: Model, catalog: Catalog, *, verbose: bool) -> Fields | None:
        """A model in detail."""
        endpoint = self._endpoint(model, catalog)
        if endpoint is None:
            return None
        asked = msgspec.json.encode({"model": model.source, "verbose": verbose})
        return await self._ask(Outgoing(endpoint, "POST", _SHOW, asked))

    @staticmethod
    def _endpoint(model: Model, catalog: Catalog) -> Endpoint | None:
        is_ollama = catalog.engines[model.engine].driver == "ollama" and model.source is not None
        return ollama_endpoint(catalog, model.engine) if is_ollama else None

    async def _item(self, model: Model, catalog: Catalog, path: str) -> Fields | None:
        endpoint = self._endpoint(model, catalog)
        if endpoint is None:
            return None
        return (await self._list(endpoint, path)).get(full_name(str(model.source)))

    async def _list(self, endpoint: Endpoint, path: str) -> dict[str, Fields]:
        key = (f"{endpoint.host}:{endpoint.port}", path)
        known = self._lists.get(key)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        told = await self._ask(Outgoing(endpoint, "GET", path, b""))
        models = None if told is None else told.get("models")
        found = (
            known[1]
            if told is None and known is not None
            else {
                full_name(str(item.get("name"))): item
                for item in cast("list[Fields]", models if isinstance(models, list) else [])
                if isinstance(item, dict)  # pyright: ignore[reportUnnecessaryIsInstance]  another program wrote it
            }
        )
        self._lists[key] = (time.monotonic() + OLLAMA_LISTED_MS / 1000, found)
        return found

    async def _ask(self, outgoing: Outgoing) -> Fields | None:
        try:
            reply = await self._upstream.fetch(
                outgoing, timeout_ms=OLLAMA_LIST_MS, limit_bytes=OLLAMA_ANSWER_BYTES_MAX
            )
        except UpstreamFailed:
            return None
        body = reply.body
        if reply.status != 200 or not is_decodable(body, bytes_max=len(body), values_max=JSON_VALUES_MAX):
            return None
        try:
            return _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
