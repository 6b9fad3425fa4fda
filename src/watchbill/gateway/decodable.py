"""What makes decoding JSON slow, and how a decoder is kept quick: numbers of many digits, many values, the collector.

A decoder works at once, and nobody else is served meanwhile. The time for a number grows with the square of its digits;
digits within a text are harmless. A tree of many values makes Python's collector go through it again and again although
JSON has no cycles, which takes ten times as long as decoding. Does no I/O.
"""

import gc
import re
from collections.abc import Generator
from contextlib import contextmanager

from watchbill.limits import JSON_DECODED_BYTES_MAX, JSON_DIGITS_BYTES_MIN, JSON_DIGITS_MAX, JSON_VALUES_MAX

__all__ = ["collector_paused", "is_decodable", "may_have_long_number"]

#: All digits are zeros after it: finding a run of them takes a twentieth of the time that a pattern does.
_ZEROS = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_LONG_RUN = b"0" * (JSON_DIGITS_MAX + 1)
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def may_have_long_number(text: bytes | bytearray) -> bool:
    """Whether there are so many digits in a row that decoding them may take long; they may also be in a text."""
    return len(text) >= JSON_DIGITS_BYTES_MIN and _has_long_run(text)


def is_decodable(text: bytes) -> bool:
    """Whether decoding at once takes a short time, whatever comes of it."""
    if len(text) < JSON_DIGITS_BYTES_MIN:
        return True
    if len(text) > JSON_DECODED_BYTES_MAX:
        return False
    if not _has_many_values(text) and not _has_long_run(text):
        return True
    outside = _TEXT.sub(b'""', text)  # what is within a text is one value, whatever it looks like
    return not _has_many_values(outside) and not _has_long_run(outside)


def _has_many_values(text: bytes) -> bool:
    # One look after the other: most of what is too much has too many commas.
    return any(text.count(mark) > JSON_VALUES_MAX for mark in (b",", b"[", b"{"))


def _has_long_run(text: bytes | bytearray) -> bool:
    return _LONG_RUN in text.translate(_ZEROS)


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
