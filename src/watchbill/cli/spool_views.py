"""How a spool is shown: its counts, its files, one event."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

from watchbill.cli.limits import CLI_BARRED_SHOWN, CLI_SPOOL_PIECE
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.spool import Entry, State, Stats
from watchbill.units import format_bytes, format_millis

__all__ = [
    "WORDS", "as_fields", "complain", "draw_entries", "draw_event", "draw_stats", "events_of", "listed_as_json",
    "told_of_barred",
]  # fmt: skip

#: States as people write them.
WORDS = {State.QUEUE: "queue", State.IN_FLIGHT: "in-flight", State.DONE: "done", State.POISON: "poison"}
_STYLES = {State.QUEUE: (), State.IN_FLIGHT: ("yellow",), State.DONE: ("dim",), State.POISON: ("red",)}


def as_fields(entry: Entry) -> dict[str, object]:
    """One file as JSON."""
    fields: dict[str, object] = {
        "name": entry.name,
        "state": WORDS[entry.state],
        "path": str(entry.path),
        "attempt": entry.attempt,
        "events": entry.events,
        "bytes": entry.size_bytes,
        "age_ms": entry.age_ms,
        "folder": entry.folder,
    }
    if entry.state is State.POISON:
        fields["reason"] = entry.reason.get("reason", "")
    return fields


def listed_as_json(entries: Iterator[Entry], **told: int) -> Iterator[str]:
    """A list of files as one line of JSON, in pieces that are made while they are written."""
    yield json.dumps(told)[:-1] + ', "events": ['
    before = ""
    while fields := [json.dumps(as_fields(entry)) for entry in islice(entries, CLI_SPOOL_PIECE)]:
        yield before + ", ".join(fields)
        before = ", "
    yield "]}\n"


def draw_entries(found: Sequence[Entry], terminal: Terminal) -> list[str]:
    """A table of files, each poisoned one with its reason below."""
    columns = (
        Column("NAME"), Column("STATE"), Column("AGE", right=True), Column("TRY", right=True),
        Column("EVENTS", right=True), Column("SIZE", right=True), Column("WHERE"),
    )  # fmt: skip
    rows = [
        (
            plain(entry.name), WORDS[entry.state], format_millis(entry.age_ms), str(entry.attempt), str(entry.events),
            format_bytes(entry.size_bytes), plain(entry.folder),
        )
        for entry in found
    ]  # fmt: skip
    head, *lines = terminal.table(columns, rows)
    drawn = [terminal.mark(head, "bold")]
    for entry, line in zip(found, lines, strict=True):
        drawn.append(terminal.mark(line, *_STYLES[entry.state]))
        if entry.state is State.POISON:
            drawn += [terminal.mark(each, "dim") for each in terminal.wrapped(_why(entry), 2)]
    return drawn


def draw_stats(counts: Mapping[str, Stats], terminal: Terminal) -> list[str]:
    """One line for each spool."""
    columns = (
        Column("SPOOL"), Column("QUEUE", right=True), Column("OLDEST", right=True), Column("IN FLIGHT", right=True),
        Column("DONE", right=True), Column("POISON", right=True),
    )  # fmt: skip
    rows = [
        (
            plain(name), str(each.queue), "" if each.oldest_ms is None else format_millis(each.oldest_ms),
            str(each.in_flight), str(each.done), str(each.poison),
        )
        for name, each in counts.items()
    ]  # fmt: skip
    head, *lines = terminal.table(columns, rows)
    drawn = [terminal.mark(head, "bold")]
    for each, line in zip(counts.values(), lines, strict=True):
        drawn.append(terminal.mark(line, "red") if each.poison else line)
    return drawn


def draw_event(entry: Entry, content: bytes, terminal: Terminal) -> list[str]:
    """What is known about one file, then what is in it."""
    known = {
        "name": entry.name,
        "state": WORDS[entry.state],
        "path": str(entry.path),
        "tries": str(entry.attempt),
        "age": format_millis(entry.age_ms),
        "size": format_bytes(entry.size_bytes),
    }
    if entry.state is State.POISON:
        known["reason"] = _why(entry)
    lines = [
        f"{terminal.mark(key.ljust(8), 'bold')}{' '.join(plain(value).splitlines())}"
        for key, value in known.items()
    ]
    lines.append("")
    for event in events_of(content):
        text = event if isinstance(event, str) else json.dumps(event, indent=2, ensure_ascii=False)
        lines += plain(text).splitlines()
    return lines


def events_of(content: bytes) -> list[object]:
    """The events of a file; a line that is none stays text."""
    return [_parsed(line) for line in content.removesuffix(b"\n").split(b"\n")]


def _parsed(line: bytes) -> object:
    try:
        return cast("object", json.loads(line))
    except (ValueError, RecursionError):
        return line.decode("utf-8", "replace")


def _why(entry: Entry) -> str:
    return plain(str(entry.reason.get("reason") or "no reason stands beside it"))


def told_of_barred(barred: dict[str, str], done: str) -> str:
    """The files that cannot be leased, moved or read (`done` says which), the first of them by name, and what to do."""
    shown = "; ".join(f"{path}: {why}" for path, why in islice(barred.items(), CLI_BARRED_SHOWN))
    more = f"; and {len(barred) - CLI_BARRED_SHOWN} more" if len(barred) > CLI_BARRED_SHOWN else ""
    what = "1 file or folder" if len(barred) == 1 else f"{len(barred)} files and folders"
    advice = "give their group access (chmod g+rwX), or work as their owner"
    return f"{what} of the spool cannot be {done} by this user: {shown}{more}; {advice}"


def complain(text: str) -> None:
    """Prints an error, also with --quiet."""
    print(f"watchbill: {plain(text)}", file=sys.stderr, flush=True)
