"""The kinds of value a config key may have, beyond what TOML itself distinguishes.

Each is an Annotated type for the tables in `document`. A value that does not pass raises `refused`, which keeps
what is wrong apart from what to do, so that `problems` can write both with the file and line.
"""

import ipaddress
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, NamedTuple, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from watchbill import limits, names, units
from watchbill.errors import ConfigError, NameRefused, UnitError
from watchbill.templates import Template
from watchbill.units import Bytes, Millis

__all__ = [
    "FAILURES", "POLICIES", "REFUSED", "Count", "DeviceNames", "Duration", "EnvName", "Failures", "Hostname",
    "HttpPath", "KeyText", "LaneText", "Line", "Memory", "ModelName", "Origin", "PlainName", "PolicyName", "Portion",
    "Priority", "Rate", "Share", "Size", "TemplateText", "UnitName", "Url", "Written", "is_device_name", "is_loopback",
    "refused",
]  # fmt: skip

#: The type of our own errors inside pydantic's.
REFUSED = "watchbill_refused"

#: What the scripted engine can be told to do wrong; its own module says what each one shows.
FAILURES = (
    "crash-on-load", "hang-on-load", "healthy-but-silent", "crash-before-first-byte", "crash-after-first-byte",
    "hang-before-first-byte", "hang-mid-stream", "http-500", "bad-frames", "ignore-term", "fork-and-exit",
)  # fmt: skip

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[?[0-9a-fA-F:.]{2,45}\]?")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]{1,255}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
#: The policies that come with Watchbill.
POLICIES = ("rate", "turns", "fifo")
_CLASS = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
_DEVICE = re.compile(r"ram|gpu:(?:0|[1-9][0-9]{0,2})")


class Written(NamedTuple):
    """Marks a whole number that people write with a unit."""

    spell: Callable[[int], str]


def refused(text: str, hint: str = "", at: str | None = None) -> PydanticCustomError:
    """An error with what is wrong and what to do; `at` names a key below the one that is being read."""
    return PydanticCustomError(REFUSED, "refused", {"text": text, "hint": hint, "at": at})


def is_device_name(text: str) -> bool:
    """Whether the text names a memory domain: ram, or gpu:0 and so on."""
    return _DEVICE.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name that is not an address is taken as public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _through(read: Callable[[str], object]) -> Callable[[str], str]:
    """Makes a check of `names` one of pydantic's."""

    def check(text: str) -> str:
        try:
            read(text)
        except NameRefused as error:
            what, _, hint = str(error).partition("; ")
            raise refused(what, hint) from error
        return text

    return check


def _read_size(value: object) -> Bytes:
    if not isinstance(value, str | int):
        raise refused("must be a size", "write for example 4.6GB, 2GiB or 512MiB in quotes")
    try:
        return units.parse_bytes(value)
    except UnitError as error:
        what, _, hint = str(error).partition("; ")
        raise refused(what, hint) from error


def _read_duration(value: object) -> Millis:
    if not isinstance(value, str | int | float):
        raise refused("must be a duration", "write for example 30s, 5m or 1h30m in quotes")
    try:
        return units.parse_millis(value)
    except UnitError as error:
        what, _, hint = str(error).partition("; ")
        raise refused(what, hint) from error


def _read_memory(value: object) -> Bytes | dict[str, Bytes]:
    if not isinstance(value, dict):
        return _read_size(value)
    sizes: dict[str, Bytes] = {}
    for device, size in cast("dict[str, object]", value).items():
        if not is_device_name(device):
            raise refused(f"{device!a} is not a device", 'write ram or for example "gpu:0"', at=device)
        try:
            sizes[device] = _read_size(size)
        except PydanticCustomError as error:
            context = error.context or {}
            raise refused(str(context["text"]), str(context["hint"]), at=device) from error
    return sizes


def _read_failures(value: object) -> tuple[str, ...]:
    given = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    for failure in given:
        if failure not in FAILURES:
            near = get_close_matches(str(failure), FAILURES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(FAILURES)}"
            raise refused(f"{str(failure)[:60]!a} is not a failure that can be scripted", hint)
    return tuple(map(str, given))


def _check_device(text: str) -> str:
    if not is_device_name(text):
        raise refused(f"{text!a} is not a device", "write ram, gpu:0, gpu:1 and so on")
    return text


def _check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise refused("must not be empty", "write at least one, or leave the key out")
    return values


def _check_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise refused(f"{text!a} is not a host name or address", "write for example 127.0.0.1 or box.lan")
    return text


def _check_origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise refused(
            f"{text!a} is not the origin of a web page", "write for example https://chat.lan:3000, one by one"
        )
    return text


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or not text.isprintable():
        raise refused(f"{text[:60]!a} is not an address", "write for example http://127.0.0.1:11434")
    return text


def _check_http_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise refused(f"{text[:60]!a} is not the path of an address", "write for example /health")
    return text


def _check_env_name(text: str) -> str:
    if not _ENV.fullmatch(text):
        raise refused(f"{text[:60]!a} cannot name an environment variable", "use letters, digits and _")
    return text


def _check_key_text(text: str) -> str:
    """A key travels in a header, so it has to be one that can."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise refused(
            "cannot be an API key", 'use printable ASCII without spaces, or "env:NAME" to read it from $NAME'
        )
    return text


def _check_policy_name(text: str) -> str:
    """One of ours, or a class of somebody else's."""
    if text in POLICIES or re.fullmatch(_CLASS, text):
        return text
    near = get_close_matches(text, POLICIES, n=1)
    hint = f"did you mean {near[0]}?" if near else "write for example turns, or my_policies:Mine"
    words = ", ".join(POLICIES)
    raise refused(f"must be one of {words}, or package.module:Class, not {text[:60]!a}", hint)


def _check_line(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise refused("must not be empty", "write a text or leave the key out")
    return text


def _check_template(text: str) -> str:
    try:
        Template(text)
    except ConfigError as error:
        what, _, hint = str(error).partition("; ")
        raise refused(what, hint) from error
    return text


def _check_lane_text(text: str) -> str:
    """A lane answers at every door, and only what was asked is known at each of them."""
    if strange := [place for place in Template(text).places if place != "summary"]:
        raise refused(
            f"there is no {{{strange[0]}}} in a lane's text", "use {summary}, or a fallback of [process.NAME]"
        )
    return text


_TEXT_OR_NUMBER = {"type": ["string", "integer"]}

Size = Annotated[
    Bytes,
    BeforeValidator(_read_size),
    WithJsonSchema({**_TEXT_OR_NUMBER, "description": "a size: 4.6GB, 2GiB, or a number of bytes"}),
    Written(units.spell_bytes),
]
Duration = Annotated[
    Millis,
    BeforeValidator(_read_duration),
    WithJsonSchema({"type": ["string", "number"], "description": "a duration: 30s, 5m, or seconds"}),
    Written(units.spell_millis),
]
Memory = Annotated[
    Bytes | dict[str, Bytes],
    BeforeValidator(_read_memory),
    WithJsonSchema(
        {"anyOf": [_TEXT_OR_NUMBER, {"type": "object", "additionalProperties": _TEXT_OR_NUMBER}]},
    ),
    Written(units.spell_bytes),
]
Failures = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_failures),
    WithJsonSchema(
        {"anyOf": [{"enum": [*FAILURES]}, {"type": "array", "items": {"enum": [*FAILURES]}}]},
    ),
]
ModelName = Annotated[str, AfterValidator(_through(names.check_model_name))]
PolicyName = Annotated[
    str,
    AfterValidator(_check_policy_name),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{'|'.join(POLICIES)}|{_CLASS})$"}),
]
PlainName = Annotated[str, AfterValidator(_through(names.check_plain_name))]
UnitName = Annotated[str, AfterValidator(_through(names.check_unit_name))]
DeviceNames = Annotated[
    tuple[Annotated[str, AfterValidator(_check_device)], ...],
    Field(strict=False),
    AfterValidator(_check_not_empty),
]
Hostname = Annotated[str, AfterValidator(_check_host)]
Origin = Annotated[str, AfterValidator(_check_origin)]
HttpPath = Annotated[str, AfterValidator(_check_http_path)]
Url = Annotated[str, AfterValidator(_check_url)]
EnvName = Annotated[str, AfterValidator(_check_env_name)]
KeyText = Annotated[str, AfterValidator(_check_key_text)]
Line = Annotated[str, AfterValidator(_check_line)]
TemplateText = Annotated[Line, AfterValidator(_check_template)]
LaneText = Annotated[TemplateText, AfterValidator(_check_lane_text)]
Priority = Annotated[int, Field(ge=1, le=5)]
Count = Annotated[int, Field(ge=1, le=limits.CONCURRENCY_MAX)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Portion = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
