"""One output of a task: read from a pipe, at a bounded rate, into a bounded memory and a bounded file.

The crew's guard loads it beside itself, so it imports nothing of Watchbill but the guard's own module.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from watchbill.processes import guard
else:  # a part of a program of its own
    import guard

#: Bytes that are copied from a pipe at once.
PIECE_BYTES = 64 * 2**10
#: What is read from the pipes of a task that has ended: the kernel's buffers, and never an endless writer's output.
REST_BYTES_MAX = 2**20
#: The rate of an output is measured over windows of this length.
WINDOW_S = 0.1


class OutputBounds:
    """The bounds of each output."""

    def __init__(self, memory_bytes: int, file_bytes: int, bytes_per_s: int) -> None:
        self.memory_bytes = memory_bytes
        self.file_bytes = file_bytes
        self.window_bytes = max(1, int(bytes_per_s * WINDOW_S))


class TaskOutput:
    """One output of a task: its end in memory; its beginning in a file, once it is longer than the memory's bound."""

    def __init__(self, path: str, bounds: OutputBounds) -> None:
        self.path = path
        self.bounds = bounds
        self.heard, self.said = os.pipe()
        os.set_blocking(self.heard, False)
        self.total = 0
        self.tail = bytearray()
        self.file = -1
        self.file_room = bounds.file_bytes
        self.window_end = 0.0
        self.window_room = 0
        self.is_open = True

    def may_grow(self, now: float) -> bool:
        """Whether its rate allows more: a program that writes faster blocks in its write."""
        if now >= self.window_end:
            self.window_end, self.window_room = now + WINDOW_S, self.bounds.window_bytes
        return self.window_room > 0

    def carry(self) -> int:
        """Copies one piece, if there is one; returns its size."""
        try:
            words = os.read(self.heard, PIECE_BYTES)
        except BlockingIOError:
            return 0
        self.is_open = bool(words)
        self.window_room -= len(words)
        self.keep(words)
        return len(words)

    def keep(self, words: bytes) -> None:
        spilled = self.total > self.bounds.memory_bytes
        self.total += len(words)
        if self.total > self.bounds.memory_bytes:
            self.write(words if spilled else bytes(self.tail) + words)
        self.tail += words
        if len(self.tail) > 2 * self.bounds.memory_bytes:
            del self.tail[: -self.bounds.memory_bytes]

    def write(self, words: bytes) -> None:
        """Adds to the file as far as its bound allows. A disk that refuses loses output, not the task."""
        words = words[: self.file_room]
        self.file_room -= len(words)
        try:
            if self.file < 0 and words:
                self.file = guard.open_private(self.path)
            while words:
                words = words[os.write(self.file, words) :]
        except OSError as error:
            if error.errno not in guard.NO_LOG:
                raise
            self.file_room = 0

    def finish(self) -> dict[str, object]:
        """Reads what dead processes left in the pipe, closes everything and reports the output."""
        room = REST_BYTES_MAX
        while self.is_open and room > 0 and (size := self.carry()):
            room -= size
        for descriptor in (self.heard, self.file):
            if descriptor >= 0:
                os.close(descriptor)
        tail = bytes(self.tail[-self.bounds.memory_bytes :]).decode("utf-8", "surrogateescape")
        return {"total": self.total, "tail": tail, "is_spilled": self.file >= 0}
