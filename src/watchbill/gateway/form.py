"""Forms with files (multipart/form-data): taken apart to find out which model is meant, and put together again.

Does no I/O. Strict where a sloppy reading could differ from the engine's: every part has one name, a field that we
act on is given once, and the body ends where its boundary says. Files pass byte for byte.
"""

import re
from dataclasses import dataclass
from email.message import Message
from typing import cast

from watchbill.errors import RequestError, UnsupportedMedia

__all__ = ["Form", "Part", "parse_form"]

#: A form of an audio request has about ten parts.
FORM_PARTS_MAX = 64
#: The headers of one part, and a text that is looked at.
FORM_HEAD_BYTES_MAX = 4_096
FORM_TEXT_BYTES_MAX = 65_536
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=?]{1,70}")
_DISPOSITION = re.compile(rb"(?im)^content-disposition:[ \t]*(.+?)[ \t]*\r?$")
#: One parameter of it: a token, or a quoted text in which a backslash protects the next character.
_PARAMETER = re.compile(r'[ \t]*;[ \t]*([\w!#$%&*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";=]+))', re.ASCII)


@dataclass(frozen=True, slots=True)
class Part:
    """One field or file of a form."""

    name: str
    head: bytes
    content: bytes
    is_file: bool


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
                raise RequestError(f"the form has {part.name[:60]!a} twice")
            found[part.name] = _decoded(part)
        return found

    def encode(self, model: str | None, without: frozenset[str]) -> bytes:
        """The form as it goes to an engine: under its own name of the model, and without our own fields."""
        pieces: list[bytes] = []
        for part in self.parts:
            if part.name in without and not part.is_file:
                continue
            content = model.encode() if model and part.name == "model" and not part.is_file else part.content
            pieces.append(b"--%b\r\n%b\r\n\r\n%b\r\n" % (self.boundary.encode(), part.head, content))
        return b"".join([*pieces, b"--%b--\r\n" % self.boundary.encode()])


def parse_form(body: bytes, content_type: str) -> Form:
    """The form in a body. Raises UnsupportedMedia for another kind of body, RequestError for a broken one."""
    boundary = _boundary(content_type)
    line = b"\r\n--" + boundary.encode()
    whole = b"\r\n" + body
    if whole.count(line) > FORM_PARTS_MAX + 1:
        raise RequestError(f"the form has more than {FORM_PARTS_MAX} parts")
    first, *pieces = whole.split(line)
    if first or not pieces or pieces[-1].strip(b" \t\r\n") != b"--":
        raise RequestError("the form does not begin and end with its boundary")
    return Form(boundary, tuple(_part(piece) for piece in pieces[:-1]))


def _boundary(content_type: str) -> str:
    said = Message()
    said["Content-Type"] = content_type if content_type.isascii() else ""
    if said.get_content_type() != "multipart/form-data":
        raise UnsupportedMedia("this address takes a form with a file: multipart/form-data")
    boundary = said.get_boundary("")
    if not _BOUNDARY.fullmatch(boundary):
        raise RequestError("the form's boundary is missing or malformed")
    return boundary


def _part(piece: bytes) -> Part:
    head, end, content = piece.partition(b"\r\n\r\n")
    found = _DISPOSITION.findall(head)
    if not head.startswith(b"\r\n") or not end or len(head) > FORM_HEAD_BYTES_MAX or len(found) != 1:
        raise RequestError("a part of the form must have one Content-Disposition")
    try:
        parameters = _parameters(cast("bytes", found[0]).decode())
    except UnicodeDecodeError:
        raise RequestError("a part of the form has a name that is not UTF-8") from None
    name = parameters.get("name")
    if not name or "name*" in parameters:
        raise RequestError("a part of the form has no name, or two")
    return Part(name, head[2:], content, any(each.startswith("filename") for each in parameters))


def _parameters(disposition: str) -> dict[str, str]:
    """What a Content-Disposition says of its part. Raises RequestError for one that could be read in two ways."""
    kind, found = disposition.partition(";")[0], dict[str, str]()
    at = len(kind)
    if kind.strip().lower() != "form-data":
        raise RequestError("a part of the form is no form-data")
    while at < len(disposition):
        parameter = _PARAMETER.match(disposition, at)
        if parameter is None or parameter[1].lower() in found:
            raise RequestError("a part of the form has a Content-Disposition that cannot be read")
        quoted = parameter[2]
        found[parameter[1].lower()] = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = parameter.end()
    return found


def _decoded(part: Part) -> str:
    try:
        return part.content.decode()
    except UnicodeDecodeError:
        raise RequestError(f"the form's {part.name[:60]!a} is not UTF-8") from None
