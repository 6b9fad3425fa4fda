"""A leased event, and how it is read from its file.

Reading refuses what cannot be delivered: links, devices, files too large, text that is not one JSON object
a line. Bad lines of a bundle are separated from good ones; a single event is good or bad as a whole.
"""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from watchbill.files.atomic import NotAFile, make_folder, read_regular, write_file_durable
from watchbill.spool.consumer import Lease, reason_bytes
from watchbill.spool.events import Event, decode
from watchbill.spool.faults import EventRefused
from watchbill.spool.limits import BUNDLE_BYTES_MAX, BUNDLE_LINES_MAX
from watchbill.spool.names import is_bundle, stem_of

__all__ = [
    "BadLine", "Carried", "Item", "bad_line_name", "item_of", "keep_bad_line", "read_events", "read_item",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a bundle that is no event."""

    number: int
    line: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Carried:
    """An event on its way from one spool to another: it keeps its name, its used attempts and its signature."""

    name: str
    content: bytes
    attempts: int
    signature: bytes | None = None


@dataclass(slots=True)
class Item:
    """One leased file. `event` is its event; a bundle has several, in `events`."""

    name: str
    attempt: int
    folder: Path
    lines: list[bytes]
    events: list[Event]
    lease: Lease = field(repr=False)
    content: bytes = field(repr=False)  # the file's bytes without the last newline: these were signed
    bad: list[BadLine] = field(default_factory=list[BadLine], repr=False)

    @property
    def event(self) -> Event:
        """The event. Raises EventRefused for a bundle: taking one of many would lose the others."""
        if self.is_bundle:
            raise EventRefused(f"{self.name} is a bundle of {len(self.events)} events: read item.events")
        return self.events[0]

    @property
    def path(self) -> Path:
        """The path of the file while it is leased."""
        return self.folder / self.lease.path

    @property
    def is_bundle(self) -> bool:
        return is_bundle(self.name)


def read_item(lease: Lease, folder: Path, folder_fd: int, event_bytes_max: int) -> Item:
    """Read a leased file. Raises EventRefused with the reason for its poison, or OSError."""
    bundle = is_bundle(lease.name)
    bytes_max = BUNDLE_BYTES_MAX if bundle else event_bytes_max + 1
    try:
        data = read_regular(lease.path, dir_fd=folder_fd, bytes_max=bytes_max, foreign=not lease.own)
    except NotAFile as error:
        raise EventRefused(str(error)) from error
    return item_of(lease, folder, data.removesuffix(b"\n"))


def item_of(lease: Lease, folder: Path, content: bytes) -> Item:
    """The item of a lease with this content. Raises EventRefused with the reason for its poison."""
    item = Item(lease.name, lease.attempt, folder, [], [], lease, content)
    if is_bundle(lease.name):
        _read_lines(item)
    else:
        item.lines.append(content)
        item.events.append(decode(content))
    return item


def read_events(path: Path) -> list[tuple[Event, bytes]]:
    """The events of a file that another worker has leased, each with its line; none if it cannot be read."""
    try:
        data = read_regular(os.fspath(path), bytes_max=BUNDLE_BYTES_MAX, foreign=True).removesuffix(b"\n")
    except (OSError, NotAFile):  # whichever errno: its next lease says what is wrong with it
        return []
    events: list[tuple[Event, bytes]] = []
    for line in data.split(b"\n")[:BUNDLE_LINES_MAX] if is_bundle(path.name) else [data]:
        with contextlib.suppress(EventRefused):
            events.append((decode(line), line))
    return events


def bad_line_name(item: Item, bad: BadLine) -> str:
    """The name of a bundle's bad line, without the bundle's attempt: the next one would store it a second time."""
    return f"{stem_of(item.name)}.l{bad.number}~1.jsonl"


def keep_bad_line(item: Item, bad: BadLine, folder: Path) -> None:
    """Write a bundle's bad line and the reason to a file. A second call writes the same file. Raises OSError."""
    name = bad_line_name(item, bad)
    reason: dict[str, object] = {"reason": bad.reason, "bundle": item.name, "line": bad.number}
    make_folder(folder)
    write_file_durable(folder / f"{name}.reason.json", reason_bytes(name, item.attempt, reason))
    write_file_durable(folder / name, bad.line + b"\n")


def _read_lines(item: Item) -> None:
    lines = item.content.split(b"\n")
    if len(lines) > BUNDLE_LINES_MAX:
        raise EventRefused(f"{len(lines)} lines, more than the limit of {BUNDLE_LINES_MAX}")
    for number, line in enumerate(lines, 1):
        try:
            item.events.append(decode(line))
            item.lines.append(line)
        except EventRefused as error:
            item.bad.append(BadLine(number, line, str(error)))
    if not item.events:
        raise EventRefused(f"no line of this bundle is an event: {item.bad[0].reason}")
