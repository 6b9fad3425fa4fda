"""Sizes and durations: the two kinds of number that people write with a unit.

Inside Watchbill a size is an int of bytes and a duration an int of milliseconds. Texts such as "4.6GB" or
"15m" exist only at the edge of the config, and this module is that edge.
"""

import re
from decimal import Decimal
from typing import NewType

from watchbill import limits
from watchbill.errors import UnitError
from watchbill.quoting import quoted

__all__ = [
    "Bytes", "Millis", "format_bytes", "format_millis", "parse_bytes", "parse_millis", "spell_bytes",
    "spell_millis",
]  # fmt: skip

Bytes = NewType("Bytes", int)
Millis = NewType("Millis", int)

#: GB is 10^9 and GiB 2^30, as disks and memory vendors write them; a bare number is bytes.
BYTES_PER_UNIT = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE_UNITS = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB", "B")
MILLIS_PER_UNIT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# At most 20 digits before the point: more is a slip, and a thousand of them would overflow a float.
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-zA-Z]*)\s*", re.ASCII)
_SPAN = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)(ms|s|m|h|d)", re.ASCII)

_SIZE_HINT = "write for example 4.6GB, 2GiB or 512MiB"
_SPAN_HINT = "write for example 30s, 5m or 1h30m"


def parse_bytes(text: str | int) -> Bytes:
    """Reads "4.6GB", "2GiB" or a number of bytes. Raises UnitError naming the text."""
    if isinstance(text, str):
        match = _SIZE.fullmatch(text)
        if match is None or match[2].upper() not in BYTES_PER_UNIT:
            raise UnitError(f"{quoted(text)} is not a size", hint=_SIZE_HINT)
        size = round(Decimal(match[1]) * BYTES_PER_UNIT[match[2].upper()])
    elif isinstance(text, bool) or text < 0:
        raise UnitError(
            f"{quoted(text)} is not a size", hint="write a number of bytes, or for example 4.6GB or 2GiB"
        )
    else:
        size = text
    if size > limits.SIZE_BYTES_MAX:
        raise UnitError(f"{quoted(text)} is more than any machine has", hint=_SIZE_HINT)
    return Bytes(size)


def parse_millis(text: str | int | float) -> Millis:
    """Reads "15m", "1h30m", "500ms", or a number of seconds. Raises UnitError naming the text."""
    if isinstance(text, str):
        spans = _SPAN.findall(text.strip())
        if not spans or "".join(number + unit for number, unit in spans) != text.strip():
            raise UnitError(f"{quoted(text)} is not a duration", hint=_SPAN_HINT)
        span = sum((Decimal(number) * MILLIS_PER_UNIT[unit] for number, unit in spans), Decimal(0))
    elif isinstance(text, bool) or not 0 <= text < 10**12:
        raise UnitError(f"{quoted(text)} is not a duration in seconds", hint=_SPAN_HINT)
    else:
        span = text * 1000
    if span > limits.DURATION_MS_MAX:
        raise UnitError(f"{quoted(text)} is longer than 100 days", hint=_SPAN_HINT)
    return Millis(round(span))


def spell_bytes(size: int) -> str:
    """Writes a size as a config would: the shortest text that reads back as exactly this many bytes."""
    spellings = [_spelled(size, unit, BYTES_PER_UNIT[unit.upper()]) for unit in _SIZE_UNITS]
    return min(filter(None, spellings), key=len, default=f"{size}B")


def spell_millis(span: int) -> str:
    """Writes a duration as a config would: the shortest text that reads back as exactly this span."""
    return min(
        filter(None, (_spelled(span, *unit) for unit in MILLIS_PER_UNIT.items())),
        key=len,
        default=f"{span}ms",
    )


def format_bytes(size: int) -> str:
    """Writes a size for people: three figures, decimal units, as "4.6 GB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        # 999,950 bytes are "1 MB": rounded to three figures they would read "1e+03 kB".
        if abs(size) >= factor * 0.9995:
            return f"{_figures(size / factor)} {unit}"
    return f"{size} B"


def format_millis(span: int) -> str:
    """Writes a duration for people: "850 ms", "4.2 s", "12 min", "3.5 h", "9 d"."""
    if abs(span) < 1000:
        return f"{span} ms"
    if abs(span) < 120_000:
        return f"{_figures(span / 1000)} s"
    if abs(span) < 7_200_000:
        return f"{_figures(span / 60_000)} min"
    if abs(span) < 172_800_000:
        return f"{_figures(span / 3_600_000)} h"
    return f"{_figures(span / 86_400_000)} d"


def _figures(number: float) -> str:
    """Three figures, and never an exponent."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def _spelled(amount: int, unit: str, factor: int) -> str | None:
    """The amount in this unit with at most two decimals, or None when that would not be exact."""
    hundredths, rest = divmod(amount * 100, factor)
    if rest:
        return None
    return f"{hundredths // 100}.{hundredths % 100:02d}".rstrip("0").rstrip(".") + unit
