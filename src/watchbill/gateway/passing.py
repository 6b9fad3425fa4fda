"""Addresses that are passed on as they are, for engines that have them: responses, reranking, speech, images.

The same guard, turn and relay as at the other doors; the answer's bytes and kind are the engine's own, streamed or
not. Nothing is put together or translated, so there is no fallback text either. An engine without the address: 501.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from watchbill.engines.upstream import Outgoing
from watchbill.errors import NotOffered, Preempted, RequestError, Stale, TheirsError
from watchbill.gateway.exchange import Exchange, Sender, sender
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.form import Form, parse_form
from watchbill.gateway.http.response import Answer, Stream
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.visit import Visit
from watchbill.gateway.wishes import RANGES, check_ranges
from watchbill.runtime.ticket import Start, Wish

if TYPE_CHECKING:
    from watchbill.gateway.house import Door, House

__all__ = ["PassingDoor"]

_EVENTS = "text/event-stream"


class PassingDoor:
    """Serves what only some engines have."""

    def __init__(self, gateway: "House") -> None:
        self._gateway = gateway
        self._exchange = _Plain(gateway)

    def at(self, path: str) -> "Door":
        """The door of one address whose body is JSON."""

        async def pass_on(visit: Visit) -> Answer:
            body = await self._gateway.read_object(visit)
            check_ranges(body)
            stream = body.get("stream", False)
            if not isinstance(stream, bool) and stream is not None:
                raise RequestError("stream must be true or false")
            wish = self._gateway.wish(visit, body)
            if path == "/v1/responses":
                wish = await self._gateway.abilities.check(wish, "completion", body.get("input"))
            # An answer of 404 to a later turn may well mean the earlier one, not the address.
            lacks = None if body.get("previous_response_id") else _lacks(visit, path)
            return await self._pass(visit, wish, sender(body, path), lacks, events=stream is True)

        return pass_on

    def form_at(self, path: str) -> "Door":
        """The door of one address whose body is a form with a file."""

        async def pass_on(visit: Visit) -> Answer:
            form = await self._form(visit)
            fields = form.texts()
            named = frozenset(fields)
            check_ranges({name: _number(text) for name, text in fields.items() if name in RANGES})
            events = fields.get("stream") == "true"
            wish = self._gateway.wish(visit, fields)
            send = _form_sender(form, path, without=named.difference(fields))
            return await self._pass(visit, wish, send, _lacks(visit, path), events=events)

        return pass_on

    async def _form(self, visit: Visit) -> Form:
        request = visit.request
        body = await self._gateway.read(visit)
        return parse_form(bytes(body), request.headers.get("content-type", ""))

    async def _pass(
        self, visit: Visit, wish: Wish, send: Sender, lacks: Callable[[], bool] | None, *, events: bool
    ) -> Answer:
        out = PassedOut(visit, events=events)
        return await self._exchange.stream(visit, wish, send, out, unknown=lacks)


class _Plain(Exchange):
    """An exchange in which a failure stays one: no text can stand in for a sound, an image or a ranking."""

    def _fall_back(self, visit: Visit, wish: Wish, error: TheirsError) -> Fallback:
        raise Preempted(str(error)) if isinstance(error, Stale) else error


class PassedOut(StreamOut):
    """The engine's answer, whatever it is. Signs of life only for who asked for a stream of events."""

    def __init__(self, visit: Visit, *, events: bool) -> None:
        super().__init__(visit)
        self._events = events

    async def comment(self, text: str) -> None:
        if self._events:
            await super().comment(text)

    async def write(self, piece: bytes) -> None:
        await (super().write(piece) if self.content_type == _EVENTS else self.send(piece))

    async def fail(self, error: TheirsError) -> None:
        if self.content_type == _EVENTS:
            await super().fail(error)
        elif self.visit.request.transport is not None:
            # Half a sound must not look whole: the connection breaks before the last chunk.
            self.visit.request.transport.abort()

    async def end(self) -> Stream:
        transport = self.visit.request.transport
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
        body = form.encode(start.endpoint.upstream_model or None, without)
        return Outgoing(start.endpoint, "POST", path, body, {"Content-Type": form.content_type})

    return send


def _lacks(visit: Visit, path: str) -> Callable[[], bool]:
    """Says clearly that an engine does not have an address, or not for this model."""

    def lacks() -> bool:
        raise NotOffered(f"the engine of {visit.model} does not offer {path}, or not for this model")

    return lacks
