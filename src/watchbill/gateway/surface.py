"""What the gateway uses of the driver, and nothing more."""

from collections.abc import AsyncIterator
from typing import Protocol

from watchbill.catalog import Catalog
from watchbill.core.messages import Cause
from watchbill.runtime.claims import Claims
from watchbill.runtime.ticket import Submission, Ticket

__all__ = ["DriverSurface"]


class DriverSurface(Protocol):
    """The scheduler, seen from a door."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def claims(self) -> Claims: ...

    def submit(self, submission: Submission) -> Ticket:
        """Raises what can be refused at once: unknown model, full lane, never fits, shutting down."""
        ...

    def status(self) -> dict[str, object]: ...

    def requests(self) -> list[dict[str, object]]: ...

    def request(self, id: str, /) -> dict[str, object] | None: ...

    def cancel(self, id: str, /) -> bool: ...

    def explain(self, model: str, companions: tuple[str, ...] = (), /) -> dict[str, object]: ...

    async def load(self, model: str, /) -> str: ...

    async def evict(self, model: str, /, *, force: bool = False, cause: Cause = Cause.OPERATOR) -> str: ...

    def is_ready(self) -> bool: ...

    def subscribe(self) -> AsyncIterator[dict[str, object]]: ...
