"""Patience with the disk: a step that it refuses is done again and again, and no line is asked meanwhile.

A full disk pauses everything: answers that came stay in memory, an alert says so, and the work goes on by itself when
there is room again. So does `batches.disk_max`, the bound of all files and answers together.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

from watchbill.batches.disk import DiskIsFull
from watchbill.batches.limits import BATCH_DISK_AGAIN_MS
from watchbill.core.messages import Alert, AlertKind, JournalEvent, Note
from watchbill.errors import DiskFailed
from watchbill.units import format_bytes

__all__ = ["Pause", "Pausing"]

T = TypeVar("T")


class Pause(StrEnum):
    """Why no line is asked."""

    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"
    DISK_MAX = "disk_max"  # all files and answers together exceed batches.disk_max


class Pausing:
    """Whether batches are paused. Tells when they are, and when they go on."""

    def __init__(
        self, note: Callable[[Note], None], tell: Callable[[Alert], None], on_resume: Callable[[], None]
    ) -> None:
        self._note, self._tell, self._on_resume = note, tell, on_resume
        self._stuck: dict[object, Pause] = {}  # steps that the disk does not let be done
        self._is_full = False  # batches.disk_max is reached
        self.is_closing = False  # nothing is told any more

    @property
    def reason(self) -> Pause | None:
        """Why no line is asked; None while lines are."""
        return next(iter(self._stuck.values()), Pause.DISK_MAX if self._is_full else None)

    async def patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Does something that needs the disk, again and again until the disk lets it."""
        key = object()
        try:
            while True:
                try:
                    return await step()
                except DiskFailed as error:
                    self._get_stuck(key, error)
                    await asyncio.sleep(BATCH_DISK_AGAIN_MS / 1000)
        finally:
            if self._stuck.pop(key, None) is not None:
                self._resumed()

    def _get_stuck(self, key: object, error: DiskFailed) -> None:
        if not self._stuck:
            self._tell(Alert(AlertKind.BATCHES_PAUSED, f"batches are paused: {error}"))
        self._stuck[key] = Pause.DISK_FULL if isinstance(error, DiskIsFull) else Pause.DISK_FAILED

    def look_at_room(self, size: int, bound: int) -> None:
        """Compares what open batches and all files hold with what they may hold."""
        was_full, self._is_full = self._is_full, size >= bound
        if self._is_full and not was_full:
            told = (
                f"files and answers have reached batches.disk_max of {format_bytes(bound)}; delete some files"
            )
            self._tell(Alert(AlertKind.BATCHES_PAUSED, f"batches are paused: {told}"))
        elif was_full and not self._is_full:
            self._resumed()

    def _resumed(self) -> None:
        if self.reason is None and not self.is_closing:
            self._note(Note(JournalEvent.BATCHES_RESUMED, "batches go on"))
            self._on_resume()
