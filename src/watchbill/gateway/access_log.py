"""The access log: one line per request, written in batches so that serving never waits for a disk.

A line has the time, the request's id, who asked, what for, and how it went. Never a prompt, never a key.
"""

import asyncio
import time
from collections.abc import Callable

from watchbill.gateway.limits import ACCESS_LOG_FLUSH_MS, ACCESS_LOG_LINES_MAX
from watchbill.gateway.request_context import RequestContext

__all__ = ["AccessLog"]

#: Characters of a path that are kept; a client chose them.
_PATH_CHARS_MAX = 200


class AccessLog:
    """Collects lines and hands them to a sink a few times a second."""

    def __init__(self, sink: Callable[[str], None] | None) -> None:
        self._sink = sink
        self.is_on = sink is not None  # lines cost time to write
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def note(self, context: RequestContext, status: int) -> None:
        """One request is over. A status of 499 means that the client left first."""
        if len(self._lines) >= ACCESS_LOG_LINES_MAX:
            self.dropped += 1
            return
        request, start = context.request, context.start
        path = request.target.partition("?")[0][:_PATH_CHARS_MAX]
        self._lines.append(
            f"{time.time():.3f} {context.id} {request.remote} {context.key.name if context.key else '-'} "
            f"{request.method} {ascii(path)[1:-1]} {status} {context.age_s() * 1000:.1f}ms "
            f"model={context.model or '-'} lane={context.lane or '-'} "
            f"wait={start.wait_ms if start else '-'} load={start.load_ms if start else '-'}"
        )
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ACCESS_LOG_FLUSH_MS / 1000, self.flush)

    def flush(self) -> None:
        """Hands over what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines and self._sink is not None:
            lines, self._lines = self._lines, []
            self._sink("\n".join(lines))
