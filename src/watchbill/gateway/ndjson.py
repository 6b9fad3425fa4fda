"""Newline-delimited JSON without any I/O: bytes in, lines out, and objects to lines.

Owns the bytes of a line that is not complete yet. Promises the same lines however the bytes were split; a line
larger than its bound is an error, so that an engine which never ends one cannot fill the memory.
"""

import msgspec

from watchbill.engines.sse import EventTooLarge
from watchbill.limits import NDJSON_LINE_BYTES_MAX

__all__ = ["LineReader", "line"]

_encode = msgspec.json.Encoder().encode


def line(value: object) -> bytes:
    """An object as one line."""
    return _encode(value) + b"\n"


class LineReader:
    """Turns a stream of bytes into its lines, without their ends. Empty lines are left out."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line that has no end yet; joined once, not for every piece
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes, in order. Raises EventTooLarge."""
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._parts, whole[0]])
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > NDJSON_LINE_BYTES_MAX or any(len(each) > NDJSON_LINE_BYTES_MAX for each in whole):
            raise EventTooLarge
        return [each for each in map(_without_return, whole) if each]

    def end(self) -> list[bytes]:
        """The last line, when the stream ended without a newline behind it."""
        last, self._parts, self._size = _without_return(b"".join(self._parts)), [], 0
        return [last] if last else []


def _without_return(text: bytes) -> bytes:
    return text.removesuffix(b"\r")
