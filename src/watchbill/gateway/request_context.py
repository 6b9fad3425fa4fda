"""The context of one HTTP request, from its arrival to its end, and what its headers and logs say about it."""

import asyncio
import itertools
import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from watchbill.catalog import ApiKey
from watchbill.gateway.http.messages import Request, header
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.meters import MeteredRequest
from watchbill.runtime.ticket import Start, Ticket

__all__ = ["RequestContext"]

_PREFIX = f"http-{os.urandom(4).hex()}-"
_numbers = itertools.count(1)
_NOTHING: Mapping[str, str] = MappingProxyType({})


class RequestContext:
    """What is known about a request so far."""

    __slots__ = (
        "_id", "asked", "began", "capture", "cors", "cost", "fallback", "gathered", "given", "held", "is_detached",
        "key", "lane", "lifted", "metered", "model", "request", "start", "ticket", "waits_elsewhere",
    )  # fmt: skip

    def __init__(self, request: Request, began: float) -> None:
        self.request = request
        self.began = began
        self._id = ""
        self.given = ""  # the id that its caller gave it
        self.key: ApiKey | None = None
        self.cors: Mapping[str, str] = _NOTHING  # headers that a web page needs
        self.ticket: Ticket | None = None  # once the scheduler accepted it
        self.lane = ""
        self.model = ""
        self.start: Start | None = None  # its turn, once it has come; `model` is then the one that serves
        self.waits_elsewhere = False  # another machine has it, and may let it wait: its wait is not known yet
        self.cost: float | None = None  # an estimate, of an answer that costs money
        self.fallback: str | None = None  # why no model gave the answer
        self.asked: dict[str, object] | None = None  # the request's body, for capture
        self.capture: str | None = None  # the spool that its type of work names
        self.lifted: Lifted | None = None  # the long texts of a large body
        self.held = 0  # bytes of its body that count as held
        self.gathered = 0  # bytes of its answer that were put together here, in many small pieces
        self.metered: MeteredRequest | None = None  # of a key that has bounds
        self.is_detached = False  # no client waits for its answer: the next daemon may give it

    @property
    def id(self) -> str:
        """Its name in logs and headers: the scheduler's, once that has accepted it."""
        if self.ticket is not None:
            return self.ticket.id
        if not self._id:
            self._id = f"{_PREFIX}{next(_numbers)}"
        return self._id

    @property
    def owner(self) -> str:
        """Whose it is: a key's name, nothing where there are no keys."""
        return "" if self.key is None else self.key.name

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose things it finds: its own, and with admin rights also those of the time before there were keys."""
        return (self.owner, "") if self.key is not None and self.key.admin else (self.owner,)

    def detached(self) -> "RequestContext":
        """A context for work that goes on after this request was answered: what is held and counted goes over to it."""
        work = RequestContext(self.request, self.began)
        work.key, work.asked, work.lifted = self.key, self.asked, self.lifted
        work.held, work.metered, work.is_detached = self.held, self.metered, True
        self.held, self.metered = 0, None
        return work

    def age_s(self) -> float:
        """How long ago the request arrived."""
        return asyncio.get_running_loop().time() - self.began

    def lines(self) -> str:
        """The headers that every answer carries. Model, wait and load are left out while they are not known."""
        start, id = self.start, self.id
        if start is None:
            place = header("X-Watchbill-Lane", self.lane) if self.lane else ""
            lines = f"X-Watchbill-Request-Id: {id}\r\nX-Request-Id: {self.given or id}\r\n{place}"
        else:
            lines = (
                f"X-Watchbill-Request-Id: {id}\r\nX-Request-Id: {self.given or id}\r\n"
                f"{_place(self.lane, start.model, start.companions, start.tier)}"
            )
            if not self.waits_elsewhere:
                lines += f"X-Watchbill-Wait-Ms: {start.wait_ms}\r\nX-Watchbill-Load-Ms: {start.load_ms}\r\n"
        if self.ticket is not None and self.ticket.request.reach:
            lines += header("X-Watchbill-Private", "1")
        if self.cost is not None:
            lines += header("X-Watchbill-Cost", f"{self.cost:.6f}")
        if self.fallback:
            lines += header("X-Watchbill-Fallback", self.fallback)
        for name, value in self.cors.items():
            lines += header(name, value)
        return lines


@lru_cache(maxsize=256)
def _place(lane: str, model: str, companions: tuple[str, ...], tier: str) -> str:
    """Where a request was served; the same for many."""
    lines = header("X-Watchbill-Lane", lane) + header("X-Watchbill-Model", model)
    lines += header("X-Watchbill-Tier", tier)
    return lines + header("X-Watchbill-With", ", ".join(companions)) if companions else lines
