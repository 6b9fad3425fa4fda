"""Bodies of requests: received in time and within their bounds, counted while they are held, and parsed.

A body counts from its first byte until its request is over: a request that waits or is served keeps it in memory. It
counts as it comes, not as it is announced, so a client that announces much and sends little takes nothing from others.
A body that is announced and does not fit any more is refused before it is sent. Beyond the bound there is a reserve for
small bodies, and another one for operators: large uploads can keep neither from being heard. The memory of large
bodies goes back to the system soon after their end.

Owns the limits of JSON: depth, number of values, numbers, texts. Whatever a client sends becomes a dict or a
TheirsError with status 4xx. Never decompresses: a small compressed body may be a very large one.
"""

import asyncio
import json
import re
from typing import Protocol, cast

import msgspec

from watchbill.catalog import ApiKey, Server
from watchbill.errors import (
    LaneFull,
    Overloaded,
    ReceiptTimeout,
    RequestError,
    TooLarge,
    UnsupportedMedia,
)
from watchbill.gateway.http.request import Request
from watchbill.limits import (
    BODIES_RETRY_MS,
    BODY_RECEIPT_MS,
    BODY_RESERVES,
    BODY_SILENCE_MS,
    HEAP_RETURN_BYTES,
    HEAP_RETURN_MS,
    JSON_DEPTH_MAX,
    JSON_DIGITS_BYTES_MIN,
    JSON_DIGITS_MAX,
    PLAIN_BODY_BYTES_MAX,
    SMALL_BODY_BYTES_MAX,
)
from watchbill.runtime.heap import return_freed
from watchbill.units import format_bytes

__all__ = ["Bodies", "check_plain", "encode", "has_disguised_name", "may_have_long_number", "parse_object"]

#: Keys that Watchbill acts on. Given twice, the engine might act on the other one.
_INTERPRETED = {
    name: f'"{name}"'.encode()
    for name in ("model", "stream", "stream_options", "priority", "ttl", "keep_alive", "n", "max_tokens")
}
#: The end of a field's name that has an escaped letter in it: it may be one of those in disguise. Nobody has to escape
#: a letter, so hardly any body is looked at twice; no name that we act on is longer.
_ESCAPED_NAME = re.compile(
    rb'\\u00(?:5[fF]|6[1-9a-fA-F]|7[0-9aA])(?:[a-z_]|\\u00[567][0-9a-fA-F]){0,14}+"\s*+:'
)
#: All digits are zeros after it: finding a run of them takes a twentieth of the time that a pattern does.
_ZEROS = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_LONG_RUN = b"0" * (JSON_DIGITS_MAX + 1)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
Node = dict[str, "Node"] | list["Node"]  # as far as brackets go


class Holder(Protocol):
    """The context of a request, as far as its body is concerned."""

    request: Request
    key: ApiKey | None
    held: int  # bytes of the body that count as held


class Bodies:
    """The bodies of all requests: receives each, and counts what is held, in all and per key."""

    def __init__(self, server: Server) -> None:
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

    async def read(self, context: Holder) -> bytes | bytearray:
        """The whole body. Raises TooLarge, ReceiptTimeout, UnsupportedMedia, RequestError, LaneFull, Overloaded."""
        request = context.request
        headers = request.headers
        if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
            raise UnsupportedMedia("compressed requests are not accepted; send the JSON as it is")
        if not request.is_whole:
            return await self._receive(context)
        body = request.take()  # nearly always: it came with the head
        size = len(body)
        if size > self._one_max:
            raise TooLarge(f"the body exceeds {self._one_max} bytes")
        self._count(context, size, size)
        return body

    async def _receive(self, context: Holder) -> bytearray:
        request, limit = context.request, self._one_max
        announced = request.content_length
        if announced > limit:
            raise TooLarge(f"the body exceeds {limit} bytes")
        self._check(context.key, announced, announced)
        loop = asyncio.get_running_loop()
        end = loop.time() + BODY_RECEIPT_MS / 1000
        body = bytearray()
        try:
            async with asyncio.timeout_at(loop.time() + BODY_SILENCE_MS / 1000) as patience:
                while piece := await request.more():
                    body += piece
                    if len(body) > limit:
                        raise TooLarge(f"the body exceeds {limit} bytes")
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
        """The request is over: its body is not held any more."""
        size, key, context.held = context.held, context.key, 0
        self.held -= size
        if key is not None:
            self._of_key[key.name] -= size
        self._released += size
        if self._released >= HEAP_RETURN_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAP_RETURN_MS / 1000, self._return)

    def _return(self) -> None:
        self._timer, self._released = None, 0
        asyncio.get_running_loop().run_in_executor(None, return_freed)


def has_disguised_name(body: bytes | bytearray) -> bool:
    """Whether the name of a field may be one that we act on, written in another way."""
    return _ESCAPED_NAME.search(body) is not None


def may_have_long_number(body: bytes | bytearray) -> bool:
    """Whether a body has so many digits in a row that decoding them may take long; they may also be in a text."""
    return len(body) >= JSON_DIGITS_BYTES_MIN and _LONG_RUN in body.translate(_ZEROS)


def parse_object(body: bytes | bytearray, *, is_disguised: bool | None = None) -> dict[str, object]:
    """The JSON object in a body. Raises RequestError for everything else. `is_disguised`: as `has_disguised_name` says,
    where that was asked."""
    try:
        value = _decode(body)
    except RecursionError:
        raise RequestError(f"the body is nested deeper than {JSON_DEPTH_MAX}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}" if body else "the body is empty") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    found: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]  JSON has no other keys
    if body.count(b"[") + body.count(b"{") > JSON_DEPTH_MAX:
        _check_depth(found)
    if is_disguised is None:
        is_disguised = _ESCAPED_NAME.search(body) is not None
    if is_disguised or _may_have_twins(body, found):
        _check_duplicates(body)
    return found


def check_plain(body: bytes | bytearray) -> None:
    """Raises TooLarge for a body at an address that never needs a large one."""
    if len(body) > PLAIN_BODY_BYTES_MAX:
        raise TooLarge(f"a body for this address has at most {PLAIN_BODY_BYTES_MAX} bytes")


def encode(value: dict[str, object]) -> bytes:
    """A body for an engine, written anew: what the engine reads is what was checked, byte for byte."""
    try:
        return _encode(value)
    except (OverflowError, ValueError, RecursionError) as error:
        raise RequestError(f"the body cannot be passed on: {error}") from None


def _may_have_twins(body: bytes | bytearray, found: dict[str, object]) -> bool:
    """Whether a key that we act on seems to be there twice: a quick look that spares most bodies the slow one."""
    for name in found:  # noqa: SIM110  any() would take twice the time
        if name in _INTERPRETED and body.count(_INTERPRETED[name]) > 1:
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
    def refuse_twins(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise RequestError("the body has the same key twice")

    try:
        json.loads(body, object_pairs_hook=refuse_twins)
    except ValueError as error:  # what msgspec lets pass and the standard library does not: endless digits
        raise RequestError(f"the body is not JSON: {error}") from None
