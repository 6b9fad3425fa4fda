"""Tokens of a key: what engines tell counts, at every door; where they tell nothing an estimate does."""

import asyncio
import json

import pytest

from support.open_gateway import open_gateway
from support.peer import Asked, Talk, sse, stream_of
from watchbill.catalog import ApiKey, Server
from watchbill.gateway.meters import TokenCount

KEY = ApiKey("bot", "k", tokens_per_minute=1_000_000)
HEADERS = {"Authorization": "Bearer k"}


def said(text: str, **more: object) -> dict[str, object]:
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}  # fmt: skip


END = {**said(""), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
#: Twelve tokens in two events.
TOLD = stream_of(
    sse(said("six words "), said("and six more"), END, {**END, "choices": [], "usage": USAGE}, "[DONE]")
)
UNTOLD = stream_of(sse(said("x" * 400), END, "[DONE]"))


def whole(answer: object) -> Talk:
    body = json.dumps(answer).encode()

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body), body))  # fmt: skip

    return talk


VECTORS = whole(
    {"data": [{"embedding": [0.5], "index": 0}], "usage": {"prompt_tokens": 42, "total_tokens": 42}}
)
CHAT = {
    "model": "a",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "x"}],
    "input": "x",
    "prompt": "x",
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "talk"),
    [
        ("/v1/chat/completions", TOLD),
        ("/v1/embeddings", VECTORS),
        ("/v1/rerank", VECTORS),
        ("/v1/messages", TOLD),
        ("/api/chat", TOLD),
        ("/api/generate", TOLD),
        ("/api/embed", VECTORS),
    ],
)
async def test_tokens_are_those_that_the_engine_tells(path: str, talk: Talk, stream: bool) -> None:
    """LANE-08: prompt and answer, at every door, streamed or whole; not the events of a stream."""
    async with open_gateway(talk, server=Server(keys=(KEY,))) as opened:
        answer = await opened.ask(path, {**CHAT, "stream": stream}, headers=HEADERS)
        assert answer.status == 200, answer.body
        await opened.until_idle()
        assert opened.gateway.meters.tokens(KEY) == 42


async def test_tokens_are_estimated_where_the_engine_tells_none() -> None:
    """LANE-08: a token for four bytes of the answer's texts and of the request."""
    async with open_gateway(UNTOLD, server=Server(keys=(KEY,))) as opened:
        asked = {**CHAT, "stream": True}
        await opened.ask("/v1/chat/completions", asked, headers=HEADERS)
        await opened.until_idle()
        assert opened.gateway.meters.tokens(KEY) == 400 // 4 + len(json.dumps(asked)) // 4


async def test_a_key_that_has_used_its_tokens_is_refused_before_its_body_is_read() -> None:
    """LANE-08: 429 with Retry-After, in every dialect."""
    key = ApiKey("bot", "k", tokens_per_minute=40)
    async with open_gateway(TOLD, server=Server(keys=(key,))) as opened:
        await opened.ask("/v1/chat/completions", CHAT, headers=HEADERS)
        await opened.until_idle()
        for path, status in (("/v1/chat/completions", 429), ("/v1/messages", 429), ("/api/chat", 503)):
            refused = await opened.ask(path, CHAT, headers=HEADERS)
            assert refused.status == status and "tokens_per_minute" in refused.body.decode()
            assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize("cut", range(1, 90, 7))
def test_figures_count_wherever_an_answer_is_split_and_words_never_do(cut: int) -> None:
    """LANE-08: a model that says `"completion_tokens": 999999` has not spent them."""
    text = json.dumps(said('"completion_tokens": 999999, \\"prompt_tokens\\":5 ')).encode()
    answer = b"data: " + text + b'\n\ndata: {"usage": {"prompt_tokens": 30, "completion_tokens": 12}}\n\n'
    spent: list[int] = []
    count = TokenCount(spent.append, 7)
    at = len(answer) - cut
    for piece in (answer[:at], answer[at:]):
        count.feed(piece)
    count.end()
    assert sum(spent) == 42
