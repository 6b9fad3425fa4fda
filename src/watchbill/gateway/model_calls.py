"""How handlers ask a model, the same for every dialect: collected, streamed, fetched whole, or loaded only.

    collect   the engine streams, the client gets a whole answer
    stream    the engine streams, the client's stream is the dialect's own kind of `Out`
    fetch     a short answer that is no stream: embeddings, token counts
    load      the turn alone: the model is in memory, and the engine is asked nothing

A failure in a lane with a fallback becomes a Fallback, as long as the client has seen nothing of an answer; after
that it is told in the stream. Owns neither shapes nor prompts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import coroutine

import msgspec

from watchbill.decodable import is_decodable, json_decoder
from watchbill.engines.limits import ERROR_BYTES_MAX, UPSTREAM_ANSWER_BYTES_MAX
from watchbill.engines.statuses import Said
from watchbill.engines.upstream import Outgoing
from watchbill.errors import EngineFailed, LeaseEnds, Preempted, ShuttingDown, Stale, TheirsError
from watchbill.gateway.answers import EngineRefused, engine_error, let_go, verdict
from watchbill.gateway.fallback import Fallback, fallback_for, summarize_request
from watchbill.gateway.forced_calls import ForcedCall
from watchbill.gateway.http.messages import Answer
from watchbill.gateway.limits import PROMPT_TOKENS_FORETOLD_MAX, UNLOAD_RECENT_MS
from watchbill.gateway.meters import BYTES_PER_TOKEN, TokenCount
from watchbill.gateway.relay import Collector, Relay
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Resumption
from watchbill.gateway.services import Services
from watchbill.gateway.stream import Out
from watchbill.gateway.take_apart import events_of
from watchbill.gateway.vectors import Vectors, read_vectors
from watchbill.gateway.wire import decode_fields
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX
from watchbill.runtime.ticket import Start, Submission
from watchbill.steps import Steps, join

__all__ = ["Fields", "ModelCalls", "Sender", "Unknown", "Whole"]

Fields = dict[str, object]
Sender = Callable[[Start], Outgoing]
#: Called when the engine does not have the address; True when the sender now asks otherwise.
Unknown = Callable[[], bool]

_JSON = "application/json"
#: What answers have and errors have not, and what an answer may have where there is no error.
_ANSWERS = frozenset({"choices", "data", "results", "embedding", "embeddings"})
_NO_ERROR = frozenset({b"null", b'""', b"false", b"{}"})
#: White space around an engine's answer is shorter than this.
_END_BYTES = 1024
#: Batching stages pays off from this many concurrent requests.
_CROWD = 4


class Whole(msgspec.Struct, frozen=True, gc=False):
    """A whole answer of an engine: put together from a stream, or as the engine sent it."""

    content_type: str
    body: bytes = b""
    assembled: Fields | None = None

    def fields(self) -> Fields:
        """The answer as fields. Raises EngineFailed when it is not JSON."""
        if self.assembled is not None:
            return self.assembled
        return decode_fields(self.body, "the engine's answer is no JSON object")

    def vectors(self) -> Steps[Vectors]:
        """The answer to a request for embeddings, in steps. Raises EngineFailed."""
        return read_vectors(self.body)


class _NoObject(EngineFailed):
    """The answer is something else than was asked for."""


_decode_outline = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_error = json_decoder(object).decode


class ModelCalls:
    """Submits requests to the scheduler, and carries them to engines in their turn."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def collect(
        self,
        context: RequestContext,
        submission: Submission,
        send: Sender,
        make: Callable[[], Collector],
        *,
        forced: ForcedCall | None = None,
    ) -> Whole | Fallback:
        """Puts a whole answer together from the engine's stream."""
        try:
            frame = self._services.frame
            if frame.open_requests >= _CROWD:
                await _step_aside()
            with self._submit(context, submission, send, streamed=True) as relay:
                relay.forced = forced
                if frame.open_requests >= _CROWD:
                    await _step_aside()
                while (whole := await _collected(relay, make)) is None:
                    pass  # another site serves it
                if frame.open_requests >= _CROWD:
                    await _step_aside()
                relay.finish(ok=True)
                return whole
        except TheirsError as error:
            return self._fall_back(context, submission, _told(submission, error))

    async def fetch(self, context: RequestContext, submission: Submission, send: Sender) -> Whole:
        """An answer that is no stream."""
        try:
            frame = self._services.frame
            if frame.open_requests >= _CROWD:
                await _step_aside()
            with self._submit(context, submission, send, streamed=False) as relay:
                if frame.open_requests >= _CROWD:
                    await _step_aside()
                answer = await relay.whole()
                assert isinstance(answer, bytes)  # nothing was made to collect a stream
                return _pass_on(relay, answer)
        except Stale as error:
            raise Preempted(str(error)) from None  # there is no fallback for a vector
        except ShuttingDown as error:
            raise _told(submission, error) from None

    async def count(self, context: RequestContext, submission: Submission, send: Sender) -> Fields | None:
        """An engine's count of tokens; None where it has no such address, or answers something else there."""
        if context.metered is not None:
            context.metered.is_counted = False  # what is only counted was not spent
        try:
            return (await self.fetch(context, submission, send)).fields()
        except (_NoObject, EngineRefused) as error:
            if isinstance(error, EngineRefused) and error.said is not Said.LACKS:
                raise
            let_go(error)
            return None

    async def stream(
        self,
        context: RequestContext,
        submission: Submission,
        send: Sender,
        out: Out,
        *,
        unknown: Unknown | None = None,
        forced: ForcedCall | None = None,
    ) -> Answer:
        """Hands the engine's stream to `out`. After the headers are out, a failure is told in the stream.

        The whole answer of an engine that has no streams is made into one."""
        told = False
        try:
            with self._submit(context, submission, send, streamed=True, unknown=unknown) as relay:
                relay.forced = forced
                piece, events = await relay.first(out), None
                while not relay.is_stream and not out.takes(relay.status, relay.content_type):
                    if (events := await _taken_apart(relay, piece)) is not None:
                        break
                    piece = await relay.first(out)  # another site serves it
                if events is not None:
                    await out.open()
                    told = True
                    await out.write(events)
                    await out.flush()
                else:
                    await out.open()
                    told = True
                    await _stream(relay, out, piece)
        except TheirsError as error:
            if told:
                await self._tell(context, out, _told(submission, error))
            else:
                await self._fall_back_in(context, submission, out, _told(submission, error))
        return await out.end()

    async def load(self, context: RequestContext, submission: Submission) -> None:
        """Brings the model into memory, in its turn, and asks it nothing."""
        with self._submit(context, submission, _nothing, streamed=False) as relay:
            await relay.turn()
            relay.finish(ok=None)  # a load without an answer teaches nothing about answers

    async def hold(
        self, context: RequestContext, submission: Submission, act: Callable[[Start], Awaitable[None]]
    ) -> None:
        """Has a turn for as long as `act` takes. Raises what the scheduler refuses, and Preempted when it cuts it."""
        with self._submit(context, submission, _nothing, streamed=False) as relay:
            await relay.turn()
            assert context.start is not None
            relay.ticket.first_byte()  # what was said cannot be said again
            acting = asyncio.ensure_future(act(context.start))

            def cut() -> None:
                acting.cancel()

            relay.ticket.on_cut = cut
            try:
                await acting
            except asyncio.CancelledError:
                if relay.ticket.cut is None:
                    raise
                raise Preempted(f"the connection was ended: {relay.ticket.cut.value}") from None
            finally:
                acting.cancel()
            relay.finish(ok=None)

    # ------------------------------------------------------------------ submitting

    def _submit(
        self,
        context: RequestContext,
        submission: Submission,
        send: Callable[[Start], Outgoing],
        *,
        streamed: bool,
        unknown: Callable[[], bool] | None = None,
    ) -> Relay:
        """Submits a request to the scheduler. Raises what it refuses at once."""
        services, metered = self._services, context.metered
        driver = services.driver
        if services.closing.is_set():
            raise ShuttingDown
        if metered is not None:
            metered.check_waiting()
        if submission.keep_alive_ms is not None:
            submission = self._without_harm(context, submission)
        try:
            ticket = driver.submit(submission)
        except TheirsError as error:
            asked = driver.catalog.find_model(submission.model)
            context.model = asked.name if asked else ""  # the answer says what this model is doing
            if services.tracing is not None:
                services.tracing.refused(context, error)
            raise
        context.ticket, context.lane, context.model = ticket, ticket.request.lane, ticket.model
        if context.key is not None:
            services.unloading.note_use(ticket.model, context.key)
        trace = None if services.tracing is None else services.tracing.begin(context)
        send = send if trace is None else trace.carrying(send)
        relay = Relay(
            services.upstream, ticket, context, send, services.relays.discard, streamed, services.not_continued, unknown
        )  # fmt: skip
        if trace is not None and services.tracing is not None:
            relay.on_end = partial(services.tracing.ended, trace)
        services.relays.add(relay)
        if metered is not None:
            metered.waits_for(ticket)
            if metered.is_counted:
                foretold, choices = (
                    self._foretold_tokens(context, ticket.model),
                    self._choices(context, ticket.model),
                )
                relay.tokens = TokenCount(metered.spend, foretold, choices=choices)
        if ticket.request.work_class.makes_way:
            relay.resume = Resumption(ticket.model, services.not_continued)
        if driver.catalog.tiers:
            relay.charging = services.charging
        if driver.catalog.spools:
            relay.tap = services.capturing.begin(driver.catalog, context, submission)
        return relay

    def _without_harm(self, context: RequestContext, submission: Submission) -> Submission:
        """The submission without a keep_alive that would take the model from others, or too often."""
        asked = submission.keep_alive_ms
        if asked is None or asked >= UNLOAD_RECENT_MS:
            return submission
        model = self._services.driver.catalog.find_model(submission.model)
        if model is None or self._services.unloading.grants(model, context.key):
            return submission
        return msgspec.structs.replace(submission, keep_alive_ms=None)

    def _foretold_tokens(self, context: RequestContext, name: str) -> int:
        """A prompt's tokens by the size of its request, as long as its engine has told nothing."""
        model = self._services.driver.catalog.models.get(name)
        most = (model.context if model is not None else None) or PROMPT_TOKENS_FORETOLD_MAX
        size = context.held if context.asked is not None else 0
        return min(size // BYTES_PER_TOKEN, most)

    def _choices(self, context: RequestContext, name: str) -> int:
        """How many choices a llama.cpp makes at once for this request; it tells the tokens of each by themselves."""
        catalog, asked = self._services.driver.catalog, (context.asked or {}).get("n")
        model = catalog.models.get(name)
        if model is None or not isinstance(asked, int) or catalog.engines[model.engine].driver != "llamacpp":
            return 1
        return max(1, min(asked, model.concurrency))

    # ------------------------------------------------------------------ failures

    def _fall_back(self, context: RequestContext, submission: Submission, error: TheirsError) -> Fallback:
        """The lane's answer to a failure; raises the failure when it has none."""
        catalog = self._services.driver.catalog
        model = catalog.find_model(submission.model)
        lane = catalog.lane_for(submission.lane)
        summary = partial(summarize_request, context.asked or {})
        fallback = fallback_for(error, lane, model.name if model else submission.model, summary)
        if fallback is None:
            raise error
        context.lane = context.lane or lane.name
        context.fallback = fallback.error
        let_go(error)
        return fallback

    async def _fall_back_in(
        self, context: RequestContext, submission: Submission, out: Out, error: TheirsError
    ) -> None:
        try:
            fallback = self._fall_back(context, submission, error)
        except TheirsError:
            if out.response is None:
                raise
            await self._tell(context, out, error)
        else:
            await out.fall_back(fallback)

    async def _tell(self, context: RequestContext, out: Out, error: TheirsError) -> None:
        await out.fail(error)
        self._services.note_broken(context, error)
        let_go(error)


@coroutine
def _step_aside() -> Generator[None]:
    """Between two stages a request lets those that came with it catch up.

    Then all of them go through each stage together, and its code is fetched once for all. The code of all stages is
    several times larger than a processor's cache: one after the other, each request would fetch all of it again.
    """
    yield


def _told(submission: Submission, error: TheirsError) -> TheirsError:
    """What the caller is told. Another machine, whose work this one gives up because it shuts down, has it done later:
    its lease ends, which is no failure of the request."""
    return LeaseEnds() if submission.lease is not None and isinstance(error, ShuttingDown) else error


def _nothing(start: Start) -> Outgoing:
    raise AssertionError("a load asks the engine nothing")


async def _stream(relay: Relay, out: Out, first: bytes) -> None:
    await relay.stream(out, first)
    relay.finish(ok=True)


async def _collected(relay: Relay, make: Callable[[], Collector]) -> Whole | None:
    """The whole answer; None when what came is none, and another site serves the request. Raises EngineFailed."""
    try:
        answer = await relay.whole(make)
        if not isinstance(answer, bytes):
            return Whole(_JSON, b"", answer.result())
        if not answer and relay.status == 200:
            raise EngineFailed("the engine sent an empty answer")
        return _pass_on(relay, answer)
    except EngineFailed as error:
        if not relay.leaves_for(error):
            raise
        let_go(error)
        return None


async def _taken_apart(relay: Relay, first: bytes) -> bytes | None:
    """The events of an answer that is no stream; None when it is no answer, and another site serves the request. Raises
    EngineFailed."""
    try:
        events = events_of((await _rest(relay, first)).fields())  # raises for an error
        if events is None:
            raise EngineFailed("the engine answered a streamed request without a stream")
        return events
    except EngineFailed as error:
        if not relay.leaves_for(error):
            raise
        let_go(error)
        return None


async def _rest(relay: Relay, first: bytes) -> Whole:
    relay.ticket.first_byte()
    pieces, size, piece = list[bytes](), 0, first
    while piece:
        size += len(piece)
        if size > UPSTREAM_ANSWER_BYTES_MAX:
            raise EngineFailed(f"the engine's answer exceeds {UPSTREAM_ANSWER_BYTES_MAX} bytes")
        pieces.append(piece)
        relay.context.gathered += len(piece)
        piece = await relay.more()
    return _pass_on(relay, await join(pieces, size))


def _check_ends(answer: bytes) -> None:
    """Raises EngineFailed for anything but a JSON object, whatever the engine calls it, and EngineRefused for an error
    that the engine calls a success. A large answer, such as vectors, is not read for that: its first and last bytes
    tell."""
    has_ends = answer[:_END_BYTES].lstrip()[:1] == b"{" and answer[-_END_BYTES:].rstrip()[-1:] == b"}"
    outline: dict[str, msgspec.Raw] = {}
    try:
        if has_ends and len(answer) <= JSON_AT_ONCE_BYTES_MAX:
            outline = _decode_outline(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        has_ends = False
    if not has_ends:
        raise _NoObject("the engine's answer is no JSON object")
    if "error" in outline and _ANSWERS.isdisjoint(outline) and bytes(outline["error"]) not in _NO_ERROR:
        raise engine_error(502, _said_in(answer[:ERROR_BYTES_MAX]))


def _pass_on(relay: Relay, answer: bytes) -> Whole:
    """An engine's whole answer as it is, or its error in our shape."""
    if relay.status < 400:
        if relay.status == 200:
            _check_ends(answer)
            relay.finish(ok=True)
            return Whole(_JSON, answer)
        relay.finish(ok=None)
        hint = "; redirects are not followed" if relay.status >= 300 else ", and nothing with it"
        raise EngineFailed(f"the engine answered {relay.status}{hint}")
    said = _said_in(answer[:ERROR_BYTES_MAX])
    relay.check_far(said)
    error = engine_error(relay.status, said)
    error.retry_after_ms = relay.retry_after_ms
    relay.finish(ok=verdict(error))
    raise error


def _said_in(answer: bytes) -> object:
    """What an engine's error says: JSON, or else the text itself."""
    try:
        if is_decodable(answer):
            return _decode_error(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return answer.decode("utf-8", "replace")
