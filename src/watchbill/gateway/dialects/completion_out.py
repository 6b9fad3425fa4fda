"""Streams of chats and completions in OpenAI's dialect, and what stands in for an answer that no model gave."""

import time

import msgspec

from watchbill.gateway.fallback import Fallback
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.stream import StreamOut

__all__ = ["CompletionOut", "fallen_back"]

_encode = msgspec.json.Encoder().encode


class CompletionOut(StreamOut):
    """A stream of a chat or completion."""

    def __init__(self, context: RequestContext, *, chat: bool) -> None:
        super().__init__(context)
        self._chat = chat

    async def fall_back(self, fallback: Fallback) -> None:
        await self.send(_completion_events(fallback, self.context.id, chat=self._chat))


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


def _completion_events(fallback: Fallback, id: str, *, chat: bool) -> bytes:
    """The same as a stream."""
    base = _base(fallback, id, "chat.completion.chunk" if chat else "text_completion")
    said: dict[str, object] = (
        {"delta": {"role": "assistant", "content": fallback.text}} if chat else {"text": fallback.text}
    )
    last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    events = (
        {**base, "choices": [{"index": 0, **said, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, **last, "finish_reason": "stop"}]},
    )
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _base(fallback: Fallback, id: str, kind: str) -> dict[str, object]:
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": fallback.model,
        "watchbill": fallback.note,
    }
