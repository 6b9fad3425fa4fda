"""Lag: how late the event loop's timers fire. Every request waits that long when something blocks the loop."""

import asyncio
from collections.abc import Callable

from watchbill.runtime.limits import LAG_LOOK_MS

__all__ = ["Lag"]


class Lag:
    """A timer that reports how late it fired, and is set again."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell  # in milliseconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts measuring."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LAG_LOOK_MS / 1000, self._fire, loop.time() + LAG_LOOK_MS / 1000)

    def close(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self, due: float) -> None:
        self._tell(max(0.0, (asyncio.get_running_loop().time() - due) * 1000))
        self.start()
