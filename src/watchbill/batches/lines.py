"""The lines of an input file: found, checked and indexed, however hostile the file is.

A file is read in pieces and a line is looked at alone, so neither its size nor that of a line costs memory beyond a
bound. Blank lines, a byte order mark, carriage returns and a missing last newline are no faults. What a line asks is
not judged here: that is the business of its address, and becomes the answer to that line alone.
"""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from watchbill.batches.batch import Fault
from watchbill.batches.limits import (
    BATCH_FAULTS_MAX,
    BATCH_ID_CHARS_MAX,
    BATCH_LINE_BYTES_MAX,
    BATCH_READ_BYTES,
)
from watchbill.decodable import has_more_values
from watchbill.files.atomic import open_regular
from watchbill.limits import JSON_VALUES_MAX
from watchbill.quoting import quoted, why_no_json

__all__ = ["InputLine", "LineIndex", "decode_line", "read_body", "read_line", "scan"]

_MARK = b"\xef\xbb\xbf"


class InputLine(msgspec.Struct):
    """One request."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    model: str = ""


_decode = msgspec.json.Decoder(InputLine).decode
_decode_name = msgspec.json.Decoder(_Named).decode


@dataclass(slots=True)
class LineIndex:
    """Where the lines of a file are, and the model that each of them names."""

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("L"))
    models: "array[int]" = field(default_factory=lambda: array("L"))  # places in `names`
    names: list[str] = field(default_factory=list[str])
    _places: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, offset: int, size: int, model: str) -> None:
        """Notes a line."""
        if model not in self._places:
            self._places[model] = len(self.names)
            self.names.append(model)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.models.append(self._places[model])

    def model_of(self, line: int) -> str:
        """The model that a line names."""
        return self.names[self.models[line]]

    def __len__(self) -> int:
        return len(self.offsets)


def scan(path: Path, endpoint: str, lines_max: int) -> tuple[LineIndex, list[Fault]]:
    """The lines of a file, and the first of those that are wrong. Raises FileNotFoundError, OSError."""
    index, faults, seen = LineIndex(), list[Fault](), set[str]()
    with open(open_regular(path), "rb", buffering=0) as file:
        for number, (offset, line) in enumerate(_lines(file), start=1):
            if line is not None and not line.strip():
                continue
            fault = _check(line, number, endpoint, seen, index, offset)
            if fault is None and len(index) > lines_max:
                fault = Fault(
                    "too_many_lines", f"the file has more than {lines_max} lines (batches.lines_max)"
                )
                return index, [*faults, fault]
            if fault is not None:
                faults.append(fault)
            if len(faults) >= BATCH_FAULTS_MAX:
                return index, faults
    if not faults and not len(index):
        faults.append(Fault("empty_file", "the file has no lines"))
    return index, faults


def read_line(fd: int, index: LineIndex, number: int) -> bytes:
    """The bytes of a line. Raises OSError."""
    return os.pread(fd, index.sizes[number], index.offsets[number])


def read_body(fd: int, index: LineIndex, number: int) -> bytes:
    """What a line asks. Raises OSError. Blocks: a large line takes longer to decode than other requests may wait."""
    return bytes(decode_line(read_line(fd, index, number)).body)


def decode_line(line: bytes) -> InputLine:
    """The request in a line that `scan` found right."""
    return _decode(line)


def _check(  # noqa: PLR0917  what a line is checked against
    line: bytes | None, number: int, endpoint: str, seen: set[str], index: LineIndex, offset: int
) -> Fault | None:
    """Notes a line that is right; else says what is wrong."""
    if line is None:
        text = f"the line has more than {BATCH_LINE_BYTES_MAX} bytes"
        return Fault("line_too_long", text, number)
    if has_more_values(line, JSON_VALUES_MAX):  # before it is decoded: millions of them take that 0.1 s
        return Fault("too_many_values", f"the line has more than {JSON_VALUES_MAX} values", number)
    try:
        asked = _decode(line)
        body = bytes(asked.body).lstrip(b" \t\r")
        model = _model_in(body)
    except msgspec.ValidationError as error:
        return Fault("missing_required_parameter", f"the line is no request: {error}", number)
    except RecursionError:
        return Fault("invalid_json_line", "the line is nested too deeply", number)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Fault("invalid_json_line", f"the line is not JSON: {why_no_json(error, line)}", number)
    fault = _judge(asked, body, number, endpoint, seen)
    if fault is None:
        seen.add(asked.custom_id)
        index.add(offset, len(line), model)
    return fault


def _judge(asked: InputLine, body: bytes, number: int, endpoint: str, seen: set[str]) -> Fault | None:
    if not asked.custom_id or len(asked.custom_id) > BATCH_ID_CHARS_MAX:
        text = f"custom_id must have 1 to {BATCH_ID_CHARS_MAX} characters"
        return Fault("invalid_custom_id", text, number, "custom_id")
    if asked.custom_id in seen:
        text = f"custom_id {quoted(asked.custom_id)} is that of an earlier line, too"
        return Fault("duplicate_custom_id", text, number, "custom_id")
    if asked.method != "POST":
        return Fault("invalid_method", "method must be POST", number, "method")
    if asked.url != endpoint:
        return Fault("invalid_url", f"url must be the batch's endpoint, {endpoint}", number, "url")
    if not body.startswith(b"{"):
        return Fault("invalid_body", "body must be a JSON object", number, "body")
    return None


def _model_in(body: bytes) -> str:
    """The model that a body names; empty when it names none, which its address will refuse."""
    try:
        return _decode_name(body).model
    except msgspec.ValidationError:
        return ""


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Every line with its offset, without its newline; None for one that is too long."""
    held, start, is_long = b"", 0, False
    at = 0
    while piece := file.read(BATCH_READ_BYTES):
        if at == 0 and piece.startswith(_MARK):
            piece, start, at = piece[len(_MARK) :], len(_MARK), len(_MARK)
        at += len(piece)
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield start, None if is_long or len(line) > BATCH_LINE_BYTES_MAX else line
            is_long = False
            start += len(line) + 1
        if len(held) > BATCH_LINE_BYTES_MAX:
            held, is_long = b"", True
        if is_long:
            held = b""
        start = at - len(held)
    if is_long or held:
        yield start, None if is_long or len(held) > BATCH_LINE_BYTES_MAX else held
