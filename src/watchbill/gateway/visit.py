"""A visit: one HTTP request while it is in the house, and what is said about it in headers and logs."""

import asyncio

import msgspec

from watchbill.catalog import ApiKey
from watchbill.gateway.auth import Pass
from watchbill.gateway.http.request import Request
from watchbill.gateway.http.response import header
from watchbill.runtime.ticket import Start, Ticket

__all__ = ["Visit"]


class Visit(msgspec.Struct, eq=False):
    """What is known about a request so far."""

    request: Request
    id: str
    began: float
    key: ApiKey | None = None
    cors: dict[str, str] = {}
    lane: str = ""
    model: str = ""
    start: Start | None = None
    fallback: str | None = None  # why no model gave the answer
    asked: dict[str, object] | None = None  # the request's body, for capture
    capture: str | None = None  # the spool that its type of work names

    def let_in(self, admitted: Pass) -> None:
        """The guard let the request pass."""
        self.key = admitted.key
        self.cors = admitted.cors

    def took(self, ticket: Ticket) -> None:
        """The scheduler accepted the request."""
        self.id = ticket.id
        self.lane = ticket.request.lane
        self.model = ticket.model

    def started(self, start: Start) -> None:
        """The request has its turn."""
        self.start = start
        self.model = start.model

    def age_ms(self) -> int:
        """How long the request has been in the house."""
        return int((asyncio.get_running_loop().time() - self.began) * 1000)

    def lines(self) -> str:
        """The headers that every answer carries. Model, wait and load are left out while they are not known."""
        lines = f"X-Watchbill-Request-Id: {self.id}\r\n"
        if self.lane:
            lines += header("X-Watchbill-Lane", self.lane)
        start = self.start
        if start is not None:
            model = header("X-Watchbill-Model", start.model)
            lines += (
                f"{model}X-Watchbill-Wait-Ms: {start.wait_ms}\r\nX-Watchbill-Load-Ms: {start.load_ms}\r\n"
            )
            if start.companions:
                lines += header("X-Watchbill-With", ", ".join(start.companions))
        if self.fallback:
            lines += header("X-Watchbill-Fallback", self.fallback)
        for name, value in self.cors.items():
            lines += header(name, value)
        return lines
