"""Listeners: a bounded buffer from one event loop's callbacks to async readers.

The writer never waits for a reader. A reader that falls too far behind is dropped: it still gets the lines in its
buffer, then its iteration ends, and it may subscribe again. Use it on one event loop's thread.
"""

import asyncio
from collections import deque
from typing import Self

from watchbill.limits import JOURNAL_SUBSCRIBER_LINES_MAX

__all__ = ["Listener"]


class Listener:
    """An async iterator over lines. Call `close`, or let it fall behind."""

    def __init__(self, lines_max: int = JOURNAL_SUBSCRIBER_LINES_MAX) -> None:
        self._lines: deque[dict[str, object]] = deque()
        self._lines_max = lines_max
        self._news = asyncio.Event()
        self._ended = False
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the reader itself left."""
        return self._closed

    def take(self, line: dict[str, object]) -> bool:
        """Takes a line for the reader; False when it left or is too far behind, and gets no more lines."""
        if self._ended or len(self._lines) >= self._lines_max:
            self._ended = True
            self._news.set()
            return False
        self._lines.append(line)
        self._news.set()
        return True

    def close(self) -> None:
        """Ends the iteration at once. Later calls do nothing."""
        self._ended = self._closed = True
        self._lines.clear()
        self._news.set()

    def drain(self) -> list[dict[str, object]]:
        """The lines that are there, without waiting."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    @property
    def has_ended(self) -> bool:
        """Whether it gets no more lines."""
        return self._ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, object]:
        while not self._lines:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._lines.popleft()
