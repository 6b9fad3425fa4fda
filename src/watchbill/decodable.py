"""What makes decoding JSON slow, and how a decoder is kept quick: hard numbers, many values, the collector.

A decoder works at once, and no other request is served meanwhile. The time for a number grows with the square of its
digits; digits within a text are harmless. msgspec itself reads a number near the ends of the doubles' range, or between
two of them, in 17 us, and any other one in 0.05: `json_decoder` gives decoders that leave such reading to Python, which
takes 0.2 to 2 us. In a large text these count as several values. A tree of many values makes Python's collector go
through it again and again although JSON has no cycles, which takes ten times as long as decoding. Does no I/O.
"""

import gc
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from watchbill.limits import (
    JSON_AT_ONCE_BYTES_MAX,
    JSON_DECODED_BYTES_MAX,
    JSON_DECODED_VALUES_MAX,
    JSON_DIGITS_BYTES_MIN,
    JSON_DIGITS_MAX,
    JSON_EXPONENT_VALUES,
    JSON_VALUE_DIGITS,
    JSON_WINDOW_BYTES,
)

__all__ = [
    "TEXT",
    "WHOLE",
    "collector_paused",
    "count_values",
    "has_long_number",
    "has_more_values",
    "is_decodable",
    "json_decoder",
]

T = TypeVar("T")

#: All digits are zeros after it, and exponents have a small letter: finding a run of them takes a twentieth of the time
#: that a pattern does.
_ZEROS = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256)).replace(b"E", b"e")
_LONG_RUN = b"0" * (JSON_DIGITS_MAX + 1)
_VALUE_RUN = b"0" * JSON_VALUE_DIGITS
#: A text with its quotes, and as many of them as a window holds with what is between them.
TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
WHOLE = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+")*+[^"]*+', re.DOTALL)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder for what others wrote."""
    return msgspec.json.Decoder(kind, float_hook=_finite)


def _finite(text: str) -> float:
    """A number with a fraction or an exponent. Raises ValueError for one beyond all doubles: JSON has no infinity."""
    number = float(text)
    if number - number != 0.0:
        raise ValueError("Number out of range")
    return number


def has_long_number(outside: bytes | bytearray) -> bool:
    """Whether there is a number of too many digits, in what is outside of texts."""
    return _LONG_RUN in outside.translate(_ZEROS)


def count_values(outside: bytes) -> int:
    """How many values there seem to be outside of texts, by the time that they take."""
    marks = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    return marks + _count_hard(outside.translate(_ZEROS))


def _count_hard(zeros: bytes) -> int:
    return zeros.count(b"0e") * JSON_EXPONENT_VALUES + zeros.count(_VALUE_RUN)


def has_more_values(text: bytes, values_max: int) -> bool:
    """Whether a large text seems to have more values than this. Looks at one window at a time, so that other threads
    go on in between, and no further than it has to."""
    if len(text) <= JSON_AT_ONCE_BYTES_MAX or count_values(text) <= values_max:
        return False
    at = values = 0
    while at < len(text) and values <= values_max:
        found = WHOLE.match(text, at, at + JSON_WINDOW_BYTES)
        assert found is not None  # it matches nothing, too
        values += count_values(TEXT.sub(b'""', found[0]))
        at = found.end()
        if at < len(text) and text[at] == ord('"'):  # a text that does not end in this window
            found = TEXT.match(text, at)
            if found is None:
                return False  # it is no JSON, and decoding ends there
            at = found.end()
    return values > values_max


def is_decodable(
    text: bytes, *, bytes_max: int = JSON_DECODED_BYTES_MAX, values_max: int = JSON_DECODED_VALUES_MAX
) -> bool:
    """Whether decoding at once takes a short time, whatever comes of it."""
    if len(text) < JSON_DIGITS_BYTES_MIN:
        return True
    if len(text) > bytes_max:
        return False
    # What is within a text is one value, whatever it looks like.
    return not _seems_slow(text, values_max) or not _seems_slow(TEXT.sub(b'""', text), values_max)


def _seems_slow(text: bytes, values_max: int) -> bool:
    # One look after the other: most of what is too much has too many commas.
    if any(text.count(mark) > values_max for mark in (b",", b"[", b"{")):
        return True
    zeros = text.translate(_ZEROS)
    if _LONG_RUN in zeros:
        return True
    return len(text) > JSON_AT_ONCE_BYTES_MAX and text.count(b",") + _count_hard(zeros) > values_max


@contextmanager
def collector_paused() -> Generator[None]:
    """The collector does not run within."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
