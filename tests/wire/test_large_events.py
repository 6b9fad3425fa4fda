"""Large events of engines, and large answers of small ones: nobody else waits while they are translated."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from support.longest_pause import longest_pause
from support.open_gateway import CATALOG, open_gateway
from support.peer import sse, stream_of
from watchbill.catalog import Catalog, Lane, WorkClass
from watchbill.engines.base import Endpoint
from watchbill.engines.limits import SSE_EVENT_BYTES_MAX
from watchbill.errors import EngineFailed
from watchbill.gateway.assemble import Assembly
from watchbill.gateway.limits import GROWN_CHARACTER_WEIGHT, GROWN_WEIGHT_MAX
from watchbill.limits import JSON_DECODED_BYTES_MAX, JSON_DECODED_VALUES_MAX

#: Of processor time. The promise is 50 ms on a machine of today; large events took 235.
PAUSE_S_MAX = 0.1
END = b'data: {"choices":[{"index":0,"delta":{},"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
LACKS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
CHAT = {"model": "a", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
PROMPT = {"model": "a", "max_tokens": 5, "prompt": "x"}
DOORS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {**CHAT}, "/v1/completions": {**PROMPT}, "/v1/messages": {**CHAT}, "/api/chat": {**CHAT},
    "/api/generate": {**PROMPT}, "/v1/responses": {"model": "a", "input": "x"},
}  # fmt: skip


def said(inside: bytes) -> bytes:
    """An event of a chat and of a completion."""
    return b'data: {"choices":[{"index":0,"delta":{%b},"text":"","finish_reason":null}]}\n\n' % inside


def words(text: bytes) -> bytes:
    return said(b'"content":"%b"' % text)


def called(arguments: bytes) -> bytes:
    return said(b'"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"%b"}}]' % arguments)


NEAR = JSON_DECODED_BYTES_MAX - 2**10
FIELDS = b",".join(b'"k%d":1' % at for at in range(JSON_DECODED_VALUES_MAX - 10))
#: Up to what an answer may have: a million characters, each of which is written as six.
GROWS = words(b"\\u0001" * 10_000) * (GROWN_WEIGHT_MAX // GROWN_CHARACTER_WEIGHT // 10_000 - 1)
EVENTS: dict[str, bytes] = {
    "huge and escaped": words(b"\\u4e2d" * ((SSE_EVENT_BYTES_MAX - 2**10) // 6)),
    "huge object": said(b",".join(b'"k%d":1' % at for at in range(99_000))),
    "escaped": words(b"\\u4e2d" * (NEAR // 6)),
    "lines": words(b"\\n" * (NEAR // 2)),
    "object": said(FIELDS),
    "arguments": called(b'{\\"a\\":\\"' + b"\\\\n" * (NEAR // 4) + b'\\"}'),
    "many lines": said(b'"content":"a"\n' + b"data:\n" * (NEAR // 6) + b"data: "),
    "grows": GROWS,
}  # fmt: skip


@contextmanager
def engine_in_a_thread(stream: bytes) -> Generator[int]:
    """An engine whose work is not the event loop's. It knows chats and completions alone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        def answer(connection: socket.socket) -> None:
            with connection.makefile("rb") as reader:
                first, size = reader.readline(), 0
                while (line := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                reader.read(size)
                is_known = b"completions" in first
                with suppress(OSError):  # the gateway may have had enough
                    connection.sendall(HEAD + stream + END if is_known else LACKS)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            serving.join(10)


def ask(port: int, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize("name", EVENTS)
async def test_no_event_of_an_engine_holds_up_other_requests(name: str, path: str, stream: bool) -> None:
    """R34: it is translated quickly, or refused quickly, whatever it is made of."""
    with engine_in_a_thread(EVENTS[name]) as engine_port:
        async with open_gateway() as opened:
            opened.engine.endpoint = Endpoint("127.0.0.1", engine_port)
            body = {**DOORS[path], "stream": stream}
            asking = asyncio.ensure_future(asyncio.to_thread(ask, opened.serving.port, path, body))
            assert await longest_pause(asking) < PAUSE_S_MAX
            status, answer = await asking
    assert status == 200 or (status == 502 and b"engine" in answer)


async def test_an_event_beyond_the_bound_of_translation_is_passed_on_unchanged_in_a_stream() -> None:
    """R33: an image in base64; only what is decoded has the lower bound."""
    large = words(b"z" * (SSE_EVENT_BYTES_MAX - 2**10))
    async with open_gateway(stream_of(large, END)) as opened:
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
        assert answer.status == 200 and answer.body == large + END
        whole = await opened.ask("/v1/chat/completions", CHAT)
        assert whole.status == 502 and whole.code == "engine_failed"


async def test_a_background_answer_with_such_an_event_is_passed_on_too() -> None:
    """RES-12: it cannot be continued, and need not be."""
    lanes = {**CATALOG.lanes, "slow": Lane("slow", work_class=WorkClass.BACKGROUND)}
    catalog = Catalog(CATALOG.devices, CATALOG.engines, CATALOG.models, lanes)
    large = words(b"z" * (2 * JSON_DECODED_BYTES_MAX))
    async with open_gateway(stream_of(words(b"a"), large, END), catalog=catalog) as opened:
        headers = {"X-Watchbill-Lane": "slow"}
        answer = await opened.ask("/v1/chat/completions", {**CHAT, "stream": True}, headers=headers)
        assert answer.status == 200 and answer.body == words(b"a") + large + END


def test_what_replaces_a_field_counts_in_place_of_what_it_replaces() -> None:
    """R34: figures that every event tells again are one figure at the end; a growing number of fields is not."""
    told = sse({"usage": {"text": "x" * 1_000}, "choices": []})
    assembly = Assembly(chat=False)
    for _ in range(2 * GROWN_WEIGHT_MAX // GROWN_CHARACTER_WEIGHT // 1_000):
        assembly.feed(told)
    names = range(GROWN_WEIGHT_MAX // GROWN_CHARACTER_WEIGHT // 1_000 + 1)
    with pytest.raises(EngineFailed, match="ask for a stream"):
        assembly.feed(sse(*({"choices": [{"index": 0, f"{at:01000}": 1}]} for at in names)))


async def test_conversations_of_many_small_turns_hold_up_nobody() -> None:
    """R34: 9,900 messages, continued four times; each is translated aside, also what was kept. It took 255 ms."""
    body: dict[str, object] = {"model": "a", "input": [{"role": "user", "content": "x"}] * 9_900}
    with engine_in_a_thread(END) as engine_port:
        async with open_gateway() as opened:
            opened.engine.endpoint = Endpoint("127.0.0.1", engine_port)
            for _ in range(5):
                work = asyncio.to_thread(ask, opened.serving.port, "/v1/responses", body)
                asking = asyncio.ensure_future(work)
                assert await longest_pause(asking) < PAUSE_S_MAX
                status, answer = await asking
                assert status == 200, answer
                body["previous_response_id"] = json.loads(answer)["id"]
