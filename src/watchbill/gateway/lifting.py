"""Large bodies, read a little at a time: their long texts are lifted out and put back, byte for byte, on the way on.

A decoder works on a whole body at once, and no other request is served meanwhile: an image of 50 MB takes it 0.1
seconds, as many digits take seconds. So a large body is walked through in windows, with the event loop in between.
Texts that are long are checked and replaced by a short mark; what is left, the frame, is small, bounded (values,
fields, digits, bytes) and decoded like any other body. Handlers see the marks as texts, which begin as the text they
stand for does, and may put them anywhere, also into JSON within a text. `Lifted.fill` puts the texts in place of the
marks that are left in an engine's request, as pieces of the very body that came: they are neither decoded nor copied.

A mark holds a random word, so no client can write one. Does no I/O.
"""

import asyncio
import codecs
import re
import secrets
import string
from collections.abc import Callable
from typing import cast

import msgspec

from watchbill.decodable import (
    TEXT,
    count_values,
    end_of_run,
    end_of_whole,
    has_long_number,
    json_decoder,
    with_plain_quotes,
)
from watchbill.engines.connection import Outgoing
from watchbill.errors import RequestError, TooLarge
from watchbill.limits import (
    JSON_DIGITS_MAX,
    JSON_EXPONENT_VALUES,
    JSON_FIELDS_MAX,
    JSON_FRAME_BYTES_MAX,
    JSON_LIFTED_BYTES_MIN,
    JSON_LIFTED_MAX,
    JSON_VALUES_MAX,
    JSON_WINDOW_BYTES,
)
from watchbill.quoting import why_no_json
from watchbill.steps import Steps

__all__ = ["ESCAPED_NAME", "Lifted", "Piece", "lift"]

Piece = bytes | memoryview

#: The end of a field's name that has an escaped letter in it: it may be one that we act on, in disguise. JSON does not
#: ask to escape a letter, so hardly any body is looked at twice; no name that we act on is longer.
ESCAPED_NAME = re.compile(
    rb'\\u00(?:5[fF]|6[1-9a-fA-F]|7[0-9aA])(?:[a-z_]|\\u00[567][0-9a-fA-F]){0,14}"\s*+:'
)
#: How a text begins, as far as JSON writes it unchanged: dialects look at the first bytes of images.
_BEGINNING = re.compile(rb"[A-Za-z0-9+/:;,=_. -]{0,64}")
_MARK = "\x01"
_BASE64 = f"{string.ascii_letters}{string.digits}+/".encode()
#: The mark's last character as JSON has it, behind as many backslashes as texts within texts make of one.
_END = rb"(\\+)u0001"
#: The first half of a character that takes two escapes.
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_decode_text = msgspec.json.Decoder(str).decode
_decode = json_decoder(object).decode


class Lifted:
    """The long texts of one body."""

    def __init__(self) -> None:
        self._word = secrets.token_hex(8)
        self._marks = re.compile(self._word.encode() + rb"\.([0-9]+)" + _END)
        self._mark = re.compile(f"{_MARK}{self._word}\\.([0-9]+){_MARK}")
        self._shown = re.compile(rf"(?:\\+x01|{_MARK}| )?{self._word}(?:\.[0-9]+)?(?:\\+x01|{_MARK}| )?")
        self._texts: list[Piece] = []  # the inside of each, as it came

    def add(self, text: Piece) -> bytes:
        """Takes the inside of a text; gives what stands in its place, with quotes."""
        if len(self._texts) >= JSON_LIFTED_MAX:
            raise TooLarge(f"the body has more than {JSON_LIFTED_MAX} long texts")
        beginning = _BEGINNING.match(text)
        start = beginning.end() if beginning is not None else 0
        mark = f'"{bytes(text[:start]).decode()}\\u0001{self._word}.{len(self._texts)}\\u0001"'
        self._texts.append(text[start:])
        return mark.encode()

    def fill(self, outgoing: Outgoing) -> Outgoing:
        """An engine's request with the texts in place of the marks."""
        pieces = self._filled(outgoing.body)
        return msgspec.structs.replace(outgoing, body=pieces[0], rest=tuple(pieces[1:]))

    def written(self, value: object) -> list[Piece]:
        """A value as JSON with its texts, in pieces that are neither decoded nor copied."""
        return [*self._filled(msgspec.json.encode(value))]

    def restore(self, value: object, bytes_max: int) -> object:
        """A value with its texts; one that they would make too large is left without them."""
        pieces = self._filled(msgspec.json.encode(value))
        if sum(map(len, pieces)) > bytes_max:
            return value
        return _decode(b"".join(pieces))

    def without(self, value: object) -> object:
        """A value of which nothing is put back: each long text is its beginning, with dots behind it."""
        pieces = self._filled(msgspec.json.encode(value), lambda _: b"...")
        return _decode(b"".join(pieces))

    def hidden(self, message: str) -> str:
        """A message that quotes texts of the frame, with dots in place of marks, also where these are escaped."""
        return self._shown.sub("...", message)

    def size_of(self, text: str) -> int:
        """The bytes of a text of the frame with what was lifted out of it, as they came."""
        marks = list(self._mark.finditer(text))
        return len(text) + sum(len(self._texts[int(mark[1])]) - len(mark[0]) for mark in marks)

    def bytes_of(self, text: str, enough: int) -> int:
        """At least how many bytes a text has once it is decoded; not counted further than to `enough`."""
        marks = list(self._mark.finditer(text))
        size = len(text) - sum(len(mark[0]) for mark in marks)
        for mark in marks:
            piece, at = self._texts[int(mark[1])], 0
            while at < len(piece) and size <= enough:
                window = bytes(piece[at : at + JSON_WINDOW_BYTES])
                size += len(window) - window.count(b"\\") - 4 * window.count(b"\\u")
                at += len(window)
        return size

    def is_base64(self, text: str) -> Steps[bool]:
        """Whether a text of the frame, with what was lifted out of it, is base64; in steps, because it may be long."""
        found = self._mark.fullmatch(text, text.find(_MARK) if _MARK in text else 0)
        if found is None:
            return _is_base64(text.encode("utf-8", "replace"))
        piece, size = self._texts[int(found[1])], found.start()
        end = len(piece) - next((n for n in (2, 1) if bytes(piece[-n:]) == b"=" * n), 0)
        if not _is_base64_inside(text[:size].encode()):
            return False
        rest = b""  # a backslash at the end of a window: some clients write a slash as \/
        for at in range(0, end, JSON_WINDOW_BYTES):
            window = rest + bytes(piece[at : min(end, at + JSON_WINDOW_BYTES)])
            rest = b"\\" if window.endswith(b"\\") else b""
            window = window.removesuffix(b"\\").replace(b"\\/", b"/")
            if not _is_base64_inside(window):
                return False
            size += len(window)
            yield
        return not rest and (size + len(piece) - end) % 4 == 0

    def cut(self, text: str, most: int) -> str:
        """A text of the frame that stands for no more than the first bytes of it."""
        found = self._mark.search(text)
        if found is None or most <= found.start():
            return text[:most]
        piece = self._texts[int(found[1])]
        self._texts.append(piece[: _end_before(piece, most - found.start())])
        return f"{text[: found.start()]}{_MARK}{self._word}.{len(self._texts) - 1}{_MARK}"

    def _filled(self, frame: bytes, text_of: Callable[[int], Piece] | None = None) -> list[bytes]:
        text_of = text_of or self._texts.__getitem__
        pieces: list[Piece] = []
        done = 0
        for found in self._marks.finditer(frame):
            slashes = len(found[2])
            pieces.append(frame[done : found.start() - slashes - len("u0001")])
            pieces.append(_nested(text_of(int(found[1])), slashes))
            done = found.end()
        pieces.append(frame[done:])
        return cast("list[bytes]", pieces)  # who writes them to a socket takes views as well


def _is_base64(text: bytes) -> bool:
    end = len(text) - next((n for n in (2, 1) if text.endswith(b"=" * n)), 0)
    return len(text) % 4 == 0 and _is_base64_inside(text[:end])


def _is_base64_inside(text: bytes) -> bool:
    """Whether a text has only letters of base64, without those that fill up its end."""
    return not text.translate(None, _BASE64)


def _end_before(text: Piece, end: int) -> int:
    """Where the inside of a text may be cut: not behind `end`, and within no character and no escape."""
    if end >= len(text):
        return len(text)
    while end > 0 and text[end] & 0xC0 == 0x80:
        end -= 1
    from_here = max(0, end - 6)
    at = from_here + bytes(text[from_here:end]).rfind(b"\\")
    if at >= from_here and _is_escape(text, at) and at + (6 if text[at + 1] == ord("u") else 2) > end:
        end = at
    if end >= 6 and _FIRST_HALF.fullmatch(bytes(text[end - 6 : end])) and _is_escape(text, end - 6):
        end -= 6
    return end


def _is_escape(text: Piece, at: int) -> bool:
    """Whether this backslash begins an escape: it is not itself escaped."""
    before = at
    while before > 0 and text[before - 1] == ord("\\"):
        before -= 1
    return (at - before) % 2 == 0


def _nested(text: Piece, slashes: int) -> Piece:
    """The inside of a text, as it is written within a text (two backslashes for one), within one of those (four) ..."""
    while slashes > 1:
        text = bytes(text).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        slashes //= 2
    return text


async def lift(body: bytes | bytearray) -> tuple[bytes, Lifted]:
    """The frame of a large body, and the long texts that its marks stand for. Raises RequestError, TooLarge.

    No field of a frame has a name in disguise."""
    walk, view = _Walk(), memoryview(body)
    at = 0
    while at < len(body):
        at += walk.take(bytes(view[at : at + JSON_WINDOW_BYTES]))
        if at < len(body) and body[at] == ord('"'):
            end = await _end_of_text(body, at + 1)
            walk.put(view[at : end + 1])
            at = end + 1
        await asyncio.sleep(0)
    return b"".join(walk.frame), walk.lifted


class _Walk:
    """The frame of a body, as far as it has been seen."""

    def __init__(self) -> None:
        self.lifted = Lifted()
        self.frame: list[bytes] = []
        self._bytes = self._values = self._fields = 0
        self._tail = b""  # digits at the end of the last window may go on in this one

    def take(self, window: bytes) -> int:
        """Takes what is whole in a window that begins between texts; says how much that is."""
        plain = with_plain_quotes(window)
        end, done = end_of_whole(plain), 0
        whole, plain = window[:end], plain[:end]
        for text in TEXT.finditer(plain):
            if text.end() - text.start() >= JSON_LIFTED_BYTES_MIN:
                self._keep(whole[done : text.start()])
                self._keep(self.lifted.add(_checked(whole[text.start() : text.end()])))
                done = text.end()
        self._keep(whole[done:])
        if ESCAPED_NAME.search(whole) is not None:
            raise RequestError("the name of a field has an escaped letter; write it plainly in a large body")
        self._count(TEXT.sub(b'""', plain))
        return len(whole)

    def put(self, text: memoryview) -> None:
        """Takes a text that is longer than a window, or goes across two: a field's name may, too."""
        is_long = len(text) >= JSON_LIFTED_BYTES_MIN
        self._keep(self.lifted.add(text[1:-1]) if is_long else bytes(text))
        self._tail = b""

    def _keep(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > JSON_FRAME_BYTES_MAX:
            raise TooLarge(f"the body has more than {JSON_FRAME_BYTES_MAX} bytes beside its long texts")
        self.frame.append(piece)

    def _count(self, outside: bytes) -> None:
        """Bounds what makes decoding slow: numbers of many digits, many values, many fields."""
        if has_long_number(self._tail + outside):
            raise RequestError(f"the body has a number of more than {JSON_DIGITS_MAX} digits")
        self._tail = outside[-JSON_DIGITS_MAX:]
        self._values += count_values(outside)
        self._fields += outside.count(b":")
        if self._values > JSON_VALUES_MAX:
            raise TooLarge(
                f"the body has more than {JSON_VALUES_MAX} values; a number with an exponent counts as "
                f"{JSON_EXPONENT_VALUES + 1}, and one of many digits as several"
            )
        if self._fields > JSON_FIELDS_MAX:
            raise TooLarge(f"the body has more than {JSON_FIELDS_MAX} fields")


def _checked(text: bytes) -> bytes:
    """The inside of a text that fits a window. Raises RequestError when it is no JSON."""
    try:
        _decode_text(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {why_no_json(error, text)}") from None
    return text[1:-1]


async def _end_of_text(body: bytes | bytearray, at: int) -> int:
    """Where a long text ends, whose inside begins here. Raises RequestError when it is no JSON, or has no end."""
    characters = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    while at < len(body):
        end = end_of_run(body, at)
        is_over = end < len(body) and body[end] == ord('"')
        try:
            characters.decode(view[at:end], final=is_over)
        except UnicodeDecodeError as error:
            raise RequestError(f"the body is not JSON: {error.reason}") from None
        if is_over:
            return end
        if end == at:
            break
        at = end
        await asyncio.sleep(0)
    wrong = ValueError("a text has no end, or what JSON does not allow in one")
    raise RequestError(f"the body is not JSON: {why_no_json(wrong, bytes(view[at : at + 12]))}")
