"""Frames of a websocket, as far as a gateway needs them that passes them on unread: where one ends. Does no I/O."""

__all__ = ["POLICY_VIOLATION", "FrameEnds", "close_frame"]

#: The close code for a client that is beyond a rule of the server (RFC 6455, 7.4.1).
POLICY_VIOLATION = 1008
_CLOSE, _MASKED = 0x88, 0x80
#: Bytes of a length that does not fit the second byte, by what stands there.
_LONGER = {126: 2, 127: 8}
_MASK_BYTES = 4


def close_frame(code: int, reason: str) -> bytes:
    """A server's last frame."""
    content = code.to_bytes(2, "big") + reason.encode()
    assert len(content) < min(_LONGER), "a control frame is short"
    return bytes([_CLOSE, len(content)]) + content


class FrameEnds:
    """Follows one direction of a websocket, however its bytes are split."""

    __slots__ = ("_head", "left")

    def __init__(self) -> None:
        self._head = b""  # of a frame whose length is not known yet
        self.left = 0  # bytes of the frame that are still to come, as far as is known

    @property
    def is_between(self) -> bool:
        """Whether the last frame is whole and no other has begun."""
        return not self.left and not self._head

    def feed(self, data: bytes) -> None:
        """Takes bytes that were passed on."""
        at = 0
        while at < len(data):
            if self.left:
                taken = min(self.left, len(data) - at)
                self.left -= taken
                at += taken
            else:
                self._head += data[at : at + 1]
                at += 1
                self._begin()

    def _begin(self) -> None:
        """Reads the head of a frame, once it is whole."""
        head = self._head
        if len(head) < 2:
            return
        short = head[1] & ~_MASKED
        more = _LONGER.get(short, 0)
        if len(head) < 2 + more:
            return
        size = int.from_bytes(head[2:], "big") if more else short
        self.left, self._head = size + (_MASK_BYTES if head[1] & _MASKED else 0), b""
