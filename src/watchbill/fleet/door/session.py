"""A session: the requests of one start of an agent, numbered, over whatever carries them to the door.

An answer that does not fit into one message is fetched in parts. One request is out at a time.
"""

import errno
import os
import threading
import time
from collections.abc import Callable

from watchbill.fleet.door.wire import PROTOCOL, Message, Op, pack, raise_error, unpack

__all__ = ["Session"]


class Session:
    """Makes requests of operations, and values or errors of answers."""

    def __init__(self, carry: Callable[[bytes], bytes]) -> None:
        """`carry` takes a message to the door and returns its answer; it may do so more than once."""
        self._carry = carry
        self._id = os.urandom(8).hex()
        self._number = 0
        self._turn = threading.Lock()
        self.door_id = ""  # of the one that gave the last answer
        self.answered_at = 0.0  # when it did, by the monotonic clock

    def call(self, op: Op, body: bytes = b"", **fields: object) -> Message:
        """One request and its answer. Raises OSError where the door cannot be reached, and what the door answers."""
        with self._turn:
            self._number += 1
            answer = self._whole(op, body, fields)
        raise_error(answer, str(fields.get("path", "")))
        return answer

    def _whole(self, op: Op, body: bytes, fields: dict[str, object]) -> Message:
        first = self._part(op, body, fields)
        parts, size, have = [first.body], first.fields.whole("size"), len(first.body)
        while have < size:
            more = self._part(Op.MORE, b"", {"offset": have})
            if not more.body:
                raise OSError(errno.ESTALE, "the door was started anew in the middle of an answer")
            parts.append(more.body)
            have += len(more.body)
        return unpack(b"".join(parts))

    def _part(self, op: Op, body: bytes, fields: dict[str, object]) -> Message:
        head = {"protocol": PROTOCOL, "session": self._id, "number": self._number, "op": op.value, **fields}
        try:
            answer = unpack(self._carry(pack(head, body)))
        except ValueError as error:
            raise OSError(errno.EPROTO, f"the door's answer cannot be read: {error}") from None
        self.door_id, self.answered_at = answer.fields.text("door"), time.monotonic()
        return answer
