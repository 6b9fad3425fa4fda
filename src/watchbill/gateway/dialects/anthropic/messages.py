"""Anthropic's API: POST /v1/messages, and the count of tokens.

An engine that speaks Anthropic's dialect itself (llama.cpp's server does) is asked in it, and its answer passes. The
first request finds out: an engine that does not have the address is asked again in OpenAI's dialect, in the same turn,
and remembered. Engines are always asked to stream. While a request waits, its stream
carries pings.
"""

from typing import TYPE_CHECKING

from watchbill.engines.upstream import Outgoing
from watchbill.errors import TheirsError
from watchbill.gateway.answers import json_response
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.body import JsonSender
from watchbill.gateway.dialects.anthropic import request, response
from watchbill.gateway.dialects.anthropic.response import PING, Events, Gathering, Opening, error_fields
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.model_calls import Fields, ModelCalls
from watchbill.gateway.options import check_ranges
from watchbill.gateway.relay import Collector
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.wire import event
from watchbill.limits import TRANSLATED_MODELS_MAX
from watchbill.runtime.ticket import Start, Submission

if TYPE_CHECKING:
    from watchbill.gateway.services import Services

__all__ = ["AnthropicApi"]

_JSON = "application/json"


class AnthropicApi:
    """Serves /v1/messages."""

    def __init__(self, gateway: "Services") -> None:
        self._gateway = gateway
        self._calls = ModelCalls(gateway)
        self._translated: dict[str, None] = {}  # models whose engine does not speak this protocol

    async def messages(self, context: RequestContext) -> Answer:
        """POST /v1/messages."""
        body, submission = await self._read(context)
        request.check(body)
        submission = await self._gateway.abilities.check(submission, "completion", body["messages"])
        asking = _Asking(self._translated, body)
        if body.get("stream") is True:
            out = MessagesOut(context, asking)
            return await self._calls.stream(context, submission, asking.send, out, unknown=asking.unknown)
        answer = await self._calls.collect(
            context, submission, asking.send, asking.collector, unknown=asking.unknown
        )
        if isinstance(answer, Fallback):
            told = response.fallen_back(answer, context.id)
        elif asking.is_native:
            told = response.named(answer.fields(), context.id, context.model)
        else:
            told = response.message(answer.fields(), context.id, context.model)
        return json_response(told, response.lines(context))

    async def count_tokens(self, context: RequestContext) -> Response:
        """POST /v1/messages/count_tokens: the engine's count, else an estimate that says so."""
        body, submission = await self._read(context)
        request.check(body, counting=True)
        told = await self._calls.count(context, submission, JsonSender(body, "/v1/messages/count_tokens"))
        if told is None:
            lifted = context.lifted.size if context.lifted else 0
            tokens = request.estimate_tokens(body, lifted)
            told = {"input_tokens": tokens, "watchbill": {"estimated": True}}
        return json_response(told, response.lines(context))

    async def _read(self, context: RequestContext) -> tuple[Fields, Submission]:
        body = await self._gateway.bodies.read_object(context)
        check_ranges(body)
        return body, self._gateway.caller_options.submission(context, body, self._gateway.driver.catalog)


class _Asking:
    """One request on its way: in Anthropic's words, or in OpenAI's to an engine that lacks them."""

    def __init__(self, translated: dict[str, None], body: Fields) -> None:
        self._translated = translated
        self._translate = JsonSender(request.as_chat(body), "/v1/chat/completions")
        self._pass = JsonSender({**body, "stream": True}, "/v1/messages")
        self._model = ""
        self.is_native = False

    def send(self, start: Start) -> Outgoing:
        """What the relay asks when the turn has come."""
        self._model = start.model
        self.is_native = start.model not in self._translated
        return self._pass(start) if self.is_native else self._translate(start)

    def unknown(self) -> bool:
        """The engine does not have the address. True when it has not been asked otherwise yet."""
        if not self.is_native:
            return False
        if len(self._translated) >= TRANSLATED_MODELS_MAX:
            self._translated.clear()
        self._translated[self._model] = None
        return True

    def collector(self) -> Collector:
        """How this engine's stream becomes one answer."""
        return Gathering() if self.is_native else Assembly(chat=True)


class MessagesOut(StreamOut):
    """A stream of Anthropic's events, passed or translated."""

    def __init__(self, context: RequestContext, asking: _Asking) -> None:
        super().__init__(context)
        self._asking = asking
        self._events: Events | None = None
        self._opening: Opening | None = None

    def lines(self) -> str:
        return response.lines(self.context)

    async def comment(self, text: str) -> None:
        await self.send(PING)

    async def write(self, piece: bytes) -> None:
        if self._asking.is_native:
            if self._opening is None:
                self._opening = Opening(self.context.id, self.context.model)
            await super().write(self._opening.feed(piece))
            return
        if self._events is None:
            self._events = Events(self.context.id, self.context.model)
        await self.send(self._events.feed(piece))

    async def flush(self) -> None:
        if self._events is None:
            if self._opening is not None:
                await super().write(self._opening.end())
            await super().flush()
        else:
            await self.send(self._events.end())

    async def fail(self, error: TheirsError) -> None:
        await self.send_last(event(error_fields(error), "error"))

    async def fall_back(self, fallback: Fallback) -> None:
        await self.send(response.fallen_back_events(fallback, self.context.id))

    def has_ended(self, tail: bytes) -> bool:
        if self._events is not None:
            return self._events.is_done
        return b'"message_stop"' in tail[-32:] or b"event: error" in tail
