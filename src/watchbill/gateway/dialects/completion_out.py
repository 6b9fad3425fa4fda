"""Streams of chats and completions in OpenAI's dialect, and what stands in for an answer that no model gave."""

import re
import time

from watchbill.gateway.fallback import Fallback
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.stream import StreamOut
from watchbill.gateway.take_apart import events_of

__all__ = ["CompletionOut", "fallen_back"]


#: In the last events of an answer: why it ended, or the tokens that it took.
_LAST_EVENTS = re.compile(rb'"finish_reason"\s*:\s*"|"choices"\s*:\s*\[\s*\]')
_END = b"data: [DONE]\n\n"


class CompletionOut(StreamOut):
    """A stream of a chat or completion. Some engines end theirs without the word that clients wait for: it is added."""

    def __init__(self, context: RequestContext, *, chat: bool) -> None:
        super().__init__(context)
        self._chat = chat
        self._lacks_end = False

    def has_ended(self, tail: bytes) -> bool:
        if super().has_ended(tail):
            return True
        self._lacks_end = _LAST_EVENTS.search(tail) is not None
        return self._lacks_end

    async def flush(self) -> None:
        await super().flush()
        if self._lacks_end:
            await self.send_last(_END)

    async def fall_back(self, fallback: Fallback) -> None:
        events = events_of(fallen_back(fallback, self.context.id, chat=self._chat))
        assert events is not None  # it has a choice
        await self.send(events)


# ------------------------------------------------------------------ fallbacks


def fallen_back(fallback: Fallback, id: str, *, chat: bool) -> dict[str, object]:
    """A fallback as a whole chat or completion."""
    said: dict[str, object] = (
        {"message": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    return {
        **_base(fallback, id, "chat.completion" if chat else "text_completion"),
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _base(fallback: Fallback, id: str, kind: str) -> dict[str, object]:
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": fallback.model,
        "watchbill": fallback.note,
    }
