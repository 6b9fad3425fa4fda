"""What tables and their values are, beyond what TOML itself distinguishes.

Owns `Table`, from which every table of the file is derived, and the kinds of value that several sections use: names,
sizes, durations, addresses. A kind that only one section uses stands in the file of that section. A value that does
not pass raises `refused`, which keeps what is wrong apart from what to do, so that `report` can write both with the
file and line.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from watchbill import names, units
from watchbill.config import limits
from watchbill.errors import OursError
from watchbill.quoting import quoted
from watchbill.templates import Template
from watchbill.units import Bytes, Millis

__all__ = [
    "ENV_NAME", "HIDDEN", "REFUSED", "SIZE_SCHEMA", "Count", "Duration", "Line", "Masked", "ModelName", "PlainName",
    "Priority", "Rate", "Size", "Table", "TemplateText", "Url", "Written", "below_root", "passing", "read_size",
    "refused",
]  # fmt: skip


class Table(BaseModel):
    """A table of the file: no coercion, no unknown keys, never changed after it was read."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# ------------------------------------------------------------------ marks on a kind


class Written(NamedTuple):
    """Marks a whole number that people write with a unit."""

    spell: Callable[[int], str]


class Masked(NamedTuple):
    """Marks a value that holds a secret: `config show` prints what `mask` makes of it."""

    mask: Callable[[object], object]


#: The name of an environment variable.
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
#: What is printed in place of a secret.
HIDDEN = "***"

# ------------------------------------------------------------------ refusing a value

#: The type of our own errors inside pydantic's.
REFUSED = "watchbill_refused"


def refused(text: str, hint: str = "", at: str | None = None) -> PydanticCustomError:
    """An error with what is wrong and what to do; `at` names a key below the one that is being read."""
    return PydanticCustomError(REFUSED, "refused", {"text": text, "hint": hint, "at": at})


def passing(read: Callable[[str], object]) -> AfterValidator:
    """Makes a function that raises one of our own errors a check of pydantic's. The text stays as it is."""

    def check(text: str) -> str:
        try:
            read(text)
        except OursError as error:
            raise refused(error.what, error.hint) from error
        return text

    return AfterValidator(check)


# ------------------------------------------------------------------ kinds


def read_size(value: object) -> Bytes:
    """Reads a size with its unit, or a number of bytes."""
    if not isinstance(value, str | int):
        raise refused("must be a size", "write for example 4.6GB, 2GiB or 512MiB in quotes")
    bare = str(value).strip()
    if not isinstance(value, bool) and bare.isdecimal() and 0 < int(bare) < limits.BARE_SIZE_BYTES_MIN:
        raise refused(f"{bare} has no unit: it would be {bare} bytes", f'write "{bare}GB"')
    try:
        return units.parse_bytes(value)
    except OursError as error:
        raise refused(error.what, error.hint) from error


def _read_duration(value: object) -> Millis:
    """Reads a duration with its unit, or a number of seconds."""
    if not isinstance(value, str | int | float):
        raise refused("must be a duration", "write for example 30s, 5m or 1h30m in quotes")
    try:
        return units.parse_millis(value)
    except OursError as error:
        raise refused(error.what, error.hint) from error


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or not text.isprintable():
        raise refused(f"{quoted(text)} is not an address", "write for example http://127.0.0.1:11434")
    return text


def _check_line(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise refused("must not be empty", "write a text or leave the key out")
    return text


#: A text with its unit, or a number of bytes.
SIZE_SCHEMA = {"type": ["string", "integer"]}

Size = Annotated[
    Bytes,
    BeforeValidator(read_size),
    WithJsonSchema({**SIZE_SCHEMA, "description": "a size: 4.6GB, 2GiB, or a number of bytes"}),
    Written(units.spell_bytes),
]
Duration = Annotated[
    Millis,
    BeforeValidator(_read_duration),
    WithJsonSchema({"type": ["string", "number"], "description": "a duration: 30s, 5m, or seconds"}),
    Written(units.spell_millis),
]
ModelName = Annotated[str, passing(names.check_model_name)]
PlainName = Annotated[str, passing(names.check_plain_name)]
Url = Annotated[str, AfterValidator(_check_url)]
Line = Annotated[str, AfterValidator(_check_line)]
TemplateText = Annotated[Line, passing(Template)]
Priority = Annotated[int, Field(ge=1, le=5)]
Count = Annotated[int, Field(ge=1, le=limits.CONCURRENCY_MAX)]
Rate = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


def below_root(base: Path, text: str) -> str:
    """The path of something that Watchbill writes. It belongs to the root, which is not known here, and stays relative;
    only ~ and / lead elsewhere."""
    return str(names.operator_path(base, text)) if text.startswith(("~", "/")) else text
