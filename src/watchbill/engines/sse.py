"""Readers of server-sent events without any I/O: bytes in, payloads or whole events out.

Each owns the bytes of an event that is not complete yet, and nothing else. Promises the same however the bytes were
split, for all three kinds of newline; a single event larger than its bound is an error, so that an engine which never
ends a line cannot fill the memory. The bound is lower where the payload is decoded. Never decodes JSON.
"""

from watchbill.engines.limits import SSE_EVENT_BYTES_MAX
from watchbill.errors import EngineFailed
from watchbill.limits import JSON_DECODED_BYTES_MAX

__all__ = ["DONE", "ENDED_EARLY", "EventReader", "EventTooLarge", "WholeEvents", "is_sign_of_life"]

#: The payload with which OpenAI's protocol ends a stream.
DONE = b"[DONE]"
#: Said of an answer that has no end.
ENDED_EARLY = "the engine's stream ended before its answer did"

#: As numbers, which bytes are searched for at once; for bytes in bytes an exception is raised and dropped inside.
_CR, _LF = 13, 10
#: The ends of an event: a blank line, of any kind of newline.
_BLANKS = (b"\n\n", b"\n\r\n", b"\r\r")
_SEAM_BYTES = 2
_BOM = b"\xef\xbb\xbf"


def is_sign_of_life(piece: bytes) -> bool:
    """Whether bytes of a stream are comments only: the server says that it still works on the answer."""
    return piece.endswith((b"\n", b"\r")) and all(
        not line or line.startswith(b":") for line in piece.splitlines()
    )


class EventTooLarge(EngineFailed):
    """The engine sent a stream event larger than the limit."""


class WholeEvents:
    """Passes a stream on as it is, in whole events."""

    __slots__ = ("_half", "_seam", "_size")

    def __init__(self) -> None:
        self._half: list[bytes] = []  # of the event that has no end yet; joined once, not for every piece
        self._size = 0
        self._seam = b""  # the last bytes that came: a blank line may begin in them

    def feed(self, piece: bytes) -> bytes:
        """The events that are whole with `piece`. Raises EventTooLarge."""
        if not self._half and piece.endswith((b"\n\n", b"\r\n\r\n")):
            self._seam = piece[-_SEAM_BYTES:]
            return piece
        seam, self._seam = self._seam, (self._seam + piece)[-_SEAM_BYTES:]
        cut = max(0, _end_of_whole(seam + piece) - len(seam))
        whole, half = b"", piece[cut:]
        if cut:
            whole = self.rest() + piece[:cut]
        if half:
            self._half.append(half)
            self._size += len(half)
        if self._size > SSE_EVENT_BYTES_MAX:
            raise EventTooLarge
        return whole

    @property
    def is_between_events(self) -> bool:
        """Whether nothing is held back."""
        return not self._half

    def rest(self) -> bytes:
        """What is held back, which is then forgotten."""
        rest, self._half, self._size = b"".join(self._half), [], 0
        return rest


class EventReader:
    """Turns a stream of bytes into the payloads of its `data:` fields."""

    __slots__ = ("_at_start", "_data", "_parts", "_parts_size", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""  # the line that has no end yet
        self._parts: list[bytes] = []  # its further pieces
        self._parts_size = 0
        self._data: list[bytes] = []  # data lines of the event that has no end yet
        self._size = 0
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads that `piece` completes, in order. Raises EventTooLarge."""
        # What engines send nearly always: whole events of one line each.
        if (
            piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and not (self._rest or self._parts or self._data)
            and _CR not in piece
            and len(piece) <= JSON_DECODED_BYTES_MAX
        ):
            events = piece[6:-2].split(b"\n\ndata: ")
            if piece.count(b"\n") == 2 * len(events):  # else there is another field, or an event without data
                self._at_start = False
                return events
        return self._feed_lines(piece)

    def end(self) -> list[bytes]:
        """The payload that only a carriage return at the very end completes. An event without its blank line
        is cut, and is not given out."""
        if self._rest != b"\r":
            return []
        self._rest = b""
        payload = self._take_line(b"")
        return [] if payload is None else [payload]

    def _feed_lines(self, piece: bytes) -> list[bytes]:
        if self._grow_rest(piece):
            return []
        text = self._rest + b"".join(self._parts) + piece
        self._parts.clear()
        self._parts_size = 0
        if self._at_start:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            text = text.removeprefix(_BOM)
            self._at_start = False
        lines, self._rest = _split_lines(text)
        done: list[bytes] = []
        for line in lines:
            payload = self._take_line(line)
            if payload is not None:
                done.append(payload)
        if self._size + len(self._rest) > JSON_DECODED_BYTES_MAX:
            raise EventTooLarge
        return done

    def _grow_rest(self, piece: bytes) -> bool:
        """Keeps a piece without any newline for later: joining each would cost the square of a huge line."""
        if self._at_start or _LF in piece or _CR in piece or self._rest.endswith(b"\r"):
            return False
        self._parts.append(piece)
        self._parts_size += len(piece)
        if self._size + len(self._rest) + self._parts_size > JSON_DECODED_BYTES_MAX:
            raise EventTooLarge
        return True

    def _take_line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._size += len(value) + 1
            if self._size > JSON_DECODED_BYTES_MAX:
                raise EventTooLarge
            self._data.append(value.removeprefix(b" "))
        return None  # comments and the other fields carry nothing that we need

    @property
    def is_between_events(self) -> bool:
        """Whether no event is half received; a stream that ends otherwise was cut."""
        return not self._data and not self._parts and not self._rest.strip(b"\r\n")


def _split_lines(text: bytes) -> tuple[list[bytes], bytes]:
    """The complete lines and the rest. A trailing CR is kept back: an LF that belongs to it may follow."""
    held = b""
    if text.endswith(b"\r"):
        text, held = text[:-1], b"\r"
    if _CR in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = text.split(b"\n")
    return lines[:-1], lines[-1] + held


def _end_of_whole(piece: bytes) -> int:
    """How many bytes of a stream belong to events that are complete."""
    ends = ((piece.rfind(blank), len(blank)) for blank in _BLANKS)
    return max(at + size if at >= 0 else 0 for at, size in ends)
