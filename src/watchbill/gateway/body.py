"""A request's body: received in time and within its bound, and parsed without surprises.

Owns the limits of JSON: depth, number of values, numbers, texts. Whatever a client sends becomes a dict or a
TheirsError with status 4xx. Never decompresses: a small compressed body may be a very large one.
"""

import asyncio
import json
import re
from typing import cast

import msgspec

from watchbill.errors import ReceiptTimeout, RequestError, TooLarge, UnsupportedMedia
from watchbill.gateway.bodies import Holding
from watchbill.gateway.http.request import Request
from watchbill.limits import (
    BODY_RECEIPT_MS,
    BODY_SILENCE_MS,
    JSON_DEPTH_MAX,
    PLAIN_BODY_BYTES_MAX,
)

__all__ = ["check_plain", "encode", "has_disguised_name", "parse_object", "read_body"]

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
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
Node = dict[str, "Node"] | list["Node"]  # as far as brackets go


async def read_body(request: Request, limit_bytes: int, holding: Holding) -> bytes | bytearray:
    """The whole body. Raises TooLarge, ReceiptTimeout, UnsupportedMedia, RequestError, LaneFull, Overloaded."""
    headers = request.headers
    if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
        raise UnsupportedMedia("compressed requests are not accepted; send the JSON as it is")
    if not request.is_whole:
        return await _receive(request, limit_bytes, holding)
    body = request.take()  # nearly always: it came with the head
    if len(body) > limit_bytes:
        raise TooLarge(f"the body exceeds {limit_bytes} bytes")
    holding.add(len(body))
    return body


async def _receive(request: Request, limit_bytes: int, holding: Holding) -> bytearray:
    if request.content_length > limit_bytes:
        raise TooLarge(f"the body exceeds {limit_bytes} bytes")
    holding.expect(request.content_length)
    loop = asyncio.get_running_loop()
    end = loop.time() + BODY_RECEIPT_MS / 1000
    body = bytearray()
    try:
        async with asyncio.timeout_at(loop.time() + BODY_SILENCE_MS / 1000) as patience:
            while piece := await request.more():
                body += piece
                if len(body) > limit_bytes:
                    raise TooLarge(f"the body exceeds {limit_bytes} bytes")
                holding.add(len(piece))
                patience.reschedule(min(end, loop.time() + BODY_SILENCE_MS / 1000))
    except TimeoutError:
        raise ReceiptTimeout("the body did not arrive in time") from None
    return body


def has_disguised_name(body: bytes | bytearray) -> bool:
    """Whether the name of a field may be one that we act on, written in another way."""
    return _ESCAPED_NAME.search(body) is not None


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
    if (has_disguised_name(body) if is_disguised is None else is_disguised) or _may_have_twins(body, found):
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
