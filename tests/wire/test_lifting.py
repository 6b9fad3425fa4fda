"""Large bodies: read in windows, bounded in what makes decoding slow, and passed on byte for byte."""

import asyncio
import json
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.longest_pause import LAG_S_MAX, longest_pause
from support.open_gateway import HELLO, open_gateway
from support.peer import stream_of
from watchbill.engines.base import Endpoint
from watchbill.engines.connection import Outgoing
from watchbill.errors import RequestError, TheirsError, TooLarge
from watchbill.gateway import lifting
from watchbill.gateway.body import parse_large
from watchbill.gateway.lifting import Lifted
from watchbill.limits import JSON_AT_ONCE_BYTES_MAX, JSON_DIGITS_MAX, JSON_WINDOW_BYTES


def passed_on(lifted: Lifted, value: object) -> bytes:
    """What an engine gets."""
    outgoing = lifted.fill(Outgoing(Endpoint("h", 1), "POST", "/", msgspec.json.encode(value)))
    return b"".join((outgoing.body, *outgoing.rest))


TEXTS = st.one_of(
    st.text(max_size=50),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=20), st.integers(1, 400)),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=st.dictionaries(TEXTS, VALUES, max_size=4), is_ascii=st.booleans(), window=st.integers(40, 3000))
@example({"a": '\\"\u0001é😀' * 500}, True, 41)
@example({"messages": ["x" * 5000], "b" * 3000: 1}, False, 64)
def test_what_an_engine_gets_is_what_the_client_sent(
    value: dict[str, object], is_ascii: bool, window: int
) -> None:
    """LANE-09: wherever the windows' borders are, and also as JSON within a text of JSON, twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "JSON_WINDOW_BYTES", window)
        found, lifted = asyncio.run(
            parse_large(json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"))
        )
    assert json.loads(passed_on(lifted, found)) == value
    once = passed_on(lifted, {"arguments": msgspec.json.encode(found).decode()})
    assert json.loads(json.loads(once)["arguments"]) == value
    inner = msgspec.json.encode({"b": msgspec.json.encode(found).decode()}).decode()
    twice = passed_on(lifted, {"a": inner})
    assert json.loads(json.loads(json.loads(twice)["a"])["b"]) == value
    assert lifted.restore(found, 2**30) == value


LONG = JSON_WINDOW_BYTES


@pytest.mark.parametrize(
    "text",
    [
        b"x" * LONG + b"\n" + b"x" * LONG,
        b"x" * 2 * LONG + b"\xff",
        b"x" * 2 * LONG + b"\\x",
        b"\\ud83d" + b"x" * 2 * LONG,
        b"x" * (LONG - 20) + b"\\ude00" + b"x" * LONG,
        b"x" * 2000 + b"\\u12",
        "é".encode() * LONG + b"\xc3",
    ],
    ids=[
        "a newline",
        "no UTF-8",
        "an unknown escape",
        "half a pair",
        "the other half",
        "a short escape",
        "cut",
    ],
)
def test_a_long_text_is_checked_as_a_short_one_is(text: bytes) -> None:
    """R42: what the decoder would refuse is refused here, too."""
    with pytest.raises(RequestError, match="not JSON"):
        asyncio.run(parse_large(b'{"a": "' + text + b'"}'))


@pytest.mark.parametrize("escape", [b"\\u00e9", b"\\\\", b'\\"', b"\\ud83d\\ude00", "é".encode(), b'\\",['])
@pytest.mark.parametrize("before", range(LONG - 14, LONG + 2))
def test_a_text_goes_on_across_the_border_of_a_window(escape: bytes, before: int) -> None:
    """LANE-09: whatever stands there. A pattern lost its place there on the Python of Debian 12: texts were not lifted
    out, bodies of 4 MiB were refused, and 200 KB of quotes took minutes."""
    body = b'{"a": "' + b"x" * before + escape * 30_000 + b'", "b": [1, "' + escape * 30_000 + b'"]}'
    found, lifted = asyncio.run(parse_large(body))
    assert len(msgspec.json.encode(found)) < 1_000
    assert json.loads(passed_on(lifted, found)) == json.loads(body)


#: Made when they are used: some are as large as a body may be.
HOSTILE: dict[str, tuple[Callable[[], bytes], type[TheirsError]]] = {
    "long integers": (lambda: b'{"a": [' + b",".join([b"7" * 4000] * 2000) + b"]}", RequestError),
    "one long integer": (lambda: b'{"a": ' + b"7" * 2_000_000 + b"}", RequestError),
    "many values": (lambda: b'{"a": [' + b",".join([b"[]"] * 1_000_000) + b"]}", TooLarge),
    "many fields": (lambda: b'{"a": {' + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}}", TooLarge),
    "many messages": (
        lambda: b'{"a": [' + b",".join([b'{"role":"user","content":"x"}'] * 150_000) + b"]}",
        TooLarge,
    ),
    "deep": (lambda: b'{"a": ' + b"[" * 150_000 + b"]" * 150_000 + b"}", TooLarge),
    "escaped letters": (
        lambda: b'{"a": [' + b",".join([b'"%b"' % (b"\\u0061" * 80)] * 20_000) + b"]}",
        TooLarge,
    ),
    "short texts": (lambda: b'{"a": [' + b",".join([b'"%b"' % (b"x" * 400)] * 12_000) + b"]}", TooLarge),
    "a name in disguise": (lambda: b'{"m\\u006fdel": "a", "b": "' + b"x" * 400_000 + b'"}', RequestError),
    "many long texts": (lambda: b'{"a": [' + b",".join([b'"%b"' % (b"x" * 600)] * 12_000) + b"]}", TooLarge),
    "no end": (lambda: b'{"a": "' + b"x" * 4_000_000, RequestError),
    "no end of quotes": (lambda: b'{"a": "' + b'\\",' * 400_000, RequestError),
    "quotes outside of texts": (lambda: b'{"a": ' + b'\\",' * 400_000, RequestError),
    "quotes alone": (lambda: b'{"a": ' + b'"' * 1_000_000, RequestError),
    "white space": (lambda: b'{"a":' + b" " * 20_000_000 + b"1}", TooLarge),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_body_is_refused_and_holds_up_nobody(name: str) -> None:
    """R42: digits, values, fields, depth and size are bounded, and looked at a little at a time."""
    make, kind = HOSTILE[name]
    body = make()

    async def read() -> TheirsError | None:
        try:
            await parse_large(body)
        except TheirsError as error:
            return error
        return None

    reading = asyncio.ensure_future(read())
    assert await longest_pause(reading) < LAG_S_MAX
    assert isinstance(await reading, kind)


@pytest.mark.parametrize(
    "text",
    [b"x", b"\\n", b"\\u00e9", "é".encode(), b"\\ud83d\\ude00", b'\\"'],
    ids=["plain", "escapes", "unicode escapes", "UTF-8", "pairs", "quotes"],
)
async def test_a_body_of_one_huge_text_holds_up_nobody(text: bytes) -> None:
    """R42: neither is decoded nor encoded anew."""
    body = b'{"a": "' + text * (24_000_000 // len(text)) + b'"}'
    reading = asyncio.ensure_future(parse_large(body))
    assert await longest_pause(reading) < LAG_S_MAX
    found, lifted = await reading
    assert passed_on(lifted, found) == b'{"a":' + body[6:]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "LONG"}]}),
        ("/v1/completions", {"prompt": "LONG"}),
        ("/v1/embeddings", {"input": ["LONG", "short"]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "LONG"}]}),
        ("/api/chat", {"stream": False, "messages": [{"role": "user", "content": "LONG"}]}),
        ("/api/generate", {"stream": False, "prompt": "LONG"}),
        ("/api/embed", {"input": "LONG"}),
    ],
)
async def test_every_door_passes_a_large_body_on(path: str, asked: dict[str, object]) -> None:
    """LANE-09: the engine reads the text as it was written, whichever dialect it came in."""
    text = 'One "quote", one \\ and é. ' * (JSON_AT_ONCE_BYTES_MAX // 10)
    async with open_gateway(HELLO) as opened:
        await opened.ask(
            path, json.loads(json.dumps({"model": "a", **asked}).replace("LONG", json.dumps(text)[1:-1]))
        )
        [engine] = opened.peer.asked
        assert text in _texts(engine.json)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/process", "/api/chat"])
async def test_a_small_body_has_the_bound_of_digits_too(path: str) -> None:
    """R42: in numbers; a text may have as many digits as it likes."""
    digits = b"7" * 4_299
    hostile = b'{"model": "a", "x": [' + b",".join([digits] * 29) + b"]}"
    assert len(hostile) < JSON_AT_ONCE_BYTES_MAX
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask(path, hostile)
        assert answer.status == 400
        assert f"more than {JSON_DIGITS_MAX} digits" in answer.body.decode()
        assert not opened.peer.asked


async def test_a_small_body_keeps_the_digits_of_its_texts() -> None:
    """LANE-09: pi to five thousand places is a prompt like any other."""
    text = "31415926535897932384626433832795028841971" * 120
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask(
            "/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": text}]}
        )
        assert answer.status == 200
        [engine] = opened.peer.asked
        assert text in _texts(engine.json)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for each in inner for text in _texts(each)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  any JSON


HOSTILE_ANSWERS = {
    "long integers": lambda: b'{"choices": [' + b",".join([b"7" * 4000] * 2000) + b"]}",
    "many values": lambda: b'{"choices": [' + b",".join([b"[]"] * 2_000_000) + b"]}",
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/api/embed"])
@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
async def test_an_engines_hostile_answer_holds_up_nobody(name: str, path: str, stream: bool) -> None:
    """R34: as an event of a stream, or whole; a stream in the client's own dialect passes as it is."""
    asked = {
        "model": "a",
        "max_tokens": 1,
        "stream": stream,
        "messages": [{"role": "user", "content": "x"}],
        "input": "x",
    }
    async with open_gateway(stream_of(b"data: " + HOSTILE_ANSWERS[name]() + b"\n\n")) as opened:
        asking = asyncio.ensure_future(opened.ask(path, asked))
        assert await longest_pause(asking) < LAG_S_MAX
        assert (await asking).status in (200, 502)


async def test_the_sizes_of_a_joined_text_are_those_of_all_its_parts() -> None:
    """R42: a prompt that is joined of many long parts is as long as all of them."""
    found, lifted = await parse_large(json.dumps({"a": ["x" * 200_000, "y" * 100_000]}).encode())
    joined = "\n".join(cast("list[str]", found["a"]))
    assert lifted.size_of(joined) == lifted.bytes_of(joined, 2**30) == 300_001
    assert lifted.bytes_of(joined, 1_000) > 1_000


async def test_of_what_is_not_put_back_the_beginning_is_shown() -> None:
    """SPOOL-13: no mark is in what people read."""
    found, lifted = await parse_large(json.dumps({"a": "x" * 200_000}).encode())
    assert lifted.without(found) == {"a": "x" * 64 + "..."}
    assert lifted.hidden(f"no model {found['a']!r} is here") == f"no model '{'x' * 64}...' is here"
