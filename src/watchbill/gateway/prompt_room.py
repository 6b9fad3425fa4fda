"""Prompts that surely do not fit a model's context, by their bytes alone: they are refused before an engine reads them.

No token stands for more bytes than the longest one of the vocabulary. A prompt of more bytes than as many tokens as the
context has would be refused by the engine, too, but only after it had cut all of it into tokens: for a few megabytes
that takes llama.cpp many seconds and hundreds of megabytes, which may cost the model its place and others their
answers. What a template may leave out, such as thoughts of earlier turns, is not counted. Does no I/O.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

from watchbill.catalog import Model
from watchbill.footprint import Header, usable_context
from watchbill.gateway.answers import SurelyTooLong, TooLong
from watchbill.gateway.lifting import Lifted

__all__ = ["PromptRoom", "prompt_room_of"]

Fields = dict[str, object]

#: Arguments that give llama.cpp another context than the config says, or let it drop a part of a prompt.
_OTHER_CONTEXT = ("-c", "--ctx-size", "--context-shift")
#: Whose texts every template writes.
_WRITTEN = frozenset({"user", "tool"})


class PromptRoom(NamedTuple):
    """What a prompt may have."""

    tokens: int
    token_bytes: int

    @property
    def bytes(self) -> int:
        """A prompt of more bytes does not fit."""
        return self.tokens * self.token_bytes

    def check(self, name: str, body: Fields, lifted: Lifted | None) -> None:
        """Raises SurelyTooLong for a chat, a completion or texts to embed that this model has no room for."""
        most = self.bytes
        for texts in _prompts(body):
            size = 0
            for text in texts:
                size += len(text) if lifted is None else lifted.bytes_of(text, most - size)
                if size > most:
                    raise self._refusal(name, sum(map(len if lifted is None else lifted.size_of, texts)))

    def _refusal(self, name: str, size: int) -> SurelyTooLong:
        least = max(self.tokens + 1, size // self.token_bytes)
        return SurelyTooLong(
            f"the prompt has more than {self.bytes} bytes, and {name} has a context of {self.tokens} tokens, none of "
            f"which stands for more than {self.token_bytes}",
            TooLong(least, self.tokens),
        )


def prompt_room_of(model: Model, header: Header | None) -> PromptRoom | None:
    """What a prompt of a llama.cpp model may have; None where that is not known."""
    if header is None or not header.token_bytes:
        return None
    if any(word.partition("=")[0] in _OTHER_CONTEXT for word in model.arguments):
        return None
    return PromptRoom(usable_context(model, header), header.token_bytes)


def _prompts(body: Fields) -> list[list[str]]:
    """The texts of each prompt in a body: a chat is one, and so is each text to complete or to embed."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return [list(_said(cast("list[object]", messages)))]
    return [[text] for name in ("prompt", "input") for text in _texts(body.get(name))]


def _texts(value: object) -> list[str]:
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, str)]


def _said(messages: list[object]) -> Iterable[str]:
    for message in messages:
        if isinstance(message, dict):
            fields = cast("Fields", message)
            content = fields.get("content")
            if str(fields.get("role")).lower() not in _WRITTEN:
                continue
            if isinstance(content, str):
                yield content
            elif isinstance(content, list):
                parts = (
                    cast("Fields", part) for part in cast("list[object]", content) if isinstance(part, dict)
                )
                yield from (text for part in parts if isinstance(text := part.get("text"), str))
