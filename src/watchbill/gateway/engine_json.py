"""JSON of engines: decoded within bounds, so that no answer holds up everybody else.

An engine's event or answer is bounded in bytes already. A large one is a long text, an image, or vectors, which are
passed on undecoded. One with more values, or digits in a number, than a decoder reads quickly is refused.
"""

import re

import msgspec

from watchbill.errors import EngineFailed
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX, JSON_DIGITS_MAX, JSON_VALUES_MAX

__all__ = ["NO_STREAM", "Fields", "decode_fields", "is_decodable"]

NO_STREAM = "the engine's stream is no stream of JSON objects"

Fields = dict[str, object]
_decode = msgspec.json.Decoder(Fields).decode
_DIGITS = re.compile(rb"[0-9]{%d}" % (JSON_DIGITS_MAX + 1))


def is_decodable(text: bytes) -> bool:
    """Whether decoding takes a short time, whatever comes of it."""
    if len(text) <= JSON_AT_ONCE_BYTES_MAX:
        return True
    # One look after the other: most of what is too much has too many commas.
    is_long = any(text.count(mark) > JSON_VALUES_MAX for mark in (b",", b"[", b"{"))
    return not is_long and _DIGITS.search(text) is None


def decode_fields(text: bytes, complaint: str) -> Fields:
    """The object that an engine sent. Raises EngineFailed with a complaint when it is none, or too much of one."""
    if not is_decodable(text):
        raise EngineFailed(f"{complaint}: it has too many values, or digits in a number")
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailed(f"{complaint}: {error}") from None
