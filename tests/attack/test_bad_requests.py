"""Bodies, headers and numbers that are made to break a server (R42, R43, R47)."""

import asyncio
import json
import resource
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.eventually import eventually
from support.open_gateway import OpenGateway, open_gateway
from watchbill.catalog import Server
from watchbill.errors import TheirsError
from watchbill.gateway.body import encode, parse_large, parse_object
from watchbill.gateway.options import RANGES, check_ranges
from watchbill.limits import JSON_DEPTH_MAX, JSON_VALUES_MAX
from watchbill.units import Bytes

T = TypeVar("T")
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/wb/v1/models/a/evict"]
DEEP = 100_000
BAD_BODIES = {
    "empty": b"",
    "truncated": b'{"model": "a", "mess',
    "no object": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "BOM": b'\xef\xbb\xbf{"model": "a"}',
    "UTF-16": '{"model": "a"}'.encode("utf-16"),
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "deep lists": b'{"model": "a", "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"model": "a", "x": ' + b'{"x":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a little too deep": b'{"model": "a", "x": ' + b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX + b"}",
    "a huge integer": b'{"model": "a", "x": ' + b"9" * 100_000 + b"}",
    "a huge exponent": b'{"model": "a", "x": 1e400}',
    "NaN": b'{"model": "a", "x": NaN}',
    "Infinity": b'{"model": "a", "x": -Infinity}',
    "a lone surrogate": b'{"model": "a", "x": "\\ud800"}',
    "a lone surrogate in UTF-8": b'{"model": "a", "x": "\xed\xa0\x80"}',
    "the model twice": b'{"model": "a", "model": "b"}',
    "the model twice, in disguise": b'{"model": "a", "mod\\u0065l": "b"}',
    "the stream twice": b'{"model": "a", "stream": true, "stream": false}',
    "trailing bytes": b'{"model": "a"} {"model": "b"}',
    "a raw NUL": b'{"model": "a\x00"}',
    "a comment": b'{"model": "a" /* x */}',
    "single quotes": b"{'model': 'a'}",
}  # fmt: skip
BAD_MODELS = {
    "no model": {},
    "a model that is none": {"model": None},
    "a model that is a number": {"model": 7},
    "an empty model": {"model": ""},
    "a path": {"model": "../../etc/passwd"},
    "line breaks": {"model": "a\r\nX-Evil: 1"},
    "a NUL": {"model": "a\x00"},
    "5,000 characters": {"model": "a" * 5000},
    "a stream that is a text": {"model": "a", "stream": "true"},
}


async def check_refused(opened: OpenGateway, path: str, content: bytes) -> None:
    answer = await opened.ask(path, content)
    assert 400 <= answer.status < 500, answer.body
    assert answer.json["error"]["code"] in ("invalid_request", "model_not_found", "too_large")
    assert "x-evil" not in answer.headers
    assert (await opened.ask("/health")).status == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_no_request_is_refused(path: str) -> None:
    """R42: 4xx, never 500, and the engine never sees it."""
    async with open_gateway() as opened:
        for name, content in BAD_BODIES.items():
            if path.endswith("evict") and name in ("empty", "the stream twice"):
                continue  # legal here: nothing of it is passed on
            await check_refused(opened, path, content)
        assert not opened.peer.asked


@pytest.mark.parametrize(
    "text", ["x \\ud83e", "\\\\\\ud83e x", "x \\ud83e\\n", "\\udd86 x", "\\ud83e" + "x" * 200_000]
)
async def test_a_text_that_was_cut_within_an_emoji_is_told_as_such(text: str) -> None:
    """R42: JavaScript cuts so, and its JSON says so; the decoder called it malformed, or truncated input."""
    async with open_gateway() as opened:
        content = f'{{"model": "a", "messages": [{{"role": "user", "content": "{text}"}}]}}'.encode()
        answer = await opened.ask("/v1/chat/completions", content)
        assert answer.status == 400
        assert "cut in the middle of a character" in answer.json["error"]["message"]
        truncated = await opened.ask("/v1/chat/completions", b'{"model": "a", "messages": "\\\\ud83e')
        assert "cut in the middle" not in truncated.json["error"]["message"]


async def test_a_body_without_a_usable_model_is_refused() -> None:
    """R43, R49"""
    async with open_gateway() as opened:
        for fields in BAD_MODELS.values():
            await check_refused(opened, "/v1/chat/completions", json.dumps(fields).encode())
        assert not opened.peer.asked


async def test_a_body_beyond_the_limit_is_refused_unread() -> None:
    """R42: 413, announced or not, and the connection is not kept."""
    async with open_gateway(server=Server(body_max=Bytes(10_000))) as opened:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        announced = await opened.send(head + b"Content-Length: 10001\r\n\r\n")
        assert (announced.status, announced.code) == (413, "too_large")
        chunks = b"".join(b"400\r\n" + b" " * 1024 + b"\r\n" for _ in range(20))
        grown = await opened.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert (grown.status, grown.code) == (413, "too_large")
        assert grown.headers["connection"] == "close"
        fits = json.dumps({"model": "a", "x": "y" * 9_900}).encode()
        assert (await opened.ask("/v1/chat/completions", fits)).status == 200


async def test_memory_stays_flat_under_huge_bodies() -> None:
    """R42: 30 MB of empty lists would be a gigabyte of objects."""
    async with open_gateway() as opened:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for filler in (b"[],", b"{},", b"0,"):
            content = b'{"model": "a", "x": [' + filler * (30_000_000 // len(filler)) + b"0]}"
            answer = await opened.ask("/v1/chat/completions", content)
            assert (answer.status, answer.code) == (413, "too_large")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 300_000  # KiB: the bytes themselves, here and in the client


async def test_many_values_are_legal_up_to_the_bound() -> None:
    """R42: JSON_VALUES_MAX"""
    fields, _ = await parse_large(b'{"x": [' + b"1," * (JSON_VALUES_MAX - 10) + b"1]}")
    assert len(fields["x"]) == JSON_VALUES_MAX - 9
    with pytest.raises(TheirsError, match="more than"):
        await parse_large(b'{"x": [' + b"1," * (JSON_VALUES_MAX + 10) + b"1]}")


async def test_compressed_bodies_are_not_opened() -> None:
    """R42: a small body may be a large one."""
    async with open_gateway() as opened:
        headers = {"Content-Encoding": "gzip"}
        answer = await opened.ask("/v1/chat/completions", b"\x1f\x8b" + b"0" * 100, headers=headers)
        assert (answer.status, answer.code) == (415, "invalid_request")


def refusal_or(act: Callable[[], T]) -> T | int:
    """What comes out, or the status of a refusal."""
    try:
        return act()
    except TheirsError as error:
        return error.status


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_an_object_or_a_refusal(content: bytes) -> None:
    """R42"""
    fields = refusal_or(lambda: parse_object(content))
    assert isinstance(fields, dict | int)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=6))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_passed_on_means_what_was_sent(fields: dict[str, object]) -> None:
    """api.md: unknown JSON keys are kept; what cannot be kept is refused, not changed."""
    again = refusal_or(lambda: encode(parse_object(json.dumps(fields).encode("utf-8", "surrogatepass"))))
    assert again == 400 or json.loads(again) == fields


@pytest.mark.parametrize("name", RANGES)
def test_numbers_out_of_range_are_refused(name: str) -> None:
    """R47: every numeric field that is known."""
    rule = RANGES[name]
    for good in (rule.low, rule.high, None):
        check_ranges({name: good})
    for bad in (rule.low - 1, rule.high * 2 + 1, 1e300, -1e300, "7", [], {}, *([0.5] if rule.whole else [])):
        with pytest.raises(TheirsError, match=name):
            check_ranges({name: bad})


@given(st.sampled_from(sorted(RANGES)), JSON)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_number_passes_only_within_its_range(name: str, value: object) -> None:
    """R47"""
    rule = RANGES[name]
    try:
        check_ranges({name: value})
    except TheirsError:
        return
    assert value is None or isinstance(value, bool) or rule.low <= value <= rule.high


# ------------------------------------------------------------------ raw HTTP

HOST = b"Host: localhost\r\n"
BODY = b'{"model": "a"}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
BAD_HEADS = {
    "two lengths": POST + b"Content-Length: 14\r\nContent-Length: 15\r\n\r\n" + BODY,
    "a length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": POST + b"Content-Length: -14\r\n\r\n" + BODY,
    "a length with a plus": POST + b"Content-Length: +14\r\n\r\n" + BODY,
    "a length in letters": POST + b"Content-Length: abc\r\n\r\n" + BODY,
    "an unknown encoding": POST + b"Transfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "a chunk size in letters": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a folded header": b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a NUL in a header": b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "a bare CR in a header": b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n",
    "a space before the colon": b"GET /health HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n",
    "a header without a name": b"GET /health HTTP/1.1\r\n" + HOST + b": a\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\n" + HOST + b"Host: evil\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a long line": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a long header": b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\n"
    + HOST
    + b"".join(b"X-%d: a\r\n" % n for n in range(300))
    + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
    "a strange version": b"GET /health HTTP/3.7\r\n" + HOST + b"\r\n",
    "a method of symbols": b"G@T /health HTTP/1.1\r\n" + HOST + b"\r\n",
    "an absolute address": b"GET http://evil/health HTTP/1.1\r\n" + HOST + b"\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT evil:80 HTTP/1.1\r\n" + HOST + b"\r\n",
}


@pytest.mark.parametrize("request_bytes", BAD_HEADS.values(), ids=BAD_HEADS)
async def test_http_that_could_mean_two_things_is_refused(request_bytes: bytes) -> None:
    """R43: refused, nothing reflected raw, and the gateway goes on."""
    async with open_gateway() as opened:
        answer = await opened.send(request_bytes)
        assert 400 <= answer.status < 500
        assert not opened.peer.asked
        assert (await opened.ask("/health")).status == 200


async def test_a_load_balancer_may_come_without_a_host() -> None:
    """R43: HTTP/1.0 knows none, and no browser comes without; an empty one in HTTP/1.1 is refused as before."""
    async with open_gateway() as opened:
        assert (await opened.send(b"GET /health HTTP/1.0\r\n\r\n")).status == 200
        assert (await opened.send(b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n")).status == 403
        assert (await opened.send(b"GET /health HTTP/1.1\r\nHost:\r\n\r\n")).status == 403


NO_HTTP = {
    "a key in a broken header": b"GET /health HTTP/1.1\r\n"
    + HOST
    + b"Authorization : Bearer sk-secret\r\n\r\n",
    "a prompt in a broken chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nsk-secret\r\n",
    "a key in an address": b"GET http://[sk-secret HTTP/1.1\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_an_error_like_any_other(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """R43: in the shape of every error; one line in the log, with no trace of our insides or of what was sent."""
    async with open_gateway() as opened:
        with caplog.at_level("INFO"):
            answer = await opened.send(request_bytes)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["server"] == "watchbill"
        assert "secret" not in caplog.text and "secret" not in str(answer.json)
        assert "Traceback" not in caplog.text


async def test_line_breaks_in_names_are_not_reflected() -> None:
    """R43: encoded line breaks stay inside JSON."""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/models/a%0d%0aX-Evil:%201")
        assert answer.status == 404 and "x-evil" not in answer.headers
        answer = await opened.ask("/wb/v1/explain?model=%0d%0aX-Evil:%201")
        assert answer.status == 404 and "x-evil" not in answer.headers
        opened.gateway.access.flush()
        assert all("\r" not in line for line in opened.log)


async def test_a_web_form_without_an_origin_is_read_as_json() -> None:
    """pitfalls.md: `curl -d` sends a form type; /wb/v1 demands JSON."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    async with open_gateway() as opened:
        assert (await opened.ask("/v1/chat/completions", BODY, headers=form)).status == 200
        answer = await opened.ask("/wb/v1/models/a/evict", b"{}", headers=form)
        assert (answer.status, answer.code) == (415, "invalid_request")
        answer = await opened.ask("/wb/v1/models/a/evict", method="POST")
        assert answer.status == 200


async def test_a_flood_of_requests_is_bounded_and_leaves_nothing() -> None:
    """R23: the queue refuses, callers leave, and what they held is given back."""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n" + BODY
        )
        for _ in range(10):
            pairs = await asyncio.gather(*(opened.connect() for _ in range(100)))
            for _, writer in pairs:
                writer.write(request)
            refused = [asyncio.ensure_future(reader.readuntil(b"\r\n\r\n")) for reader, _ in pairs]
            await eventually(lambda asked=refused: sum(one.done() for one in asked) >= 84)
            assert opened.count("waiting") == 16
            for _, writer in pairs:
                writer.transport.abort()
            await asyncio.gather(*refused, return_exceptions=True)
            await opened.until_idle()
