"""Requests to the door over a NATS broker, from the agent's file thread.

The subject names the agent: SUBJECT.AGENT, and answers come back on SUBJECT.inbox.AGENT. So a broker that gives each
machine an account of its own, with permission for the subjects of its own agents, keeps agents apart. A request
without an answer is sent again under the same number until its time is over; the door does it once.
"""

import errno

from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.door.session import Session
from watchbill.spool.faults import SpoolBroken
from watchbill.spool.jetstream.link import Link
from watchbill.spool.jetstream.reach import Reach

__all__ = ["BrokerSession", "refuse_small_messages"]


class BrokerSession(Session):
    """The requests of one start of an agent, and its connection to the broker."""

    def __init__(self, reach: Reach, subject: str, agent: str) -> None:
        super().__init__(self._carry_to_door)
        self.link = Link(reach, f"watchbill agent {agent}", f"{subject}.inbox.{agent}")
        self._subject = f"{subject}.{agent}"

    def close(self) -> None:
        """End the connection."""
        self.link.close()

    def _carry_to_door(self, data: bytes) -> bytes:
        try:
            return self.link.call(
                lambda: self.link.request(self._subject, data), "reach the shared folder"
            ).data
        except SpoolBroken as error:
            raise OSError(errno.ETIMEDOUT, self._why(error)) from None

    def _why(self, error: SpoolBroken) -> str:
        if self.link.has_nobody_there:
            return f"the broker at {self.link.reach.named} knows no door {self._subject.rpartition('.')[0]}"
        return str(error)


def refuse_small_messages(link: Link) -> None:
    """Raise OursError for a broker whose messages are too small for the door."""
    if 0 < link.payload_bytes_max < limits.DOOR_PAYLOAD_BYTES_MIN:
        raise OursError(
            f"the broker at {link.reach.named} takes messages of {link.payload_bytes_max} bytes, too small for files",
            hint=f"set its max_payload to {limits.DOOR_PAYLOAD_BYTES_MIN} or more; the default of NATS is 1MB",
        )
