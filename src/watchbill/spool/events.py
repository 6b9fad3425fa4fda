"""Events as bytes: strict JSON in, strict JSON out, never altered in between.

An event is one JSON object on one line. `encode` refuses what a consumer could not read back; `decode`
refuses what would mean different things to different readers: NaN, duplicate keys, lone surrogates, more
than one line, nesting that would break a parser. Both raise EventRefused with the reason.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from watchbill.spool.faults import EventRefused
from watchbill.spool.limits import BUNDLE_BYTES_MAX, BUNDLE_LINES_MAX, DEPTH_MAX, EVENT_BYTES_MAX

__all__ = ["Event", "Id", "decode", "encode", "event_id", "id_digest", "refuse_bundle"]

Event = dict[str, Any]
Id = str | int

#: A reference cycle is found by the recursion limit: a check for cycles would cost every event time.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)


def _make_to_text() -> Callable[[Event], str]:
    """The C encoder itself: `JSONEncoder.encode` would make a new one for every event."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another Python than CPython
        return _encoder.encode
    encode_text = json.encoder.encode_basestring
    write = make(None, _encoder.default, encode_text, None, ":", ",", False, False, False)
    return lambda event: "".join(write(event, 0))


_to_text = _make_to_text()
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def encode(event: Mapping[str, Any] | bytes | str, bytes_max: int = EVENT_BYTES_MAX) -> bytes:
    """Return the event's line without newline. Text and bytes are checked and kept exactly as they are."""
    if not isinstance(event, dict):
        if isinstance(event, (bytes, str)):
            return _checked(_utf8(event) if isinstance(event, str) else event, bytes_max)
        if not isinstance(cast(object, event), Mapping):
            raise EventRefused(f"an event is a JSON object, not {type(event).__name__}")
        event = dict(event)
    try:
        line = _to_text(event).encode()
    except UnicodeEncodeError as error:
        raise EventRefused("the event holds a lone surrogate, which is not text") from error
    except RecursionError as error:
        raise EventRefused(f"the event is nested deeper than {DEPTH_MAX}") from error
    except (TypeError, ValueError) as error:
        raise EventRefused(f"the event is not JSON: {error}") from error
    if len(line) > bytes_max or _may_be_deep(line):
        _check_size(line, bytes_max)
        _check_depth(line)
    return line


def refuse_bundle(lines: Sequence[bytes]) -> None:
    """Raises EventRefused for lines that are too many, or too large together, for one bundle."""
    if len(lines) > BUNDLE_LINES_MAX or sum(map(len, lines)) + len(lines) > BUNDLE_BYTES_MAX:
        raise EventRefused(f"a bundle has {BUNDLE_LINES_MAX} lines, {BUNDLE_BYTES_MAX} bytes at most")


def decode(line: bytes) -> Event:
    """Return the event of one line, or raise EventRefused with a reason fit for a `.reason.json`."""
    if b"\n" in line:
        raise EventRefused("more than one line: an event is one line of JSON")
    if _may_be_deep(line):
        _check_depth(line)
    try:
        text = line.decode()
        event, end = _decoder.raw_decode(text) if text[:1] == "{" else (None, -1)
        if end != len(text):  # white space around it, or no event at all
            event = _decoder.decode(text)
        if "\\u" in text and _SURROGATE.search(text):
            _encoder.encode(event).encode()
    except UnicodeDecodeError as error:
        raise EventRefused(f"not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise EventRefused("a lone surrogate, which is not text") from error
    except (ValueError, RecursionError) as error:
        if line.startswith(codecs.BOM_UTF8):  # which cannot be seen
            raise EventRefused("a byte order mark before the JSON: save it as UTF-8 without one") from error
        raise EventRefused(f"not JSON: {error}" if line.strip() else "empty") from error
    if not isinstance(event, dict):
        raise EventRefused(f"an event is a JSON object, not {type(event).__name__}")
    return cast(Event, event)


def event_id(event: Mapping[str, Any], line: bytes, key: str = "id") -> Id:
    """Return the event's own id, a text or an integer, else the sha256 of its bytes."""
    value = event.get(key)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return "sha256:" + hashlib.sha256(line).hexdigest()


def id_digest(identifier: Id) -> bytes:
    """Return 16 bytes that stand for an id: short enough to remember a million, too long to collide."""
    if isinstance(identifier, int):  # 1 and "1" are two ids: with one digest the second event would be lost
        return hashlib.blake2b(str(identifier).encode(), digest_size=16, person=b"integer").digest()
    return hashlib.blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EventRefused("the event holds a lone surrogate, which is not text") from error


def _checked(line: bytes, bytes_max: int) -> bytes:
    line = line.removesuffix(b"\n")
    _check_size(line, bytes_max)
    decode(line)
    return line


def _check_size(line: bytes, bytes_max: int) -> None:
    if len(line) > bytes_max:
        raise EventRefused(f"the event has {len(line)} bytes, more than the limit of {bytes_max}")


def _may_be_deep(line: bytes) -> bool:
    """A quick check that spares most lines the slow one. A flat event passes without counting."""
    if line.find(b"{", 1) < 0 and b"[" not in line:
        return False
    return line.count(b"{") + line.count(b"[") > DEPTH_MAX


def _check_depth(line: bytes) -> None:
    """Refuse deep nesting before the parser recurses. Most lines pass before, by counting brackets alone."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(line):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
            if depth > DEPTH_MAX:
                raise EventRefused(f"the event is nested deeper than {DEPTH_MAX}")
        elif token in (b"}", b"]"):
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:64]!r} stands twice in one object")
    return table


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
