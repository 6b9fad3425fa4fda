"""The `context` of /api/generate: a conversation as numbers that the client hands back with its next prompt.

In Ollama they are token ids, which only the same model can read. Here they are the turns themselves, so that they work
with every engine, and with another model, too. To a client both are a list of numbers without a meaning. A list that
was not made here is refused: no engine behind us would read it as Ollama did. Does no I/O.
"""

from typing import cast

import msgspec

from watchbill.errors import RequestError
from watchbill.gateway.limits import CONTEXT_TEXT_BYTES_MAX

__all__ = ["read_context", "write_context"]

Fields = dict[str, object]

#: The first number of each list of ours.
_MAGIC = 0x57_42_01
_BYTES_PER_NUMBER = 3
_FOREIGN = "context was not made by this server; send the one of its last answer, or none"


def write_context(turns: list[tuple[str, str]]) -> list[int] | None:
    """Turns, each a role and a text, as numbers. None where the last one is too long."""
    text = msgspec.json.encode(turns)
    while len(text) > CONTEXT_TEXT_BYTES_MAX:
        if not turns:
            return None
        turns = turns[1:]
        text = msgspec.json.encode(turns)
    padded = text + b" " * (-len(text) % _BYTES_PER_NUMBER)
    pieces = (padded[at : at + _BYTES_PER_NUMBER] for at in range(0, len(padded), _BYTES_PER_NUMBER))
    return [_MAGIC, *(int.from_bytes(piece) for piece in pieces)]


def read_context(given: object) -> list[tuple[str, str]]:
    """The turns that a client hands back; none of an empty list. Raises RequestError."""
    if given is None or given == []:
        return []
    if not isinstance(given, list):
        raise RequestError("context must be a list of numbers")
    numbers = cast("list[object]", given)
    whole = [
        each
        for each in numbers
        if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2 ** (8 * _BYTES_PER_NUMBER)
    ]
    if len(whole) != len(numbers) or whole[0] != _MAGIC:
        raise RequestError(_FOREIGN)
    try:
        return msgspec.json.decode(
            b"".join(each.to_bytes(_BYTES_PER_NUMBER) for each in whole[1:]), type=list[tuple[str, str]]
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError(_FOREIGN) from None
