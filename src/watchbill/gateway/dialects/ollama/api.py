"""Ollama's API: apps that look for Ollama find Watchbill and its models.

Engines generate through their OpenAI API, and their answers are translated; an Ollama behind Watchbill is asked in
Ollama's dialect, and its answers pass unchanged. Streams are the default. `keep_alive: 0` unloads the model when no
other caller uses it; every other `keep_alive` is a hint to the scheduler. What only Ollama itself can do (pull, create,
copy, push, delete) is forwarded to one that the config names, for callers with admin rights.
"""

from typing import TYPE_CHECKING, cast

import msgspec

from watchbill.catalog import Model
from watchbill.engines.upstream import Outgoing
from watchbill.errors import ModelNotFound, RequestError, TheirsError
from watchbill.gateway.answers import json_response
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender, encode
from watchbill.gateway.dialects.ollama import request, response
from watchbill.gateway.dialects.ollama.models import list_item, loaded_item, shown
from watchbill.gateway.dialects.ollama.response import Passed, Telling, Translated, Translation
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender
from watchbill.gateway.options import split_alias
from watchbill.gateway.relay import Collector
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.stream import Out
from watchbill.gateway.unloading import Kept
from watchbill.gateway.vectors import write_vectors
from watchbill.gateway.wire import line
from watchbill.runtime.ticket import Start, Submission

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["OllamaApi"]

#: The version of Ollama whose API this is; apps compare it before they use a feature.
API_VERSION = "0.12.6"
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_FOR_BROWSERS = (
    "Watchbill is running.\n\nModels: /v1/models\nStatus: /wb/v1/status\nFor Ollama's apps: /api/tags\n"
)


class OllamaApi:
    """Serves / and /api."""

    def __init__(self, gateway: "Services") -> None:
        self._gateway = gateway
        self._calls = ModelCalls(gateway)

    # ------------------------------------------------------------------ what there is

    async def root(self, context: RequestContext) -> Response:
        """GET / and HEAD /: apps look for these very words."""
        is_browser = "text/html" in context.request.headers.get("accept", "")
        text = _FOR_BROWSERS if is_browser else "Ollama is running"
        return Response(text.encode(), {"Content-Type": _TEXT}, lines=context.lines())

    async def version(self, context: RequestContext) -> Response:
        """GET /api/version."""
        return json_response({"version": API_VERSION}, context.lines(), content_type=_JSON)

    async def tags(self, context: RequestContext) -> Response:
        """GET /api/tags: every model."""
        models = self._gateway.driver.catalog.offered.values()
        listed = await self._gateway.shares.each(models, self._list_item)
        return json_response({"models": listed}, context.lines(), content_type=_JSON)

    async def _list_item(self, model: Model) -> Fields:
        return list_item(model, await self._gateway.files.facts(model), await self._capabilities(model))

    async def ps(self, context: RequestContext) -> Response:
        """GET /api/ps: what is in memory."""
        models = self._gateway.driver.catalog.offered.values()
        listed = await self._gateway.shares.each(models, self._loaded_item)
        return json_response(
            {"models": [item for item in listed if item is not None]}, context.lines(), content_type=_JSON
        )

    async def _loaded_item(self, model: Model) -> Fields | None:
        resident = self._gateway.driver.resident(model.name)
        return resident and loaded_item(model, await self._gateway.files.facts(model), resident)

    async def show(self, context: RequestContext) -> Response:
        """POST /api/show: one model in detail."""
        body = await self._body(context)
        body.setdefault("model", body.get("name"))
        model = self._find(body)
        facts, can = await self._gateway.files.facts(model), await self._capabilities(model)
        return json_response(shown(model, facts, can), context.lines(), content_type=_JSON)

    async def _capabilities(self, model: Model) -> list[str]:
        return (await self._gateway.abilities.of(model)).listed()

    # ------------------------------------------------------------------ generation

    async def generate(self, context: RequestContext) -> Answer:
        """POST /api/generate."""
        return await self._answer(context, "/api/generate", chat=False)

    async def chat(self, context: RequestContext) -> Answer:
        """POST /api/chat."""
        return await self._answer(context, "/api/chat", chat=True)

    async def _answer(self, context: RequestContext, path: str, *, chat: bool) -> Answer:
        body = await self._body(context)
        model = self._find(body)
        request.check(body)
        telling = Telling(str(body["model"]), chat, thoughts=body.get("think") is not False)
        submission = self._gateway.caller_options.submission(context, body, self._gateway.driver.catalog)
        leaves = submission.keep_alive_ms == 0
        if request.is_load_only(body, chat=chat):
            return await self._load_only(context, submission, telling, model, leaves=leaves)
        said = body.get("messages") if chat else [{"images": body.get("images")}]
        submission = await self._gateway.abilities.check(submission, "completion", said)
        asking = _Asking(self._gateway, path, body, telling)
        if body.get("stream") is False:
            return await self._collect(context, submission, asking)
        return await self._calls.stream(context, submission, asking.send, LinesOut(context, asking))

    async def _collect(self, context: RequestContext, submission: Submission, asking: "_Asking") -> Answer:
        answer = await self._calls.collect(context, submission, asking.send, asking.collector)
        if isinstance(answer, Fallback):
            told = response.fallen_back(answer, asking.telling)
        elif asking.passes:
            told = response.renamed(answer.fields(), asking.telling)
        else:
            told = response.whole(answer.fields(), asking.telling)
        return json_response(told, context.lines(), content_type=_JSON)

    async def _load_only(
        self, context: RequestContext, submission: Submission, telling: Telling, model: Model, *, leaves: bool
    ) -> Response:
        """An empty prompt loads the model, or with `keep_alive: 0` unloads it, unless it stays (RES-02)."""
        stays: Kept | None = None
        if leaves:
            stays = self._gateway.unloading.begin(model, context.key)
        else:
            await self._calls.load(context, submission)
        told = telling.object("", done=True) | {
            "done_reason": "unload" if leaves and stays is None else "load"
        }
        if stays is not None:
            told |= {"watchbill": {"stays": stays.value}}
        return json_response(told, context.lines(), content_type=_JSON)

    # ------------------------------------------------------------------ embeddings

    async def embed(self, context: RequestContext) -> Response:
        """POST /api/embed: a vector for each text."""
        body = await self._body(context)
        telling = Telling(str(body.get("model")), chat=False)
        given = body.get("input", "")
        texts = cast("list[object]", given) if isinstance(given, list) else [given] if given else []
        if not all(isinstance(text, str) for text in texts):
            raise RequestError("input must be a text or a list of texts")
        vectors, usage = await self._embed(context, body, texts, telling)
        durations = telling.durations(usage, None)
        kept = {name: durations[name] for name in ("total_duration", "load_duration", "prompt_eval_count")}
        told = await write_vectors({"model": telling.model, **kept}, vectors)
        self._gateway.bodies.note_freed(len(told))  # the vectors by themselves
        return Response(told, {"Content-Type": _JSON}, lines=context.lines())

    async def embeddings(self, context: RequestContext) -> Response:
        """POST /api/embeddings, the older form: one text, one vector."""
        body = await self._body(context)
        prompt = body.get("prompt") or ""
        if not isinstance(prompt, str):
            raise RequestError("prompt must be a text")
        telling = Telling(str(body.get("model")), chat=False)
        vectors, _ = await self._embed(context, body, [prompt] if prompt else [], telling)
        vector = msgspec.Raw(vectors[0] if vectors else b"[]")
        return json_response({"embedding": vector}, context.lines(), content_type=_JSON)

    async def _embed(
        self, context: RequestContext, body: Fields, texts: list[object], telling: Telling
    ) -> tuple[list[bytes], Fields]:
        model = self._find(body)
        request.check(body)
        submission = self._gateway.caller_options.submission(context, body, self._gateway.driver.catalog)
        vectors: list[bytes] = []
        usage: Fields = {}
        submission = await self._gateway.abilities.check(submission, "embedding")
        if texts:
            asked: Fields = {"model": body["model"], "input": texts}
            if body.get("dimensions") is not None:
                asked["dimensions"] = body["dimensions"]
            whole = await self._calls.fetch(context, submission, JsonSender(asked, "/v1/embeddings"))
            found = await self._gateway.shares.do(whole.vectors())
            vectors, usage = found.embeddings, found.usage
        elif submission.keep_alive_ms == 0:
            self._gateway.unloading.begin(model, context.key)
        else:
            await self._calls.load(context, submission)
        if context.start is not None:
            telling.load_ms = context.start.load_ms
        return vectors, usage

    # ------------------------------------------------------------------ reading

    async def _body(self, context: RequestContext) -> Fields:
        return await self._gateway.bodies.read_object(context)

    def _find(self, body: Fields) -> Model:
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise RequestError("model is required")
        catalog = self._gateway.driver.catalog
        model = catalog.find_model(split_alias(name, catalog)[0])
        if model is None:
            raise ModelNotFound(f'model "{name[:200]}" not found, try pulling it first')
        return model


class _Asking:
    """One request on its way: in OpenAI's words, or in Ollama's own to an Ollama."""

    def __init__(self, gateway: "Services", path: str, body: Fields, telling: Telling) -> None:
        self._catalog = gateway.driver.catalog
        self._path = path
        self._body = body
        self.telling = telling
        self.passes = False  # whether the engine speaks Ollama's own words
        self.chat = telling.chat or not (body.get("raw") or body.get("suffix"))
        if self.chat:
            self._send = JsonSender(request.as_chat(body), "/v1/chat/completions")
        else:
            self._send = JsonSender(request.as_completion(body), "/v1/completions")

    @property
    def send(self) -> Sender:
        """What the relay asks when the turn has come."""
        return self._choose

    def translation(self) -> Translation:
        """How this engine's stream becomes lines."""
        return Passed(self.telling) if self.passes else Translated(self.telling)

    def collector(self) -> Collector:
        """How this engine's stream becomes one answer; asked for when its first piece is there."""
        self.telling.mark_first()
        return Assembly(chat=self.chat)

    def _choose(self, start: Start) -> Outgoing:
        self.telling.load_ms = start.load_ms
        self.telling.mark_sent()
        model = self._catalog.models.get(start.model)
        rules = self._catalog.engines.get(model.engine) if model else None
        self.passes = rules is not None and rules.driver == "ollama"
        if not self.passes:
            return self._send(start)
        body = request.for_ollama(self._body, stream=self._body.get("stream") is not False)
        body["model"] = start.endpoint.upstream_model or body["model"]
        return Outgoing(start.endpoint, "POST", self._path, encode(body))


class LinesOut(Out):
    """Ollama's lines. There is no legal sign of life among them: the headers, sent early, are one."""

    content_type = "application/x-ndjson"

    def __init__(self, context: RequestContext, asking: _Asking) -> None:
        super().__init__(context)
        self._asking = asking
        self._translation: Translation | None = None

    async def write(self, piece: bytes) -> None:
        if self._translation is None:
            self._translation = self._asking.translation()
        await self.send(self._translation.feed(piece))

    async def flush(self) -> None:
        if self._translation is not None:
            await self.send(self._translation.end())

    async def fail(self, error: TheirsError) -> None:
        await self.send(response.error_line(error))

    async def fall_back(self, fallback: Fallback) -> None:
        await self.send(line(response.fallen_back(fallback, self._asking.telling)))

    def has_ended(self, tail: bytes) -> bool:
        return self._translation is not None and self._translation.is_done

    def takes(self, status: int, content_type: str) -> bool:
        return status == 200 and self._asking.passes and content_type == "application/x-ndjson"
