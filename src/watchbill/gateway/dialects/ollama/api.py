"""Ollama's API: apps that look for Ollama find Watchbill and its models.

Engines generate through their OpenAI API, and their answers are translated; an Ollama behind Watchbill is asked in
Ollama's dialect, and its answers pass unchanged. Streams are the default. `keep_alive: 0` unloads the model when no
other caller uses it; every other `keep_alive` is a hint to the scheduler. A chat that is too long loses its oldest
turns, a text to embed its end, unless the client forbids it. What changes models is in `library`.
"""

from typing import cast

import msgspec

from watchbill.catalog import Model
from watchbill.engines.statuses import Said
from watchbill.engines.upstream import Outgoing
from watchbill.errors import ModelNotFound, NotOffered, RequestError, TheirsError
from watchbill.gateway.answers import EngineRefused, json_response
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender, encode
from watchbill.gateway.dialects.ollama import request, response
from watchbill.gateway.dialects.ollama.context import read_context
from watchbill.gateway.dialects.ollama.models import list_item, loaded_item, shown
from watchbill.gateway.dialects.ollama.names import Found, asked_name, find
from watchbill.gateway.dialects.ollama.response import (
    InfillCollector,
    InfillReader,
    Passed,
    Telling,
    Translated,
    Translation,
)
from watchbill.gateway.dialects.ollama.shortening import Shortening, shorter_texts
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import CONTEXT_TEXT_BYTES_MAX, SHORTENINGS_MAX
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender
from watchbill.gateway.relay import Collector
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.stream import Out
from watchbill.gateway.unloading import Kept
from watchbill.gateway.vectors import Vectors, cut_vectors, write_vectors
from watchbill.gateway.wire import line
from watchbill.runtime.ticket import Start, Submission

__all__ = ["OllamaApi"]

#: The version of Ollama whose API this is; apps compare it before they use a feature.
API_VERSION = "0.32.0"
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


class OllamaApi:
    """Serves / and /api."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = ModelCalls(services)

    # ------------------------------------------------------------------ what there is

    async def root(self, context: RequestContext) -> Response:
        """GET / and HEAD / of a program: apps look for these very words."""
        return Response(b"Ollama is running", {"Content-Type": _TEXT}, lines=context.lines())

    async def version(self, context: RequestContext) -> Response:
        """GET /api/version."""
        return json_response({"version": API_VERSION}, context.lines(), content_type=_JSON)

    async def status(self, context: RequestContext) -> Response:
        """GET /api/status: whether models run at ollama.com; here never."""
        told = {"cloud": {"disabled": True, "source": "none"}}
        return json_response(told, context.lines(), content_type=_JSON)

    async def tags(self, context: RequestContext) -> Response:
        """GET /api/tags: every model, under the names of the config and of the library."""
        catalog, library = self._services.driver.catalog, self._services.library
        listed = [Found(model, library and library.find(name)) for name, model in catalog.offered.items()]
        for entry in library.entries() if library is not None else ():
            model = catalog.find_model(entry.name)
            if model is not None and model.name != entry.name:
                listed.append(Found(model, entry))
        await self._services.files.refresh()
        told = await self._services.shares.each(listed, self._list_item)
        return json_response({"models": told}, context.lines(), content_type=_JSON)

    async def _list_item(self, found: Found) -> Fields:
        model, entry = found
        facts, can = await self._services.files.facts(model), await self._capabilities(model)
        return list_item(model.name if entry is None else entry.name, model, facts, can, entry)

    async def ps(self, context: RequestContext) -> Response:
        """GET /api/ps: what is in memory."""
        models = self._services.driver.catalog.offered.values()
        await self._services.files.refresh()
        listed = await self._services.shares.each(models, self._loaded_item)
        return json_response(
            {"models": [item for item in listed if item is not None]}, context.lines(), content_type=_JSON
        )

    async def _loaded_item(self, model: Model) -> Fields | None:
        resident = self._services.driver.resident(model.name)
        return resident and loaded_item(model, await self._services.files.facts(model), resident)

    async def show(self, context: RequestContext) -> Response:
        """POST /api/show: one model in detail."""
        body = await self._body(context)
        name = asked_name(body)
        if not name:
            raise RequestError("model is required")
        model, entry = find(self._services, name)
        services = self._services
        theirs = await services.ollama_lists.shown(
            model, services.driver.catalog, verbose=body.get("verbose") is True
        )
        facts, can = await services.files.facts(model), await self._capabilities(model)
        told = shown(model.name if entry is None else entry.name, model, facts, can, entry, theirs=theirs)
        return json_response(told, context.lines(), content_type=_JSON)

    async def _capabilities(self, model: Model) -> list[str]:
        return (await self._services.abilities.of(model)).listed()

    # ------------------------------------------------------------------ generation

    async def generate(self, context: RequestContext) -> Answer:
        """POST /api/generate."""
        return await self._answer(context, "/api/generate", chat=False)

    async def chat(self, context: RequestContext) -> Answer:
        """POST /api/chat."""
        return await self._answer(context, "/api/chat", chat=True)

    async def _answer(self, context: RequestContext, path: str, *, chat: bool) -> Answer:
        services, body = self._services, await self._body(context)
        model, entry = self._find(context, body, is_required=chat)
        request.check(body, is_native=_is_ollama(services, model))
        if context.lifted is not None:
            await services.shares.do(request.check_lifted_images(body, context.lifted))
        body = request.dressed(body, entry, chat=chat)
        telling = Telling(str(body["model"]), chat, thoughts=body.get("think") is not False)
        submission = self._submission(context, body, model)
        leaves = submission.keep_alive_ms == 0
        if request.is_load_only(body, chat=chat):
            return await self._load_only(context, submission, telling, model, leaves=leaves)
        submission = await self._allow(submission, body, model, chat=chat)
        telling.turns = (
            None
            if chat or body.get("raw") or body.get("suffix")
            else _turns(body, model, services, context.lifted)
        )
        telling.note = await self._not_as_asked(body, model)
        is_cut = chat and body.get("truncate") is not False
        shortening = Shortening(body, context.lifted) if is_cut else None
        while True:
            asking = _Asking(services, path, body, telling, model)
            try:
                services.abilities.check_room(submission, body, context.held, context.lifted)
                return await self._ask(context, submission, asking)
            except EngineRefused as error:
                if body.get("suffix") and error.said is Said.LACKS:
                    raise RequestError(f'"{telling.model}" does not support insert') from None
                shorter = None if shortening is None else shortening.shorter(error)
                if shorter is None:
                    raise
                body = shorter

    async def _ask(self, context: RequestContext, submission: Submission, asking: "_Asking") -> Answer:
        if asking.is_whole:
            return await self._collect(context, submission, asking)
        return await self._calls.stream(context, submission, asking.send, LinesOut(context, asking))

    async def _allow(self, submission: Submission, body: Fields, model: Model, *, chat: bool) -> Submission:
        """Raises RequestError for what the model surely cannot do."""
        said = body.get("messages") if chat else [{"images": body.get("images")}]
        submission = await self._services.abilities.check(submission, "completion", said)
        able = await self._services.abilities.of(model)
        for ability, is_asked, is_able in (
            ("tools", bool(body.get("tools")), able.tools),
            ("thinking", bool(body.get("think")), able.thinking),
            ("insert", bool(body.get("suffix")), able.insert),
        ):
            if is_asked and is_able is False:
                raise RequestError(f'"{body["model"]}" does not support {ability}')
        return submission

    async def _not_as_asked(self, body: Fields, model: Model) -> Fields:
        """What the answer's last object says of a larger context than there is."""
        asked = request.options_of(body).get("num_ctx")
        if not isinstance(asked, int | float):
            return {}
        context = (await self._services.files.facts(model)).context(model)
        return {"num_ctx": context} if asked > context else {}

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
            stays = self._services.unloading.begin(model, context.key)
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
        given = body.get("input") or ""
        texts = cast("list[object]", given) if isinstance(given, list) else [given] if given else []
        if not all(isinstance(text, str) for text in texts):
            raise RequestError("input must be a text or a list of texts")
        model, _ = self._find(context, body, is_required=False)
        vectors, usage = await self._embed(context, body, cast("list[str]", texts), telling, model)
        durations = telling.durations(usage, None)
        kept = {name: durations[name] for name in ("total_duration", "load_duration", "prompt_eval_count")}
        told = await write_vectors({"model": telling.model, **kept}, vectors)
        self._services.bodies.note_freed(len(told))  # the vectors by themselves
        return Response(told, {"Content-Type": _JSON}, lines=context.lines())

    async def embeddings(self, context: RequestContext) -> Response:
        """POST /api/embeddings, the older form: one text, one vector."""
        body = await self._body(context)
        prompt = body.get("prompt") or ""
        if not isinstance(prompt, str):
            raise RequestError("prompt must be a text")
        telling = Telling(str(body.get("model")), chat=False)
        model, _ = self._find(context, body, is_required=True)
        vectors, _ = await self._embed(context, body, [prompt] if prompt else [], telling, model)
        vector = msgspec.Raw(vectors[0] if vectors else b"[]")
        return json_response({"embedding": vector}, context.lines(), content_type=_JSON)

    async def _embed(
        self, context: RequestContext, body: Fields, texts: list[str], telling: Telling, model: Model
    ) -> tuple[list[bytes], Fields]:
        request.check(body, is_native=True)
        dimensions = body.get("dimensions")
        if not isinstance(dimensions, int | None) or isinstance(dimensions, bool):
            raise RequestError("dimensions must be a whole number")
        submission = self._submission(context, body, model)
        if (await self._services.abilities.of(model)).embedding is False:
            raise NotOffered(
                f"{model.name} makes no embeddings; ask a model that lists embedding at /api/tags"
            )
        vectors: list[bytes] = []
        usage: Fields = {}
        if texts:
            found = await self._vectors(context, submission, texts, cuts=body.get("truncate") is not False)
            vectors, usage = found.embeddings, found.usage
            if dimensions is not None and dimensions > 0:
                vectors = await self._services.shares.do(cut_vectors(vectors, dimensions))
        elif submission.keep_alive_ms == 0:
            self._services.unloading.begin(model, context.key)
        else:
            await self._calls.load(context, submission)
        if context.start is not None:
            telling.load_ms = context.start.load_ms
        return vectors, usage

    async def _vectors(
        self, context: RequestContext, submission: Submission, texts: list[str], *, cuts: bool
    ) -> Vectors:
        """The engine's vectors. A text that is longer than the model takes is cut, unless that is forbidden."""
        for _ in range(SHORTENINGS_MAX):
            asked: Fields = {"model": submission.model, "input": texts}
            try:
                self._services.abilities.check_room(submission, asked, context.held, context.lifted)
                whole = await self._calls.fetch(context, submission, JsonSender(asked, "/v1/embeddings"))
                return await self._services.shares.do(whole.vectors())
            except EngineRefused as error:
                if not cuts or error.too_long is None:
                    raise
                texts = shorter_texts(texts, error.too_long, context.lifted)
        raise RequestError("a text to embed is longer than the model takes, and could not be cut")

    # ------------------------------------------------------------------ reading

    async def _body(self, context: RequestContext) -> Fields:
        return await self._services.bodies.read_object(context)

    def _find(self, context: RequestContext, body: Fields, *, is_required: bool) -> Found:
        """The model of a request. Ollama says in two ways that none is named; clients know both."""
        name = body.get("model")
        if not isinstance(name, str | None):
            raise RequestError("model must be a text")
        if not name and (assumed := context.request.door.model):
            name = body["model"] = assumed
        if not name:
            raise RequestError("model is required") if is_required else ModelNotFound("model '' not found")
        return find(self._services, name)

    def _submission(self, context: RequestContext, body: Fields, model: Model) -> Submission:
        """The submission of a request, for the model itself: the name may be one that only this door knows."""
        catalog = self._services.driver.catalog
        submission = self._services.caller_options.submission(context, body, catalog)
        return msgspec.structs.replace(submission, model=model.name)


def _is_ollama(services: Services, model: Model) -> bool:
    return services.driver.catalog.engines[model.engine].driver == "ollama"


def _turns(
    body: Fields, model: Model, services: Services, lifted: Lifted | None
) -> list[tuple[str, str]] | None:
    """The conversation so far, which the answer hands back; None where an Ollama keeps it, or it is too long."""
    if _is_ollama(services, model):
        return None
    turns = read_context(body.get("context"))
    system = body.get("system")
    if isinstance(system, str) and system:
        turns = [("system", system), *(turn for turn in turns if turn[0] != "system")]
    turns = [*turns, ("user", str(body.get("prompt") or ""))]
    if lifted is None:
        return turns
    kept: list[tuple[str, str]] = []
    for turn in turns:  # of one that is too long nothing is kept, nor of those before it
        found = lifted.restore(turn, CONTEXT_TEXT_BYTES_MAX)
        kept = [] if found is turn else [*kept, (turn[0], str(cast("list[object]", found)[1]))]
    return kept


class _Asking:
    """One request on its way: in OpenAI's words, in llama.cpp's for a text to fill in, or in Ollama's own."""

    def __init__(self, services: Services, path: str, body: Fields, telling: Telling, model: Model) -> None:
        self._catalog = services.driver.catalog
        self._path = path
        self._body = body
        self.telling = telling
        self.is_whole = body.get("stream") is False  # the client wants one object
        self.passes = False  # whether the engine speaks Ollama's own words
        self.chat = telling.chat or not (body.get("raw") or body.get("suffix"))
        is_llamacpp = self._catalog.engines[model.engine].driver == "llamacpp"
        self._fills_in = bool(body.get("suffix")) and not self.chat and is_llamacpp
        self._send = None if _is_ollama(services, model) else self._sender()

    def _sender(self) -> JsonSender:
        """The request in an engine's words. Raises RequestError for what cannot be put into them."""
        if self.chat:
            return JsonSender(request.as_chat(self._body), "/v1/chat/completions")
        if self._fills_in:
            return JsonSender(request.as_infill(self._body), "/infill")
        return JsonSender(request.as_completion(self._body), "/v1/completions")

    @property
    def send(self) -> Sender:
        """What the relay asks when the turn has come."""
        return self._choose

    def translation(self) -> Translation:
        """How this engine's stream becomes lines."""
        if self.passes:
            return Passed(self.telling)
        return Translated(self.telling, InfillReader() if self._fills_in else None)

    def collector(self) -> Collector:
        """How this engine's stream becomes one answer; asked for when its first piece is there."""
        self.telling.mark_first()
        return InfillCollector() if self._fills_in else Assembly(chat=self.chat)

    def _choose(self, start: Start) -> Outgoing:
        self.telling.load_ms = start.load_ms
        self.telling.mark_sent()
        model = self._catalog.models.get(start.model)
        rules = self._catalog.engines.get(model.engine) if model else None
        self.passes = rules is not None and rules.driver == "ollama"
        if model is None or not self.passes:
            self._send = self._send or self._sender()
            return self._send(start)
        body = request.for_ollama(self._body, stream=not self.is_whole)
        body["model"] = start.endpoint.upstream_model or model.source or model.name
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
        await self.send_each(self._translation.feed(piece))

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
