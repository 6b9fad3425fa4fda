"""Durable stasis (RES-12): what was asked for in the background is in a spool until its response is kept.

    asked ─▶ enter (on disk before the caller is told) ─▶ note, every 10 s while it grows ─▶ leave, after it is kept
                                      kill, restart ─▶ found, with the text so far ─▶ made to its end

Owns the spool `ROOT/stasis`. Each event holds a whole request, whose it is, and how far its answer was. A request that
was read or answered when its daemon died, three times, is given up by the spool, and its response is then
`failed`. The death of a daemon is no fault of requests that only waited.
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
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.resume import Begun
from watchbill.runtime.ticket import Submission
from watchbill.spool.aio import AsyncSpool
from watchbill.spool.events import encode
from watchbill.spool.faults import disk_fault
from watchbill.spool.item import Item
from watchbill.spool.limits import EVENT_BYTES_MAX
from watchbill.spool.replay import unreplayed

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
        #: What has entered, by the response's id. None: it is on disk, and a full one does not show it yet.
        self._items: dict[str, Item | None] = {}
        self._left: set[str] = set()  # has left before the disk showed it
        self._begun: set[str] = set()  # is read or answered now
        self._turn = asyncio.Lock()
        self.is_read = folder is None  # all that an earlier daemon left was found

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
        self._items[id] = None
        try:
            await self._replace(id, b"".join(pieces))
        except (WatchbillError, OSError) as error:
            await self.leave(id)
            raise DiskFailed(
                f"the request cannot be written down, so its response would not outlive the daemon: {error}; "
                "make room, or ask for it without background"
            ) from error

    async def note(self, id: str, begun: Begun) -> bool:
        """Writes down how far a response is. False for one that has not entered yet, or left."""
        item = self._items.get(id)
        if item is None:
            return False
        event = {**item.event, "said": begun.text, "tokens": begun.tokens}
        with _logged(id):
            await self._replace(id, encode(event, EVENT_BYTES_MAX))
        return True

    async def leave(self, id: str) -> None:
        """Its response is kept, or is not wanted any more."""
        self._begun.discard(id)
        async with self._turn:
            if id not in self._items:
                return
            item = self._items.pop(id)
            if item is None:
                self._left.add(id)
            elif self._spool is not None:
                with _logged(id):
                    await self._drop(item)

    async def begin(self, id: str) -> None:
        """It is read or answered from now on: the daemon's death would be an attempt."""
        self._begun.add(id)
        await self._charge(id)

    async def rest(self, id: str) -> None:
        """It waits."""
        self._begun.discard(id)
        await self._charge(id)

    async def _charge(self, id: str) -> None:
        async with self._turn:
            item = self._items.get(id)
            if item is not None and self._spool is not None:
                with _logged(id):
                    await self._spool.charge(item, counts=id in self._begun)

    async def found(self) -> list[Parked]:
        """What an earlier daemon left, each once, with the longest text that was written down. Where the disk shows
        only a part of it, `is_read` stays false, and a later call finds the rest."""
        found: dict[str, Parked] = {}
        hidden = 0  # events of which only a log knows: the disk has no room for their files
        with _logged("*"):
            if self._folder is not None and await asyncio.to_thread(self._folder.is_dir):
                spool = await self._opened()
                await spool.recover()
                while (item := await spool.lease()) is not None:
                    await self._sort(item, found)
                hidden = await asyncio.to_thread(unreplayed, spool.spool.layout)
            self.is_read = not hidden
        return list(found.values())

    async def _sort(self, item: Item, found: dict[str, Parked]) -> None:
        parked = _parked(item)
        if parked is None:
            await (await self._opened()).poison(item, "no request of a response")
        elif parked.id in self._left or (parked.id in self._items and parked.id not in found):
            await self._take(item)  # it is being made, or was
        elif parked.id in found and len(parked.begun.text) <= len(found[parked.id].begun.text):
            await self._drop(item)  # it was killed between two notes
        else:
            await self.leave(parked.id)
            found[parked.id], self._items[parked.id] = parked, item
            await self._charge(parked.id)

    async def close(self) -> None:
        """Leaves what is here to the next daemon."""
        if self._spool is None:
            return
        for id, item in list(self._items.items()):
            with _logged(id):
                if item is not None:
                    await self._spool.release(item)  # an orderly end uses up no attempt
        self._items.clear()
        await self._spool.close()
        self._spool = None

    async def _replace(self, id: str, line: bytes) -> None:
        if self._folder is None:
            return
        async with self._turn:
            spool = await self._opened()
            await spool.enqueue(line)
            if id not in self._items:
                self._left.add(id)
            elif (before := self._items[id]) is not None:
                self._items[id] = None
                await self._drop(before)
            while self.is_read and (item := await spool.lease()) is not None:
                await self._take(item)

    async def _take(self, item: Item) -> None:
        """Holds what was written down last of a request; a full disk may show it late."""
        id = str(item.event.get("id"))
        if id in self._left:
            self._left.discard(id)
            return await self._drop(item)
        before, self._items[id] = self._items.get(id), item
        if id not in self._begun:
            await (await self._opened()).charge(item, counts=False)
        if before is not None:
            await self._drop(before)
        return None

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
