"""llama-swap's addresses of logs: the end of all of them as plain text, and each new line as it is written.

What llama-swap calls its own log is the journal for people here; the log upstream is that of every model's engine.
Engines write their logs themselves, so files are followed, in a thread. Logs may hold what callers wrote, so they are
for operators, and control characters are replaced: people read them in a terminal.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from watchbill.gateway.audience import Audience
from watchbill.gateway.dialects.llama_swap import to_page
from watchbill.gateway.http.messages import Answer, Response, Stream
from watchbill.gateway.limits import (
    LOG_FOLLOW_INTERVAL_MS,
    LOG_FOLLOWED_LINE_BYTES_MAX,
    LOG_FOLLOWED_PIECE_BYTES_MAX,
    LOG_HISTORY_BYTES_MAX,
)
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.processes import Seen, engine_log, read_growth
from watchbill.quoting import harmless

__all__ = ["LLAMA_SWAP_STREAMS", "FollowedLogs", "LlamaSwapLogs"]

#: Streams without an end: their GET does something, so HEAD is not served there.
LLAMA_SWAP_STREAMS = ("/logs/stream", "/logs/stream/{which:.+}")
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class LlamaSwapLogs:
    """Serves /logs and /logs/stream."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._audience = Audience()

    @property
    def listeners(self) -> int:
        """How many follow the logs."""
        return self._audience.size

    async def logs(self, context: RequestContext) -> Response:
        """GET /logs: the end of every log. A browser is sent to the page, which shows them better."""
        if "text/html" in context.request.headers.get("accept", ""):
            return to_page(context)
        text = await asyncio.to_thread(FollowedLogs(self._chosen("")).begin)
        return Response(text, _TEXT, lines=context.lines())

    async def stream(self, context: RequestContext) -> Answer:
        """GET /logs/stream, /logs/stream/proxy, /logs/stream/upstream, /logs/stream/NAME: the end, then each new line.

        With `?no-history` new lines only.
        """
        followed = FollowedLogs(self._chosen(context.request.match.get("which", "")))
        with self._audience.enter(context.key):
            told = await asyncio.to_thread(followed.begin)
            out = Stream(context.request, _TEXT, lines=context.lines())
            await out.open()
            if "no-history" not in context.request.query:
                await out.write(told)
            while not self._services.closing.is_set():
                if told := await asyncio.to_thread(followed.read):
                    await out.write(told)
                    continue
                await self._pause()
            await out.end()
        return out

    async def _pause(self) -> None:
        """Until the next look at the files, or the end of the daemon."""
        try:
            async with asyncio.timeout(LOG_FOLLOW_INTERVAL_MS / 1000):
                await self._services.closing.wait()
        except TimeoutError:
            return

    def _chosen(self, which: str) -> Callable[[], list[Path]]:
        """The files that are meant, asked anew at each look: models come and go. Raises ModelNotFound."""
        driver = self._services.driver

        def upstream() -> list[Path]:
            return [engine_log(driver.root, name) for name in driver.catalog.models]

        def proxy() -> list[Path]:
            return [driver.root / driver.catalog.journal.markdown]

        match which:
            case "":
                return lambda: [*proxy(), *upstream()]
            case "proxy":
                return proxy
            case "upstream":
                return upstream
            case _:
                name = driver.catalog.model_called(which).name
                return lambda: [engine_log(driver.root, name)]


class FollowedLogs:
    """Several logs, read as they grow. Whole lines only, so that those of two logs do not mix. Blocks."""

    def __init__(self, paths: Callable[[], Sequence[Path]]) -> None:
        self._paths = paths
        self._seen: dict[Path, Seen] = {}
        self._rests: dict[Path, bytes] = {}  # of a line whose end is not written yet

    def begin(self) -> bytes:
        """The end of each log, the one that was written last at the end; `read` goes on from there."""
        return b"".join(map(self._end_of, sorted(self._paths(), key=_changed)))

    def read(self) -> bytes:
        """The lines that were added since; bounded, so there may be more."""
        said, length = list[bytes](), 0
        for path in self._paths():
            # A log that was not there before is new as a whole.
            content, self._seen[path] = read_growth(
                path, self._seen.get(path, Seen(0, 0)), LOG_FOLLOWED_PIECE_BYTES_MAX
            )
            said.append(self._whole_lines(path, content))
            length += len(content)
            if length >= LOG_FOLLOWED_PIECE_BYTES_MAX:
                break
        return b"".join(said)

    def _end_of(self, path: Path) -> bytes:
        try:
            found = path.stat()
        except OSError:  # no engine of this model was started yet
            return b""
        start = max(0, found.st_size - LOG_HISTORY_BYTES_MAX)
        content, self._seen[path] = read_growth(path, Seen(found.st_ino, start), LOG_HISTORY_BYTES_MAX)
        if start:
            content = content.partition(b"\n")[2]
        return self._whole_lines(path, content)

    def _whole_lines(self, path: Path, content: bytes) -> bytes:
        whole, end, rest = (self._rests.pop(path, b"") + content).rpartition(b"\n")
        if len(rest) > LOG_FOLLOWED_LINE_BYTES_MAX:
            whole, end, rest = whole + end + rest, b"\n", b""
        if rest:
            self._rests[path] = rest
        return harmless((whole + end).decode("utf-8", "replace")).encode()


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
