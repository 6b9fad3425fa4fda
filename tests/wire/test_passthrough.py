"""Addresses that are the engine's own: passed on as they are, in a turn like any other."""

import asyncio
import json
from collections.abc import Callable

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.eventually import eventually
from support.longest_pause import LAG_S_MAX, longest_pause
from support.open_gateway import CATALOG, HELLO, OpenGateway, open_gateway
from support.peer import Asked, stream_of
from watchbill.engines.base import Endpoint
from watchbill.errors import RequestError, UnsupportedMedia
from watchbill.gateway.form import Form, parse_form
from watchbill.gateway.limits import FORM_HEAD_BYTES_MAX
from watchbill.limits import JSON_WINDOW_BYTES

SPOKEN = bytes(range(256)) * 40
EVENTS = (
    b"event: speech.audio.delta\ndata: {}\n\n",
    b'event: speech.audio.done\ndata: {"type":"speech.audio.done"}\n\n',
)
BOUNDARY = "xYz-1"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


def parsed(body: bytes, content_type: str = KIND) -> Form:
    """The form in a body, read without a gateway."""
    return asyncio.run(parse_form(body, content_type))


def form(*parts: tuple[str, bytes], ending: bytes = b"--\r\n") -> bytes:
    """A form as clients write it."""
    body = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    )
    return body + f"--{BOUNDARY}".encode() + ending


async def post_form(opened: OpenGateway, body: bytes, kind: str = KIND):
    return await opened.ask("/v1/audio/transcriptions", body, headers={"Content-Type": kind})


def test_a_line_end_before_the_first_boundary_is_no_part_of_a_form() -> None:
    """LANE-01: clients that write one before each boundary got 400."""
    body = b"\r\n" + form(("name=model", b"a"), ('name=file; filename="f"', SPOKEN))
    assert [(part.name, bytes(part.content)) for part in parsed(body).parts] == [
        ("model", b"a"),
        ("file", SPOKEN),
    ]
    for wrong in (b"\r\n" + body, b"\n" + body, b"\r" + body, b"x" + body, b" " + body):
        with pytest.raises(RequestError):
            parsed(wrong)


async def test_a_stream_of_events_passes_unchanged() -> None:
    """LANE-01: speech has events of its own kind and no [DONE]."""
    async with open_gateway(stream_of(*EVENTS)) as opened:
        body = {"model": "alias/of-a", "input": "hi", "stream": True, "priority": 2, "odd": {"x": 1}}
        answer = await opened.ask("/v1/audio/speech", body)
        assert answer.status == 200
        assert answer.body == b"".join(EVENTS)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-watchbill-model"] == "a"
        asked = opened.peer.asked[0]
        assert asked.path == "/v1/audio/speech"
        assert asked.json == {"model": "alias/of-a", "input": "hi", "stream": True, "odd": {"x": 1}}
        await opened.until_idle()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/images/generations"])
async def test_a_whole_answer_passes_byte_for_byte(path: str) -> None:
    """LANE-01: what the engine says is what the client gets, and the turn is given back."""
    said = b'{"odd":  [1, 2.50]}'
    async with open_gateway(stream_of(said, content_type="application/json")) as opened:
        answer = await opened.ask(path, {"model": "a", "query": "q", "documents": ["d"]})
        assert (answer.status, answer.body) == (200, said)
        assert answer.headers["content-type"] == "application/json"
        assert opened.peer.asked[0].path == path
        await opened.until_idle()
        assert opened.outcomes() == {"ok": 1}


async def test_speech_passes_as_the_engine_makes_it() -> None:
    """LANE-01: bytes that are no text, while they come."""
    async with open_gateway(stream_of(SPOKEN[:5_000], SPOKEN[5_000:], content_type="audio/mpeg")) as opened:
        client = openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0)
        async with client:
            spoken = await client.audio.speech.create(model="a", voice="alloy", input="hello")
            assert spoken.content == SPOKEN
            assert spoken.response.headers["content-type"] == "audio/mpeg"


async def test_a_real_client_sends_its_sound_through() -> None:
    """LANE-01: multipart, the model in the form; the file arrives byte for byte under the engine's own name."""
    async with open_gateway(stream_of(b'{"text":"hello"}', content_type="application/json")) as opened:
        opened.engine.endpoint = Endpoint("127.0.0.1", opened.peer.port, upstream_model="whisper-1")
        client = openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0)
        async with client:
            heard = await client.audio.transcriptions.create(
                model="a",
                file=("a; name=model.wav", SPOKEN),
                extra_body={"keep_alive": "5m"},
                timestamp_granularities=["word", "segment"],
                response_format="verbose_json",
            )
            assert heard.text == "hello"
        asked = opened.peer.asked[0]
        got = await parse_form(asked.body, asked.headers["content-type"])
        assert got.texts() == {"model": "whisper-1", "response_format": "verbose_json"}
        assert [part.content for part in got.parts if part.is_file] == [SPOKEN]
        assert sum(part.name.startswith("timestamp_granularities") for part in got.parts) == 2


BROKEN = [
    (form(("name=model", b"a"), ("name=model", b"b")), None, 400),
    (form(("name=file", b"x")), None, 400),
    (form(("name=model", b"a"), ("name=temperature", b"1e9")), None, 400),
    (form(("name=model", b"a"), ("name=temperature", b"nan")), None, 400),
    (form(("name=model", b"a"), ("name=temperature", b"warm")), None, 400),
    (form(('filename="x"', b"x")), None, 400),
    (form(("name=model", b"a"), ending=b"\r\n"), None, 400),
    (form(("name=model", b"\xff")), None, 400),
    (form(("name=model", b"nobody")), None, 404),
    (form(*[(f"name=f{n}", b"") for n in range(100)]), None, 400),
    (b"", None, 400),
    (b"junk" + form(("name=model", b"a")), None, 400),
    (form(("name=model", b"a")), "multipart/form-data", 400),
    (form(("name=model", b"a")), 'multipart/form-data; boundary="a\\"b"', 400),
    (form(("name=model", b"a")), "application/json", 415),
    (b'{"model": "a"}', "application/json", 415),
]


async def test_a_broken_form_is_refused_and_reaches_nobody() -> None:
    """LANE-08: what could be read in two ways is not passed on."""
    async with open_gateway(HELLO) as opened:
        for body, kind, status in BROKEN:
            answer = await (post_form(opened, body, kind) if kind else post_form(opened, body))
            assert answer.status == status, (body[:80], answer.body)
        assert not opened.peer.asked


@pytest.mark.parametrize(
    ("said", "name", "is_file"),
    [
        ("name=model", "model", False),
        ('name="model"', "model", False),
        ('NAME="a; name=b" ; filename=x.wav', "a; name=b", True),
        (r'name="a \"quoted\" \\ name"', r'a "quoted" \ name', False),
        ("name=\"größe\"; filename*=UTF-8''%e2%82%ac.wav", "größe", True),
    ],
)
def test_the_name_of_a_part_is_read_as_it_is_written(said: str, name: str, is_file: bool) -> None:
    """LANE-01"""
    part = parsed(form((said, b"x"))).parts[0]
    assert (part.name, part.is_file, part.content) == (name, is_file, b"x")


@pytest.mark.parametrize(
    "said",
    [
        "name=a; name=b",
        "name=a; NAME=b",
        "name=a; name*=UTF-8''b",
        "name*=UTF-8''b",
        'name="a',
        'name="a"b',
        "name=a=b",
        "name=a;",
        "name=a; filename",
        'name=""',
    ],
)
def test_a_part_whose_name_could_be_read_in_two_ways_is_refused(said: str) -> None:
    """LANE-08"""
    with pytest.raises(RequestError):
        parsed(form((said, b"x")))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["", "boundary=b", 'boundary="b"', "boundary=; x"]))
def test_no_bytes_break_the_reading_of_forms(body: bytes, params: str) -> None:
    """LANE-08: whatever comes is a form or a refusal."""
    for content in (body, b"--b\r\n" + body + b"\r\n--b--"):
        try:
            found = parsed(content, f"multipart/form-data; {params}").texts()
        except (RequestError, UnsupportedMedia):
            continue
        assert all(isinstance(text, str) for text in found.values())


@given(st.binary(max_size=300).filter(lambda content: b"--" + BOUNDARY.encode() not in content))
def test_a_file_survives_the_way_through(content: bytes) -> None:
    """LANE-01: a form that nothing is changed in means the same afterwards."""
    whole = form(("name=model", b"a"), ('name="file"; filename="f"', content))
    once = parsed(whole)
    twice = parsed(b"".join(once.encode(None, frozenset())), once.content_type)
    assert once == twice
    assert once.parts[1].content == content


LONG_HEAD = "name=model; x=" + "y " * 10_000_000
#: Made when they are needed: together they are large.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a head of 20 MB": lambda: form((LONG_HEAD, b"a")),
    "a head of 20 MB without an end": lambda: form((LONG_HEAD, b"a")).replace(b"\r\n\r\n", b" "),
    "a head of spaces": lambda: form(*[("name=a" + " " * (FORM_HEAD_BYTES_MAX - 60) + "x", b"")] * 60),
    "many headers": lambda: form(*[("name=a\r\n" + "a:\n" * 1_000 + "a:", b"")] * 60),
    "many parameters": lambda: form(*[("name=a" + "".join(f";{n}=b" for n in range(600)), b"")] * 60),
    "many parts": lambda: form(*[("name=a", b"")] * 200_000),
    "many blank lines": lambda: form(("name=model", b"a"), ending=b"--" + b"\r\n" * 10_000_000),
    "near boundaries": lambda: form(("name=model", b"a")) + f"\r\n--{BOUNDARY[:-1]}".encode() * 2_000_000,
    "no end": lambda: form(("name=file; filename=f", b"\r\n--" * 5_000_000), ending=b""),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_form_is_refused_and_holds_up_nobody(name: str) -> None:
    """R42: its parts, their headers and what is in those are bounded before they are looked at."""
    async with open_gateway(HELLO) as opened:
        asking = asyncio.ensure_future(post_form(opened, HOSTILE[name]()))
        assert await longest_pause(asking) < LAG_S_MAX
        assert (await asking).status == 400
        assert not opened.peer.asked


async def test_a_large_form_is_read_a_little_at_a_time() -> None:
    """R42: others are served between its windows, wherever a boundary lies, and its file arrives byte for byte."""
    for size in range(3 * JSON_WINDOW_BYTES - 120, 3 * JSON_WINDOW_BYTES + 10, 7):
        content = b"\r\n--" + b"x" * size
        reading = asyncio.ensure_future(
            parse_form(form(("name=f; filename=f", content), ("name=model", b"a")), KIND)
        )
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 3
        got = await reading
        assert [part.content for part in got.parts] == [content, b"a"]


async def test_a_large_sound_reaches_the_engine_byte_for_byte() -> None:
    """LANE-01: also in pieces, under the engine's own name of the model."""
    content = SPOKEN * 200
    async with open_gateway(stream_of(b'{"text":"hello"}', content_type="application/json")) as opened:
        opened.engine.endpoint = Endpoint("127.0.0.1", opened.peer.port, upstream_model="whisper-1")
        answer = await post_form(opened, form(("name=model", b"a"), ("name=file; filename=f", content)))
        assert answer.status == 200
        asked = opened.peer.asked[0]
        got = await parse_form(asked.body, asked.headers["content-type"])
        assert [part.content for part in got.parts] == [b"whisper-1", content]


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_without_the_address_is_named(status: int) -> None:
    """LANE-01: not a 404 that a client would take for a missing model, and nobody tries again."""
    lacking = stream_of(b'{"error":"File Not Found"}', status=status, content_type="application/json")
    async with open_gateway(lacking) as opened:
        for path in ("/v1/rerank", "/v1/images/generations"):
            answer = await opened.ask(path, {"model": "a", "input": "hi"})
            assert (answer.status, answer.code) == (501, "not_offered")
            assert path in answer.body.decode()
            assert answer.headers["x-should-retry"] == "false"
        await opened.until_idle()


async def test_an_engines_error_keeps_its_status() -> None:
    """LANE-01: a 400 stays one, in the shape of every error."""
    refusing = stream_of(b'{"error":{"message":"no voice"}}', status=400, content_type="application/json")
    async with open_gateway(refusing) as opened:
        answer = await opened.ask("/v1/audio/speech", {"model": "a", "input": "hi"})
        assert answer.status == 400
        assert "no voice" in answer.body.decode()


async def test_half_a_sound_does_not_look_whole() -> None:
    """LANE-08: when the engine breaks off after the headers, the client's connection breaks, too."""
    async with open_gateway(stream_of(SPOKEN, end=False, content_type="audio/mpeg")) as opened:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await opened.ask("/v1/audio/speech", {"model": "a", "input": "hi"})
        await opened.until_idle()


async def test_half_a_stream_ends_with_an_error_event() -> None:
    """LANE-08: as at every other door."""
    async with open_gateway(stream_of(EVENTS[0], end=False)) as opened:
        answer = await opened.ask("/v1/audio/speech", {"model": "a", "input": "hi", "stream": True})
        assert answer.body.startswith(EVENTS[0])
        assert json.loads(answer.body.split(b"data: ")[-1])["error"]["code"] == "engine_failed"


async def test_a_client_that_leaves_ends_the_work() -> None:
    """Race 4: the engine's socket is closed and the grant comes back."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"%x\r\n%b\r\n" % (len(EVENTS[0]), EVENTS[0]))
        await asyncio.Event().wait()

    async with open_gateway(talk) as opened:
        reader, writer = await opened.connect()
        body = json.dumps({"model": "a", "input": "x", "stream": True}).encode()
        writer.write(
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await reader.readuntil(b"speech.audio.delta")
        writer.close()
        await opened.peer.until(lambda peer: peer.left == 1)
        await eventually(lambda: not opened.driver.requests())


async def test_lanes_by_path_reach_these_addresses() -> None:
    """LANE-02: for callers who can only set a base address."""
    async with open_gateway(stream_of(b"{}", content_type="application/json"), catalog=CATALOG) as opened:
        answer = await opened.ask("/lane/batch/v1/audio/speech", {"model": "a", "input": "hi"})
        assert answer.headers["x-watchbill-lane"] == "batch"
        assert opened.peer.asked[0].path == "/v1/audio/speech"


async def test_an_error_at_a_lanes_address_is_in_the_words_of_its_door() -> None:
    """LANE-02: a client that was given a base address with a lane understands errors as without it."""
    unknown = {"model": "nope", "messages": [], "max_tokens": 1}
    async with open_gateway(catalog=CATALOG) as opened:
        for path in ("/api/chat", "/v1/messages", "/v1/chat/completions", "/api/nothing"):
            plain, with_lane = (
                await opened.ask(path, unknown),
                await opened.ask(f"/lane/batch{path}", unknown),
            )
            assert (with_lane.status, with_lane.body) == (plain.status, plain.body)
