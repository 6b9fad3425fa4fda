"""Addresses that are passed on as they are, for engines that have them: reranking, speech, images, llama.cpp's own.

Access, turn and relay are those of every request; the answer's bytes and kind are the engine's own, streamed or not.
Nothing is put together or translated, so there is no fallback text either. An engine without the address: 501. For
an address that is only read, that is remembered: no model is loaded to be told so again.

A browser that shows such an answer does so in a sandbox, without scripts: it comes from our address, and a script of an
engine's page could else do there whatever our own page can.
"""

from collections.abc import Callable
from urllib.parse import urlencode

from watchbill.engines.upstream import Outgoing
from watchbill.errors import NotOffered, Preempted, RequestError, Stale, TheirsError
from watchbill.gateway.body import JsonSender
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.form import Form
from watchbill.gateway.http.messages import Answer, Stream
from watchbill.gateway.model_calls import ModelCalls, Sender
from watchbill.gateway.options import RANGES, check_ranges
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Handler, Services
from watchbill.gateway.stream import StreamOut
from watchbill.runtime.ticket import Start, Submission

__all__ = ["PassedOut", "PassthroughApi", "PlainCalls"]

_EVENTS = "text/event-stream"
#: What a browser must not do with what an engine made.
_SHOWN_ONLY = {"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff"}


class PassthroughApi:
    """Serves what only some engines have."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = PlainCalls(services)

    def at(self, path: str) -> Handler:
        """The handler of one address whose body is JSON."""

        async def pass_on(context: RequestContext) -> Answer:
            body = await self._services.bodies.read_object(context)
            check_ranges(body)
            stream = body.get("stream", False)
            if not isinstance(stream, bool) and stream is not None:
                raise RequestError("stream must be true or false")
            submission = self._services.caller_options.submission(
                context, body, self._services.driver.catalog
            )
            sender, lacks = JsonSender(body, path), _lacks(context, path)
            return await self._pass(context, submission, sender, lacks, events=stream is True)

        return pass_on

    def get_at(self, path: str) -> Handler:
        """The handler of one address that is only read; `model` is in its query, or its door's."""

        async def pass_on(context: RequestContext) -> Answer:
            await self._services.bodies.read(context)  # nearly always none; the bounds of the key are checked
            query = context.request.query
            fields: dict[str, object] = {"model": query.get("model")}
            catalog = self._services.driver.catalog
            submission = self._services.caller_options.submission(context, fields, catalog)
            rest = urlencode({name: value for name, value in query.items() if name != "model"})
            target = f"{path}?{rest}" if rest else path
            self._check_lacking(submission, target)

            def send(start: Start) -> Outgoing:
                return Outgoing(start.endpoint, "GET", target, b"")

            def lacks() -> bool:
                # With a query it may be a value of it that the engine does not have.
                self._services.lacking.update(() if rest else ((context.model, path),))
                return _lacks(context, path)()

            return await self._pass(context, submission, send, lacks, events=False)

        return pass_on

    def _check_lacking(self, submission: Submission, target: str) -> None:
        """Raises NotOffered where a model would be loaded to say what it said before. One in memory is asked again."""
        driver, lacking = self._services.driver, self._services.lacking
        model = driver.catalog.find_model(submission.model)
        if model is None or (model.name, target) not in lacking:
            return
        if driver.resident(model.name) is None:
            raise _not_offered(model.name, target)
        lacking.discard((model.name, target))

    def form_at(self, path: str) -> Handler:
        """The handler of one address whose body is a form with a file."""

        async def pass_on(context: RequestContext) -> Answer:
            form = await self._services.bodies.read_form(context)
            fields = form.texts()
            named = frozenset(fields)
            check_ranges({name: _number(text) for name, text in fields.items() if name in RANGES})
            events = fields.get("stream") == "true"
            submission = self._services.caller_options.submission(
                context, fields, self._services.driver.catalog
            )
            send = _form_sender(form, path, without=named.difference(fields))
            return await self._pass(context, submission, send, _lacks(context, path), events=events)

        return pass_on

    async def _pass(
        self,
        context: RequestContext,
        submission: Submission,
        send: Sender,
        lacks: Callable[[], bool],
        *,
        events: bool,
    ) -> Answer:
        out = PassedOut(context, events=events)
        return await self._calls.stream(context, submission, send, out, unknown=lacks)


class PlainCalls(ModelCalls):
    """An exchange in which a failure stays one: no text can stand in for a sound, an image or a ranking."""

    def _fall_back(self, context: RequestContext, submission: Submission, error: TheirsError) -> Fallback:
        raise Preempted(str(error)) if isinstance(error, Stale) else error


class PassedOut(StreamOut):
    """The engine's answer, whatever it is. Signs of life only for who asked for a stream of events."""

    def __init__(self, context: RequestContext, *, events: bool) -> None:
        super().__init__(context)
        self._events = events

    def headers(self) -> dict[str, str]:
        return super().headers() | _SHOWN_ONLY

    async def comment(self, text: str) -> None:
        if self._events:
            await super().comment(text)

    async def write(self, piece: bytes) -> None:
        await (super().write(piece) if self.content_type == _EVENTS else self.send(piece))

    async def fail(self, error: TheirsError) -> None:
        if self.content_type == _EVENTS:
            await super().fail(error)
        elif self.context.request.transport is not None:
            # Half a sound must not look whole: the connection breaks before the last chunk.
            self.context.request.transport.abort()

    async def end(self) -> Stream:
        transport = self.context.request.transport
        if transport is None or transport.is_closing():
            return await self.open()
        return await super().end()

    def has_ended(self, tail: bytes) -> bool:
        return True  # its framing said so; there is no last word that all of these share

    def takes(self, status: int, content_type: str) -> bool:
        if status != 200 or self.response is not None:
            return False
        kind = content_type or "application/octet-stream"
        self.content_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        return True


def _number(text: object) -> object:
    """A number that was sent as text, or the text when it is none."""
    try:
        return float(str(text))
    except ValueError:
        return text


def _form_sender(form: Form, path: str, *, without: frozenset[str]) -> Sender:
    def send(start: Start) -> Outgoing:
        body, *rest = form.encode(start.endpoint.upstream_model or None, without)
        return Outgoing(start.endpoint, "POST", path, body, {"Content-Type": form.content_type}, tuple(rest))

    return send


def _lacks(context: RequestContext, path: str) -> Callable[[], bool]:
    """Says clearly that an engine does not have an address, or not for this model."""

    def lacks() -> bool:
        raise _not_offered(context.model, path)

    return lacks


def _not_offered(model: str, path: str) -> NotOffered:
    return NotOffered(f"the engine of {model} does not offer {path}, or not for this model")
