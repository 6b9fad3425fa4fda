"""A visit: one HTTP request while it is in the house, and what is said about it in headers and logs."""

import asyncio

import msgspec

from watchbill.catalog import ApiKey
from watchbill.gateway.auth import Pass
from watchbill.gateway.http.request import Request
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

    def headers(self, content_type: str) -> dict[str, str]:
        """What every answer carries. Model, wait and load are left out while they are not known."""
        headers = {"Content-Type": content_type, "Server": "watchbill", "X-Watchbill-Request-Id": self.id}
        if self.lane:
            headers["X-Watchbill-Lane"] = self.lane
        start = self.start
        if start is not None:
            headers["X-Watchbill-Model"] = start.model
            headers["X-Watchbill-Wait-Ms"] = str(start.wait_ms)
            headers["X-Watchbill-Load-Ms"] = str(start.load_ms)
            if start.companions:
                headers["X-Watchbill-With"] = ", ".join(start.companions)
        if self.fallback:
            headers["X-Watchbill-Fallback"] = self.fallback
        if self.cors:
            headers.update(self.cors)
        return headers
