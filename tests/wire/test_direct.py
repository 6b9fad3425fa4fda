"""Whole answers by the shortest way are answers like any others."""

import asyncio
import json

import pytest
from aiohttp import web

from support.house import house, raw
from watchbill.gateway.direct import DirectResponse
from watchbill.gateway.punctual import PunctualServer

CHAT = json.dumps({"model": "a", "messages": [{"role": "user", "content": "hi"}]}).encode()


def request(version: str = "1.1", *more: str) -> bytes:
    lines = [
        f"POST /v1/chat/completions HTTP/{version}",
        "Host: localhost",
        f"Content-Length: {len(CHAT)}",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + CHAT


async def test_a_connection_serves_many_answers_and_each_has_its_headers() -> None:
    """LANE-07: the headers of api.md are on every answer, whichever way it took."""
    async with house() as opened:
        reader, writer = await opened.connect()
        for _ in range(3):
            writer.write(request())
            answer = await raw(reader)
            assert answer.status == 200 and answer.json["choices"][0]["message"]["content"] == "hello there"
            assert answer.headers["server"] == "watchbill" and answer.headers["date"].endswith("GMT")
            assert answer.headers["x-watchbill-model"] == "a" and "connection" not in answer.headers
        writer.close()


async def test_a_client_that_wants_no_further_answer_is_let_go() -> None:
    async with house() as opened:
        reader, writer = await opened.connect()
        writer.write(request("1.1", "Connection: close"))
        answer = await raw(reader)
        assert answer.headers["connection"] == "close"
        assert await reader.read() == b""
        writer.close()


async def test_old_clients_are_answered_in_their_own_version() -> None:
    async with house() as opened:
        reader, writer = await opened.connect()
        writer.write(request("1.0"))
        assert (await reader.readline()).startswith(b"HTTP/1.0 200")
        assert b"hello there" in await reader.read()
        writer.close()


async def test_a_body_that_comes_after_its_head_is_waited_for() -> None:
    """Many clients send the two apart; the connection goes on as with any other."""
    async with house() as opened:
        reader, writer = await opened.connect()
        head, _, body = request().partition(b"\r\n\r\n")
        for _ in range(3):
            writer.write(head + b"\r\n\r\n")
            await asyncio.sleep(0.02)
            writer.write(body)
            assert (await raw(reader)).status == 200
        writer.close()


async def test_an_answer_that_comes_before_the_end_of_a_body_is_seen() -> None:
    """A client that still sends is read over for a while, and may ask again afterwards."""
    async with house() as opened:
        reader, writer = await opened.connect()
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n" + b"x" * 20)
        assert (await raw(reader)).status == 404
        writer.write(b"y" * 20 + request())
        assert (await raw(reader)).status == 200
        writer.close()


async def test_a_connection_whose_answer_was_given_up_is_closed() -> None:
    """P3: what an answer waited for was cancelled, and not by its client: it is not left waiting for ever."""

    async def give_up(_request: web.BaseRequest) -> web.StreamResponse:
        raise asyncio.CancelledError

    loop = asyncio.get_running_loop()
    server = PunctualServer(give_up, handler_cancellation=True)
    listening = await loop.create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    writer.write(request())
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    listening.close()
    await server.shutdown(1)


async def test_a_client_that_waits_for_a_go_ahead_gets_it() -> None:
    async with house() as opened:
        reader, writer = await opened.connect()
        head, _, body = request("1.1", "Expect: 100-continue").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        await reader.readline()
        writer.write(body)
        assert (await raw(reader)).status == 200
        writer.close()


@pytest.mark.parametrize("value", ["a\r\nX-Forged: 1", "a\nX-Forged: 1", "a\rX-Forged: 1"])
def test_a_header_with_a_line_break_is_never_sent(value: str) -> None:
    """A second header could be forged with it."""
    with pytest.raises(ValueError, match="line break"):
        DirectResponse(b"", {"X-Watchbill-Model": value}).head()
