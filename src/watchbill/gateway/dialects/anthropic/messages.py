"""Anthropic's API: POST /v1/messages, and the count of tokens.

Every engine is asked for a chat, and its stream becomes a message here (`response.Making`); llama.cpp's own address
leaves out documents and other blocks without a word. While a request waits, its stream carries pings. Stop sequences
are found here, and end the engine's work.
"""

from functools import partial

from watchbill.engines.upstream import Outgoing
from watchbill.errors import TheirsError
from watchbill.gateway.abilities import Allowed
from watchbill.gateway.answers import json_response
from watchbill.gateway.body import JsonSender
from watchbill.gateway.dialects.anthropic import request
from watchbill.gateway.dialects.anthropic.blocks import restored
from watchbill.gateway.dialects.anthropic.errors import error_fields, lines
from watchbill.gateway.dialects.anthropic.request import Asked
from watchbill.gateway.dialects.anthropic.response import PING, Collecting, Making
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.model_calls import Fields, ModelCalls, Sender
from watchbill.gateway.options import check_ranges
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.typed import is_count
from watchbill.gateway.wire import event
from watchbill.runtime.ticket import Start

__all__ = ["AnthropicApi"]

_CHAT = "/v1/chat/completions"


class AnthropicApi:
    """Serves /v1/messages."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = ModelCalls(services)

    async def messages(self, context: RequestContext) -> Answer:
        """POST /v1/messages."""
        asked, (submission, chat, forced) = await self._read(context)
        make = partial(Making, asked, context.id, partial(_estimate, context, chat))
        send = self._sender(asked, chat)
        if asked.stream:
            out = MessagesOut(context, make())
            return await self._calls.stream(context, submission, send, out, forced=forced)
        collecting = Collecting(make, lambda: context.model)
        answer = await self._calls.collect(context, submission, send, collecting.begin, forced=forced)
        return json_response(collecting.final(answer), lines(context))

    async def count_tokens(self, context: RequestContext) -> Response:
        """POST /v1/messages/count_tokens: the engine's count, else an estimate that says so."""
        _, (submission, chat, _) = await self._read(context, counting=True)
        sender = JsonSender({**chat, "stream": False}, f"{_CHAT}/input_tokens")
        counted = await self._calls.count(context, submission, sender)
        tokens = None if counted is None else counted.get("input_tokens")
        told: Fields = {"input_tokens": tokens}
        if not is_count(tokens):
            told = {"input_tokens": _estimate(context, chat), "watchbill": {"estimated": True}}
        return json_response(told, lines(context))

    async def _read(self, context: RequestContext, *, counting: bool = False) -> tuple[Asked, Allowed]:
        """A request, and the chat that it means, as its model may be asked it."""
        services = self._services
        body = await services.bodies.read_object(context)
        if context.lifted is not None:
            body = restored(body, context.lifted)
        check_ranges(body)
        asked = request.read(body, counting=counting)
        submission = services.caller_options.submission(context, body, services.driver.catalog)
        chat = await services.shares.aside(lambda: request.as_chat(asked, body), context.held)
        return asked, await services.abilities.allow(submission, chat, context.held, context.lifted)

    def _sender(self, asked: Asked, chat: Fields) -> Sender:
        """Sends a chat to the engine whose turn it is; llama.cpp is told a little more."""
        plain = JsonSender(chat, _CHAT)
        more = JsonSender({**chat, **request.for_llamacpp(asked)}, _CHAT)

        def send(start: Start) -> Outgoing:
            is_llamacpp = self._services.driver.catalog.driver_of(start.model) == "llamacpp"
            return (more if is_llamacpp else plain)(start)

        return send


def _estimate(context: RequestContext, chat: Fields) -> int:
    return request.estimate_tokens(chat, context.lifted)


class MessagesOut(StreamOut):
    """A stream of Anthropic's events."""

    def __init__(self, context: RequestContext, making: Making) -> None:
        super().__init__(context)
        self._making = making

    def lines(self) -> str:
        return lines(self.context)

    async def comment(self, text: str) -> None:
        await self.send(PING)

    async def write(self, piece: bytes) -> None:
        await self.send_each(map(_event, self._making.feed(piece, self.context.model)))

    async def flush(self) -> None:
        await self._send(self._making.end(self.context.model))

    async def fail(self, error: TheirsError) -> None:
        await self.send_last(event(error_fields(error), "error"))

    async def fall_back(self, fallback: Fallback) -> None:
        await self._send(self._making.fall_back(fallback))

    def has_ended(self, tail: bytes) -> bool:
        return self._making.is_ended

    @property
    def is_over(self) -> bool:
        return self._making.is_over

    async def _send(self, events: list[Fields]) -> None:
        await self.send(b"".join(map(_event, events)))


def _event(fields: Fields) -> bytes:
    return event(fields, str(fields["type"]))
