"""History: lines of the journal found again, the newest first, also those of earlier daemons.

Reads the JSON lines backwards from their end, block by block, through the rotated files, and stops at a bound of lines,
bytes or time. Everything is text of a file: a line that is no JSON object is passed over. Blocks: call it in a thread.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec

from watchbill.limits import JOURNAL_FILES_KEPT
from watchbill.runtime.limits import JOURNAL_BLOCK_BYTES, JOURNAL_SEARCHED_BYTES_MAX

__all__ = ["Found", "Wanted", "find_lines"]

Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for."""

    lines_max: int
    hours: float
    text: str = ""  # in any value, whatever its case
    events: Collection[str] = ()  # none: all


@dataclass(frozen=True, slots=True)
class Found:
    """The newest lines first. `is_whole`: nothing older was left out because of a bound."""

    lines: list[Line]
    is_whole: bool


def find_lines(journal: Path, wanted: Wanted, now: datetime | None = None) -> Found:
    """Looks through the journal's JSON lines and its rotated files."""
    since = ((now or datetime.now(UTC)) - timedelta(hours=wanted.hours)).isoformat(timespec="milliseconds")
    pattern = _pattern(wanted)
    found: list[Line] = []
    left = JOURNAL_SEARCHED_BYTES_MAX
    for raw in _backwards(journal):
        left -= len(raw) + 1
        if len(found) >= wanted.lines_max or left < 0:
            return Found(found, False)
        if pattern.search(raw) is None or (line := _read(raw)) is None:
            continue
        if str(line.get("t", "")) < since[:23]:
            return Found(found, True)
        if _has(line, wanted):
            found.append(line)
    return Found(found, True)


def _pattern(wanted: Wanted) -> re.Pattern[bytes]:
    """What a line must have before it is worth reading: most lines are none that is wanted."""
    if wanted.events:
        names = "|".join(re.escape(name) for name in sorted(wanted.events))
        return re.compile(f'"event":"(?:{names})"'.encode())
    if not wanted.text.isascii():
        return re.compile(b"")  # its letters are spelled out, each case in another way
    # As the journal writes it, quotes and other signs spelled out.
    return re.compile(re.escape(json.dumps(wanted.text)[1:-1].encode()), re.IGNORECASE)


def _has(line: Line, wanted: Wanted) -> bool:
    text = wanted.text.lower()
    return (not wanted.events or line.get("event") in wanted.events) and (
        not text or any(text in str(value).lower() for value in line.values() if value is not None)
    )


def _read(raw: bytes) -> Line | None:
    try:
        line: object = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None  # a crash cut it
    return cast("Line", line) if isinstance(line, dict) else None


def _backwards(journal: Path) -> Iterator[bytes]:
    """The lines of all files, the last one first."""
    for number in range(JOURNAL_FILES_KEPT + 1):
        path = journal if number == 0 else journal.with_name(f"{journal.name}.{number}")
        try:
            with path.open("rb") as file:
                place, rest = file.seek(0, 2), b""
                while place > 0:
                    size = min(JOURNAL_BLOCK_BYTES, place)
                    place -= size
                    file.seek(place)
                    first, *lines = (file.read(size) + rest).split(b"\n")
                    yield from reversed([line for line in lines if line])
                    rest = first
                if rest:
                    yield rest
        except FileNotFoundError:
            return
