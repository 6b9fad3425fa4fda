"""The OpenAI door: chat, completions, embeddings, and the list of models.

Engines are always asked to stream chats and completions; for a client that wants a whole answer the pieces are
put together. A client's stream passes unchanged. Our own fields are taken out of a body before an engine sees
it, numbers are checked, everything else goes through.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec
from aiohttp import web

from watchbill.catalog import Model
from watchbill.engines.upstream import Outgoing
from watchbill.errors import EngineFailed, ModelNotFound, RequestError, TheirsError
from watchbill.gateway.answers import json_response
from watchbill.gateway.assemble import Assembly, engine_error
from watchbill.gateway.body import encode, parse_object, read_body
from watchbill.gateway.relay import Relay, StreamOut
from watchbill.gateway.visit import Visit
from watchbill.gateway.wishes import check_ranges
from watchbill.runtime.ticket import Start, Wish

if TYPE_CHECKING:
    from watchbill.gateway.app import Gateway

__all__ = ["OpenAiDoor"]

Sender = Callable[[Start], Outgoing]

#: A model's stage in the words that clients know.
_STATES = {
    "loading": "loading",
    "ready": "loaded",
    "draining": "loaded",
    "failed": "failed",
    "quarantined": "failed",
}


class OpenAiDoor:
    """Serves /v1."""

    def __init__(self, gateway: "Gateway", *, created_s: int) -> None:
        self._gateway = gateway
        self._created_s = created_s

    # ------------------------------------------------------------------ generation

    async def chat(self, visit: Visit) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._generate(visit, "/v1/chat/completions", chat=True)

    async def completions(self, visit: Visit) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._generate(visit, "/v1/completions", chat=False)

    async def embeddings(self, visit: Visit) -> web.StreamResponse:
        """POST /v1/embeddings: a short answer, passed on whole."""
        body, wish = await self._read(visit)
        pieces: list[bytes] = []
        send = _sender(body, "/v1/embeddings")
        with self._gateway.relay(visit, wish, send, streamed=False) as relay:
            await relay.whole(pieces.append, pieces.clear)
            answer = b"".join(pieces)
            return self._pass_on(visit, relay, answer)

    async def _generate(self, visit: Visit, path: str, *, chat: bool) -> web.StreamResponse:
        body, wish = await self._read(visit)
        if body.get("stream") is True:
            return await self._stream(visit, wish, _sender(body, path))
        body["stream"] = True
        options = body.get("stream_options")
        known = cast("dict[str, object]", options) if isinstance(options, dict) else {}
        body["stream_options"] = {**known, "include_usage": True}
        return await self._collect(visit, wish, _sender(body, path), chat=chat)

    async def _collect(self, visit: Visit, wish: Wish, send: Sender, *, chat: bool) -> web.StreamResponse:
        """Puts a whole answer together from the engine's stream."""
        assembly = Assembly(chat=chat)
        plain: list[bytes] = []

        def take(piece: bytes) -> None:
            if relay.is_stream:
                assembly.feed(piece)
            else:
                plain.append(piece)

        def restart() -> None:
            nonlocal assembly
            assembly = Assembly(chat=chat)
            plain.clear()

        with self._gateway.relay(visit, wish, send, streamed=True) as relay:
            await relay.whole(take, restart)
            if plain or relay.status != 200:
                return self._pass_on(visit, relay, b"".join(plain))
            answer = assembly.result()
            relay.finish(ok=True)
            return json_response(answer, visit.headers("application/json"))

    async def _stream(self, visit: Visit, wish: Wish, send: Sender) -> web.StreamResponse:
        """Passes the engine's stream on. After the headers are out, a failure is an event of the stream."""
        out = StreamOut(visit)
        with self._gateway.relay(visit, wish, send, streamed=True) as relay:
            try:
                piece = await relay.first(out)
                if not relay.is_stream:
                    return await self._not_a_stream(visit, relay, out, piece)
                await out.open()
                await relay.stream(out, piece)
                relay.finish(ok=True)
            except TheirsError as error:
                if out.response is None:
                    raise
                relay.finish(ok=False)
                await out.fail(error)
                self._gateway.note_broken(visit, error)
        return await out.end()

    async def _not_a_stream(
        self, visit: Visit, relay: Relay, out: StreamOut, first: bytes
    ) -> web.StreamResponse:
        pieces = [first]
        while piece := await relay.more():
            pieces.append(piece)
        whole = self._pass_on(visit, relay, b"".join(pieces))  # raises for an error, which becomes an event
        if out.response is None:
            return whole
        raise EngineFailed("the engine answered a streamed request without a stream")

    def _pass_on(self, visit: Visit, relay: Relay, answer: bytes) -> web.Response:
        """An engine's whole answer as it is, or its error in our shape."""
        relay.finish(ok=relay.status < 500)
        if relay.status == 200:
            return web.Response(body=answer, headers=visit.headers(relay.content_type or "application/json"))
        if relay.status < 400:
            raise EngineFailed(f"the engine answered {relay.status}; redirects are not followed")
        try:
            said: object = msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = answer.decode("utf-8", "replace")
        raise engine_error(relay.status, said)

    async def _read(self, visit: Visit) -> tuple[dict[str, object], Wish]:
        body = parse_object(await read_body(visit.request, self._gateway.server.body_max))
        check_ranges(body)
        stream = body.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise RequestError("stream must be true or false")
        return body, self._gateway.wish(visit, body)

    # ------------------------------------------------------------------ models

    async def models(self, visit: Visit) -> web.Response:
        """GET /v1/models."""
        stages = self._stages()
        listed = [self._describe(model, stages) for model in self._gateway.driver.catalog.models.values()]
        return json_response({"object": "list", "data": listed}, visit.headers("application/json"))

    async def model(self, visit: Visit) -> web.Response:
        """GET /v1/models/{id}."""
        name = visit.request.match_info["id"] if isinstance(visit.request, web.Request) else ""
        model = self._gateway.driver.catalog.find_model(name)
        if model is None:
            raise ModelNotFound
        return json_response(self._describe(model, self._stages()), visit.headers("application/json"))

    def _stages(self) -> dict[str, dict[str, object]]:
        return cast("dict[str, dict[str, object]]", self._gateway.driver.status().get("models", {}))

    def _describe(self, model: Model, stages: dict[str, dict[str, object]]) -> dict[str, object]:
        stage = stages.get(model.name, {}).get("state", "absent")
        return {
            "id": model.name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "watchbill",
            "status": {"value": _STATES.get(str(stage), "unloaded")},
            "meta": {"n_ctx": model.context},
            "aliases": list(model.aliases),
        }


def _sender(body: dict[str, object], path: str) -> Sender:
    def send(start: Start) -> Outgoing:
        if start.endpoint.upstream_model:
            body["model"] = start.endpoint.upstream_model
        return Outgoing(start.endpoint, "POST", path, encode(body))

    return send
