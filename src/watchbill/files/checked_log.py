"""A checked log: append-only lines, each with its checksum, that other processes follow while it grows.

    CRC32 SPACE payload NEWLINE

A file has one writer, which created it and is the only one that ever appends to it; a successor begins a file of its
own. So nothing here needs a lock, and it works on a network mount.

A reader opens the file again for each look: on a network mount only a later open is sure to show what another machine
has synced. It returns whole lines with the right checksum and stops at the first line without one: newlines that are
filled ahead, a line that has arrived in part, a line that a power cut has torn, or damage. The reader need not know
which. The next look starts there; nothing is ever skipped.

A line that a reader sees may not be durable yet: only the return of the writer's `append` says so. A line that was
seen is taken back only if its sync fails; then its writer never appends to that file again.
"""

import binascii
import os
from collections.abc import Iterable
from pathlib import Path

from watchbill.files.append_log import AppendLog
from watchbill.files.atomic import FILE_MODE, open_regular
from watchbill.files.limits import LINE_BYTES_MAX, LINES_LOOK_BYTES, LINES_READ_BYTES

__all__ = ["CheckedLog", "LineReader", "checked_line", "whole_lines"]

#: Eight digits and a space before the payload, a newline behind it.
_SPACE_AT = 8
_AROUND_BYTES = _SPACE_AT + 2
#: Nothing but newlines that are filled ahead follows: no line is empty.
_FILLED = b"\n\n"


class CheckedLog:
    """The open log of one writer. Not thread-safe."""

    def __init__(
        self, path: Path, *, filled: bool = True, mode: int = FILE_MODE, goes_on_at: int | None = None
    ) -> None:
        """Create the file and make its name durable. Raises OSError, FileExistsError for a name that is taken.

        Without `filled` it grows with each append: for network mounts. With `goes_on_at` open one that this process
        created and closed, and whose lines end there.
        """
        self._file = AppendLog(path, filled=filled, followed=True, mode=mode, goes_on_at=goes_on_at)

    @property
    def end(self) -> int:
        """How many bytes are acknowledged."""
        return self._file.end

    @property
    def failed(self) -> bool:
        """Whether a sync failed: this log accepts nothing more."""
        return self._file.failed

    @property
    def is_linked(self) -> bool:
        """False after the file was removed: what is written to it is lost."""
        return self._file.is_linked

    def append(self, payloads: Iterable[bytes]) -> None:
        """Put lines on stable storage, all with one sync. Raises OSError: then none is acknowledged.

        Raises ValueError for a payload that cannot be a line; then nothing is written.
        """
        if data := b"".join(map(checked_line, payloads)):
            self._file.append(data)

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()


class LineReader:
    """Reads a checked log that grows, from where it stopped."""

    def __init__(self, path: str | Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # every line before it was right, and has been returned

    def read(self, until: int | None = None) -> list[bytes]:
        """Return the payloads of the next lines; an empty list where no whole line follows yet.

        At most about LINES_READ_BYTES at a time: call again until there are none. Bytes from the offset `until` on do
        not exist. Raises OSError (FileNotFoundError where there is no file yet), and NotAFile.
        """
        fd = open_regular(self.path)
        try:
            data = self._bytes(fd, LINES_LOOK_BYTES, until)
            if len(data) == LINES_LOOK_BYTES and not data.endswith(_FILLED):
                data = self._bytes(fd, LINES_READ_BYTES, until)
            if len(data) == LINES_READ_BYTES and b"\n" not in data:  # a line that is longer than one look
                data = self._bytes(fd, LINE_BYTES_MAX + _AROUND_BYTES, until)
        finally:
            os.close(fd)
        payloads, size = whole_lines(data)
        self.offset += size
        return payloads

    def _bytes(self, fd: int, size: int, until: int | None) -> bytes:
        if until is not None:
            size = max(0, min(size, until - self.offset))
        parts: list[bytes] = []
        at = self.offset
        while size > 0 and (part := os.pread(fd, size, at)):
            parts.append(part)
            at += len(part)
            size -= len(part)
        return b"".join(parts)


def checked_line(payload: bytes) -> bytes:
    """Return a payload as a line. Raises ValueError for one with a newline in it, and one that is too long."""
    if b"\n" in payload:
        raise ValueError("a line of a checked log has no newline in it")
    if len(payload) > LINE_BYTES_MAX:
        raise ValueError(f"a line of {len(payload)} bytes is longer than the limit of {LINE_BYTES_MAX}")
    return b"%08x %s\n" % (binascii.crc32(payload), payload)


def whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """Return the payloads of the right lines at the beginning of `data`, and how many bytes these are."""
    payloads: list[bytes] = []
    start = 0
    while (stop := data.find(b"\n", start)) >= 0:
        payload = _payload(data[start:stop])
        if payload is None:
            break
        payloads.append(payload)
        start = stop + 1
    return payloads, start


def _payload(line: bytes) -> bytes | None:
    payload = line[_SPACE_AT + 1 :]
    is_right = line[: _SPACE_AT + 1] == b"%08x " % binascii.crc32(payload)
    return payload if is_right else None
