"""Tool calls in the making: an OpenAI stream brings them in pieces, other protocols want them whole.

Does no I/O. Pieces of a call have its number. Some engines number every call 0 and tell them apart by their ids: a
piece with a name and another id than the call of its number begins a new one. A call whose arguments are cut off by the
token limit is left out: half of a call must not be run.
"""

from dataclasses import dataclass, field
from io import StringIO

import msgspec

from watchbill.errors import EngineFailed
from watchbill.gateway.growing import Kept
from watchbill.gateway.limits import GROWN_CALLS_WEIGHT_MAX, TOOL_CALLS_MAX
from watchbill.gateway.typed import object_of
from watchbill.gateway.wire import decode_fields

__all__ = ["ToolCall", "ToolCalls", "begins_call", "spelled"]

Fields = dict[str, object]


@dataclass(slots=True)
class ToolCall:
    """One call, as far as it has come."""

    index: int  # its place among the calls of the answer
    number: object = None  # what the engine calls it by
    id: str = ""
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    def parsed(self) -> Fields:
        """The arguments as an object. Raises EngineFailed when they are none."""
        text = self.arguments.getvalue().strip() or "{}"
        return decode_fields(
            text.encode("utf-8", "replace"), f"the model called {self.name} with arguments that are no JSON"
        )


class ToolCalls:
    """Every call of one answer, in order."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._kept = Kept(GROWN_CALLS_WEIGHT_MAX)

    def take(self, pieces: list[Fields]) -> list[tuple[ToolCall, str]]:
        """Takes pieces; returns for each the call that it belongs to and the text that its arguments grew by."""
        return [self._take(piece) for piece in pieces]

    def whole(self, *, cut: bool) -> list[ToolCall]:
        """The calls that are complete, at the end of an answer that was cut by its token limit or was not."""
        if not cut or not self.calls:
            return self.calls
        try:
            self.calls[-1].parsed()
        except EngineFailed:
            return self.calls[:-1]
        return self.calls

    def _take(self, piece: Fields) -> tuple[ToolCall, str]:
        number = piece.get("index")
        known = next((call for call in reversed(self.calls) if call.number == number), None)
        if known is None or number is None or begins_call(piece, known.id):
            if len(self.calls) >= TOOL_CALLS_MAX:
                raise EngineFailed(f"the model made more than {TOOL_CALLS_MAX} tool calls")
            known = ToolCall(len(self.calls), number)
            self.calls.append(known)
        fields = _function_of(piece)
        known.id = known.id or _text(piece.get("id"))
        known.name = known.name or _text(fields.get("name"))
        grown = fields.get("arguments")
        text = grown if isinstance(grown, str) else spelled(grown)
        self._kept.json(text)
        known.arguments.write(text)
        return known, text


def begins_call(piece: Fields, id: object) -> bool:
    """Whether a piece begins another call than the one of this id, although it has its number.

    Some engines give every piece an id of its own, but only the first one of a call a name."""
    own = piece.get("id")
    return bool(own and id and own != id and _text(_function_of(piece).get("name")))


def _function_of(piece: Fields) -> Fields:
    function = piece.get("function")
    return object_of(function)


def spelled(arguments: object) -> str:
    """Arguments as a text. Some engines send them as an object, at once."""
    try:
        return msgspec.json.encode(arguments).decode() if arguments else ""
    except (OverflowError, ValueError) as error:
        raise EngineFailed(f"the model called a tool with arguments that are no JSON: {error}") from None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
