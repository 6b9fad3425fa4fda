"""JSON that would take long to decode: refused by one rule, whatever its size, and only for what is at fault."""

import asyncio
import gc
import json

import pytest

from support.longest_pause import LAG_S_MAX, longest_pause
from support.open_gateway import open_gateway
from support.peer import Asked, Talk, stream_of
from watchbill.decodable import collector_paused, has_more_values, is_decodable
from watchbill.errors import RequestError
from watchbill.gateway.dialects.batches.anthropic import split_requests
from watchbill.limits import (
    JSON_DECODED_BYTES_MAX,
    JSON_DECODED_VALUES_MAX,
    JSON_DIGITS_BYTES_MIN,
    JSON_DIGITS_MAX,
    JSON_LIFTED_MAX,
    JSON_WINDOW_BYTES,
)

LONG = b"7" * (JSON_DIGITS_MAX + 1)
SIZES = [JSON_DIGITS_BYTES_MIN, 100_000, 256 * 2**10, JSON_DECODED_BYTES_MAX - 2**14]
CHAT = {"model": "a", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("size", SIZES)
def test_digits_are_too_many_in_a_number_and_harmless_in_a_text(size: int) -> None:
    """R34: the same rule for every size that takes time."""
    room = b" " * size
    assert not is_decodable(b'{"a": %b}%b' % (LONG, room))
    assert not is_decodable(b'{"a \\" b": [1, -0.%b]}%b' % (LONG, room))
    assert is_decodable(b'{"a": "%b"}%b' % (LONG, room))
    assert is_decodable(b'{"a": "x\\"%b\\"", "b": %b}%b' % (LONG * 100, LONG[:-1], room))


def test_values_are_counted_outside_of_texts() -> None:
    """R34"""
    many = JSON_DECODED_VALUES_MAX + 1
    assert not is_decodable(b"[" + b"1," * many + b"1]")
    assert not is_decodable(b"[" * many)
    assert is_decodable(b'{"a": "' + b"{[,]}" * many + b'"}')
    assert not is_decodable(b'{"a": "' + b"x" * JSON_DECODED_BYTES_MAX + b'"}')


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_with_many_digits_in_its_text_is_given_whole(path: str, stream: bool) -> None:
    """R34: a model may well say 50,000 digits of pi."""
    said = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":"stop"}]}\n\n' % (
        b"3" * 300_000
    )
    async with open_gateway(stream_of(said, b"data: [DONE]\n\n")) as opened:
        answer = await opened.ask(path, {**CHAT, "max_tokens": 1, "stream": stream})
        assert answer.status == 200 and b"3" * 300_000 in answer.body


def test_the_collector_runs_again_after_a_pause() -> None:
    """R42: also where the decoder raises."""

    def fail() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON"):
        fail()
    assert gc.isenabled()


def whole(content: bytes) -> Talk:
    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(content) + content)

    return talk


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/api/chat"])
@pytest.mark.parametrize(
    "content",
    [b"[" * 2_000_000, b"[]", b"7", b"", b'{"a":' * 50_000, b'{"a": 1', b"{}}"],
    ids=lambda each: each[:8].decode(),
)
async def test_an_answer_that_is_no_object_is_an_error_of_the_engine(path: str, content: bytes) -> None:
    """R33: 502 that says so, in place of a 200 that no client can read."""
    async with open_gateway(whole(content)) as opened:
        doing = asyncio.ensure_future(
            opened.ask(path, {**CHAT, "prompt": "x", "input": "x", "stream": False})
        )
        assert await longest_pause(doing) < LAG_S_MAX
        assert (await doing).status == 502


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/api/chat"])
@pytest.mark.parametrize("kind", [b"text/html", b"text/plain", b"image/png", b"application/xml"])
async def test_an_answer_of_another_kind_is_an_error_of_the_engine(
    kind: bytes, path: str, stream: bool
) -> None:
    """R32: a proxy's page with 200 is no answer of a model."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: 13\r\n\r\n<html></html>" % kind)

    async with open_gateway(talk) as opened:
        asked = {**CHAT, "prompt": "x", "input": "x", "stream": stream}
        assert (await opened.ask(path, asked)).status == 502


async def test_an_object_of_json_is_an_answer_whatever_its_engine_calls_it() -> None:
    """R32: some servers send it as plain text; the client gets it as what it is."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\n{"a": 1}')

    async with open_gateway(talk) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": False})
        assert answer.status == 200 and answer.headers["content-type"] == "application/json"


async def test_a_body_of_thousands_of_long_texts_holds_up_nobody() -> None:
    """R42: its texts are joined as they are sent, a slice in each turn."""
    texts = [{"role": "user", "content": "w " * 3_000}] * JSON_LIFTED_MAX
    body = json.dumps({**CHAT, "messages": texts}).encode()
    async with open_gateway() as opened:
        doing = asyncio.ensure_future(opened.ask("/v1/chat/completions", body))
        assert await longest_pause(doing) < LAG_S_MAX
        assert (await doing).status == 200
        assert opened.peer.asked[0].json["messages"] == texts


BORDER = JSON_WINDOW_BYTES


@pytest.mark.parametrize("escape", [b"\\u00e9", b"\\\\", b'\\"', b"\\ud83d\\ude00", "é".encode(), b"0e1,[{"])
@pytest.mark.parametrize("before", range(BORDER - 14, BORDER + 2))
def test_a_long_text_is_one_value_whatever_stands_at_the_border_of_a_window(
    escape: bytes, before: int
) -> None:
    """R34: it is looked at window by window, because a pattern that takes all of it holds up every other thread."""
    text = b'["' + b"a" * before + escape * 60_000 + b'", 1, 2]'
    assert not has_more_values(text, 100)
    assert has_more_values(text[:-1] + b", 3" * 120 + b"]", 100)


@pytest.mark.parametrize("inside", [b"0e" * 90_000, b"0e" * 90_000 + b"\\x", b"0e" * 90_000 + b"\n" + b'"'])
def test_a_text_without_an_end_has_no_values_behind_it(inside: bytes) -> None:
    """R42: it is no JSON; the decoder says where."""
    assert not has_more_values(b'["' + inside, 100)


async def test_a_text_without_an_end_is_looked_at_once() -> None:
    """R42, R34: not from each of the quotes that are escaped in it: 16 KB took seconds, and a megabyte would have taken
    hours, in which no other request is served."""
    endless = b'"' + b'\\",' * 120_000
    looking = asyncio.to_thread(is_decodable, endless)
    assert await longest_pause(asyncio.ensure_future(looking)) < LAG_S_MAX
    splitting = asyncio.to_thread(_refusal_of, b'{"requests": ' + endless)
    assert await longest_pause(asyncio.ensure_future(splitting)) < LAG_S_MAX
    assert "a text has no end" in _refusal_of(b'{"requests": ' + endless)


def _refusal_of(body: bytes) -> str:
    with pytest.raises(RequestError) as refused:
        list(split_requests(body))
    return str(refused.value)


@pytest.mark.parametrize("escapes", [0, 10, 999, 1_000, 1_001, 40_000])
@pytest.mark.parametrize("escape", [b"\\n", b'\\"', b"\\\\", b"\\u00e9"])
def test_requests_of_a_batch_are_split_whatever_their_texts_hold(escape: bytes, escapes: int) -> None:
    """LANE-09: brackets and colons within a text are no brackets, and a long name is no other one."""
    text = b'"' + b"]}:[{," + escape * escapes + b'"'
    first, second = b'{"custom_id": ' + text + b"}", b'{"a": [' + text + b"]}"
    assert list(split_requests(b'{"requests": [' + first + b", " + second + b"]}")) == [first, second]
    with pytest.raises(RequestError):  # its name is no longer that of the text before it
        list(split_requests(b'{"x": "requests", ' + text + b": [" + first + b"]}"))
