"""Lines of batches: each is answered by the handler of its address, as if its caller had sent it alone, in the
background.

So a line gets the answer, the checks and the errors that its address gives, its key's bounds hold, and a model that has
to leave in the middle of it continues later. What a refusal means to a batch is decided here: some are the answer, some
count as a failed attempt, and some only say that this is not the time.
"""

from collections.abc import Mapping

import msgspec

from watchbill.batches.asking import NotNow, Question, Reply
from watchbill.batches.limits import BATCH_AGAIN_MS
from watchbill.catalog import BATCHES_LANE
from watchbill.core.stages import ModelStatus
from watchbill.errors import (
    Cancelled,
    DeviceUnreadable,
    DiskFailed,
    EngineFailed,
    InMaintenance,
    LaneFull,
    ModelFailed,
    NoMemory,
    Overloaded,
    Preempted,
    RequestError,
    RunTimeout,
    ShuttingDown,
    Stale,
    TheirsError,
    WaitExceeded,
)
from watchbill.gateway.answers import status_of
from watchbill.gateway.dialects.errors import refusal
from watchbill.gateway.http.messages import Response
from watchbill.gateway.options import marks_of, split_alias
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Handler, Services
from watchbill.gateway.unsent import key_of, unsent
from watchbill.runtime.driver import Driver

__all__ = ["DriverModels", "LineCalls"]

#: The model may be asked later; nothing is wrong with the line.
_WAITS = (
    LaneFull, Overloaded, WaitExceeded, Preempted, Stale, InMaintenance, ShuttingDown, NoMemory, DeviceUnreadable,
    DiskFailed,
)  # fmt: skip
#: Another attempt may go better, or not.
_FAILS = (EngineFailed, RunTimeout, ModelFailed, Cancelled)
#: Lines for unknown models are refused at once, so many at a time.
_REFUSED_AT_ONCE = 8


class LineCalls:
    """Answers lines by the gateway's own handlers."""

    def __init__(self, services: Services, handlers: Mapping[str, Handler]) -> None:
        self._services = services
        self._handlers = handlers

    @property
    def addresses(self) -> frozenset[str]:
        """What a line may ask."""
        return frozenset(self._handlers)

    def begin(self, question: Question) -> "_Call":
        """A call that has not been made."""
        return _Call(self._services, self._handlers[question.url], question)


class _Call:
    """One line, while it is asked."""

    def __init__(self, services: Services, handler: Handler, question: Question) -> None:
        self._services, self._handler, self._question = services, handler, question
        headers = {"x-watchbill-lane": BATCHES_LANE.name, **marks_of(question.reach)}
        self._context = unsent(question.url, question.body, headers)

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come."""
        ticket = self._context.ticket
        return ticket is None or ticket.is_waiting

    async def reply(self) -> Reply:
        """The answer. Raises NotNow."""
        return await self._services.frame.run(self._context, self._ask, self._refused)

    async def _ask(self, context: RequestContext) -> Reply:
        context.key = key_of(self._services, self._question.owner, "batch")
        aside, body = self._services.shares.aside, self._question.body
        await aside(lambda: _refuse_streams(body), len(body))
        answer = await self._handler(context)
        assert isinstance(answer, Response)  # a stream was refused
        told = answer.body
        return Reply(answer.status, context.id, await aside(lambda: _one_line(told), len(told)))

    def _refused(self, context: RequestContext, error: TheirsError) -> Reply:
        answer = refusal(context, error)
        return self._judge(error, Reply(answer.status, context.id, answer.body))

    def _judge(self, error: TheirsError, reply: Reply) -> Reply:
        """The refusal, where it is the answer. Raises NotNow where it is not."""
        again_ms = error.retry_after_ms or BATCH_AGAIN_MS
        if isinstance(error, _FAILS):
            if status_of(error) == 429:  # of an engine that is asked by others, too
                raise NotNow(None, again_ms)
            if status_of(error) >= 500:
                raise NotNow(reply, again_ms)
        elif isinstance(error, _WAITS):
            raise NotNow(None, again_ms)
        return reply


class DriverModels:
    """What the worker knows of models, from the driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def resolve(self, name: str) -> str:
        """The model that a name means; empty where it is unknown."""
        catalog = self._driver.catalog
        model = catalog.find_model(split_alias(name, catalog)[0])
        return "" if model is None else model.name

    def slots(self, name: str) -> int:
        """How many lines of a model make sense at once."""
        model = self._driver.catalog.models.get(name)
        return _REFUSED_AT_ONCE if model is None else model.concurrency

    def is_warm(self, name: str) -> bool:
        """Whether a model is in memory, or needs none."""
        return name not in self._driver.catalog.models or self._driver.model_status(name) is ModelStatus.READY


class _Streamed(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw(b"null")  # undecoded: it may be anything, of any size
    background: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Streamed).decode
_NO = (b"null", b"false")
_skip = msgspec.json.Decoder(msgspec.Raw).decode


def _refuse_streams(body: bytes) -> None:
    """A batch has no client to stream to, and is in the background as it is. Raises RequestError."""
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # its address will say what is wrong
    if bytes(asked.stream) not in _NO:
        raise RequestError("a line of a batch cannot be streamed; leave stream out")
    if bytes(asked.background) not in _NO:
        raise RequestError("a line of a batch cannot be made in the background again; leave background out")


def _one_line(body: bytes) -> bytes:
    """An answer as one line of JSON. Raises EngineFailed when it is none."""
    try:
        plain = bytes(_skip(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailed(f"the engine's answer is not JSON: {error}") from None
    # Between values a line break means nothing, and within a text there is none.
    return plain.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in plain or b"\r" in plain else plain
