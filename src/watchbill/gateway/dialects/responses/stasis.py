"""Durable stasis (RES-12): what was asked for in the background is in a spool until its response is kept.

    asked ─▶ enter (on disk before the caller is told) ─▶ note, every 10 s while it grows ─▶ leave, after it is kept
                                      kill, restart ─▶ found, with the text so far ─▶ made to its end

Owns the spool `ROOT/stasis`. Each event holds a whole request, whose it is, and how far its answer was. An event that
takes its daemon down three times is given up by the spool, and its response is then `failed`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, cast

from watchbill.catalog import Reach
from watchbill.errors import DiskFailed, WatchbillError
from watchbill.files.atomic import make_private_folder
from watchbill.gateway.limits import RESPONSES_BACKGROUND_MAX
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Begun
from watchbill.runtime.ticket import Submission
from watchbill.spool.aio import AsyncSpool
from watchbill.spool.events import encode
from watchbill.spool.faults import disk_fault
from watchbill.spool.item import Item
from watchbill.spool.limits import EVENT_BYTES_MAX

__all__ = ["Parked", "Stasis"]

Fields = dict[str, object]
_log = logging.getLogger("watchbill.gateway")
#: Headers that say how a request is to be treated; keys and cookies are not written down.
_KEPT_HEADERS = "x-watchbill-"


class Parked(NamedTuple):
    """A request whose response has to be made."""

    id: str
    owner: str
    headers: dict[str, str]
    body: Fields
    begun: Begun
    reach: Reach  # how far from this machine it may be made


class Stasis:
    """The requests of one daemon that outlive it. Without a folder none does. A request that cannot be written
    down is refused; what fails later is logged, and the text that was written down last is what a restart finds."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._spool: AsyncSpool | None = None
        self._items: dict[str, Item] = {}
        self._turn = asyncio.Lock()  # what was enqueued last is the only one that waits

    async def enter(self, id: str, work: RequestContext, body: Fields, submission: Submission) -> None:
        """Writes a request down. On return it survives a power cut. Raises DiskFailed when it cannot be written.

        The address that it came to is not written down, but what that said: model, lane and reach."""
        headers, lifted = work.request.headers, work.lifted
        kept = {name: value for name, value in headers.items() if name.startswith(_KEPT_HEADERS)}
        kept |= {} if submission.lane is None else {"x-watchbill-lane": submission.lane}
        event = {
            "id": id,
            "kind": "response",
            "ts": int(time.time()),
            "owner": work.owner,
            "headers": kept,
            "reach": submission.reach.value,
            "body": {"model": submission.model, **body},
        }
        pieces = [encode(event, EVENT_BYTES_MAX)] if lifted is None else lifted.written(event)
        try:
            await self._replace(id, b"".join(pieces))
        except (WatchbillError, OSError) as error:
            raise DiskFailed(
                f"the request cannot be written down, so its response would not outlive the daemon: {error}; "
                "make room, or ask for it without background"
            ) from error

    async def note(self, id: str, begun: Begun) -> bool:
        """Writes down how far a response is. False for one that has not entered yet, or left."""
        if id not in self._items:
            return False
        event = {**self._items[id].event, "said": begun.text, "tokens": begun.tokens}
        with _logged(id):
            await self._replace(id, encode(event, EVENT_BYTES_MAX))
        return True

    async def leave(self, id: str) -> None:
        """Its response is kept, or is not wanted any more."""
        item = self._items.pop(id, None)
        if item is not None and self._spool is not None:
            with _logged(id):
                await self._drop(item)

    async def found(self) -> list[Parked]:
        """What an earlier daemon left, each once, with the longest text that was written down."""
        if self._folder is None or not self._folder.is_dir():
            return []
        found: dict[str, Parked] = {}
        with _logged("*"):
            spool = await self._opened()
            while len(found) < RESPONSES_BACKGROUND_MAX and (item := await spool.lease()) is not None:
                parked = _parked(item)
                if parked is None:
                    await spool.poison(item, "no request of a response")
                elif parked.id in found and len(parked.begun.text) <= len(found[parked.id].begun.text):
                    await self._drop(item)  # it was killed between two notes
                else:
                    await self.leave(parked.id)
                    found[parked.id], self._items[parked.id] = parked, item
        return list(found.values())

    async def close(self) -> None:
        """Leaves what is here to the next daemon."""
        if self._spool is None:
            return
        for id, item in self._items.items():
            with _logged(id):
                await self._spool.release(item)  # an orderly end uses up no attempt
        self._items.clear()
        await self._spool.close()
        self._spool = None

    async def _replace(self, id: str, line: bytes) -> None:
        if self._folder is None:
            return
        async with self._turn:
            spool, before = await self._opened(), self._items.get(id)
            await spool.enqueue(line)
            item = await spool.lease()
            if item is not None:
                self._items[str(item.event["id"])] = item
            if before is not None:
                await self._drop(before)

    async def _drop(self, item: Item) -> None:
        """Removes a request for good. One that a power cut brings back is dropped by the next daemon, because its
        response is kept."""
        spool = (await self._opened()).spool

        def remove() -> None:
            item.path.unlink(missing_ok=True)
            spool.forget(item)

        await asyncio.to_thread(remove)

    async def _opened(self) -> AsyncSpool:
        if self._spool is None:
            assert self._folder is not None
            self._spool = await asyncio.to_thread(_open, self._folder)
        return self._spool


def _open(folder: Path) -> AsyncSpool:
    """Opens the spool, in a folder for the daemon's own user alone. Raises what a Spool raises."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise disk_fault(error, f"open {folder}") from error
    return AsyncSpool(folder)


@contextlib.contextmanager
def _logged(id: str) -> Generator[None]:
    try:
        yield
    except (WatchbillError, OSError) as error:
        _log.warning("response=%s would not outlive a restart: %s", id, error)


def _parked(item: Item) -> Parked | None:
    event = item.event
    id, owner, headers, body = (event.get(name) for name in ("id", "owner", "headers", "body"))
    if not isinstance(id, str) or not isinstance(owner, str) or not isinstance(headers, dict | None):
        return None
    if not isinstance(body, dict):
        return None
    said, tokens = event.get("said", ""), event.get("tokens", 0)
    begun = Begun(said, tokens) if isinstance(said, str) and isinstance(tokens, int) else Begun()
    reach = event.get("reach", Reach.ANYWHERE)  # an earlier version wrote none
    if reach not in tuple(Reach):
        return None
    marks = cast("dict[str, str]", headers or {})
    return Parked(id, owner, marks, cast("Fields", body), begun, Reach(cast("int", reach)))
