"""Numbers that take a decoder long although they are short: extreme exponents, and those between two doubles.

Each takes msgspec's own reading up to 17 us, where others take 0.05.
"""

import asyncio
import json
import time

import pytest

from support.longest_pause import LAG_S_MAX, longest_pause
from support.open_gateway import HELLO, open_gateway
from support.peer import stream_of
from watchbill.decodable import is_decodable, json_decoder
from watchbill.errors import TooLarge
from watchbill.gateway.body import parse_large, parse_object
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX, JSON_DECODED_VALUES_MAX, JSON_VALUES_MAX

HARD = [
    b"1e308",
    b"-1.5E+308",
    b"1e290",
    b"5e-324",
    b"2.2250738585072014e-308",
    b"1.2345000000000000882390519126531e200",
    b"10000000000000000834404457354941e-131",
    b"9007199254740992.99999999999999999",
]
#: More than anybody has in a body, and fewer than its bound of values.
MANY = JSON_VALUES_MAX - 1_000
CHAT = b'{"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "input": "x", "x": [%b]}'


def many(number: bytes, count: int = MANY) -> bytes:
    return b",".join([number] * count)


@pytest.mark.parametrize("number", HARD, ids=bytes.decode)
def test_a_number_is_read_as_it_is_meant_however_hard_it_is(number: bytes) -> None:
    """R42: to the nearest double, as the standard library reads it."""
    assert parse_object(b'{"a": %b}' % number) == json.loads(b'{"a": %b}' % number)


def test_a_number_beyond_all_doubles_is_refused() -> None:
    """R42: written anew it would be something else."""
    for number in (b"1e309", b"-1e400", b"1e999999999", b"7" * 400 + b".0"):
        with pytest.raises(Exception, match="out of range"):
            parse_object(b'{"a": %b}' % number)


@pytest.mark.parametrize("number", HARD, ids=bytes.decode)
def test_a_small_body_of_hard_numbers_is_read_in_a_moment(number: bytes) -> None:
    """R42: 128 KiB of them took a third of a second."""
    body = CHAT % many(number, JSON_AT_ONCE_BYTES_MAX // (len(number) + 1) - 100)
    began = time.thread_time()
    parse_object(body)
    assert time.thread_time() - began < 0.15


@pytest.mark.parametrize("number", HARD, ids=bytes.decode)
async def test_a_large_body_of_hard_numbers_is_refused(number: bytes) -> None:
    """R42: each counts as several values."""
    with pytest.raises(TooLarge, match="values"):
        await parse_large(CHAT % many(number))
    assert not is_decodable(CHAT % many(number))


async def test_plain_numbers_and_digits_in_texts_count_as_what_they_are() -> None:
    """LANE-09: token ids, ordinary fractions and prose have the bounds they had."""
    for value in (b"128256", b"0.25", b"-1.5", b'"9e308 1234567890123456789"', b"true", b"false"):
        await parse_large(CHAT % many(value, MANY // 2))
        assert is_decodable(CHAT % many(value, JSON_DECODED_VALUES_MAX - 1_000))


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/api/chat",
     "/api/generate", "/api/embed", "/process", "/wb/v1/load"],
)  # fmt: skip
async def test_no_request_of_hard_numbers_holds_up_others(path: str) -> None:
    """R42: at every address that reads JSON."""
    async with open_gateway(HELLO) as opened:
        for count in (MANY, 20_000):
            doing = asyncio.ensure_future(opened.ask(path, CHAT % many(b"1e308", count)))
            assert await longest_pause(doing) < LAG_S_MAX
            await doing


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/api/embed"])
@pytest.mark.parametrize("place", ["usage", "timings", "error", "x"])
async def test_no_answer_of_hard_numbers_holds_up_others(place: str, path: str, stream: bool) -> None:
    """R34: wherever in an event they are."""
    asked = {"model": "a", "max_tokens": 1, "stream": stream, "input": "x",
             "messages": [{"role": "user", "content": "x"}]}  # fmt: skip
    told = b'data: {"id":"1","object":"o","created":1,"model":"m","choices":[],"%b":{"n":[%b]}}\n\n'
    for count in (90_000, 20_000):
        async with open_gateway(stream_of(told % (place.encode(), many(b"1e308", count)))) as opened:
            doing = asyncio.ensure_future(opened.ask(path, asked))
            assert await longest_pause(doing) < LAG_S_MAX
            await doing


def test_a_decoder_of_a_given_type_reads_hard_numbers_quickly_too() -> None:
    """R34: what is kept as any JSON within it."""
    began = time.thread_time()
    json_decoder(dict[str, object]).decode(b'{"a": [%b]}' % many(b"1e308", 20_000))
    assert time.thread_time() - began < 0.15
