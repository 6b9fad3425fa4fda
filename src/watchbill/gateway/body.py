"""Bodies of requests: received in time and within their bounds, counted while they are held, and parsed.

A body counts from its first byte until its request is over: a request that waits or is served keeps it in memory. It
counts as it comes, not as it is announced, so a client that announces much and sends little takes nothing from others.
A body that is announced and does not fit any more is refused before it is sent. Beyond the bound there is a reserve for
small bodies, and another one for operators: large uploads can keep neither from being heard. The memory of large
bodies goes back to the system soon after their end.

Owns the limits of JSON: depth, number of values, numbers, texts. Whatever a client sends becomes a dict or a
TheirsError with status 4xx; what an engine gets is written anew. Never decompresses: a small compressed body may be a
very large one.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Protocol, cast

import msgspec

from watchbill.catalog import ApiKey, RequestRules, Server
from watchbill.decodable import collector_paused, has_long_number, json_decoder
from watchbill.engines.connection import Outgoing
from watchbill.errors import (
    LaneFull,
    Overloaded,
    ReceiptTimeout,
    RequestError,
    TooLarge,
    UnsupportedMedia,
)
from watchbill.gateway.form import Form, parse_form
from watchbill.gateway.http.messages import Request
from watchbill.gateway.lifting import ESCAPED_NAME, Lifted, lift
from watchbill.gateway.limits import (
    BODIES_RETRY_MS,
    BODY_RECEIPT_MS,
    BODY_RESERVES,
    BODY_SILENCE_MS,
    HEAP_RETURN_BYTES,
    HEAP_RETURN_MS,
    PLAIN_BODY_BYTES_MAX,
    SMALL_BODY_BYTES_MAX,
)
from watchbill.gateway.meters import MeteredRequest, Meters
from watchbill.limits import (
    JSON_AT_ONCE_BYTES_MAX,
    JSON_DEPTH_MAX,
    JSON_DIGITS_BYTES_MIN,
    JSON_TURN_MS,
    JSON_WINDOW_BYTES,
)
from watchbill.quoting import why_no_json
from watchbill.runtime.heap import return_freed
from watchbill.runtime.ticket import Start
from watchbill.units import format_bytes

__all__ = ["Bodies", "JsonSender", "encode", "parse_large", "parse_object"]

#: Keys that Watchbill acts on. Given twice, the engine might act on the other one.
_INTERPRETED = {
    name: f'"{name}"'.encode()
    for name in ("model", "stream", "stream_options", "priority", "ttl", "keep_alive", "n", "max_tokens")
}
_decode = json_decoder(object).decode
_encode = msgspec.json.Encoder().encode
Node = dict[str, "Node"] | list["Node"]  # as far as brackets go


class Holder(Protocol):
    """The context of a request, as far as its body is concerned."""

    request: Request
    key: ApiKey | None
    metered: MeteredRequest | None
    held: int  # bytes of the body that count as held
    gathered: int  # bytes of the answer that came in many small pieces
    lifted: Lifted | None


class Bodies:
    """The bodies of all requests: receives and parses each, and counts what is held, in all and per key."""

    def __init__(self, server: Server, meters: Meters) -> None:
        self._meters = meters
        # One large body is parsed at a time, so that other requests wait for one window and not for one of each.
        self._lifting = asyncio.Lock()
        self.held = 0
        self._of_key: dict[str, int] = {}
        self._released = 0  # since memory was last returned
        self._timer: asyncio.TimerHandle | None = None
        self.reconfigure(server)

    def reconfigure(self, server: Server) -> None:
        """Takes new bounds over; what is held stays."""
        self._one_max = server.body_max
        self._all_max = server.bodies_max
        self._reserve = server.bodies_max // BODY_RESERVES
        self._key_max = {key.name: key.bodies_max or server.key_bodies_max for key in server.keys}

    # ------------------------------------------------------------------ parsed

    async def read_object(self, context: Holder) -> dict[str, object]:
        """The JSON object in a request's body; long texts of a large one are lifted out (`gateway.lifting`)."""
        request = context.request
        self._admit(context)
        body = self._taken(context) if request.is_whole else await self._receive(context)
        if _is_parsed_at_once(body):
            return parse_object(body)
        async with self._turn_to_read():
            found, context.lifted = await parse_large(body)
            await asyncio.sleep(0)  # encoding it for an engine is a turn's work by itself
        return found

    async def read_plain(self, context: Holder) -> dict[str, object]:
        """The JSON object in a body that is never large. Raises TooLarge for one that is."""
        return await self.parse_plain(await self.read(context))

    async def parse_plain(self, body: bytes | bytearray) -> dict[str, object]:
        """As `read_plain`, of a body that was read."""
        _check_plain(body)
        if not _is_parsed_at_once(body):
            async with self._turn_to_read():
                await lift(body)  # refuses what takes long to decode; in a text it is welcome
        return parse_object(body)

    async def read_form(self, context: Holder) -> Form:
        """The form in a request's body. Raises UnsupportedMedia for another kind of body."""
        body, content_type = await self.read(context), context.request.headers.get("content-type", "")
        if len(body) <= JSON_WINDOW_BYTES:
            return await parse_form(body, content_type)
        async with self._turn_to_read():
            return await parse_form(body, content_type)

    @contextlib.asynccontextmanager
    async def _turn_to_read(self) -> AsyncGenerator[None]:
        """Raises Overloaded when it does not come, or the body is not read, in time."""
        try:
            async with asyncio.timeout(JSON_TURN_MS / 1000), self._lifting:
                yield
        except TimeoutError:
            raise Overloaded("too many large bodies came at once; try again later") from None

    # ------------------------------------------------------------------ received and counted

    async def read(self, context: Holder) -> bytes | bytearray:
        """The whole body. The bounds of its key, and of all bodies, are checked before it is received.

        Raises TooLarge, ReceiptTimeout, UnsupportedMedia, RequestError, LaneFull, Overloaded."""
        self._admit(context)
        return self._taken(context) if context.request.is_whole else await self._receive(context)

    def _taken(self, context: Holder) -> bytes:
        """A body that is here already: nearly always, because it came with its head. A single piece is not copied."""
        pieces = context.request.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        size = len(body)
        if size > self._one_max:
            raise _too_large(size, self._one_max)
        self._count(context, size, size)
        return body

    async def pieces(self, context: Holder, receipt_ms: int) -> AsyncGenerator[bytes]:
        """The body as it arrives, for a reader that holds none of it; so it is neither counted nor bounded here.

        Raises ReceiptTimeout, UnsupportedMedia, RequestError, LaneFull."""
        self._admit(context)
        loop = asyncio.get_running_loop()
        end = loop.time() + receipt_ms / 1000
        while True:
            try:
                async with asyncio.timeout_at(min(end, loop.time() + BODY_SILENCE_MS / 1000)):
                    piece = await context.request.more()
            except TimeoutError:
                raise ReceiptTimeout("the body did not arrive in time") from None
            if not piece:
                return
            yield piece

    def _admit(self, context: Holder) -> None:
        """Raises UnsupportedMedia, and LaneFull when the key has used up a bound."""
        key, headers = context.key, context.request.headers
        if key is not None and key.is_bounded and context.metered is None:
            context.metered = self._meters.enter(key)
        if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
            raise UnsupportedMedia("compressed requests are not accepted; send the JSON as it is")

    async def _receive(self, context: Holder) -> bytearray:
        request, limit = context.request, self._one_max
        announced = request.content_length
        if announced > limit:
            raise _too_large(announced, limit)
        self._check(context.key, announced, announced)
        loop = asyncio.get_running_loop()
        end = loop.time() + BODY_RECEIPT_MS / 1000
        body = bytearray()
        try:
            async with asyncio.timeout_at(loop.time() + BODY_SILENCE_MS / 1000) as patience:
                while piece := await request.more():
                    body += piece
                    if len(body) > limit:
                        raise _too_large(len(body), limit)
                    self._count(context, len(piece), max(announced, len(body)))
                    patience.reschedule(min(end, loop.time() + BODY_SILENCE_MS / 1000))
        except TimeoutError:
            raise ReceiptTimeout("the body did not arrive in time") from None
        return body

    def _count(self, context: Holder, size: int, whole: int) -> None:
        """Counts bytes that have come, of a body that has `whole`. Raises as `_check`, and counts nothing then."""
        key = context.key
        if key is not None or self.held + size > self._all_max:
            self._check(key, size, whole)
        self.held += size
        context.held += size
        if key is not None:
            self._of_key[key.name] = self._of_key.get(key.name, 0) + size

    def _check(self, key: ApiKey | None, size: int, whole: int) -> None:
        """Raises LaneFull or Overloaded when so many more bytes, of a body that has `whole`, are too many."""
        if key is not None:
            bound = self._key_max.get(key.name, self._all_max)
            if self._of_key.get(key.name, 0) + size > bound:
                raise LaneFull(
                    f"the bodies of key {key.name} would exceed its bodies_max of {format_bytes(bound)}; "
                    "wait for the requests that are open",
                    retry_after_ms=BODIES_RETRY_MS,
                )
        if self.held + size > self._bound(key, whole):
            raise Overloaded(
                f"the bodies of all requests would exceed server.bodies_max of {format_bytes(self._all_max)}; "
                "try again when others are done",
                retry_after_ms=BODIES_RETRY_MS,
            )

    def _bound(self, key: ApiKey | None, whole: int) -> int:
        """What all bodies may hold together for one more of this kind to come in."""
        if key is not None and key.admin:
            return self._all_max + 2 * self._reserve
        return self._all_max + (self._reserve if whole <= SMALL_BODY_BYTES_MAX else 0)

    def release(self, context: Holder) -> None:
        """The request is over: its body is not held any more, nor the pieces of its answer."""
        size, key, context.held = context.held, context.key, 0
        self.held -= size
        if key is not None and size:
            self._of_key[key.name] -= size
        self.note_freed(size + context.gathered)

    def note_freed(self, size: int) -> None:
        """So many bytes, in many pieces, were freed: of a body, or of an engine's answer that is one piece now."""
        self._released += size
        if self._released >= HEAP_RETURN_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAP_RETURN_MS / 1000, self._return)

    def _return(self) -> None:
        self._timer, self._released = None, 0
        asyncio.get_running_loop().run_in_executor(None, return_freed)


def _too_large(size: int, limit: int) -> TooLarge:
    """A body of this size, or of more, exceeds its bound."""
    return TooLarge(
        f"the body has {size} bytes or more, and server.body_max is {limit} ({format_bytes(limit)}); "
        "send less at once, or raise it in the config"
    )


async def parse_large(body: bytes | bytearray) -> tuple[dict[str, object], Lifted]:
    """The JSON object in a large body, with marks for its long texts. Raises RequestError, TooLarge."""
    frame, lifted = await lift(body)
    return parse_object(frame, is_disguised=False), lifted


def _is_parsed_at_once(body: bytes | bytearray) -> bool:
    """Whether parsing takes a short time; a long run of digits may be a number, which takes long, or be in a text."""
    size = len(body)
    return size < JSON_DIGITS_BYTES_MIN or (size <= JSON_AT_ONCE_BYTES_MAX and not has_long_number(body))


def parse_object(body: bytes | bytearray, *, is_disguised: bool | None = None) -> dict[str, object]:
    """The JSON object in a body. Raises RequestError for everything else. `is_disguised`: whether a field's name has an
    escaped letter, where that was looked at."""
    try:
        if len(body) < JSON_DIGITS_BYTES_MIN:
            value = _decode(body)
        else:
            with collector_paused():
                value = _decode(body)
    except RecursionError:
        raise RequestError(f"the body is nested deeper than {JSON_DEPTH_MAX}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"the body is not JSON: {why_no_json(error, body)}" if body else "the body is empty"
        raise RequestError(why) from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    found: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]  JSON has no other keys
    if body.count(b"[") + body.count(b"{") > JSON_DEPTH_MAX:
        _check_depth(found)
    if is_disguised is None:
        is_disguised = ESCAPED_NAME.search(body) is not None
    if is_disguised or _may_repeat_a_key(body, found):
        _check_duplicates(body)
    return found


def _check_plain(body: bytes | bytearray) -> None:
    """Raises TooLarge for a body at an address that never needs a large one."""
    if len(body) > PLAIN_BODY_BYTES_MAX:
        raise TooLarge(f"a body for this address has at most {PLAIN_BODY_BYTES_MAX} bytes")


def encode(value: dict[str, object]) -> bytes:
    """A body for an engine, written anew: what the engine reads is what was checked, byte for byte."""
    try:
        return _encode(value)
    except (OverflowError, ValueError, RecursionError) as error:
        raise RequestError(f"the body cannot be passed on: {error}") from None


#: A whole answer says how many tokens it took; a stream only when it is asked to.
_COUNTED: dict[str, object] = {"include_usage": True}


class JsonSender(msgspec.Struct, frozen=True):
    """Sends a body to the engine whose turn it is, under the name that the engine knows the model by."""

    body: dict[str, object]
    path: str
    is_streamed: bool = False  # the engine streams and tells its tokens, whatever the body says

    def __call__(self, start: Start) -> Outgoing:
        upstream = start.endpoint.upstream_model
        content = {**self.body, "model": upstream} if upstream else self.body
        if self.is_streamed:
            options = self.body.get("stream_options")
            counted = (
                {**cast("dict[str, object]", options), **_COUNTED} if isinstance(options, dict) else _COUNTED
            )
            content = {**content, "stream": True, "stream_options": counted}
        if start.rules is not None:
            content = _changed(content, start.rules, self.body.get("model"))
        return Outgoing(start.endpoint, "POST", self.path, encode(content))


def _changed(content: dict[str, object], rules: RequestRules, asked_as: object) -> dict[str, object]:
    """A body as the rules of a model have it, for a caller that asked for the model by this name."""
    kept = {name: value for name, value in content.items() if name not in rules.drop}
    own = rules.by_name.get(asked_as) if isinstance(asked_as, str) else None
    return {**kept, **rules.set, **(own or {})}


def _may_repeat_a_key(body: bytes | bytearray, found: dict[str, object]) -> bool:
    """Whether a key that we act on seems to be there twice: a quick look that spares most bodies the slow one."""
    for name in filter(_INTERPRETED.__contains__, found):  # noqa: SIM110  any() would take twice the time
        if body.count(_INTERPRETED[name]) > 1:
            return True
    return False


def _check_depth(value: dict[str, object]) -> None:
    level: list[Node] = [cast("Node", value)]
    for _ in range(JSON_DEPTH_MAX):
        # One loop without calls: a body of nothing but brackets has some hundred thousand of them.
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise RequestError(f"the body is nested deeper than {JSON_DEPTH_MAX}")


def _check_duplicates(body: bytes | bytearray) -> None:
    def refuse_repeated(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise RequestError("the body has the same key twice")

    try:
        json.loads(body, object_pairs_hook=refuse_repeated)
    except ValueError as error:  # what msgspec lets pass and the standard library does not: endless digits
        raise RequestError(f"the body is not JSON: {error}") from None
