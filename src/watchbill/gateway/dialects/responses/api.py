"""OpenAI's Responses API: POST /v1/responses, and the responses that are kept.

Every engine is asked for a chat, and its stream becomes a response here (`response.Making`); llama.cpp's own address
lacks most of the events. While a stream waits it carries comments, after the events `response.created` and
`response.queued`. A response is kept (`store.Store`) before its last event is sent, so that the next turn finds it. In
the background it is made by a task of its own (`background.Background`), by a later daemon if need be (`stasis`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs

import msgspec

from watchbill.catalog import Reach
from watchbill.core.messages import Alert, AlertKind
from watchbill.errors import (
    DiskFailed,
    NotFound,
    NotOffered,
    Overloaded,
    PreviousNotFound,
    RequestError,
    TheirsError,
    TooLarge,
)
from watchbill.gateway.abilities import Allowed
from watchbill.gateway.answers import json_response
from watchbill.gateway.body import JsonSender
from watchbill.gateway.dialects.responses import request
from watchbill.gateway.dialects.responses.background import Background
from watchbill.gateway.dialects.responses.items import as_listed, token_of
from watchbill.gateway.dialects.responses.request import Asked
from watchbill.gateway.dialects.responses.response import Collecting, Making, restarted
from watchbill.gateway.dialects.responses.stasis import Parked, Stasis
from watchbill.gateway.dialects.responses.store import Store
from watchbill.gateway.fallback import Fallback
from watchbill.gateway.forced_calls import ForcedCall
from watchbill.gateway.http.messages import Answer, Response
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import (
    LIST_ITEMS_MAX,
    RESPONSE_AGAIN_MS,
    RESPONSE_BYTES_MAX,
    RESPONSE_NOTED_MS,
    RESPONSE_TURNS_BYTES_MAX,
    RESPONSE_TURNS_MAX,
    RESPONSES_BACKGROUND_MAX,
)
from watchbill.gateway.model_calls import Fields, ModelCalls
from watchbill.gateway.options import check_ranges, is_marked_private
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Begun
from watchbill.gateway.services import Services
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.typed import is_count
from watchbill.gateway.unsent import key_of, unsent
from watchbill.gateway.wire import event
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX
from watchbill.quoting import quoted
from watchbill.runtime.ticket import Submission

__all__ = ["ResponsesApi"]

_log = logging.getLogger("watchbill.gateway")
_encode = msgspec.json.Encoder().encode
_UNFINISHED = frozenset({"queued", "in_progress"})
_PAGE = 20


class _Record(msgspec.Struct):
    """A kept response."""

    response: Fields
    input: list[Fields]
    reach: Reach = Reach.ANYWHERE  # where it was allowed to be made; earlier versions wrote none
    size: int = 0  # in bytes, as it is kept
    was_unfinished: bool = False  # when it was kept

    def items(self) -> list[Fields]:
        """What it adds to its conversation."""
        return [*self.input, *cast("list[Fields]", self.response["output"])]


_decode = msgspec.json.Decoder(_Record).decode


class ResponsesApi:
    """Serves /v1/responses."""

    def __init__(self, services: Services, folder: Path | None) -> None:
        self._services = services
        self._calls = ModelCalls(services)
        self._store = Store(folder, tell=self._warn)
        self._stasis = Stasis(None if folder is None else folder.with_name("stasis"))
        self._background: dict[str, Background] = {}  # by the response's id, while it is made
        self._noting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # about what is in stasis
        self._put_off: list[Parked] = []  # of an earlier daemon, while the disk does not tell their records
        self._resuming: asyncio.Task[None] | None = None

    def _warn(self, text: str) -> None:
        self._services.driver.tell(Alert(AlertKind.DISK, text))

    async def resume(self) -> None:
        """Goes on with what an earlier daemon was asked for and did not come to."""
        if self._services.server.store_responses and not await self._resume():
            self._resuming = asyncio.get_running_loop().create_task(self._resume_often(), name="stasis")

    async def _resume(self) -> bool:
        """Whether the disk has told all that there is."""
        parked, self._put_off = [*self._put_off, *await self._stasis.found()], []
        for at, each in enumerate(parked):
            try:
                await self._go_on(each)
            except DiskFailed:
                self._put_off = parked[at:]
                break
        return self._stasis.is_read and not self._put_off

    async def _resume_often(self) -> None:
        self._warn("responses that an earlier daemon was asked for wait: the disk refuses them; make room")
        while True:
            await asyncio.sleep(RESPONSE_AGAIN_MS / 1000)
            if await self._resume():
                self._resuming = None
                return

    async def close(self) -> None:
        """Leaves what is made in the background to the next daemon, and waits for the disk; after `drain`."""
        if self._noting is not None:
            self._noting.cancel()
        if self._resuming is not None:
            self._resuming.cancel()
        for id, made in list(self._background.items()):
            await made.park()
            await self._stasis.note(id, made.begun())
        for task in self._tasks:
            task.cancel()
        await self._stasis.close()
        await self._store.close()

    # ------------------------------------------------------------------ making one

    async def create(self, context: RequestContext) -> Answer:
        """POST /v1/responses."""
        asked, (submission, chat, forced) = await self._read(context)
        send = JsonSender(chat, "/v1/chat/completions")
        if asked.background:
            return await self._make_later(context, asked, submission, send, forced)
        making = self._making(context, asked)
        if asked.stream:
            out = _ResponseOut(context, making, lambda final: self._keep(context, asked, final))
            return await self._calls.stream(context, submission, send, out, forced=forced)
        collecting = Collecting(lambda: self._making(context, asked), lambda: context.model)
        answer = await self._calls.collect(context, submission, send, collecting.begin, forced=forced)
        final = collecting.final(answer)
        await self._keep(context, asked, final)
        return json_response(final, context.lines())

    async def count(self, context: RequestContext) -> Response:
        """POST /v1/responses/input_tokens: the engine's count, else an estimate that says so."""
        _, (submission, chat, _) = await self._read(context, counting=True)
        sender = JsonSender({**chat, "stream": False}, "/v1/chat/completions/input_tokens")
        counted = await self._calls.count(context, submission, sender)
        tokens = None if counted is None else counted.get("input_tokens")
        told: Fields = {"object": "response.input_tokens", "input_tokens": tokens}
        if not is_count(tokens):
            estimate = request.estimate_tokens(chat, context.lifted)
            told |= {"input_tokens": estimate, "watchbill": {"estimated": True}}
        return json_response(told, context.lines())

    async def compact(self, context: RequestContext) -> Answer:
        """POST /v1/responses/compact, which is not offered."""
        raise NotOffered("conversations are not compacted here; send fewer items, or truncation: auto")

    async def _read(
        self, context: RequestContext, *, counting: bool = False, token: str | None = None
    ) -> tuple[Asked, Allowed]:
        """A request, and the chat that it means with all that was said before, as its model may be asked it."""
        services = self._services
        body = await services.bodies.read_object(context)
        if context.lifted is not None:
            body = _restored(body, context.lifted)
        read = partial(request.read, body, counting=counting, token=token)
        asked = await services.shares.aside(read, context.held)
        submission = services.caller_options.submission(context, body, services.driver.catalog)
        items, before, reach = await self._conversation(context.owners, asked)
        # What was said privately stays so when the next turn repeats it.
        reach = max(reach, submission.reach)
        submission, asked = msgspec.structs.replace(submission, reach=reach), replace(asked, reach=reach)
        size = context.held + before
        chat = await services.shares.aside(partial(request.as_chat, asked, body, items), size)
        check_ranges(chat)
        if asked.body.get("truncation") == "auto":
            await self._shorten(context, chat, submission.model, size)
        return asked, await services.abilities.allow(submission, chat, size, context.lifted)

    async def _shorten(self, context: RequestContext, chat: Fields, name: str, size: int) -> None:
        model = self._services.driver.catalog.find_model(name)
        if model is not None:
            tokens = (await self._services.files.facts(model)).context(model)
            messages, lifted = cast("list[Fields]", chat["messages"]), context.lifted

            def size_of(message: Fields) -> int:
                return len(_encode(message)) if lifted is None else sum(map(len, lifted.written(message)))

            fitting = partial(request.fitting, messages, tokens, chat.get("max_tokens"), size_of)
            chat["messages"] = await self._services.shares.aside(fitting, size)

    def _making(self, context: RequestContext, asked: Asked) -> Making:
        return Making(asked, is_stored=self._is_kept(context, asked))

    def _is_kept(self, context: RequestContext, asked: Asked) -> bool:
        is_private = is_marked_private(context.request.headers)
        return self._services.server.store_responses and asked.store and not is_private

    async def _make_later(
        self,
        context: RequestContext,
        asked: Asked,
        submission: Submission,
        send: JsonSender,
        forced: ForcedCall | None,
    ) -> Response:
        if not self._services.server.store_responses:
            raise RequestError(
                "no response can be made in the background: none is stored here (server.store_responses)"
            )
        if not self._is_kept(context, asked):
            raise RequestError(
                "a private response cannot be made in the background, where it would be stored"
            )
        if not self._stasis.is_read and self._resuming is None:
            await self.resume()  # nothing was stored when this daemon started
        if len(self._background) >= RESPONSES_BACKGROUND_MAX:
            raise Overloaded(
                f"{RESPONSES_BACKGROUND_MAX} responses are being made in the background; try again later"
            )
        work = context.detached()
        made = self._begin(work, asked)
        try:
            await made.start(submission, send, forced)  # raises what the scheduler refuses at once
        except TheirsError:
            self._background.pop(asked.id, None)
            raise
        if asked.id in self._background:
            await self._write_down(work, asked, made, submission)
        if asked.id not in self._background:
            self._leave_when_written(work.owner, asked.id)  # it ended meanwhile
        context.ticket, context.lane, context.model = work.ticket, work.lane, work.model
        return json_response(made.now(), context.lines())

    async def _write_down(
        self, work: RequestContext, asked: Asked, made: Background, submission: Submission
    ) -> None:
        """Makes a request outlive this daemon. Raises DiskFailed where it cannot, and withdraws the request.

        Its record comes first: the next daemon takes a request without one for a response that was deleted."""
        try:
            await self._put(work, asked, made.now(), durable=True)
            is_written = await self._store.is_written(work.owner, asked.id)
            # Its last record takes the place of this one: nothing is left to be made again.
            if made.has_ended:
                return await made.kept()
            if not is_written:
                raise DiskFailed(
                    "the response cannot be kept, so it would not outlive the daemon: the disk refuses it, or it has "
                    f"more than {RESPONSE_BYTES_MAX} bytes; make room, or ask for it without background"
                )
            await self._stasis.enter(asked.id, work, asked.body, submission)
        except DiskFailed:
            await made.cancel()
            await self._store.delete(work.owner, asked.id)
            raise
        return None

    def _begin(self, work: RequestContext, asked: Asked, begun: Begun | None = None) -> Background:
        async def keep(final: Fields) -> None:
            await self._keep(work, asked, final, durable=True)
            if not final["store"] or await self._store.is_written(work.owner, asked.id):
                await self._stasis.leave(asked.id)
            else:  # only memory has it: a daemon that is killed now is followed by one that makes it again
                self._leave_when_written(work.owner, asked.id)
            self._background.pop(asked.id, None)

        made = Background(
            self._services, work, lambda: self._making(work, asked), keep, begun,
            on_start=lambda: self._spawn(self._stasis.begin(asked.id)),
        )  # fmt: skip
        self._background[asked.id] = made
        if self._noting is None:
            self._noting = asyncio.get_running_loop().create_task(self._note(), name="stasis")
        return made

    def _leave_when_written(self, owner: str, id: str) -> None:
        async def leave() -> None:
            await self._store.until_written(owner, id)
            await self._stasis.leave(id)

        self._spawn(leave())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="stasis")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _note(self) -> None:
        """Writes down now and then how far responses are."""
        noted: dict[str, int] = {}
        while True:
            await asyncio.sleep(RESPONSE_NOTED_MS / 1000)
            noted = {id: length for id, length in noted.items() if id in self._background}
            for id, made in list(self._background.items()):
                begun = made.begun()
                if len(begun.text) > noted.get(id, 0) and await self._stasis.note(id, begun):
                    noted[id] = len(begun.text)
                if made.is_waiting:
                    await self._stasis.rest(id)

    async def _go_on(self, parked: Parked) -> None:
        """Makes a response of an earlier daemon to its end. Raises DiskFailed."""
        await self._stasis.begin(parked.id)  # until it waits: reading it may be what takes daemons down
        services, token = self._services, parked.id.removeprefix("resp_")
        work = unsent("/v1/responses", _encode(parked.body), parked.headers)
        try:
            work.key = key_of(services, parked.owner, "response")
            asked = replace(request.read(parked.body, token=token), reach=parked.reach)
            record = await self._record((parked.owner,), parked.id)
        except DiskFailed:  # whether it is still to be made is not known
            await self._stasis.rest(parked.id)
            raise
        except TheirsError as error:  # by today's config it cannot be made: its record says that it failed
            _log.warning("response=%s is not made any more: %s", parked.id, error)
            return await self._stasis.leave(parked.id)
        if record is None or not record.was_unfinished:
            # Its daemon was killed between the two, or it was deleted.
            return await self._stasis.leave(parked.id)

        async def prepare() -> tuple[Submission, JsonSender, ForcedCall | None]:
            work.request.pieces = [_encode(parked.body)]
            _, (submission, chat, forced) = await self._read(work, token=token)
            reach = max(submission.reach, parked.reach)
            submission = msgspec.structs.replace(submission, reach=reach)
            return submission, JsonSender(chat, "/v1/chat/completions"), forced

        await self._stasis.rest(parked.id)
        self._begin(work, asked, parked.begun).go_on(prepare)
        return None

    # ------------------------------------------------------------------ kept ones

    async def retrieve(self, context: RequestContext) -> Response:
        """GET /v1/responses/{id}."""
        if _query(context, "stream") == "true":
            raise RequestError("a kept response cannot be streamed; ask for it without stream")
        record = await self._find(context)
        return json_response(record.response, context.lines())

    async def delete(self, context: RequestContext) -> Response:
        """DELETE /v1/responses/{id}."""
        record = await self._find(context)
        id = str(record.response["id"])
        if (made := self._background.get(id)) is not None:
            await made.cancel()
        for owner in context.owners:
            await self._store.delete(owner, id)
        return json_response({"id": id, "object": "response", "deleted": True}, context.lines())

    async def cancel(self, context: RequestContext) -> Response:
        """POST /v1/responses/{id}/cancel: only one that is made in the background can be."""
        record = await self._find(context)
        response = record.response
        if (made := self._background.get(str(response["id"]))) is not None:
            response = await made.cancel()
        elif record.was_unfinished and self._resuming is not None:
            raise DiskFailed("the response waits for the disk, and cannot be cancelled before; make room")
        elif not response.get("background"):
            raise RequestError(
                "only a response that is made in the background can be cancelled; close the connection"
            )
        return json_response(response, context.lines())

    async def input_items(self, context: RequestContext) -> Response:
        """GET /v1/responses/{id}/input_items: those of this turn, the newest first."""
        items = (await self._find(context)).input
        if _query(context, "order") != "asc":
            items = items[::-1]
        after, limit = _query(context, "after"), _query(context, "limit") or str(_PAGE)
        if not limit.isdecimal() or not 1 <= int(limit[:4]) <= LIST_ITEMS_MAX:
            raise RequestError(f"limit must be a whole number from 1 to {LIST_ITEMS_MAX}")
        begin = next((at + 1 for at, item in enumerate(items) if item["id"] == after), 0)
        page = items[begin : begin + int(limit)]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        told = {
            "object": "list",
            "data": [as_listed(item) for item in page],
            **ends,
            "has_more": begin + len(page) < len(items),
        }
        return json_response(told, context.lines())

    async def _find(self, context: RequestContext) -> _Record:
        """The response that the address names. Raises NotFound."""
        id = context.request.match["id"]
        record = await self._record(context.owners, id)
        if record is None:
            raise NotFound(f"no response {quoted(id)} is kept here for this key; they are kept for a day")
        return record

    async def _record(self, owners: tuple[str, ...], id: str) -> _Record | None:
        if not self._services.server.store_responses:
            return None
        # Looked for first: it may end while its file, which says that it has not, is being read.
        made = self._background.get(id)
        for owner in owners:
            if (content := await self._store.get(owner, id)) is not None:
                break
        else:
            return None
        try:
            record = await self._services.shares.aside(lambda: _decode(content), len(content))
        except (msgspec.DecodeError, UnicodeDecodeError):  # a power cut left its file empty, or half of it
            _log.warning("response=%s is not kept any more: its file is damaged", id)
            await self._store.delete(owner, id)
            return None
        if record.response.get("status") in _UNFINISHED:
            record.was_unfinished = True
            if made is not None:
                record.response = made.now()
            elif self._resuming is None:
                record.response = restarted(record.response)
        record.size = len(content)
        return record

    async def _keep(
        self, context: RequestContext, asked: Asked, final: Fields, *, durable: bool = False
    ) -> None:
        """Keeps a response; one that cannot be says so itself."""
        if final["store"] and not await self._put(context, asked, final, durable=durable):
            final["store"] = False

    async def _put(
        self, context: RequestContext, asked: Asked, response: Fields, *, durable: bool = False
    ) -> bool:
        reach = asked.reach if context.ticket is None else max(asked.reach, context.ticket.request.reach)
        record = {"response": response, "input": asked.input, "reach": reach}
        lifted = context.lifted
        pieces = [_encode(record)] if lifted is None else lifted.written(record)
        return await self._store.put(context.owner, asked.id, cast("list[bytes]", pieces), durable=durable)

    # ------------------------------------------------------------------ conversations

    async def _conversation(self, owners: tuple[str, ...], asked: Asked) -> tuple[list[Fields], int, Reach]:
        """Everything that was said, in order: the earlier turns, then the request's own items; the bytes of the earlier
        ones; and where it may be sent, by the strictest of them."""
        items, reach = await self._resolved(owners, asked.input)
        turns, previous, size = [items], asked.previous, 0
        while previous is not None:
            record = await self._record(owners, previous)
            if record is None:
                raise PreviousNotFound(
                    f"no response {quoted(previous)} is kept here for this key; send its items as input"
                )
            size += record.size
            if size > RESPONSE_TURNS_BYTES_MAX or len(turns) > RESPONSE_TURNS_MAX:
                raise TooLarge(
                    "the conversation before this response is too long; begin a new one with its last items"
                )
            if record.response["status"] in _UNFINISHED:
                raise RequestError(f"{previous} is still being made; wait for its end")
            items, of_items = await self._resolved(owners, record.items())
            turns.append(items)
            reach = max(reach, record.reach, of_items)
            before = record.response.get("previous_response_id")
            previous = before if isinstance(before, str) else None
            await asyncio.sleep(0)  # small turns are decoded at once; other requests go between two
        return [item for turn in reversed(turns) for item in turn], size, reach

    async def _resolved(self, owners: tuple[str, ...], items: list[Fields]) -> tuple[list[Fields], Reach]:
        """The items, with those that references mean in their place, and where those may be sent."""
        if all(item["type"] != "item_reference" for item in items):
            return items, Reach.ANYWHERE
        found = [
            await self._referenced(owners, str(item["id"]))
            if item["type"] == "item_reference"
            else (item, Reach.ANYWHERE)
            for item in items
        ]
        return [item for item, _ in found], max(reach for _, reach in found)

    async def _referenced(self, owners: tuple[str, ...], id: str) -> tuple[Fields, Reach]:
        token = token_of(id)
        record = None if token is None else await self._record(owners, f"resp_{token}")
        found = [] if record is None else [item for item in record.items() if item["id"] == id]
        if not found or found[0]["type"] == "item_reference":
            raise RequestError(f"no item {quoted(id)} is kept here for this key; send the item itself")
        return found[0], Reach.ANYWHERE if record is None else record.reach


def _restored(body: Fields, lifted: Lifted) -> Fields:
    """A large body with the long texts that are not only passed on: those that the response repeats, and thoughts that
    a client kept for us. Raises TooLarge."""
    given = body.get("input")
    items = cast("list[object]", given) if isinstance(given, list) else []
    looked_at: Fields = {name: value for name, value in body.items() if name != "input"}
    looked_at["input"] = [item for item in items if _is_thought(item)]
    found = lifted.restore(looked_at, RESPONSE_BYTES_MAX)
    if found is looked_at:
        raise TooLarge(f"the request has more than {RESPONSE_BYTES_MAX} bytes beside its input")
    whole = cast("Fields", found)
    thoughts = iter(cast("list[object]", whole["input"]))
    whole["input"] = [next(thoughts) if _is_thought(item) else item for item in items] if items else given
    return whole


def _is_thought(item: object) -> bool:
    return isinstance(item, dict) and cast("Fields", item).get("type") == "reasoning"


def _query(context: RequestContext, name: str) -> str:
    return parse_qs(context.request.target.partition("?")[2]).get(name, [""])[0]


class _ResponseOut(StreamOut):
    """A stream of a response's events."""

    def __init__(
        self, context: RequestContext, making: Making, keep: Callable[[Fields], Awaitable[None]]
    ) -> None:
        super().__init__(context)
        self._making = making
        self._keep = keep

    async def comment(self, text: str) -> None:
        if self._making.is_begun:
            await super().comment(text)
        else:
            await self._send(self._making.wait(self.context.model))

    async def write(self, piece: bytes) -> None:
        await self._send(self._making.feed(piece, self.context.model))

    async def flush(self) -> None:
        await self._send_last(*self._making.end(self.context.model))

    async def fail(self, error: TheirsError) -> None:
        await self._send_last(*self._making.fail(error, self.context.model))

    async def fall_back(self, fallback: Fallback) -> None:
        await self._send_last(*self._making.fall_back(fallback))

    def has_ended(self, tail: bytes) -> bool:
        return self._making.is_ended

    async def _send(self, events: Iterable[Fields]) -> None:
        """Small events go together. Large ones, such as those that repeat a whole text, each have their own turn.

        Where making one of them fails, those before it are sent first."""
        pieces, size = list[bytes](), 0
        try:
            for each in events:
                pieces.append(event(each, str(each["type"])))
                size += len(pieces[-1])
                if size > JSON_AT_ONCE_BYTES_MAX:
                    await self.send(b"".join(pieces))
                    await asyncio.sleep(0)
                    pieces, size = [], 0
        finally:
            await self.send(b"".join(pieces))

    async def _send_last(self, events: list[Fields], final: Fields) -> None:
        """Keeps the response first: who has seen its end may go on from it."""
        await self._keep(final)
        await self._send(events)
