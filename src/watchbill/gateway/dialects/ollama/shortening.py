"""Prompts that are too long, made shorter as Ollama does: a chat loses its oldest turns, a text to embed its end.

The engine says by how much a prompt is too long, or only that it is. A chat keeps its system texts and its last
message; when nothing else is left to drop, the engine's refusal stands. Does no I/O.
"""

from typing import cast

from watchbill.gateway.answers import EngineRefused, TooLong
from watchbill.gateway.body import encode
from watchbill.gateway.lifting import Lifted
from watchbill.gateway.limits import SHORTENINGS_MAX

__all__ = ["Shortening", "shorter_texts"]

Fields = dict[str, object]

#: A little less than what would fit by the engine's figures: characters are not tokens.
_MARGIN = 0.95
_HALF = 0.5


class Shortening:
    """One chat on its way to a length that its model takes."""

    def __init__(self, body: Fields, lifted: Lifted | None = None) -> None:
        self._body = body
        self._lifted = lifted
        self._left = SHORTENINGS_MAX

    def shorter(self, error: EngineRefused) -> Fields | None:
        """The chat without its oldest turns, after this refusal; None where that is not the way."""
        self._left -= 1
        messages = self._body.get("messages")
        if error.too_long is None or self._left < 0 or not isinstance(messages, list):
            return None
        listed = cast("list[Fields]", messages)
        kept = _without_oldest(listed, list(map(self._size, listed)), _share(error.too_long))
        if len(kept) == len(cast("list[object]", messages)):
            return None
        self._body = {**self._body, "messages": kept}
        return self._body

    def _size(self, message: Fields) -> int:
        return len(encode(message)) if self._lifted is None else sum(map(len, self._lifted.written(message)))


def _without_oldest(messages: list[Fields], sizes: list[int], share: float) -> list[Fields]:
    """The messages that have about this share of all bytes. System texts and the last message always stay."""
    over, kept = sum(sizes) * (1 - share), list[Fields]()
    for place, (message, size) in enumerate(zip(messages, sizes, strict=True)):
        is_last = place == len(messages) - 1
        if is_last or over <= 0 or str(message.get("role")).lower() == "system":
            kept.append(message)
        else:
            over -= size
    return kept


def shorter_texts(texts: list[str], long: TooLong, lifted: Lifted | None = None) -> list[str]:
    """The texts, the longest of them cut to what the engine takes."""
    size_of = len if lifted is None else lifted.size_of
    most = max(1, int(max(map(size_of, texts)) * _share(long)))
    return [text[:most] if lifted is None else lifted.cut(text, most) for text in texts]


def _share(long: TooLong) -> float:
    if not long.asked or not long.most or long.most >= long.asked:
        return _HALF
    return _MARGIN * long.most / long.asked
