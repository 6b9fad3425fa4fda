"""Sizes and durations: the two kinds of number that people write with a unit.

Inside Watchbill a size is an int of bytes and a duration an int of milliseconds. Texts such as "4.6GB" or
"15m" exist only at the edge of the config, and this module is that edge.
"""

import re
from typing import NewType

from watchbill.errors import UnitError

__all__ = ["Bytes", "Millis", "format_bytes", "format_millis", "parse_bytes", "parse_millis"]

Bytes = NewType("Bytes", int)
Millis = NewType("Millis", int)

#: GB is 10^9 and GiB 2^30, as disks and memory vendors write them; a bare number is bytes.
BYTES_PER_UNIT = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
MILLIS_PER_UNIT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)


def parse_bytes(text: str | int) -> Bytes:
    """Reads "4.6GB", "2GiB" or a number of bytes. Raises UnitError naming the text."""
    if isinstance(text, bool) or isinstance(text, int) and text < 0:
        raise UnitError(f"{text!r} is not a size; write a number of bytes or for example 4.6GB or 2GiB")
    if isinstance(text, int):
        return Bytes(text)
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in BYTES_PER_UNIT:
        raise UnitError(f"{text!r} is not a size; write for example 4.6GB, 2GiB or 512MiB")
    return Bytes(round(float(match[1]) * BYTES_PER_UNIT[match[2].upper()]))


def parse_millis(text: str | int | float) -> Millis:
    """Reads "15m", "1h30m", "500ms", or a number of seconds. Raises UnitError naming the text."""
    if isinstance(text, bool):
        raise UnitError(f"{text!r} is not a duration; write for example 30s, 5m or 1h30m")
    if isinstance(text, int | float):
        if not 0 <= text < 10**9:
            raise UnitError(f"{text!r} is not a duration in seconds")
        return Millis(round(text * 1000))
    spans = _SPAN.findall(text.strip())
    if not spans or "".join(number + unit for number, unit in spans) != text.strip():
        raise UnitError(f"{text!r} is not a duration; write for example 30s, 5m or 1h30m")
    return Millis(round(sum(float(number) * MILLIS_PER_UNIT[unit] for number, unit in spans)))


def format_bytes(size: int) -> str:
    """Writes a size for people: three figures, decimal units, as "4.60 GB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(size) >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def format_millis(span: int) -> str:
    """Writes a duration for people: "850 ms", "4.2 s", "12 min", "3.5 h"."""
    if span < 1000:
        return f"{span} ms"
    if span < 120_000:
        return f"{span / 1000:.3g} s"
    if span < 7_200_000:
        return f"{span / 60_000:.3g} min"
    return f"{span / 3_600_000:.3g} h"
