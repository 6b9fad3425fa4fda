"""Breaks: how often in a row another machine hung up without a byte, or the connection to a peer broke without a
further word of its answer.

The request is asked again after pauses that grow with each. Under one lease so many breaks are a dead connection, and
the request ends or is served elsewhere. A machine that gave a new lease since, as after a new start, was there: the
request waits for it as long as it may.
"""

from dataclasses import dataclass

from watchbill.engines.upstream import FailureKind, UpstreamFailed
from watchbill.errors import EngineFailed
from watchbill.gateway.limits import UNHEARD_PAUSE_MS, UNHEARD_TIMES_MAX

__all__ = ["Breaks"]

_BROKEN = (FailureKind.CLOSED, FailureKind.TRUNCATED)


@dataclass(slots=True, eq=False)
class Breaks:
    """The breaks of one request."""

    under_lease: int = 0  # in a row under the present lease, or in the present start
    _attempt: int | None = None  # the present one
    _in_a_row: int = 0

    def see(self, error: EngineFailed, attempt: int | None, *, at_peer: bool, advances: bool) -> None:
        """Counts a failure. One of another kind, or after further words of the answer, ends the row."""
        is_break = (
            isinstance(error, UpstreamFailed)
            and error.kind in _BROKEN
            and (at_peer or (error.kind is FailureKind.CLOSED and not error.received))
        )
        if not is_break or advances:
            self._in_a_row = self.under_lease = 0
            return
        self._in_a_row += 1
        self.under_lease = self.under_lease + 1 if attempt == self._attempt else 1
        self._attempt = attempt

    def forget(self) -> None:
        """The request goes to another site."""
        self.under_lease = 0

    @property
    def are_passing(self) -> bool:
        """Whether there were some, and the machine is asked again."""
        return 0 < self.under_lease < UNHEARD_TIMES_MAX

    @property
    def is_dead(self) -> bool:
        """Whether the connection broke so often that it is not tried again."""
        return self.under_lease >= UNHEARD_TIMES_MAX

    @property
    def pause_ms(self) -> int:
        """How long to wait before the request is asked again."""
        return (
            UNHEARD_PAUSE_MS * 2 ** (min(self._in_a_row, UNHEARD_TIMES_MAX) - 2) if self._in_a_row > 1 else 0
        )
