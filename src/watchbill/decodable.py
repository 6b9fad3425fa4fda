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
    "collector_paused",
    "count_values",
    "end_of_run",
    "end_of_text",
    "end_of_whole",
    "has_long_number",
    "has_more_values",
    "is_decodable",
    "json_decoder",
    "with_plain_quotes",
]

T = TypeVar("T")

#: All digits are zeros after it, and exponents have a small letter: finding a run of them takes a twentieth of the time
#: that a pattern does.
_ZEROS = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256)).replace(b"E", b"e")
_LONG_RUN = b"0" * (JSON_DIGITS_MAX + 1)
_VALUE_RUN = b"0" * JSON_VALUE_DIGITS
#: A text with its quotes, where `with_plain_quotes` was. One that has no end is looked at once, not from each of the
#: quotes that are escaped in it.
TEXT = re.compile(rb'"[^"]*+"')

#: The inside of a text as JSON allows it: no control characters, no unknown escapes, no half of a surrogate pair.
#: No group here repeats possessively: before 3.11.5 Python does not go back to where the last repetition ended when the
#: next one fails halfway (gh-106052), and Debian 12 has 3.11.2.
_INSIDE = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|'
    rb'[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))[^"\\\x00-\x1f]*+)*'
)
_CONTROLS = bytes(range(32))


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder for what others wrote."""
    return msgspec.json.Decoder(kind, float_hook=_finite)


def _finite(text: str) -> float:
    """A number with a fraction or an exponent. Raises ValueError for one beyond all doubles: JSON has no infinity."""
    number = float(text)
    if number - number != 0.0:
        raise ValueError("Number out of range")
    return number


def with_plain_quotes(text: bytes) -> bytes:
    """The same number of bytes without escaped quotes and backslashes: every quote that is left begins or ends a text,
    unless there is a backslash outside of texts, which is no JSON."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def end_of_whole(plain: bytes) -> int:
    """Where the text begins that does not end in this window, which begins between texts; else the window's end."""
    return plain.rfind(b'"') if plain.count(b'"') % 2 else len(plain)


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
    if len(text) <= JSON_AT_ONCE_BYTES_MAX:
        return False
    at = values = 0
    while at < len(text) and values <= values_max:
        plain = with_plain_quotes(text[at : at + JSON_WINDOW_BYTES])
        whole = plain[: end_of_whole(plain)]
        values += count_values(TEXT.sub(b'""', whole))
        at += len(whole)
        if at < len(text) and text[at] == ord('"'):  # a text that does not end in this window
            at = end_of_text(text, at + 1) + 1
            if not at:
                return False  # it is no JSON, and decoding ends there
    return values > values_max


def end_of_text(text: bytes | bytearray, at: int) -> int:
    """Where a text ends, whose inside begins here; -1 for one that has no end, or is no JSON."""
    while at < len(text) and text[at] != ord('"'):
        end = end_of_run(text, at)
        if end == at:
            return -1
        at = end
    return at if at < len(text) else -1


def end_of_run(text: bytes | bytearray, at: int) -> int:
    """How far the inside of a text goes on, in one window; an escape across the window's border is looked at whole.

    What does not go on is the end of the text, or no JSON.
    """
    end = _end_in_window(text, at, min(at + JSON_WINDOW_BYTES, len(text)))
    return end if end > at else _end_in_window(text, at, min(at + 2 * JSON_WINDOW_BYTES, len(text)))


def _end_in_window(text: bytes | bytearray, at: int, stop: int) -> int:
    """Most texts have no escape: those are not looked at one by one."""
    quote = text.find(b'"', at, stop)
    until = stop if quote < 0 else quote
    if text.find(b"\\", at, until) < 0:
        run = bytes(memoryview(text)[at:until])
        if len(run.translate(None, _CONTROLS)) == len(run):
            return until
    found = _INSIDE.match(text, at, stop)
    return at if found is None else found.end()


def is_decodable(
    text: bytes, *, bytes_max: int = JSON_DECODED_BYTES_MAX, values_max: int = JSON_DECODED_VALUES_MAX
) -> bool:
    """Whether decoding at once takes a short time, whatever comes of it."""
    if len(text) < JSON_DIGITS_BYTES_MIN:
        return True
    if len(text) > bytes_max:
        return False
    # What is within a text is one value, whatever it looks like.
    return not _seems_slow(text, values_max) or not _seems_slow(
        TEXT.sub(b'""', with_plain_quotes(text)), values_max
    )


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
