"""Forms with files (multipart/form-data): taken apart, whole or as they arrive, and put together again.

A form that is passed on is taken apart whole, to find out which model is meant (`parse_form`). One whose file goes to
the disk is taken apart as it arrives (`FormReader`), by the same rules. Does no I/O. Strict where a sloppy reading
could differ from the engine's: every part has one name, a field that we act on is given once, and the body ends where
its boundary says. Files pass byte for byte, and are not copied: a form may be as large as a body, so it is looked
through in windows, with the event loop in between, and everything else about it is bounded before it is looked at.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from enum import Enum
from typing import cast

from watchbill.errors import RequestError, UnsupportedMedia
from watchbill.gateway.lifting import Piece
from watchbill.gateway.limits import (
    FORM_END_BYTES_MAX,
    FORM_HEAD_BYTES_MAX,
    FORM_HEAD_LINES_MAX,
    FORM_PARAMETERS_MAX,
    FORM_PARTS_MAX,
    FORM_TEXT_BYTES_MAX,
)
from watchbill.limits import JSON_WINDOW_BYTES
from watchbill.quoting import quoted

__all__ = ["Content", "Form", "FormReader", "Part", "PartHead", "parse_form"]

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=?]{1,70}")
#: One parameter of it: a token, or a quoted text in which a backslash protects the next character.
_PARAMETER = re.compile(r'[ \t]*;[ \t]*([\w!#$%&*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";=]+))', re.ASCII)


@dataclass(frozen=True, slots=True)
class Part:
    """One field or file of a form."""

    name: str
    head: bytes
    content: Piece
    is_file: bool


@dataclass(frozen=True, slots=True)
class PartHead:
    """What the headers of a part say."""

    name: str
    filename: str
    is_file: bool


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the content of the part whose head came last."""

    piece: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """A form, part by part."""

    boundary: str
    parts: tuple[Part, ...]

    @property
    def content_type(self) -> str:
        """The header that goes with `encode`."""
        return f'multipart/form-data; boundary="{self.boundary}"'

    def texts(self) -> dict[str, object]:
        """The fields that are texts, by name. Raises RequestError for one given twice, or no text at all."""
        found: dict[str, object] = {}
        for part in self.parts:
            if part.is_file or part.name.endswith("[]") or len(part.content) > FORM_TEXT_BYTES_MAX:
                continue
            if part.name in found:
                raise RequestError(f"the form has {quoted(part.name)} twice")
            found[part.name] = _decoded(part)
        return found

    def encode(self, model: str | None, without: frozenset[str]) -> list[bytes]:
        """The form as it goes to an engine, in pieces: under its own name of the model, and without our own fields."""
        pieces: list[Piece] = []
        for part in self.parts:
            if part.name in without and not part.is_file:
                continue
            content = model.encode() if model and part.name == "model" and not part.is_file else part.content
            pieces += (b"--%b\r\n%b\r\n\r\n" % (self.boundary.encode(), part.head), content, b"\r\n")
        pieces.append(b"--%b--\r\n" % self.boundary.encode())
        return cast("list[bytes]", pieces)  # who writes them to a socket takes views as well


class _At(Enum):
    """Where a reader is."""

    BOUNDARY = "boundary"  # the first one
    AFTER = "after"  # right behind a boundary
    HEAD = "head"
    CONTENT = "content"
    END = "end"


class FormReader:
    """Takes a form apart as it arrives. `finish` says whether it was whole."""

    def __init__(self, content_type: str) -> None:
        """Raises UnsupportedMedia for another kind of body, RequestError for one without a boundary."""
        self._line = b"\r\n--" + _boundary(content_type).encode()
        self._held = bytearray(b"\r\n")  # the first boundary has no line before it
        self._at = _At.BOUNDARY
        self._parts = 0

    def feed(self, piece: bytes) -> Iterator[PartHead | Content]:
        """The heads of parts, and the pieces of their contents. Raises RequestError for a broken form."""
        self._held += piece
        while True:
            before = self._at, len(self._held)
            if self._at is _At.BOUNDARY:
                self._begin()
            elif self._at is _At.AFTER:
                self._choose()
            elif self._at is _At.HEAD:
                if (head := self._head()) is not None:
                    yield head
            elif self._at is _At.CONTENT:
                if content := self._content():
                    yield Content(content)
            elif len(self._held) > FORM_END_BYTES_MAX or self._held.strip(b" \t\r\n"):
                raise _unbounded()
            if before == (self._at, len(self._held)):
                return

    def finish(self) -> None:
        """The body is over. Raises RequestError when the form is not."""
        if self._at is not _At.END:
            raise _unbounded()

    def _begin(self) -> None:
        """A line end before the first boundary, which some clients send, is no part of the form."""
        for begin in (self._line, b"\r\n" + self._line):
            if self._held.startswith(begin):
                del self._held[: len(begin)]
                self._at = _At.AFTER
                return
            if begin.startswith(bytes(self._held[: len(begin)])):
                return  # not enough of it yet
        raise _unbounded()

    def _choose(self) -> None:
        if len(self._held) < 2:
            return
        follows = bytes(self._held[:2])
        if follows == b"--":
            self._at = _At.END
        elif follows == b"\r\n":
            self._at = _At.HEAD
            self._parts += 1
        else:
            raise _unbounded()
        if self._parts > FORM_PARTS_MAX:
            raise RequestError(f"the form has more than {FORM_PARTS_MAX} parts")
        del self._held[:2]

    def _head(self) -> PartHead | None:
        blank = self._held.find(b"\r\n\r\n", 0, FORM_HEAD_BYTES_MAX + 4)
        if blank < 0:
            if len(self._held) > FORM_HEAD_BYTES_MAX:
                raise RequestError(
                    f"the headers of a part of the form have more than {FORM_HEAD_BYTES_MAX} bytes"
                )
            return None
        head = _read_head(bytes(self._held[:blank]))
        del self._held[: blank + 4]
        self._at = _At.CONTENT
        return head

    def _content(self) -> bytes:
        cut = self._held.find(self._line)
        if cut >= 0:
            content = bytes(self._held[:cut])
            del self._held[: cut + len(self._line)]
            self._at = _At.AFTER
            return content
        sure = max(0, len(self._held) - len(self._line) + 1)  # a boundary may lie across two pieces
        content = bytes(self._held[:sure])
        del self._held[:sure]
        return content


async def parse_form(body: bytes | bytearray, content_type: str) -> Form:
    """The form in a body. Raises UnsupportedMedia for another kind of body, RequestError for a broken one."""
    boundary = _boundary(content_type)
    line = b"\r\n--" + boundary.encode()
    before = 2 if body.startswith(b"\r\n") else 0  # as in `FormReader`
    if not body.startswith(line[2:], before):
        raise _unbounded()
    begin, parts = before + len(line) - 2, list[Part]()
    for cut in await _cuts(body, line, begin):
        parts.append(_part(body, begin, cut))
        begin = cut + len(line)
    if len(body) - begin > FORM_END_BYTES_MAX or body[begin:].strip(b" \t\r\n") != b"--":
        raise _unbounded()
    return Form(boundary, tuple(parts))


async def _cuts(body: bytes | bytearray, line: bytes, at: int) -> list[int]:
    """Where the parts end, of which the first begins here. Raises RequestError when there are too many."""
    cuts = list[int]()
    while at < len(body):
        stop = at + JSON_WINDOW_BYTES + len(line)
        cut = body.find(line, at, stop)
        if cut < 0:
            at = stop - len(line) + 1  # a boundary may lie across two windows
            if at < len(body):
                await asyncio.sleep(0)
            continue
        cuts.append(cut)
        at = cut + len(line)
        if len(cuts) > FORM_PARTS_MAX:
            raise RequestError(f"the form has more than {FORM_PARTS_MAX} parts")
    return cuts


def _unbounded() -> RequestError:
    return RequestError("the form does not begin and end with its boundary")


def _boundary(content_type: str) -> str:
    said = Message()
    said["Content-Type"] = content_type if content_type.isascii() else ""
    if said.get_content_type() != "multipart/form-data":
        raise UnsupportedMedia("this address takes a form with a file: multipart/form-data")
    boundary = said.get_boundary("")
    if not _BOUNDARY.fullmatch(boundary):
        raise RequestError("the form's boundary is missing or malformed")
    return boundary


def _part(body: bytes | bytearray, begin: int, end: int) -> Part:
    blank = body.find(b"\r\n\r\n", begin, min(end, begin + FORM_HEAD_BYTES_MAX + 4))
    if blank < 0 and end - begin > FORM_HEAD_BYTES_MAX:
        raise RequestError(f"the headers of a part of the form have more than {FORM_HEAD_BYTES_MAX} bytes")
    if blank <= begin or not body.startswith(b"\r\n", begin):
        raise _undisposed()
    head = bytes(body[begin + 2 : blank])
    said = _read_head(head)
    return Part(said.name, head, memoryview(body)[blank + 4 : end], said.is_file)


def _read_head(head: bytes) -> PartHead:
    try:
        parameters = _parameters(_disposition(head).decode())
    except UnicodeDecodeError:
        raise RequestError("a part of the form has a name that is not UTF-8") from None
    name = parameters.get("name")
    if not name or "name*" in parameters:
        raise RequestError("a part of the form has no name, or two")
    is_file = any(each.startswith("filename") for each in parameters)
    return PartHead(name, parameters.get("filename", ""), is_file)


def _disposition(head: bytes) -> bytes:
    """What the one Content-Disposition among a part's headers says."""
    lines = head.split(b"\n", FORM_HEAD_LINES_MAX)
    if len(lines) > FORM_HEAD_LINES_MAX:
        raise RequestError(f"a part of the form has more than {FORM_HEAD_LINES_MAX} headers")
    fields = [line.removesuffix(b"\r").partition(b":") for line in lines]
    found = [value.strip(b" \t") for name, _, value in fields if name.lower() == b"content-disposition"]
    if len(found) != 1:
        raise _undisposed()
    return found[0]


def _undisposed() -> RequestError:
    return RequestError("a part of the form must have one Content-Disposition")


def _parameters(disposition: str) -> dict[str, str]:
    """What a Content-Disposition says of its part. Raises RequestError for one that could be read in two ways."""
    kind, found = disposition.partition(";")[0], dict[str, str]()
    at = len(kind)
    if kind.strip().lower() != "form-data":
        raise RequestError("a part of the form is no form-data")
    while at < len(disposition):
        parameter = _PARAMETER.match(disposition, at)
        if parameter is None or parameter[1].lower() in found or len(found) >= FORM_PARAMETERS_MAX:
            raise RequestError("a part of the form has a Content-Disposition that cannot be read")
        quoted = parameter[2]
        found[parameter[1].lower()] = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = parameter.end()
    return found


def _decoded(part: Part) -> str:
    try:
        return bytes(part.content).decode()
    except UnicodeDecodeError:
        raise RequestError(f"the form's {quoted(part.name)} is not UTF-8") from None
